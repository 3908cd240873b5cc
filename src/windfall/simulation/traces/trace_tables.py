"""Tables with a header line: AWS and Google prices, lifetimes of machines, price lists.

The columns identify the format.  An unknown column is an error, because it may be a misspelt one.  A bad row is passed on as
its error: one bad row says nothing about the others.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from windfall.errors import Misuse
from windfall.market import MachineEndCause
from windfall.simulation.traces import trace_checks
from windfall.simulation.traces.trace_events import (
    CatalogueEntry,
    ClockKind,
    Content,
    ParsedLine,
    Price,
    SamplingKind,
    Series,
    TracedLifetime,
    TraceHeader,
)
from windfall.simulation.traces.trace_files import fault, lines, moment, not_negative, number, price, whole
from windfall.spelling import nearest
from windfall.structs import Struct

DAY_S = 86_400.0
_ZONES = ("availability_zone", "zone_id", "zone", "region", "Region")
_TYPES = ("instance_type", "machine_type", "instance_name", "InstanceCode")
_ON_DEMAND = ("on_demand_usd_per_hour", "Price")
_SPOT = ("spot_usd_per_hour", "preemptible_usd_per_hour")
_PREEMPTED = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_LIFE_AGREES_S, _LIFE_AGREES = 10.0, 0.01
"""How far a published lifetime may be from its two timestamps: seconds, or a share of it."""

T = TypeVar("T")
_Row = list[str]
_Reader = Callable[["TraceTable"], Iterator[ParsedLine]]


class TraceTable(Struct, frozen=True):
    """An open table.

    Attributes:
        columns: name to index.
        unit: of times without a unit; None for the format's own.
    """

    path: Path
    columns: dict[str, int]
    unit: str | None = None

    def rows(self) -> Iterator[tuple[int, _Row]]:
        """Yield line number and fields of each row that is not empty.

        Raises:
            Misuse: a line is not a row of a table.
        """
        reader = csv.reader(lines(self.path), strict=True)
        try:
            next(reader)
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise fault(self.path, reader.line_num, f"this line is not a row of a table: {error}") from error

    def each(
        self, parse: Callable[[int, _Row], T], rows: Iterable[tuple[int, _Row]] | None = None
    ) -> Iterator[tuple[int, T | Misuse]]:
        """Yield line number and parsed row, or its error.

        Args:
            parse: reads a row with as many fields as the header.
            rows: the rows to read; None: all.
        """
        for line, row in self.rows() if rows is None else rows:
            try:
                if len(row) != len(self.columns):
                    raise fault(self.path, line, f"this row has {len(row)} fields, the header {len(self.columns)}")
                yield line, parse(line, row)
            except Misuse as error:
                yield line, error

    def place(self, *names: str) -> int | None:
        """Return the index of the first of these columns; None without one."""
        return next((self.columns[name] for name in names if name in self.columns), None)

    def need(self, *names: str) -> int:
        """Return the index of the first of these columns; the table has one of them."""
        found = self.place(*names)
        assert found is not None, "the columns identify the format"
        return found


class TableFormat(Struct, frozen=True):
    """A kind of table.

    Attributes:
        needed: groups of columns; the table needs one of each.
        others: optional columns.
    """

    header: TraceHeader
    needed: tuple[tuple[str, ...], ...]
    others: tuple[str, ...]
    read: _Reader

    @property
    def known(self) -> frozenset[str]:
        """All columns of the format."""
        return frozenset(self.others).union(*self.needed)

    def missing(self, columns: set[str]) -> tuple[tuple[str, ...], ...]:
        """Return the groups without a column."""
        return tuple(group for group in self.needed if not columns.intersection(group))


# ------------------------------------------------------------------------------------------------------------- prices


def _aws_prices(table: TraceTable) -> Iterator[ParsedLine]:
    path, series = table.path, _SeriesOf(table)
    when, cost = table.need("timestamp_utc"), table.need("price_usd_per_hour")

    def parse(line: int, row: _Row) -> Price:
        at_s = moment(row[when], path, line, "timestamp_utc")
        return Price(at_s, series(row), price(row[cost], path, line, "price_usd_per_hour"))

    return table.each(parse)


class _SeriesOf:
    """Returns the series of a row; equal series are one object."""

    def __init__(self, table: TraceTable) -> None:
        self._type, self._zone, self._product = table.need(*_TYPES), table.place(*_ZONES), table.place("product")
        self._seen: dict[tuple[str, str, str], Series] = {}

    def __call__(self, row: _Row) -> Series:
        zone = "" if self._zone is None else row[self._zone]
        product = "" if self._product is None else row[self._product]
        key = (row[self._type], zone, product)
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = Series(*key)
        return found


def side_file(path: Path) -> Path:
    """Return the file with a grid's starts and steps: `NAME_series.csv` beside `NAME.csv[.gz]`."""
    return path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.csv')}_series.csv")


