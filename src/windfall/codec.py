"""The codec of the words: frozen dataclasses of plain values to JSON and back, checked against their type hints.

A dataclass becomes an object whose `"is"` names its class; enums become their values, tuples lists.  Decoding knows only
the classes of the words' own modules, refuses unknown fields and wrong types, and never runs code from the data.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from typing import Any

from windfall import events, fleet, jobs, market, terms
from windfall.errors import OLDER, NewerFormat, OlderFormat

_TAG = "is"


@functools.cache
def _classes() -> dict[str, type]:
    named = [item for module in (terms, events, jobs, market, fleet) for item in vars(module).items()]
    return {name: value for name, value in named if isinstance(value, type) and dataclasses.is_dataclass(value)}


@functools.cache
def _fields(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def encode(value: object) -> object:
    """Turn a word into what `json.dumps` accepts.

    Raises:
        TypeError: a value that is not one of our words.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {_TAG: type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a journal")


def decode(data: object, expected: Any = object) -> Any:
    """Turn what `json.loads` gave back into the word it was.

    Args:
        data: the parsed JSON.
        expected: the type hint to check against; `object` accepts any tagged word.

    Raises:
        ValueError: the data does not have the shape of `expected`.
    """
    if isinstance(data, dict):
        return _decode_tagged(data)
    origin = typing.get_origin(expected)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(expected) if option is not type(None)]
        if data is None:
            return None
        return decode(data, options[0])
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"a list was expected, not {data!r}")
        arguments = typing.get_args(expected)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(decode(item, arguments[0]) for item in data)
        if len(arguments) != len(data):
            raise ValueError(f"{len(arguments)} items were expected, not {len(data)}")
        return tuple(decode(item, hint) for item, hint in zip(data, arguments, strict=True))
    return _decode_scalar(data, getattr(expected, "__supertype__", expected))


def _decode_scalar(data: object, expected: Any) -> object:
    if isinstance(expected, type) and issubclass(expected, enum.Enum):
        return expected(data)
    if expected is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if expected is int and isinstance(data, bool):
        raise ValueError(f"int was expected, not {data!r}")
    if isinstance(expected, type) and not isinstance(data, expected):
        raise ValueError(f"{expected.__name__} was expected, not {data!r}")
    return data


def _decode_tagged(data: dict[str, Any]) -> object:
    name = data.get(_TAG)
    cls = _classes().get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"unknown word {name!r}")
    hints = _fields(cls)
    unknown = set(data) - set(hints) - {_TAG}
    if unknown:
        raise ValueError(f"{name} has no field {min(unknown)!r}")
    return cls(**{field: decode(value, hints[field]) for field, value in data.items() if field != _TAG})


def row_to_line(row: events.Row) -> str:
    """Write a journal row as one line of JSON, version first."""
    return json.dumps({"v": events.VERSION, "row": encode(row)}, separators=(",", ":"))


def row_from_line(line: str) -> events.Row:
    """Read a journal row.

    Raises:
        NewerFormat, OlderFormat: another Windfall wrote it.
        ValueError: it is damaged.
    """
    data = json.loads(line)
    if data["v"] > events.VERSION:
        raise NewerFormat(
            f"the journal has version {data['v']}, this Windfall reads up to {events.VERSION}: upgrade Windfall"
        )
    if data["v"] < events.VERSION:
        raise OlderFormat(f"the journal has version {data['v']}, {OLDER}")
    row = decode(data["row"])
    if not isinstance(row, events.Row):
        raise ValueError("the line is not a journal row")
    return row
