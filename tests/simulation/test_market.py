"""The simulated market, whatever is ordered: capacity holds, money is the rule's, gangs live and die together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.market_shop import Points, Shopper, due_usd
from windfall.market import BillingBasis, BillingRule, BootSpec, Machine, MachineEndCause, Refusal
from windfall.simulation.market_evictions import EvictionRule, NoticeShares, TracedEnds
from windfall.simulation.scenario import LifetimeQuantiles, MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.terms import Reliability, Seconds

DAY_S = 86_400.0
BASES = tuple(BillingBasis)


def pool(points: Points = ((0.0, 1.0),), **more: object) -> SimulatedMarket:
    """One type in one zone; machines start at once."""
    words: dict[str, object] = {"allocate_s": (0.0, 0.0), "zone": "a", "notice_s": Seconds(0.0)} | more
    return SimulatedMarket(  # type: ignore[misc]
        machine_type="m4",
        reliability=Reliability.TRANSIENT,
        prices=ValueSeries.of(points),
        on_demand_usd_per_hour=100.0,
        **words,  # type: ignore[arg-type]
    )


def columns(low: float, high: float, size: int) -> st.SearchStrategy[Points]:
    """Values over a day, the first from 0 on."""
    moments = st.lists(st.integers(1, 86_400), max_size=size, unique=True).map(sorted)
    return moments.flatmap(
        lambda times: st.lists(st.floats(low, high), min_size=len(times) + 1, max_size=len(times) + 1).map(
            lambda values: tuple(zip((0.0, *map(float, times)), values, strict=True))
        )
    )


def _ends(times: list[int]) -> EvictionRule:
    return TracedEnds(ValueSeries.of([(float(at), 0.0) for at in sorted(times)] or [(0.0, 0.0)]).times_s)


capacities = columns(0.0, 12.0, 12).map(lambda points: tuple((at, float(int(count))) for at, count in points))
evictions: st.SearchStrategy[EvictionRule] = st.one_of(
    st.none(),
    st.floats(600.0, 40_000.0).map(lambda mean_s: MemorylessLifetimes((mean_s,))),
    st.lists(st.floats(10.0, 50_000.0), min_size=2, max_size=4).map(
        lambda ages: LifetimeQuantiles(tuple(sorted(ages)))
    ),
    st.lists(st.integers(1, 86_400), max_size=15, unique=True).map(_ends),
)
orders = st.lists(
    st.tuples(
        st.floats(0.0, DAY_S), st.integers(0, 1), st.integers(1, 6), st.booleans(), st.none() | st.floats(0.0, 30_000.0)
    ),
    min_size=1,
    max_size=15,
).map(tuple)
rules = st.builds(
    BillingRule, st.sampled_from(BASES), st.sampled_from([0.0, 60.0, 7200.0]), st.sampled_from([3600.0, 600.0])
)


@st.composite
def shoppers(draw: st.DrawFn) -> tuple[list[Points], tuple[SimulatedMarket, ...], tuple[tuple[object, ...], ...]]:
    """Two zones, and what is ordered there."""
    points = [draw(columns(0.1, 20.0, 10)) for _ in range(2)]
    pools = tuple(
        pool(
            points[place],
            zone="ab"[place],
            notice_s=Seconds(draw(st.sampled_from([0.0, 120.0, 3000.0]))),
            allocate_s=draw(st.sampled_from([(0.0, 0.0), (10.0, 400.0)])),
            bid=draw(st.booleans()),
            refund=draw(st.booleans()),
            billing=draw(rules),
            capacity=ValueSeries.of(draw(capacities)),
            eviction=draw(evictions),
            notices=draw(st.sampled_from([NoticeShares(), NoticeShares(0.3, 0.3), NoticeShares(missing=1.0)])),
        )
        for place in range(2)
    )
    return points, pools, draw(orders)


@settings(max_examples=150, deadline=None)
@given(made=shoppers(), seed=st.integers(0, 5))
def test_whatever_is_ordered_capacity_holds_and_gangs_stay_together(made: tuple, seed: int) -> None:  # type: ignore[type-arg]
    """At the end of each instant; machines of one allocation start and end at the same instant, for the same cause."""
    _, pools, ordered = made
    shopper = Shopper(pools, ordered, seed)
    shopper.run(3 * DAY_S)

    assert shopper.exceeded == []
    for members in shopper.allocations.values():
        assert len({shopper.started_s[one] for one in members}) == 1
        assert len({shopper.ends.get(one) for one in members}) == 1
    for machine_id, at_s, left_s in shopper.notices:
        promised_s = shopper.machines[machine_id]
        place = "ab".index(promised_s.zone)
        assert 0.0 <= left_s <= pools[place].notice_s
        ended_s, cause = shopper.ends.get(machine_id, (at_s + left_s, None))
        assert cause is not MachineEndCause.PREEMPTED or ended_s <= at_s + left_s + 1e-6


@settings(max_examples=150, deadline=None)
@given(made=shoppers(), seed=st.integers(0, 5))
def test_money_is_what_the_rule_says_to_the_cent(made: tuple, seed: int) -> None:  # type: ignore[type-arg]
    """The meter, and the bill's lines, against a reckoning that looks at each price; for each rule, refund and minimum."""
    points, pools, ordered = made
    shopper = Shopper(pools, ordered, seed)
    shopper.run(3 * DAY_S)
    for machine in shopper.provider.alive("job"):
        shopper.provider.release(machine.machine_id)
    shopper.run(4 * DAY_S)

    expected = 0.0
    for machine_id, (ended_s, cause) in shopper.ends.items():
        if machine_id not in shopper.started_s:
            continue
        machine = shopper.machines[machine_id]
        place = "ab".index(machine.zone)
        ordered_s = ordered[int(machine.token.removeprefix("t-"))][0]
        free = pools[place].refund and cause is MachineEndCause.PREEMPTED
        started_s = shopper.started_s[machine_id]
        expected += due_usd(pools[place].billing, points[place], started_s, ended_s, ordered_s, free=free)
    assert shopper.metered_usd() == pytest.approx(expected, abs=0.005)
    last = {charge.charge_id: charge for charge in shopper.provider.charges("shopper", "").charges}
    assert sum(charge.amount_usd for charge in last.values()) == pytest.approx(expected, abs=0.005)
    assert all(charge.settled for charge in last.values())


