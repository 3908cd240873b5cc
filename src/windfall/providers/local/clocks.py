"""The clock of the market's own processes: daemon and machines are programs, to which nobody could hand one in."""

from __future__ import annotations

import time

from windfall.terms import Instant, Seconds, WallTime


class SystemClock:
    """`ports.Clock` on the operating system's clocks."""

    def now(self) -> Instant:
        """Return CLOCK_MONOTONIC [s]."""
        return Instant(time.monotonic())

    def wall(self) -> WallTime:
        """Return UTC as this host believes it [s since 1970]."""
        return WallTime(time.time())

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread."""
        time.sleep(duration_s)
