"""Several simulated machines, and several jobs: who waits for whom, and that none affects another."""

from __future__ import annotations

import gc
import random

import pytest

from tests.simulation.engine_world import FOREVER, NOTICE, parts, saved, scenario, several, trial
from windfall import codec
from windfall.events import Row, WorkerStarted
from windfall.simulation import engine
from windfall.simulation.engine_fleet import OWNER
from windfall.simulation.engine_runtime import CheckpointMachines
from windfall.simulation.engine_worker import SimulatedWorker
from windfall.simulation.scenario import (
    AvailabilityWindows,
    DurationRange,
    MemorylessLifetimes,
    RecordedLifetimes,
    Scenario,
)
from windfall.simulation.virtual_time import WALL_START
from windfall.simulation.world import World
from windfall.terms import WallTime


@pytest.mark.parametrize("slot", [0, 1])
def test_a_loss_of_any_machine_stops_all_and_the_others_stay(slot: int) -> None:
    """One of two is gone at 110 s, whether it leads or not; the other one is billed on while it waits."""
    lifetimes = RecordedLifetimes(((100.0,), ()) if slot == 0 else ((), (100.0,)))
    found = trial(lifetimes, machines=2)
    assert (found.finish_s, found.preemptions) == (182.0, 1)
    assert found.billed_s == 100.0 + 62.0 + 172.0
    assert parts(found) == (14.0, 8.0, 20.0, 40.0)
    assert [save.machine for save in found.saves] == [0, 0, 0, 1 - slot]


def test_several_machines_train_when_the_last_one_is_ready() -> None:
    """The windows end for all at once: one decision replaces them all."""
    found = trial(AvailabilityWindows(((0.0, 100.0), (200.0, 1000.0)), 1000.0, 0.0), machines=3)
    assert (found.finish_s, found.preemptions) == (262.0, 3)
    assert found.billed_s == 3 * (90.0 + 62.0)


def test_machines_that_are_lost_at_once_are_one_order() -> None:
    """Simultaneous facts are one batch, and one batch is one decision."""
    job = scenario(AvailabilityWindows(((0.0, 100.0), (200.0, 1000.0)), 1000.0, 0.0), machines=3)
    orders = [order for row in engine.history(job).job_rows for order in _orders(row)]
    assert orders == [3, 3]


def test_an_emergency_save_of_several_ranks_is_agreed_two_steps_ahead() -> None:
    """Notice at 65.5 s on one of two machines, after step 33: all ranks save after step 35, where one would after 34."""
    found = trial(RecordedLifetimes(((), (55.5,))), machines=2, notice_s=60.0, **NOTICE)
    assert saved(found)[:2] == [(0, 20, "insurance", True), (0, 35, "emergency", True)]
    assert found.redo_s == 0.0
    assert found.save_s == 2.0 + 2.0 + 3.0 + 3 * 2.0


def test_a_save_that_all_ranks_have_agreed_on_counts_as_the_last() -> None:
    """Notice at 70.5 s, after step 38, with a save agreed for step 40: no other one is asked for."""
    found = trial(RecordedLifetimes(((), (60.5,))), machines=2, notice_s=60.0, **NOTICE)
    assert saved(found)[:2] == [(0, 20, "insurance", True), (0, 40, "insurance", True)]
    assert (found.redo_s, found.save_s) == (0.0, 2.0 + 2.0 + 3.0 + 2 * 2.0)


def test_a_loss_while_another_successor_is_awaited_is_waited_for_too() -> None:
    """The second machine is gone at 120 s, while the first one's successor is prepared: training goes on at 150 s."""
    found = trial(RecordedLifetimes(((100.0,), (110.0,))), machines=2)
    assert found.preemptions == 2
    assert found.finish_s == 150.0 + 42.0
    assert parts(found) == (14.0, 8.0, 10.0 + 20.0, 40.0)


# ------------------------------------------------------------------------------------------- several jobs, one provider


def _month(seed: int) -> list[Scenario]:
    draw = random.Random(seed)
    return [
        scenario(
            MemorylessLifetimes((draw.uniform(60.0, 300.0),)),
            machines=draw.choice([1, 1, 2, 3]),
            notice_s=draw.choice([0.0, 30.0]),
            announced_share=0.5,
            policy=draw.choice(["adaptive", "every:20steps", "thesis"]),
            stall_s=DurationRange(1.0, 3.0),
            allocate_s=DurationRange(5.0, 15.0),
            prepare_s=DurationRange(10.0, 30.0),
            provider=draw.choice(["local", "aws"]),
        )
        for _ in range(8)
    ]