@settings(max_examples=25, deadline=None)
@given(made=shoppers(), seed=st.integers(0, 5))
def test_the_same_seed_is_the_same_market(made: tuple, seed: int) -> None:  # type: ignore[type-arg]
    """Answers, starts and ends, to the byte."""
    _, pools, ordered = made
    first, second = Shopper(pools, ordered, seed), Shopper(pools, ordered, seed)
    first.run(3 * DAY_S)
    second.run(3 * DAY_S)
    assert first.log == second.log


# -------------------------------------------------------------------------------------------------- one rule at a time


def _alone(market: SimulatedMarket, *, count: int = 1, gang: bool = False, keep_s: float | None = None) -> Shopper:
    shopper = Shopper((market,), ((100.0, 0, count, gang, keep_s),))
    shopper.run(5 * DAY_S)
    return shopper


STEPS: Points = ((0.0, 1.0), (1900.0, 4.0), (3701.0, 2.0))
"""A dollar for half an hour, four for the next, two from the first second of the second hour on."""


@pytest.mark.parametrize(
    ("rule", "usd"),
    [
        (BillingRule(BillingBasis.PURCHASE), 1.5),
        (BillingRule(BillingBasis.IN_EFFECT), 0.5 + 2.0 + (1.0 / 3600) * 4.0 + (1799.0 / 3600.0) * 2.0),
        (BillingRule(BillingBasis.STARTED_HOUR), 1.0 + 4.0),
        (BillingRule(BillingBasis.PURCHASE, minimum_s=7200.0), 2.0),
    ],
)
def test_an_hour_and_a_half_costs_what_the_rule_says(rule: BillingRule, usd: float) -> None:
    """Released after 90 minutes, worked out by hand."""
    assert _alone(pool(STEPS, billing=rule), keep_s=5400.0).metered_usd() == pytest.approx(usd, abs=1e-6)


