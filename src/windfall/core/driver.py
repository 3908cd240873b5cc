"""The driver's reducer: facts about a job's machines in, decisions and commands out.

`react` is a pure function: it reads no clock and does nothing.  Facts that happened together come as one batch; each is
applied first, and what follows from all of them is decided once, in this order: machines that are due, the end of the
job, orders, the next generation.  So sixty machines preempted at once are one decision and one order.

When a machine is bought, and when not:

* for a slot that has none: at the start, or once its machine's provider says that it is gone (or two listings lack it
  and it is silent on every channel);
* for a slot whose machine has itself reported an announced end;
* never because of a hint, of a provider's word alone, of silence alone, of one listing alone;
* never while the outcome of an order for the same slot is unknown, and never before the provider's complete listing was
  compared since the controller started.

Generations (which machines train together) and the directives for each machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from windfall.core import drains, job_end, ledger, machine_ages, machines, needs, orders, save_schedules
from windfall.core.fleet_state import ACTIVE, FleetState, FleetTurn, SlotState, TrackedMachine
from windfall.core.job_summary import JobSummary, lifetimes, summary
from windfall.core.lifecycle import MachineState, OrderState
from windfall.core.needs import coupled, membership_of
from windfall.core.orders import expect
from windfall.events import Command, Decision, Fact, SetTimer, TimerFired
from windfall.fleet import (
    TERMINAL,
    AgeWeighed,
    ChargesObserved,
    ControllerStarted,
    DesiredState,
    Directive,
    EstimatesPooled,
    Event,
    FleetFacts,
    FormGeneration,
    JobPhase,
    JobResumeRequested,
    JobStopRequested,
    JobSubmitted,
    ListingCompleted,
    MachineFacts,
    MachineReported,
    MachineSilent,
    MachinesMissing,
    MachinesObserved,
    MachineStatus,
    NotifyUser,
    OffersChanged,
    OffersObserved,
    OrderAnswered,
    OrderUnanswered,
    Peer,
    PlaceOrder,
    PreemptionRequested,
    ProgressObserved,
    ScheduleComputed,
)
from windfall.market import Machine
from windfall.models import lifetime_pool
from windfall.policies.layout import membership, runtime_list
from windfall.policies.layout.runtime_list import Placement
from windfall.terms import Generation, Instant, Seconds, Term


def form(turn: FleetTurn) -> None:
    """Form the next generation once enough slots have a ready machine, if it differs from the current one.

    Survivors stay, and new machines join for lost ones; a generation of the same members is formed again if it fell apart.
    """
    rule = membership_of(turn.job)
    if not rule.together or not turn.active:
        return
    plannable = Instant(turn.now + expect(turn).lead_s)
    slots = [slot for slot in turn.slots.values() if not slot.retiring]
    found = {slot.id: _candidate(turn, slot, plannable) for slot in slots}
    candidates = {slot_id: unit.machine_id for slot_id, unit in found.items() if unit is not None}
    members = membership.members(rule, [slot.need for slot in slots], candidates)
    current = turn.state.generation
    if members is None or (current is not None and current.members == members and not _fell_apart(turn, current)):
        return
    number = 1 if current is None else current.number + 1
    generation = Generation(number, members, membership.layout(members))
    turn.change(generation=generation)
    turn.emit(FormGeneration(generation))


def _candidate(turn: FleetTurn, slot: SlotState, plannable: Instant) -> TrackedMachine | None:
    """Return the machine that takes part for a slot; one with an announced end only if it trains or has enough time left."""
    incumbent = None if slot.incumbent is None else turn.units[slot.incumbent]
    if incumbent is not None and incumbent.ready and incumbent.report is not None and incumbent.report.address:
        lasting = incumbent.ends_at is None or incumbent.ends_at >= plannable
        if lasting or incumbent.status is MachineStatus.TRAINING:
            return incumbent
    successor = None if slot.successor is None else turn.units[slot.successor]
    if successor is not None and successor.ready and successor.report is not None and successor.report.address:
        return successor
    return None


def _fell_apart(turn: FleetTurn, generation: Generation) -> bool:
    """Return whether a generation has trained and every member is waiting now."""
    units = [turn.units[machine_id] for machine_id in generation.machine_ids]
    return all(unit.status is MachineStatus.WAITING for unit in units) and any(
        unit.trained_generation >= generation.number for unit in units
    )


def directives(state: FleetState, controller: Term) -> dict[str, Directive]:
    """Return the directive for each machine.

    `WAIT` stops nothing that runs; it only forbids a new start.  A machine whose end is announced and that has released the
    run waits, so that it does not take the lease from its successor.

    Args:
        state: the driver's.
        controller: term of the controller that sends it.
    """
    if state.job is None:
        return {}
    peers = _peers(state)
    members = {peer.machine_id for peer in peers}
    together = membership_of(state.job).together
    assigned_of = _assignments(state)
    assigned: dict[str, Directive] = {}
    for machine_id, unit in state.units.items():
        machine = unit.machine
        mttp_s, restart_s = _loss_estimates(state, machine)
        desired_state = _desired_state(state, unit, allowed=not together or machine_id in members)
        inside = desired_state is DesiredState.RUN and together
        assigned[machine_id] = Directive(
            controller,
            desired_state,
            state.generation.number if inside and state.generation is not None else 0,
            peers if inside else (),
            mttp_s,
            restart_s,
            state.schedules[machine_id].schedule if machine_id in state.schedules else None,
            _notice_s(state, unit),
            *assigned_of.get(machine_id, ()),
        )
    return assigned


def _assignments(state: FleetState) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return role and body of each machine's assignment, where the job's runtime gives one."""
    assign = runtime_list.rules(state.the_job.runtime.name).assign
    if assign is None:
        return {}
    placed: dict[str, Placement] = {}
    for slot in state.slots.values():
        unit = None if slot.incumbent is None else state.units[slot.incumbent]
        if unit is not None and unit.ready and unit.report is not None:
            placed[slot.id] = Placement(slot.need.role, unit.machine_id, unit.report.address)
    return {
        unit.machine_id: (state.slots[unit.slot].need.role, assign(state.the_job, state.slots[unit.slot].need, placed))
        for unit in state.units.values()
        if unit.slot is not None
    }


