"""The controller's log: messages on standard error, which neither fail the work that logs them nor fill a disk.

A message repeated within a minute is counted, not written.  Text from a job, a machine or an unauthenticated client can
neither start a line of its own nor send control characters to a reader's terminal.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable

from windfall.ports import Clock
from windfall.spelling import plain
from windfall.terms import Instant, Seconds

AGAIN_S = Seconds(60.0)
"""Between two writes of the same message [s]."""
LINES_MAX = 120
"""Most different messages written within `AGAIN_S`."""
_CHARACTERS_MAX = 16_384
"""Length at which a message is cut."""


class ControllerLog:
    """Writes messages from any thread; never raises."""

    def __init__(self, clock: Clock, write: Callable[[str], None]) -> None:
        """Start with nothing logged.

        Args:
            clock: for the rate.
            write: receives the text; errors it raises are ignored.
        """
        self._clock, self._write = clock, write
        self._lock = threading.Lock()
        self._since = Instant(float("-inf"))
        self._times: dict[str, int] = {}
        self._dropped = 0

    def __call__(self, message: str) -> None:
        """Log a message; lines after its first are indented."""
        with contextlib.suppress(Exception):  # a full disk, a pipe without a reader: the work matters, not its log
            text = plain(message[:_CHARACTERS_MAX], lines=True).replace("\n", "\n    ")
            for line in self._due(text):
                self._write(f"windfall: {line}\n")

    def _due(self, text: str) -> list[str]:
        with self._lock:
            lines = self._start_minute(self._clock.now())
            times = self._times[text] = self._times.get(text, 0) + 1
            if times > 1:
                return lines
            if len(self._times) <= LINES_MAX:
                return [*lines, text]
            del self._times[text]  # a flood of different messages must not fill the memory either
            self._dropped += 1
            return lines

    def _start_minute(self, now: Instant) -> list[str]:
        """Start a new minute when this one is over; return the lines that sum it up."""
        if now < self._since + AGAIN_S:
            return []
        lines = [
            f"{text.splitlines()[0]} (repeated {times - 1} times)" for text, times in self._times.items() if times > 1
        ]
        if self._dropped:
            lines.append(f"{self._dropped} more messages were dropped")
        self._since, self._times, self._dropped = now, {}, 0
        return lines


def to_stderr(text: str) -> None:
    """Write to standard error, which is the log."""
    sys.stderr.write(text)
    sys.stderr.flush()


class ControllerLogHandler(logging.Handler):
    """Routes the log records of other packages into the controller's log."""

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record."""
        with contextlib.suppress(Exception):
            self._log(self.format(record))


def take_over_logging(log: Callable[[str], None]) -> None:
    """Route everything that this process logs through `log`."""
    logging.basicConfig(handlers=[ControllerLogHandler(log)], level=logging.WARNING, force=True)
