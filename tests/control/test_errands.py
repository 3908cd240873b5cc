"""Commands carried out: an order once, everything else until somebody says that it is done."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from tests.control.house import House
from windfall.control.errands import Errands
from windfall.errors import Misuse, ProviderDenied, ProviderUnreachable
from windfall.fleet import (
    CancelOrder,
    DeclareGone,
    Event,
    NotifyUser,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    PreemptMachine,
    ReleaseMachine,
    StopRun,
)
from windfall.market import Order, Refusal
from windfall.terms import Instant


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def errands(house: House) -> Errands:
    return Errands(house.ports())


def order(house: House, provider: str = "sim") -> Order:
    offer = dataclasses.replace(house.market.offers()[0], provider=provider)
    return Order("gpt-1-1", "home", "gpt-1", offer, 1, 1)


def at(errands: Errands, house: House, for_s: float) -> list[float]:
    """When something was tried, looking as often as is asked for."""
    tried, count = [], sum(house.faults.calls.values())
    now = 0.0
    while now <= for_s:
        errands.run(Instant(now))
        if sum(house.faults.calls.values()) > count:
            count = sum(house.faults.calls.values())
            tried.append(now)
        now = max(errands.next_at(Instant(now)), now + 0.1)
    return tried


def test_what_was_not_answered_is_tried_again_with_growing_pauses(house: House, errands: Errands) -> None:
    """For ever, at most half a minute apart; the user reads of it once."""
    house.faults.out = {"release"}
    errands.obey(ReleaseMachine("m1", "sim", "done"), Instant(0.0))
    tried = at(errands, house, 120.0)

    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert pauses == pytest.approx([2.0, 4.0, 8.0, 16.0, 30.0, 30.0], abs=0.2)
    assert len(house.said) == 1
    house.faults.out = set()
    errands.run(Instant(1000.0))
    assert errands.next_at(Instant(1000.0)) == float("inf")


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (ProviderDenied("no key"), OrderAnswered("gpt-1-1", (), Refusal.CREDENTIALS, "no key")),
        (ProviderUnreachable("timed out"), OrderUnanswered("gpt-1-1", "timed out")),
        (Misuse("market.yaml:1:1: wrong"), OrderUnanswered("gpt-1-1", "market.yaml:1:1: wrong")),
    ],
)
def test_an_order_is_asked_once_whatever_comes_of_it(house: House, error: Exception, fact: object) -> None:
    """Refused credentials are an answer; silence is none, and is not for this loop to resolve."""
    calls = []

    class Shop:
        def order(self, *given: object) -> None:
            calls.append(given)
            raise error

    house.providers["sim"] = Shop()  # type: ignore[assignment]
    errands = Errands(house.ports())
    errands.obey(PlaceOrder(order(house)), Instant(0.0))
    assert errands.brought() == [fact]
    errands.run(Instant(100.0))
    assert len(calls) == 1


def test_a_provider_that_is_not_configured_is_an_invalid_offer(house: House, errands: Errands) -> None:
    """A controller that was started with fewer providers says so, and goes on with the others."""
    errands.obey(PlaceOrder(order(house, "aws")), Instant(0.0))
    (fact,) = errands.brought()
    assert isinstance(fact, OrderAnswered)
    assert fact.refusal is Refusal.INVALID
    assert "aws is not configured" in fact.sentence


def test_after_a_crash_all_is_done_again_but_buying_and_taking(house: House, errands: Errands) -> None:
    """An order is the listing's question; a rehearsal must not take two machines."""
    errands.again(
        (
            PlaceOrder(order(house)),
            PreemptMachine("m1", "sim", None),
            ReleaseMachine("m1", "sim", "done"),
            CancelOrder("gpt-1-0", "sim"),
            DeclareGone("m0"),
            StopRun(False, "stopped by ada"),
            NotifyUser(Event.DONE, "the run is done"),
        )
    )
    errands.run(Instant(0.0))
    assert set(house.faults.calls) == {"release", "cancel", "declare_gone", "stop"}
    assert house.told == [Event.DONE]


def test_a_stop_is_void_once_something_is_bought(house: House, errands: Errands) -> None:
    """Who buys was told to go on; other errands stay."""
    house.faults.out = {"stop", "cancel"}
    errands.obey(StopRun(False, "stopped by ada"), Instant(0.0))
    errands.obey(CancelOrder("gpt-1-0", "sim"), Instant(0.0))
    errands.obey(PlaceOrder(order(house)), Instant(0.0))
    house.faults.out = set()
    errands.run(Instant(10.0))

    assert house.run.stops == []
    assert house.faults.calls["cancel"] == 2
    assert not errands.cancelling
