"""Notices that arrive as a signal: Slurm's `--signal`, Kubernetes' SIGTERM, a user's `kill`."""

from __future__ import annotations

import queue
from collections.abc import Callable

from windfall.notices.http import SLICE_S
from windfall.terms import Instant, Notice, NoticeLevel, Seconds


class SignalNotices:
    """Turns the first signal into an announcement whose deadline is the signal's moment plus the grace period.

    Later signals announce nothing new: their deadline would be later than the one that stands.

    Attributes:
        name: the `source` of its notices.
    """

    name = "signal"

    def __init__(self, *, grace_s: Seconds) -> None:
        """Prepare to watch.

        Args:
            grace_s: from the signal to SIGKILL: the smallest of scheduler, kubelet and launcher [s].
        """
        self._grace_s = grace_s
        self._signals: queue.SimpleQueue[Instant] = queue.SimpleQueue()

    def deliver_signal(self, at: Instant) -> None:
        """Say that a signal arrived at an instant; may be called inside a signal handler and from any thread."""
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
        """Do nothing: nobody listens behind a signal."""
