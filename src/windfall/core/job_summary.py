"""Views of the driver's state that decide nothing: the summary of a job for users, and lifetimes for the pool."""

from __future__ import annotations

from collections.abc import Iterable

from windfall.core import ledger
from windfall.core.fleet_state import FleetState, GoneMachine, TrackedMachine
from windfall.core.ledger import LedgerTotals
from windfall.core.lifecycle import MachineState, OrderState
from windfall.events import Fact
from windfall.fleet import JobPhase, Lifetime, MachinesMissing, MachinesObserved, MachineStatus
from windfall.jobs import Forecast
from windfall.market import Machine, MachineEndCause, MachineLifecycle
from windfall.structs import Struct
from windfall.terms import Generation, Instant, Reliability, Seconds, Step, WallTime

SDK_INACTIVE = "the script has not called Windfall: no step is known and nothing is saved"


class MachineView(Struct, frozen=True):
    """A machine as shown to users.

    Attributes:
        role: `incumbent`, `successor`, or `surplus` for one that is being released.
        ends_at: the announced end that it reported; None if there is none.
        message: the message of its last report, or why it is released.
    """

    machine_id: str
    role: str
    provider: str
    machine_type: str
    zone: str
    reliability: Reliability
    price_usd_per_hour: float
    state: MachineState
    status: MachineStatus | None
    step: Step | None
    silent: bool
    ends_at: Instant | None
    message: str


class SlotView(Struct, frozen=True):
    """A slot and its machines; `awaits` is the order that will fill it."""

    name: str
    machines: tuple[MachineView, ...]
    awaits: str | None
    machine_count: int


class OrderView(Struct, frozen=True):
    """An order whose machines have not come yet."""

    token: str
    provider: str
    machine_type: str
    zone: str
    count: int
    state: OrderState
    placed_at: Instant


class JobSummary(Struct, frozen=True):
    """The status of a job.

    Attributes:
        message: what it does now, or why it waits or has ended.
        reasons: why offers cannot be bought, the best offer first.
        surplus: machines that no slot needs and that are being released.
        step, saved_step: the newest reported step, and the newest committed step.
        money: estimated and settled cost, on-demand baseline, hours.
        rate_usd_per_hour: current price of all machines [USD/h].
        generation: the newest; None where machines train alone.
        next_retry_at: when buying is retried; None if no machine is missing.
        exit_code: None until the job has ended.
        forecast: what its plan promised; None if it promised nothing.
        finish_s: from the submission to the end of the work [s]; None unless it is done.
        resumed: a user resumed it after a stop or a failure.
    """

    job_id: str
    name: str
    phase: JobPhase
    message: str
    reasons: tuple[str, ...]
    slots: tuple[SlotView, ...]
    surplus: tuple[MachineView, ...]
    orders: tuple[OrderView, ...]
    step: Step
    saved_step: Step
    failures: int
    preemptions: int
    money: LedgerTotals
    rate_usd_per_hour: float
    generation: Generation | None
    next_retry_at: Instant | None
    exit_code: int | None
    forecast: Forecast | None = None
    finish_s: Seconds | None = None
    resumed: bool = False


def summary(state: FleetState, now: Instant) -> JobSummary:
    """Return the summary of a job.

    Args:
        state: the driver's, after `JobSubmitted`.
        now: on the journal clock.
    """
    job, observed = state.the_job, state.progress
    steps = [
        unit.report.step for unit in state.units.values() if unit.report is not None and unit.report.step is not None
    ]
    saved = Step(int(state.safe_amount))
    return JobSummary(
        job_id=job.job_id,
        name=job.name,
        phase=state.phase,
        message=_message(state, now),
        reasons=state.refused,
        slots=_slots(state),
        surplus=tuple(_machine(unit, "surplus") for unit in state.units.values() if unit.slot is None),
        orders=_orders(state),
        step=max([saved, *steps]),
        saved_step=saved,
        failures=0 if observed is None else observed.progress.failures,
        preemptions=state.preemptions,
        money=ledger.totals(state.ledger, WallTime(now)),
        rate_usd_per_hour=sum(unit.machine.price_now_usd_per_hour for unit in state.units.values()),
        generation=state.generation,
        next_retry_at=state.retry_at,
        exit_code=None if state.ended is None else state.ended.exit_code,
        forecast=state.forecast,
        finish_s=finish_s(state),
        resumed=state.resumed,
    )