def _grid_prices(table: TraceTable) -> Iterator[ParsedLine]:
    path, series, grids = table.path, _SeriesOf(table), _grids(side_file(table.path))
    sample, cost = table.need("sample"), table.need("price_usd_per_hour")

    def parse(line: int, row: _Row) -> Price:
        series_key = series(row)
        if series_key not in grids:
            named = f"{series_key.machine_type} in {series_key.zone}"
            raise fault(path, line, f"{side_file(path).name} has no start for {named}")
        start_s, step_s = grids[series_key]
        at_s = start_s + step_s * whole(row[sample], path, line, "sample")
        return Price(at_s, series_key, price(row[cost], path, line, "price_usd_per_hour"))

    return table.each(parse)


def step_s_of(path: Path) -> float:
    """Return the longest step of a grid's series [s].

    Raises:
        Misuse: the file with the steps is missing.
    """
    return max((step_s for _, step_s in _grids(side_file(path)).values()), default=0.0)


def _grids(path: Path) -> dict[Series, tuple[float, float]]:
    if not path.exists():
        raise fault(path, None, "this file is missing: it holds the start and the step of each series of the grid")
    columns = table_columns(path)
    table = TraceTable(path, columns)
    if missing := {"instance_type", "availability_zone", "step_s", "start_utc"} - set(columns):
        raise fault(path, 1, f"the column {min(missing)} is missing")
    start, step, series = columns["start_utc"], columns["step_s"], _SeriesOf(table)

    def parse(line: int, row: _Row) -> tuple[Series, tuple[float, float]]:
        start_and_step = moment(row[start], path, line, "start_utc"), not_negative(row[step], path, line, "step_s")
        return series(row), start_and_step

    # A series without a start is an error where its rows are read.
    return dict(found for _, found in table.each(parse) if not isinstance(found, Misuse))


def _google_prices(table: TraceTable) -> Iterator[ParsedLine]:
    path, series = table.path, _SeriesOf(table)
    when, spot, list_price = table.need("observed_utc"), table.need(*_SPOT), table.need(*_ON_DEMAND)

    def parse(line: int, row: _Row) -> Price:
        at_s = moment(row[when], path, line, "observed_utc")
        # The source lists a type before its price is known, with an on-demand price of 0.
        on_demand = _maybe(row[list_price], path, line, "on_demand_usd_per_hour") or None
        return Price(at_s, series(row), _maybe(row[spot], path, line, "spot_usd_per_hour"), on_demand)

    return table.each(parse)


def _maybe(text: str, path: Path, line: int, what: str) -> float | None:
    return price(text, path, line, what) if text else None


# -------------------------------------------------------------------------------------------------------------- lives


def _google_lifetimes(table: TraceTable) -> Iterator[ParsedLine]:
    path, series = table.path, _SeriesOf(table)
    column = {name: table.columns[name] for name in GOOGLE_LIFETIMES.known if name in table.columns}

    def parse(line: int, row: _Row) -> TracedLifetime:
        field = {name: row[place] for name, place in column.items()}
        started_s = moment(field["insert_start"], path, line, "insert_start")
        # With both, the preemption came first and ended the machine.
        suffix = "preempted_at" if field["preempted_at"] else "stop_start"
        lifetime_s = not_negative(field["lifetime_s"], path, line, "lifetime_s")
        between_s = moment(field[suffix], path, line, suffix) - started_s
        if between_s < 0.0:
            raise fault(path, line, f"negative lifetime: {suffix} is before insert_start")
        if abs(lifetime_s - between_s) > max(_LIFE_AGREES_S, _LIFE_AGREES * between_s):
            wrong = f"lifetime_s is {lifetime_s:g}, but from insert_start to {suffix} is {between_s:g} s"
            raise fault(path, line, f"{wrong}: wrong unit?")
        return TracedLifetime(
            started_s,
            series(row),
            started_s + lifetime_s,
            _google_end(field["end_event"], path, line),
            field["vm"],
            field["launch_batch"],
            field["load"],
            _startup(field["insert_end"], started_s, path, line),
        )

    return table.each(parse)


