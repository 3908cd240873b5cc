"""What every trace must keep, whatever its format: checked event by event as it streams past.

Kept in memory is the newest value of each series and who is alive, not what was.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path

from windfall.errors import Misuse
from windfall.simulation.traces.events import (
    Came,
    Clock,
    Content,
    Count,
    Event,
    Header,
    Life,
    Listed,
    Placed,
    Price,
    Read,
    Series,
    Until,
    Went,
    content_of,
)
from windfall.simulation.traces.files import fault

UTC_S = (946_684_800.0, 4_102_444_800.0)
"""Dates of traces: 2000 to 2100 [s since 1970]."""
SERIES_MAX = 200_000
ASIDE_SHARE_MAX = 0.2
"""If more of a table's rows than this share are bad, it is the table that is not understood."""
ASIDE_NAMED_MAX = 8
"""So many rows that were left out are named."""


class Checker:
    """Looks at one event after the other.

    Attributes:
        repeated: how many say again what was just said.
        aside_count: how many rows cannot be true and are left out, unless it is strict.
        aside: the first of them: line, and what is wrong with it.
    """

    def __init__(self, path: Path, header: Header, *, strict: bool = True) -> None:
        self.strict = strict
        self.aside_count = 0
        self.aside: list[tuple[int, Misuse]] = []
        self._path = path
        self._header = header
        self._newest: dict[tuple[Content, Series], Event] = {}
        self._alive: dict[str, int] = {}
        self._ends: list[tuple[float, str]] = []
        self._began_s = 0.0
        self.repeated = 0

    def passes(self, line: int, event: Event) -> bool:
        """Return whether an event says something new.

        Raises:
            Misuse: it cannot be true.
        """
        if isinstance(event, Listed):
            return True
        self._check_time(line, event.at_s)
        if isinstance(event, Life):
            self._check_life(line, event)
            return True
        if not self._check_order(line, event):
            return False
        if isinstance(event, (Came, Went)):
            self._check_presence(line, event)
        return True

    def put_aside(self, line: int, error: Misuse) -> None:
        """Leave a row out.

        Raises:
            Misuse: the row's own, where every row must be good.
        """
        if self.strict:
            raise error
        self.aside_count += 1
        if len(self.aside) < ASIDE_NAMED_MAX:
            self.aside.append((line, error))

    def judge(self, good: int) -> None:
        """Refuse a trace of which too much was left out: then it is not single rows that are wrong.

        Raises:
            Misuse: that of the first bad row.
        """
        if self.aside_count > ASIDE_SHARE_MAX * (good + self.aside_count):
            raise self.aside[0][1]

    def nothing(self) -> Misuse:
        """Return the error of a trace without events."""
        return fault(self._path, None, "there is nothing after its first line: a trace without events")

    def _check_time(self, line: int, at_s: float) -> None:
        if self._header.clock is Clock.UTC and not UTC_S[0] <= at_s <= UTC_S[1]:
            hint = "milliseconds?" if at_s > UTC_S[1] else "seconds since 1970 are wanted"
            raise fault(self._path, line, f"the time {at_s:.15g} s is not between the years 2000 and 2100: {hint}")
        if at_s < 0.0:
            raise fault(self._path, line, f"the time is {at_s:g} s: it cannot be negative")

    def _check_order(self, line: int, event: Price | Count | Came | Went | Until) -> bool:
        content = content_of(event)
        key = (content, event.series)
        newest = self._newest.get(key)
        if newest is None and len(self._newest) >= SERIES_MAX:
            raise fault(self._path, line, f"more than {SERIES_MAX} types and zones: are these columns types and zones?")
        if newest is not None and event.at_s < newest.at_s:
            early = f"{newest.at_s - event.at_s:g} s before the one above it of the same type and zone"
            raise fault(self._path, line, f"out of order: this is {early}; sort the file by time")
        if event == newest and not isinstance(event, (Came, Went)):
            self.repeated += 1
            return False
        self._newest[key] = event
        return True

    def _check_presence(self, line: int, event: Came | Went) -> None:
        if isinstance(event, Came):
            if event.machine in self._alive:
                since = self._alive[event.machine]
                wrong = f"{event.machine} comes, but is there since line {since}"
                raise fault(self._path, line, f"overlap: {wrong}")
            self._alive[event.machine] = line
        elif self._alive.pop(event.machine, None) is None:
            raise fault(self._path, line, f"{event.machine} goes, but is not there")

    def _check_life(self, line: int, life: Life) -> None:
        if life.ended_s < life.at_s:
            raise fault(
                self._path, line, f"this life is negative: it ends {life.at_s - life.ended_s:g} s before it begins"
            )
        if life.at_s < self._began_s:
            early = f"this life began {self._began_s - life.at_s:g} s before the one above it"
            raise fault(self._path, line, f"out of order: {early}; sort the file by beginning")
        self._began_s = life.at_s
        while self._ends and self._ends[0][0] <= life.at_s:
            del self._alive[heapq.heappop(self._ends)[1]]
        if life.machine and life.life_s > 0.0:
            if life.machine in self._alive:
                other = self._alive[life.machine]
                raise fault(
                    self._path, line, f"overlap: {life.machine} lives already, by line {other}; is a row repeated?"
                )
            self._alive[life.machine] = line
            heapq.heappush(self._ends, (life.ended_s, life.machine))


def checked(placed: Iterable[Read], checker: Checker) -> Iterator[Placed]:
    """Yield what passes.

    Raises:
        Misuse: something cannot be true: anything where it is strict, else more than single rows.
    """
    line, good = 0, 0
    for line, event in placed:
        if isinstance(event, Misuse):
            checker.put_aside(line, event)
            continue
        try:
            passes = checker.passes(line, event)
        except Misuse as error:
            checker.put_aside(line, error)
            continue
        good += 1
        if passes:
            yield line, event
    if not line:
        raise checker.nothing()
    checker.judge(good)
