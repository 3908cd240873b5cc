"""What is in a trace: one pass, and a few numbers for each series."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from windfall.simulation.traces.checks import Checker
from windfall.simulation.traces.events import (
    Came,
    Content,
    Count,
    Event,
    Header,
    Life,
    Listed,
    Placed,
    Price,
    Series,
    Until,
    content_of,
)
from windfall.simulation.traces.reading import Trace

HOLES_MAX = 8
"""How many of the longest holes are kept."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A stretch in which nobody looked, or what was seen is missing: from the event at `line` on."""

    length_s: float
    at_s: float
    line: int
    series: Series


@dataclass(slots=True)
class Stats:
    """The numbers of one series.

    Attributes:
        events: prices, counts, comings and goings, lives, or lines of a list.
        first_s, last_s: its span; of lives: beginning of the first, end of the last.
        lowest, highest: of the values: USD/h, machines, or lives [s].
        falls: times that the count fell, or that a machine went, or lives that ended by a preemption.
        unknown: events without a value.
        watched_s: how long a value was known; of lives: their sum.
        weighted: sum of value x time; of lives: their sum.
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
        """Mean over time (of lives: over lives; of lists: over lines); None if no value was ever known."""
        if self.content in (Content.LIVES, Content.CATALOGUE):
            known = self.events - self.unknown
            return self.weighted / known if known else None
        return self.weighted / self.watched_s if self.watched_s > 0.0 else self.value

    @property
    def mttp_s(self) -> float | None:
        """Of lives: total life / preemptions, the mean if the hazard were constant [s]; None without a preemption."""
        return self.watched_s / self.falls if self.content is Content.LIVES and self.falls else None

    def pass_to(self, at_s: float) -> None:
        """Let the value hold until now; one that was replaced at once never was."""
        if at_s > self.last_s:
            if self.value is not None:
                self.weighted += self.value * (at_s - self.last_s)
                self.watched_s += at_s - self.last_s
            self.bound()
        self.last_s = at_s

    def bound(self) -> None:
        """Widen the bounds to the value."""
        if self.value is not None:
            self.lowest = self.value if self.lowest is None else min(self.lowest, self.value)
            self.highest = self.value if self.highest is None else max(self.highest, self.value)

    def see(self, value: float | None) -> None:
        """Take a new value."""
        self.value = value
        self.unknown += value is None


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in a trace.

    Attributes:
        repeated: events that said again what had just been said; they are left out.
        in_order: whether times never fall in the whole file, not only within each series.
        holes: the longest first.
        holes_count: how many there are in all.
        aside: the first rows that were left out because they cannot be true: line, what is wrong.
        aside_count: how many there are in all.
    """

    header: Header
    stats: tuple[Stats, ...]
    events: int
    repeated: int
    in_order: bool
    holes: tuple[Hole, ...]
    holes_count: int
    aside: tuple[tuple[int, str], ...] = ()
    aside_count: int = 0

    @property
    def first_s(self) -> float:
        """When the trace begins, on its own clock; 0 where that counts from its start."""
        return min(one.first_s for one in self.stats)

    @property
    def last_s(self) -> float:
        """When it ends."""
        return max(one.last_s for one in self.stats)

    @property
    def span_s(self) -> float:
        """How long it is."""
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
class _Pass:
    header: Header
    stats: dict[tuple[Content, Series], Stats] = field(default_factory=dict)
    holes: list[tuple[float, int, Hole]] = field(default_factory=list)
    holes_count: int = 0
    events: int = 0
    newest_s: float = 0.0
    in_order: bool = True

    def take(self, line: int, event: Event) -> None:
        content = content_of(event)
        key = (content, event.series)
        stats = self.stats.get(key)
        if stats is None:
            stats = Stats(content, event.series, first_s=event.at_s, last_s=event.at_s, line=line)
            self.stats[key] = stats
        self.in_order &= event.at_s >= self.newest_s
        self.newest_s = event.at_s
        if isinstance(event, Life):
            _take_life(stats, event)
        elif isinstance(event, Listed):
            _take_listed(stats, event)
        else:
            self._look_for_hole(stats, event)
            _take_value(stats, event)
        if not isinstance(event, Until):
            self.events += 1
            stats.events += 1
            stats.line = line

    def _look_for_hole(self, stats: Stats, event: Event) -> None:
        silence_s = event.at_s - stats.last_s
        stats.silence_s = max(stats.silence_s, silence_s)
        if self.header.silence_s is None or silence_s <= self.header.silence_s:
            return
        self.holes_count += 1
        hole = Hole(silence_s, stats.last_s, stats.line, stats.series)
        heapq.heappush(self.holes, (silence_s, -self.holes_count, hole))
        if len(self.holes) > HOLES_MAX:
            heapq.heappop(self.holes)


def _take_life(stats: Stats, life: Life) -> None:
    stats.see(life.life_s)
    stats.bound()
    stats.weighted += life.life_s
    stats.watched_s += life.life_s
    stats.falls += not life.censored
    stats.last_s = max(stats.last_s, life.ended_s)


def _take_listed(stats: Stats, listed: Listed) -> None:
    stats.see(listed.spot_usd_per_hour if listed.spot_usd_per_hour is not None else listed.on_demand_usd_per_hour)
    stats.bound()
    stats.weighted += stats.value or 0.0


def _take_value(stats: Stats, event: Event) -> None:
    before = stats.value
    stats.pass_to(event.at_s)
    if isinstance(event, Price):
        stats.see(event.usd_per_hour)
    elif isinstance(event, Count):
        stats.falls += before is not None and event.count < before
        stats.see(float(event.count))
    elif not isinstance(event, Until):
        stats.falls += not isinstance(event, Came)
        stats.see((before or 0.0) + (1.0 if isinstance(event, Came) else -1.0))


def survey_of(placed: Iterable[Placed], header: Header) -> Survey:
    """Look at all events once.

    Raises:
        Misuse: reading them does.
    """
    through = _Pass(header)
    for line, event in placed:
        through.take(line, event)
    for one in through.stats.values():
        one.bound()
    order = {content: place for place, content in enumerate(Content)}
    stats = sorted(through.stats.values(), key=lambda one: (order[one.content], one.series))
    holes = tuple(hole for _, _, hole in sorted(through.holes, key=lambda one: (-one[0], one[1])))
    return Survey(header, tuple(stats), through.events, 0, through.in_order, holes, through.holes_count)


def survey(trace: Trace) -> Survey:
    """Look at a whole trace once.

    Raises:
        Misuse: the trace is bad, or has nothing in it.
    """
    checker = Checker(trace.path, trace.header, strict=trace.strict)
    found = survey_of(trace.placed(checker), trace.header)
    aside = tuple((line, str(error)) for line, error in checker.aside)
    return dataclasses.replace(found, repeated=checker.repeated, aside=aside, aside_count=checker.aside_count)
