"""Virtual time: one heap of future events, and the clocks of machines that live in it.

The heap's order is (time, priority, sequence): equal times go by priority, then in the order of scheduling, so that a seed
gives one history (after SimPy's kernel: one heap, one counter).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from windfall.terms import Instant, Seconds, WallTime

WALL_START = 1_800_000_000.0
"""The true wall-clock time at virtual time 0 [s since 1970]."""


class Timeline:
    """Virtual time and its future events.

    An event may call `run`: time then advances inside that call, as for a process that is suspended amid a call.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []

    def at(self, delay_s: float, action: Callable[[], None], priority: int = 0) -> None:
        """Schedule an event `delay_s` [s] from now; at equal times the smaller priority goes first."""
        self.when(self.time + delay_s, action, priority)

    def when(self, time_s: float, action: Callable[[], None], priority: int = 0) -> None:
        """Schedule an event at exactly this time [s]; at equal times the smaller priority goes first."""
        assert time_s >= self.time, "events are not in the past"
        heapq.heappush(self._events, (time_s, priority, next(self._order), action))

    def next_at(self) -> float | None:
        """Return the time of the next event [s]; None without one."""
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Run the next event; return False if there is none."""
        if not self._events or self._events[0][0] == math.inf:
            return False
        self.time, _, _, action = heapq.heappop(self._events)
        action()
        return True

    def run(self, until: float) -> None:
        """Run all events up to this time [s]; time stays at the last of them."""
        events = self._events
        while events and events[0][0] <= until:
            self.time, _, _, action = heapq.heappop(events)
            action()

    def pass_time(self, duration_s: float) -> None:
        """Run all events of the next `duration_s` [s], and advance time by exactly this much."""
        until = self.time + duration_s
        self.run(until)
        self.time = max(self.time, until)


class CancellableEvent:
    """An event that can be cancelled; the timeline then keeps no reference to its action.

    Otherwise an event far ahead would keep alive its action, and all objects that it refers to.
    """

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        """Wrap an action; pass the event itself to `Timeline.when`."""
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        """Run the action, unless cancelled."""
        if self._action is not None:
            self._action()

    def cancel(self) -> None:
        """Cancel the event."""
        self._action = None


@dataclass
class VirtualClock:
    """`ports.Clock` of one machine in virtual time: a monotonic clock that drifts, a wall clock that may jump.

    Attributes:
        timeline: the time that it shows.
        monotonic_offset: its monotonic time at virtual time 0 [s].
        drift: how much too fast it runs [1].
        wall_offset: how far its wall clock is ahead of the truth [s].
    """

    timeline: Timeline
    monotonic_offset: float = 0.0
    drift: float = 0.0
    wall_offset: float = 0.0

    def now(self) -> Instant:
        """Return this machine's monotonic time [s]."""
        return Instant(self.monotonic_offset + self.timeline.time * (1.0 + self.drift))

    def wall_time(self) -> WallTime:
        """Return UTC by this machine's clock [s since 1970]."""
        return WallTime(WALL_START + self.timeline.time + self.wall_offset)

    def sleep(self, duration_s: Seconds) -> None:
        """Run all events that action meanwhile."""
        self.timeline.pass_time(duration_s / (1.0 + self.drift))
