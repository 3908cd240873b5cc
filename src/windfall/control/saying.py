"""The controller's log: sentences on standard error, which neither fail the work that says them nor fill a disk.

What is said again within a minute is counted, not written.  What a job, a machine or a stranger put into a sentence
can neither begin a line of its own nor speak to the terminal of whoever reads the log.
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
"""The same sentence is written at most so often [s]."""
LINES_MAX = 120
"""So many sentences are written in such a time at most, of any wording."""
_CHARACTERS_MAX = 16_384
"""Of one sentence."""


class Saying:
    """Takes sentences from any thread; never raises."""

    def __init__(self, clock: Clock, write: Callable[[str], None]) -> None:
        """Say nothing yet.

        Args:
            clock: for the rate.
            write: takes what is to be written; what it raises is forgotten.
        """
        self._clock, self._write = clock, write
        self._lock = threading.Lock()
        self._since = Instant(float("-inf"))
        self._times: dict[str, int] = {}
        self._unsaid = 0

    def __call__(self, sentence: str) -> None:
        """Say it; of several lines the later ones are indented."""
        with contextlib.suppress(Exception):  # a full disk, a pipe without a reader: the work matters, not its log
            text = plain(sentence[:_CHARACTERS_MAX], lines=True).replace("\n", "\n    ")
            for line in self._due(text):
                self._write(f"windfall: {line}\n")

    def _due(self, text: str) -> list[str]:
        with self._lock:
            lines = self._turn(self._clock.now())
            times = self._times[text] = self._times.get(text, 0) + 1
            if times > 1:
                return lines
            if len(self._times) <= LINES_MAX:
                return [*lines, text]
            del self._times[text]  # whoever floods the log with ever new words fills no memory either
            self._unsaid += 1
            return lines

    def _turn(self, now: Instant) -> list[str]:
        """Begin another minute when this one is over; return what is to be said of it."""
        if now < self._since + AGAIN_S:
            return []
        lines = [
            f"{text.splitlines()[0]} (and {times - 1} times more)" for text, times in self._times.items() if times > 1
        ]
        if self._unsaid:
            lines.append(f"{self._unsaid} further sentences were not written down")
        self._since, self._times, self._unsaid = now, {}, 0
        return lines


def to_stderr(text: str) -> None:
    """Write to standard error, which is the log."""
    sys.stderr.write(text)
    sys.stderr.flush()


class SayingHandler(logging.Handler):
    """Lets the packages that serve requests speak through the same log."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Say what was logged."""
        with contextlib.suppress(Exception):
            self._say(self.format(record))


def take_over_logging(say: Callable[[str], None]) -> None:
    """Let everything that this process logs go through `say`."""
    logging.basicConfig(handlers=[SayingHandler(say)], level=logging.WARNING, force=True)
