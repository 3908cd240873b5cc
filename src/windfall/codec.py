"""Codec of the core types: structs to JSON and back, checked against the expected type.

A struct becomes an object whose `"type"` is the name of its class; enums become their values, tuples lists.  All input
is untrusted: msgspec checks each value against its type hints and rejects another class, an unknown field, a value of
another type, a number that is not finite or an integer that does not fit into 64 bits, invalid Unicode, and too deep
nesting.  No code is executed, and the data can only name the classes below.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import threading
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from windfall import events, fleet, results, stored_forms
from windfall.errors import WRITTEN_BEFORE_RELEASE, NewerFormat, OlderFormat
from windfall.stored_forms import StoredForm
from windfall.structs import Tagged
from windfall.terms import Metric

T = TypeVar("T")
_BASES: tuple[type, ...] = (events.Fact, events.Command)
"""Expected types that accept any of their subclasses."""
_WORDS = (events, results, fleet)
_BAD = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)
NOT_FINITE = ("nan", "inf", "-inf")
"""How a `Metric` that is not finite is written."""
_COMPACT = (",", ":")
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_INTEGERS = range(-(2**63), 2**63)
_LEARNING = threading.Lock()


# ------------------------------------------------------------------------------------------------------------- writing


def encode(value: object) -> Any:
    """Convert a value to what `json.dumps` accepts.

    Raises:
        TypeError: the value is not of a core type.
    """
    try:
        return msgspec.to_builtins(value, enc_hook=_number_to_json)
    except TypeError:
        raise TypeError(f"{type(value).__name__} cannot be stored in a journal") from None


def _number_to_json(value: object) -> float | str:
    """Write a `Metric`: JSON cannot represent numbers that are not finite."""
    if not isinstance(value, float):
        raise TypeError
    return float(value) if math.isfinite(value) else str(float(value))


def encode_document(version: int, name: str, value: object) -> bytes:
    """Write a value as a JSON document, version first; `decode_document` reads it."""
    return _document(version, name, value).encode()


def row_to_line(row: events.Row) -> str:
    """Write a journal row as one line of JSON, version first."""
    return _document(events.VERSION, "row", row)


def _document(version: int, name: str, value: object) -> str:
    return json.dumps({"version": version, name: encode(value)}, separators=_COMPACT)


def pack(value: object) -> bytes:
    """Write a value as bytes that only this version of Windfall reads (`unpack`): mappings may have any key."""
    return msgspec.msgpack.encode(value, enc_hook=_mapping_to_dict)


def _mapping_to_dict(value: object) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} cannot be stored in a snapshot")
    return dict(value)


# ------------------------------------------------------------------------------------------------------------- reading


def unpack(data: bytes, expected: Any) -> Any:
    """Read what `pack` wrote.

    Raises:
        ValueError: the bytes are no value of the expected type.
    """
    try:
        return msgspec.msgpack.decode(data, type=_known(expected))
    except _BAD as error:
        raise ValueError(_reason(error)) from None


def shape(kind: type) -> str:
    """Return a digest of all types that a value of a class may contain, with their fields and default values."""
    text = repr(msgspec.inspect.type_info(kind))
    assert " at 0x" not in text, f"the shape of {kind.__name__} would differ from process to process"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


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
        expected: a class, a base (`Fact`, `Command`), or a type composed of these.

    Raises:
        ValueError: the data do not match `expected`; the message says where, without quoting the data.
    """
    try:
        value = msgspec.convert(data, _known(expected), dec_hook=_from_json)
        _check_numbers(data)
    except _BAD as error:
        raise ValueError(_reason(error)) from None
    return value


def decode_text(text: bytes | str, expected: Any) -> Any:
    """Read JSON as the value that it encodes; as `decode`, in one pass."""
    try:
        value = msgspec.json.decode(text, type=_known(expected), dec_hook=_from_json)
        _check_text(text)
    except _BAD as error:
        raise ValueError(_reason(error)) from None
    return value


def decode_document(data: bytes | str, name: str, expected: Any, *, version: int, what: str) -> Any:
    """Read a document written by `encode_document`, of which one version alone is read; as `decode_stored`."""
    return decode_stored(data, name, expected, form=StoredForm(oldest=version), what=what)


class Document(Generic[T]):
    """A kind of document, of which one version alone is read.

    Args:
        name: key of the value.
        expected: as for `decode`.
        version: of the document.
        what: name of the document in error messages.
    """

    def __init__(self, name: str, expected: Any, version: int, what: str) -> None:
        self._name, self._expected, self._version, self._what = name, expected, version, what

    def to_bytes(self, value: T) -> bytes:
        """Write a value."""
        return encode_document(self._version, self._name, value)

    def from_bytes(self, data: bytes) -> T:
        """Read a value; raises as `decode_document`."""
        found: T = decode_document(data, self._name, self._expected, version=self._version, what=self._what)
        return found


