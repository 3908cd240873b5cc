"""How jobs end: done, stopped, over budget, out of time, failed; and how they resume."""

from __future__ import annotations

import pytest

from tests.core.fleet_story import FIRM, LARGE, Fleet
from tests.support.progress import observed
from windfall import fleet
from windfall.core import driver
from windfall.core.replay import replay
from windfall.events import LogMessage
from windfall.fleet import DesiredState, Event, JobPhase, MachineStatus
from windfall.jobs import Checkpointing, Objective, Use
from windfall.market import Charge, MachineEndCause, MachineLifecycle
from windfall.structs import replace
from windfall.terms import JobProgress, Outcome, Term, Unit, WorkDone

QUICK = Checkpointing(save_timeout_s=60.0)


def test_stop_saves_then_releases_and_resume_continues() -> None:
    """The run and the machine are released, the job is stopped; `resume` buys again."""
    job = Fleet().trains().run(holder="m1", step=5)
    job.happens(fleet.JobStopRequested(False, "ada"))
    assert job.of(fleet.StopRun) == [fleet.StopRun(False, "stopped by ada")]
    assert job.released == []
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.WAIT
    assert job.message.startswith("stopped by ada; waiting for its last save, up to ")

    job.run(Outcome.WAITING, step=7, term=1)
    assert job.released == ["m1"]
    job.ends("m1", cause=MachineEndCause.RELEASED, after=2.0)
    assert [(command.phase, command.exit_code) for command in job.of(fleet.SettleJob)] == [(JobPhase.STOPPED, 6)]
    assert job.passes(10_000.0).orders == []
    assert (job.state.resumed, driver.summary(job.state, job.now).finish_s) == (False, None)

    job.happens(fleet.JobResumeRequested("ada"))
    assert driver.summary(job.state, job.now).resumed
    assert len(job.orders) == 1
    assert job.phase is JobPhase.BUYING
    assert (job.state.machine_failures, job.state.failed_to_start, job.state.losses_without_progress) == (0, 0, 0)
    assert replay(job.rows) == []


def test_a_stop_is_not_held_up_for_ever() -> None:
    """The wait for a run that does not release ends shortly after its save timeout."""
    job = Fleet(checkpointing=QUICK).trains().run(holder="m1")
    job.happens(fleet.JobStopRequested(False, "ada"))
    assert job.passes(89.0).released == []
    assert job.passes(2.0).released == ["m1"]


def test_stop_now_does_not_wait_for_a_save() -> None:
    """At most seconds for the run's release."""
    job = Fleet().trains().run(holder="m1")
    job.happens(fleet.JobStopRequested(True, "ada"))
    assert job.of(fleet.StopRun) == [fleet.StopRun(True, "stopped by ada")]
    assert job.passes(16.0).released == ["m1"]


def test_an_old_log_entry_does_not_cut_the_save_short() -> None:
    """A log entry from before the machine acquired the run is not a release."""
    job = Fleet().trains().run(Outcome.WAITING)
    job.happens(fleet.JobStopRequested(False, "ada"))
    assert job.released == []


def test_resume_while_stopping_continues_after_the_stop() -> None:
    """The request is kept."""
    job = Fleet().trains().run(holder="m1")
    job.happens(fleet.JobStopRequested(False, "ada")).happens(fleet.JobResumeRequested("ada"))
    job.run(Outcome.WAITING, step=3)
    job.ends("m1", cause=MachineEndCause.RELEASED)
    assert job.of(fleet.SettleJob) == []
    assert len(job.orders or job.happens().orders) == 1


def test_a_job_that_gets_done_while_it_stops_is_done() -> None:
    """The last step was the last of all."""
    job = Fleet().trains().run(holder="m1")
    job.happens(fleet.JobStopRequested(False, "ada"))
    job.run(Outcome.DONE, step=9).ends("m1", cause=MachineEndCause.RELEASED)
    assert job.phase is JobPhase.DONE


