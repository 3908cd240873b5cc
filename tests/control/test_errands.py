"""Executing commands: an order once, everything else until it succeeds."""

from __future__ import annotations

import itertools

import pytest

from tests.control.house import House
from windfall.control.provider_calls import CommandExecutor
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
from windfall.structs import replace
from windfall.terms import Instant


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def executor(house: House) -> CommandExecutor:
    return CommandExecutor(house.ports())


def order(house: House, provider: str = "sim") -> Order:
    offer = replace(house.market.offers()[0], provider=provider)
    return Order("gpt-1-1", "home", "gpt-1", offer, 1, 1)


def at(executor: CommandExecutor, house: House, silent_s: float) -> list[float]:
    """When something was tried, run as often as is due."""
    tried, count = [], sum(house.faults.calls.values())
    now = 0.0
    while now <= silent_s:
        executor.run(Instant(now))
        if sum(house.faults.calls.values()) > count:
            count = sum(house.faults.calls.values())
            tried.append(now)
        now = max(executor.next_at(Instant(now)), now + 0.1)
    return tried


def test_what_was_not_answered_is_tried_again_with_growing_pauses(house: House, executor: CommandExecutor) -> None:
    """Without end, at most half a minute apart; it is logged once."""
    house.faults.out = {"release"}
    executor.execute(ReleaseMachine("m1", "sim", "done"), Instant(0.0))
    tried = at(executor, house, 120.0)

    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert pauses == pytest.approx([2.0, 4.0, 8.0, 16.0, 30.0, 30.0], abs=0.2)
    assert len(house.logged) == 1
    house.faults.out = set()
    executor.run(Instant(1000.0))
    assert executor.next_at(Instant(1000.0)) == float("inf")


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (ProviderDenied("no key"), OrderAnswered("gpt-1-1", (), Refusal.CREDENTIALS, "no key")),
        (ProviderUnreachable("timed out"), OrderUnanswered("gpt-1-1", "timed out")),
        (Misuse("market.yaml:1:1: wrong"), OrderUnanswered("gpt-1-1", "market.yaml:1:1: wrong")),
    ],
)
def test_an_order_is_sent_once_whatever_the_answer(house: House, error: Exception, fact: object) -> None:
    """Refused credentials are an answer; silence is none, and is not for this loop to resolve."""
    calls = []

    class Shop:
        def order(self, *given: object) -> None:
            calls.append(given)
            raise error

    house.providers["sim"] = Shop()  # type: ignore[assignment]
    executor = CommandExecutor(house.ports())
    executor.execute(PlaceOrder(order(house)), Instant(0.0))
    assert executor.take_facts() == [fact]
    executor.run(Instant(100.0))
    assert len(calls) == 1


def test_a_provider_that_is_not_configured_is_an_invalid_offer(house: House, executor: CommandExecutor) -> None:
    """A controller that was started with fewer providers reports it, and uses the others."""
    executor.execute(PlaceOrder(order(house, "aws")), Instant(0.0))
    (fact,) = executor.take_facts()
    assert isinstance(fact, OrderAnswered)
    assert fact.refusal is Refusal.INVALID
    assert "aws is not configured" in fact.message


def test_after_a_crash_all_commands_but_orders_and_preemptions_are_repeated(
    house: House, executor: CommandExecutor
) -> None:
    """An order is the listing's question; a rehearsal must not take two machines."""
    executor.requeue(
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
    executor.run(Instant(0.0))
    assert set(house.faults.calls) == {"release", "cancel", "declare_gone", "stop"}
    assert house.notified == [Event.DONE]


def test_a_stop_is_void_once_something_is_bought(house: House, executor: CommandExecutor) -> None:
    """A job that buys was resumed; other commands in flight are kept."""
    house.faults.out = {"stop", "cancel"}
    executor.execute(StopRun(False, "stopped by ada"), Instant(0.0))
    executor.execute(CancelOrder("gpt-1-0", "sim"), Instant(0.0))
    executor.execute(PlaceOrder(order(house)), Instant(0.0))
    house.faults.out = set()
    executor.run(Instant(10.0))

    assert house.run.stops == []
    assert house.faults.calls["cancel"] == 2
    assert not executor.cancelling