def _notice_s(state: FleetState, unit: TrackedMachine) -> Seconds | None:
    """Return the notice that a machine should expect [s]: the injector's or its offer's; None if unknown."""
    given = state.the_job.injection
    if given is not None:
        return Seconds(given.notice_s or 0.0)
    return None if unit.offer is None else unit.offer.notice_s


def _loss_estimates(state: FleetState, machine: Machine) -> tuple[Seconds | None, Seconds | None]:
    """Return the MTTP and restart time sent to a machine; the injector's means where it preempts machines."""
    mttp_s, restart_s = lifetime_pool.mttp_and_restart(
        state.rates, machine.provider, machine.machine_type, machine.zone, coupled(state)
    )
    given = state.the_job.injection
    if given is not None:
        mttp_s = Seconds(math.fsum(given.mttp_s) / len(given.mttp_s) / coupled(state))
    return mttp_s, restart_s


def fleet_facts(state: FleetState, now: Instant) -> FleetFacts:
    """Return what the job's runtime may decide by.

    Args:
        state: the driver's.
        now: by the journal clock.
    """
    found = {}
    for machine_id, unit in state.units.items():
        found[machine_id] = MachineFacts(unit.machine.price_usd_per_hour, *_loss_estimates(state, unit.machine))
    deadline_s = None if state.job is None else state.job.objective.deadline_s
    return FleetFacts(found, None if deadline_s is None else Seconds(state.submitted_at + deadline_s - now))


def _desired_state(state: FleetState, unit: TrackedMachine, *, allowed: bool) -> DesiredState:
    if unit.state is MachineState.RELEASING or unit.slot is None:
        return DesiredState.STOP
    if unit.state is MachineState.DRAINING:
        return DesiredState.DRAIN
    if state.pending_end is not None or state.phase not in ACTIVE:
        return DesiredState.WAIT
    if (
        unit.state is MachineState.PREEMPTING
        and unit.status is not MachineStatus.TRAINING
        and unit.trained_generation >= 0
    ):
        return DesiredState.WAIT
    return DesiredState.RUN if allowed else DesiredState.WAIT


