"""BidBrain and the fleets that it is compared with, in the fleet loop: what they buy, keep, release, and what it costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from windfall.fleet import Slot
from windfall.jobs import BuyingLimits, Job, Resources, Use
from windfall.market import BillingBasis, BillingRule, OfferKey
from windfall.models import price_evictions
from windfall.models.price_evictions import EvictionTable, KnownPrices, odds_at
from windfall.policies.acquisition import bidbrain_policy, standard_bids
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.acquisition.bidbrain_policy import BidBrain
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetPolicy,
    FleetTarget,
    FleetView,
    MachineDrain,
    allocations,
)
from windfall.policies.acquisition.standard_bids import StandardBids
from windfall.simulation.elastic_work import ElasticWork, Survival
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.fleet_market import SOURCE
from windfall.simulation.scenario import MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import replace
from windfall.terms import Instant, Reliability, Seconds

HOUR_S = 3600.0
HOURLY = BillingRule(BillingBasis.STARTED_HOUR)
JOB = Job("job", "j", "u", "memory:///r", ("true",), (Resources(),), use=Use.AUTO)
KEEPER = Slot("s-0", "server", Reliability.RELIABLE)
APP = Application(eviction_s=60.0, change_s=30.0, loss_per_core=0.002)
SETTINGS = BidBrain(APP, "worker", cores=16.0, cores_max=320.0)
DELTAS = np.array([0.0, 0.01, 0.1])


def market(
    machine_type: str,
    points: Sequence[tuple[float, float]],
    *,
    cpus: float = 4.0,
    reliability: Reliability = Reliability.TRANSIENT,
    billing: BillingRule = HOURLY,
) -> SimulatedMarket:
    spot = reliability is Reliability.TRANSIENT
    return SimulatedMarket(
        machine_type, "a", reliability, ValueSeries.of(points), 1.0, Seconds(0.0), bid=spot, refund=spot,
        billing=billing, cpus=cpus, allocate_s=(0.0, 0.0),
    )  # fmt: skip


FIRM = market("firm", [(0.0, 1.0)], reliability=Reliability.RELIABLE)


def key(one: SimulatedMarket) -> OfferKey:
    return SOURCE, one.machine_type, one.zone, one.reliability


def odds(pools: Sequence[SimulatedMarket], evicted: float = 0.0) -> EvictionTable:
    """The same odds within the hour for every bid, evenly over it."""
    spot = [one for one in pools if one.reliability is Reliability.TRANSIENT]
    shape = (len(spot), len(DELTAS), 61)
    table = np.broadcast_to(np.linspace(0.0, evicted, 61), shape).copy()
    return EvictionTable({key(one): row for row, one in enumerate(spot)}, DELTAS, table, np.full(shape, 1800.0))


def loop(
    policy: FleetPolicy,
    pools: Sequence[SimulatedMarket],
    core_h: float = 400.0,
    *,
    evictions: EvictionTable | KnownPrices | None = None,
    needs: tuple[Slot, ...] = (KEEPER,),
    limits: BuyingLimits = JOB.limits,
) -> FleetLoop:
    work = ElasticWork(core_h * HOUR_S, APP, Survival(), "server")
    job = replace(JOB, limits=limits)
    return FleetLoop(job, policy, needs, pools, work=work, decide_every_s=np.inf, evictions=evictions or odds(pools))


def bought(played: FleetLoop) -> list[str]:
    """The types of the machines, in the order of their purchase."""
    return [played._market.pools[place].machine_type for place in played.rows.pool]


def test_it_buys_the_cheapest_per_core_until_more_would_cost_more() -> None:
    """Not the cheapest machine; and not up to the cap, because machines lose to each other."""
    pools = (market("small", [(0.0, 0.2)], cpus=2.0), market("large", [(0.0, 0.3)], cpus=8.0), FIRM)
    played = loop(bidbrain_policy.policy(SETTINGS), pools)
    assert played.play(24 * HOUR_S).finish_s is not None
    assert set(bought(played)) == {"firm", "large"}
    assert bought(played).count("firm") == 1
    rows = played.rows
    larges = [row for row, place in enumerate(rows.pool) if pools[place].machine_type == "large"]
    standing = [sum(rows.start[one] <= rows.start[row] < rows.end[one] for one in larges) for row in larges]
    assert 4 < max(standing) < 40
    needed = [slot.id for slot in played.needs]
    assert len(set(needed)) == len(needed)


def test_what_is_bought_at_one_instant_has_slots_of_its_own() -> None:
    """Machines that start at once are news, so the policy is asked again within the instant; no slot's id is used twice."""
    pools = (market("large", [(0.0, 0.3)], cpus=8.0), FIRM)
    decide, seen = bidbrain_policy.policy(SETTINGS), []

    def recorded(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        target = decide(view, estimates)
        seen.append((view.now, [slot.id for slot in target.needs]))
        return target

    loop(recorded, pools).play(HOUR_S)
    assert sum(now == seen[0][0] for now, _ in seen) > 2
    assert all(len(set(ids)) == len(ids) for _, ids in seen)


@pytest.mark.parametrize("fewest", [0, 6])
def test_the_fewest_machines_that_a_job_needs_stand_at_any_cost(fewest: int) -> None:
    """Machines lose so much to each other that fewer cost least; a job that needs six keeps six, hour after hour."""
    costly = replace(SETTINGS, app=replace(APP, loss_per_core=0.012), cores=8.0, machines_min=fewest)
    pools = (market("large", [(0.0, 0.3)], cpus=8.0), FIRM)
    played = loop(bidbrain_policy.policy(costly), pools)
    played.play(3.5 * HOUR_S)
    standing = [
        sum(
            start <= at_s < end and place == 0
            for place, start, end in zip(played.rows.pool, played.rows.start, played.rows.end, strict=True)
        )
        for at_s in (600.0, 3590.0, 7190.0, 12000.0)
    ]
    assert (set(standing) == {6} and bought(played).count("large") < 10) if fewest else (max(standing) < 6)


def test_the_machine_on_demand_makes_it_buy_more() -> None:
    """Its cost is spread over more work: without it the fleet is smaller."""
    pools = (market("large", [(0.0, 0.3)], cpus=8.0), FIRM)
    alone = loop(bidbrain_policy.policy(SETTINGS), pools, needs=())
    spread = loop(bidbrain_policy.policy(SETTINGS), pools)
    for played in (alone, spread):
        played.play(24 * HOUR_S)
    assert bought(alone).count("large") < bought(spread).count("large")


def test_an_hour_that_became_dear_is_the_last() -> None:
    """The price of the held type rises sixfold under its bid; its machines leave before the next hour, the others come."""
    pools = (market("a", [(0.0, 0.1), (1800.0, 0.6)]), market("b", [(0.0, 0.15)]), FIRM)
    generous = replace(odds(pools), deltas_usd=np.array([0.6, 0.7, 0.8]))
    played = loop(bidbrain_policy.policy(SETTINGS), pools, 4000.0, evictions=generous)
    played.play(3 * HOUR_S)
    rows = [row for row, place in enumerate(played.rows.pool) if place == 0]
    assert rows
    for row in rows:
        assert played.rows.end[row] == pytest.approx(played.rows.start[row] + HOUR_S - 120.0)
    assert "b" in bought(played)[-4:]


def test_after_an_eviction_it_buys_again_and_the_hour_is_free() -> None:
    """The price jumps over every bid for ten minutes: all are lost; meanwhile the other type is bought."""
    pools = (market("a", [(0.0, 0.1), (1800.0, 0.9), (2400.0, 0.1)]), market("b", [(0.0, 0.14)]), FIRM)
    played = loop(bidbrain_policy.policy(SETTINGS), pools)
    outcome = played.play(24 * HOUR_S)
    assert outcome.preemptions > 0
    starts = [start for place, start in zip(played.rows.pool, played.rows.start, strict=True) if place == 0]
    lost = sum(1 for start in starts if start < 1800.0)
    assert lost == outcome.preemptions
    assert all(start < 1800.0 or start >= 2400.0 for start in starts)
    assert outcome.finish_s is not None
    prices = {0: 0.1, 1: 0.14, 2: 1.0}
    usd = sum(prices[place] * _hours(played, row) for row, place in enumerate(played.rows.pool))
    assert outcome.usd == pytest.approx(usd)


def _hours(played: FleetLoop, row: int) -> float:
    """The started hours of a machine that are charged; one that was taken here was taken in its first."""
    if played.rows.taken[row]:
        return 0.0
    end = min(played.rows.end[row], played._time_s)
    return float(np.ceil((end - played.rows.start[row]) / HOUR_S - 1e-9))


@pytest.mark.parametrize(
    "policy",
    [
        bidbrain_policy.policy(SETTINGS),
        standard_bids.policy(StandardBids(16.0, "worker", above_usd_per_hour=0.05)),
        standard_bids.policy(StandardBids(16.0, "worker", switches=True)),
    ],
    ids=["bidbrain", "just-above", "greedy"],
)
def test_nothing_is_bought_dearer_than_on_demand(policy: FleetPolicy) -> None:
    """For ten minutes the only type costs more than on demand: it waits, and buys when that is over."""
    pools = (market("a", [(0.0, 1.2), (600.0, 0.1)]), FIRM)
    played = loop(policy, pools)
    played.play(2 * HOUR_S)
    starts = [start for place, start in zip(played.rows.pool, played.rows.start, strict=True) if place == 0]
    assert starts
    assert 600.0 <= min(starts) <= 720.0


def test_an_hour_above_on_demand_is_not_kept_though_nothing_else_is_offered() -> None:
    """The price rises over on demand under a generous bid: the machines leave when their hour ends."""
    pools = (market("a", [(0.0, 0.1), (1800.0, 1.2)]), FIRM)
    generous = replace(odds(pools), deltas_usd=np.array([2.0, 2.1, 2.2]))
    limited = loop(bidbrain_policy.policy(SETTINGS), pools, 4000.0, evictions=generous)
    unlimited = loop(bidbrain_policy.policy(replace(SETTINGS, price_max=np.inf)), pools, 4000.0, evictions=generous)
    for played in (limited, unlimited):
        played.play(3 * HOUR_S)
    longest = [
        max(end - start for place, start, end in zip(rows.pool, rows.start, rows.end, strict=True) if place == 0)
        for rows in (limited.rows, unlimited.rows)
    ]
    assert longest[0] <= HOUR_S < longest[1]


def test_a_policy_that_looks_when_asked_bids_above_the_price_of_that_moment() -> None:
    """Right after a rise: the old price plus a small delta would be refused, and the type not ordered for a while."""
    points = [(0.0, 0.1), *((300.0 * n + 10.0, 0.1 + 0.001 * n) for n in range(1, 12))]
    pools = (market("a", points), market("dear", [(0.0, 0.9)]), FIRM)
    close = replace(odds(pools, 0.9), deltas_usd=np.array([1e-4, 2e-4, 3e-4]))
    work = ElasticWork(100.0 * HOUR_S, APP, Survival(), "server")
    played = FleetLoop(
        JOB, bidbrain_policy.policy(SETTINGS), (KEEPER,), pools, work=work, decide_every_s=np.inf, evictions=close,
        looks_when_asked=True,
    )  # fmt: skip
    played.play(HOUR_S)
    assert played.refused() == frozenset()
    again = [start for place, start in zip(played.rows.pool, played.rows.start, strict=True) if place == 0]
    assert {310.0, 610.0, 910.0} <= set(again)


def test_odds_make_the_bid() -> None:
    """Free hours are worth an eviction that costs little, and not one that stops the job for half an hour."""
    pools = (market("a", [(0.0, 0.1)]), FIRM)
    even = odds(pools)
    risky = np.zeros_like(even.evicted)
    risky[:, 0, :] = 0.6
    table = replace(even, evicted=risky)
    cheap, dear = (replace(SETTINGS, app=replace(APP, eviction_s=eviction_s)) for eviction_s in (1.0, 1800.0))
    bids = {}
    for name, settings in (("cheap", cheap), ("dear", dear)):
        played = loop(bidbrain_policy.policy(settings), pools, evictions=table)
        played.play(HOUR_S)
        bids[name] = {bid for bid in played._bids.values() if bid is not None}
    assert 0.1 in bids["cheap"]
    assert min(bids["dear"]) >= 0.11


def test_without_bids_it_goes_by_lifetimes_and_does_not_churn() -> None:
    """Two offers whose prices cross back and forth by 3 %, by the second: what is held stays."""
    steps = [(600.0 * n, 0.103 if n % 2 else 0.1) for n in range(12)]
    other = [(600.0 * n, 0.1 if n % 2 else 0.103) for n in range(12)]
    rule = BillingRule(BillingBasis.IN_EFFECT)
    pools = tuple(
        replace(market(name, points, billing=rule), bid=False, refund=False)
        for name, points in (("a", steps), ("b", other))
    )
    work = ElasticWork(1000.0 * HOUR_S, APP, Survival(), "server")
    settings = replace(SETTINGS, app=replace(APP, change_s=0.0, loss_per_core=0.004), cores=4.0)
    played = FleetLoop(JOB, bidbrain_policy.policy(settings), (), pools, work=work)
    played.play(2 * HOUR_S)
    assert not any(end < 2 * HOUR_S for end in played.rows.end)


def test_standard_keeps_its_machines_until_they_are_taken_and_takes_the_cheapest_then() -> None:
    """Bid on demand: the price may triple; above the bid they are lost, and the other type is bought."""
    pools = (market("a", [(0.0, 0.1), (1800.0, 0.9), (5400.0, 1.5)]), market("b", [(0.0, 0.4)]))
    played = loop(standard_bids.policy(StandardBids(64.0, "worker")), pools, needs=())
    outcome = played.play(24 * HOUR_S)
    assert bought(played) == ["a"] * 16 + ["b"] * 16
    assert played.rows.end[:16] == [5400.0] * 16
    assert outcome.preemptions == 16


def test_standard_replaces_only_what_it_lost() -> None:
    """Machines that each live their own time: when some are gone, that many cores are bought again."""
    mortal = replace(market("a", [(0.0, 0.1)]), eviction=MemorylessLifetimes((4 * HOUR_S,)))
    played = loop(standard_bids.policy(StandardBids(64.0, "worker")), (mortal,), 4000.0, needs=())
    outcome = played.play(10 * HOUR_S)
    assert outcome.preemptions > 10
    assert outcome.machines == 16 + outcome.preemptions


def test_a_machine_that_is_about_to_leave_is_in_no_allocation() -> None:
    """One of two is to be released in an hour; its successor, which starts meanwhile, counts in its place."""
    slow = replace(market("a", [(0.0, 0.1)]), allocate_s=(600.0, 600.0))
    two = tuple(Slot(f"w-{number}", "worker") for number in range(2))
    seen: list[int] = []

    def drains_one(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        del estimates
        seen.append(sum(len(one.slots) for one in view.allocations()))
        assert seen[-1] == sum(len(one.slots) for one in allocations(view.machines(), view.needs))
        due = view.now == WALL_START + 1200.0
        release = MachineDrain("sim-1", Instant(view.now + HOUR_S), "test")
        return FleetTarget(view.needs, (release,) if due else (), wake_at=Instant(view.now + 300.0))

    loop(drains_one, (slow,), needs=two).play(2 * HOUR_S)
    assert seen[0] == 0
    assert set(seen[1:]) == {2}


def standing_max(played: FleetLoop) -> dict[str, int]:
    """The most machines of each type that stood at one time."""
    rows = played.rows
    found = dict.fromkeys(bought(played), 0)
    for start_s in rows.start:
        alive = [row for row in range(len(rows.pool)) if rows.start[row] <= start_s < rows.end[row]]
        for kind in found:
            count = sum(played._market.pools[rows.pool[row]].machine_type == kind for row in alive)
            found[kind] = max(found[kind], count)
    return found


POLICIES = {
    "bidbrain": bidbrain_policy.policy(SETTINGS),
    "bidbrain, more at once": bidbrain_policy.policy(replace(SETTINGS, cores=40.0, purchases_max=8)),
    "standard": standard_bids.policy(StandardBids(64.0, "worker")),
    "greedy": standard_bids.policy(StandardBids(64.0, "worker", switches=True)),
}


@pytest.mark.parametrize("name", POLICIES)
def test_no_fleet_has_more_machines_in_a_pool_than_the_job_allows(name: str) -> None:
    """Five of each; without the limit the cheapest has them all, also while machines are lost and bought again."""
    mortal = MemorylessLifetimes((2 * HOUR_S,))
    pools = tuple(
        replace(market(kind, [(0.0, price)]), eviction=mortal)
        for kind, price in (("a", 0.1), ("b", 0.105), ("c", 0.11), ("d", 0.115))
    )
    pools = (*pools, FIRM)
    free = loop(POLICIES[name], pools, 4000.0)
    free.play(10 * HOUR_S)
    assert max(standing_max(free).values()) > 5
    asked: list[int] = []

    def decide(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        target = POLICIES[name](view, estimates)
        asked.extend(Counter(slot.wants for slot in target.needs if slot.wants).values())
        return target

    played = loop(decide, pools, 4000.0, limits=BuyingLimits(pool_machines_max=5))
    played.play(10 * HOUR_S)
    assert max(asked) == 5, "no slot is opened for which nothing would be ordered"
    most = standing_max(played)
    assert max(most.values()) == 5
    assert len([kind for kind, count in most.items() if kind != "firm" and count == 5]) >= 2


@pytest.mark.parametrize("name", POLICIES)
def test_no_fleet_has_what_the_job_excludes(name: str) -> None:
    """The cheapest type is left alone."""
    pools = (market("a", [(0.0, 0.1)]), market("b", [(0.0, 0.12)]), FIRM)
    played = loop(POLICIES[name], pools, limits=BuyingLimits(machine_types_excluded=("a",)))
    played.play(10 * HOUR_S)
    assert set(bought(played)) == {"b", "firm"}


def test_greedy_leaves_at_its_hours_end_for_a_cheaper_offer() -> None:
    """The price of what it holds rises ninefold: at the end of the hour that is paid it has the other type."""
    pools = (market("a", [(0.0, 0.1), (1800.0, 0.9)]), market("b", [(0.0, 0.4)]))
    played = loop(standard_bids.policy(StandardBids(64.0, "worker", switches=True)), pools, needs=())
    played.play(24 * HOUR_S)
    assert bought(played) == ["a"] * 16 + ["b"] * 16
    assert played.rows.end[0] == pytest.approx(HOUR_S - 120.0, abs=120.0)


def test_just_above_is_lost_at_every_rise() -> None:
    """Two rises by a tenth of a cent take all sixteen machines each time."""
    pools = (market("a", [(0.0, 0.1), (1800.0, 0.101), (3000.0, 0.102)]), market("b", [(0.0, 0.4)]))
    played = loop(standard_bids.policy(StandardBids(64.0, "worker", above_usd_per_hour=0.0005)), pools, needs=())
    assert played.play(2 * HOUR_S).preemptions == 32


def test_who_knows_the_prices_bids_for_the_free_hour() -> None:
    """The price exceeds the lowest bid in the 50th minute: that bid makes the hour free."""
    pools = (market("a", [(0.0, 0.1), (3000.0, 0.105), (3100.0, 0.1)]), FIRM)
    series = pools[0].prices
    known = KnownPrices({key(pools[0]): (series.times_s, series.values)}, DELTAS, Instant(WALL_START))
    app = replace(APP, eviction_s=1.0, change_s=1.0)
    played = loop(bidbrain_policy.policy(replace(SETTINGS, app=app)), pools, evictions=known)
    outcome = played.play(HOUR_S)
    assert {bid for bid in played._bids.values() if bid is not None} >= {0.1}
    assert outcome.preemptions > 0


def test_known_prices_say_when_each_bid_is_exceeded() -> None:
    """After 20 min by 0.02, after 50 min by 0.2; asked ten minutes later, ten minutes sooner; never in the next hour after."""
    points = [(0.0, 0.1), (1200.0, 0.12), (3000.0, 0.3), (9000.0, 0.1)]
    times, usd = np.array([at for at, _ in points]), np.array([price for _, price in points])
    known = KnownPrices({key(FIRM): (times, usd)}, DELTAS, Instant(WALL_START))
    for asked_s in (0.0, 600.0):
        table = known.at(Instant(WALL_START + asked_s))
        in_an_hour = [odds_at(DELTAS, table.evicted[0], table.median_s[0], delta, HOUR_S) for delta in DELTAS]
        assert in_an_hour == [(1.0, 1200.0 - asked_s), (1.0, 1200.0 - asked_s), (1.0, 3000.0 - asked_s)]
        soon_s = 1260.0 - asked_s
        soon = [odds_at(DELTAS, table.evicted[0], table.median_s[0], delta, soon_s)[0] for delta in DELTAS]
        assert soon == [1.0, 1.0, 0.0]
    assert not known.at(Instant(WALL_START + 4000.0)).evicted.any()


def test_the_loop_and_the_live_view_see_the_same_allocations() -> None:
    """At every decision of a history with evictions, by a pass over all machines and without one."""
    rng = random.Random(3)
    points = [(600.0 * n, rng.choice([0.1, 0.104, 0.12, 0.3])) for n in range(30)]
    pools = (market("a", points), market("b", [(0.0, 0.13)]), FIRM)
    decide = bidbrain_policy.policy(SETTINGS)
    seen = 0

    def watching(view: FleetLoop, estimates: object) -> object:
        nonlocal seen
        seen += 1
        plain = allocations(view.machines(), view.needs)
        assert {one.order: one for one in view.allocations()} == {one.order: one for one in plain}
        return decide(view, estimates)  # type: ignore[arg-type]

    played = loop(watching, pools, 2000.0)  # type: ignore[arg-type]
    played.play(5 * HOUR_S)
    assert seen > 100


def test_a_table_answers_as_each_of_its_markets_does() -> None:
    """Forty bids of two markets with histories of their own."""
    rng = np.random.default_rng(5)
    learnt = {}
    for name in ("a", "b"):
        times = np.arange(0.0, 200_000.0, 300.0)
        prices = 0.1 + 0.01 * rng.integers(0, 12, len(times))
        learnt[SOURCE, name, "z", Reliability.TRANSIENT] = price_evictions.learn(
            times, prices, np.arange(0.0, 190_000.0, 777.0), DELTAS
        )
    table = price_evictions.table(learnt)
    deltas, ahead = rng.uniform(-0.01, 0.2, 40), rng.uniform(0.0, 4000.0, 40)
    for row, one in enumerate(learnt.values()):
        found = [
            odds_at(DELTAS, table.evicted[row], table.median_s[row], *pair) for pair in zip(deltas, ahead, strict=True)
        ]
        assert np.array_equal(np.array(found).T, np.array(one.within(deltas, ahead)))