def test_done_releases_all_and_settles_when_they_are_gone() -> None:
    """Incumbents, successors, starting machines: nothing is left that costs."""
    job = Fleet(nodes=3).trains().says("m1", left=120.0)
    job.answers(job.orders[0])
    job.run(Outcome.DONE)
    assert sorted(job.released) == ["m1", "m2", "m3", "m4"]
    job.ends("m1", "m2", "m3", cause=MachineEndCause.RELEASED)
    assert job.of(fleet.SettleJob) == []
    job.ends("m4", cause=MachineEndCause.RELEASED)
    assert len(job.of(fleet.SettleJob)) == 1


def test_a_run_that_is_done_already_costs_nothing() -> None:
    """Submitted over a finished run: no machine is bought."""
    job = Fleet(known=False)
    job.happens(fleet.OffersObserved((LARGE,)), fleet.ListingCompleted("local"), observed(Outcome.DONE, 1, None, 9, 0))
    assert job.orders == []
    assert job.phase is JobPhase.DONE


def test_a_crash_loop_stops_the_spending() -> None:
    """The script failed as often as allowed: everything is released, exit code 1."""
    job = Fleet().trains().run(holder="m1", failures=2)
    assert job.released == []
    job.run(holder="m1", failures=3)
    assert job.released == ["m1"]
    assert [command.event for command in job.of(fleet.NotifyUser)] == [Event.FAILED]
    job.ends("m1", cause=MachineEndCause.RELEASED)
    assert job.orders == []
    assert [(command.phase, command.exit_code) for command in job.of(fleet.SettleJob)] == [(JobPhase.FAILED, 1)]

    job.happens(fleet.JobResumeRequested("ada"))
    assert len(job.orders) == 1


def test_the_reason_of_the_last_failure_is_in_the_jobs_message() -> None:
    """Where the runtime tells it; a job may fail before anything works, and then nothing else says why."""
    job = Fleet().trains()
    nothing = WorkDone(0.0, Unit.STEP)
    progress = JobProgress(nothing, nothing, 3, Outcome.RUNNING, failure="no data at /data")
    job.happens(fleet.ProgressObserved(Term(0), progress))

    assert [one.message for one in job.of(fleet.NotifyUser)] == [
        "the script failed 3 times; the last: no data at /data"
    ]


def test_after_a_resume_no_fewer_failures_are_allowed_than_before() -> None:
    """Earlier failures are forgiven; if the count has fallen since (one was caused by a notice), it counts in full."""
    job = Fleet().trains().run(holder="m1", failures=4)
    job.ends("m1", cause=MachineEndCause.RELEASED).happens(fleet.JobResumeRequested("ada")).trains().run(
        holder="m2", failures=2
    )
    assert job.released == []
    job.run(holder="m2", failures=3)
    assert job.released == ["m2"]


def test_preemptions_are_no_failures() -> None:
    """Lost machines are replaced without limit."""
    job = Fleet().trains()
    for _ in range(50):
        name = f"m{job.made}"
        job.says(name, step=7).ends(name, after=100.0).trains()
    assert job.phase is JobPhase.RUNNING


@pytest.mark.trial("B1")
@pytest.mark.parametrize("step", [None, 0])
def test_machines_that_come_and_go_without_a_step_end_the_job(step: int | None) -> None:
    """Ten trained in a row without reporting a step: the job fails with `no progress` and buys nothing more."""
    job = Fleet().trains()
    for _ in range(9):
        name = f"m{job.made}"
        job.says(name, step=step).ends(name, after=100.0)
        if not job.orders:
            job.passes(301.0)
        job.trains()
    assert job.phase is JobPhase.RUNNING

    job.ends(f"m{job.made}", after=100.0)

    assert "no progress" in job.message
    assert [command.event for command in job.of(fleet.NotifyUser)][-1] is Event.FAILED
    assert job.passes(10_000.0).orders == []
    assert job.phase is JobPhase.FAILED
    assert replay(job.rows) == []


@pytest.mark.trial("B1")
def test_one_step_or_checkpoint_forgives_the_machines_before() -> None:
    """Nine for nothing, one that steps, nine more: the job continues; progress resets the count."""
    job = Fleet().trains()
    for number in range(30):
        name = f"m{job.made}"
        if number % 10 == 9:
            job.says(name, step=number)
        job.ends(name, after=100.0)
        if not job.orders:
            job.passes(301.0)
        job.trains()
    assert job.phase is JobPhase.RUNNING


