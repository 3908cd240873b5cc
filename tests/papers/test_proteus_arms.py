"""The arms of Proteus' comparison in a world of two types whose prices are simple enough to reckon by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.lab import proteus_arms as arms
from windfall.lab import proteus_worlds as worlds
from windfall.lab.proteus_arms import ARMS, ArmJob, ArmRun, Choices
from windfall.lab.proteus_worlds import CURRENT_IN_2016, SPRING, PriceWorld, Span

ZONE = "us-east-1a"
START_S = SPRING.train_s[0] + 86_400.0
FREE = Choices(eviction_s=0.0, change_s=0.0, loss_per_core=0.0, checkpoint_s=600.0, restart_s=60.0)
SERVERS_USD = 3 * 0.209
XLARGE_USD = 0.04


def world(*changes: tuple[float, float]) -> PriceWorld:
    """m4.xlarge at 0.04 USD/h, or as it changes after the start [s, USD/h]; m4.10xlarge at 1 USD/h."""
    kinds = {kind.machine_type: kind for kind in CURRENT_IN_2016 if kind.machine_type in {"m4.xlarge", "m4.10xlarge"}}
    times = np.array([SPRING.train_s[0], *(START_S + after_s for after_s, _ in changes)])
    usd = np.array([XLARGE_USD, *(price for _, price in changes)])
    steady = np.array([SPRING.train_s[0]]), np.array([1.0])
    series = {(ZONE, "m4.xlarge"): (times, usd), (ZONE, "m4.10xlarge"): steady}
    return PriceWorld(SPRING, Span.TRAIN, kinds, series, SPRING.train_s[1])


def run(arm: str, prices: PriceWorld, hours: float = 2.0, choices: Choices = FREE) -> ArmRun:
    odds = worlds.odds(prices, ZONE, choices.deltas_usd(), (SPRING.train_s[0], START_S))
    return arms.play(prices, arm, ArmJob(ZONE, START_S, hours), choices, odds)


@pytest.mark.parametrize("hours", [2.0, 1.5])
def test_on_demand_takes_its_hours_and_costs_the_list_price(hours: float) -> None:
    """64 machines at 0.419 USD/h; what is left of the last hour is not charged."""
    found = run("on-demand", world(), hours)
    assert found.run_s == pytest.approx(3600.0 * hours)
    assert found.cost_usd == pytest.approx(64 * 0.419 * hours)
    assert found.on_demand_core_h == pytest.approx(512 * hours)


def test_standard_with_agileml_pays_the_market_and_three_machines_on_demand() -> None:
    """512 cores of the cheapest type per core, for as long as on demand."""
    found = run("standard+agileml", world())
    assert found.run_s == pytest.approx(7200.0)
    assert found.cost_usd == pytest.approx(2.0 * (128 * XLARGE_USD + SERVERS_USD))
    assert (found.paid_core_h, found.free_core_h, found.evictions) == (pytest.approx(1024.0), 0.0, 0)


def test_checkpoints_cost_their_slowdown_and_a_first_start() -> None:
    """17 % more time at the same price, and no machine on demand."""
    found = run("standard+checkpoint", world())
    assert found.run_s == pytest.approx(7200.0 * 1.17 + 60.0)
    assert found.cost_usd == pytest.approx(found.run_s / 3600.0 * 128 * XLARGE_USD)


def test_an_eviction_makes_its_hour_free_and_costs_lost_work_with_checkpoints_only() -> None:
    """After half an hour the price exceeds the bid for a minute; the larger type is bought, 13 machines of 40 cores."""
    spike = world((1800.0, 0.5), (1860.0, XLARGE_USD))
    tiers, saved = run("standard+agileml", spike), run("standard+checkpoint", spike)
    assert (tiers.evictions, saved.evictions) == (1, 1)
    assert tiers.free_core_h == pytest.approx(256.0)
    rest_s = (1024.0 - 256.0) / 520.0 * 3600.0
    assert tiers.run_s == pytest.approx(1800.0 + rest_s)
    assert tiers.cost_usd == pytest.approx(13.0 * rest_s / 3600.0 + SERVERS_USD * tiers.run_s / 3600.0)
    worked_s = 1800.0 - 60.0
    kept_s = worked_s - worked_s % 600.0
    again_s = (1024.0 * 3600.0 * 1.17 - 512.0 * kept_s) / 520.0
    assert saved.run_s == pytest.approx(1800.0 + 60.0 + again_s)


def test_proteus_buys_until_the_machines_on_demand_are_spread_thin() -> None:
    """Where machines lose nothing to each other it fills its cap, and is done in half the time."""
    found = run("proteus", world(), choices=Choices(eviction_s=0.0, change_s=0.0, loss_per_core=0.0, purchases_max=16))
    assert found.run_s == pytest.approx(3600.0, rel=0.01)
    assert found.cost_usd == pytest.approx(256 * XLARGE_USD + SERVERS_USD, rel=0.01)


def test_every_arm_finishes_and_no_arm_beats_one_that_knows_all_prices_by_much() -> None:
    """A day of prices that jump; the arms' hours on demand, paid and free are what their machines lived."""
    rng = np.random.default_rng(7)
    jumps = [(600.0 * n, float(rng.choice([0.04, 0.05, 0.3], p=[0.45, 0.45, 0.1]))) for n in range(1, 144)]
    prices = world(*jumps)
    odds = worlds.odds(prices, ZONE, FREE.deltas_usd(), (START_S, START_S + 86_400.0))
    found = {arm: arms.play(prices, arm, ArmJob(ZONE, START_S, 2.0), FREE, odds) for arm in ARMS}
    assert not any(math.isnan(one.cost_usd) for one in found.values())
    assert all(one.paid_core_h >= 0.0 and one.free_core_h >= 0.0 for one in found.values())
    assert found["just-above"].evictions > found["standard+agileml"].evictions
    assert found["omniscient"].free_core_h > found["standard+agileml"].free_core_h
