"""Machines that leave by choice: they save or hand over their work, then they are released.

A machine whose slot stays first gets a successor; it is drained once that one is ready, or when only the time for its
last save is left.  A machine whose slot is retired is drained at once.  A machine whose end its provider announces does
the same by itself (`core.machines`); so notice, choice and retirement end in the same way.

A gang leaves as one: the release of one machine would end the others.
"""

from __future__ import annotations

from windfall.core import gangs
from windfall.core.fleet_state import FleetTurn, TrackedMachine
from windfall.core.lifecycle import MachineState
from windfall.fleet import DrainMachine
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


def watch(turn: FleetTurn) -> None:
    """Advance each machine that is to leave by choice: first all drains, then all releases, as gangs leave whole."""
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
    """Release a drained machine, and its gang, once none of them works any longer, or at its deadline."""
    if gangs.works(turn, unit) and turn.now < deadline:
        turn.later.append(deadline)
        return
    for one in gangs.whole(turn, unit):
        slot_id = one.slot
        turn.release(turn.set_unit(turn.detach(one), superseded_in=slot_id), unit.drain_reason)