def finish_s(state: FleetState) -> Seconds | None:
    """Return the time from the submission to the moment at which the job was seen to be done [s]; None if it is not done.

    The release of its machines, which follows, is not part of it.
    """
    if state.ended is None or state.ended.final is not JobPhase.DONE:
        return None
    return Seconds(state.ended.since - state.submitted_at)


def _message(state: FleetState, now: Instant) -> str:
    """Return one line: what the job is doing, and why it is not doing more."""
    if state.ended is not None:
        return state.ended.message
    if state.pending_end is not None:
        saving = state.pending_end.saves_until is not None and any(
            unit.status is MachineStatus.TRAINING and unit.state is not MachineState.RELEASING
            for unit in state.units.values()
        )
        status = _saving_note(state) if saving else _count(len(state.units), "being released")
        return f"{state.pending_end.message}; {status}"
    return f"{_active(state, now)}{'; its deadline has passed' if state.deadline_notified else ''}"


def _saving_note(state: FleetState) -> str:
    """Return what a stop waits for, for how long, and how to end it; the text stays the same until it is over."""
    pending_end = state.pending_end
    if pending_end is None or pending_end.saves_until is None:
        return "saving"
    up_to = f"up to {pending_end.saves_until - pending_end.since:.0f} s"
    if pending_end.now:
        return f"ending the script ({up_to})"
    return f"waiting for its last save, {up_to} (`windfall stop {state.the_job.job_id} --now` ends it without one)"


def _active(state: FleetState, now: Instant) -> str:
    if state.phase is JobPhase.WAITING or state.refused:
        return _waiting(state, now)
    if state.phase is JobPhase.RUNNING:
        return _running(state)
    return _buying(state)


def _waiting(state: FleetState, now: Instant) -> str:
    reason = state.refused[0] if state.refused else "nothing can be bought now"
    more = f", and {len(state.refused) - 1} more" if len(state.refused) > 1 else ""
    again = "" if state.retry_at is None else f"; next try in {max(state.retry_at - now, 0.0):.0f} s"
    training = "" if state.phase is JobPhase.WAITING else f"{_tally(state)}; "
    return f"{training}waiting: {reason}{more}{again}"


def _running(state: FleetState) -> str:
    preempting = sum(unit.state is MachineState.PREEMPTING for unit in state.units.values())
    note = f", {preempting} with a preemption notice" if preempting else ""
    sdk_inactive = any(unit.report is not None and unit.report.sdk_inactive for unit in state.units.values())
    return f"{_tally(state)}{note}{f'; {SDK_INACTIVE}' if sdk_inactive else ''}"


def _buying(state: FleetState) -> str:
    unknown = [entry for entry in state.orders.values() if entry.state is OrderState.UNKNOWN]
    if unknown:
        order = unknown[0].order
        provider = order.offer.provider
        return f"waiting: {provider} has not answered order {order.token}; a repeated order never buys twice"
    asked = sum(entry.waiting for entry in state.orders.values())
    if not state.units and not asked:
        unlisted = sorted({offer.provider for offer in state.offers} - state.listed)
        if unlisted:
            return f"listing the machines that already run at {', '.join(unlisted)}, before anything is bought"
        return "waiting for offers"
    return _tally(state)


def _tally(state: FleetState) -> str:
    """Return how many machines are in which status."""
    counts: dict[str, int] = {}
    for unit in state.units.values():
        label = _status_label(unit)
        counts[label] = counts.get(label, 0) + 1
    for entry in state.orders.values():
        if entry.waiting:
            counts["ordered"] = counts.get("ordered", 0) + entry.waiting
    if not counts:
        return "no machines"
    (first, count), *others = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join([_count(count, first), *(f"{number} {label}" for label, number in others)])


