"""Gangs: machines of one allocation, which live and die together.  So they are replaced, drained and released together."""

from __future__ import annotations

from windfall.core.fleet_state import FleetTurn, TrackedMachine
from windfall.fleet import MachineStatus


def whole(turn: FleetTurn, unit: TrackedMachine) -> list[TrackedMachine]:
    """Return a machine and the others of its gang that fill slots; only itself if it has none."""
    if unit.slot is None or not turn.slots[unit.slot].need.gang:
        return [unit]
    token = unit.machine.token
    others = [one for one in turn.units.values() if one.machine.token == token and one.slot is not None]
    return [unit, *(one for one in others if one.machine_id != unit.machine_id)]


def replaceable(turn: FleetTurn, unit: TrackedMachine) -> bool:
    """Return whether a successor is ready for a machine and for each other of its gang."""
    return all(_has_ready_successor(turn, one) for one in whole(turn, unit))


def works(turn: FleetTurn, unit: TrackedMachine) -> bool:
    """Return whether a machine, or another of its gang, has work that an end would cut off."""
    return any(one.status is MachineStatus.TRAINING for one in whole(turn, unit))


def _has_ready_successor(turn: FleetTurn, unit: TrackedMachine) -> bool:
    slot = None if unit.slot is None else turn.slots[unit.slot]
    return slot is not None and slot.successor is not None and turn.units[slot.successor].ready
