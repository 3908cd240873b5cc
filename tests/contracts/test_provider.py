"""What every provider promises of its sales, tried on each implementation: offers, tokens, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contracts.providers import DOUBLED, LOST, TYPE, UNSENT, ZONE, World
from tests.contracts.trading import (
    Markets,
    an_order,
    await_end,
    buy,
    listed,
    lives,
    offer_of,
    release_all,
    settled_lines,
)
from windfall.errors import ProviderDenied, ProviderUnreachable
from windfall.market import MachineLifecycle, Refusal
from windfall.ports import Provider
from windfall.structs import replace
from windfall.terms import Reliability

CENT = 0.01
JOB = "job-1"


# ------------------------------------------------------------------------------------------------------ what is for sale


def test_offers_carry_what_a_buyer_must_know(world: World) -> None:
    """Each type and zone is offered with its price now, the on-demand price beside it, and its notice."""
    spot, on_demand = offer_of(world), offer_of(world, reliability=Reliability.RELIABLE)

    assert len({offer.key for offer in world.provider.offers()}) == len(world.provider.offers())
    assert (spot.provider, spot.machine_type, spot.price_usd_per_hour) == (world.provider.name, TYPE, 3600.0)
    assert spot.on_demand_usd_per_hour == on_demand.price_usd_per_hour == 9000.0
    assert spot.notice_s == 2.0
    assert spot.bid is world.provider.capabilities().bids is True


def test_what_was_bought_is_listed_with_its_order(world: World, owner: str) -> None:
    """A machine runs soon, and its listing says for whom, from which order, at which price, since when."""
    (machine_id,) = buy(world, owner)

    (machine,) = world.provider.list(owner)
    assert machine.machine_id == machine_id
    assert (machine.owner, machine.job_id, machine.token) == (owner, JOB, f"{owner}-1")
    assert (machine.machine_type, machine.zone, machine.reliability) == (TYPE, ZONE, Reliability.TRANSIENT)
    assert machine.price_usd_per_hour == 3600.0
    assert machine.started is not None
    assert (machine.ended, machine.cause, machine.preemption_at) == (None, None, None)


def test_owners_do_not_see_one_another(world: World, owner: str) -> None:
    """Neither listing nor bill nor used quota shows what another owner bought."""
    (machine_id,) = buy(world, owner)
    world.provider.release(machine_id)
    await_end(world, owner)
    settled_lines(world, owner, 1)

    assert world.provider.list(f"{owner}-other") == ()
    assert world.provider.charges(f"{owner}-other", "").charges == ()
    assert [quota.used for quota in world.provider.quota(f"{owner}-other")] == [0, 0]


# --------------------------------------------------------------------------------------------------------------- tokens


def test_the_same_token_buys_once(world: World, owner: str) -> None:
    """A repeated order buys nothing, and answers the same machines."""
    order = an_order(world, owner, most=2)

    first = world.provider.order(order, world.boot())
    second = world.provider.order(order, world.boot())

    assert first == second
    assert set(listed(world, owner)) == set(first.machine_ids)
    assert len(first.machine_ids) == 2


def test_the_same_token_buys_once_after_its_machines_are_gone(world: World, owner: str) -> None:
    """A late double of an order does not bring back what has ended."""
    (machine_id,) = buy(world, owner)
    world.provider.release(machine_id)
    await_end(world, owner)

    assert world.provider.order(an_order(world, owner), world.boot()).machine_ids == (machine_id,)
    assert lives(world, owner) == [MachineLifecycle.GONE]


def test_a_doubled_order_buys_once(world: World, owner: str) -> None:
    """A call that is executed twice buys once."""
    with world.meeting(DOUBLED) as provider:
        answer = provider.order(an_order(world, owner), world.boot())

    assert set(listed(world, owner)) == set(answer.machine_ids)
    assert len(answer.machine_ids) == 1


def test_the_listing_shows_what_an_unanswered_order_bought(world: World, owner: str) -> None:
    """A lost answer raises "not known"; the listing has the machine with its token, and the same order finds it."""
    order = an_order(world, owner)
    with world.meeting(LOST) as provider, pytest.raises(ProviderUnreachable):
        provider.order(order, world.boot())

    (machine,) = world.provider.list(owner)
    assert machine.token == order.token
    assert world.provider.order(order, world.boot()).machine_ids == (machine.machine_id,)
    assert len(world.provider.list(owner)) == 1


def test_an_order_that_never_arrived_bought_nothing(world: World, owner: str) -> None:
    """The caller gets the same "not known"; the listing is empty, and the same order buys."""
    order = an_order(world, owner)
    with world.meeting(UNSENT) as provider, pytest.raises(ProviderUnreachable):
        provider.order(order, world.boot())

    assert world.provider.list(owner) == ()
    assert len(world.provider.order(order, world.boot()).machine_ids) == 1


def test_simultaneous_orders_of_one_token_buy_once(world: World, owner: str) -> None:
    """Eight callers with one token get one machine, all the same answer."""
    order = an_order(world, owner)

    answers = world.together([lambda: world.provider.order(order, world.boot())] * 8)

    assert len(set(answers)) == 1
    assert set(listed(world, owner)) == set(answers[0].machine_ids)


# --------------------------------------------------------------------------------------------------------------- cancel


def test_nothing_comes_of_a_token_that_was_cancelled_before(world: World, owner: str) -> None:
    """A cancelled token is refused when its order arrives late."""
    order = an_order(world, owner)
    world.provider.cancel(order.token)

    answer = world.provider.order(order, world.boot())

    assert (answer.machine_ids, answer.refusal) == ((), Refusal.CANCELLED)
    assert world.provider.list(owner) == ()


def test_cancelling_withdraws_what_has_not_started(opened: Markets, owner: str) -> None:
    """Sold but unstarted machines of a cancelled order never run and cost nothing."""
    world = opened(delay_s=1.0)
    world.provider.order(an_order(world, owner, most=2), world.boot())
    assert lives(world, owner) == [MachineLifecycle.PENDING] * 2

    world.provider.cancel(f"{owner}-1")
    world.provider.cancel(f"{owner}-1")
    gone = await_end(world, owner)
    world.pass_time(1.5)

    assert {(machine.started, machine.lifecycle) for machine in gone.values()} == {(None, MachineLifecycle.GONE)}
    assert not any(world.lives(machine_id) for machine_id in gone)
    assert world.provider.charges(owner, "").charges == ()


def test_cancelling_leaves_what_runs(world: World, owner: str) -> None:
    """Running machines are kept, and the token buys nothing more."""
    (machine_id,) = buy(world, owner)

    world.provider.cancel(f"{owner}-1")
    again = world.provider.order(an_order(world, owner), world.boot())

    assert again.refusal is Refusal.CANCELLED
    assert set(listed(world, owner)) == {machine_id}
    assert lives(world, owner) == [MachineLifecycle.RUNNING]
    assert world.lives(machine_id)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_is_there_is_bought_and_the_rest_refused(opened: Markets, owner: str) -> None:
    """Between the least and the most wanted, what there is comes, with the refusal of the rest and a sentence."""
    world = opened(capacity=2)
    answer = world.provider.order(an_order(world, owner, least=1, most=5), world.boot())

    assert (len(answer.machine_ids), answer.refusal) == (2, Refusal.NO_CAPACITY)
    assert TYPE in answer.message
    assert ZONE in answer.message
    assert len(world.provider.list(owner)) == 2


def test_less_than_the_least_is_not_bought_at_all(opened: Markets, owner: str) -> None:
    """An order that cannot be filled to its least buys nothing."""
    world = opened(capacity=2)
    answer = world.provider.order(an_order(world, owner, least=3, most=5), world.boot())

    assert (answer.machine_ids, answer.refusal) == ((), Refusal.NO_CAPACITY)
    assert world.provider.list(owner) == ()


def test_capacity_comes_back(opened: Markets, owner: str) -> None:
    """A refused token stays refused, a new one buys once a machine has been released."""
    world = opened(capacity=2)
    assert world.provider.order(an_order(world, owner, 1, most=2), world.boot()).refusal is None
    assert world.provider.order(an_order(world, owner, 2), world.boot()).refusal is Refusal.NO_CAPACITY

    release_all(world, owner)

    assert world.provider.order(an_order(world, owner, 2), world.boot()).machine_ids == ()
    assert len(world.provider.order(an_order(world, owner, 3), world.boot()).machine_ids) == 1


def test_the_quota_is_reported_apart_from_capacity(opened: Markets, owner: str) -> None:
    """Beyond the account's limit the refusal says quota, and the limit can be read; another owner still buys."""
    world = opened(quota=1)
    answer = world.provider.order(an_order(world, owner, most=2), world.boot())

    (mine,) = (quota for quota in world.provider.quota(owner) if quota.zone == ZONE)
    assert (len(answer.machine_ids), answer.refusal) == (1, Refusal.QUOTA)
    assert (mine.machine_type, mine.limit, mine.used) == (TYPE, 1, 1)
    other = world.provider.order(an_order(world, f"{owner}-other"), world.boot())
    assert (len(other.machine_ids), other.refusal) == (1, None)


