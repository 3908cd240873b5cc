"""Windfall's own format for traces: JSON Lines, optionally gzipped; `docs/howto/traces.md` describes it.

    {"is": "trace", "version": 1, "clock": "utc", "sampling": "changes", "content": ["prices"], "source": "aws-prices"}
    {"is": "price", "type": "m4.xlarge", "zone": "us-east-1a", "at_s": 1456360534.0, "usd_per_hour": 0.0334}
    {"is": "end", "events": 1}

JSON Lines rather than CSV: one file can hold prices, counts and machines of the same hours, an unknown number is absent
rather than an empty field, a line can be written as soon as it is known, and each line is valid JSON or damaged.  The last
line counts the events, so that a truncated file is not mistaken for a short one.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from windfall.errors import Misuse, NewerFormat
from windfall.market import MachineEndCause
from windfall.simulation.traces.trace_events import (
    CatalogueEntry,
    ClockKind,
    Content,
    Count,
    Event,
    LocatedEvent,
    MachineEnded,
    MachineStarted,
    Price,
    SamplingKind,
    Series,
    TracedLifetime,
    TraceHeader,
    WatchedUntil,
)
from windfall.simulation.traces.trace_files import USD_PER_HOUR_MAX, fault, lines
from windfall.spelling import nearest
from windfall.structs import Struct

VERSION = 1
NAME = "windfall"
_WORDS: dict[str, type[Struct]] = {
    "price": Price,
    "count": Count,
    "machine_started": MachineStarted,
    "machine_ended": MachineEnded,
    "lifetime": TracedLifetime,
    "catalogue_entry": CatalogueEntry,
    "until": WatchedUntil,
}
_NAMES = {cls: name for name, cls in _WORDS.items()}
_SERIES = {"type": "machine_type", "zone": "zone", "product": "product"}
_HEADER = frozenset({"is", "version", "clock", "sampling", "content", "source", "step_s", "silence_s", "notes"})
_TEXTS = frozenset({"machine", "batch", "load", "accelerator"})
_SIGNED = frozenset({"at_s", "saving_share"})
"""Fields that may be negative, or whose negative values the checks of all formats refuse with a message of their own."""
_LARGEST = 1e300
_WHOLE = frozenset({"count", "interruption_bucket"})


# ------------------------------------------------------------------------------------------------------------ writing


def header_line(header: TraceHeader) -> str:
    """Return the first line of a trace."""
    made: dict[str, object] = {
        "is": "trace",
        "version": VERSION,
        "clock": header.clock.value,
        "sampling": header.sampling.value,
        "content": [one.value for one in header.content],
        "source": header.format,
    }
    optional = {"step_s": header.step_s, "silence_s": header.silence_s, "notes": list(header.notes) or None}
    return json.dumps(made | {name: value for name, value in optional.items() if value is not None})


def event_line(event: Event) -> str:
    """Return one event as a line, without empty and unknown fields."""
    series = {short: getattr(event.series, name) for short, name in _SERIES.items()}
    made: dict[str, object] = {"is": _NAMES[type(event)]} | {short: word for short, word in series.items() if word}
    for name in type(event).__struct_fields__:
        value = getattr(event, name)
        if name != "series" and value is not None and value != "":
            made[name] = value
    return json.dumps(made)


def write(path: Path, header: TraceHeader, events: Iterable[Event]) -> int:
    """Write a trace and return its number of events; gzipped if the name ends in `.gz`.

    The file gets its name only when it is complete.

    Raises:
        Misuse: a file of this name exists, or it cannot be written.
    """
    if path.exists():
        raise Misuse(f"{path} already exists: choose another name, or remove it")
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as raw:
            # The gzip header has no name and no time, so that the same events give the same bytes.
            packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
            with io.TextIOWrapper(packed, "utf-8", newline="\n") as file:
                count = _write_lines(file, header, events)
        os.link(part, path)
    except FileExistsError as error:
        raise Misuse(f"{path} already exists: choose another name, or remove it") from error
    except OSError as error:
        raise Misuse(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def _write_lines(file: io.TextIOWrapper, header: TraceHeader, events: Iterable[Event]) -> int:
    file.write(f"{header_line(header)}\n")
    count = 0
    for event in events:
        file.write(f"{event_line(event)}\n")
        count += 1
    file.write(f"{json.dumps({'is': 'end', 'events': count})}\n")
    return count


# ------------------------------------------------------------------------------------------------------------ reading


def is_trace(first: str) -> bool:
    """Return whether a file with this first line is in this format."""
    return first.startswith("{") and '"is"' in first and '"trace"' in first


def read_header(path: Path) -> TraceHeader:
    """Return a trace's header.

    Raises:
        Misuse: the first line is not a header.
        NewerFormat: a newer Windfall wrote it.
    """
    data = _object(next(lines(path), ""), path, 1)
    if not isinstance(version := data.get("version"), int):
        raise fault(path, 1, "the header has no version")
    if version > VERSION:
        raise NewerFormat(
            f"{path}: trace format {version} is newer than this Windfall reads ({VERSION}): upgrade Windfall"
        )
    if unknown := set(data) - _HEADER:
        raise fault(path, 1, f"unknown key {min(unknown)!r} in the header; {nearest(min(unknown), sorted(_HEADER))}")
    try:
        return TraceHeader(
            str(data.get("source", NAME)),
            tuple(Content(one) for one in data["content"]),
            ClockKind(data["clock"]),
            SamplingKind(data.get("sampling", SamplingKind.CHANGES)),
            None if data.get("step_s") is None else float(data["step_s"]),
            None if data.get("silence_s") is None else float(data["silence_s"]),
            tuple(str(one) for one in data.get("notes", ())),
        )
    except KeyError as error:
        raise fault(path, 1, f"the header has no {error.args[0]!r}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise fault(path, 1, f"the header is invalid: {error}") from error


def read(path: Path) -> Iterator[LocatedEvent]:
    """Yield a trace's events.

    Raises:
        Misuse: a line is not in this format, or the last lines are missing.
    """
    stream = enumerate(lines(path), 1)
    next(stream)
    seen: dict[tuple[str, str, str], Series] = {}
    count, line, ended = 0, 1, False
    for line, text in stream:
        if ended:
            raise fault(path, line, "there are lines after the end")
        data = _object(text, path, line)
        kind = data.pop("is", None)
        if kind == "end":
            if data.get("events") != count:
                raise fault(path, line, f"there are {count} events above, not {data.get('events')}: lines are missing")
            ended = True
            continue
        count += 1
        yield line, _event(kind, data, seen, path, line)
    if not ended:
        raise fault(path, line, 'the last line, {"is": "end", ...}, is missing: the file is truncated')


def _object(text: str, path: Path, line: int) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        cut = "" if text.endswith("\n") else ": the file is truncated"
        raise fault(path, line, f"this line is not JSON{cut}") from error
    if not isinstance(data, dict):
        raise fault(path, line, "this line is not a JSON object")
    return data


def _event(
    kind: object, data: dict[str, Any], seen: dict[tuple[str, str, str], Series], path: Path, line: int
) -> Event:
    cls = _WORDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise fault(path, line, f'"is" is {kind!r}; {nearest(str(kind), _WORDS)}')
    key = (data.pop("type", ""), data.pop("zone", ""), data.pop("product", ""))
    if not all(isinstance(word, str) for word in key):
        raise fault(path, line, "type, zone and product must be text")
    series = seen.get(key) or seen.setdefault(key, Series(*key))
    known = cls.__struct_fields__
    values: dict[str, Any] = {"at_s": 0.0} if cls is CatalogueEntry else {}
    for name, value in data.items():
        if name not in known or name == "series":
            names = sorted({*known, *_SERIES} - {"series"})
            raise fault(path, line, f"unknown key {name!r} in a {kind}; {nearest(name, names)}")
        values[name] = _value(name, value, path, line)
    if cls is Price:
        values.setdefault("usd_per_hour", None)
    elif cls is TracedLifetime:
        values.setdefault("end", None)
    missing = [name for name in _needed(cls) if name not in values]
    if missing:
        raise fault(path, line, f"a {kind} needs {' and '.join(missing)}")
    return cast("Event", cls(**values, series=series))


@functools.cache
def _needed(kind: type[Event]) -> tuple[str, ...]:
    """Return the keys that an event must have; found once, because evaluating a class's types takes longer than a line."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.required and field.name != "series")


