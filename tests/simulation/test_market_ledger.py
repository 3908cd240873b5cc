"""A job's ledger, from listings and offers alone, is the meter, in every market: while machines run and when they ended."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.market_shop import OWNER, Points, Shopper
from tests.simulation.test_market import columns, pool
from windfall.core import ledger
from windfall.core.ledger import CHANGES_KEPT, Ledger
from windfall.market import BillingBasis, BillingRule
from windfall.simulation.scenario import MemorylessLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.virtual_time import WALL_START
from windfall.terms import Seconds, WallTime

DAY_S = 86_400.0
CENT = 0.01
LOOK_S = 1700.0


class Account:
    """A ledger that reads the shopper's listing every half hour, and is compared with the meter each time."""

    def __init__(self, shopper: Shopper, *, until_s: float) -> None:
        self.shopper, self.book, self.errors_usd = shopper, Ledger(), list[float]()
        for number in range(int(until_s / LOOK_S)):
            shopper.timeline.when(number * LOOK_S, self.look)

    def look(self) -> None:
        """Read the listing, and keep what separates the estimate from the meter."""
        provider = self.shopper.provider
        offers = {offer.key: offer for offer in provider.offers()}
        listed = [
            (one, offers[one.provider, one.machine_type, one.zone, one.reliability]) for one in provider.list(OWNER)
        ]
        self.book = ledger.observe(self.book, listed)
        now = WallTime(WALL_START + self.shopper.timeline.time)
        estimated_usd = ledger.totals(self.book, now).estimated_usd
        self.errors_usd.append(abs(estimated_usd - self.shopper.metered_usd()))


@st.composite
def markets(draw: st.DrawFn, minimum_s: float) -> tuple[SimulatedMarket, ...]:
    """Two zones with moving prices, each with a rule of its own."""
    rule = st.builds(BillingRule, st.sampled_from(BillingBasis), st.just(minimum_s), st.sampled_from([3600.0, 600.0]))
    return tuple(
        pool(
            draw(columns(0.1, 20.0, 10)),
            zone=zone,
            allocate_s=draw(st.sampled_from([(0.0, 0.0), (10.0, 400.0)])),
            bid=draw(st.booleans()),
            refund=draw(st.booleans()),
            billing=draw(rule),
            notice_s=Seconds(draw(st.sampled_from([0.0, 120.0]))),
            eviction=draw(st.sampled_from([None, MemorylessLifetimes((9000.0,))])),
        )
        for zone in "ab"
    )


orders = st.lists(
    st.tuples(
        st.floats(0.0, DAY_S), st.integers(0, 1), st.integers(1, 4), st.booleans(), st.none() | st.floats(0.0, 30_000.0)
    ),
    min_size=1,
    max_size=8,
).map(tuple)


def played(pools: tuple[SimulatedMarket, ...], ordered: tuple[tuple[object, ...], ...], seed: int) -> Account:
    """Two days, after which all machines are released, and a third."""
    shopper = Shopper(pools, ordered, seed)
    account = Account(shopper, until_s=3 * DAY_S)
    shopper.run(2 * DAY_S)
    for machine in shopper.provider.alive("job"):
        shopper.provider.release(machine.machine_id)
    shopper.run(3 * DAY_S)
    return account


@settings(max_examples=100, deadline=None)
@given(data=st.data(), ordered=orders, seed=st.integers(0, 5))
def test_the_running_estimate_is_the_meter_to_the_cent(
    data: st.DataObject, ordered: tuple[tuple[object, ...], ...], seed: int
) -> None:
    """At each look of three days: started hours, floating seconds, free hours, outbid and evicted machines."""
    account = played(data.draw(markets(0.0)), ordered, seed)

    assert len(account.errors_usd) > 100
    assert max(account.errors_usd) < CENT


@settings(max_examples=50, deadline=None)
@given(data=st.data(), minimum_s=st.sampled_from([60.0, 1500.0]), ordered=orders, seed=st.integers(0, 5))
def test_with_a_minimum_the_last_estimate_is_the_meter(
    data: st.DataObject, minimum_s: float, ordered: tuple[tuple[object, ...], ...], seed: int
) -> None:
    """While the minimum of a machine runs, nobody knows the prices ahead; once it has passed they were listed."""
    account = played(data.draw(markets(minimum_s)), ordered, seed)

    assert account.errors_usd[-1] < CENT


@pytest.mark.parametrize("basis", [BillingBasis.IN_EFFECT, BillingBasis.STARTED_HOUR])
def test_prices_that_move_all_the_time_are_folded_and_none_is_lost(basis: BillingBasis) -> None:
    """Every hundred seconds for two days: more changes than an account keeps one by one."""
    points: Points = tuple((100.0 * number, 1.0 + number * 7919 % 101 / 10.0) for number in range(1728))
    account = played((pool(points, billing=BillingRule(basis)),), ((50.0, 0, 2, False, None),), 1)

    (kept, _) = account.book.open.values()
    assert kept.folded_price is not None
    assert len(kept.changes) <= CHANGES_KEPT
    assert max(account.errors_usd) < CENT
    assert account.shopper.metered_usd() > 400.0
