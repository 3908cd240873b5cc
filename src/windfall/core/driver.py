"""The driver's reducer: facts about a job's machines in, decisions and commands out.

`react` is a pure function: it reads no clock and does nothing.  Facts that happened together come as one batch; each is
taken in first, and what follows from all of them is decided once, in this order: machines that are due, the end of the
job, orders, the next generation.  So sixty machines that are taken at once are one decision and one order.

When a machine is bought, and when not:

* for a slot that has none: at the start, or once its machine's provider says that it is gone (or two listings lack it
  and it is silent on every channel);
* for a slot whose machine has itself reported an announced end;
* never because of a hint, of a provider's word alone, of silence alone, of one listing alone;
* never while it is not known what came of an order for the same slot, and never before the provider's whole listing was
  compared since the controller began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from windfall.core import closing, generations, ledger, machines, orders, schedules
from windfall.core.fleet_state import FleetState, FleetTurn, SlotState
from windfall.core.generations import directives
from windfall.core.lifecycle import MachineState, OrderState
from windfall.core.views import JobSummary, lifetimes, summary
from windfall.events import Command, Decision, Fact, WakeAt, Woke
from windfall.fleet import (
    TERMINAL,
    BeliefsPooled,
    ChargesSeen,
    ControllerBegan,
    Doing,
    Event,
    JobPhase,
    JobSubmitted,
    ListedAll,
    MachineHeard,
    MachineSilent,
    MachinesMissing,
    MachinesSeen,
    NotifyUser,
    OffersSeen,
    OrderAnswered,
    OrderUnanswered,
    PlaceOrder,
    PreemptWanted,
    ResumeWanted,
    RunObserved,
    ScheduleMade,
    StopWanted,
)
from windfall.market import Machine
from windfall.terms import Instant

__all__ = [
    "FleetState",
    "JobSummary",
    "awaits_listing",
    "begin",
    "buys",
    "directives",
    "known_machines",
    "lifetimes",
    "phase",
    "react",
    "summary",
    "unanswered",
    "wants_bill",
]

WAKE = "due"
"""The one timer of the driver: the earliest instant at which anything is to be looked at again."""
_APART_S = 1e-3


def begin() -> FleetState:
    """Return the state before the first fact."""
    return FleetState()


def react(
    state: FleetState, now: Instant, facts: tuple[Fact, ...]
) -> tuple[FleetState, tuple[Decision, ...], tuple[Command, ...]]:
    """Take in a batch of facts.

    Args:
        state: as the last call returned it.
        now: the instant of the batch on the journal clock; never before the last one's.
        facts: what happened, oldest first.

    Returns:
        The new state, the decisions taken, the commands to carry out in this order.

    Raises:
        IllegalMove: a state was asked to become one that it cannot become; the given state is unchanged.
    """
    turn = FleetTurn(state, now)
    for fact in facts:
        handler = _HANDLERS.get(type(fact))
        if handler is not None and (turn.state.job is not None) != isinstance(fact, JobSubmitted):
            handler(turn, fact)
    if turn.state.job is not None:
        _settle(turn)
    after = turn.frozen()
    commands = tuple(turn.commands)
    _assert_invariants(state, after, commands)
    return after, tuple(turn.decisions), commands


# ---------------------------------------------------------------------------------------------------- for the conductor


def phase(state: FleetState) -> JobPhase:
    """Return where the job is."""
    return state.phase


def known_machines(state: FleetState) -> dict[str, Machine]:
    """Return every machine as it is known, those that are gone and may still be listed among them."""
    known = {machine_id: gone.machine for machine_id, gone in state.gone.items()}
    known.update((machine_id, unit.machine) for machine_id, unit in state.units.items())
    return known


def unanswered(state: FleetState, provider: str) -> tuple[str, ...]:
    """Return the tokens of a provider's orders of which nobody knows whether they were taken."""
    return tuple(
        token
        for token, entry in state.orders.items()
        if entry.order.offer.provider == provider and (entry.state is OrderState.UNKNOWN or entry.unsure)
    )


def awaits_listing(state: FleetState, provider: str) -> bool:
    """Say whether the driver wants to be told of the next whole listing of a provider (`ListedAll`)."""
    if provider not in state.listed:
        return True
    return any(
        entry.order.offer.provider == provider
        and ((entry.state is OrderState.UNKNOWN and entry.ask_at is None) or entry.unsure)
        for entry in state.orders.values()
    )


def buys(state: FleetState) -> bool:
    """Say whether offers matter now."""
    return state.phase not in TERMINAL and state.closing is None


def wants_bill(state: FleetState) -> bool:
    """Say whether the job has ended while a machine's bill is still open: then bills are worth asking for soon."""
    return state.phase in TERMINAL and bool(state.ledger.open)


# ------------------------------------------------------------------------------------------------------------- handlers


def _job_submitted(turn: FleetTurn, fact: JobSubmitted) -> None:
    turn.change(job=fact.job, owner=fact.owner, measured=fact.measured, began_at=turn.now)
    turn.slots = [SlotState(index) for index in range(fact.job.nodes)]


