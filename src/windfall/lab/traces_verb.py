"""`windfall lab traces`: describe a trace, or convert it to Windfall's format."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Table

from windfall.cli.options import Json
from windfall.report.console import console
from windfall.simulation.traces import trace_format, trace_reader, trace_slices
from windfall.simulation.traces.trace_events import ClockKind, Content, SamplingKind
from windfall.simulation.traces.trace_survey import SeriesStats, TraceSurvey, survey, survey_of
from windfall.structs import plain, replace
from windfall.units import duration_text

Unit = Annotated[str | None, Parameter(name="--unit", metavar="UNIT")]
MachineType = Annotated[str, Parameter(name="--type", metavar="NAME")]
Zone = Annotated[str, Parameter(name="--zone", metavar="NAME")]
Strict = Annotated[bool, Parameter(name="--strict", negative="")]
_ROWS_MAX = 12
"""How many series are printed; --json has all of them."""
_GAPS_SHOWN = 3
_UNITS = {
    Content.PRICES: "USD/h",
    Content.COUNTS: "machines",
    Content.MACHINES: "machines",
    Content.LIFETIMES: "s",
    Content.CATALOGUE: "USD/h",
}
_COLUMNS = {
    Content.PRICES: ("prices", "mean USD/h", "lowest", "highest", "silence"),
    Content.COUNTS: ("events", "mean count", "lowest", "highest", "falls"),
    Content.MACHINES: ("events", "mean count", "lowest", "highest", "preempted"),
    Content.LIFETIMES: ("lifetimes", "preempted", "mean", "longest", "MTTP"),
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
    """Describe a trace: its format, span, zones, counts, means and gaps.

    Reads Windfall's own format, the JSON of `windfall events JOB --json`, what `aws ec2 describe-spot-price-history` prints,
    tables of AWS and Google prices, price lists, tables of lifetimes, SkyPilot's availability and preemption traces, node
    counts of Bamboo and Parcae; gzipped or not.

    Example: `windfall lab traces inspect prices.csv.gz:m4.xlarge@us-east-1a:2h..30h`

    Args:
        trace: a file, or a part of it: FILE:[TYPE@]ZONE[,PRODUCT]:FROM..TO.
        unit: unit of its times, if neither the file nor its name says it: ms, s, m or h.
        machine_type: name of the machine type, if the file has none.
        zone: name of the zone, if the file has none.
        strict: refuse a table if any row is bad; by default bad rows are skipped, counted and named.
        json_: print one JSON object, with all series.
    """
    found = _look(trace, _Named(unit, machine_type, zone, strict))
    if json_:
        print(json.dumps(as_json(trace, found)))
        return
    screen = console()
    for message in _sentences(trace, found):
        screen.print(message)
    for content in Content:
        stats = [one for one in found.stats if one.content is content]
        if stats and content is Content.CATALOGUE:
            screen.print(_list(stats))
        elif stats:
            screen.print(_table(content, stats))
    for message in _gaps(found):
        screen.print(message)


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
    """Write a trace, or a part of it, in Windfall's own format.

    Example: `windfall lab traces convert prices.csv.gz:m4.xlarge@us-east-1a m4.jsonl.gz`

    Args:
        trace: a file, or a part of it: FILE:[TYPE@]ZONE[,PRODUCT]:FROM..TO.
        out: the file to write; gzipped if its name ends in .gz.
        to: the format.
        unit: unit of its times, if neither the file nor its name says it: ms, s, m or h.
        machine_type: name of the machine type, if the file has none.
        zone: name of the zone, if the file has none.
        strict: refuse a table if any row is bad; by default bad rows are skipped, counted and named.
        json_: print one JSON object.
    """
    del to  # there is only one format, and cyclopts has checked the value
    opened, part = _open(trace, _Named(unit, machine_type, zone, strict))
    found = survey(opened)
    for message in _skipped(found):
        print(f"windfall: {message}", file=sys.stderr)
    if part == trace_slices.TraceSlice(opened.path, unit=unit):
        count = trace_format.write(out, opened.header, opened.events())
    else:
        piece = trace_slices.cut_of(opened, part, found)
        count = trace_format.write(out, piece.header, piece.events())
    if json_:
        print(json.dumps({"file": str(out), "events": count}))
    else:
        print(f"{out}: {count} events")


@dataclasses.dataclass(frozen=True, slots=True)
class _Named:
    """What the options say about a file, and whether each of its rows must be good."""

    unit: str | None
    machine_type: str
    zone: str
    strict: bool


def _open(text: str, named: _Named) -> tuple[trace_reader.Trace, trace_slices.TraceSlice]:
    part = trace_slices.parse_slice(text, unit=named.unit)
    opened = trace_reader.open_trace(
        part.path, unit=named.unit, machine_type=named.machine_type, zone=named.zone, strict=named.strict
    )
    return opened, part


def _look(text: str, named: _Named) -> TraceSurvey:
    opened, part = _open(text, named)
    found = survey(opened)
    if part != trace_slices.TraceSlice(part.path, unit=named.unit):
        piece = trace_slices.cut_of(opened, part, found)
        part_of_it = survey_of(piece.located(), piece.header)
        found = replace(part_of_it, skipped=found.skipped, skipped_count=found.skipped_count)
    return found


# ---------------------------------------------------------------------------------------------------------------- text


def _sentences(name: str, found: TraceSurvey) -> list[str]:
    header = found.header
    content = " and ".join(dict.fromkeys(one.content.value for one in found.stats))
    if header.content == (Content.CATALOGUE,):
        when = "a list without times"
    elif header.clock is ClockKind.UTC:
        dates = f"{trace_slices.date_text(found.first_s)} to {trace_slices.date_text(found.last_s)}"
        when = f"{dates} ({_span(found.span_s)})"
    else:
        when = f"{_span(found.span_s)} from its start (no dates)"
    lines = [f"{name}", f"{header.format}: {content}, {when}"]
    zones, types = _names("zone", found.zones), _names("machine type", found.machine_types)
    step = f"; sampled every {duration_text(header.step_s)}" if header.step_s else ""
    lines.append(f"{_many(found.events, 'event')}, {_many(len(found.stats), 'series', '')}; {zones}; {types}{step}")
    lines += header.notes
    if lifetimes := [one for one in found.stats if one.content is Content.LIFETIMES]:
        preempted, all_ = sum(one.falls for one in lifetimes), sum(one.events for one in lifetimes)
        lines.append(f"{preempted} of {all_} lifetimes ended by a preemption; the others are right-censored")
    if found.repeated:
        lines.append(f"{_many(found.repeated, 'repeated event')} left out")
    return lines + _skipped(found)


def _skipped(found: TraceSurvey) -> list[str]:
    """Return which rows were skipped because they cannot be true."""
    if not found.skipped_count:
        return []
    share = found.skipped_count / (found.skipped_count + found.events + found.repeated)
    lines = [
        f"{_many(found.skipped_count, 'row')} ({100.0 * share:.1f} %) cannot be true and {_are(found.skipped_count)} left out:"
    ]
    lines += [f"  {reason}" for _, reason in found.skipped[:_GAPS_SHOWN]]
    more = found.skipped_count - _GAPS_SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines


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


def _table(content: Content, stats: list[SeriesStats]) -> Table:
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


def _list(stats: list[SeriesStats]) -> str:
    priced = [one.mean for one in stats if one.mean is not None]
    if not priced:
        return "No prices: a list of interruption rates or savings."
    return f"{len(priced)} of them have a price: {_figure(min(priced))} to {_figure(max(priced))} USD/h"


def _cells(one: SeriesStats) -> tuple[str, ...]:
    if one.content is Content.LIFETIMES:
        return f"{one.events}", f"{one.falls}", _hours(one.mean), _hours(one.highest), _hours(one.mttp_s)
    last = _hours(one.silence_s) if one.content is Content.PRICES else f"{one.falls}"
    return f"{one.events}", _figure(one.mean), _figure(one.lowest), _figure(one.highest), last


def _hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600.0:.2f} h"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _gaps(found: TraceSurvey) -> list[str]:
    header = found.header
    if not found.gaps or header.silence_s is None:
        return []
    reason = "no samples were taken" if header.sampling is SamplingKind.SAMPLES else "data are missing"
    limit = duration_text(header.silence_s)
    lines = [f"{_many(found.gaps_count, 'silence')} of more than {limit}, where {reason}; the longest:"]
    for gap in found.gaps[:_GAPS_SHOWN]:
        when = trace_slices.date_text(gap.at_s) if header.clock is ClockKind.UTC else _span(gap.at_s)
        series = " ".join(word for word in (gap.series.machine_type, gap.series.zone, gap.series.product) if word)
        lines.append(f"  {_span(gap.length_s)} from {when}, line {gap.line} {series}".rstrip())
    return lines


# ---------------------------------------------------------------------------------------------------------------- JSON


def as_json(name: str, found: TraceSurvey) -> dict[str, Any]:
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
        "left_out": found.skipped_count,
        "left_out_rows": [{"line": line, "reason": reason} for line, reason in found.skipped],
        "zones": found.zones,
        "machine_types": found.machine_types,
        "notes": header.notes,
        "gaps_count": found.gaps_count,
        "gaps": [plain(gap) for gap in found.gaps],
        "series": [_series_json(one) for one in found.stats],
    }


def _series_json(one: SeriesStats) -> dict[str, Any]:
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
