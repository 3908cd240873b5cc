"""`windfall lab traces`: what is in a trace, and any known format as Windfall's own."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from windfall.cli.runs import Json
from windfall.report.showing import console
from windfall.simulation.traces import form, reading, slices
from windfall.simulation.traces.events import Clock, Content, Sampling
from windfall.simulation.traces.survey import Stats, Survey, survey, survey_of
from windfall.units import duration_text

Unit = Annotated[str | None, Parameter(name="--unit")]
MachineType = Annotated[str, Parameter(name="--type")]
Zone = Annotated[str, Parameter(name="--zone")]
Strict = Annotated[bool, Parameter(name="--strict", negative="")]
_ROWS_MAX = 12
"""How many series are shown; --json has all of them."""
_HOLES_SHOWN = 3
_UNITS = {
    Content.PRICES: "USD/h",
    Content.COUNTS: "machines",
    Content.MACHINES: "machines",
    Content.LIVES: "s",
    Content.CATALOGUE: "USD/h",
}
_COLUMNS = {
    Content.PRICES: ("prices", "mean USD/h", "lowest", "highest", "silence"),
    Content.COUNTS: ("events", "mean count", "lowest", "highest", "falls"),
    Content.MACHINES: ("events", "mean count", "lowest", "highest", "taken"),
    Content.LIVES: ("lives", "preempted", "mean", "longest", "MTTP"),
}


def inspect(
    trace: str,
    *,
    unit: Unit = None,
    machine_type: MachineType = "",
    zone: Zone = "",
    strict: Strict = False,
    json_: Json = False,
) -> None:
    """Say what is in a trace: its format, span, zones, counts, means, gaps.

    Reads Windfall's own format, the JSON of `windfall events JOB --json`, what `aws ec2 describe-spot-price-history` prints,
    tables of AWS and Google prices, price lists, tables of lives, SkyPilot's availability and preemption traces, node
    counts of Bamboo and Parcae; gzipped or not.

    Example: `windfall lab traces inspect prices.csv.gz:m4.xlarge@us-east-1a:2h..30h`

    Args:
        trace: a file, or a part of it: FILE:[TYPE@]ZONE[,PRODUCT]:FROM..TO.
        unit: of its times, where neither the file nor its name says it: ms, s, m or h.
        machine_type: name for the machine type, where the file has none.
        zone: name for the zone, where the file has none.
        strict: refuse a table for one bad row; otherwise such rows are left out, counted and named.
        json_: one JSON object, with all series.
    """
    found = _look(trace, _Named(unit, machine_type, zone, strict))
    if json_:
        print(json.dumps(as_json(trace, found)))
        return
    screen = console()
    for sentence in _sentences(trace, found):
        screen.print(sentence)
    for content in Content:
        stats = [one for one in found.stats if one.content is content]
        if stats and content is Content.CATALOGUE:
            screen.print(_list(stats))
        elif stats:
            screen.print(_table(content, stats))
    for sentence in _holes(found):
        screen.print(sentence)


def convert(
    trace: str,
    out: Path,
    *,
    to: Literal["windfall"] = "windfall",
    unit: Unit = None,
    machine_type: MachineType = "",
    zone: Zone = "",
    strict: Strict = False,
    json_: Json = False,
) -> None:
    """Write a trace, or a part of one, in Windfall's own format.

    Example: `windfall lab traces convert prices.csv.gz:m4.xlarge@us-east-1a m4.jsonl.gz`

    Args:
        trace: a file, or a part of it: FILE:[TYPE@]ZONE[,PRODUCT]:FROM..TO.
        out: the file to write; gzipped if its name ends in .gz.
        to: the format.
        unit: of its times, where neither the file nor its name says it: ms, s, m or h.
        machine_type: name for the machine type, where the file has none.
        zone: name for the zone, where the file has none.
        strict: refuse a table for one bad row; otherwise such rows are left out, counted and named.
        json_: one JSON object.
    """
    del to  # there is one, and cyclopts has checked it
    opened, part = _open(trace, _Named(unit, machine_type, zone, strict))
    found = survey(opened)
    for sentence in _aside(found):
        print(f"windfall: {sentence}", file=sys.stderr)
    if part == slices.Slice(opened.path, unit=unit):
        count = form.write(out, opened.header, opened.events())
    else:
        piece = slices.cut_of(opened, part, found)
        count = form.write(out, piece.header, piece.events())
    if json_:
        print(json.dumps({"file": str(out), "events": count}))
    else:
        print(f"{out}: {count} events")


@dataclasses.dataclass(frozen=True, slots=True)
class _Named:
    """What is said of a file that it does not say itself, and whether each of its rows must be good."""

    unit: str | None
    machine_type: str
    zone: str
    strict: bool


def _open(text: str, named: _Named) -> tuple[reading.Trace, slices.Slice]:
    part = slices.parse_slice(text, unit=named.unit)
    opened = reading.open_trace(
        part.path, unit=named.unit, machine_type=named.machine_type, zone=named.zone, strict=named.strict
    )
    return opened, part


def _look(text: str, named: _Named) -> Survey:
    opened, part = _open(text, named)
    found = survey(opened)
    if part != slices.Slice(part.path, unit=named.unit):
        piece = slices.cut_of(opened, part, found)
        part_of_it = survey_of(piece.placed(), piece.header)
        found = dataclasses.replace(part_of_it, aside=found.aside, aside_count=found.aside_count)
    return found


# ---------------------------------------------------------------------------------------------------------------- text


def _sentences(name: str, found: Survey) -> list[str]:
    header = found.header
    content = " and ".join(dict.fromkeys(one.content.value for one in found.stats))
    if header.content == (Content.CATALOGUE,):
        when = "a list without times"
    elif header.clock is Clock.UTC:
        dates = f"{slices.date_text(found.first_s)} to {slices.date_text(found.last_s)}"
        when = f"{dates} ({_span(found.span_s)})"
    else:
        when = f"{_span(found.span_s)} from its start (no dates)"
    told = [f"{name}", f"{header.format}: {content}, {when}"]
    zones, types = _names("zone", found.zones), _names("machine type", found.machine_types)
    step = f"; a look every {duration_text(header.step_s)}" if header.step_s else ""
    told.append(f"{_many(found.events, 'event')}, {_many(len(found.stats), 'series', '')}; {zones}; {types}{step}")
    told += header.told
    if lives := [one for one in found.stats if one.content is Content.LIVES]:
        preempted, all_ = sum(one.falls for one in lives), sum(one.events for one in lives)
        told.append(f"{preempted} of {all_} lives ended by a preemption; the others are right-censored")
    if found.repeated:
        told.append(f"{_many(found.repeated, 'repeated event')} left out")
    return told + _aside(found)


def _aside(found: Survey) -> list[str]:
    """Say which rows were left out because they cannot be true."""
    if not found.aside_count:
        return []
    share = found.aside_count / (found.aside_count + found.events + found.repeated)
    told = [f"{_many(found.aside_count, 'row')} ({share:.1%}) cannot be true and {_are(found.aside_count)} left out:"]
    told += [f"  {why}" for _, why in found.aside[:_HOLES_SHOWN]]
    more = found.aside_count - _HOLES_SHOWN
    return [*told, f"  and {more} more"] if more > 0 else told


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _many(count: int, word: str, plural: str = "s") -> str:
    return f"{count} {word}{'' if count == 1 else plural}"


def _span(seconds: float) -> str:
    return duration_text(seconds) if seconds < 3 * 86_400.0 else f"{seconds / 86_400.0:.1f} days"


def _names(word: str, names: tuple[str, ...]) -> str:
    if names == ("",):
        return f"{word} not named"
    shown = f": {', '.join(name or 'not named' for name in names)}" if len(names) <= 6 else ""
    return _many(len(names), word) + shown


def _table(content: Content, stats: list[Stats]) -> Table:
    shown = sorted(stats, key=lambda one: (-one.events, one.series))[:_ROWS_MAX]
    products = any(one.series.product for one in shown)
    table = Table(box=None, pad_edge=False, padding=(0, 1 if products else 2, 0, 0))
    table.add_column("type", no_wrap=True)
    table.add_column("zone", no_wrap=True)
    if products:
        table.add_column("product")
    for column in _COLUMNS[content]:
        table.add_column(column, justify="right", no_wrap=True)
    for one in sorted(shown, key=lambda one: one.series):
        product = (one.series.product,) if products else ()
        table.add_row(one.series.machine_type or "-", one.series.zone or "-", *product, *_cells(one))
    if len(stats) > len(shown):
        table.add_row(f"{len(stats) - len(shown)} more")
    return table


def _list(stats: list[Stats]) -> str:
    priced = [one.mean for one in stats if one.mean is not None]
    if not priced:
        return "No prices: a list of how often machines are interrupted, or what is saved."
    return f"{len(priced)} of them with a price: {_figure(min(priced))} to {_figure(max(priced))} USD/h"


def _cells(one: Stats) -> tuple[str, ...]:
    if one.content is Content.LIVES:
        return f"{one.events}", f"{one.falls}", _hours(one.mean), _hours(one.highest), _hours(one.mttp_s)
    last = _hours(one.silence_s) if one.content is Content.PRICES else f"{one.falls}"
    return f"{one.events}", _figure(one.mean), _figure(one.lowest), _figure(one.highest), last


def _hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600.0:.2f} h"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _holes(found: Survey) -> list[str]:
    header = found.header
    if not found.holes or header.silence_s is None:
        return []
    why = "nobody looked" if header.sampling is Sampling.SAMPLES else "data are missing"
    limit = duration_text(header.silence_s)
    told = [f"{_many(found.holes_count, 'silence')} of more than {limit}, where {why}; the longest:"]
    for hole in found.holes[:_HOLES_SHOWN]:
        when = slices.date_text(hole.at_s) if header.clock is Clock.UTC else _span(hole.at_s)
        series = " ".join(word for word in (hole.series.machine_type, hole.series.zone, hole.series.product) if word)
        told.append(f"  {_span(hole.length_s)} from {when}, line {hole.line} {series}".rstrip())
    return told


# ---------------------------------------------------------------------------------------------------------------- JSON


def as_json(name: str, found: Survey) -> dict[str, Any]:
    """Return a survey as a JSON object; times in seconds on the trace's clock."""
    header = found.header
    return {
        "trace": name,
        "format": header.format,
        "clock": header.clock.value,
        "sampling": header.sampling.value,
        "step_s": header.step_s,
        "first_s": found.first_s,
        "last_s": found.last_s,
        "span_s": found.span_s,
        "events": found.events,
        "repeated": found.repeated,
        "left_out": found.aside_count,
        "left_out_rows": [{"line": line, "why": why} for line, why in found.aside],
        "zones": found.zones,
        "machine_types": found.machine_types,
        "told": header.told,
        "holes_count": found.holes_count,
        "holes": [dataclasses.asdict(hole) for hole in found.holes],
        "series": [_series_json(one) for one in found.stats],
    }


def _series_json(one: Stats) -> dict[str, Any]:
    return {
        "content": one.content.value,
        "machine_type": one.series.machine_type,
        "zone": one.series.zone,
        "product": one.series.product,
        "unit": _UNITS[one.content],
        "events": one.events,
        "first_s": one.first_s,
        "last_s": one.last_s,
        "mean": one.mean,
        "lowest": one.lowest,
        "highest": one.highest,
        "falls": one.falls,
        "unknown": one.unknown,
        "mttp_s": one.mttp_s,
        "silence_s": one.silence_s,
    }
