"""The machine's own clock: the one place in this room that reads time."""

from __future__ import annotations

import threading
import time

from windfall.errors import WindfallError
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


class StoppableClock(SystemClock):
    """A clock whose pauses somebody can end: by `stop`, until `go_on` says that from now on nothing may be broken off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._why: WindfallError | None = None
        self._stoppable = True

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread.

        Raises:
            WindfallError: what `stop` was given, while pauses can be ended.
        """
        if not self._stoppable:
            time.sleep(duration_s)
        elif self._stopped.wait(max(duration_s, 0.0)):
            assert self._why is not None, "it was stopped with a reason"
            raise self._why

    def stop(self, why: WindfallError) -> bool:
        """End all pauses with an error; False, doing nothing, once they can no longer be ended."""
        with self._lock:
            if self._stoppable:
                self._why = self._why or why
                self._stopped.set()
            return self._stoppable

    def go_on(self) -> WindfallError | None:
        """Let no pause be ended any more; return what `stop` was given before, None for nothing."""
        with self._lock:
            self._stoppable = False
            return self._why
