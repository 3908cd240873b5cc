"""The machines of a job: they appear, report, fall silent, announce their end, are released or preempted, and are gone.

The difference between a provider's listing and the machines that the driver knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from windfall.core import gangs
from windfall.core.fleet_state import (
    GONE_KEPT,
    NO_TIME,
    READY,
    RELEASE_AGAIN_S,
    UNKNOWN_MACHINES_KEPT,
    FleetTurn,
    GoneMachine,
    SlotState,
    TrackedMachine,
)
from windfall.core.lifecycle import MachineState, OrderState
from windfall.fleet import (
    CancelOrder,
    DeclareGone,
    MachineReported,
    MachineSilent,
    MachinesMissing,
    MachinesObserved,
    MachineStatus,
    PreemptionRequested,
    PreemptMachine,
    ReleaseMachine,
    Report,
)
from windfall.market import Machine, MachineEndCause, MachineLifecycle, Offer, Refusal
from windfall.models.injection import lifetime_s
from windfall.policies.acquisition import ranking
from windfall.structs import Struct, replace
from windfall.terms import Instant, NoticeLevel, Reliability

PROMISE_S = 120.0
"""How long a promised machine may be missing from listings [s]: providers list new machines with a delay."""
ZOMBIE_S = 300.0
"""A machine listed as running is released after this time without contact on any channel [s]."""
UNRESPONSIVE_S = 1200.0
"""A running machine is released if it has not reported after this time [s]."""
_TAKEN = frozenset({MachineEndCause.PREEMPTED, MachineEndCause.CANCELLED})
"""Ends by others, which say nothing about whether the machine could start."""
_YOUNG = frozenset({MachineState.PROMISED, MachineState.PENDING, MachineState.BOOTING})
_BY_LIFE = MappingProxyType(
    {MachineLifecycle.PENDING: MachineState.PENDING, MachineLifecycle.RUNNING: MachineState.BOOTING}
)


# ------------------------------------------------------------------------------------------------------------- listings


def seen(turn: FleetTurn, fact: MachinesObserved) -> None:
    """Record machines that are new in a listing or have changed."""
    for machine in fact.machines:
        unit = turn.units.get(machine.machine_id)
        if unit is not None:
            _listed(turn, unit, machine)
        elif machine.owner == turn.state.owner and machine.job_id == turn.job.job_id:
            _appeared(turn, machine)


def promised(turn: FleetTurn, machine_id: str, token: str) -> None:
    """Track a machine that the answer to an order names."""
    if machine_id in turn.units or machine_id in turn.gone:
        return
    entry = turn.orders[token]
    order, offer = entry.order, entry.order.offer
    machine = Machine(
        machine_id, order.owner, order.job_id, token, offer.provider, offer.machine_type, offer.zone, offer.reliability,
        offer.price_usd_per_hour, MachineLifecycle.PENDING,
    )  # fmt: skip
    _assign(turn, TrackedMachine(machine, MachineState.PROMISED, offer, entry.placed_at))


def _appeared(turn: FleetTurn, machine: Machine) -> None:
    """Track a machine that appears in a listing for the first time."""
    entry = turn.orders.get(machine.token)
    offer = entry.order.offer if entry is not None else _offer_of(turn, machine)
    if machine.lifecycle is MachineLifecycle.GONE:
        known = machine.machine_id in turn.gone
        announced = known and turn.gone[machine.machine_id].announced
        _remember_gone(turn, GoneMachine(machine, announced, known and turn.gone[machine.machine_id].injected))
        if known or entry is not None or turn.state.ledger.knows(machine.machine_id):
            turn.touched[machine.machine_id] = (machine, offer)
        if entry is not None and not known:
            _gone_before_listed(turn, machine)
        return
    turn.gone.pop(machine.machine_id, None)
    at = turn.now if entry is None else entry.placed_at
    unit = _assign(turn, TrackedMachine(machine, _BY_LIFE[machine.lifecycle], offer, at))
    _listed(turn, unit, machine)


def _offer_of(turn: FleetTurn, machine: Machine) -> Offer | None:
    key = (machine.provider, machine.machine_type, machine.zone, machine.reliability)
    return next((offer for offer in turn.state.offers if offer.key == key), None)


def _assign(turn: FleetTurn, unit: TrackedMachine) -> TrackedMachine:
    """Assign a new machine to the slot that waits for it, or to one that needs it; otherwise release it."""
    token = unit.machine.token
    slot = _slot_for(turn, token)
    unit = turn.set_unit(unit)
    turn.update_ledger(unit)
    if slot is None:
        turn.release(unit, "no slot needs it")
        return turn.units[unit.machine_id]
    role = "incumbent" if slot.incumbent is None else "successor"
    slot = turn.set_slot(slot, awaits=None, machine_count=slot.machine_count + 1, **{role: unit.machine_id})
    unit = turn.set_unit(unit, slot=slot.id, ordinal=slot.machine_count)
    known = turn.state.unknown_machines.get(unit.machine_id)
    if known is not None:
        others = {name: fact for name, fact in turn.state.unknown_machines.items() if name != unit.machine_id}
        turn.change(unknown_machines=MappingProxyType(others))
        report_received(turn, known)
    return turn.units[unit.machine_id]


def _slot_for(turn: FleetTurn, token: str) -> SlotState | None:
    entry = turn.orders.get(token)
    waiting = turn.awaiting(token)
    if waiting:
        if entry is not None:
            turn.orders[token] = replace(entry, waiting=entry.waiting - 1)
        return turn.slots[waiting.pop()]
    if entry is not None or not turn.active:
        return None
    return next((slot for slot in turn.slots.values() if _is_free(slot)), None)


def _is_free(slot: SlotState) -> bool:
    return slot.incumbent is None and slot.awaits is None and not slot.retiring and not slot.need.gang


def _gone_before_listed(turn: FleetTurn, machine: Machine) -> None:
    """Record a machine that came and went between two listings; its slot no longer waits for it."""
    slot = _slot_for(turn, machine.token)
    if slot is not None:
        turn.set_slot(slot, awaits=None, machine_count=slot.machine_count + 1)
        turn.lost.append((slot.id, machine.machine_id))
        _lost_together(turn, machine, slot.need.gang)
        turn.change(preemptions=turn.state.preemptions + (machine.cause is MachineEndCause.PREEMPTED))


def _listed(turn: FleetTurn, unit: TrackedMachine, machine: Machine) -> None:
    unit = turn.set_unit(unit, machine=machine)
    turn.update_ledger(unit)
    if machine.lifecycle is MachineLifecycle.GONE:
        lost(turn, unit, machine.cause)
        return
    if machine.lifecycle is MachineLifecycle.PENDING and unit.state is MachineState.PROMISED:
        turn.become(unit, MachineState.PENDING)
    elif machine.lifecycle is MachineLifecycle.RUNNING and unit.running_at is None:
        _runs(turn, unit)


def _runs(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Record that a machine was seen running for the first time."""
    started = unit.machine.started
    # The provider's clock may differ from ours: the machine started after the order and before now.
    age_s = 0.0 if started is None else min(max(turn.now - started, 0.0), max(turn.now - unit.ordered_at, 0.0))
    running_at = Instant(turn.now - age_s)
    turn.change(allocations=turn.state.allocations.add(max(running_at - unit.ordered_at, 0.0)))
    injection, preempt_at = turn.job.injection, None
    slot = None if unit.slot is None else turn.slots[unit.slot]
    # A machine that cannot be preempted is not, in a rehearsal either.
    if injection is not None and slot is not None and slot.need.reliability is not Reliability.RELIABLE:
        preempt_at = Instant(running_at + lifetime_s(injection, slot.number, unit.ordinal))
    unit = turn.set_unit(unit, running_at=running_at, preempt_at=preempt_at)
    if unit.state in {MachineState.PROMISED, MachineState.PENDING}:
        turn.become(unit, MachineState.BOOTING)


