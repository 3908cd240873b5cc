"""Fleets for a deadline in the simulated world: in time on every series, and cheaper than on demand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.simulation.checkpoint_work import CheckpointWork
from windfall.jobs import Job, Measurement, Objective, Resources, Use, Work
from windfall.models import availability
from windfall.policies import policy_registry
from windfall.policies.acquisition import deadline_fleet, fleet_policy_list
from windfall.policies.acquisition.fleet_policy import FleetPolicy
from windfall.policies.layout import checkpoint_rules
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, Unit

HOUR_S = 3600.0
POLICIES = (policy_registry.OPTIMAL_DEADLINE, policy_registry.UNIFORM_PROGRESS, policy_registry.GREEDY_DEADLINE)
WORK_S, WINDOW_S = 6.0 * HOUR_S, 9.0 * HOUR_S
ALLOCATE_S, RESTORE_S, LOST_S = 200.0, 100.0, 60.0
UP_USD, DOWN_USD, ON_DEMAND_USD = 1.0, 9.0, 3.0


def markets(seed: int) -> tuple[SimulatedMarket, ...]:
    """Return spot machines, whose price is above every bid while they are unavailable, and on-demand ones."""
    random, at_s, up, points = np.random.default_rng(seed), 0.0, bool(seed % 2), {}
    while at_s < 2.0 * WINDOW_S:
        points[at_s] = UP_USD if up else DOWN_USD
        at_s, up = at_s + random.exponential(1.0 * HOUR_S if up else 0.7 * HOUR_S) + 60.0, not up
    prices = {Reliability.TRANSIENT: ValueSeries.of(points.items()), Reliability.RELIABLE: ValueSeries.constant(3.0)}
    return tuple(
        SimulatedMarket(
            "m",
            "a",
            kind,
            series,
            ON_DEMAND_USD,
            Seconds(0.0),
            (ALLOCATE_S, ALLOCATE_S),
            bid=kind is Reliability.TRANSIENT,
        )
        for kind, series in prices.items()
    )


def with_speed(policy: FleetPolicy) -> FleetPolicy:
    """Return a policy whose installation has run the job before: a step takes a second."""
    speed = Measurement("sim", "m", Unit.STEP, 1.0, Seconds(RESTORE_S), Seconds(ALLOCATE_S), 1)
    return lambda view, estimates: policy(view, replace(estimates, measured=(speed,)))


def played(fleet: str, seed: int, nodes: int = 1) -> tuple[float, float]:
    """Return when the job was done [s], and what it cost [USD]."""
    settings = {
        "changeover_s": ALLOCATE_S + RESTORE_S + 2.0 * LOST_S,
        "available_s": HOUR_S,
        "unavailable_s": 0.7 * HOUR_S,
        "decide_every_s": 60.0,
    }
    job = Job(
        "job", "job", "ada", "memory://run", ("train",), (Resources(),), nodes=nodes, use=Use.AUTO, fleet=fleet,
        fleet_settings=settings, work=Work(WORK_S / (1.0 + deadline_fleet.MARGIN), Unit.STEP),
        objective=Objective(deadline_s=Seconds(WINDOW_S)),
    )  # fmt: skip
    work = CheckpointWork(job.work.amount, nodes, RESTORE_S, LOST_S)  # type: ignore[union-attr]
    policy = with_speed(fleet_policy_list.policy(fleet))
    loop = FleetLoop(
        job, policy, checkpoint_rules.slots(job), markets(seed), seed=seed, work=work, decide_every_s=60.0,
        looks_when_asked=True,
    )  # fmt: skip
    found = loop.play(3.0 * WINDOW_S)
    assert found.finish_s is not None
    return found.finish_s, found.usd


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("fleet", POLICIES)
def test_every_deadline_is_kept_for_less_than_on_demand(fleet: str, nodes: int) -> None:
    """Twelve series whose spot machines come and go: in time on each, and in the mean at most nine tenths of on demand."""
    found = [played(fleet, seed, nodes) for seed in range(12)]
    assert max(finish_s for finish_s, _ in found) <= WINDOW_S
    whole_usd = nodes * ON_DEMAND_USD * (WORK_S + ALLOCATE_S + RESTORE_S) / HOUR_S
    assert np.mean([usd for _, usd in found]) < 0.9 * whole_usd


@pytest.mark.slow
def test_the_optimal_policy_costs_least_in_the_world_that_it_knows() -> None:
    """In the mean over 40 series, less than both others."""
    usd = {fleet: np.mean([played(fleet, seed)[1] for seed in range(40)]) for fleet in POLICIES}
    assert usd[policy_registry.OPTIMAL_DEADLINE] < min(
        usd[policy_registry.UNIFORM_PROGRESS], usd[policy_registry.GREEDY_DEADLINE]
    )


def test_the_public_hazards_are_those_of_the_public_series() -> None:
    """A means of an hour or two, and rates that fall by more than ten times with age."""
    from windfall.policies.deadlines import public_hazards

    found = public_hazards.hazards()
    assert found.ages_s == availability.AGES_S
    assert found.ends_per_s[0] > 10.0 * found.ends_per_s[-1]
    assert math.isclose(found.begins_per_s[-1], 0.0266 / HOUR_S)
