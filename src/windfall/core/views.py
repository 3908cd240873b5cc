"""How a job stands, for people and for the pool of lifetimes: views of the driver's state that decide nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from windfall.core import ledger
from windfall.core.fleet_state import FleetState, Gone, Unit
from windfall.core.ledger import Sums
from windfall.core.lifecycle import MachineState, OrderState
from windfall.events import Fact
from windfall.fleet import Doing, JobPhase, Lifetime, MachinesMissing, MachinesSeen
from windfall.market import Ended, Life, Machine
from windfall.terms import Generation, Instant, Reliability, Step, WallTime

MUTE = "the script has not called Windfall: no step is known and nothing is saved"


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine as people see it.

    Attributes:
        role: `incumbent`, `successor`, or `surplus` for one that is given back.
        ends_at: the end that it announced itself; None if there is none.
        sentence: what it last said of itself.
    """

    machine_id: str
    role: str
    provider: str
    machine_type: str
    zone: str
    reliability: Reliability
    price_usd_per_hour: float
    state: MachineState
    doing: Doing | None
    step: Step | None
    silent: bool
    ends_at: Instant | None
    sentence: str


@dataclass(frozen=True, slots=True)
class SlotView:
    """A need and what fills it; `awaits` names the order of which a machine is expected."""

    name: str
    machines: tuple[MachineView, ...]
    awaits: str | None
    lives: int


@dataclass(frozen=True, slots=True)
class OrderView:
    """An order whose machines have not come."""

    token: str
    provider: str
    machine_type: str
    zone: str
    count: int
    state: OrderState
    placed_at: Instant


@dataclass(frozen=True, slots=True)
class JobSummary:
    """How a job stands.

    Attributes:
        sentence: what it does now, or why it waits or has ended, in words.
        reasons: why what could be bought is not, the most wanted first.
        surplus: machines that no slot needs and that are being given back.
        step, saved_step: the newest step that a machine told of, and the newest that is safe.
        money: estimated, settled, twin, hours.
        rate_usd_per_hour: of all machines now.
        generation: the newest; None where machines train alone.
        next_retry_at: when buying is tried again; None if nothing lacks.
        exit_code: None as long as the job has not ended.
    """

    job_id: str
    name: str
    phase: JobPhase
    sentence: str
    reasons: tuple[str, ...]
    slots: tuple[SlotView, ...]
    surplus: tuple[MachineView, ...]
    orders: tuple[OrderView, ...]
    step: Step
    saved_step: Step
    failures: int
    preemptions: int
    money: Sums
    rate_usd_per_hour: float
    generation: Generation | None
    next_retry_at: Instant | None
    exit_code: int | None


def summary(state: FleetState, now: Instant) -> JobSummary:
    """Return how a job stands.

    Args:
        state: the driver's, after `JobSubmitted`.
        now: on the journal clock.
    """
    job, run = state.the_job, state.run
    steps = [
        unit.report.step for unit in state.units.values() if unit.report is not None and unit.report.step is not None
    ]
    saved = Step(0) if run is None else run.saved_step
    return JobSummary(
        job_id=job.job_id,
        name=job.name,
        phase=state.phase,
        sentence=sentence(state, now),
        reasons=state.refused,
        slots=_slots(state),
        surplus=tuple(_machine(unit, "surplus") for unit in state.units.values() if unit.slot is None),
        orders=_orders(state),
        step=max([saved, *steps]),
        saved_step=saved,
        failures=0 if run is None else run.failures,
        preemptions=state.preemptions,
        money=ledger.sums(state.ledger, WallTime(now)),
        rate_usd_per_hour=sum(unit.machine.price_usd_per_hour for unit in state.units.values()),
        generation=state.generation,
        next_retry_at=state.retry_at,
        exit_code=None if state.ended is None else state.ended.exit_code,
    )


def sentence(state: FleetState, now: Instant) -> str:
    """Return in one sentence what a job does, and why it does not do more."""
    if state.ended is not None:
        return state.ended.sentence
    if state.closing is not None:
        saving = state.closing.saves_until is not None and any(
            unit.doing is Doing.TRAINING and unit.state is not MachineState.RELEASING for unit in state.units.values()
        )
        doing = _saving(state) if saving else _counted(len(state.units), "being given back")
        return f"{state.closing.sentence}; {doing}"
    return f"{_active(state, now)}{'; its deadline has passed' if state.late else ''}"


def _saving(state: FleetState) -> str:
    """Say what a stop waits for, how long at most, and what ends it; the same words until it is over."""
    closing = state.closing
    if closing is None or closing.saves_until is None:
        return "saving"
    at_most = f"for {closing.saves_until - closing.since:.0f} s at most"
    if closing.now:
        return f"ending the script, {at_most}"
    return f"waiting for its last save, {at_most} (`windfall stop {state.the_job.job_id} --now` ends it without one)"