def missing(turn: FleetTurn, fact: MachinesMissing) -> None:
    """Record machines that two listings in a row lack; they count as gone if they are silent on every channel too."""
    for machine_id in fact.machine_ids:
        turn.gone.pop(machine_id, None)
        unit = turn.units.get(machine_id)
        if unit is None:
            continue
        recent = unit.running_at is None and turn.now < unit.ordered_at + PROMISE_S
        no_contact = unit.report is None or unit.silent_since is not None
        if unit.state is MachineState.RELEASING or (no_contact and not recent):
            machine = replace(unit.machine, lifecycle=MachineLifecycle.GONE, ended=turn.wall_time())
            unit = turn.set_unit(unit, machine=machine)
            turn.update_ledger(unit)
            lost(turn, unit, None if unit.state is MachineState.RELEASING else MachineEndCause.PREEMPTED)


def lost(turn: FleetTurn, unit: TrackedMachine, cause: MachineEndCause | None) -> None:
    """Remove a machine that is gone, as its provider confirms.

    Args:
        turn: the current turn.
        unit: the machine, up to date.
        cause: why it ended; None if that is unknown.
    """
    slot_id, ours = unit.slot, unit.state is MachineState.RELEASING
    unit = turn.detach(unit)
    turn.become(unit, MachineState.GONE)
    del turn.units[unit.machine_id]
    expired = unit.expires or unit.machine.cause is MachineEndCause.EXPIRED
    _remember_gone(turn, GoneMachine(unit.machine, unit.ends_at is not None, unit.injected, expired))
    if unit.trained_generation >= 0 or unit.machine_id in turn.state.holders:
        turn.emit(DeclareGone(unit.machine_id))
    _free_quota(turn, unit)
    if ours or not turn.active:
        return
    _lost_together(turn, unit.machine, "" if slot_id is None else turn.slots[slot_id].need.gang)
    if slot_id is not None:
        turn.lost.append((slot_id, unit.machine_id))
    turn.change(preemptions=turn.state.preemptions + (cause is MachineEndCause.PREEMPTED))
    if unit.report is None and cause not in _TAKEN:
        failed_to_start(turn, unit)
    elif slot_id is not None:
        count_loss(turn, unit)


