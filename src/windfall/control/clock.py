"""The journal clock: the time of a job's driver."""

from __future__ import annotations

from windfall.events import Row
from windfall.ports import Clock
from windfall.terms import Instant


class JournalClock:
    """Unix seconds at a job's first row, from then on the pace of the monotonic clock; restarts never turn it back.

    A wall clock that jumps while the controller lives changes nothing.  Over a restart the wall clock alone can tell how
    long it was away; if it says less than nothing, nothing passed.
    """

    def __init__(self, clock: Clock, last: Row | None) -> None:
        self._clock = clock
        self._began = clock.now()
        wall = clock.wall()
        self._base = wall if last is None else last.at + max(0.0, wall - last.wall)

    def now(self) -> Instant:
        """Return the present instant of the journal."""
        return Instant(self._base + (self._clock.now() - self._began))