@pytest.mark.trial("G14")
def test_machines_that_are_dead_at_once_are_not_bought_by_the_dozen() -> None:
    """Each ends before its first report, whatever its offer: at most six are bought within twenty seconds."""
    job = Fleet(*(replace(LARGE, zone=zone) for zone in "abcdefgh"))
    bought = 0
    for _ in range(20):
        while job.orders:
            bought += 1
            job.answers(job.orders[0])
            name = f"m{job.made}"
            job.runs(name).ends(name, cause=MachineEndCause.FAILED)
        job.passes(1.0)
    assert 1 < bought <= 6


@pytest.mark.parametrize("code", [1, 130, 137, 70])
def test_an_agent_that_ends_oddly_is_the_machines_business(code: int) -> None:
    """An agent that was killed or interrupted is restarted on its machine: nothing is released, nothing bought."""
    job = Fleet().trains()
    before = len(job.orders)
    job.says("m1", MachineStatus.WAITING, exit_code=code)
    assert job.released == []
    assert len(job.orders) == before
    assert job.phase is not JobPhase.FAILED


def test_machines_that_cannot_do_the_job_are_bounded() -> None:
    """A machine that says that it cannot do the job is the job's failure: three times, then it ends."""
    job = Fleet()
    for _ in range(3):
        (order,) = job.orders
        job.answers(order)
        name = f"m{job.made}"
        job.runs(name, after=20.0)
        job.says(name, MachineStatus.FAILED, message="pip: no such package")
        assert job.released == [name]
        job.ends(name, cause=MachineEndCause.RELEASED)
    assert job.phase is JobPhase.FAILED
    assert "pip: no such package" in job.message
    assert job.state.preemptions == 0


def test_the_budget_is_kept_with_what_the_end_costs() -> None:
    """Spent + rate x (save + release) reaches the budget: saved, released, exit code 4, and never above it."""
    job = Fleet(objective=Objective(budget_usd=1.0), checkpointing=QUICK).trains().run(holder="m1")
    job.passes(9_000.0)
    assert job.of(fleet.StopRun) == []
    job.passes(900.0)
    (stop,) = job.of(fleet.StopRun)
    assert not stop.now
    assert [command.event for command in job.of(fleet.NotifyUser)] == [Event.OVER_BUDGET]
    stopped = job.rows[-2].at if job.state.pending_end is None else job.state.pending_end.since

    spent = (stopped - job.machines["m1"].started) * 0.36 / 3600.0
    assert spent + 0.36 * 120.0 / 3600.0 == pytest.approx(1.0, abs=1e-6)
    job.passes(120.0)
    job.ends("m1", cause=MachineEndCause.RELEASED)
    (settled,) = job.of(fleet.SettleJob)
    assert (settled.phase, settled.exit_code) == (JobPhase.STOPPED, 4)
    assert driver.summary(job.state, job.now).money.estimated_usd < 1.1


def test_a_budget_that_does_not_bear_one_machine_buys_none() -> None:
    """The reserve alone is more: nothing is ordered."""
    job = Fleet(FIRM, use=Use.ON_DEMAND, objective=Objective(budget_usd=0.1))
    assert job.orders == []
    assert job.phase is JobPhase.STOPPED
    assert [command.exit_code for command in job.of(fleet.SettleJob)] == [4]


def test_settled_lines_count_against_the_budget() -> None:
    """What the provider bills beyond the estimate is money too."""
    job = Fleet(objective=Objective(budget_usd=1.0), checkpointing=QUICK).trains()
    job.happens(fleet.ChargesObserved((Charge("c1", "m1", 0.99, job.now, job.now, True),)))
    assert job.of(fleet.StopRun)


def test_max_duration_stops_after_a_save() -> None:
    """Wall time from the submission on, less a tenth for the save; exit code 4."""
    job = Fleet(max_duration_s=1000.0).trains().run(holder="m1")
    assert job.passes(869.0).of(fleet.StopRun) == []
    assert [command.now for command in job.passes(1.0).of(fleet.StopRun)] == [False]
    job.run(Outcome.WAITING, step=1).ends("m1", cause=MachineEndCause.RELEASED)
    assert [command.exit_code for command in job.of(fleet.SettleJob)] == [4]


