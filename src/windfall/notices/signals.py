"""Notices that arrive as a signal: Slurm's `--signal`, Kubernetes' SIGTERM, a user's `kill`."""

from __future__ import annotations

import queue
from collections.abc import Callable

from windfall.terms import Instant, Notice, NoticeLevel, Seconds

SLICE_S = Seconds(0.05)
"""Longest wait without a check whether to stop [s]."""


class SignalNotices:
    """Turns the first signal into an announcement whose deadline is the time of the signal plus the grace period.

    Later signals are ignored, because their deadline would be later.

    Attributes:
        name: the `source` of its notices.
    """

    name = "signal"

    def __init__(self, *, grace_s: Seconds) -> None:
        """Prepare to watch.

        Args:
            grace_s: from the signal to SIGKILL: the shortest of scheduler, kubelet and launcher [s].
        """
        self._grace_s = grace_s
        self._signals: queue.SimpleQueue[Instant] = queue.SimpleQueue()

    def deliver_signal(self, at: Instant) -> None:
        """Report a signal at an instant; safe in a signal handler and from any thread."""
        self._signals.put(at)

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver the first signal's notice; see `ports.NoticeSource`."""
        announced = False
        while not stopped():
            try:
                at = self._signals.get(timeout=SLICE_S)
            except queue.Empty:
                continue
            if not announced:
                announced = True
                deliver(Notice(NoticeLevel.ANNOUNCED, self.name, "signal", Instant(at + self._grace_s)))

    def acknowledge(self, notice: Notice) -> None:
        """Do nothing: a signal cannot be acknowledged."""
