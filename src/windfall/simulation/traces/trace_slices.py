"""A slice of a trace: a file, a zone, from, to.

    us-west-2a_v100_1.json                          all of it
    prices.csv.gz:us-east-1a                        one zone
    prices.csv.gz:m4.xlarge@us-east-1a:2h..30h      one type in one zone, from its 2nd to its 30th hour
    prices.csv.gz:m4.xlarge@:..2016-05-08           all zones, up to a date (UTC), where the trace has dates
    prices.csv.gz:m1.small@us-east-1a,Linux/UNIX    one product

Durations count from the trace's first event.  The events of a slice have times from the slice's start: first the values at
the start, last the end of the slice.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from windfall.errors import Misuse
from windfall.simulation.traces.trace_events import (
    ClockKind,
    Content,
    Count,
    Event,
    LocatedEvent,
    MachineEnded,
    MachineStarted,
    Price,
    Series,
    TracedLifetime,
    TraceHeader,
    WatchedUntil,
    content_of,
)
from windfall.simulation.traces.trace_files import fault
from windfall.simulation.traces.trace_reader import Trace, open_trace
from windfall.simulation.traces.trace_survey import TraceSurvey, survey
from windfall.spelling import nearest
from windfall.structs import Struct, replace
from windfall.units import duration_s, duration_text

SERIES_MAX = 64
"""How many series a slice may join: each is read on its own, so that none is kept in memory."""
NAMES_MAX = 20
"""Messages do not list more zones or types than this."""
_DATE = r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?Z?)?"
_MOMENT = rf"(?:{_DATE}|(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+)"
_TEXT = re.compile(
    rf"(?P<file>.+?)(?::(?P<place>[^:/,]*(?:,[^:]*)?))??(?::(?P<since>{_MOMENT})?\.\.(?P<until>{_MOMENT})?)?"
)


class TraceSlice(Struct, frozen=True):
    """A part of a trace; each iteration yields the same events.

    Attributes:
        zone, machine_type, product: None for all of them.
        since, until: a duration from the trace's start, or a date, as text; None for its start and end.
        unit: of the file's times, if the file does not name it.
    """

    path: Path
    zone: str | None = None
    machine_type: str | None = None
    product: str | None = None
    since: str | None = None
    until: str | None = None
    unit: str | None = None

    def __str__(self) -> str:
        """Write it as `parse_slice` reads it."""
        place = "" if self.machine_type is None else f"{self.machine_type}@"
        place += (self.zone or "") + ("" if self.product is None else f",{self.product}")
        span = "" if self.since is None and self.until is None else f":{self.since or ''}..{self.until or ''}"
        return f"{self.path}{f':{place}' if place else ''}{span}"

    def __iter__(self) -> Iterator[Event]:
        """Yield its events.

        Raises:
            Misuse: the trace is bad, has no such zone, or is too short.
        """
        return cut(self).events()

    def matches(self, series: Series) -> bool:
        """Return whether a series is in it."""
        wanted = ((self.zone, series.zone), (self.machine_type, series.machine_type), (self.product, series.product))
        return all(want is None or want == have for want, have in wanted)


def parse_slice(text: str, *, unit: str | None = None) -> TraceSlice:
    """Read `FILE[:[TYPE@][ZONE][,PRODUCT]][:FROM..TO]`; a text that is the name of a file means the whole file.

    Raises:
        Misuse: FROM or TO is neither a duration nor a date.
    """
    if Path(text).exists():
        return TraceSlice(Path(text), unit=unit)
    match = _TEXT.fullmatch(text)
    if match is None:
        raise Misuse(f"{text!r} is not a trace: write FILE, FILE:ZONE, FILE:TYPE@ZONE or FILE:ZONE:2h..30h")
    wrong = re.search(r":([^:/]*\.\.[^/]*)$", text)
    if wrong and match["since"] is None and match["until"] is None:
        wanted = "write 2h..30h, ..30h, or 2016-05-06..2016-05-08"
        raise Misuse(f"{text}: {wrong.group(1)!r} is not a time range: {wanted}")
    place, _, product = (match["place"] or "").partition(",")
    kind, at, zone = place.rpartition("@")
    return TraceSlice(
        Path(match["file"]),
        zone or None,
        (kind or None) if at else None,
        product or None,
        match["since"],
        match["until"],
        unit,
    )


class ResolvedSlice(Struct, frozen=True):
    """A slice resolved in its trace; it can be read any number of times.

    Attributes:
        keys: the series in it, sorted.
        since_s, until_s: on the trace's own clock [s].
    """

    trace: Trace
    keys: tuple[tuple[Content, Series], ...]
    since_s: float
    until_s: float

    @property
    def header(self) -> TraceHeader:
        """The header of the slice as a trace of its own."""
        return replace(self.trace.header, clock=ClockKind.START)

    @property
    def length_s(self) -> float:
        """Its length [s]."""
        return self.until_s - self.since_s

    def events(self) -> Iterator[Event]:
        """Yield its events in order, with times from its start; equal times go by content, type, zone and product."""
        streams = (self._one(place, key) for place, key in enumerate(self.keys))
        for _, _, _, event in heapq.merge(*streams, key=lambda item: item[:3]):
            yield event

    def located(self) -> Iterator[LocatedEvent]:
        """Yield its events with their numbers."""
        return enumerate(self.events(), 1)

    def _one(self, place: int, key: tuple[Content, Series]) -> Iterator[tuple[float, int, int, Event]]:
        content, series = key
        mine = (event for event in self.trace.events() if event.series == series and content_of(event) is content)
        cutter = _lifetimes if content is Content.LIFETIMES else _machines if content is Content.MACHINES else _values
        for number, event in enumerate(cutter(mine, self.since_s, self.until_s)):
            yield event.at_s, place, number, event


def cut(slice_: TraceSlice) -> ResolvedSlice:
    """Resolve a slice in its trace.

    Raises:
        Misuse: the trace is bad, has no such zone or type, or is too short.
    """
    trace = open_trace(slice_.path, unit=slice_.unit)
    return cut_of(trace, slice_, survey(trace))


def cut_of(trace: Trace, slice_: TraceSlice, surveyed: TraceSurvey) -> ResolvedSlice:
    """Resolve a slice in a trace with a known survey.

    Raises:
        Misuse: as `cut`.
    """
    timed = [one for one in surveyed.stats if one.content is not Content.CATALOGUE]
    if not timed:
        raise fault(slice_.path, None, "a price list has no times, so it has no slices")
    keys = tuple((one.content, one.series) for one in timed if slice_.matches(one.series))
    if not keys:
        raise fault(slice_.path, None, _no_such(slice_, surveyed))
    if len(keys) > SERIES_MAX:
        wanted = "name one as TYPE@ZONE or TYPE@ZONE,PRODUCT"
        raise fault(slice_.path, None, f"this slice has {len(keys)} series, more than {SERIES_MAX}: {wanted}")
    first_s, last_s = surveyed.first_s, surveyed.last_s
    if trace.header.clock is ClockKind.START:
        first_s = 0.0
    since_s = first_s if slice_.since is None else _moment(slice_.since, first_s, slice_, trace)
    until_s = last_s if slice_.until is None else _moment(slice_.until, first_s, slice_, trace)
    asked = f"{slice_.since or ''}..{slice_.until or ''}"
    if until_s > last_s or since_s < first_s:
        reach = duration_text(last_s - first_s)
        raise fault(
            slice_.path, None, f"{asked} reaches beyond the trace, which is {reach} long{_dates(trace, surveyed)}"
        )
    if since_s >= until_s and (slice_.since is not None or slice_.until is not None):
        raise fault(slice_.path, None, f"{asked} is empty: it ends before it starts{_dates(trace, surveyed)}")
    return ResolvedSlice(trace, keys, since_s, until_s)


def _no_such(slice_: TraceSlice, surveyed: TraceSurvey) -> str:
    for what, wanted, known in (
        ("zone", slice_.zone, surveyed.zones),
        ("machine type", slice_.machine_type, surveyed.machine_types),
    ):
        if wanted is not None and wanted not in known:
            names = [name for name in known if name]
            hint = nearest(wanted, names) if names else "the file names none"
            if len(names) > NAMES_MAX and hint.startswith("choose"):
                hint = f"it has {len(names)}, such as {', '.join(names[:3])}"
            return f"the trace has no {what} {wanted!r}; {hint}"
    return f"the trace has no {slice_.machine_type or 'machine'} in {slice_.zone or 'any zone'}" + (
        f" with {slice_.product}" if slice_.product else ""
    )


def _dates(trace: Trace, surveyed: TraceSurvey) -> str:
    if trace.header.clock is ClockKind.START:
        return ""
    return f" ({date_text(surveyed.first_s)} to {date_text(surveyed.last_s)})"


def date_text(at_s: float) -> str:
    """Write a moment as a date and time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _moment(text: str, first_s: float, slice_: TraceSlice, trace: Trace) -> float:
    if not re.fullmatch(_DATE, text):
        return first_s + duration_s(text, f"{slice_}")
    if trace.header.clock is ClockKind.START:
        raise fault(
            slice_.path,
            None,
            f"the trace has no dates, so {text} is not in it: give durations from its start, such as 2h..30h",
        )
    try:
        return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise Misuse(f"{slice_}: {text} is not a date") from error