def _value(name: str, value: object, path: Path, line: int) -> object:
    if name == "end" and isinstance(value, str) and value in tuple(MachineEndCause):
        return MachineEndCause(value)
    if name == "content" and isinstance(value, str) and value in tuple(Content):
        return Content(value)
    if name in ("end", "content"):
        known = MachineEndCause if name == "end" else Content
        raise fault(path, line, f"{name} is {value!r}; {nearest(str(value), [one.value for one in known])}")
    if name == "announced" or name in _TEXTS:
        if isinstance(value, bool if name == "announced" else str):
            return value
        raise fault(path, line, f"{name} is {value!r}; it must be {'true or false' if name == 'announced' else 'text'}")
    return _number(name, value, path, line)


def _number(name: str, value: object, path: Path, line: int) -> float | int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
        raise fault(path, line, f"{name} is {str(value)[:40]!r}, which is not a number")
    if name not in _SIGNED and value < 0:
        raise fault(path, line, f"{name} is {value:g}: it cannot be negative")
    if name.endswith("usd_per_hour") and value > USD_PER_HOUR_MAX:
        raise fault(path, line, f"{name} is {value:g} USD/h: is it in another unit?")
    if name in _WHOLE:
        if value != int(value):
            raise fault(path, line, f"{name} is {value:g}: it must be a whole number")
        return int(value)
    return float(value)