def _google_end(word: str, path: Path, line: int) -> MachineEndCause:
    ends = {"preempted": MachineEndCause.PREEMPTED, "user_stop": MachineEndCause.RELEASED}
    if word not in ends:
        raise fault(path, line, f"end_event is {word!r}; {nearest(word, ends)}")
    return ends[word]


def _startup(text: str, started_s: float, path: Path, line: int) -> float | None:
    # The source has milliseconds.
    return round(moment(text, path, line, "insert_end") - started_s, 3) if text else None


def _plain_lifetimes(table: TraceTable) -> Iterator[ParsedLine]:
    """Yield the lifetimes of a user's own table; its first rows show whether they are in seconds."""
    unit = table.unit or "s"
    scale = trace_checks.UNITS_S[unit]
    first, rows = trace_checks.after_head(table.rows())
    length = table.need("lifetime_s")
    seen = table.each(lambda line, row: number(row[length], table.path, line, "lifetime_s"), first)
    trace_checks.check_lifetimes([one for _, one in seen if not isinstance(one, Misuse)], unit, table.path)
    series = _SeriesOf(table)
    preempted, started = table.need("preempted"), table.place("began_utc")
    machine, batch = table.place("machine", "vm"), table.place("launch_batch", "batch")

    def parse(line: int, row: _Row) -> TracedLifetime:
        lifetime_s = not_negative(row[length], table.path, line, "lifetime_s") * scale
        started_s = 0.0 if started is None else moment(row[started], table.path, line, "began_utc")
        word = row[preempted].strip().lower()
        if word not in _PREEMPTED:
            raise fault(table.path, line, f"preempted is {row[preempted]!r}: write 1 or 0")
        return TracedLifetime(
            started_s,
            series(row),
            started_s + lifetime_s,
            MachineEndCause.PREEMPTED if _PREEMPTED[word] else MachineEndCause.RELEASED,
            "" if machine is None else row[machine],
            "" if batch is None else row[batch],
        )

    return table.each(parse, rows)


# --------------------------------------------------------------------------------------------------------- catalogues


def _catalogue(table: TraceTable) -> Iterator[ParsedLine]:
    path = table.path
    kind = table.need(*_TYPES)
    zone = table.place("zone_id", "region", "Region")
    named = _region_of(path)

    def parse(line: int, row: _Row) -> CatalogueEntry:
        def value(*names: str) -> float | None:
            place = table.place(*names)
            return None if place is None or not row[place] else price(row[place], path, line, names[0])

        def amount(*names: str) -> float | None:
            place = table.place(*names)
            return None if place is None or not row[place] else not_negative(row[place], path, line, names[0])

        gpu, bucket, saving = table.place("gpu", "accelerator"), amount("interruption_bucket"), table.place(_SAVING)
        return CatalogueEntry(
            0.0,
            Series(row[kind], named if zone is None else row[zone]),
            value(*_ON_DEMAND),
            value(*_SPOT),
            amount("vcpus"),
            amount("memory_gib", "memory_gb"),
            "" if gpu is None else row[gpu],
            amount("gpu_count", "accelerator_count"),
            None if saving is None else number(row[saving], path, line, _SAVING) / 100.0,
            None if bucket is None else int(bucket),
        )

    return table.each(parse)


_HARDWARE = (
    "vcpus",
    "memory_gib",
    "memory_gb",
    "gpu",
    "accelerator",
    "gpu_count",
    "accelerator_count",
    "gpu_memory_gb_total",
    "series",
    "category",
    "local_ssd",
)
_SAVING = "savings_over_on_demand_pct"