def _status_label(unit: TrackedMachine) -> str:
    if unit.state is MachineState.RELEASING:
        return "being released"
    if unit.silent_since is not None:
        return "silent"
    if unit.status is not None:
        return str(unit.status)
    if unit.machine.pending_reason:
        return f"queued ({unit.machine.pending_reason})"
    return "booting" if unit.state is MachineState.BOOTING else "ordered"


def _count(count: int, what: str) -> str:
    return f"{count} machine{'' if count == 1 else 's'} {what}"


def _slots(state: FleetState) -> tuple[SlotView, ...]:
    views = []
    for slot in state.slots.values():
        roles = (("incumbent", slot.incumbent), ("successor", slot.successor))
        machines = tuple(_machine(state.units[name], role) for role, name in roles if name is not None)
        views.append(SlotView(slot.id, machines, slot.awaits, slot.machine_count))
    return tuple(views)


def _machine(unit: TrackedMachine, role: str) -> MachineView:
    machine, report = unit.machine, unit.report
    return MachineView(
        machine.machine_id,
        role,
        machine.provider,
        machine.machine_type,
        machine.zone,
        machine.reliability,
        machine.price_usd_per_hour,
        unit.state,
        unit.status,
        None if report is None else report.step,
        unit.silent_since is not None,
        unit.ends_at,
        unit.reason or ("" if report is None else report.message or (SDK_INACTIVE if report.sdk_inactive else "")),
    )


def _orders(state: FleetState) -> tuple[OrderView, ...]:
    return tuple(
        OrderView(
            token,
            entry.order.offer.provider,
            entry.order.offer.machine_type,
            entry.order.offer.zone,
            entry.order.count_max,
            entry.state,
            entry.placed_at,
        )
        for token, entry in state.orders.items()
        if entry.state is not OrderState.CANCELLED
    )


def lifetimes(before: FleetState, after: FleetState, facts: Iterable[Fact]) -> tuple[Lifetime, ...]:
    """Return the lifetimes of the machines in a batch, for the pool.

    A machine preempted by the injector counts as still alive at that time: rehearsals say nothing about the market.  So does
    one that a person has cancelled, or that has reached its own time limit.

    Args:
        before: the driver's state before the batch.
        after: its state after it.
        facts: of the batch.
    """
    names: dict[str, None] = {}
    for fact in facts:
        if isinstance(fact, MachinesObserved):
            names.update((machine.machine_id, None) for machine in fact.machines)
        elif isinstance(fact, MachinesMissing):
            names.update((name, None) for name in fact.machine_ids)
    found = []
    for name in names:
        gone, unit = after.gone.get(name), after.units.get(name)
        if gone is not None and (name not in before.gone or before.gone[name] != gone):
            found.append(_lifetime_of_gone(gone))
        elif unit is not None and unit.machine.started is not None:
            found.append(_lifetime(unit.machine, preempted=False, announced=unit.ends_at is not None))
    return tuple(life for life in found if life is not None)


def _lifetime_of_gone(gone: GoneMachine) -> Lifetime | None:
    # A machine with an announced end is released early, once its successor can take over.
    announced_end = gone.announced and not gone.expired and gone.machine.cause is MachineEndCause.RELEASED
    preempted = (gone.machine.cause is MachineEndCause.PREEMPTED or announced_end) and not gone.injected
    return _lifetime(gone.machine, preempted=preempted, announced=gone.announced)


def _lifetime(machine: Machine, *, preempted: bool, announced: bool) -> Lifetime | None:
    if machine.started is None or (machine.lifecycle is MachineLifecycle.GONE and machine.ended is None):
        return None
    return Lifetime(
        machine.machine_id, machine.provider, machine.machine_type, machine.zone, machine.started, machine.ended,
        preempted, announced,
    )  # fmt: skip
