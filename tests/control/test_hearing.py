"""What counts as news of a machine, and who is silent."""

from __future__ import annotations

import pytest

from tests.core.fleet_story import Fleet
from windfall.control.job_loop import LivenessTracker
from windfall.fleet import MachineSilent, MachineStatus, Report
from windfall.structs import replace
from windfall.terms import Instant, NoticeLevel, Outcome, Seconds, Step

SILENT_S = Seconds(20.0)


def report(sequence: int, status: MachineStatus = MachineStatus.TRAINING, **more: object) -> Report:
    return Report("m1", sequence, "life", status, **more)  # type: ignore[arg-type]


def receive(liveness: LivenessTracker, report: Report, now: float, channel: str = "direct") -> int:
    """How many facts a report makes; the journal clock is a thousand ahead."""
    return len(liveness.receive([report], channel, Instant(now), Instant(now + 1000.0)))


def silent(liveness: LivenessTracker, *nows: float) -> list[float]:
    """At which of these instants the machine is reported as silent."""
    return [now for now in nows if liveness.silent(["m1"], Instant(now))]


def every(first: float, last: float, step: float = 1.0) -> list[float]:
    return [first + step * number for number in range(int((last - first) / step) + 1)]


def test_only_what_a_driver_decides_by_is_news() -> None:
    """Steps grow all the time; another status, exit code or notice is a fact."""
    liveness = LivenessTracker(SILENT_S)
    assert receive(liveness, report(1, step=Step(1)), 0.0) == 1
    assert receive(liveness, report(2, step=Step(2)), 1.0) == 0
    assert receive(liveness, report(3, MachineStatus.WAITING), 2.0) == 1
    assert receive(liveness, report(4, MachineStatus.WAITING, exit_code=75), 3.0) == 1


def test_the_time_of_a_step_is_news_to_a_policy_that_decides_by_it() -> None:
    """When it is first known, and when it has changed by more than it varies; to others it never is."""
    times = (None, 10.0, 10.5, 10.9, 12.0)

    def news(*, step_times: bool) -> list[int]:
        liveness = LivenessTracker(SILENT_S, step_times=step_times)
        return [receive(liveness, report(n, step_s=step_s), float(n)) for n, step_s in enumerate(times, 1)]

    assert news(step_times=True) == [1, 1, 0, 0, 1]
    assert news(step_times=False) == [1, 0, 0, 0, 0]


@pytest.mark.trial("B4")
def test_a_script_that_does_not_call_windfall_is_news() -> None:
    """When it is reported, and when it no longer holds: the job's message says it."""
    liveness = LivenessTracker(SILENT_S)
    assert receive(liveness, report(1), 0.0) == 1
    assert receive(liveness, report(2, sdk_inactive=True), 1.0) == 1
    assert receive(liveness, report(3, sdk_inactive=True), 2.0) == 0
    assert receive(liveness, report(4), 3.0) == 1


def test_an_announced_end_is_put_on_the_journal_clock_and_is_news_when_it_moves() -> None:
    """Seconds left that run down with the clock are the same end."""
    liveness = LivenessTracker(SILENT_S)
    (fact,) = liveness.receive([report(1, level=NoticeLevel.ANNOUNCED, preemption_in_s=120.0)], "direct", 5.0, 1005.0)  # type: ignore[arg-type]
    assert fact.preemption_at == 1125.0
    assert receive(liveness, report(2, level=NoticeLevel.ANNOUNCED, preemption_in_s=110.0), 15.0) == 0
    assert receive(liveness, report(3, level=NoticeLevel.ANNOUNCED, preemption_in_s=60.0), 16.0) == 1
    assert receive(liveness, report(4, level=NoticeLevel.WITHDRAWN), 17.0) == 1


def test_silence_is_reported_once_it_has_lasted() -> None:
    """By the monotonic clock, from the newest report on any channel."""
    liveness = LivenessTracker(SILENT_S)
    silent(liveness, 0.0)
    receive(liveness, report(1), 1.0)
    receive(liveness, report(2), 9.0, "mailbox")
    assert silent(liveness, *every(10.0, 35.0)) == [30.0]


def test_an_old_report_that_comes_the_slower_way_is_no_sign_of_life() -> None:
    """Neither an older one nor the very same: the machine may have died since it wrote them."""
    liveness = LivenessTracker(SILENT_S)
    receive(liveness, report(7), 0.0)
    assert silent(liveness, *every(0.0, 21.0)) == [21.0]
    assert receive(liveness, report(6), 22.0, "mailbox") == 0
    assert receive(liveness, report(7), 23.0, "mailbox") == 0
    assert receive(liveness, report(8), 24.0, "mailbox") == 1


def test_lasting_silence_is_reported_again() -> None:
    """What the driver counts as a sign of life meanwhile must not keep a machine alive for ever."""
    liveness = LivenessTracker(SILENT_S)
    receive(liveness, report(1), 0.0)
    assert silent(liveness, *every(0.0, 65.0)) == [21.0, 42.0, 63.0]


def test_a_machine_that_hangs_after_its_last_save_is_given_back() -> None:
    """It falls silent, then a late poll of the run's log shows its last save, which helps it only for a while."""
    job = Fleet().trains().run(holder="m1", step=5)
    liveness = LivenessTracker(SILENT_S)
    start = job.now
    receive(liveness, replace(report(1), machine_id="m1"), start)
    released: list[str] = []
    for now in every(start, start + 400.0, 2.0):
        facts: list[MachineSilent] = liveness.silent(["m1"], Instant(now))
        job.happens(*facts, after=now - job.now)
        released += job.released
        if now == start + 30.0:
            job.run(holder="m1", step=9)
            assert job.state.units["m1"].silent_since is None
    assert released == ["m1"]
    assert job.state.progress is not None
    assert job.state.progress.progress.outcome is Outcome.RUNNING


def test_a_paused_controller_reports_no_machine_as_silent() -> None:
    """A minute without polls proves nothing about machines; the next seconds may."""
    liveness = LivenessTracker(SILENT_S)
    receive(liveness, report(1), 0.0)
    assert silent(liveness, *every(0.0, 5.0), 65.0, *every(66.0, 90.0)) == [86.0]


def test_what_is_not_expected_any_more_is_forgotten() -> None:
    """Machines come and go for months; nothing is kept of them."""
    liveness = LivenessTracker(SILENT_S)
    for number in range(50):
        liveness.receive([replace(report(1), machine_id=f"m{number}")], "direct", Instant(0.0), Instant(0.0))
    for now in every(0.0, 30.0):
        liveness.silent([], Instant(now))
    assert liveness._contacts == {}
