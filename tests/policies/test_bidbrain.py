"""BidBrain's arithmetic is the paper's equations, for one allocation after the other."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from windfall.policies.acquisition import bidbrain, bidbrain_scores
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.acquisition.bidbrain_scores import BidOdds, Held, Offered, Outlook, Purchases
from windfall.structs import replace

Row = dict[str, Any]
ALLOCATION = 64.0
"""Cores of one that is offered."""
APP = Application(eviction_s=120.0, change_s=45.0, loss_per_core=1e-3)


def table(rows: list[Row]) -> BidOdds:
    """Each row's odds in a row of the table, the same whenever and whatever is bid."""
    shape = len(rows), 1, 61
    columns = [np.array([one[name] for one in rows]).reshape(-1, 1, 1) for name in ("evicted", "median_s")]
    return BidOdds(np.zeros(1), *(np.broadcast_to(column, shape).astype(np.float64) for column in columns))


def numbers(rows: list[Row], name: str) -> NDArray[np.float64]:
    return np.array([one[name] for one in rows], dtype=np.float64)


def fleet(rows: list[Row]) -> tuple[Held, Outlook]:
    """Allocations in columns, whose periods have as much left as their rows say."""
    flags = [np.array([one[name] for one in rows], dtype=np.bool_) for name in ("refund", "works")]
    zeros, price = np.zeros(len(rows)), numbers(rows, "usd_per_hour")
    machines, cores, left_s = (numbers(rows, name) for name in ("machines", "cores", "left_s"))
    nothing = np.zeros(len(rows), dtype=np.bool_)
    held = Held(
        machines, cores, price, price, zeros, zeros + 3600.0, zeros, zeros + 1.0, np.arange(len(rows)), *flags,
        ~nothing, nothing,
    )  # fmt: skip
    works = flags[1]
    return held, Outlook(left_s, nothing, False, 0.0, float(machines @ works), float(machines * cores @ works))


def found(held: list[Row], offered: list[Row], app: Application, most: int = 1) -> Purchases:
    """What is bought of some offers, each of as many machines as its row says: their cores are the same."""
    columns, outlook = fleet(held)
    market = Offered(
        numbers(offered, "usd_per_hour"), numbers(offered, "left_s"), numbers(offered, "cores"), np.ones(len(offered)),
        len(held) + np.arange(len(offered)), np.array([one["refund"] for one in offered], dtype=np.bool_),
    )  # fmt: skip
    rules = bidbrain_scores.rules_of(app)._replace(cores=ALLOCATION, purchases_max=most)
    rooms = np.full(len(offered), math.inf)
    return bidbrain_scores.purchases(columns, outlook, (market, rooms), table([*held, *offered]), rules)


def row(**more: Any) -> Row:
    """A machine of 8 cores whose hour begins."""
    return {
        "machines": 1.0, "cores": 8.0, "usd_per_hour": 0.4, "left_s": 3600.0, "evicted": 0.0, "median_s": 3600.0,
        "refund": True, "works": True,
    } | more  # fmt: skip


