"""The codec of the words: frozen dataclasses of plain values to JSON and back, by the type that is expected.

A dataclass becomes an object whose `"is"` names its class; enums become their values, tuples lists.  What comes in is
input, whoever sent it: each word is made by msgspec from its type hints, and anything else is refused: another word, an
unknown field, a value of another type, a number that is not finite or does not fit into 64 bits, text that is not
Unicode, an object nested deeper than any of ours.  Nothing is run, and nothing is looked up by a name in the data but the
words themselves.

msgspec knows tagged objects and unknown fields of its own structs alone.  So each word has a struct of the same fields,
its *shape*, made once: JSON is checked against the shape, and the word is made from that.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import sys
import types
import typing
from typing import Annotated, Any

import msgspec

from windfall import events, fleet, jobs, market, results, terms
from windfall.errors import OLDER, NewerFormat, OlderFormat

_TAG = "is"
_BASES = (object, events.Fact, events.Command)
"""Expected where any of the words below will do."""
_INT = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_FLOAT = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_NUMBERS: dict[Any, Any] = {int: _INT, float: _FLOAT}
_BAD = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)
_NOT_FINITE = ("nan", "inf", "-inf")
_COMPACT = (",", ":")
_PLAIN = frozenset({str, int, bool, type(None)})


# ------------------------------------------------------------------------------------------------------------- writing


def encode(value: object) -> object:
    """Turn a word into what `json.dumps` accepts.

    Raises:
        TypeError: a value that is not one of our words.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        # JSON has no word for what is not finite; `Metric` alone is read back from this one.
        return value if math.isfinite(typing.cast("float", value)) else str(value)
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    names = _names(kind)
    if names is not None:
        fields = {name: encode(getattr(value, name)) for name in names}
        return {_TAG: kind.__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{kind.__name__} has no place in a journal")


@functools.cache
def _names(kind: Any) -> tuple[str, ...] | None:
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def sealed(version: int, name: str, word: object) -> bytes:
    """Write a word as an object of its own, version first; `opened` reads it."""
    return json.dumps({"v": version, name: encode(word)}, separators=_COMPACT).encode()


def row_to_line(row: events.Row) -> str:
    """Write a journal row as one line of JSON, version first."""
    return json.dumps({"v": events.VERSION, "row": encode(row)}, separators=_COMPACT)


# ------------------------------------------------------------------------------------------------------------- reading


def parse(text: bytes | str) -> Any:
    """Return somebody's JSON as plain values; the one place where it is read.

    Raises:
        ValueError: it is none: also NaN, 1e999, half of a surrogate pair, a depth that no message of ours has.
    """
    try:
        return msgspec.json.decode(text)
    except _BAD as error:
        raise ValueError(_why(error)) from None


def decode(data: object, expected: Any) -> Any:
    """Turn what `parse` gave back into the word it was.

    Args:
        data: the parsed JSON.
        expected: the word's class, a base (`Fact`, `Command`), `object` for any word, or a type made of these.

    Raises:
        ValueError: the data do not have the shape of `expected`; says where, and nothing of what stands there.
    """
    try:
        return _word(msgspec.convert(data, _shape(expected), dec_hook=_number), expected)
    except _BAD as error:
        raise ValueError(_why(error)) from None


def opened(data: bytes | str, name: str, expected: Any, *, version: int, what: str) -> Any:
    """Read what `sealed` wrote.

    Args:
        data: as it was found.
        name: of the word in it.
        expected: as `decode` takes it.
        version: the one that this Windfall writes.
        what: its name in a sentence.

    Raises:
        NewerFormat, OlderFormat: another Windfall wrote it.
        ValueError: it is damaged; says where.
    """
    try:
        found = _envelopes(name, expected).decode(data)
        if found.v == version:
            return _word(getattr(found, name), expected)
    except _BAD as error:
        _refuse_version(data, version, what)
        raise ValueError(_why(error)) from None
    _refuse_version(data, version, what)
    raise ValueError(f"version {version} was expected")


def row_from_line(line: str) -> events.Row:
    """Read a journal row.

    Raises:
        NewerFormat, OlderFormat: another Windfall wrote it.
        ValueError: it is damaged.
    """
    row: events.Row = opened(line, "row", events.Row, version=events.VERSION, what="the journal")
    return row


def _refuse_version(data: bytes | str, version: int, what: str) -> None:
    said = parse(data)
    found = said.get("v") if isinstance(said, dict) else None
    if isinstance(found, bool) or not isinstance(found, int):
        return
    if found > version:
        raise NewerFormat(f"{what} has version {found}, this Windfall reads up to {version}: upgrade Windfall here")
    if found < version:
        raise OlderFormat(f"{what} has version {found}, {OLDER}: name another URL")


def _why(error: Exception) -> str:
    """Say what is wrong and where; what stands there may be a secret, and is not repeated."""
    if isinstance(error, RecursionError):
        return "it is nested deeper than any message"
    if isinstance(error, UnicodeError):
        return "it is no Unicode text"
    said = str(error)
    what, _, place = said.rpartition(" - at ")
    if not what:
        what, place = said, ""
    for quoting in ("Invalid enum value", "Invalid value", "Object contains unknown field"):
        if what.startswith(quoting):
            what = quoting
    where = f" at {place.strip('`')}" if place else ""
    return f"{what[:1].lower() if what[1:2].islower() else what[:1]}{what[1:]}{where}"


# -------------------------------------------------------------------------------------------------------------- shapes


class _IsFloat(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, float)


class _Number(metaclass=_IsFloat):
    """The shape of a `Metric`: a float, written as text where JSON has no word for it."""


def _number(_: type, data: object) -> float:
    if data in _NOT_FINITE or (isinstance(data, (int, float)) and not isinstance(data, bool)):
        return float(typing.cast("float", data))
    raise ValueError("expected a number")


@functools.cache
def _classes() -> dict[str, type]:
    named = [item for module in (terms, events, results, jobs, market, fleet) for item in vars(module).items()]
    return {name: value for name, value in named if isinstance(value, type) and dataclasses.is_dataclass(value)}


@functools.cache
def _struct(cls: type) -> type[msgspec.Struct]:
    """Make the shape of a word."""
    hints = typing.get_type_hints(cls)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field in dataclasses.fields(cls):
        hint = _shape(hints[field.name])
        if field.default is not dataclasses.MISSING:
            fields.append((field.name, hint, field.default))
        elif field.default_factory is not dataclasses.MISSING:
            fields.append((field.name, hint, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.name, hint))
    return msgspec.defstruct(
        cls.__name__, fields, tag_field=_TAG, tag=cls.__name__, forbid_unknown_fields=True, kw_only=True, gc=False
    )


@functools.cache
def _shape(hint: Any) -> Any:
    """Return a type hint with each word replaced by its shape, and numbers that fit."""
    if hint is terms.Metric:
        return _Number
    hint = getattr(hint, "__supertype__", hint)
    if hint in _BASES:
        return _any_of(_struct(word) for word in _classes().values() if issubclass(word, hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _struct(hint)
    return _NUMBERS.get(hint) or _compound(hint)


def _compound(hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _any_of(_shape(one) for one in arguments)
    if origin is tuple:
        return tuple[tuple(one if one is Ellipsis else _shape(one) for one in arguments)]  # type: ignore[misc]
    return hint


def _any_of(kinds: typing.Iterable[Any]) -> Any:
    return typing.Union[tuple(kinds)]  # noqa: UP007 - of as many as there are


@functools.cache
def _envelopes(name: str, expected: Any) -> msgspec.json.Decoder[Any]:
    fields = [("v", int), (name, _shape(expected))]
    return msgspec.json.Decoder(
        msgspec.defstruct("Envelope", fields, forbid_unknown_fields=True, gc=False), dec_hook=_number
    )


def _word(shape: Any, expected: Any) -> Any:
    """Make the word of a shape that has been checked."""
    return msgspec.convert(shape, expected, from_attributes=True, dec_hook=_by_name)


def _by_name(_: type, shape: Any) -> Any:
    """Make a word that stands where only its base is expected."""
    return _word(shape, _classes()[type(shape).__name__])