def _peers(state: FleetState) -> tuple[Peer, ...]:
    """Return the members of the current generation; none once one of them is gone or released."""
    if state.generation is None:
        return ()
    peers: list[Peer] = []
    for machine_id in state.generation.machine_ids:
        unit = state.units.get(machine_id)
        if unit is None or unit.state is MachineState.RELEASING or unit.report is None:
            return ()
        peers.append(Peer(machine_id, unit.report.address))
    return tuple(peers)


__all__ = [
    "FleetState",
    "JobSummary",
    "awaits_listing",
    "buys",
    "directives",
    "initial_state",
    "known_machines",
    "lifetimes",
    "needs_bill",
    "phase",
    "react",
    "summary",
    "unanswered",
]

TIMER = "due"
"""The only timer of the driver: the earliest instant at which something is due."""
_APART_S = 1e-3


def initial_state() -> FleetState:
    """Return the state before the first fact."""
    return FleetState()


def react(
    state: FleetState, now: Instant, facts: tuple[Fact, ...]
) -> tuple[FleetState, tuple[Decision, ...], tuple[Command, ...]]:
    """Apply a batch of facts.

    Args:
        state: as the last call returned it.
        now: the instant of the batch on the journal clock; never before the last one's.
        facts: what happened, oldest first.

    Returns:
        The new state, the decisions taken, the commands to execute in this order.

    Raises:
        IllegalTransition: a transition that the tables do not allow; the given state is unchanged.
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


# ----------------------------------------------------------------------------------------------------- for the job loop


def phase(state: FleetState) -> JobPhase:
    """Return the job's phase."""
    return state.phase


def known_machines(state: FleetState) -> dict[str, Machine]:
    """Return every known machine, including gone ones that may still be listed."""
    known = {machine_id: gone.machine for machine_id, gone in state.gone.items()}
    known.update((machine_id, unit.machine) for machine_id, unit in state.units.items())
    return known


def unanswered(state: FleetState, provider: str) -> tuple[str, ...]:
    """Return the tokens of a provider's orders of unknown outcome."""
    return tuple(
        token
        for token, entry in state.orders.items()
        if entry.order.offer.provider == provider and (entry.state is OrderState.UNKNOWN or entry.outcome_unknown)
    )


def awaits_listing(state: FleetState, provider: str) -> bool:
    """Return whether the driver needs the next complete listing of a provider (`ListingCompleted`)."""
    if provider not in state.listed:
        return True
    return any(
        entry.order.offer.provider == provider
        and ((entry.state is OrderState.UNKNOWN and entry.resend_at is None) or entry.outcome_unknown)
        for entry in state.orders.values()
    )


def buys(state: FleetState) -> bool:
    """Return whether the job may buy machines now."""
    return state.phase not in TERMINAL and state.pending_end is None


def needs_bill(state: FleetState) -> bool:
    """Return whether the job has ended while a machine's bill is open; bills are then polled sooner."""
    return state.phase in TERMINAL and bool(state.ledger.open)


# ------------------------------------------------------------------------------------------------------------- handlers


def _job_submitted(turn: FleetTurn, fact: JobSubmitted) -> None:
    turn.change(
        job=fact.job,
        owner=fact.owner,
        measured=fact.measurements,
        forecast=fact.forecast,
        submitted_at=turn.now,
    )
    needs.open_slots(turn, runtime_list.rules(fact.job.runtime.name).slots(fact.job))


def _estimates_pooled(turn: FleetTurn, fact: EstimatesPooled) -> None:
    turn.change(rates=fact.rates)


def _charges_seen(turn: FleetTurn, fact: ChargesObserved) -> None:
    turn.charges.extend(fact.charges)


def _woke(turn: FleetTurn, fact: TimerFired) -> None:
    if fact.name == TIMER:
        turn.change(timer_at=None)


_HANDLERS: Mapping[type[Fact], Callable[[FleetTurn, Any], None]] = MappingProxyType(
    {
        JobSubmitted: _job_submitted,
        ControllerStarted: orders.controller_started,
        OffersObserved: orders.offers_seen,
        OffersChanged: orders.offers_changed,
        EstimatesPooled: _estimates_pooled,
        ScheduleComputed: save_schedules.schedule_computed,
        AgeWeighed: machine_ages.weighed,
        OrderAnswered: orders.answered,
        OrderUnanswered: orders.unanswered,
        ListingCompleted: orders.listed_all,
        MachinesObserved: machines.seen,
        MachinesMissing: machines.missing,
        MachineReported: machines.report_received,
        MachineSilent: machines.silent,
        PreemptionRequested: machines.preempt_requested,
        ProgressObserved: job_end.progress_observed,
        ChargesObserved: _charges_seen,
        JobStopRequested: job_end.stop_requested,
        JobResumeRequested: job_end.resume_requested,
        TimerFired: _woke,
    }
)


