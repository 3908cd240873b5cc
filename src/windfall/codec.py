"""Codec of the core types: frozen dataclasses to JSON and back, checked against the expected type.

A dataclass becomes an object whose `"type"` is the name of its class; enums become their values, tuples lists.  All input
is untrusted: msgspec checks each value against its type hints and rejects another class, an unknown field, a value of
another type, a number that is not finite or does not fit into 64 bits, invalid Unicode, and too deep nesting.  No code is
executed, and the data can only name the classes below.

msgspec supports tags and unknown fields only for its own structs.  So each dataclass has a struct with the same fields,
its *shape*, created once: JSON is checked against the shape and then converted to the dataclass.
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
from windfall.errors import WRITTEN_BEFORE_RELEASE, NewerFormat, OlderFormat

_TAG = "type"
_BASES = (object, events.Fact, events.Command)
"""Expected types that accept any of their subclasses."""
_INT = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_FLOAT = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_NUMBERS: dict[Any, Any] = {int: _INT, float: _FLOAT}
_BAD = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)
_NOT_FINITE = ("nan", "inf", "-inf")
_COMPACT = (",", ":")
_PLAIN = frozenset({str, int, bool, type(None)})


# ------------------------------------------------------------------------------------------------------------- writing


def encode(value: object) -> object:
    """Convert a value to what `json.dumps` accepts.

    Raises:
        TypeError: the value is not of a core type.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        # JSON cannot represent non-finite numbers; only a `Metric` is read back from this text.
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
    raise TypeError(f"{kind.__name__} cannot be stored in a journal")


@functools.cache
def _names(kind: Any) -> tuple[str, ...] | None:
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def encode_document(version: int, name: str, value: object) -> bytes:
    """Write a value as a JSON document, version first; `decode_document` reads it."""
    return json.dumps({"version": version, name: encode(value)}, separators=_COMPACT).encode()


def row_to_line(row: events.Row) -> str:
    """Write a journal row as one line of JSON, version first."""
    return json.dumps({"version": events.VERSION, "row": encode(row)}, separators=_COMPACT)


# ------------------------------------------------------------------------------------------------------------- reading


def parse(text: bytes | str) -> Any:
    """Parse untrusted JSON to plain values; the only place where JSON is parsed.

    Raises:
        ValueError: it is not valid JSON; also for NaN, 1e999, lone surrogates, and too deep nesting.
    """
    try:
        return msgspec.json.decode(text)
    except _BAD as error:
        raise ValueError(_reason(error)) from None


def decode(data: object, expected: Any) -> Any:
    """Convert parsed JSON to the value it encodes.

    Args:
        data: the parsed JSON.
        expected: a class, a base (`Fact`, `Command`), `object` for any class, or a type composed of these.

    Raises:
        ValueError: the data do not match `expected`; the message says where, without quoting the data.
    """
    try:
        return _to_class(msgspec.convert(data, _shape(expected), dec_hook=_number), expected)
    except _BAD as error:
        raise ValueError(_reason(error)) from None


def decode_document(data: bytes | str, name: str, expected: Any, *, version: int, what: str) -> Any:
    """Read a document written by `encode_document`.

    Args:
        data: the document.
        name: key of the value.
        expected: as for `decode`.
        version: the version that this Windfall writes.
        what: name of the document in error messages.

    Raises:
        NewerFormat, OlderFormat: it was written by another version of Windfall.
        ValueError: it is damaged; the message says where.
    """
    try:
        found = _envelopes(name, expected).decode(data)
        if found.version == version:
            return _to_class(getattr(found, name), expected)
    except _BAD as error:
        _check_version(data, version, what)
        raise ValueError(_reason(error)) from None
    _check_version(data, version, what)
    raise ValueError(f"version {version} was expected")


def row_from_line(line: str) -> events.Row:
    """Read a journal row.

    Raises:
        NewerFormat, OlderFormat: it was written by another version of Windfall.
        ValueError: it is damaged.
    """
    row: events.Row = decode_document(line, "row", events.Row, version=events.VERSION, what="the journal")
    return row


def _check_version(data: bytes | str, version: int, what: str) -> None:
    document = parse(data)
    # Up to version 2 the number had another key.
    found = document.get("version", document.get("v")) if isinstance(document, dict) else None
    if isinstance(found, bool) or not isinstance(found, int):
        return
    if found > version:
        raise NewerFormat(f"{what} has version {found}, this Windfall reads up to {version}: upgrade Windfall here")
    if found < version:
        raise OlderFormat(f"{what} has version {found}, {WRITTEN_BEFORE_RELEASE}: use another URL")


def _reason(error: Exception) -> str:
    """Return what is wrong and where, without the value, which may be a secret."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not valid Unicode"
    text = str(error)
    what, _, place = text.rpartition(" - at ")
    if not what:
        what, place = text, ""
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
    """The shape of a `Metric`: a float, written as text if it is not finite."""


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
    """Create the shape of a dataclass."""
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
    """Return a type hint with each dataclass replaced by its shape, and numbers limited to their range."""
    if hint is terms.Metric:
        return _Number
    hint = getattr(hint, "__supertype__", hint)
    if hint in _BASES:
        return _any_of(_struct(value) for value in _classes().values() if issubclass(value, hint))
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
    return typing.Union[tuple(kinds)]  # noqa: UP007 - of a variable number of types


@functools.cache
def _envelopes(name: str, expected: Any) -> msgspec.json.Decoder[Any]:
    fields = [("version", int), (name, _shape(expected))]
    return msgspec.json.Decoder(
        msgspec.defstruct("Envelope", fields, forbid_unknown_fields=True, gc=False), dec_hook=_number
    )


def _to_class(shape: Any, expected: Any) -> Any:
    """Convert a checked shape to its dataclass."""
    return msgspec.convert(shape, expected, from_attributes=True, dec_hook=_to_subclass)


def _to_subclass(_: type, shape: Any) -> Any:
    """Convert a shape where only its base class is expected."""
    return _to_class(shape, _classes()[type(shape).__name__])
