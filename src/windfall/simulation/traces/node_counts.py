"""Records of clusters without a header line: node counts (Bamboo, Parcae), and machines that were added and removed.

Bamboo records a count by two lines with the same time, before and after.  Their unit is in the file's name, or is inferred
from the steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windfall.simulation.traces import trace_checks
from windfall.simulation.traces.trace_events import (
    ClockKind,
    Content,
    Count,
    LocatedEvent,
    MachineEnded,
    MachineStarted,
    SamplingKind,
    Series,
    TraceHeader,
    WatchedUntil,
)
from windfall.simulation.traces.trace_files import fault, lines, number, whole

COUNTS = TraceHeader("node-counts", (Content.COUNTS,), ClockKind.START, SamplingKind.CHANGES)
LOGGED = TraceHeader("node-count-log", (Content.COUNTS,), ClockKind.START, SamplingKind.SAMPLES, silence_s=3600.0)
MACHINES = TraceHeader("machine-events", (Content.MACHINES,), ClockKind.START, SamplingKind.CHANGES)
SEGMENT = TraceHeader("parcae-segment", (Content.MACHINES,), ClockKind.START, SamplingKind.CHANGES, step_s=60.0)
_NAMED_UNIT = {"hours": "h", "seconds": "s", "minutes": "m", "ms": "ms"}
_EVENTS: dict[str, type[MachineStarted] | type[MachineEnded]] = {"add": MachineStarted, "remove": MachineEnded}
_SEGMENT_WORDS = frozenset({"add", "remove", "no-op", "migration"})


def _rows(path: Path, fields: int, what: str) -> Iterator[tuple[int, list[str]]]:
    for line, text in enumerate(lines(path), 1):
        row = text.strip().split(",")
        if len(row) == fields:
            yield line, row
        elif row != [""]:
            raise fault(path, line, f"this row has {len(row)} fields, not {fields} ({what})")


def series_of(path: Path) -> Series:
    """Return machine type and zone as the file's name gives them: TYPE_ZONE_... or gcloud_TYPE_ZONE_..."""
    name = path.name.removeprefix("gcloud_")
    found = re.match(r"(?P<type>[a-z0-9]+\.[a-z0-9]+|a\d+x\d+)_(?:(?P<zone>[a-z]+-[a-z]+\d?-[a-z0-9]+)_)?", name)
    return Series(found["type"], found["zone"] or "") if found else Series("", "")


def unit_of(path: Path, unit: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the unit of a file's times, and notes on how it was inferred.

    Raises:
        Misuse: it cannot be inferred, or the given unit makes no sense.
    """
    named = re.search(r"_(hours|minutes|seconds|ms)_count\b", path.name)
    given = unit or (_NAMED_UNIT[named.group(1)] if named else None)
    times = []
    for (line, row), _ in zip(_rows_any(path), range(trace_checks.HEAD_ROWS), strict=False):
        times.append(number(row[0], path, line, "the time"))
    if given is None:
        concluded, message = trace_checks.infer_unit(times, path)
        return concluded, (message,)
    trace_checks.check_steps(times, given, path)
    return given, ()


def _rows_any(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line, text in enumerate(lines(path), 1):
        if text.strip():
            yield line, text.split(",")


def read_counts(path: Path, unit: str) -> Iterator[LocatedEvent]:
    """Yield the counts of lines `TIME,COUNT`; `unit` is that of the times."""
    series, scale = series_of(path), trace_checks.UNITS_S[unit]
    for line, (at, count) in _rows(path, 2, "time, count"):
        at_s = number(at, path, line, "the time") * scale
        yield line, Count(at_s, series, whole(count, path, line, "the count"))


def read_machines(path: Path, unit: str) -> Iterator[LocatedEvent]:
    """Yield the events of lines `TIME,add|remove,MACHINE`."""
    series, scale = series_of(path), trace_checks.UNITS_S[unit]
    for line, (at, word, machine) in _rows(path, 3, "time, add or remove, machine"):
        if word.strip() not in _EVENTS:
            raise fault(path, line, f"{word.strip()!r} is not an event: write add or remove")
        yield line, _EVENTS[word.strip()](number(at, path, line, "the time") * scale, series, machine.strip())


def read_log(path: Path) -> Iterator[LocatedEvent]:
    """Yield the counts of lines `DATE, TIME, COUNT`; the file has no time zone, so times count from the first line."""
    series, start = series_of(path), None
    for line, (day, hour, count) in _rows(path, 3, "date, time, count"):
        try:
            at = datetime.strptime(f"{day.strip()} {hour.strip()}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        except ValueError as error:
            raise fault(path, line, f"{day.strip()} {hour.strip()} is not a date and time") from error
        start = start or at
        yield line, Count((at - start).total_seconds(), series, whole(count, path, line, "the count"))


def read_segment(path: Path) -> Iterator[LocatedEvent]:
    """Yield the events of a Parcae segment, one JSON list a minute; the authors' own migrations are not events."""
    series, end_s, line = series_of(path), 0.0, 0
    for line, text in enumerate(lines(path), 1):
        at_ms, word, minute = _segment_line(text, path, line)
        at_s = at_ms / 1000.0
        if at_s < end_s - 1e-9:
            raise fault(
                path, line, f"overlap: this minute starts at {at_s:g} s, before the one above ends ({end_s:g} s)"
            )
        for machine in minute["nodes"]:
            yield line, _EVENTS[word](at_s, series, str(machine))
        end_s = at_s + number(str(minute["duration"]), path, line, "duration") / 1000.0
    yield line, WatchedUntil(end_s, series, Content.MACHINES)


def _segment_line(text: str, path: Path, line: int) -> tuple[float, str, dict[str, Any]]:
    try:
        at_ms, word, minute = json.loads(text)
        nodes = minute["nodes"]
        minute["duration"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise fault(
            path, line, "this is not a line of a segment: write [time in ms, event, {nodes, duration}]"
        ) from error
    if word not in _SEGMENT_WORDS:
        raise fault(path, line, f"{word!r} is not an event: choose one of {', '.join(sorted(_SEGMENT_WORDS))}")
    if not isinstance(nodes, list) or (nodes and word not in _EVENTS):
        raise fault(path, line, f"nodes of a {word} must be a list, empty unless they are added or removed")
    return number(str(at_ms), path, line, "the time"), word, minute