def test_a_quota_of_zero_is_no_lack_of_capacity(opened: Markets, owner: str) -> None:
    """An account that may have none gets quota, not capacity, and nothing is bought."""
    world = opened(quota=0)
    answer = world.provider.order(an_order(world, owner), world.boot())

    assert (answer.machine_ids, answer.refusal) == ((), Refusal.QUOTA)


def test_a_bid_below_the_price_buys_nothing(world: World, owner: str) -> None:
    """The refusal is the price; a bid at the price buys."""
    low = world.provider.order(an_order(world, owner, 1, bid=3599.0), world.boot())
    fair = world.provider.order(an_order(world, owner, 2, bid=3600.0), world.boot())

    assert (low.machine_ids, low.refusal) == ((), Refusal.PRICE)
    assert (len(fair.machine_ids), fair.refusal) == (1, None)


@pytest.mark.parametrize("wrong", ["type", "zone", "none", "upside-down"])
def test_an_invalid_order_is_refused_for_good(world: World, owner: str, wrong: str) -> None:
    """An unknown type or zone, no machines or more at least than at most, is invalid."""
    order = an_order(world, owner)
    nonsense = {
        "type": replace(order, offer=replace(order.offer, machine_type="colossal")),
        "zone": replace(order, offer=replace(order.offer, zone="the-moon")),
        "none": replace(order, count_min=0, count_max=0),
        "upside-down": replace(order, count_min=2, count_max=1),
    }[wrong]

    answer = world.provider.order(nonsense, world.boot())

    assert (answer.machine_ids, answer.refusal) == ((), Refusal.INVALID)
    assert answer.message


def test_wrong_credentials_differ_from_silence(world: World, owner: str) -> None:
    """Every call says "denied", nothing is executed, and calls work again once the credentials are right."""
    order = an_order(world, owner)
    calls: tuple[Callable[[Provider], object], ...] = (
        lambda provider: provider.offers(),
        lambda provider: provider.quota(owner),
        lambda provider: provider.order(order, world.boot()),
        lambda provider: provider.cancel(order.token),
        lambda provider: provider.list(owner),
        lambda provider: provider.release("m"),
        lambda provider: provider.charges(owner, ""),
        lambda provider: provider.preempt("m", None),
    )
    with world.denied():
        for call in calls:
            with pytest.raises(ProviderDenied):
                call(world.provider)

    assert world.provider.list(owner) == ()
    assert len(world.provider.order(order, world.boot()).machine_ids) == 1
