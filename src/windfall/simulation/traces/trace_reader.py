"""Recognise the format of a file, and read its events, any number of times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from windfall.errors import Misuse
from windfall.simulation.traces import (
    aws_cli,
    journal_export,
    node_counts,
    trace_checks,
    trace_format,
    trace_tables,
    trace_ticks,
)
from windfall.simulation.traces.trace_checks import TraceChecker, checked
from windfall.simulation.traces.trace_events import (
    ClockKind,
    Event,
    LocatedEvent,
    ParsedLine,
    SamplingKind,
    Series,
    TraceHeader,
)
from windfall.simulation.traces.trace_files import fault, head
from windfall.structs import Struct, replace

_NUMBER = r"\s*-?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)\s*"


_UNNAMED = Series("", "")
TABLES = frozenset({one.header.format for one in trace_tables.FORMATS} | {aws_cli.HEADER.format})
"""Formats in which single bad rows are skipped."""


class Trace(Struct, frozen=True):
    """A trace in a file; each call of `events` reads it from the start.

    Attributes:
        named: type and zone for a source that does not name them.
        strict: whether one bad row makes the whole trace bad.
    """

    path: Path
    header: TraceHeader
    read: Callable[[], Iterator[ParsedLine]]
    named: Series = _UNNAMED
    strict: bool = True

    def located(self, checker: TraceChecker | None = None) -> Iterator[LocatedEvent]:
        """Yield lines and events, checked.

        Raises:
            Misuse: the trace is bad from here on; earlier events may be good.
        """
        located = checked(self.read(), checker or TraceChecker(self.path, self.header, strict=self.strict))
        return self._with_names(located) if self.named != _UNNAMED else located

    def events(self) -> Iterator[Event]:
        """Yield the events in the file's order: by time within each type and zone.

        Raises:
            Misuse: as `located`.
        """
        return (event for _, event in self.located())

    def _with_names(self, located: Iterator[LocatedEvent]) -> Iterator[LocatedEvent]:
        for line, event in located:
            own = event.series
            series = Series(own.machine_type or self.named.machine_type, own.zone or self.named.zone, own.product)
            yield line, replace(event, series=series)


def open_trace(
    path: Path, *, unit: str | None = None, machine_type: str = "", zone: str = "", strict: bool = False
) -> Trace:
    """Recognise a file and return its trace.

    Args:
        path: of any known format, gzipped or not.
        unit: of its times (`ms`, `s`, `m`, `h`), for formats that do not name it.
        machine_type: for files that do not name it.
        zone: likewise.
        strict: refuse a table for one bad row; otherwise such rows are skipped, and counted by a `TraceChecker`.

    Raises:
        Misuse: the file does not exist, or its format is unknown; `events` raises it for a bad later line.
        NewerFormat: a newer Windfall wrote it.
    """
    trace_checks.unit_s(unit)
    start = head(path)
    first = next(line for line in start.splitlines() if line.strip())
    header, read, has_unit = _recognise(path, first, start, unit)
    if unit is not None and has_unit:
        raise Misuse(f"--unit: leave it out: the format of {path} ({header.format}) fixes the unit of its times")
    # People and their tools write tables; programs write the other formats, where a bad line means a damaged file.
    return Trace(path, header, read, Series(machine_type, zone), strict or header.format not in TABLES)


_Found = tuple[TraceHeader, Callable[[], Iterator[ParsedLine]], bool]


def _recognise(path: Path, first: str, start: str, unit: str | None) -> _Found:
    """Return header, reader, and whether the format fixes the unit of its times."""
    if first.startswith("{"):
        return _recognise_object(path, first, start)
    if first.startswith("["):
        return node_counts.SEGMENT, partial(node_counts.read_segment, path), True
    if re.match(rf"{_NUMBER},", first):
        return _recognise_numbers(path, first, unit)
    if re.match(r"\d{4}-\d\d-\d\d\s*,\s*\d\d:\d\d(:\d\d)?\s*,", first):
        return node_counts.LOGGED, partial(node_counts.read_log, path), True
    if aws_cli.is_text(start):
        return aws_cli.HEADER, partial(aws_cli.read, path), True
    if "," in first:
        return _recognise_table(path, unit)
    raise fault(path, 1, "unknown trace format (`windfall lab traces inspect --help` lists the known ones)")


def _recognise_object(path: Path, first: str, start: str) -> _Found:
    if trace_format.is_trace(first):
        return trace_format.read_header(path), partial(trace_format.read, path), True
    if journal_export.is_row(first):
        return journal_export.HEADER, partial(journal_export.read, path), True
    if aws_cli.is_json(start):
        return aws_cli.HEADER, partial(aws_cli.read, path), True
    if re.search(r'"(gap_seconds|data|metadata)"', start):
        header = trace_ticks.header_of(path)
        assert header.step_s is not None
        return header, partial(trace_ticks.read, path, header.step_s), True
    raise fault(path, 1, "unknown JSON: not a trace format that Windfall knows")


def _recognise_numbers(path: Path, first: str, unit: str | None) -> _Found:
    fields = first.strip().split(",")
    unit, notes = node_counts.unit_of(path, unit)
    if len(fields) == 2:
        return replace(node_counts.COUNTS, notes=notes), partial(node_counts.read_counts, path, unit), False
    if len(fields) == 3:
        return (
            replace(node_counts.MACHINES, notes=notes),
            partial(node_counts.read_machines, path, unit),
            False,
        )
    raise fault(path, 1, f"unknown trace format: {len(fields)} numbers per line, without a header")


def _recognise_table(path: Path, unit: str | None) -> _Found:
    columns = trace_tables.table_columns(path)
    kind = trace_tables.recognise(path, columns)
    header = kind.header
    if header.format == "lifetimes" and "began_utc" in columns:
        header = replace(header, clock=ClockKind.UTC)
    if header.sampling is SamplingKind.SAMPLES:
        header = replace(header, silence_s=1.5 * trace_tables.step_s_of(path), step_s=trace_tables.step_s_of(path))
    return header, partial(kind.read, trace_tables.TraceTable(path, columns, unit)), header.format != "lifetimes"