def _region_of(path: Path) -> str:
    found = re.search(r"(?<![a-z])[a-z]{2}-[a-z]+-\d|(?<=azure_)[a-z]+(?=_linux)", path.name)
    return found.group() if found else ""


# ------------------------------------------------------------------------------------------------------------ formats


GOOGLE_LIFETIMES = TableFormat(
    TraceHeader("google-lifetimes", (Content.LIFETIMES,), ClockKind.UTC, SamplingKind.CHANGES),
    tuple((name,) for name in ("vm", "launch_batch", "zone", "machine_type", "insert_start", "insert_end"))
    + tuple((name,) for name in ("preempted_at", "stop_start", "end_event", "lifetime_s", "load")),
    ("stop_end", "end_day_of_week", "end_hour_local"),
    _google_lifetimes,
)
_AWS = TraceHeader("aws-prices", (Content.PRICES,), ClockKind.UTC, SamplingKind.CHANGES, silence_s=1.05 * DAY_S)
"""The API repeats a price at least daily: a longer silence is missing data."""
FORMATS = (
    GOOGLE_LIFETIMES,
    TableFormat(
        _AWS, (("timestamp_utc",), ("instance_type",), ("price_usd_per_hour",), _ZONES[:4]), ("product",), _aws_prices
    ),
    TableFormat(
        TraceHeader("aws-price-grid", (Content.PRICES,), ClockKind.UTC, SamplingKind.SAMPLES),
        (("sample",), ("instance_type",), ("availability_zone",), ("price_usd_per_hour",)),
        (),
        _grid_prices,
    ),
    TableFormat(
        TraceHeader("google-prices", (Content.PRICES,), ClockKind.UTC, SamplingKind.CHANGES),
        (("observed_utc",), ("machine_type",), ("region",), _ON_DEMAND[:1], _SPOT[:1]),
        ("source_commit",),
        _google_prices,
    ),
    TableFormat(
        TraceHeader("lifetimes", (Content.LIFETIMES,), ClockKind.START, SamplingKind.CHANGES),
        (("lifetime_s",), ("preempted",), _TYPES[:2]),
        ("zone", "machine", "vm", "batch", "launch_batch", "began_utc"),
        _plain_lifetimes,
    ),
    TableFormat(
        TraceHeader("catalogue", (Content.CATALOGUE,), ClockKind.START, SamplingKind.CHANGES),
        (_TYPES, (*_ON_DEMAND, "interruption_bucket")),
        (*_SPOT, *_ZONES[1:], *_HARDWARE, _SAVING),
        _catalogue,
    ),
)


def table_columns(path: Path) -> dict[str, int]:
    """Return the columns in a file's first line, with their indices.

    Raises:
        Misuse: one appears twice, or the line is not a header.
    """
    try:
        names = [name.strip() for name in next(csv.reader(lines(path), strict=True), [])]
    except csv.Error as error:
        raise fault(path, 1, f"this line is not the header of a table: {error}") from error
    if twice := {name for name in names if names.count(name) > 1}:
        raise fault(path, 1, f"the column {min(twice)!r} appears twice")
    return {name: place for place, name in enumerate(names)}


def recognise(path: Path, columns: dict[str, int]) -> TableFormat:
    """Return the format with these columns.

    Raises:
        Misuse: there is none; the message names a missing or unknown column.
    """
    names = set(columns)
    whole_ones = [one for one in FORMATS if not one.missing(names)]
    for one in whole_ones:
        if names <= one.known:
            return one
    if whole_ones:
        known = whole_ones[0].known
        unknown = min(names - known)
        raise fault(path, 1, f"unknown column {unknown!r}; {nearest(unknown, sorted(known - names) or sorted(known))}")
    near = max(FORMATS, key=lambda one: len(names & one.known) - len(one.missing(names)))
    if not names & near.known:
        raise fault(path, 1, f"no trace format has these columns: {', '.join(sorted(names))[:200]}")
    missing = " or ".join(near.missing(names)[0])
    strange = sorted(names - near.known)
    hint = f", and {strange[0]!r} is unknown" if strange else ""
    raise fault(path, 1, f"not a {near.header.format} table: the column {missing} is missing{hint}")
