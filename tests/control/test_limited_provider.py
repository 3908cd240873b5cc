"""Limits of the configuration file: checked before an order leaves, over all jobs, whatever a listing does not show yet."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import pytest

from windfall.control.limited_provider import LimitedProvider, PurchaseLimits, limited
from windfall.errors import ProviderUnreachable
from windfall.market import Answer, BootSpec, Capabilities, Machine, Order, Refusal
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import Timeline, VirtualClock
from windfall.structs import replace
from windfall.terms import Reliability, Seconds

BOOT = BootSpec(("agent",))


@dataclass
class Lagging:
    """A market that lists late, and may swallow its answers."""

    inner: SimulatedProvider
    name: str = "sim"
    hides: bool = False
    swallows: bool = False
    orders: list[Order] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities(), listing_lag_s=Seconds(30.0))

    def list(self, owner: str) -> tuple[Machine, ...]:
        return () if self.hides else self.inner.list(owner)

    def order(self, order: Order, boot: BootSpec) -> Answer:
        self.orders.append(order)
        answer = self.inner.order(order, boot)
        if self.swallows:
            raise ProviderUnreachable("planted")
        return answer


@dataclass
class Shop:
    """A market at 2 USD/h behind limits."""

    limits: PurchaseLimits
    time: Timeline = field(default_factory=Timeline)

    def __post_init__(self) -> None:
        market = SimulatedMarket(
            "m", "z", Reliability.TRANSIENT, ValueSeries.constant(2.0), 4.0, Seconds(30.0), (0.0, 0.0)
        )
        self.market = Lagging(SimulatedProvider("sim", self.time, (market,), random.Random(1)))
        self.provider = LimitedProvider(self.market, self.limits, VirtualClock(self.time))  # type: ignore[arg-type]

    def buy(self, number: int, most: int = 1, least: int = 1, job: str = "job") -> Answer:
        (offer,) = self.market.inner.offers()
        return self.provider.order(Order(f"{job}-{number}", "me", job, offer, least, most), BOOT)

    def alive(self) -> int:
        return len(self.market.inner.alive("job")) + len(self.market.inner.alive("other"))


def shop(machines: int | None = None, usd_per_hour: float | None = None) -> Shop:
    """Open one."""
    return Shop(PurchaseLimits(machines, usd_per_hour, "config.yaml"))


@pytest.mark.parametrize("limits", [{"machines": 3}, {"usd_per_hour": 6.0}, {"machines": 9, "usd_per_hour": 7.9}])
def test_no_more_than_the_limit_over_all_jobs(limits: dict[str, float]) -> None:
    """What fits is bought, the rest is refused as beyond a quota with the limit's name, and a full house buys nothing."""
    there = shop(**limits)  # type: ignore[arg-type]
    first, second, third = there.buy(1), there.buy(1, most=5, job="other"), there.buy(2)

    assert (len(first.machine_ids), first.refusal) == (1, None)
    assert (len(second.machine_ids), second.refusal) == (2, Refusal.QUOTA)
    assert (third.machine_ids, third.refusal) == ((), Refusal.QUOTA)
    assert "config.yaml" in third.message
    assert "limits." in third.message
    assert there.alive() == 3
    assert [order.count_max for order in there.market.orders] == [1, 2]


def test_less_than_the_least_leaves_nothing() -> None:
    """An order that cannot be filled to its least is not sent at all."""
    there = shop(machines=2)

    assert there.buy(1, most=4, least=3).refusal is Refusal.QUOTA
    assert there.market.orders == []


def test_what_was_released_makes_room() -> None:
    """The limit is on what is in use, not on what was ever bought."""
    there = shop(machines=1)
    (machine_id,) = there.buy(1).machine_ids
    assert there.buy(2).machine_ids == ()

    there.provider.release(machine_id)

    assert len(there.buy(3).machine_ids) == 1


@pytest.mark.parametrize("swallows", [False, True])
def test_an_order_that_no_listing_shows_yet_counts(swallows: bool) -> None:
    """Neither a lagging listing nor a lost answer lets a second order slip past the limit."""
    there = shop(machines=1)
    there.market.hides, there.market.swallows = True, swallows
    if swallows:
        with pytest.raises(ProviderUnreachable):
            there.buy(1)
    else:
        there.buy(1)

    assert there.buy(2).refusal is Refusal.QUOTA
    assert there.alive() == 1
    there.market.hides = there.market.swallows = False
    assert there.buy(3).refusal is Refusal.QUOTA
    there.time.pass_time(500.0)
    assert there.buy(4).refusal is Refusal.QUOTA


def test_a_repeat_is_passed_on_although_the_house_is_full() -> None:
    """The same token finds its machines."""
    there = shop(machines=1)

    assert there.buy(1) == there.buy(1)
    assert there.alive() == 1


def test_a_token_whose_order_never_arrived_can_be_sent_again() -> None:
    """Its own uncertainty does not stand in its way."""
    there = shop(machines=1)
    there.market.hides = there.market.swallows = True
    with pytest.raises(ProviderUnreachable):
        there.buy(1)

    there.market.swallows = False

    assert len(there.buy(1).machine_ids) == 1
    assert there.alive() == 1


def test_two_jobs_at_once_do_not_share_the_last_place() -> None:
    """Sixteen orders at the same time, one place: one machine."""
    there = shop(machines=1)
    gate = threading.Barrier(16)

    def buy(number: int) -> None:
        gate.wait()
        there.buy(number)

    threads = [threading.Thread(target=buy, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert there.alive() == 1


def test_the_reported_quota_is_what_the_limit_leaves() -> None:
    """A user who reads why a job waits reads the smaller of the two numbers."""
    there = shop(machines=3)
    there.market.inner.limits.quota["m", "z"] = 100
    there.buy(1)

    (row,) = there.provider.quota("me")
    assert (row.used, row.limit) == (1, 3)
    there.buy(2, most=2)
    (row,) = there.provider.quota("me")
    assert (row.used, row.limit) == (3, 3)


def test_without_limits_nothing_stands_between() -> None:
    """No limit, no wrapper."""
    there = shop()
    assert limited(there.market, there.limits, VirtualClock(there.time)) is there.market  # type: ignore[arg-type, comparison-overlap]
