"""Bugs that a fleet of changing needs must not have, planted one at a time to see that the tickets storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tests.support import ticket_counter
from tests.support.ticket_counter import Grant, TicketCounter
from windfall.core import drains, gangs, machines, needs, orders
from windfall.core.fleet_state import FleetTurn, SlotState, TrackedMachine
from windfall.core.lifecycle import MachineState
from windfall.fleet import MachineStatus
from windfall.market import Machine, Offer, Order
from windfall.structs import replace
from windfall.terms import Instant

Patch = tuple[object, str, object]


# --------------------------------------------------------------------------------------------------------------- needs


def _retired_slot_buys() -> tuple[Patch, ...]:
    """A slot that is being retired buys for itself as any other does."""
    real = orders._open_and_leaving

    def open_and_leaving(turn: FleetTurn, expected: object) -> object:
        retiring = [slot for slot in turn.slots.values() if slot.retiring]
        turn.slots.update({slot.id: replace(slot, retiring=False) for slot in retiring})
        found = real(turn, expected)  # type: ignore[arg-type]
        turn.slots.update({slot.id: replace(turn.slots[slot.id], retiring=True) for slot in retiring})
        return found

    return (orders, "_open_and_leaving", open_and_leaving), (needs, "forget_retired", lambda turn: None)


def _drained_slot_gets_successor() -> tuple[Patch, ...]:
    """A machine of a retired slot that is drained gets a successor, as if its slot stayed."""
    real = orders._open_and_leaving

    def open_and_leaving(turn: FleetTurn, expected: object) -> object:
        opened, announced = real(turn, expected)  # type: ignore[arg-type]
        for slot in turn.slots.values():
            unit = None if slot.incumbent is None else turn.units[slot.incumbent]
            alone = slot.retiring and slot.successor is None and slot.awaits is None and not slot.need.gang
            if alone and unit is not None and unit.drain_at is not None:
                announced[slot.id] = unit.drain_at - turn.now
        return opened, announced

    return ((orders, "_open_and_leaving", open_and_leaving),)


def _order_of_retired_slot_kept() -> tuple[Patch, ...]:
    """What was ordered for a slot that is retired comes, and stays."""

    def retire(turn: FleetTurn, slot: SlotState) -> None:
        slot = turn.set_slot(slot, retiring=True)
        deadline = Instant(turn.now + turn.job.checkpointing.save_timeout_s)
        for machine_id in (slot.successor, slot.incumbent):
            if machine_id is not None and turn.units[machine_id].state is not MachineState.RELEASING:
                drains.drain(turn, turn.units[machine_id], deadline, needs.RETIRED)

    def forget_retired(turn: FleetTurn) -> None:
        for slot in [slot for slot in turn.slots.values() if slot.retiring]:
            if slot.incumbent is None and slot.awaits is None:
                del turn.slots[slot.id]

    return (needs, "_retire", retire), (needs, "forget_retired", forget_retired)


def _clerk_on_spot() -> tuple[Patch, ...]:
    """A reliable machine is wished for, but any is bought."""
    real = orders._market

    def market(turn: FleetTurn, kind: object) -> object:
        return real(turn, replace(kind, reliability=None))  # type: ignore[arg-type, type-var]

    return ((orders, "_market", market),)


# --------------------------------------------------------------------------------------------------------------- gangs


def _gang_in_parts() -> tuple[Patch, ...]:
    """A gang is ordered as so many single machines."""

    def order(turn: FleetTurn, offer: Offer, count: int, sequence: int, *, gang: bool) -> Order:
        del gang
        return real(turn, offer, count, sequence, gang=False)

    real = orders._order
    return ((orders, "_order", order),)


def _gang_half_kept() -> tuple[Patch, ...]:
    """The other machine of a gang that has lost one is kept."""

    def lost_together(turn: FleetTurn, machine: Machine, gang: str) -> None:
        del turn, machine, gang

    return ((machines, "_lost_together", lost_together),)


def _gang_released_one_by_one() -> tuple[Patch, ...]:
    """Whether a machine may go is judged by itself alone, not by its gang."""

    def works(turn: FleetTurn, unit: TrackedMachine) -> bool:
        del turn
        return unit.status is MachineStatus.TRAINING

    return ((gangs, "works", works),)


# -------------------------------------------------------------------------------------------------------------- drains


def _released_before_handing_over() -> tuple[Patch, ...]:
    def consider_release(turn: FleetTurn, unit: TrackedMachine, deadline: Instant) -> None:
        del deadline
        for one in gangs.whole(turn, unit):
            slot_id = one.slot
            turn.release(turn.set_unit(turn.detach(one), superseded_in=slot_id), unit.drain_reason)

    return ((drains, "_consider_release", consider_release),)


def _drain_without_end() -> tuple[Patch, ...]:
    """A drained machine that still works at its deadline is waited for."""
    real = drains._consider_release

    def consider_release(turn: FleetTurn, unit: TrackedMachine, deadline: Instant) -> None:
        del deadline
        real(turn, unit, Instant(turn.now + 60.0))

    return ((drains, "_consider_release", consider_release),)


def _choice_is_a_preemption() -> tuple[Patch, ...]:
    """A machine that was let go counts as preempted."""
    real = machines.lost

    def lost(turn: FleetTurn, unit: TrackedMachine, *, preempted: bool) -> None:
        turn.change(preemptions=turn.state.preemptions + (unit.state is MachineState.RELEASING))
        real(turn, unit, preempted=preempted)

    return ((machines, "lost", lost),)


# ------------------------------------------------------------------------------------------------------------- fencing


def _late_commit_accepted() -> tuple[Patch, ...]:
    """A result counts whoever has the number now."""

    def committed(counter: TicketCounter, grant: Grant) -> tuple[TicketCounter, bool]:
        if grant.number in counter.done:
            return counter, counter.done[grant.number] == grant
        returned = tuple(number for number in counter.returned if number != grant.number)
        newer = replace(ticket_counter._ended(counter, grant), returned=returned)
        return replace(newer, done={**counter.done, grant.number: grant}), True

    return ((ticket_counter, "committed", committed),)


def _gone_not_declared() -> tuple[Patch, ...]:
    """What a lost machine had is waited for, for ever."""
    real = ticket_counter.declared_gone

    def declared_gone(counter: TicketCounter, machine_id: str) -> TicketCounter:
        newer = real(counter, machine_id)
        return replace(newer, returned=counter.returned)

    return ((ticket_counter, "declared_gone", declared_gone),)


BUGS: dict[str, Callable[[], tuple[Patch, ...]]] = {
    "retired slot buys": _retired_slot_buys,
    "successor for a drained retired slot": _drained_slot_gets_successor,
    "order kept for a retired slot": _order_of_retired_slot_kept,
    "clerk bought on spot": _clerk_on_spot,
    "gang bought in parts": _gang_in_parts,
    "other machine of a lost gang kept": _gang_half_kept,
    "gang released one by one": _gang_released_one_by_one,
    "released before it hands back": _released_before_handing_over,
    "drain without end": _drain_without_end,
    "release by choice is a preemption": _choice_is_a_preemption,
    "late commit accepted": _late_commit_accepted,
    "number of a lost machine lost": _gone_not_declared,
}


@contextmanager
def bug(name: str) -> Iterator[None]:
    """Plant one bug."""
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]():
            stack.enter_context(patch.object(target, attribute, wrong))
        yield