def _beliefs_pooled(turn: FleetTurn, fact: BeliefsPooled) -> None:
    turn.change(rates=fact.rates)


def _charges_seen(turn: FleetTurn, fact: ChargesSeen) -> None:
    turn.charges.extend(fact.charges)


def _woke(turn: FleetTurn, fact: Woke) -> None:
    if fact.why == WAKE:
        turn.change(wake_at=None)


_HANDLERS: Mapping[type[Fact], Callable[[FleetTurn, Any], None]] = MappingProxyType(
    {
        JobSubmitted: _job_submitted,
        ControllerBegan: orders.controller_began,
        OffersSeen: orders.offers_seen,
        BeliefsPooled: _beliefs_pooled,
        ScheduleMade: schedules.made,
        OrderAnswered: orders.answered,
        OrderUnanswered: orders.unanswered,
        ListedAll: orders.listed_all,
        MachinesSeen: machines.seen,
        MachinesMissing: machines.missing,
        MachineHeard: machines.heard,
        MachineSilent: machines.silent,
        PreemptWanted: machines.preempt_wanted,
        RunObserved: closing.run_observed,
        ChargesSeen: _charges_seen,
        StopWanted: closing.stop_wanted,
        ResumeWanted: closing.resume_wanted,
        Woke: _woke,
    }
)


# -------------------------------------------------------------------------------------------------------------- settling


def _settle(turn: FleetTurn) -> None:
    """Decide, once, what follows from all facts of the batch."""
    _book(turn)
    machines.watch(turn)
    closing.consider(turn)
    orders.settle(turn)
    if turn.state.closing is not None:
        closing.consider(turn)  # the budget did not bear what was about to be bought
    _book(turn)
    generations.form(turn)
    _tell_losses(turn)
    _set_phase(turn)
    _wake(turn)


def _book(turn: FleetTurn) -> None:
    book = turn.state.ledger
    if turn.touched:
        book = ledger.observe(book, turn.touched.values())
        turn.touched = {}
    if turn.charges:
        book = ledger.charge_lines(book, turn.charges)
        turn.charges = []
    if book is not turn.state.ledger:
        turn.change(ledger=book)


def _tell_losses(turn: FleetTurn) -> None:
    if not turn.lost or not turn.active:
        return
    index, machine_id = turn.lost[0]
    more = f" and {len(turn.lost) - 1} more" if len(turn.lost) > 1 else ""
    verb = "were" if more else "was"
    sentence = f"{machine_id} of node-{index}{more} {verb} lost and will be replaced"
    turn.order(NotifyUser(Event.PREEMPTED, sentence))


def _set_phase(turn: FleetTurn) -> None:
    if not turn.active:
        return
    living = [
        unit for unit in turn.units.values() if unit.slot is not None and unit.state is not MachineState.RELEASING
    ]
    if any(unit.doing is Doing.TRAINING for unit in living):
        turn.enter(JobPhase.RUNNING)
    elif not living and turn.state.refused and not any(slot.awaits is not None for slot in turn.slots):
        turn.enter(JobPhase.WAITING)
    else:
        turn.enter(JobPhase.BUYING)
    if living:
        turn.change(waiting_told=False)
    elif turn.state.phase is JobPhase.WAITING and not turn.state.waiting_told:
        # Once, however often it is tried again in vain.
        turn.change(waiting_told=True)
        turn.order(NotifyUser(Event.WAITING, f"waiting: {turn.state.refused[0]}"))


def _wake(turn: FleetTurn) -> None:
    """Ask to be woken at the earliest instant at which something is due; an earlier wish that stands is enough."""
    at = min((instant for instant in turn.later if instant > turn.now), default=None)
    if at is None:
        return
    asked = turn.state.wake_at
    if asked is None or asked <= turn.now or at < asked - _APART_S:
        turn.change(wake_at=at)
        turn.order(WakeAt(at, WAKE))


def _assert_invariants(before: FleetState, after: FleetState, commands: tuple[Command, ...]) -> None:
    """What holds after every batch, whatever the facts."""
    assert len(after.__dict__) == len(before.__dict__), "only fields that are there were changed"
    assert after.now >= before.now, "the journal clock goes forward"
    assert after.sequence >= before.sequence, "numbers of orders grow"
    buying = False
    for slot in after.slots:
        assert slot.incumbent is not None or slot.successor is None, "a successor without an incumbent is the incumbent"
        assert slot.successor is None or slot.awaits is None, "at most one machine on its way beside the incumbent"
        assert slot.awaits is None or slot.awaits in after.orders, "what a slot awaits was ordered"
        buying = buying or slot.awaits is not None
    new = [command.order.token for command in commands if isinstance(command, PlaceOrder)]
    assert len(new) == len(set(new)), "an order is asked once a turn"
    assert not new or buying, "nothing is bought that no slot awaits"
    assert not new or (after.closing is None and after.phase not in TERMINAL), "nothing is bought for a job that ends"