# ------------------------------------------------------------------------------------------------------------- decisions


def _settle(turn: FleetTurn) -> None:
    """Decide once what follows from all facts of the batch."""
    _update_ledger(turn)
    for machine_id in list(turn.units):
        machines.watch(turn, turn.units[machine_id])  # another of its gang may have taken it along
        drains.watch_announced(turn, turn.units[machine_id])
    job_end.consider(turn)
    needs.settle(turn)
    drains.watch_chosen(turn)
    needs.forget_retired(turn)
    orders.settle(turn)
    if turn.state.pending_end is not None:
        job_end.consider(turn)  # the budget did not cover the purchase
    _update_ledger(turn)
    form(turn)
    _notify_losses(turn)
    _set_phase(turn)
    _set_timer(turn)


def _update_ledger(turn: FleetTurn) -> None:
    current = turn.state.ledger
    if turn.touched:
        current = ledger.observe(current, turn.touched.values())
        turn.touched = {}
    if turn.charges:
        current = ledger.charge_lines(current, turn.charges)
        turn.charges = []
    if current is not turn.state.ledger:
        turn.change(ledger=current)


def _notify_losses(turn: FleetTurn) -> None:
    if not turn.lost or not turn.active:
        return
    slot_id, machine_id = turn.lost[0]
    more = f" and {len(turn.lost) - 1} more" if len(turn.lost) > 1 else ""
    verb = "were" if more else "was"
    message = f"{machine_id} of {slot_id}{more} {verb} lost and will be replaced"
    turn.emit(NotifyUser(Event.PREEMPTED, message))


def _set_phase(turn: FleetTurn) -> None:
    if not turn.active:
        return
    active = [
        unit for unit in turn.units.values() if unit.slot is not None and unit.state is not MachineState.RELEASING
    ]
    if any(unit.status is MachineStatus.TRAINING for unit in active):
        turn.enter(JobPhase.RUNNING)
    elif not active and turn.state.refused and not any(slot.awaits is not None for slot in turn.slots.values()):
        turn.enter(JobPhase.WAITING)
    else:
        turn.enter(JobPhase.BUYING)
    if active:
        turn.change(waiting_notified=False)
    elif turn.state.phase is JobPhase.WAITING and not turn.state.waiting_notified:
        # Only once, however often buying is retried.
        turn.change(waiting_notified=True)
        turn.emit(NotifyUser(Event.WAITING, f"waiting: {turn.state.refused[0]}"))


def _set_timer(turn: FleetTurn) -> None:
    """Set the timer to the earliest instant at which something is due, unless an earlier one is set."""
    at = min((instant for instant in turn.later if instant > turn.now), default=None)
    if at is None:
        return
    asked = turn.state.timer_at
    if asked is None or asked <= turn.now or at < asked - _APART_S:
        turn.change(timer_at=at)
        turn.emit(SetTimer(at, TIMER))


def _assert_invariants(before: FleetState, after: FleetState, commands: tuple[Command, ...]) -> None:
    """Check what must hold after every batch, whatever the facts."""
    assert after.now >= before.now, "the journal clock goes forward"
    assert after.sequence >= before.sequence, "order numbers grow"
    buying = False
    for slot in after.slots.values():
        assert slot.incumbent is not None or slot.successor is None, "a successor without an incumbent is the incumbent"
        assert slot.successor is None or slot.awaits is None, "at most one machine is expected besides the incumbent"
        assert slot.awaits is None or slot.awaits in after.orders, "a slot only waits for an order that exists"
        buying = buying or slot.awaits is not None
    new = [command.order.token for command in commands if isinstance(command, PlaceOrder)]
    assert len(new) == len(set(new)), "an order is placed once per turn"
    assert not new or buying, "nothing is bought that no slot waits for"
    assert not new or (after.pending_end is None and after.phase not in TERMINAL), (
        "nothing is bought for a job that is ending"
    )
