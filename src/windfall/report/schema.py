"""JSON Schema (draft 2020-12) of what `--json` prints and what the store holds, from the words' own type hints."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

from windfall import events, terms
from windfall.report.account import Account
from windfall.report.checks import Check
from windfall.report.spells import Kind

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {str: "string", bool: "boolean", int: "integer", float: "number"}
_TEXT, _COUNT, _NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}
_TEXTS = {"type": "array", "items": _TEXT}

Schema = dict[str, Any]


class Words:
    """Collects the definitions of the words that a schema refers to.

    Args:
        tagged: whether objects carry their class's name as `is` (journal and store) or not (accounts).
    """

    def __init__(self, *, tagged: bool = True) -> None:
        self.definitions: dict[str, Schema] = {}
        self._tagged = tagged

    def of(self, hint: Any) -> Schema:
        """Return the schema of a type hint: our dataclasses and enumerations, plain values, tuples, optional ones.

        Raises:
            TypeError: a hint that has no place in a journal.
        """
        hint = getattr(hint, "__supertype__", hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(option) for option in arguments]}
        if origin is tuple:
            return self._array(arguments)
        if hint is type(None):
            return {"type": "null"}
        if hint in _SCALARS:
            return {"type": _SCALARS[hint]}
        if dataclasses.is_dataclass(hint):
            return self._reference(typing.cast("type", hint))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return {"enum": [member.value for member in hint]}
        raise TypeError(f"{hint!r} has no schema")

    def _array(self, arguments: tuple[Any, ...]) -> Schema:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self.of(arguments[0])}
        items = [self.of(argument) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _reference(self, cls: type) -> Schema:
        if cls.__name__ not in self.definitions:
            self.definitions[cls.__name__] = {}
            kinds = cls.__subclasses__()
            self.definitions[cls.__name__] = {"anyOf": [self.of(kind) for kind in kinds]} if kinds else self._object(cls)
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def _object(self, cls: type) -> Schema:
        hints = typing.get_type_hints(cls)
        fields = {field.name: self.of(hints[field.name]) for field in dataclasses.fields(cls)}
        described = {"description": " ".join((cls.__doc__ or "").partition("\n\n")[0].split())}
        tag: Schema = {"is": {"const": cls.__name__}} if self._tagged else {}
        return described | _closed(tag | fields)


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _versioned(words: Words, name: str, word: type, version: int) -> Schema:
    return _closed({"v": {"type": "integer", "minimum": 1, "maximum": version}, name: words.of(word)})


def _account(words: Words) -> Schema:
    plain = words.definitions.pop(words.of(Account)["$ref"].rpartition("/")[2])
    spent = _closed({f"{kind.value}_s": _NUMBER for kind in Kind})
    derived = {"spent": spent, "saves": plain["properties"].get("saves") or _saves(words)}
    derived |= {"total_s": _NUMBER, "machine_hours": _NUMBER, "goodput": _NUMBER}
    return _closed(plain["properties"] | derived)
