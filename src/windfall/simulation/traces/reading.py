"""Which format a file has, and its events, as often as they are asked for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from windfall.errors import Misuse
from windfall.simulation.traces import aws_cli, counts, form, journal, plausible, tables, ticks
from windfall.simulation.traces.checks import Checker, checked
from windfall.simulation.traces.events import Clock, Event, Header, Placed, Read, Sampling, Series
from windfall.simulation.traces.files import fault, head

_NUMBER = r"\s*-?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)\s*"


_UNNAMED = Series("", "")
TABLES = frozenset({one.header.format for one in tables.FORMATS} | {aws_cli.HEADER.format})
"""Formats of which single bad rows are left out."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in a file; `events` reads it from the front each time.

    Attributes:
        named: type and zone for a source that names none itself.
        strict: whether one bad row makes all of it bad.
    """

    path: Path
    header: Header
    read: Callable[[], Iterator[Read]]
    named: Series = _UNNAMED
    strict: bool = True

    def placed(self, checker: Checker | None = None) -> Iterator[Placed]:
        """Yield line and event, checked.

        Raises:
            Misuse: the trace is bad from here on; what came before may be good.
        """
        placed = checked(self.read(), checker or Checker(self.path, self.header, strict=self.strict))
        return self._with_names(placed) if self.named != _UNNAMED else placed

    def events(self) -> Iterator[Event]:
        """Yield the events in the file's order: by time within each type and zone.

        Raises:
            Misuse: as `placed`.
        """
        return (event for _, event in self.placed())

    def _with_names(self, placed: Iterator[Placed]) -> Iterator[Placed]:
        for line, event in placed:
            own = event.series
            series = Series(own.machine_type or self.named.machine_type, own.zone or self.named.zone, own.product)
            yield line, dataclasses.replace(event, series=series)


def open_trace(
    path: Path, *, unit: str | None = None, machine_type: str = "", zone: str = "", strict: bool = False
) -> Trace:
    """Recognise a file and return its trace.

    Args:
        path: of any known format, gzipped or not.
        unit: of its times (`ms`, `s`, `m`, `h`), for formats whose numbers have none.
        machine_type: name for what the file itself does not name.
        zone: likewise.
        strict: refuse a table for one bad row; otherwise such rows are left out, and counted by a `Checker`.

    Raises:
        Misuse: there is no such file, or it is in no known format; `events` raises it where a later line is bad.
        NewerFormat: it was written by a newer Windfall.
    """
    plausible.unit_s(unit)
    start = head(path)
    first = next(line for line in start.splitlines() if line.strip())
    header, read, has_unit = _recognise(path, first, start, unit)
    if unit is not None and has_unit:
        raise Misuse(f"--unit: the times of {path} have their unit already ({header.format})")
    # Tables come from people and their tools; the other formats from programs, where a bad line is a damaged file.
    return Trace(path, header, read, Series(machine_type, zone), strict or header.format not in TABLES)


_Found = tuple[Header, Callable[[], Iterator[Read]], bool]


def _recognise(path: Path, first: str, start: str, unit: str | None) -> _Found:
    """Return header, reader, and whether the format says the unit of its times."""
    if first.startswith("{"):
        return _recognise_object(path, first, start)
    if first.startswith("["):
        return counts.SEGMENT, partial(counts.read_segment, path), True
    if re.match(rf"{_NUMBER},", first):
        return _recognise_numbers(path, first, unit)
    if re.match(r"\d{4}-\d\d-\d\d\s*,\s*\d\d:\d\d(:\d\d)?\s*,", first):
        return counts.LOGGED, partial(counts.read_log, path), True
    if aws_cli.is_text(start):
        return aws_cli.HEADER, partial(aws_cli.read, path), True
    if "," in first:
        return _recognise_table(path, unit)
    raise fault(path, 1, "this is no trace that Windfall knows (see `windfall lab traces inspect --help`)")


def _recognise_object(path: Path, first: str, start: str) -> _Found:
    if form.is_trace(first):
        return form.read_header(path), partial(form.read, path), True
    if journal.is_row(first):
        return journal.HEADER, partial(journal.read, path), True
    if aws_cli.is_json(start):
        return aws_cli.HEADER, partial(aws_cli.read, path), True
    if re.search(r'"(gap_seconds|data|metadata)"', start):
        header = ticks.header_of(path)
        assert header.step_s is not None
        return header, partial(ticks.read, path, header.step_s), True
    raise fault(path, 1, "this JSON is no trace that Windfall knows")


def _recognise_numbers(path: Path, first: str, unit: str | None) -> _Found:
    fields = first.strip().split(",")
    unit, told = counts.unit_of(path, unit)
    if len(fields) == 2:
        return dataclasses.replace(counts.COUNTS, told=told), partial(counts.read_counts, path, unit), False
    if len(fields) == 3:
        return dataclasses.replace(counts.MACHINES, told=told), partial(counts.read_machines, path, unit), False
    raise fault(path, 1, f"a line of {len(fields)} numbers without a header is no trace that Windfall knows")


def _recognise_table(path: Path, unit: str | None) -> _Found:
    columns = tables.table_columns(path)
    kind = tables.recognise(path, columns)
    header = kind.header
    if header.format == "lives" and "began_utc" in columns:
        header = dataclasses.replace(header, clock=Clock.UTC)
    if header.sampling is Sampling.SAMPLES:
        header = dataclasses.replace(header, silence_s=1.5 * tables.step_s_of(path), step_s=tables.step_s_of(path))
    return header, partial(kind.read, tables.Table(path, columns, unit)), header.format != "lives"
