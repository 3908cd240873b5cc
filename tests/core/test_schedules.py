"""The driver and the save schedules of its machines: requests, decisions, directives."""

from __future__ import annotations

import pytest

from tests.core.fleet_story import LARGE, Fleet
from windfall import codec
from windfall.core import driver, save_schedules
from windfall.core.replay import explain, replay
from windfall.events import ScheduleAssigned
from windfall.fleet import (
    Basis,
    EstimatesPooled,
    JobStopRequested,
    MachineSilent,
    MachineStatus,
    Report,
    ScheduleComputed,
)
from windfall.jobs import Injection, Work
from windfall.policies.checkpointing.schedule_table import ScheduleRequest
from windfall.structs import replace
from windfall.terms import RunOptions, SaveCosts, SaveTable, Seconds, Step, Term, Unit

COSTS = SaveCosts(Seconds(20.0), 10**9, Seconds(15.0), Seconds(1.0))
OPTIMAL = RunOptions("optimal")
TABLE = SaveTable((900.0, 2_000.0), 3_600.0, 600.0, "it rests on 501 losses, bathtub law")
FIRST = ScheduleComputed(
    "m1", Term(1), ScheduleAssigned(TABLE, Step(40)), Basis(20.0, 36.0, 120.0, 9_000.0, 2.0), Seconds(100.0),
    Seconds(9_000.0), trusted=True,
)  # fmt: skip


def training(**job: object) -> Fleet:
    """One machine of a job that saves by schedule; its start was 30 s ago."""
    return Fleet(**({"options": OPTIMAL} | job)).trains()  # type: ignore[arg-type]


def report(**changes: object) -> Report:
    """What the machine last said: 50 steps of 2 s, saved at 40."""
    said = {"term": Term(1), "step": Step(50), "saved_step": Step(40), "step_s": Seconds(2.0), "costs": COSTS}
    return Report("m1", 9, "a", MachineStatus.TRAINING, **(said | changes))  # type: ignore[arg-type]


def request(fleet: Fleet, **changes: object) -> ScheduleRequest:
    (found,) = save_schedules.requests(fleet.state, {"m1": report(**changes)}, fleet.now)
    return found


def test_a_training_machine_needs_a_schedule_from_its_last_save_on() -> None:
    """Step, age and work left are those of the last save, since what came after it is not safe."""
    fleet = training(work=Work(1_000.0, Unit.STEP))
    fleet.passes(300.0)
    found = request(fleet)

    running_at = fleet.state.units["m1"].running_at
    assert (found.from_step, found.term, found.machines) == (40, 1, 1)
    assert found.age_s == pytest.approx(fleet.now - running_at - 20.0)
    assert found.work_s == 960.0 * 2.0
    assert (found.stall_s, found.durable_s) == (20.0, 36.0)
    assert found.allocate_s == pytest.approx(20.0)
    assert found.notice_s == LARGE.notice_s
    assert found.before is None


def test_work_in_another_unit_is_known_by_earlier_runs_or_not_at_all() -> None:
    """Nobody is asked to guess: a schedule is then made piece by piece."""
    assert request(training()).work_s is None
    assert request(training(work=Work(1e6, Unit.TOKEN))).work_s is None


def test_the_injectors_means_are_what_is_known_of_losses() -> None:
    """And its notice; without one no loss is announced."""
    given = Injection((Seconds(600.0), Seconds(1_800.0)), seed=1)
    found = request(training(injection=given))
    assert (found.injected, found.mttp_s, found.notice_s) == (True, 1_200.0, 0.0)
    pooled = training().happens(EstimatesPooled((("local", "large", "zone-a", Seconds(5_000.0), None),)))
    assert (request(pooled).injected, request(pooled).mttp_s) == (False, 5_000.0)


@pytest.mark.parametrize(
    "changes", [{"costs": None}, {"step_s": None}, {"term": None}, {"status": MachineStatus.WAITING}, {"step": None}]
)
def test_a_machine_whose_costs_are_not_known_waits(changes: dict[str, object]) -> None:
    """Its first save comes early and tells."""
    fleet = training()
    assert save_schedules.requests(fleet.state, {"m1": replace(report(), **changes)}, fleet.now) == ()  # type: ignore[arg-type]