def decode_stored(data: bytes | str, name: str, expected: Any, *, form: StoredForm, what: str) -> Any:
    """Read a document written by `encode_document`, and upgrade it if an earlier release wrote it.

    Args:
        data: the document.
        name: key of the value.
        expected: as for `decode`.
        form: its versions.
        what: name of the document in error messages.

    Raises:
        NewerFormat, OlderFormat: it was written by a version of Windfall whose documents this one does not read.
        ValueError: it is damaged; the message says where.
    """
    try:
        found = _document_decoder(name, expected).decode(data)
        _check_text(data)
    except _BAD as error:
        damage = _reason(error)
    else:
        if found.version == form.version:
            return getattr(found, name)
        damage = f"version {form.version} was expected"
    older = _older(data, name, form, what)
    if older is None:
        raise ValueError(damage)
    return decode(older, expected)


def _older(data: bytes | str, name: str, form: StoredForm, what: str) -> dict[str, Any] | None:
    """Return the value of an older document, upgraded; None if it is a document of the present version, or none at all."""
    document = parse(data)
    # Up to version 2 the number had another key.
    found = document.get("version", document.get("v")) if isinstance(document, dict) else None
    if isinstance(found, bool) or not isinstance(found, int):
        return None
    if found > form.version:
        raise NewerFormat(
            f"{what} has version {found}, this Windfall reads up to {form.version}: upgrade Windfall here"
        )
    if found < form.oldest:
        raise OlderFormat(f"{what} has version {found}, {WRITTEN_BEFORE_RELEASE}: use another URL")
    if found == form.version or document.keys() != {"version", name} or not isinstance(document[name], dict):
        return None
    return form.upgraded(document[name], found)


@functools.cache
def _document_decoder(name: str, expected: Any) -> msgspec.json.Decoder[Any]:
    fields = [("version", int), (name, expected)]
    document = msgspec.defstruct("Document", fields, forbid_unknown_fields=True)
    with _LEARNING:
        return msgspec.json.Decoder(document, dec_hook=_from_json)


@functools.cache
def _known(expected: Any) -> Any:
    """Return an expected type once the library knows its classes; one thread at a time makes it look at them.

    Its first look at a class is not safe: a thread that meets a class at which another is just looking crashes the process
    (msgspec 0.22).
    """
    with _LEARNING:
        msgspec.json.Decoder(expected, dec_hook=_from_json)
    return expected


def row_from_line(line: str) -> events.Row:
    """Read a journal row.

    Raises:
        NewerFormat, OlderFormat: it was written by another version of Windfall.
        ValueError: it is damaged.
    """
    row: events.Row = decode_stored(line, "row", events.Row, form=stored_forms.ROW, what="the journal")
    return row


def _from_json(expected: type, data: Any) -> Any:
    """Read what msgspec does not know: a number that may not be finite, and a value by its base class."""
    if expected is Metric:
        if data in NOT_FINITE or (isinstance(data, (int, float)) and not isinstance(data, bool)):
            return Metric(data)
        raise ValueError("expected a number")
    # The library keeps what it knows of a struct, but builds a union's again at each call.
    try:
        return msgspec.convert((data,), _holder_of(expected), dec_hook=_from_json).value
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace("`$[0]", "`$", 1)) from None


@functools.cache
def _holder_of(base: type) -> Any:
    """Return a struct with one value of any class below `base`."""
    if base not in _BASES:
        raise TypeError(f"{base.__name__} is not stored")
    kinds = [kind for module in _WORDS for kind in vars(module).values() if isinstance(kind, type)]
    values = any_of(kind for kind in kinds if issubclass(kind, base) and issubclass(kind, Tagged))
    return _known(msgspec.defstruct("Holder", [("value", values)], array_like=True))


def any_of(kinds: Iterable[type]) -> Any:
    """Return the union of any number of classes, as an expected type."""
    return typing.Union[tuple(kinds)]  # noqa: UP007 - of a variable number of types


def _check_text(text: bytes | str) -> None:
    if _LONG_NUMBER.search(text.encode() if isinstance(text, str) else text):
        _check_numbers(msgspec.json.decode(text))


def _check_numbers(data: Any) -> None:
    """Reject numbers that databases and numeric code cannot hold; the names in `data` are known to be fields.

    Raises:
        ValueError: the message says where the first one is.
    """
    place = _bad_number(data)
    if place is not None:
        raise ValueError(f"a number is out of range at ${place}")


def _bad_number(data: Any) -> str | None:
    if isinstance(data, dict):
        found = ((f".{name}", _bad_number(item)) for name, item in data.items())
    elif isinstance(data, (list, tuple)):
        found = ((f"[{place}]", _bad_number(item)) for place, item in enumerate(data))
    elif isinstance(data, int):
        return None if data in _INTEGERS else ""
    else:
        return "" if isinstance(data, float) and not math.isfinite(data) else None
    return next((place + below for place, below in found if below is not None), None)


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
