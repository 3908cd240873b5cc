"""Who trains together, and what each machine is to do: generations and the directives that carry them."""

from __future__ import annotations

import math

from windfall.core.fleet_state import ACTIVE, FleetState, FleetTurn, SlotState, Unit
from windfall.core.lifecycle import MachineState
from windfall.core.orders import expect
from windfall.fleet import Direction, Directive, Doing, FormGeneration, Peer
from windfall.market import Machine
from windfall.models import pool
from windfall.terms import Generation, Instant, Layout, Seconds, Term


def form(turn: FleetTurn) -> None:
    """Form the next generation once every slot has a machine that is ready, if it is another than the present one.

    Survivors stay, a lost slot's new machine joins; a generation of the same members is formed again if it came apart.
    """
    if len(turn.slots) < 2 or not turn.active:
        return
    plannable = Instant(turn.now + expect(turn).lead_s)
    members: list[str] = []
    for slot in turn.slots:
        unit = _candidate(turn, slot, plannable)
        if unit is None:
            return
        members.append(unit.machine_id)
    present = turn.state.generation
    if present is not None and present.members == tuple(members) and not _apart(turn, present):
        return
    number = 1 if present is None else present.number + 1
    generation = Generation(number, tuple(members), Layout(machines=len(members)))
    turn.change(generation=generation)
    turn.order(FormGeneration(generation))


def _candidate(turn: FleetTurn, slot: SlotState, plannable: Instant) -> Unit | None:
    """Return the machine that takes part for a slot: a doomed one only as long as it trains, or has long to live."""
    incumbent = None if slot.incumbent is None else turn.units[slot.incumbent]
    if incumbent is not None and incumbent.ready and incumbent.report is not None and incumbent.report.address:
        lasting = incumbent.ends_at is None or incumbent.ends_at >= plannable
        if lasting or incumbent.doing is Doing.TRAINING:
            return incumbent
    successor = None if slot.successor is None else turn.units[slot.successor]
    if successor is not None and successor.ready and successor.report is not None and successor.report.address:
        return successor
    return None


def _apart(turn: FleetTurn, generation: Generation) -> bool:
    """Say whether a generation trained, and now every member waits."""
    units = [turn.units[machine_id] for machine_id in generation.members]
    return all(unit.doing is Doing.WAITING for unit in units) and any(
        unit.trained_in >= generation.number for unit in units
    )


def directives(state: FleetState, controller: Term) -> dict[str, Directive]:
    """Return what each machine is to do.

    `WAIT` ends nothing that runs: it only forbids to begin again.  A machine whose end is announced and that has let the
    run go waits, so that it does not take it from its successor.

    Args:
        state: the driver's.
        controller: term of the controller that tells it.
    """
    if state.job is None:
        return {}
    peers = _peers(state)
    members = {peer.machine_id for peer in peers}
    told: dict[str, Directive] = {}
    for machine_id, unit in state.units.items():
        machine = unit.machine
        mttp_s, restart_s = _told(state, machine)
        direction = _direction(state, unit, machine_id in members)
        inside = direction is Direction.RUN and len(state.slots) > 1
        told[machine_id] = Directive(
            controller,
            direction,
            state.generation.number if inside and state.generation is not None else 0,
            peers if inside else (),
            mttp_s,
            restart_s,
            state.schedules[machine_id].given if machine_id in state.schedules else None,
            _notice_s(state, unit),
        )
    return told


def _notice_s(state: FleetState, unit: Unit) -> Seconds | None:
    """Return the notice that a machine is told to expect: the injector's, or what its offer promises; None if unknown."""
    given = state.the_job.injection
    if given is not None:
        return Seconds(given.notice_s or 0.0)
    return None if unit.offer is None else unit.offer.notice_s


def _told(state: FleetState, machine: Machine) -> tuple[Seconds | None, Seconds | None]:
    """Return what a machine is told of losses; where the injector takes machines, its means are what there is to know."""
    mttp_s, restart_s = pool.told(state.rates, machine.provider, machine.machine_type, machine.zone, len(state.slots))
    given = state.the_job.injection
    if given is not None:
        mttp_s = Seconds(math.fsum(given.mttp_s) / len(given.mttp_s) / len(state.slots))
    return mttp_s, restart_s


def _direction(state: FleetState, unit: Unit, member: bool) -> Direction:
    if unit.state is MachineState.RELEASING or unit.slot is None:
        return Direction.LEAVE
    if state.closing is not None or state.phase not in ACTIVE:
        return Direction.WAIT
    if unit.state is MachineState.DOOMED and unit.doing is not Doing.TRAINING and unit.trained_in >= 0:
        return Direction.WAIT
    if len(state.slots) > 1 and not member:
        return Direction.WAIT
    return Direction.RUN


def _peers(state: FleetState) -> tuple[Peer, ...]:
    """Return the members of the present generation; none once one of them is gone or given back."""
    if state.generation is None:
        return ()
    peers: list[Peer] = []
    for machine_id in state.generation.members:
        unit = state.units.get(machine_id)
        if unit is None or unit.state is MachineState.RELEASING or unit.report is None:
            return ()
        peers.append(Peer(machine_id, unit.report.address))
    return tuple(peers)
