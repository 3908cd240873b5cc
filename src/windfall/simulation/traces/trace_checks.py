"""Rules that every trace must satisfy, in any format, checked event by event in one pass.

It keeps the newest value of each series and the running machines in memory, not the history.

Check the unit of a trace's times on its first rows, before the rest is used.

Machines and prices of a market change every few minutes to hours; times that would make them change every few milliseconds,
or every few weeks, are in another unit.  The bounds are wide, so that they refuse no real trace: of the public traces used
to test them, the median step lies between 60 s and 1.5 h.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from windfall.errors import Misuse
from windfall.simulation.traces.trace_events import (
    CatalogueEntry,
    ClockKind,
    Content,
    Count,
    Event,
    LocatedEvent,
    MachineEnded,
    MachineStarted,
    ParsedLine,
    Price,
    Series,
    TracedLifetime,
    TraceHeader,
    WatchedUntil,
    content_of,
)
from windfall.simulation.traces.trace_files import fault
from windfall.units import duration_text

UTC_S = (946_684_800.0, 4_102_444_800.0)
"""Dates of traces: 2000 to 2100 [s since 1970]."""
SERIES_MAX = 200_000
SKIPPED_SHARE_MAX = 0.2
"""With a larger share of bad rows, the table itself is not understood."""
SKIPPED_NAMED_MAX = 8
"""How many skipped rows are named."""


class TraceChecker:
    """Checks one event after the other.

    Attributes:
        repeated: how many events repeat the one before.
        skipped_count: how many impossible rows were skipped, unless it is strict.
        skipped: the first of them: line, and what is wrong with it.
    """

    def __init__(self, path: Path, header: TraceHeader, *, strict: bool = True) -> None:
        self.strict = strict
        self.skipped_count = 0
        self.skipped: list[tuple[int, Misuse]] = []
        self._path = path
        self._header = header
        self._newest: dict[tuple[Content, Series], Event] = {}
        self._running: dict[str, int] = {}
        self._ends: list[tuple[float, str]] = []
        self._started_s = 0.0
        self.repeated = 0

    def passes(self, line: int, event: Event) -> bool:
        """Return whether an event is new.

        Raises:
            Misuse: it is impossible.
        """
        if isinstance(event, CatalogueEntry):
            return True
        self._check_time(line, event.at_s)
        if isinstance(event, TracedLifetime):
            self._check_lifetime(line, event)
            return True
        if not self._check_order(line, event):
            return False
        if isinstance(event, (MachineStarted, MachineEnded)):
            self._check_presence(line, event)
        return True

    def skip(self, line: int, error: Misuse) -> None:
        """Skip a row.

        Raises:
            Misuse: the row's own error, if it is strict.
        """
        if self.strict:
            raise error
        self.skipped_count += 1
        if len(self.skipped) < SKIPPED_NAMED_MAX:
            self.skipped.append((line, error))

    def judge(self, good: int) -> None:
        """Refuse a trace with too many skipped rows.

        Raises:
            Misuse: the error of the first bad row.
        """
        if self.skipped_count > SKIPPED_SHARE_MAX * (good + self.skipped_count):
            raise self.skipped[0][1]

    def no_events(self) -> Misuse:
        """Return the error of a trace without events."""
        return fault(self._path, None, "the trace has no events: there is nothing after its first line")

    def _check_time(self, line: int, at_s: float) -> None:
        if self._header.clock is ClockKind.UTC and not UTC_S[0] <= at_s <= UTC_S[1]:
            hint = "is it in milliseconds?" if at_s > UTC_S[1] else "give seconds since 1970"
            raise fault(self._path, line, f"the time {at_s:.15g} s is not between the years 2000 and 2100: {hint}")
        if at_s < 0.0:
            raise fault(self._path, line, f"the time is {at_s:g} s: it cannot be negative")

    def _check_order(self, line: int, event: Price | Count | MachineStarted | MachineEnded | WatchedUntil) -> bool:
        content = content_of(event)
        key = (content, event.series)
        newest = self._newest.get(key)
        if newest is None and len(self._newest) >= SERIES_MAX:
            raise fault(
                self._path, line, f"more than {SERIES_MAX} types and zones: are these columns really types and zones?"
            )
        if newest is not None and event.at_s < newest.at_s:
            early = f"{newest.at_s - event.at_s:g} s before the one above of the same type and zone"
            raise fault(self._path, line, f"wrong order: this event is {early}; sort the file by time")
        if event == newest and not isinstance(event, (MachineStarted, MachineEnded)):
            self.repeated += 1
            return False
        self._newest[key] = event
        return True

    def _check_presence(self, line: int, event: MachineStarted | MachineEnded) -> None:
        if isinstance(event, MachineStarted):
            if event.machine in self._running:
                since = self._running[event.machine]
                raise fault(self._path, line, f"overlap: {event.machine} started already, in line {since}")
            self._running[event.machine] = line
        elif self._running.pop(event.machine, None) is None:
            raise fault(self._path, line, f"{event.machine} ends here, but has not started")

    def _check_lifetime(self, line: int, lifetime: TracedLifetime) -> None:
        if lifetime.ended_s < lifetime.at_s:
            raise fault(
                self._path,
                line,
                f"negative lifetime: it ends {lifetime.at_s - lifetime.ended_s:g} s before it starts",
            )
        if lifetime.at_s < self._started_s:
            early = f"this lifetime starts {self._started_s - lifetime.at_s:g} s before the one above"
            raise fault(self._path, line, f"wrong order: {early}; sort the file by start")
        self._started_s = lifetime.at_s
        while self._ends and self._ends[0][0] <= lifetime.at_s:
            del self._running[heapq.heappop(self._ends)[1]]
        if lifetime.machine and lifetime.lifetime_s > 0.0:
            if lifetime.machine in self._running:
                other = self._running[lifetime.machine]
                raise fault(
                    self._path,
                    line,
                    f"overlap: {lifetime.machine} is already running, by line {other}; is a row repeated?",
                )
            self._running[lifetime.machine] = line
            heapq.heappush(self._ends, (lifetime.ended_s, lifetime.machine))


def checked(located: Iterable[ParsedLine], checker: TraceChecker) -> Iterator[LocatedEvent]:
    """Yield the events that pass.

    Raises:
        Misuse: an event is impossible and the checker is strict, or too many are.
    """
    line, good = 0, 0
    for line, event in located:
        if isinstance(event, Misuse):
            checker.skip(line, event)
            continue
        try:
            passes = checker.passes(line, event)
        except Misuse as error:
            checker.skip(line, error)
            continue
        good += 1
        if passes:
            yield line, event
    if not line:
        raise checker.no_events()
    checker.judge(good)


UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LIKELY_UNITS = ("ms", "s", "h")
_Row = TypeVar("_Row")
HEAD_ROWS = 512
"""How many rows are checked."""
STEP_S = (0.9, 3 * 86_400.0)
_LIKELY_STEP_S = (1.0, 6 * 3600.0)
LIFETIME_S = (20.0, 45 * 86_400.0)
_STEPS_MIN = 5
"""With fewer numbers there is no check."""


def unit_s(unit: str | None) -> float | None:
    """Return the length of a unit [s].

    Raises:
        Misuse: the unit is unknown.
    """
    if unit is None or unit in UNITS_S:
        return None if unit is None else UNITS_S[unit]
    raise Misuse(f"--unit: {unit!r} is not a unit of time; choose one of {', '.join(UNITS_S)}")


def infer_unit(times: list[float], path: Path) -> tuple[str, str]:
    """Infer the unit of unlabelled times from their median step; return it with a note for the user.

    Args:
        times: of the first rows, in the unknown unit.
        path: of the trace, for the message.

    Raises:
        Misuse: no unit fits, or several do.
    """
    middle = _median_step(times)
    fitting = [
        unit
        for unit in _LIKELY_UNITS
        if middle is not None and _LIKELY_STEP_S[0] <= middle * UNITS_S[unit] <= _LIKELY_STEP_S[1]
    ]
    if len(fitting) != 1 or middle is None:
        raise fault(path, None, "the unit of its times is unknown: give --unit ms, s or h")
    step = duration_text(middle * UNITS_S[fitting[0]])
    return fitting[0], f"times read as {fitting[0]}, which makes the median step {step}"


def check_steps(times: list[float], unit: str, path: Path) -> None:
    """Refuse times whose median step is absurd in their unit.

    Raises:
        Misuse: it is absurd; the message names a unit that fits.
    """
    middle = _median_step(times)
    if middle is not None:
        _check_holder(middle, unit, STEP_S, "step between times", path)


def check_lifetimes(lifetimes: list[float], unit: str, path: Path) -> None:
    """Refuse lifetimes whose median is absurd in their unit.

    Raises:
        Misuse: it is absurd; the message names a unit that fits.
    """
    if len(lifetimes) >= _STEPS_MIN:
        _check_holder(statistics.median(lifetimes), unit, LIFETIME_S, "lifetime", path)


def _median_step(times: list[float]) -> float | None:
    steps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return statistics.median(steps) if len(steps) >= _STEPS_MIN else None


def _check_holder(middle: float, unit: str, bounds_s: tuple[float, float], what: str, path: Path) -> None:
    least_s, most_s = bounds_s
    if least_s <= middle * UNITS_S[unit] <= most_s:
        return
    other = next((one for one in _LIKELY_UNITS if least_s <= middle * UNITS_S[one] <= most_s), None)
    advice = f"if the times are in {other}, give --unit {other}" if other else "check the unit"
    shown = "years" if middle * UNITS_S[unit] > 1e8 else duration_text(middle * UNITS_S[unit])
    raise fault(path, None, f"the median {what} is {middle:g} {unit} ({shown}): {advice}")


def after_head(rows: Iterable[_Row]) -> tuple[list[_Row], Iterator[_Row]]:
    """Return the first rows, and an iterator over all rows."""
    stream = iter(rows)
    first = list(itertools.islice(stream, HEAD_ROWS))
    return first, itertools.chain(first, stream)
