"""From the cloud's words to instants of this machine: each change told once, clocks that differ or step, gaps."""

from __future__ import annotations

import pytest

from windfall.notices.metadata_http import NoticeDeduplicator, backoff_s, pause
from windfall.terms import Instant, Notice, NoticeLevel, Seconds, WallTime
from windfall.wire.notice_formats import CloudNotice

HINT, ANNOUNCED, WITHDRAWN = NoticeLevel.HINT, NoticeLevel.ANNOUNCED, NoticeLevel.WITHDRAWN
BOOT = 1_700_000_000.0


class HandClock:
    """A clock that is moved by hand; monotonic and wall time may part."""

    def __init__(self) -> None:
        self.monotonic, self.offset, self.slept = 500.0, BOOT, 0

    def now(self) -> Instant:
        return Instant(self.monotonic)

    def wall_time(self) -> WallTime:
        return WallTime(self.monotonic + self.offset)

    def sleep(self, duration_s: Seconds) -> None:
        self.monotonic += duration_s
        self.slept += 1


class Listener:
    """A `NoticeDeduplicator` on a hand clock with what it passed on."""

    def __init__(self, margin_s: float = 0.0) -> None:
        self.clock, self.heard = HandClock(), list[Notice]()
        self._told = NoticeDeduplicator("cloud", self.clock, Seconds(margin_s), self.heard.append)

    def hear(self, *said: CloudNotice, default_deadline: float = 0.0) -> list[tuple[NoticeLevel, str, float | None]]:
        """Observe a document; return what was passed on because of it."""
        before = len(self.heard)
        self._told.observe(said, default_deadline=Instant(default_deadline))
        return [(notice.level, notice.notice_id, notice.deadline) for notice in self.heard[before:]]

    def announced(self, in_s: float, notice_id: str = "a") -> CloudNotice:
        """An announcement that ends so many seconds from now by the wall clock."""
        return CloudNotice(ANNOUNCED, notice_id, WallTime(self.clock.wall_time() + in_s))


def test_a_deadline_is_monotonic_less_the_allowance() -> None:
    """Wall deadline 30 s ahead, allowance 1 s: monotonic deadline now + 29 s."""
    listener = Listener(margin_s=1.0)

    assert listener.hear(listener.announced(30)) == [(ANNOUNCED, "a", 529.0)]


def test_what_stands_is_told_once() -> None:
    """The same document again, seconds later, is no news."""
    listener = Listener()
    said = listener.announced(30)
    listener.hear(said)
    listener.clock.monotonic += 5

    assert listener.hear(said) == []


def test_a_deadline_that_moves_is_told_again() -> None:
    """A second more or less is a change of the document, and of the deadline."""
    listener = Listener()
    listener.hear(listener.announced(30))

    assert listener.hear(listener.announced(29)) == [(ANNOUNCED, "a", 529.0)]


def test_a_step_of_the_wall_clock_corrects_the_deadline() -> None:
    """A machine whose clock was 20 s slow learns, once the clock is set, that it has 20 s less."""
    listener = Listener()
    listener.clock.offset -= 20
    said = CloudNotice(ANNOUNCED, "a", WallTime(500.0 + BOOT + 30))
    assert listener.hear(said) == [(ANNOUNCED, "a", 550.0)]
    listener.clock.offset += 20

    assert listener.hear(said) == [(ANNOUNCED, "a", 530.0)]
    assert listener.hear(said) == []


@pytest.mark.parametrize("in_s", [-90_000, 90_000, 1e9])
def test_a_deadline_a_day_away_is_no_deadline(in_s: float) -> None:
    """If the two clocks differ by more than a day the announcement is worth a hint, not a false deadline."""
    listener = Listener()

    assert listener.hear(listener.announced(in_s)) == [(HINT, "a", None)]


def test_two_notices_in_one_document_are_two() -> None:
    """Each event is told, and withdrawn, by its own identity; the withdrawal comes before other news."""
    listener = Listener()
    first, second, third = listener.announced(30, "a"), listener.announced(60, "b"), listener.announced(90, "c")
    assert [entry[:2] for entry in listener.hear(first, second)] == [(ANNOUNCED, "a"), (ANNOUNCED, "b")]

    assert listener.hear(third, second) == [(WITHDRAWN, "a", None), (ANNOUNCED, "c", 590.0)]


def test_a_hint_may_become_an_announcement_but_not_the_reverse() -> None:
    """An event that was announced and can no longer be read is still announced."""
    listener = Listener()
    hint = CloudNotice(HINT, "a")
    assert listener.hear(hint) == [(HINT, "a", None)]
    assert listener.hear(listener.announced(30)) == [(ANNOUNCED, "a", 530.0)]
    assert listener.hear(hint) == []
    assert listener.hear() == [(WITHDRAWN, "a", None)]


def test_an_event_that_starts_early_moves_the_deadline_to_now() -> None:
    """Started before its time: the deadline is now; started at its time: nothing new."""
    listener = Listener()
    listener.hear(listener.announced(30))
    listener.clock.monotonic += 10
    started = CloudNotice(ANNOUNCED, "a")

    assert listener.hear(started, default_deadline=510.0) == [(ANNOUNCED, "a", 510.0)]
    assert listener.hear(started, default_deadline=515.0) == []


def test_waiting_after_failures_is_bounded() -> None:
    """Each failure doubles the wait, up to 5 s; a poll that is slower than that stays as it is."""
    assert [backoff_s(Seconds(1.0), failures) for failures in (0, 1, 2, 3, 50, 10**9)] == [1, 2, 4, 5, 5, 5]
    assert backoff_s(Seconds(8.0), 3) == 8


def test_a_pause_ends_when_stopped() -> None:
    """A long pause is slept in slices and left as soon as somebody asks to stop."""
    clock = HandClock()
    pause(clock, Instant(1000.0), lambda: clock.monotonic >= 501.0)

    assert clock.monotonic == pytest.approx(501.0, abs=0.06)