def test_no_schedule_is_requested_for_other_policies_or_a_machine_that_ends() -> None:
    """Announced ends, jobs that stop, runs that are nearly over."""
    said = {"m1": report()}
    adaptive = training(options=RunOptions())
    assert save_schedules.requests(adaptive.state, said, adaptive.now) == ()
    preempting = training().says("m1", left=100.0)
    assert save_schedules.requests(preempting.state, said, preempting.now) == ()
    over = training(work=Work(40.0, Unit.STEP))
    assert save_schedules.requests(over.state, said, over.now) == ()


def test_no_schedule_is_requested_for_a_silent_or_released_machine() -> None:
    """Its last report may be old and does not show its age at the last save; and a machine that ends needs no plan."""
    said = {"m1": report()}
    fleet = training()
    fleet.happens(MachineSilent("m1", Seconds(70.0)))
    assert save_schedules.requests(fleet.state, said, fleet.now) == ()
    fleet.says("m1")
    assert len(save_schedules.requests(fleet.state, said, fleet.now)) == 1
    stopped = training().happens(JobStopRequested(now=True, user="user"))
    stopped.passes(1.0)
    assert save_schedules.requests(stopped.state, said, stopped.now) == ()


def test_of_machines_that_train_together_the_one_that_holds_the_run_is_asked_for() -> None:
    """Its decisions are those of all."""
    fleet = training(nodes=2)
    said = {name: replace(report(), machine_id=name) for name in fleet.machines}
    assert save_schedules.requests(fleet.state, said, fleet.now) == ()
    fleet.run(holder="m2")
    assert [(one.machine_id, one.machines) for one in save_schedules.requests(fleet.state, said, fleet.now)] == [
        ("m2", 2)
    ]


def test_a_schedule_is_a_decision_that_the_directive_carries() -> None:
    """To its own machine alone; the decision names what it rests on and what it was compared with."""
    fleet = training()
    fleet.happens(FIRST)

    (decision,) = fleet.decided
    assert decision.policy == "optimal"
    assert decision.choice == "schedule for m1: 2 saves; it rests on 501 losses, bathtub law"
    assert {item.name: item.value for item in decision.rationale}["first save after"] == 900.0
    assert decision.alternatives == ("saves every 600 s, by the default rule",)
    assert driver.directives(fleet.state, Term(3))["m1"].schedule == FIRST.schedule
    assert request(fleet).before == FIRST


def test_the_reason_for_a_new_schedule_is_explained() -> None:
    """The words that a user reads."""
    fleet = training().happens(FIRST)
    reason = "stall is 20 s, planned with 60 s"
    newer = replace(FIRST, schedule=replace(FIRST.schedule, from_step=Step(90)), reason=reason)
    fleet.happens(newer)

    assert driver.directives(fleet.state, Term(3))["m1"].schedule == newer.schedule
    text = "\n".join(explain(fleet.rows))
    assert f"new schedule for m1: {reason}; 2 saves; it rests on 501 losses, bathtub law" in text


def test_why_there_is_no_schedule_is_explained_and_sent_to_the_machine() -> None:
    """Its own decisions then say the same."""
    says = "the fit of lives is not used, because it rests on 12 losses, fewer than 20: the default rule decides"
    given = ScheduleAssigned(SaveTable((), 0.0, 600.0, says), Step(40))
    fleet = training().happens(replace(FIRST, schedule=given, trusted=False))

    assert fleet.decided[0].choice == f"no schedule for m1: {says}"
    assert driver.directives(fleet.state, Term(3))["m1"].schedule == given


def test_a_schedule_goes_with_its_machine() -> None:
    """The successor has none, and one that comes for a machine that is gone is dropped."""
    fleet = training().happens(FIRST)
    fleet.ends("m1")
    assert all(directive.schedule is None for directive in driver.directives(fleet.state, Term(3)).values())
    fleet.happens(replace(FIRST, reason="late"))
    assert fleet.decided == ()


def test_the_journal_fed_back_has_the_same_schedules() -> None:
    """A restarted controller sends the same directives and makes the same decisions."""
    fleet = training().happens(FIRST)
    rows = [codec.row_from_line(codec.row_to_line(row)) for row in fleet.rows]

    assert rows == fleet.rows
    assert replay(rows) == []
