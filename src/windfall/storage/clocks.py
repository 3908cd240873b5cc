"""The machine's own clock: the one place in this room that reads time."""

from __future__ import annotations

import time

from windfall.terms import Instant, Seconds, WallTime


class SystemClock:
    """`ports.Clock` on the operating system's clocks."""

    def now(self) -> Instant:
        """Return CLOCK_MONOTONIC, which all processes of one boot share [s]."""
        return Instant(time.monotonic())

    def wall(self) -> WallTime:
        """Return UTC as the operating system believes it [s since 1970]."""
        return WallTime(time.time())

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread."""
        time.sleep(duration_s)