def _lost_together(turn: FleetTurn, machine: Machine, gang: str) -> None:
    """Release the other machines of a gang that has lost one: they are an allocation and end together."""
    if gang:
        for other in list(turn.units.values()):
            if other.machine.token == machine.token and other.slot is not None:
                turn.release(other, f"its gang {gang} has lost {machine.machine_id}")


def failed_to_start(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Record that a machine ended, or was given up, before its first report; its offer is not tried for a while."""
    turn.change(failed_to_start=turn.state.failed_to_start + 1)
    _pause_buying(turn, turn.state.failed_to_start)
    message = "the machine ended before its agent reported"
    turn.blocks[unit.key] = ranking.block_after(turn.blocks.get(unit.key), None, message, turn.now)


def count_loss(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Count a lost machine whose script ran and made no progress."""
    if unit.trained_generation >= 0 and not unit.progressed:
        turn.change(losses_without_progress=turn.state.losses_without_progress + 1)


def _pause_buying(turn: FleetTurn, failures: int) -> None:
    """Pause buying when machines keep failing to start; from the second round on, with a growing pause."""
    rounds = failures // max(len(turn.slots), 1)
    if rounds >= 2:
        turn.change(buying_paused_until=Instant(turn.now + ranking.pause_s(rounds - 1)))


def _track_progress(turn: FleetTurn, unit: TrackedMachine, step: int) -> None:
    """Record a reported step; beyond the machine's first one it is progress."""
    if step > (max(turn.state.safe_amount, 0) if unit.first_step is None else unit.first_step):
        turn.change(losses_without_progress=0, buying_paused_until=NO_TIME)
        unit = turn.set_unit(unit, progressed=True)
    if unit.first_step is None:
        turn.set_unit(unit, first_step=step)


def _free_quota(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Unblock offers refused for quota: a gone machine no longer counts against it."""
    full = [key for key, block in turn.blocks.items() if block.refusal is Refusal.QUOTA and key[:2] == unit.key[:2]]
    for key in full:
        del turn.blocks[key]


def _remember_gone(turn: FleetTurn, gone: GoneMachine) -> None:
    turn.gone[gone.machine.machine_id] = gone
    if len(turn.gone) > max(GONE_KEPT, 8 * len(turn.slots)):
        del turn.gone[next(iter(turn.gone))]


# -------------------------------------------------------------------------------------------------------------- reports


def report_received(turn: FleetTurn, fact: MachineReported) -> None:
    """Record a report of a machine, on any channel."""
    report = fact.report
    unit = turn.units.get(report.machine_id)
    if unit is None:
        if report.machine_id not in turn.gone:
            unknown_machines = {**turn.state.unknown_machines, report.machine_id: fact}
            kept = dict(list(unknown_machines.items())[-UNKNOWN_MACHINES_KEPT:])
            turn.change(unknown_machines=MappingProxyType(kept))
        return
    if _stale(unit, report):
        return
    if unit.report is None:
        turn.change(failed_to_start=0)
    unit = turn.set_unit(unit, report=report, last_contact_at=turn.now, silent_since=None)
    if unit.state in _YOUNG:
        unit = turn.become(unit, MachineState.LIVE)
    if report.status in READY and unit.ready_at is None:
        since = unit.ordered_at if unit.running_at is None else unit.running_at
        turn.change(boots=turn.state.boots.add(max(turn.now - since, 0.0)))
        unit = turn.set_unit(unit, ready_at=turn.now)
    if report.status is MachineStatus.TRAINING:
        unit = turn.set_unit(unit, trained_generation=max(unit.trained_generation, report.generation))
    if report.step is not None and not unit.progressed:
        _track_progress(turn, unit, report.step)
        unit = turn.units[unit.machine_id]
    _notice_reported(turn, unit, report.level, fact.preemption_at)


def _stale(unit: TrackedMachine, report: Report) -> bool:
    old = unit.report
    return old is not None and old.incarnation == report.incarnation and report.sequence < old.sequence


def _notice_reported(
    turn: FleetTurn, unit: TrackedMachine, level: NoticeLevel | None, preemption_at: Instant | None
) -> None:
    """Record what a machine itself reports about its end; a hint changes nothing."""
    if unit.state is MachineState.RELEASING:
        return
    if level in {NoticeLevel.ANNOUNCED, NoticeLevel.GONE}:
        ends_at = turn.now if preemption_at is None or level is NoticeLevel.GONE else preemption_at
        if unit.state is MachineState.DRAINING:
            turn.set_unit(unit, ends_at=ends_at)
            return
        turn.become(unit, MachineState.PREEMPTING, ends_at=ends_at)
    elif level is NoticeLevel.WITHDRAWN and unit.state is MachineState.PREEMPTING:
        unit = turn.become(unit, MachineState.LIVE, ends_at=None)
        _withdraw_successors(turn, unit)


def _withdraw_successors(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Withdraw the successors of a machine and its gang, unless one of them leaves all the same."""
    gang = gangs.whole(turn, unit)
    leaving = next((one for one in gang if one.drain_at is not None), None)
    if leaving is not None:
        turn.set_unit(unit, drain_at=leaving.drain_at, drain_reason=leaving.drain_reason)
    elif all(one.state is not MachineState.PREEMPTING for one in gang):
        for one in gang:
            _withdraw_successor(turn, one)


def _withdraw_successor(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Withdraw the successor of a machine whose announced end was withdrawn."""
    if unit.slot is None:
        return
    slot = turn.slots[unit.slot]
    if slot.incumbent != unit.machine_id:
        return
    stop_awaiting(turn, slot)
    if slot.successor is not None:
        # It stays in the slot until it is gone, so a second notice cannot buy a third machine.
        turn.release(turn.units[slot.successor], "the notice was withdrawn")


def stop_awaiting(turn: FleetTurn, slot: SlotState) -> None:
    """Stop a slot from waiting for its order; an order for which no slot waits any more is cancelled."""
    token = slot.awaits
    if token is None:
        return
    turn.set_slot(slot, awaits=None)
    turn.awaiting(token)[:] = [slot_id for slot_id in turn.awaiting(token) if slot_id != slot.id]
    entry = replace(turn.orders[token], waiting=turn.orders[token].waiting - 1)
    turn.orders[token] = entry
    if entry.waiting == 0:
        cancel(turn, token)


def cancel(turn: FleetTurn, token: str) -> None:
    """Cancel an order that is no longer needed."""
    entry = turn.orders[token]
    if entry.state is OrderState.CANCELLED:
        return
    turn.emit(CancelOrder(token, entry.order.offer.provider))
    turn.orders[token] = replace(entry, state=OrderState.CANCELLED, waiting=0, resend_at=None, outcome_unknown=True)


def silent(turn: FleetTurn, fact: MachineSilent) -> None:
    """Record that there has been no contact with a machine on any channel for a while."""
    unit = turn.units.get(fact.machine_id)
    if unit is None or (unit.report is None and unit.running_at is None):
        return  # a machine that has not started is not expected to report
    since = Instant(turn.now - fact.silent_s)
    if unit.last_contact_at is not None:
        since = max(since, unit.last_contact_at)
    turn.set_unit(unit, silent_since=since)


def alive_by_progress(turn: FleetTurn, machine_id: str) -> None:
    """Count progress of a holder as contact, whatever the channels say."""
    unit = turn.units.get(machine_id)
    if unit is not None and unit.report is not None:
        turn.set_unit(unit, last_contact_at=turn.now, silent_since=None)


# ----------------------------------------------------------------------------------------------------------- every turn


def watch(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Check a machine: whether it is due to be released, preempted, or released again."""
    if unit.state is MachineState.RELEASING:
        _release_again(turn, unit)
    elif unit.silent_since is not None or unit.report is None:
        _unresponsive(turn, unit)
    elif unit.status is MachineStatus.FAILED:
        _failed(turn, unit)
    if unit.preempt_at is not None and not unit.injected:
        _inject(turn, unit)


def _release_again(turn: FleetTurn, unit: TrackedMachine) -> None:
    again_at = Instant(unit.released_at + RELEASE_AGAIN_S)
    if turn.now >= again_at:
        turn.set_unit(unit, released_at=turn.now)
        turn.emit(ReleaseMachine(unit.machine_id, unit.machine.provider, unit.reason))
        again_at = Instant(turn.now + RELEASE_AGAIN_S)
    turn.later.append(again_at)


def _unresponsive(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Release a machine that is listed as running but does not report; it is replaced once it is gone."""
    if unit.machine.lifecycle is not MachineLifecycle.RUNNING:
        _overdue(turn, unit)
        return
    if unit.report is None:
        assert unit.running_at is not None, "a running machine has a start"
        limit, reason = Instant(unit.running_at + UNRESPONSIVE_S), "it never reported"
    else:
        assert unit.silent_since is not None, "it reported, then fell silent"
        limit, reason = (
            Instant(unit.silent_since + ZOMBIE_S),
            "it is listed as running, but there is no contact on any channel",
        )
    if turn.now < limit:
        turn.later.append(limit)
        return
    if unit.report is None:
        failed_to_start(turn, unit)
    turn.log(f"released {unit.machine_id}: {reason}")
    turn.release(unit, reason)


def _overdue(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Release a confirmed machine that its provider neither starts nor withdraws, once its offer's time is over."""
    if unit.offer is None or unit.offer.promise_s is None or unit.report is not None:
        return
    limit = Instant(unit.ordered_at + unit.offer.promise_s)
    if turn.now < limit:
        turn.later.append(limit)
        return
    failed_to_start(turn, unit)
    if _sold_elsewhere(turn, unit):
        # Its place in this queue is given up: what is ordered next is not the end of the same queue.
        block = turn.blocks[unit.key]
        turn.blocks[unit.key] = replace(block, until=Instant(max(block.until, turn.now + unit.offer.promise_s)))
    turn.log(f"released {unit.machine_id}: it did not start within {unit.offer.promise_s:g} s")
    turn.release(unit, "it never started")


def _sold_elsewhere(turn: FleetTurn, unit: TrackedMachine) -> bool:
    """Return whether another provider sells what the job needs, and the job allows it."""
    others = (offer for offer in turn.state.offers if offer.provider != unit.machine.provider)
    return any(ranking.refusal(turn.job, offer) is None for offer in others)


def _failed(turn: FleetTurn, unit: TrackedMachine) -> None:
    """Release a machine that cannot do the job; this counts as a failure of the job, not as a preemption."""
    assert unit.report is not None, "it reported the failure"
    message = unit.report.message or "it gives no reason"
    turn.change(machine_failures=turn.state.machine_failures + 1, failure=f"{unit.machine_id}: {message}")
    turn.log(f"{unit.machine_id} cannot do the job: {message}")
    turn.release(unit, "it failed")


def _inject(turn: FleetTurn, unit: TrackedMachine) -> None:
    injection, preempt_at = turn.job.injection, unit.preempt_at
    assert injection is not None, "only an injection sets the end of a machine"
    assert preempt_at is not None, "this machine has such an end"
    if turn.now < preempt_at:
        turn.later.append(preempt_at)
    elif turn.units[unit.machine_id].state is not MachineState.RELEASING:
        turn.set_unit(turn.units[unit.machine_id], injected=True)
        turn.emit(PreemptMachine(unit.machine_id, unit.machine.provider, injection.notice_s))


def preempt_requested(turn: FleetTurn, fact: PreemptionRequested) -> None:
    """Preempt a machine at a user's request; its lifetime does not count as the market's."""
    unit = turn.units.get(fact.machine_id)
    if unit is not None and unit.state is not MachineState.RELEASING:
        turn.set_unit(unit, injected=True)
        turn.emit(PreemptMachine(unit.machine_id, unit.machine.provider, fact.notice_s))


class ListingDifference(Struct, frozen=True):
    """The difference between a listing and the known machines.

    Attributes:
        seen: machines that are new or have changed, in the listing's order.
        missing: known machines that are not listed, sorted; includes machines known to be gone, which can be forgotten
            once their provider no longer lists them.
    """

    seen: tuple[Machine, ...]
    missing: tuple[str, ...]


def compare(known: Mapping[str, Machine], listing: tuple[Machine, ...]) -> ListingDifference:
    """Compare one provider's complete listing with its known machines.

    Args:
        known: from `driver.known_machines`, only this provider's and this job's.
        listing: as the provider returned it, only this job's machines; of a machine listed twice, the last entry counts.
    """
    listed = {machine.machine_id: machine for machine in listing}
    seen = tuple(machine for machine_id, machine in listed.items() if known.get(machine_id) != machine)
    return ListingDifference(seen, tuple(sorted(known.keys() - listed.keys())))
