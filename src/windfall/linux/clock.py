"""The operating system's clocks as `ports.Clock`."""

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

    def wall_time(self) -> WallTime:
        """Return the operating system's UTC [s since 1970]."""
        return WallTime(time.time())

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread."""
        time.sleep(duration_s)


class StoppableClock(SystemClock):
    """A clock whose pauses `stop` ends with an error, until `disarm`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._reason: WindfallError | None = None
        self._armed = True

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread.

        Raises:
            WindfallError: the first error given to `stop`, unless `disarm` was called.
        """
        if not self._armed:
            time.sleep(duration_s)
        elif self._stopped.wait(max(duration_s, 0.0)):
            assert self._reason is not None, "it was stopped with a reason"
            raise self._reason

    def stop(self, reason: WindfallError) -> bool:
        """End all pauses, current and future, with an error; after `disarm` do nothing and return False."""
        with self._lock:
            if self._armed:
                self._reason = self._reason or reason
                self._stopped.set()
            return self._armed

    def disarm(self) -> WindfallError | None:
        """Make all later pauses uninterruptible; return the error given to `stop` before, if any."""
        with self._lock:
            self._armed = False
            return self._reason