def _active(state: FleetState, now: Instant) -> str:
    if state.phase is JobPhase.WAITING or state.refused:
        return _waiting(state, now)
    if state.phase is JobPhase.RUNNING:
        return _running(state)
    return _buying(state)


def _waiting(state: FleetState, now: Instant) -> str:
    why = state.refused[0] if state.refused else "nothing can be bought now"
    more = f", and {len(state.refused) - 1} more" if len(state.refused) > 1 else ""
    again = "" if state.retry_at is None else f"; tried again in {max(state.retry_at - now, 0.0):.0f} s"
    training = "" if state.phase is JobPhase.WAITING else f"{_tally(state)}; "
    return f"{training}waiting: {why}{more}{again}"


def _running(state: FleetState) -> str:
    doomed = sum(unit.state is MachineState.DOOMED for unit in state.units.values())
    note = f", the end of {doomed} announced" if doomed else ""
    mute = any(unit.report is not None and unit.report.mute for unit in state.units.values())
    return f"{_tally(state)}{note}{f'; {MUTE}' if mute else ''}"


def _buying(state: FleetState) -> str:
    unknown = [entry for entry in state.orders.values() if entry.state is OrderState.UNKNOWN]
    if unknown:
        order = unknown[0].order
        return f"waiting: {order.offer.provider} has not answered order {order.token}; it is asked again, never twice"
    asked = sum(entry.waiting for entry in state.orders.values())
    if not state.units and not asked:
        unlisted = sorted({offer.provider for offer in state.offers} - state.listed)
        if unlisted:
            return f"asking {', '.join(unlisted)} what runs already, before anything is bought"
        return "asking what is for sale"
    return _tally(state)


def _tally(state: FleetState) -> str:
    """Say how many machines do what."""
    counts: dict[str, int] = {}
    for unit in state.units.values():
        words = _words(unit)
        counts[words] = counts.get(words, 0) + 1
    for entry in state.orders.values():
        if entry.waiting:
            counts["ordered"] = counts.get("ordered", 0) + entry.waiting
    parts = [f"{count} {words}" for words, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return f"machines: {', '.join(parts)}" if parts else "no machines"


def _words(unit: Unit) -> str:
    if unit.state is MachineState.RELEASING:
        return "given back"
    if unit.silent_since is not None:
        return "silent"
    if unit.doing is not None:
        return str(unit.doing)
    return "starting" if unit.state is MachineState.STARTING else "ordered"


def _counted(count: int, what: str) -> str:
    return f"{count} machine{'' if count == 1 else 's'} {what}"


def _slots(state: FleetState) -> tuple[SlotView, ...]:
    views = []
    for slot in state.slots:
        roles = (("incumbent", slot.incumbent), ("successor", slot.successor))
        machines = tuple(_machine(state.units[name], role) for role, name in roles if name is not None)
        views.append(SlotView(f"node-{slot.index}", machines, slot.awaits, slot.lives))
    return tuple(views)


def _machine(unit: Unit, role: str) -> MachineView:
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
        unit.doing,
        None if report is None else report.step,
        unit.silent_since is not None,
        unit.ends_at,
        unit.why or ("" if report is None else report.sentence or (MUTE if report.mute else "")),
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
    """Return the lives of the machines that a batch told of, for the pool.

    A machine that the injector took counts as one that was still alive then: rehearsals say nothing of the market.

    Args:
        before: the driver's state before the batch.
        after: its state after it.
        facts: of the batch.
    """
    names: dict[str, None] = {}
    for fact in facts:
        if isinstance(fact, MachinesSeen):
            names.update((machine.machine_id, None) for machine in fact.machines)
        elif isinstance(fact, MachinesMissing):
            names.update((name, None) for name in fact.machine_ids)
    found = []
    for name in names:
        gone, unit = after.gone.get(name), after.units.get(name)
        if gone is not None and (name not in before.gone or before.gone[name] != gone):
            found.append(_ended_life(gone))
        elif unit is not None and unit.machine.began is not None:
            found.append(_life(unit.machine, preempted=False, announced=unit.ends_at is not None))
    return tuple(life for life in found if life is not None)


def _ended_life(gone: Gone) -> Lifetime | None:
    # One whose end was announced is given back before that, once its successor can do without it.
    doomed = gone.announced and gone.machine.cause is Ended.RELEASED
    preempted = (gone.machine.cause is Ended.PREEMPTED or doomed) and not gone.rehearsed
    return _life(gone.machine, preempted=preempted, announced=gone.announced)


def _life(machine: Machine, *, preempted: bool, announced: bool) -> Lifetime | None:
    if machine.began is None or (machine.life is Life.GONE and machine.ended is None):
        return None
    return Lifetime(
        machine.machine_id, machine.provider, machine.machine_type, machine.zone, machine.began, machine.ended,
        preempted, announced,
    )  # fmt: skip
