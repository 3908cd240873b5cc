"""BidBrain's arithmetic is the paper's equations, for one allocation after the other."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from windfall.policies.acquisition import bidbrain, bidbrain_scores
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.acquisition.bidbrain_scores import Allocations

Row = dict[str, Any]
APP = Application(eviction_s=120.0, change_s=45.0, loss_per_core=1e-3)


def columns(rows: list[Row]) -> Allocations:
    """Return the rows as columns."""
    return Allocations(**{name: np.array([row[name] for row in rows]) for name in Allocations._fields})


def row(**more: Any) -> Row:
    """A machine of 8 cores whose hour begins."""
    return {
        "machines": 1.0, "cores": 8.0, "usd_per_hour": 0.4, "left_s": 3600.0, "evicted": 0.0, "median_s": 3600.0,
        "refund": True, "works": True,
    } | more  # fmt: skip


def any_row(rng: random.Random) -> Row:
    """Any allocation."""
    left_s = rng.uniform(0.0, 3600.0)
    return row(
        machines=float(rng.randint(1, 60)), cores=float(rng.choice([2, 4, 8, 40])), usd_per_hour=rng.uniform(0.01, 2.0),
        left_s=left_s, evicted=rng.choice([0.0, 1.0, rng.random()]), median_s=rng.uniform(0.0, left_s),
        refund=rng.random() < 0.5, works=rng.random() < 0.8,
    )  # fmt: skip


def plain(rows: list[Row], app: Application, *, changed: bool) -> float:
    """Equations 1 to 4, as printed."""
    stays, cost, work = 1.0, 0.0, 0.0
    for one in rows:
        stays *= 1.0 - one["evicted"]
    for one in rows:
        lost_s = 0.0 if one["refund"] else min(one["median_s"], one["left_s"])
        hours = ((1 - one["evicted"]) * one["left_s"] + one["evicted"] * lost_s) / 3600.0
        cost += one["usd_per_hour"] * one["machines"] * hours
        omega_s = min(one["median_s"], one["left_s"]) if one["evicted"] > 0.5 else one["left_s"]
        useful_s = max(omega_s - (1 - stays) * app.eviction_s - app.change_s * changed, 0.0)
        work += one["works"] * one["machines"] * one["cores"] * useful_s
    cores = sum(one["works"] * one["machines"] * one["cores"] for one in rows)
    work *= max(1.0 - app.loss_per_core * max(cores - 1.0, 0.0), bidbrain.EFFICIENCY_MIN)
    return cost / work if work > 0.0 else math.inf


@pytest.mark.parametrize("seed", range(20))
def test_each_choice_is_weighed_by_the_equations(seed: int) -> None:
    """The fleet as it is, with each offered allocation, and without each of its own."""
    rng = random.Random(seed)
    held, offered = ([any_row(rng) for _ in range(count)] for count in (rng.randint(1, 8), 30))
    app = Application(rng.uniform(0, 300), rng.uniform(0, 300), rng.choice([0.0, 1e-4, 1e-2]))
    assert bidbrain_scores.cost_per_work(columns(held), app) == pytest.approx(plain(held, app, changed=False))
    assert bidbrain_scores.with_each(columns(held), columns(offered), app) == pytest.approx(
        [plain([*held, one], app, changed=True) for one in offered]
    )
    assert bidbrain_scores.without_each(columns(held), app) == pytest.approx(
        [plain(held[:place] + held[place + 1 :], app, changed=True) for place in range(len(held))]
    )


def test_the_second_allocation_pays_for_the_reliable_machine_too() -> None:
    """The paper's toy (Figures 5 and 6): a machine that does no work makes further workers worth their price."""
    keeper = row(works=False, usd_per_hour=0.2)
    worker = row(machines=4.0, usd_per_hour=0.1)
    now = bidbrain_scores.cost_per_work(columns([keeper, worker]), APP)
    assert bidbrain_scores.with_each(columns([keeper, worker]), columns([worker]), APP)[0] < now
    assert bidbrain_scores.with_each(columns([worker]), columns([worker]), APP)[0] > bidbrain_scores.cost_per_work(
        columns([worker]), APP
    )


def test_a_likely_eviction_is_worth_its_free_hour_only_where_it_is_cheap() -> None:
    """With a refund a risky bid is cheaper, until evictions cost more than the hour that they give back."""
    safe, risky = row(machines=8.0), row(machines=8.0, evicted=0.45, median_s=1800.0)
    calm, nervous = (Application(lost_s, 0.0, 0.0) for lost_s in (60.0, 3000.0))
    costs = [bidbrain_scores.with_each(columns([safe]), columns([safe, risky]), app) for app in (calm, nervous)]
    assert costs[0][1] < costs[0][0]
    assert costs[1][1] > costs[1][0]


def test_a_fleet_without_work_costs_infinitely_much_for_it() -> None:
    """So anything that works is bought."""
    keeper = columns([row(works=False)])
    assert bidbrain_scores.cost_per_work(keeper, APP) == math.inf
    assert bidbrain_scores.with_each(keeper, columns([row()]), APP)[0] < math.inf
    assert bidbrain_scores.without_each(columns([row()]), APP).tolist() == [math.inf]
