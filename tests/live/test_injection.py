"""The injector of `run --inject`: the lives that machines really had, and the steps that were processed under it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from tests.live.rig import Rig
from tests.real import training_plain
from tests.support.bought import World, job, market
from windfall.fleet import PreemptMachine
from windfall.jobs import Injection
from windfall.models.injection import lifetime_s
from windfall.terms import Seconds

LIVES = 240
SCRIPT = Path(training_plain.__file__)


def lived_s(injection: Injection, lives: int) -> list[float]:
    """The lives of a slot's machines, from start to notice or end, by the simulated market's truth."""
    world = World(job(injection=injection), market(notice_s=injection.notice_s or 0.0))
    world.controller()
    world.until(lambda: len(world.provider.born) > lives, limit_s=math.inf)
    lifetimes_s = [world.lives[name] for name in world.provider.born[:lives]]
    return [until - started for started, until in lifetimes_s if until is not None]


@pytest.mark.parametrize("notice_s", [15.0, None])
def test_realised_lives_are_exponential_with_the_given_mean(notice_s: float | None) -> None:
    """The mean of 240 lives lies inside its exact 99 % interval: their sum is gamma distributed with shape 240."""
    mttp_s = 30.0
    lifetimes_s = lived_s(Injection((mttp_s,), seed=11, notice_s=notice_s), LIVES)
    low, high = (stats.gamma.ppf(share, LIVES, scale=mttp_s / LIVES) for share in (0.005, 0.995))

    assert len(lifetimes_s) == LIVES
    assert low <= sum(lifetimes_s) / LIVES <= high
    assert stats.kstest(lifetimes_s, stats.expon(scale=mttp_s).cdf).pvalue > 0.01


def test_each_machine_is_taken_at_the_age_that_was_drawn() -> None:
    """The n-th machine of the slot lives for the n-th draw, to the second; the seed alone says how long."""
    injection = Injection((60.0,), seed=5, notice_s=10.0)
    lifetimes_s = lived_s(injection, 60)
    drawn = [lifetime_s(injection, 0, number) for number in range(1, 61)]

    assert lifetimes_s == pytest.approx(drawn, abs=0.1)


@pytest.mark.parametrize("injected", [True, False])
def test_a_machine_that_is_given_back_before_its_announced_end_was_preempted(injected: bool) -> None:
    """It is counted, and the pool of lives learns of it; of one that the injector took it learns that it was alive."""
    injection = Injection((60.0,), seed=5, notice_s=30.0) if injected else None
    world = World(job(injection=injection), market(notice_s=30.0))
    world.controller()
    world.trains()
    if not injected:
        world.pass_time(20.0)
        world.provider.preempt("sim-1", Seconds(30.0))
    world.until(lambda: "sim-1" not in world.lifetime_source() and world.training() == ["sim-2"])
    world.pass_time(5.0)
    life = [one for one in world.pool if one.machine_id == "sim-1"][-1]

    assert world.provider.released == ["sim-1"], "its successor was ready before its end"
    assert world.summary.preemptions == 1
    assert (life.preempted, life.announced) == (not injected, True)


def test_the_list_of_mttps_is_gone_through_machine_by_machine() -> None:
    """The first machine gets the first mean, the next the second, then the list begins again; each mean is realised."""
    injection = Injection((20.0, 100.0), seed=3, notice_s=10.0)
    lifetimes_s = lived_s(injection, LIVES)
    for place, mttp_s in enumerate(injection.mttp_s):
        own = lifetimes_s[place :: len(injection.mttp_s)]
        low, high = (stats.gamma.ppf(share, len(own), scale=mttp_s / len(own)) for share in (0.005, 0.995))
        assert low <= sum(own) / len(own) <= high, f"machines with a mean of {mttp_s} s"


def test_machines_of_a_job_of_several_are_taken_apart_from_each_other() -> None:
    """Each slot draws its own lives: two machines that began together are not taken together."""
    injection = Injection((60.0,), seed=5, notice_s=10.0)
    world = World(job(injection=injection, nodes=2), market(notice_s=10.0))
    world.controller()
    world.until(lambda: len(world.provider.born) > 6, limit_s=math.inf)
    first, second = (world.lives[name] for name in world.provider.born[:2])

    assert first[1] is not None
    assert second[1] is not None
    assert first[0] == pytest.approx(second[0], abs=0.1)
    assert abs(first[1] - second[1]) > 2.0


def test_processed_steps_are_those_that_stay() -> None:
    """Over twelve hours without notice, steps that were done again count once, as in the thesis' table 6.1.

    Its "processed steps" are where the training stood after twelve hours, and its simulator is given that number as the
    iterations of a whole job: redone ones are part of the latency, not of the steps.
    """
    world = World(job(injection=Injection((1500.0,), seed=7)), market(notice_s=0.0))
    world.controller()
    world.until(lambda: world.time >= 12 * 3600.0, limit_s=math.inf)
    processed = world.summary.saved_step
    preemptions = world.summary.preemptions

    assert preemptions >= 15
    assert processed == world.saved, "the controller shows what the run's log has"
    assert processed < world.executed <= processed + (preemptions + 1) * 10, (
        "at most a save's interval is redone each time"
    )


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(400)
def test_live_machines_are_taken_at_the_drawn_ages(new_rig: Callable[..., Rig]) -> None:
    """On the local market each machine is noticed at its drawn age, and processed steps count each step once."""
    rig = new_rig(notice_s=4.0)
    rig.start_controller()
    wanted = {
        "envs": {"STEPS": "1000000", "STEP_S": "0.05", "STARTS": "starts.txt"},
        "checkpoint": {"insure": "20 steps"},
    }
    job_id = rig.submit({"name": "drawn", **wanted}, SCRIPT, "mttp=12s+20s,seed=4,notice=4s")
    rig.until(lambda: sum(stay.told is not None for stay in rig.stays(job_id)) >= 8, "eight are taken", 300.0)
    rig.say("stop", job_id)
    told = rig.ended(job_id)
    noticed = [stay for stay in rig.stays(job_id) if stay.started is not None and stay.told is not None]
    injection = Injection((12.0, 20.0), seed=4, notice_s=4.0)
    ages_s = [stay.told - stay.started for stay in noticed]  # type: ignore[operator]
    drawn = [lifetime_s(injection, 0, number) for number in range(1, len(ages_s) + 1)]
    executed = steps_printed(rig, job_id)

    assert ages_s == pytest.approx(drawn, abs=1.0)
    assert told["details"]["saved_step"] == max(checkpoint.step for checkpoint in rig.checkpoints(job_id))
    assert told["details"]["saved_step"] == len(set(executed)), "every step up to the last is there, redone ones once"
    commanded = [command for row in rig.rows(job_id) for command in row.commands if isinstance(command, PreemptMachine)]
    assert len(commanded) == len(noticed)
    rig.check(job_id, told)


def steps_printed(rig: Rig, job_id: str) -> list[int]:
    """Every step that a script finished, on whichever machine, up to what was saved last."""
    saved = max(checkpoint.step for checkpoint in rig.checkpoints(job_id))
    printed = [line for line in rig.say("logs", rig.run_url(job_id)).splitlines() if line.startswith("step ")]
    return [step for step in (int(line.removeprefix("step ")) for line in printed) if step <= saved]