@pytest.mark.trial("B4")
def test_a_script_that_never_calls_windfall_is_shown_by_ps_and_at_the_end() -> None:
    """Not only in its log: the job and its machine show it while it is true, and so does the end of the job."""
    job = Fleet().trains().run(holder="m1")
    assert "Windfall" not in job.message
    job.says("m1", sdk_inactive=True)

    assert "has not called Windfall" in job.message
    machine = driver.summary(job.state, job.now).slots[0].machines[0]
    assert "has not called Windfall" in machine.message

    job.run(Outcome.DONE).ends("m1", cause=MachineEndCause.RELEASED)
    assert [command.message for command in job.of(fleet.SettleJob)] == [
        "the run is done; its script never called Windfall: nothing was saved on the way"
    ]


@pytest.mark.trial("B4")
def test_a_script_that_called_windfall_late_is_not_reported() -> None:
    """What the newest report says counts."""
    job = Fleet().trains().run(holder="m1").says("m1", sdk_inactive=True).says("m1", step=1)

    assert "Windfall" not in job.message
    assert job.run(Outcome.DONE, step=1).message.startswith("the run is done;")
    assert "never" not in job.message


@pytest.mark.trial("B3")
@pytest.mark.parametrize(
    ("max_duration_s", "checkpointing", "begins_s"),
    [(1000.0, Checkpointing(), 900.0), (40_000.0, Checkpointing(), 39_370.0), (1000.0, QUICK, 910.0)],
)
def test_max_duration_is_hard_whatever_the_script_does(
    max_duration_s: float, checkpointing: Checkpointing, begins_s: float
) -> None:
    """The last save starts before the limit; at the limit the machine is released even without a save."""
    job = Fleet(max_duration_s=max_duration_s, checkpointing=checkpointing).trains().run(holder="m1")
    trained_s = job.now - job.state.submitted_at

    assert job.passes(begins_s - trained_s).of(fleet.StopRun) != [], "the save has started"
    rest_s = max_duration_s - begins_s
    assert job.passes(rest_s - 1.0).released == [], "the script may save until then"
    assert job.passes(1.0).released == ["m1"]


@pytest.mark.trial("B3")
def test_a_users_stop_does_not_outlast_max_duration() -> None:
    """A script that is asked to save shortly before the limit has until the limit, not its whole patience."""
    job = Fleet(max_duration_s=1000.0).trains().run(holder="m1")
    job.passes(850.0).happens(fleet.JobStopRequested(False, "ada"))

    assert "up to 120 s" in job.message
    assert job.passes(119.0).released == []
    assert job.passes(1.0).released == ["m1"]


@pytest.mark.trial("B3")
def test_a_stop_says_how_long_it_waits_and_what_ends_it() -> None:
    """Users of `logs`, `ps` and `stop` see the time limit and how to end the wait."""
    job = Fleet().trains().run(holder="m1").happens(fleet.JobStopRequested(False, "ada"))
    logged = " ".join(command.message for command in job.of(LogMessage))

    for message in (logged, job.message):
        assert "up to 630 s" in message
        assert "`windfall stop j --now`" in message

    job.happens(fleet.JobStopRequested(True, "ada"), after=5.0)
    assert "--now" not in job.message, "it was said"
    assert job.passes(15.0).released == ["m1"]


def test_a_run_stopped_through_its_store_stops_the_job() -> None:
    """`windfall stop URL`: the agent exited cleanly and the run is not done; waiting machines are not paid for."""
    job = Fleet().trains().says("m1", term=4)
    job.run(Outcome.WAITING, term=4, step=2)
    assert job.released == []
    job.says("m1", MachineStatus.WAITING, exit_code=0, term=4)
    assert job.released == ["m1"]


def test_a_stopped_job_still_gives_orphans_back() -> None:
    """Whatever turns up after the end is released."""
    job = Fleet()
    (order,) = job.orders
    job.answers(order).happens(fleet.JobStopRequested(True, "ada"))
    job.ends("m1", cause=MachineEndCause.RELEASED)
    assert job.phase is JobPhase.STOPPED
    stray = job.machine(order, MachineLifecycle.RUNNING)
    assert job.lists(stray.machine_id).released == [stray.machine_id]
