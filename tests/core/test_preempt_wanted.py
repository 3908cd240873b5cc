"""A user's rehearsal through the driver: the machine is taken as by the market, and teaches nothing about it."""

from __future__ import annotations

from tests.report.market_story import BEGIN, gone, heard, journal, machine, opening, seen
from windfall.core import driver
from windfall.events import Fact, Row
from windfall.fleet import MachineStatus, PlaceOrder, PreemptionRequested, PreemptMachine, ReleaseMachine
from windfall.market import MachineEndCause
from windfall.terms import Instant, Seconds, WallTime


def running(*after: tuple[float, tuple[Fact, ...]]) -> list[Row]:
    """A job whose machine trains, and what happens then."""
    (first,) = journal((0, opening()))
    token = next(command.order.token for command in first.commands if isinstance(command, PlaceOrder))
    up = seen(machine("m-1", token, started=WallTime(BEGIN + 2)))
    return journal((0, opening()), (2, (up,)), (5, (heard("m-1", MachineStatus.TRAINING),)), *after)


def test_the_provider_gets_one_request_and_nothing_is_bought_for_it() -> None:
    """The request preempts the machine; the next one is bought when the machine itself reports its end."""
    rows = running(
        (20, (PreemptionRequested("m-1", Seconds(8.0), "ada"),)),
        (21, (heard("m-1", MachineStatus.TRAINING, preemption_at=28),)),
    )

    assert PreemptMachine("m-1", "local", Seconds(8.0)) in rows[3].commands
    assert not any(isinstance(command, PlaceOrder) for command in rows[3].commands)
    assert any(isinstance(command, PlaceOrder) for command in rows[4].commands)


def test_a_machine_that_is_not_the_jobs_is_left_alone() -> None:
    """A request that comes too late, or names another machine, does nothing."""
    rows = running((20, (PreemptionRequested("m-9", None, "ada"),)))

    assert not any(isinstance(command, (PreemptMachine, ReleaseMachine)) for command in rows[3].commands)


def test_an_injected_loss_does_not_count_as_the_markets() -> None:
    """In the pool of lives it counts as one that still ran."""
    token = running()[1].facts[0].machines[0].token  # type: ignore[attr-defined]
    taken = seen(gone("m-1", token, MachineEndCause.PREEMPTED, 2, 30))
    rows = running((20, (PreemptionRequested("m-1", None, "ada"),)), (30, (taken,)))
    state = driver.initial_state()
    for one in rows[:-1]:
        state, _, _ = driver.react(state, one.at, one.facts)
    after, _, _ = driver.react(state, Instant(BEGIN + 30), (taken,))

    (life,) = driver.lifetimes(state, after, (taken,))

    assert (life.machine_id, life.preempted) == ("m-1", False)
