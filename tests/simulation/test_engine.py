"""One simulated machine after the other: stories whose times are worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.simulation.engine_world import FOREVER, NOTICE, estimates, parts, saved, scenario, trial
from windfall.errors import Infeasible, Misuse
from windfall.simulation import engine, engine_fleet
from windfall.simulation.scenario import AvailabilityWindows, DurationRange, MemorylessLifetimes, WorkerEstimates
from windfall.simulation.simulated_policies import UserPolicy, scheduled

INSURANCE, EMERGENCY = "insurance", "emergency"


# ------------------------------------------------------------------------------------------------------- no notice


def test_a_run_without_loss_takes_its_steps_and_its_standstills() -> None:
    """10 s to the start, 20 s to be ready, 100 steps, four saves of 2 s; the last step is followed by none."""
    found = trial()
    assert (found.finish_s, found.billed_s, found.preemptions) == (138.0, 128.0, 0)
    assert parts(found) == (0.0, 8.0, 10.0, 20.0)
    assert saved(found) == [(0, step, INSURANCE, True) for step in (20, 40, 60, 80)]


def test_a_lost_machine_costs_a_new_one_and_the_steps_since_the_last_committed_point() -> None:
    """It starts at 10 s and is gone at 110 s: step 60 was stored at 99 s, 14 s of training since then are made again."""
    found = trial((100.0,))
    assert (found.finish_s, found.billed_s, found.preemptions) == (182.0, 100.0 + 62.0, 1)
    assert parts(found) == (14.0, 8.0, 20.0, 40.0)
    assert saved(found) == [(0, 20, INSURANCE, True), (0, 40, INSURANCE, True), (0, 60, INSURANCE, True),
                            (1, 80, INSURANCE, True)]  # fmt: skip


def test_a_point_that_was_still_on_its_way_is_lost_with_the_machine() -> None:
    """At 98 s step 60 lies on the disk of a machine that is gone: the run goes on from step 40."""
    found = trial((88.0,))
    assert found.finish_s == 192.0
    assert parts(found) == (22.0, 10.0, 20.0, 40.0)
    assert saved(found)[2:] == [(0, 60, INSURANCE, False), (1, 60, INSURANCE, True), (1, 80, INSURANCE, True)]


def test_a_save_that_was_not_finished_is_none() -> None:
    """At 95 s the script has stood still for one of its two seconds: that second is spent, and nothing is saved."""
    found = trial((85.0,))
    assert found.finish_s == 189.0
    assert parts(found) == (20.0, 9.0, 20.0, 40.0)
    assert [step for _, step, _, _ in saved(found)] == [20, 40, 60, 80]


def test_a_machine_can_be_lost_while_it_is_prepared() -> None:
    """It starts at 10 s and is gone at 25 s: nothing is lost but these 15 s and the wait for the next one."""
    found = trial((15.0,))
    assert (found.finish_s, found.billed_s, found.preemptions) == (163.0, 15.0 + 128.0, 1)
    assert parts(found) == (0.0, 8.0, 20.0, 35.0)


def test_many_losses_in_a_row_are_all_replaced() -> None:
    """Each machine lives for one save and 4 s more: 20 steps are kept of each."""
    found = trial((46.0,) * 4)
    assert found.preemptions == 4
    assert [save[:2] for save in saved(found)] == [(0, 20), (1, 40), (2, 60), (3, 80)]
    assert parts(found) == (4 * 4.0, 8.0, 50.0, 100.0)


def test_one_point_waits_behind_an_upload_and_a_loss_goes_back_to_the_stored_one() -> None:
    """With 30 s for an upload, at 100 s only step 20 is stored: 40 is on its way and 60 waits for it."""
    found = trial((90.0,), upload_s=DurationRange.of(30.0))
    assert saved(found)[:3] == [(0, 20, INSURANCE, True), (0, 40, INSURANCE, False), (0, 60, INSURANCE, False)]
    assert found.redo_s == 20.0 + 20.0 + 4.0
    assert found.finish_s == 130.0 + 80.0 + 6.0


def test_a_policy_without_saves_begins_again_at_the_beginning() -> None:
    """`never` keeps nothing of a machine that is gone without notice."""
    found = trial((100.0,), policy="never")
    assert (found.finish_s, found.redo_s, found.saves) == (240.0, 80.0, ())


def test_an_upload_at_the_end_of_the_job_is_not_waited_for() -> None:
    """The last save is made a second before the last step: the job is done with the step, the checkpoint is not stored."""
    found = trial(policy="every:99steps")
    assert found.finish_s == 132.0
    assert saved(found) == [(0, 99, INSURANCE, False)]


# ---------------------------------------------------------------------------------------------------------- notices


def test_an_emergency_save_keeps_every_step() -> None:
    """Notice at 70.5 s, saved after step 39 at 73 s, stored at 76 s; the successor was ordered at the notice.

    Once that one is ready, at 100.5 s, the driver gives the old machine back, half a minute before it would be taken.
    """
    found = trial((60.5,), notice_s=60.0, **NOTICE)
    assert (found.finish_s, found.billed_s, found.preemptions) == (167.5, 90.5 + 87.0, 1)
    assert parts(found) == (0.0, 2.0 + 2.0 + 3.0 + 6.0, 14.5, 40.0)
    assert saved(found) == [(0, 20, INSURANCE, True), (0, 39, EMERGENCY, True), (1, 59, INSURANCE, True),
                            (1, 79, INSURANCE, True), (1, 99, INSURANCE, False)]  # fmt: skip


def test_without_a_successor_at_the_notice_one_is_ordered_when_the_machine_is_gone() -> None:
    """The same, but the driver does not learn of the notice: it orders at 130.5 s."""
    found = trial((60.5,), notice_s=60.0, successor_at_notice=False, **NOTICE)
    assert found.finish_s == 227.5
    assert parts(found) == (0.0, 13.0, 74.5, 40.0)
    assert found.billed_s == 120.5 + 87.0


def test_a_notice_that_is_too_short_is_trained_through() -> None:
    """5 s of notice, 5.5 s needed: the ranks go on until the machine is gone, and go back to step 20."""
    found = trial((60.5,), notice_s=5.0, **NOTICE)
    assert found.finish_s == 186.5
    assert parts(found) == (21.5, 10.0, 15.0, 40.0)
    assert EMERGENCY not in [kind for _, _, kind, _ in saved(found)]


def test_an_emergency_save_of_unknown_cost_is_tried() -> None:
    """Nobody knows that it takes 5 s where 4 s are left: it is tried, in vain, and the ranks stand still meanwhile."""
    found = trial((60.5,), notice_s=4.0, policy="never", estimates=estimates(costs_known=False), **NOTICE)
    assert saved(found) == [(0, 41, EMERGENCY, False)]
    assert parts(found) == (41.0, 3.5, 16.0, 40.0)
    assert found.finish_s == 200.5


def test_a_known_cost_forbids_what_an_unknown_one_would_have_tried() -> None:
    """The same with known costs: the machine is trained through, and no save is made."""
    found = trial((60.5,), notice_s=4.0, policy="never", **NOTICE)
    assert found.saves == ()
    assert parts(found) == (44.5, 0.0, 16.0, 40.0)


def test_a_notice_while_the_script_saves_counts_that_save_as_the_last() -> None:
    """Notice at 51 s, in the standstill for step 20: no second save, and no training after it."""
    found = trial((41.0,), notice_s=60.0, **NOTICE)
    assert saved(found)[0] == (0, 20, INSURANCE, True)
    assert saved(found)[1][:2] == (1, 40)
    assert found.redo_s == 0.0
    assert found.save_s == 2.0 + 3.0 + 3 * 2.0


def test_a_machine_on_notice_never_begins_to_train() -> None:
    """Its notice comes at 25 s, it is ready at 30 s and ends at 85 s: the run waits for its successor, at 55 s."""
    found = trial((15.0,), notice_s=60.0, **NOTICE)
    assert (found.finish_s, found.preemptions) == (163.0, 1)
    assert found.billed_s == 45.0 + 128.0
    assert {machine for machine, _, _, _ in saved(found)} == {1}
    assert parts(found) == (0.0, 8.0, 20.0, 35.0)


def test_a_job_that_is_done_before_its_machine_is_gone_loses_none() -> None:
    """Notice of 3 s at 136 s, done at 138 s: no save fits, none is needed, and the ordered successor never starts."""
    found = trial((126.0,), notice_s=3.0, **NOTICE)
    assert (found.finish_s, found.billed_s, found.preemptions) == (138.0, 128.0, 0)


# --------------------------------------------------------------------------------------------------------- policies


def test_the_thesis_saves_gpt_1_3b_every_33_steps() -> None:
    """The published interval (section 6.3.2): steps of 19.75 s, standstill 19.5 s, MTTP 3 h, R 136.5 s."""
    found = trial(
        step_s=DurationRange.of(19.75),
        stall_s=DurationRange.of(19.5),
        upload_s=DurationRange.of(69.25),
        policy="thesis",
        estimates=WorkerEstimates(10_800.0, 1.0, 136.5),
    )
    assert [step for _, step, _, _ in saved(found)] == [33, 66, 99]


def test_the_thesis_does_not_save_where_an_emergency_save_fits() -> None:
    """Algorithm 1: 1 + 2 + 3 s are less than the 30 s that this provider usually gives."""
    assert trial(policy="thesis").saves == ()


def test_unknown_costs_are_learnt_by_an_early_save() -> None:
    """The first save comes after 20 steps, whatever the interval."""
    long_s = 1e9
    found = trial(policy="adaptive", estimates=estimates(costs_known=False, mttp_s=long_s))
    assert saved(found) == [(0, 20, INSURANCE, True)]


def test_what_saves_cost_is_carried_to_the_next_machine() -> None:
    """Interval 60 s.  The first machine learns at step 20; the record of its second point says what the first one cost."""
    job = {"steps": 200, "policy": "adaptive", "estimates": estimates(costs_known=False, mttp_s=870.0)}
    assert [step for _, step, _, _ in saved(trial((150.0,), **job))] == [20, 80, 140]


def test_a_machine_that_stored_one_point_alone_leaves_its_successor_to_learn() -> None:
    """The record of a checkpoint is written before its own commit was measured: the next machine saves early again."""
    job = {"steps": 200, "policy": "adaptive", "estimates": estimates(costs_known=False, mttp_s=870.0)}
    assert [step for _, step, _, _ in saved(trial((80.0,), **job))] == [20, 40, 100, 160]


def test_the_optimal_schedule_is_handed_to_each_machine() -> None:
    """Saves come where the schedule of the steps that are left has them."""
    job = scenario((400.0,), steps=600, policy="optimal", estimates=estimates(mttp_s=500.0))
    made = engine.history(job, journal=False).trial.saves
    first = [save.step for save in made if save.machine == 0]
    kept = max(save.step for save in made if save.machine == 0 and save.committed)
    assert tuple(first) == scheduled(job).steps(600)[: len(first)]
    assert [save.step for save in made if save.machine == 1] == [
        kept + step for step in scheduled(job).steps(600 - kept)
    ]


def test_a_user_s_own_policy_is_asked_once_for_each_machine() -> None:
    """It is called with the age, the work left, the costs and the estimates, and returns the interval."""
    asked: list[tuple[float, ...]] = []

    def interval_s(*arguments: float) -> float:
        asked.append(arguments)
        return 25.0 if len(asked) == 1 else math.inf

    found = engine.history(scenario((70.0,)), policy=UserPolicy("mine", interval_s), journal=False).trial
    assert asked == [(20.0, 100.0, 2.0, 5.0, 3600.0, 30.0), (20.0, 75.0, 2.0, 5.0, 3600.0, 30.0)]
    assert saved(found) == [(0, 25, INSURANCE, True)]


def test_a_policy_that_answers_no_interval_is_refused() -> None:
    """Zero seconds of work between two saves is none."""
    with pytest.raises(Misuse, match="interval of 0 s"):
        engine.history(scenario(), policy=UserPolicy("mine", lambda *_: 0.0), journal=False)


# ------------------------------------------------------------------------------------------------ lives and the end


def test_machines_wait_for_the_next_window_of_availability() -> None:
    """The first window ends at 100 s, the next one begins at 200 s: the wait counts as allocation."""
    found = trial(AvailabilityWindows(((0.0, 100.0), (200.0, 1000.0)), 1000.0, 0.0))
    assert (found.finish_s, found.billed_s) == (262.0, 90.0 + 62.0)
    assert parts(found) == (4.0, 8.0, 110.0, 40.0)


def test_a_life_without_end_is_no_loss() -> None:
    """Machines that stay make the run without loss."""
    assert trial(MemorylessLifetimes((FOREVER,))) == trial()


def test_a_job_that_never_gets_on_is_refused_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine is gone before it is ready: after many of them the job is refused."""
    monkeypatch.setattr(engine_fleet, "MACHINES_WITHOUT_PROGRESS_MAX", 50)
    with pytest.raises(Infeasible, match="makes no progress: 50 machines ended since step 0 was stored"):
        trial((15.0,) * 60)
