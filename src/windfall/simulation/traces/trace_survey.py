"""Survey a trace in one pass: a few numbers for each series."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from windfall.simulation.traces.trace_checks import TraceChecker
from windfall.simulation.traces.trace_events import (
    CatalogueEntry,
    Content,
    Count,
    Event,
    LocatedEvent,
    MachineStarted,
    Price,
    Series,
    TracedLifetime,
    TraceHeader,
    WatchedUntil,
    content_of,
)
from windfall.simulation.traces.trace_reader import Trace
from windfall.structs import Struct, replace

GAPS_MAX = 8
"""How many of the longest gaps are kept."""


class TraceGap(Struct, frozen=True):
    """A stretch without samples, or with missing data, from the event at `line` on."""

    length_s: float
    at_s: float
    line: int
    series: Series


@dataclass(slots=True)
class SeriesStats:
    """The numbers of one series.

    Attributes:
        events: prices, counts, starts and ends, lifetimes, or lines of a price list.
        first_s, last_s: its span; of lifetimes: start of the first, end of the last.
        lowest, highest: of the values: USD/h, machines, or lifetimes [s].
        falls: drops of a count, ends of machines, or lifetimes that ended by a preemption.
        unknown: events without a value.
        watched_s: how long a value was known; of lifetimes: their sum.
        weighted: sum of value x time; of lifetimes: their sum.
    """

    content: Content
    series: Series
    events: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    lowest: float | None = None
    highest: float | None = None
    falls: int = 0
    unknown: int = 0
    watched_s: float = 0.0
    weighted: float = 0.0
    silence_s: float = 0.0
    value: float | None = None
    line: int = 0

    @property
    def mean(self) -> float | None:
        """Mean over time (of lifetimes: over lifetimes; of price lists: over lines); None if no value was ever known."""
        if self.content in (Content.LIFETIMES, Content.CATALOGUE):
            known = self.events - self.unknown
            return self.weighted / known if known else None
        return self.weighted / self.watched_s if self.watched_s > 0.0 else self.value

    @property
    def mttp_s(self) -> float | None:
        """Of lifetimes: total / preemptions, the mean for a constant hazard [s]; None without a preemption."""
        return self.watched_s / self.falls if self.content is Content.LIFETIMES and self.falls else None

    def hold_until(self, at_s: float) -> None:
        """Hold the value until now; a value that was replaced at once does not count."""
        if at_s > self.last_s:
            if self.value is not None:
                self.weighted += self.value * (at_s - self.last_s)
                self.watched_s += at_s - self.last_s
            self.update_bounds()
        self.last_s = at_s

    def update_bounds(self) -> None:
        """Widen the bounds to the value."""
        if self.value is not None:
            self.lowest = self.value if self.lowest is None else min(self.lowest, self.value)
            self.highest = self.value if self.highest is None else max(self.highest, self.value)

    def set(self, value: float | None) -> None:
        """Set a new value."""
        self.value = value
        self.unknown += value is None


class TraceSurvey(Struct, frozen=True):
    """What is in a trace.

    Attributes:
        repeated: how many events repeat the one before; they are skipped.
        in_order: whether times never fall in the whole file, not only within each series.
        gaps: the longest ones, longest first.
        gaps_count: of all gaps.
        skipped: the first skipped rows, which are impossible: line, and what is wrong with it.
        skipped_count: of all skipped rows.
    """

    header: TraceHeader
    stats: tuple[SeriesStats, ...]
    events: int
    repeated: int
    in_order: bool
    gaps: tuple[TraceGap, ...]
    gaps_count: int
    skipped: tuple[tuple[int, str], ...] = ()
    skipped_count: int = 0

    @property
    def first_s(self) -> float:
        """Start of the trace, on its own clock; 0 where that counts from its start."""
        return min(one.first_s for one in self.stats)

    @property
    def last_s(self) -> float:
        """End of the trace."""
        return max(one.last_s for one in self.stats)

    @property
    def span_s(self) -> float:
        """Length of the trace [s]."""
        return self.last_s - self.first_s

    @property
    def zones(self) -> tuple[str, ...]:
        """All zones, sorted."""
        return tuple(sorted({one.series.zone for one in self.stats}))

    @property
    def machine_types(self) -> tuple[str, ...]:
        """All machine types, sorted."""
        return tuple(sorted({one.series.machine_type for one in self.stats}))


@dataclass(slots=True)
class _SurveyPass:
    header: TraceHeader
    stats: dict[tuple[Content, Series], SeriesStats] = field(default_factory=dict)
    gaps: list[tuple[float, int, TraceGap]] = field(default_factory=list)
    gaps_count: int = 0
    events: int = 0
    newest_s: float = 0.0
    in_order: bool = True

    def take(self, line: int, event: Event) -> None:
        content = content_of(event)
        key = (content, event.series)
        stats = self.stats.get(key)
        if stats is None:
            stats = SeriesStats(content, event.series, first_s=event.at_s, last_s=event.at_s, line=line)
            self.stats[key] = stats
        self.in_order &= event.at_s >= self.newest_s
        self.newest_s = event.at_s
        if isinstance(event, TracedLifetime):
            _take_lifetime(stats, event)
        elif isinstance(event, CatalogueEntry):
            _take_listed(stats, event)
        else:
            self._look_for_gap(stats, event)
            _take_value(stats, event)
        if not isinstance(event, WatchedUntil):
            self.events += 1
            stats.events += 1
            stats.line = line

    def _look_for_gap(self, stats: SeriesStats, event: Event) -> None:
        silence_s = event.at_s - stats.last_s
        stats.silence_s = max(stats.silence_s, silence_s)
        if self.header.silence_s is None or silence_s <= self.header.silence_s:
            return
        self.gaps_count += 1
        gap = TraceGap(silence_s, stats.last_s, stats.line, stats.series)
        heapq.heappush(self.gaps, (silence_s, -self.gaps_count, gap))
        if len(self.gaps) > GAPS_MAX:
            heapq.heappop(self.gaps)


def _take_lifetime(stats: SeriesStats, lifetime: TracedLifetime) -> None:
    stats.set(lifetime.lifetime_s)
    stats.update_bounds()
    stats.weighted += lifetime.lifetime_s
    stats.watched_s += lifetime.lifetime_s
    stats.falls += not lifetime.censored
    stats.last_s = max(stats.last_s, lifetime.ended_s)


def _take_listed(stats: SeriesStats, listed: CatalogueEntry) -> None:
    stats.set(listed.spot_usd_per_hour if listed.spot_usd_per_hour is not None else listed.on_demand_usd_per_hour)
    stats.update_bounds()
    stats.weighted += stats.value or 0.0


def _take_value(stats: SeriesStats, event: Event) -> None:
    before = stats.value
    stats.hold_until(event.at_s)
    if isinstance(event, Price):
        stats.set(event.usd_per_hour)
    elif isinstance(event, Count):
        stats.falls += before is not None and event.count < before
        stats.set(float(event.count))
    elif not isinstance(event, WatchedUntil):
        stats.falls += not isinstance(event, MachineStarted)
        stats.set((before or 0.0) + (1.0 if isinstance(event, MachineStarted) else -1.0))


def survey_of(located: Iterable[LocatedEvent], header: TraceHeader) -> TraceSurvey:
    """Survey the events in one pass.

    Raises:
        Misuse: raised by the reader.
    """
    survey_pass = _SurveyPass(header)
    for line, event in located:
        survey_pass.take(line, event)
    for one in survey_pass.stats.values():
        one.update_bounds()
    order = {content: place for place, content in enumerate(Content)}
    stats = sorted(survey_pass.stats.values(), key=lambda one: (order[one.content], one.series))
    gaps = tuple(gap for _, _, gap in sorted(survey_pass.gaps, key=lambda one: (-one[0], one[1])))
    return TraceSurvey(header, tuple(stats), survey_pass.events, 0, survey_pass.in_order, gaps, survey_pass.gaps_count)


def survey(trace: Trace) -> TraceSurvey:
    """Survey a whole trace in one pass.

    Raises:
        Misuse: the trace is bad, or has no events.
    """
    checker = TraceChecker(trace.path, trace.header, strict=trace.strict)
    found = survey_of(trace.located(checker), trace.header)
    skipped = tuple((line, str(error)) for line, error in checker.skipped)
    return replace(found, repeated=checker.repeated, skipped=skipped, skipped_count=checker.skipped_count)
