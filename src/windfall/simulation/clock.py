"""Virtual time: one heap of everything that will happen, and the clocks of machines that live in it.

The heap's order is (time, priority, sequence): equal times go by priority, then in the order in which they were asked
for, so that a seed is one history (after SimPy's kernel: one heap, one counter).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from windfall.terms import Instant, Seconds, WallTime

WALL_START = 1_800_000_000.0
"""What an honest wall clock says when virtual time is 0 [s since 1970]."""


class Timeline:
    """Virtual time and what will happen in it.

    `run` may be called from inside something that happens: then time goes on under its feet, as it does for a process
    that is stopped amid a call.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []

    def at(self, delay_s: float, happen: Callable[[], None], priority: int = 0) -> None:
        """Let something happen `delay_s` [s] from now; at equal times the smaller priority goes first."""
        self.when(self.time + delay_s, happen, priority)

    def when(self, time_s: float, happen: Callable[[], None], priority: int = 0) -> None:
        """Let something happen at a moment [s], to the last bit of it; at equal times the smaller priority goes first."""
        assert time_s >= self.time, "nothing happens in the past"
        heapq.heappush(self._events, (time_s, priority, next(self._order), happen))

    def next_at(self) -> float | None:
        """Return when something happens next [s], None if nothing is left."""
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Let the next thing happen; return False if nothing is left that ever will."""
        if not self._events or self._events[0][0] == math.inf:
            return False
        self.time, _, _, happen = heapq.heappop(self._events)
        happen()
        return True

    def run(self, until: float) -> None:
        """Let everything happen up to this time [s], or until nothing is left; time stays at what happened last."""
        events = self._events
        while events and events[0][0] <= until:
            self.time, _, _, happen = heapq.heappop(events)
            happen()

    def pass_time(self, duration_s: float) -> None:
        """Let everything of the next `duration_s` [s] happen; time is then exactly so much later."""
        until = self.time + duration_s
        self.run(until)
        self.time = max(self.time, until)


class Appointment:
    """Something that will happen on a timeline unless it is called off: from then on the timeline keeps nothing of it.

    An event far ahead would otherwise keep alive whoever waits for it, and all that it knows.
    """

    __slots__ = ("_happen",)

    def __init__(self, happen: Callable[[], None]) -> None:
        """Make it; `Timeline.when` is given it as what happens."""
        self._happen: Callable[[], None] | None = happen

    def __call__(self) -> None:
        """Let it happen, if it was not called off."""
        if self._happen is not None:
            self._happen()

    def call_off(self) -> None:
        """Let it not happen."""
        self._happen = None


@dataclass
class VirtualClock:
    """`ports.Clock` of one machine in virtual time: a monotonic clock that drifts, a wall clock that may jump.

    Attributes:
        timeline: whose time it shows.
        monotonic_offset: what its monotonic clock showed at virtual time 0 [s].
        drift: how much too fast it goes [1].
        wall_offset: how far its wall clock is ahead of the truth [s].
    """

    timeline: Timeline
    monotonic_offset: float = 0.0
    drift: float = 0.0
    wall_offset: float = 0.0

    def now(self) -> Instant:
        """Return this machine's monotonic time [s]."""
        return Instant(self.monotonic_offset + self.timeline.time * (1.0 + self.drift))

    def wall(self) -> WallTime:
        """Return UTC as this machine believes it [s since 1970]."""
        return WallTime(WALL_START + self.timeline.time + self.wall_offset)

    def sleep(self, duration_s: Seconds) -> None:
        """Let everything happen that happens meanwhile."""
        self.timeline.pass_time(duration_s / (1.0 + self.drift))
