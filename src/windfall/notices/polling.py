"""What the metadata sources share: each change told once, deadlines on this machine's clock, waiting with a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windfall.notices.http import SLICE_S
from windfall.ports import Clock
from windfall.terms import Instant, Notice, NoticeLevel, Seconds
from windfall.wire.notices import CloudNotice

CLOCK_ERROR_S = Seconds(1.0)
"""Default allowance between the cloud's clock and this machine's; documents have whole seconds [s]."""
POLL_S = Seconds(1.0)
"""Default time between two looks [s]."""
BACKOFF_S_MAX = Seconds(5.0)
"""Longest wait after failed requests: a tenth of no notice, a sixth of the shortest (30 s) [s]."""
DEADLINE_FAR_S = Seconds(86_400.0)
"""A deadline further away than this, either way, says that one of the two clocks is wrong [s]."""
DEADLINE_MOVED_S = Seconds(0.5)
"""Two readings of one deadline that differ by less are the same deadline: documents have whole seconds [s]."""


class Told:
    """What one notice path has said so far; passes each change on once."""

    def __init__(self, source: str, clock: Clock, margin_s: Seconds, deliver: Callable[[Notice], None]) -> None:
        self._source, self._clock, self._margin_s, self._deliver = source, clock, margin_s, deliver
        self._standing: dict[str, Notice] = {}

    def observe(self, said: Sequence[CloudNotice], *, unspoken: Instant) -> None:
        """Compare a document with the one before and deliver what changed, withdrawals first.

        A deadline is translated anew each time, so that a step of the wall clock corrects it.

        Args:
            said: everything that the path says now; what it no longer says is withdrawn.
            unspoken: the deadline of an announcement that names none; of several readings the earliest counts.
        """
        now = {notice.notice_id: self._translate(notice, unspoken) for notice in said}
        for notice_id in [known for known in self._standing if known not in now]:
            del self._standing[notice_id]
            self._deliver(Notice(NoticeLevel.WITHDRAWN, self._source, notice_id))
        for notice_id, notice in now.items():
            if not _same(self._standing.get(notice_id), notice):
                self._standing[notice_id] = notice
                self._deliver(notice)

    def _translate(self, said: CloudNotice, unspoken: Instant) -> Notice:
        before = self._standing.get(said.notice_id)
        if said.level is NoticeLevel.HINT:
            return self._hint(said, before)
        if said.deadline is None:
            deadline = unspoken - self._margin_s
            if before is not None and before.deadline is not None:
                deadline = min(deadline, before.deadline)
            return self._announced(said, deadline)
        left_s = said.deadline - self._clock.wall()
        if abs(left_s) > DEADLINE_FAR_S:
            return self._hint(said, before)
        return self._announced(said, self._clock.now() + left_s - self._margin_s)

    def _announced(self, said: CloudNotice, deadline: float) -> Notice:
        return Notice(NoticeLevel.ANNOUNCED, self._source, said.notice_id, Instant(deadline))

    def _hint(self, said: CloudNotice, before: Notice | None) -> Notice:
        # An event that was announced and has become unreadable is still announced.
        return before or Notice(NoticeLevel.HINT, self._source, said.notice_id)


def _same(before: Notice | None, notice: Notice) -> bool:
    if before is None or before.level is not notice.level:
        return False
    if before.deadline is None or notice.deadline is None:
        return before.deadline == notice.deadline
    return abs(before.deadline - notice.deadline) < DEADLINE_MOVED_S


def pause(clock: Clock, until: Instant, stopped: Callable[[], bool]) -> None:
    """Sleep until an instant, or until stopped."""
    while not stopped() and (left_s := until - clock.now()) > 0:
        clock.sleep(Seconds(min(left_s, SLICE_S)))


def backoff_s(poll_s: Seconds, failures: int) -> Seconds:
    """Return how long after the last request the next one starts, after this many failures in a row [s]."""
    return Seconds(max(poll_s, min(BACKOFF_S_MAX, poll_s * 2 ** min(failures, 16))))