def test_the_started_hour_of_a_preemption_is_refunded_whole() -> None:
    """Proteus, section 4: an eviction refunds what was charged at the start of the billing hour."""
    rule = BillingRule(BillingBasis.STARTED_HOUR)
    taken = pool(STEPS, billing=rule, refund=True, eviction=TracedEnds(ValueSeries.of(((5500.0, 0.0),)).times_s))
    assert _alone(taken).metered_usd() == pytest.approx(1.0, abs=1e-6)


def test_a_price_above_the_bid_preempts_and_refuses() -> None:
    """The default bid is the on-demand price; a machine bought before goes, one ordered now is refused."""
    market = pool(((0.0, 1.0), (1000.0, 101.0), (2000.0, 1.0)), bid=True, notice_s=Seconds(120.0))
    shopper = Shopper((market,), ((0.0, 0, 2, True, None), (1500.0, 0, 1, False, None), (2500.0, 0, 1, False, None)))
    shopper.run(DAY_S)
    assert [(at, cause) for at, cause in shopper.ends.values()] == [(1120.0, MachineEndCause.PREEMPTED)] * 2
    assert Refusal.PRICE.name in shopper.log[-1] or "the price is 101" in "".join(shopper.log)
    assert len(shopper.provider.alive("job")) == 1


def test_a_fall_of_capacity_is_announced_and_takes_no_more_than_it_must() -> None:
    """From 5 to 2 at 1000 s, with 100 s of notice: three machines of a market of five."""
    market = pool(capacity=ValueSeries.of(((0.0, 5.0), (1000.0, 2.0))), notice_s=Seconds(100.0))
    shopper = _alone(market, count=5)
    assert sorted(at for at, _ in shopper.ends.values()) == [1000.0] * 3
    assert [(at, left) for _, at, left in shopper.notices] == [(900.0, 100.0)] * 3


def test_a_gang_is_refused_whole_and_loses_all_to_a_fall_by_one() -> None:
    """Four machines where three are free are not sold; four where the capacity falls to three all go."""
    assert _alone(pool(capacity=ValueSeries.constant(3.0)), count=4, gang=True).started_s == {}
    shopper = _alone(pool(capacity=ValueSeries.of(((0.0, 4.0), (500.0, 3.0)))), count=4, gang=True)
    assert [at for at, _ in shopper.ends.values()] == [500.0] * 4
    assert len(shopper.allocations) == 1


def test_missing_and_short_notices_come_as_often_as_the_market_says() -> None:
    """A third none, a third short, a third true, of a thousand."""
    market = pool(
        eviction=MemorylessLifetimes((36_000.0,)), notice_s=Seconds(60.0), notices=NoticeShares(1.0 / 3.0, 1.0 / 3.0)
    )
    shopper = Shopper((market,), ((0.0, 0, 1000, False, None),))
    shopper.run(60 * DAY_S)
    lefts = [left for _, _, left in shopper.notices]
    assert len(shopper.ends) == 1000
    assert len(lefts) == pytest.approx(667, abs=60)
    assert sum(left == 60.0 for left in lefts) == pytest.approx(333, abs=60)


def test_a_quota_of_the_market_is_the_account_s() -> None:
    """Three of five."""
    assert len(_alone(pool(quota=3), count=5).started_s) == 3


def test_a_gang_released_as_its_first_machine_starts_starts_no_other() -> None:
    """The driver hears of the starts one by one, and may answer the first with a release."""

    class Hasty(Shopper):
        def started(self, machine: Machine, boot: BootSpec) -> None:
            super().started(machine, boot)
            self.provider.release(machine.machine_id)

    shopper = Hasty((pool(),), ((0.0, 0, 3, True, None),))
    shopper.run(500.0)
    assert list(shopper.started_s) == ["sim-1"]
    assert len(shopper.ends) == 3


def test_the_release_of_one_machine_releases_its_gang() -> None:
    """An allocation is given back as a whole."""
    shopper = Shopper((pool(),), ((0.0, 0, 3, True, None),))
    shopper.run(50.0)
    shopper.provider.release("sim-2")
    assert [cause for _, cause in shopper.ends.values()] == [MachineEndCause.RELEASED] * 3
