"""Machines that leave: they save or hand over their work, then they are released.

Every end that is known beforehand goes this way, by notice, by choice or because the slot is retired:

| end | successor | drains | released |
|---|---|---|---|
| announced by the provider | in time for the end | at its notice, by itself | once drained and replaced |
| chosen by the fleet policy | at once | once that is ready, or in time for a last save | once drained, or at its deadline |
| its slot is retired | none | at once | once drained, or at its deadline |

A machine is drained when neither it nor its gang has work that a release would cut off: its reports say so.  A gang leaves
as one: the release of one machine would end the others.
"""

from __future__ import annotations

from windfall.core import gangs
from windfall.core.fleet_state import FleetTurn, TrackedMachine
from windfall.core.lifecycle import MachineState
from windfall.core.machines import count_loss
from windfall.fleet import SUPERSEDED, DrainMachine, MachineStatus
from windfall.terms import Instant


def drain(turn: FleetTurn, unit: TrackedMachine, deadline: Instant, reason: str) -> None:
    """Start to drain a machine; one that has not reported yet has nothing to hand over and is released at once."""
    if unit.state is MachineState.RELEASING:
        return
    if unit.report is None:
        if gangs.works(turn, unit):  # its release would end the others, which still hand over
            turn.set_unit(unit, drain_at=deadline, drain_reason=reason)
        else:
            turn.release(turn.detach(unit), reason)
        return
    turn.become(unit, MachineState.DRAINING, drain_at=deadline, drain_reason=reason)
    turn.emit(DrainMachine(unit.machine_id, deadline, reason))


def watch_announced(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Release a machine whose announced end can come early."""
    if unit.ends_at is not None and turn.units[unit.machine_id].state is MachineState.PREEMPTING:
        _consider_supersession(turn, unit, unit.ends_at)


def watch_chosen(turn: FleetTurn) -> None:
    """Advance machines that leave by choice: first all drains, then all releases, as gangs leave whole."""
    for unit in list(turn.units.values()):
        if unit.drain_at is not None and unit.state not in {MachineState.DRAINING, MachineState.RELEASING}:
            _consider_drain(turn, unit, unit.drain_at)
    for machine_id in list(turn.units):
        unit = turn.units[machine_id]  # another of its gang may have taken it along
        if unit.drain_at is not None and unit.state is MachineState.DRAINING:
            _consider_release(turn, unit, unit.drain_at)


def _consider_drain(turn: FleetTurn, unit: TrackedMachine, deadline: Instant) -> None:
    """Drain a machine once its successor is ready, or when the time for its last save begins."""
    begin_at = Instant(deadline - turn.job.checkpointing.save_timeout_s)
    if gangs.replaceable(turn, unit) or turn.now >= begin_at:
        drain(turn, unit, deadline, unit.drain_reason)
    else:
        turn.later.append(begin_at)


def _consider_release(turn: FleetTurn, unit: TrackedMachine, deadline: Instant) -> None:
    """Release a machine, and its gang, once it is drained, or at its deadline."""
    if turn.now < deadline and gangs.works(turn, unit):
        turn.later.append(deadline)
        return
    _release(turn, unit, unit.drain_reason)


def _consider_supersession(turn: FleetTurn, unit: TrackedMachine, ends_at: Instant) -> None:
    """Release a machine whose end is announced, and its gang, once it is drained and a successor can take over."""
    if unit.slot is None:
        return
    if turn.now < ends_at:
        turn.later.append(ends_at)
    if turn.slots[unit.slot].incumbent != unit.machine_id or not gangs.replaceable(turn, unit):
        return
    if _handed_over(turn, unit, unit.slot, ends_at) or turn.now >= ends_at:
        for one in gangs.whole(turn, unit):
            # It was about to be preempted: an earlier release still counts as a preemption, if its end is not its time limit.
            turn.change(preemptions=turn.state.preemptions + (not one.expires))
            count_loss(turn, one)
        _release(turn, unit, SUPERSEDED)


def _handed_over(turn: FleetTurn, unit: TrackedMachine, slot_id: str, ends_at: Instant) -> bool:
    """Return whether a replaceable machine is drained; others of its gang, not on notice themselves, are told to drain."""
    slot = turn.slots[slot_id]
    if slot.need.gang:
        for one in gangs.whole(turn, unit):
            if one.state is MachineState.LIVE:
                drain(turn, one, ends_at, SUPERSEDED)
        return not gangs.works(turn, unit)
    drained = unit.status is not MachineStatus.TRAINING and unit.trained_generation >= 0
    return drained or slot.successor in turn.state.holders


def _release(turn: FleetTurn, unit: TrackedMachine, reason: str) -> None:
    for one in gangs.whole(turn, unit):
        slot_id = one.slot
        turn.release(turn.set_unit(turn.detach(one), superseded_in=slot_id), reason)
