"""P50 and P90 of a bag, against the closed form without losses and against machines played one by one with them."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from tests.policies.test_exploring_fleet import FAST, SMALL, bag_job
from windfall.errors import Infeasible
from windfall.fleet import JobPhase
from windfall.jobs import ForecastBasis, Measurement, Objective, RuntimeSpec
from windfall.market import Quota
from windfall.policies.layout import bag_rules, runtime_list
from windfall.policies.planning import bag_plan, forecasts
from windfall.policies.planning.bag_plan import BagCourse
from windfall.policies.planning.forecasts import ForecastOutcome
from windfall.report import forecast_report
from windfall.simulation import bag_odds, plan_odds
from windfall.structs import plain, replace
from windfall.terms import Seconds, Unit, Usd, WallTime

CALM = BagCourse(
    items=100, at_once=2, machines=5, item_s=60.0, mttp_s=None, allocate_s=30.0, prepare_s=10.0, usd_per_hour=0.36
)
LOSSY = BagCourse(
    items=200, at_once=2, machines=5, item_s=600.0, mttp_s=3600.0, allocate_s=120.0, prepare_s=60.0, usd_per_hour=0.36
)


def test_without_losses_a_bag_takes_its_rounds() -> None:
    """100 items, ten at once: ten rounds of a minute after the start; five machines are billed from their start."""
    found = bag_odds.odds_of(CALM, deadline_s=700.0, budget_usd=0.3)

    assert found.finish_s == pytest.approx((640.0, 640.0))
    assert found.cost_usd == pytest.approx((0.305, 0.305))
    assert (found.in_time, found.in_budget) == (1.0, 0.0)


def played(course: BagCourse, seed: int) -> tuple[float, float]:
    """Hand items out one by one to machines that are lost; return the finish [s] and the cost [USD].  Shares no code."""
    rng, done, now, billed_s = np.random.default_rng(seed), 0, 0.0, 0.0
    starts: dict[int, float] = {}
    events: list[tuple[float, int, str, int]] = []
    lives = [0] * course.machines
    for machine in range(course.machines):
        heapq.heappush(events, (course.allocate_s, machine, "up", 0))
    while done < course.items:
        now, machine, what, life = heapq.heappop(events)
        if what == "up":
            lives[machine], starts[machine] = life + 1, now
            heapq.heappush(events, (now + rng.exponential(course.mttp_s), machine, "lost", life + 1))
            heapq.heappush(events, (now + course.prepare_s + course.item_s, machine, "items", life + 1))
        elif life == lives[machine] and machine in starts:
            if what == "items":
                done += course.at_once
                heapq.heappush(events, (now + course.item_s, machine, "items", life))
            else:
                billed_s += now - starts.pop(machine)
                heapq.heappush(events, (now + course.allocate_s, machine, "up", life))
    billed_s += sum(now - since for since in starts.values())
    return now, billed_s * course.usd_per_hour / 3600.0


def test_with_losses_it_is_as_machines_played_one_by_one() -> None:
    """Mean lifetimes of six items: P50 and P90 of finish and cost within 3 % of 1,500 bags played by events."""
    found = bag_odds.odds_of(LOSSY, None, None)
    finish_s, cost_usd = np.array([played(LOSSY, seed) for seed in range(1500)]).T

    assert found.finish_s == pytest.approx(np.quantile(finish_s, (0.5, 0.9)), rel=0.03)
    assert found.cost_usd == pytest.approx(np.quantile(cost_usd, (0.5, 0.9)), rel=0.03)


@pytest.mark.parametrize("gang", [2, 5])
def test_a_gang_is_as_one_machine_that_is_lost_with_any_of_its_own(gang: int) -> None:
    """Ten machines in gangs: within 3 % of machines played one by one, each a gang of n times the rate and the price."""
    course = replace(LOSSY, machines=10, gang=gang, mttp_s=18_000.0)
    alone = replace(
        LOSSY, machines=10 // gang, mttp_s=18_000.0 / gang, usd_per_hour=gang * LOSSY.usd_per_hour
    )  # fmt: skip
    found = bag_odds.odds_of(course, None, None)
    finish_s, cost_usd = np.array([played(alone, seed) for seed in range(1500)]).T

    assert found.finish_s == pytest.approx(np.quantile(finish_s, (0.5, 0.9)), rel=0.03)
    assert found.cost_usd == pytest.approx(np.quantile(cost_usd, (0.5, 0.9)), rel=0.03)
    # E[T] = (exp(n t / mttp) - 1) mttp / n of an item that starts again after the loss of any of n machines.
    assert course.expected_item_s == pytest.approx((np.exp(600.0 * gang / 18_000.0) - 1.0) * 18_000.0 / gang)


def test_a_bag_with_a_fixed_number_of_machines_is_planned_as_a_bag() -> None:
    """With all its machines, also where the deadline needs fewer, and in gangs of two."""
    scaling = runtime_list.scaling_of(bag_job())
    fixed = replace(bag_job(objective=Objective(deadline_s=Seconds(9e4))), fleet="fixed")
    bag = replace(bag_rules.bag_of(fixed.runtime.settings), nodes=2, ranks=2)
    gangs = replace(fixed, runtime=RuntimeSpec("bag", bag_rules.settings_of(bag)))
    one, two, explored = (
        bag_plan.plan(job, scaling, (FAST,), (MEASURED,), WallTime(5.0))
        for job in (fixed, gangs, replace(fixed, fleet="explore"))
    )

    assert (bag_plan.suits(fixed), bag_plan.suits(replace(fixed, fleet="mix"))) == (True, False)
    assert one.bag is not None
    assert two.bag is not None
    assert (one.bag.machines, one.bag.gang, one.bag.slots) == (4, 1, 4 * one.bag.at_once)
    assert (two.bag.machines, two.bag.gang, two.bag.slots) == (4, 2, 2 * two.bag.at_once)
    assert explored.bag is not None
    assert explored.bag.machines == 1
    assert one.chosen.expected is not None
    assert two.chosen.expected is not None
    assert two.chosen.expected.wall_s > 1.9 * one.chosen.expected.wall_s - 200.0


def test_the_expected_course_is_near_the_median() -> None:
    """The closed form of the plan: within 5 % of the P50 for 200 items that losses repeat."""
    found = bag_odds.odds_of(LOSSY, None, None)

    assert LOSSY.work_s + 180.0 * (1.0 + LOSSY.losses / 5.0) == pytest.approx(found.finish_s[0], rel=0.05)


def test_the_same_seed_gives_the_same_odds() -> None:
    """And another one others."""
    same, other = (bag_odds.odds_of(LOSSY, None, None, seed=seed) for seed in (1, 2))

    assert bag_odds.odds_of(LOSSY, None, None, seed=1) == same
    assert other != same


MEASURED = Measurement("sim", "fast", Unit.ITEM, 0.1, Seconds(40.0), Seconds(30.0), 1, item_s=Seconds(10.0))


def test_what_the_plan_of_a_bag_foretells_is_kept_and_scored_at_its_end() -> None:
    """1,000 items of 10 s, four at once: 42 min after the start; a bag that took 40 min was inside P90, one of 60 above."""
    job, now = bag_job(), WallTime(5.0)
    scaling = runtime_list.scaling_of(job)
    assert scaling is not None
    plan = plain(bag_plan.plan(job, scaling, (FAST,), (MEASURED,), now))
    plan["odds"] = plan_odds.of_plan(None, job, plan, print)  # type: ignore[arg-type] - a bag's odds rest on its plan alone
    kept = forecasts.of_plan(job, plan, now)

    assert kept is not None
    assert (kept.basis, kept.machines, kept.machine_type) == (ForecastBasis.TRIALS, 4, "fast")
    assert kept.finish_p50_s == pytest.approx(2600.0, rel=0.1)
    assert kept.finish_p90_s is not None
    assert kept.finish_p50_s <= kept.finish_p90_s
    inside = ForecastOutcome(kept, JobPhase.DONE, Usd(0.01), Seconds(2400.0), False)
    above = replace(inside, cost_usd=Usd(9.0), finish_s=Seconds(3600.0))
    assert [line.rpartition(": ")[2] for line in forecast_report.lines(inside)] == ["inside P90", "inside P90"]
    assert [line.rpartition(": ")[2] for line in forecast_report.lines(above)] == ["above P90", "above P90"]


def test_a_bag_that_fits_no_machine_or_no_quota_is_refused_in_a_sentence() -> None:
    """An item of 4 CPUs where the largest machine has 1; and where only machines of quota 0 have room."""
    large = replace(SMALL, machine_type="large", cpus=8.0)
    job = bag_job(cores=4.0)
    scaling = runtime_list.scaling_of(job)
    assert scaling is not None

    with pytest.raises(
        Infeasible, match="an item needs 4 CPUs, and the largest machine that fits the job, small in a, has 1"
    ):
        bag_plan.plan(job, scaling, (SMALL,), (), WallTime(5.0))
    with pytest.raises(
        Infeasible, match=r"quota is 0 for every machine with room for it \(large in a\): raise the quota"
    ):
        bag_plan.plan(job, scaling, (SMALL, large), (), WallTime(5.0), quotas=(Quota("large", None, 0, 0),))