# ------------------------------------------------------------------------------------------------------------ cutting


def _values(events: Iterable[Event], since_s: float, until_s: float) -> Iterator[Event]:
    """Yield the value at the start, the changes, and the end of the observation."""
    held: Price | Count | None = None
    end_s, started, series, content = since_s, False, None, Content.PRICES
    for event in events:
        series, content = event.series, content_of(event)
        if event.at_s > until_s:
            end_s = until_s
            break
        if event.at_s > since_s and not started:
            started = True
            if held is not None:
                yield replace(held, at_s=0.0)
        end_s = max(event.at_s, since_s)
        if not isinstance(event, (Price, Count)):
            continue
        if started:
            yield replace(event, at_s=event.at_s - since_s)
        else:
            held = event
    if not started and held is not None:
        yield replace(held, at_s=0.0)
    if series is not None and (started or held is not None):
        yield WatchedUntil(end_s - since_s, series, content)


def _machines(events: Iterable[Event], since_s: float, until_s: float) -> Iterator[Event]:
    """Yield the machines at the start, the starts and ends, and the end of the observation."""
    running: dict[str, MachineStarted] = {}
    end_s, started, series = since_s, False, None
    for event in events:
        series = event.series
        if event.at_s > until_s:
            end_s = until_s
            break
        if event.at_s > since_s and not started:
            started = True
            yield from (replace(machine, at_s=0.0) for machine in running.values())
        end_s = max(event.at_s, since_s)
        if started and isinstance(event, (MachineStarted, MachineEnded)):
            yield replace(event, at_s=event.at_s - since_s)
        elif isinstance(event, MachineStarted):
            running[event.machine] = event
        elif isinstance(event, MachineEnded):
            del running[event.machine]
    if not started:
        yield from (replace(machine, at_s=0.0) for machine in running.values())
    if series is not None and (started or running):
        yield WatchedUntil(end_s - since_s, series, Content.MACHINES)


def _lifetimes(events: Iterable[Event], since_s: float, until_s: float) -> Iterator[Event]:
    """Yield the lifetimes that started in it; one that lasts beyond its end is censored running."""
    for event in events:
        if isinstance(event, TracedLifetime) and since_s <= event.at_s <= until_s:
            beyond = event.ended_s > until_s
            ended_s, end = (until_s, None) if beyond else (event.ended_s, event.end)
            yield replace(event, at_s=event.at_s - since_s, ended_s=ended_s - since_s, end=end)