def any_row(rng: random.Random) -> Row:
    """Any allocation."""
    left_s, works = rng.uniform(0.0, 3600.0), rng.random() < 0.8
    return row(
        machines=float(rng.randint(1, 60)), cores=float(rng.choice([2, 4, 8, 32])), usd_per_hour=rng.uniform(0.01, 2.0),
        left_s=left_s, evicted=rng.choice([0.0, 1.0, rng.random()]) if works else 0.0, median_s=rng.uniform(0.0, left_s),
        refund=rng.random() < 0.5, works=works,
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
    """The fleet as it is, with the best of the offered allocations and the next, and without each of its own."""
    rng = random.Random(seed)
    held, offered = ([any_row(rng) for _ in range(count)] for count in (rng.randint(1, 8), 30))
    for one in offered:
        one |= {"machines": ALLOCATION / one["cores"], "works": True}
    app = Application(rng.uniform(0, 300), rng.uniform(0, 300), rng.choice([0.0, 1e-4, 1e-2]))
    fleets, cost = [held], plain(held, app, changed=False)
    before = cost
    for _ in range(3):
        best = min(offered, key=lambda one: plain([*fleets[-1], one], app, changed=True))
        if not (value := plain([*fleets[-1], best], app, changed=True)) < cost:
            break
        fleets, cost = [*fleets, [*fleets[-1], best]], value
    made = found(held, offered, app, most=3)

    assert (made.before, made.after) == (pytest.approx(before), pytest.approx(cost))
    assert [offered[place] for place in made.offers] == fleets[-1][len(held) :]
    assert made.machines.tolist() == [one["machines"] for one in fleets[-1][len(held) :]]
    assert made.stays == pytest.approx(math.prod(1.0 - one["evicted"] for one in held))
    columns, outlook = fleet(held)
    now, without = bidbrain_scores.renewals(columns, outlook, table(held), bidbrain_scores.rules_of(app))
    assert now == pytest.approx(before)
    assert without == pytest.approx(
        [plain(held[:place] + held[place + 1 :], app, changed=True) for place in range(len(held))]
    )


def test_what_is_due_is_weighed_as_it_would_be_in_its_next_hour() -> None:
    """At its price of now and for a whole period; the others for what is left of theirs."""
    rows = [row(left_s=60.0), row(left_s=1800.0)]
    columns, outlook = fleet(rows)
    columns = columns._replace(renewed_usd_per_hour=np.array([0.9, 0.9]))
    now, _ = bidbrain_scores.renewals(
        columns, outlook._replace(due=np.array([True, False])), table(rows), bidbrain_scores.rules_of(APP)
    )

    assert now == pytest.approx(plain([row(usd_per_hour=0.9), rows[1]], APP, changed=False))


def test_the_second_allocation_pays_for_the_reliable_machine_too() -> None:
    """The paper's toy (Figures 5 and 6): a machine that does no work makes further workers worth their price."""
    keeper = row(works=False, usd_per_hour=0.2)
    worker = row(machines=4.0, usd_per_hour=0.1, cores=ALLOCATION / 4.0)
    with_keeper, alone = found([keeper, worker], [worker], APP), found([worker], [worker], APP)
    assert with_keeper.machines.tolist() == [4]
    assert with_keeper.after < with_keeper.before
    assert alone.machines.tolist() == []
    assert alone.after == alone.before


def test_a_likely_eviction_is_worth_its_free_hour_only_where_it_is_cheap() -> None:
    """With a refund a risky bid is cheaper, until evictions cost more than the hour that they give back."""
    safe, risky = row(machines=8.0), row(machines=8.0, evicted=0.45, median_s=1800.0)
    calm, nervous = (Application(lost_s, 0.0, 0.0) for lost_s in (60.0, 3000.0))
    dear = row(machines=8.0, usd_per_hour=0.8)
    assert [found([dear], [safe, risky], app).offers.tolist() for app in (calm, nervous)] == [[1], [0]]


def test_a_fleet_without_work_costs_infinitely_much_for_it() -> None:
    """So anything that works is bought."""
    made = found([row(works=False)], [row()], APP)
    assert (made.before, made.machines.tolist()) == (math.inf, [8])
    assert made.after < math.inf
    columns, outlook = fleet([row()])
    _, without = bidbrain_scores.renewals(columns, outlook, table([row()]), bidbrain_scores.rules_of(APP))
    assert without.tolist() == [math.inf]


def test_limits_are_kept() -> None:
    """Machines of an offer, of the fleet, and its cores; what is refused has no room at all."""
    columns, outlook = fleet([row(works=False)])
    market = Offered(*(np.full(2, value) for value in (0.1, 3600.0, 8.0, 1e6)), np.full(2, -1), np.ones(2, np.bool_))
    rules = bidbrain_scores.rules_of(replace(APP, loss_per_core=0.0))._replace(cores=32.0, purchases_max=9)

    def bought(rooms: tuple[float, float], **limits: float) -> list[tuple[int, int]]:
        known = bidbrain_scores.purchases(
            columns,
            outlook,
            (market, np.array(rooms)),
            table([]),
            rules._replace(**limits),  # type: ignore[arg-type]
        )
        return list(zip(known.offers.tolist(), known.machines.tolist(), strict=True))

    assert bought((3.0, 0.0)) == [(0, 3)]
    assert bought((0.0, 0.0)) == []
    assert bought((5.0, 9.0), cores_max=40.0) == [(0, 4), (0, 1)]
    assert bought((9.0, 9.0), machines_max=3.0) == [(0, 3)]