def test_jobs_on_one_timeline_and_one_provider_do_not_touch_each_other() -> None:
    """Each of eight jobs side by side has the history that it has alone."""
    jobs = _month(1)
    world, fleets = several(jobs, seed=5)
    world.run()
    together = [engine.collected(fleet).trial for fleet in fleets]
    assert together == [engine.history(job, seed=5, trial=n, journal=False).trial for n, job in enumerate(jobs)]


def test_a_job_that_is_submitted_later_takes_as_long() -> None:
    """Its times count from its own submission."""
    job = scenario((100.0,))
    markets = engine.scenario_markets((job,))
    jobs = [engine.scenario_job(f"job-{n}", job, markets, journal=False, after_s=64.0 * n) for n in range(4)]
    world = World(markets, jobs)
    world.run()
    assert [engine.collected(fleet).trial.finish_s for fleet in world.fleets.values()] == [182.0] * 4
    assert world.timeline.time == 3 * 64.0 + 182.0


def test_the_bill_is_the_provider_s_own_meter() -> None:
    """What all jobs are billed [s] is what its meter ran, but for the millionth of a dollar to which it rounds a line."""
    jobs = _month(2)
    world, fleets = several(jobs, seed=6)
    world.run()
    now = WallTime(WALL_START + world.timeline.time)
    metered_usd = sum(provider.meter.total_usd(OWNER, now) for provider in world.providers.values())
    billed_usd = sum(engine.collected(fleet).trial.billed_s for fleet in fleets) * 3.6 / 3600.0
    assert metered_usd == pytest.approx(billed_usd, abs=2e-4)
    assert not any(provider.meter.running for provider in world.providers.values())


# ------------------------------------------------------------------------------------------------------- determinism


def test_the_same_seed_and_trial_are_the_same_history_to_the_byte() -> None:
    """Journals of machines and of the driver included."""
    job = _month(3)[2]
    first, second = (_lines(engine.history(job, seed=9, trial=4)) for _ in range(2))
    assert first == second
    assert first != _lines(engine.history(job, seed=9, trial=5))


def test_a_trial_is_the_same_whether_its_journal_is_kept_or_not() -> None:
    """What is written changes nothing that happens."""
    for number, job in enumerate(_month(4)):
        kept, bare = (engine.history(job, seed=7, trial=number, journal=journal) for journal in (True, False))
        assert kept.trial == bare.trial
        assert kept.run_rows
        assert (bare.run_rows, bare.job_rows, bare.records) == ((), (), ())


def test_never_two_machines_hold_the_run_and_no_committed_step_is_made_again() -> None:
    """Term after term: each begins after the last row of the one before, at the newest committed step."""
    job = scenario(MemorylessLifetimes((90.0,)), machines=2, notice_s=30.0, announced_share=0.5, policy="adaptive")
    for number in range(10):
        _check_terms(engine.history(job, seed=1, trial=number).run_rows)


def _check_terms(rows: tuple[Row, ...]) -> None:
    stored, term, at = 0, 0, 0.0
    for row in rows:
        assert row.at >= at
        at = row.at
        for fact in row.facts:
            if isinstance(fact, WorkerStarted):
                assert row.term > term
                assert (fact.checkpoints[-1].step if fact.checkpoints else 0) == stored
                term = row.term
            name = type(fact).__name__
            if name == "CheckpointRestored":
                assert fact.step == stored  # type: ignore[attr-defined]
            elif name == "CheckpointCommitted":
                assert fact.checkpoint.step > stored  # type: ignore[attr-defined]
                stored = fact.checkpoint.step  # type: ignore[attr-defined]
        assert row.term == term


def _lines(found: engine.History) -> list[str]:
    return [codec.row_to_line(row) for row in (*found.job_rows, *found.run_rows)]


def _orders(row: Row) -> list[int]:
    return [command.order.count_max for command in row.commands if type(command).__name__ == "PlaceOrder"]  # type: ignore[attr-defined]


def test_infinite_lives_are_never_waited_for() -> None:
    """Nothing is scheduled at the end of time."""
    assert trial(MemorylessLifetimes((FOREVER,)), machines=2).finish_s == 138.0


@pytest.mark.parametrize("policy", ["every:20steps", "every:90000steps"])
def test_nothing_stays_of_a_machine_that_is_gone(policy: str) -> None:
    """The end of the script, and a save, that were expected of it lie far ahead: they do not keep its worker alive."""
    job = scenario(MemorylessLifetimes((300.0,)), steps=10**5, policy=policy)
    world, (fleet,) = several([job])
    world.timeline.run(30_000.0)
    gc.collect()
    machines = fleet.runtime
    assert isinstance(machines, CheckpointMachines)
    # Not `isinstance`: that wakes lazy objects of other packages, which warn.
    held = [one for one in gc.get_objects() if type(one) is SimulatedWorker and one._context is machines.context]
    assert fleet.preemptions > 50
    assert len(held) <= 1
