"""The state of the driver between two batches of facts, and the turn that handles one batch.

The state is immutable.  A `FleetTurn` is local to one call of `driver.react`: it copies the big tables once, handlers
change its copies, and `frozen` returns the next state.  So a batch costs one pass over the machines, however many facts it
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from windfall.core.ledger import Ledger, copied
from windfall.core.lifecycle import JOB, MACHINE, MachineState, OrderState, transition
from windfall.events import Command, Decision, LogMessage
from windfall.fleet import (
    AgeWeighed,
    JobPhase,
    MachineReported,
    MachineStatus,
    ProgressObserved,
    ReleaseMachine,
    Report,
    ScheduleComputed,
    Slot,
)
from windfall.jobs import Forecast, Job, Measurement
from windfall.market import Charge, Machine, Offer, OfferKey, Order, Quota, Refusal
from windfall.models.costs import Window
from windfall.policies.acquisition.ranking import OfferBlock
from windfall.structs import Struct, replace
from windfall.terms import Generation, Instant, Seconds, WallTime

NO_TIME = Instant(0.0)
Rates = tuple[tuple[str, str, str, Seconds, Seconds | None], ...]
CANCELLED_KEPT = 64
"""How many cancelled orders are kept, to recognize machines that still arrive."""
GONE_KEPT = 1024
"""How many gone machines are kept at least, while their provider still lists them."""
UNKNOWN_MACHINES_KEPT = 256
RELEASE_AGAIN_S = 120.0
"""How long after a release without effect it is ordered again [s]."""
ACTIVE = frozenset({JobPhase.BUYING, JobPhase.RUNNING, JobPhase.WAITING})
"""Phases in which the job needs machines."""
READY = frozenset({MachineStatus.WAITING, MachineStatus.TRAINING})
_LIMIT_S = 5.0
"""How much earlier than its time limit an announced end is still that limit [s]: notices have whole seconds."""


class TrackedMachine(Struct, frozen=True):
    """A machine that is not known to be gone.

    Attributes:
        machine: as its provider lists it; as the order describes it until it is listed.
        offer: the offer it was bought at; None if that is no longer known.
        slot: id of the slot that it fills; None if no slot needs it (it is being released).
        superseded_in: the slot in which its successor replaced it; None if none did.
        ordinal: its number among the machines of its slot, from 1; 0 without a slot.
        ordered_at, running_at, ready_at: when it was ordered, first seen running, first reported ready; None before.
        report, last_contact_at: the newest report and the time of the last contact; None before the first.
        ends_at: the announced end that the machine itself reported; None if there is none.
        silent_since: since when there has been no contact on any channel; None if it is not silent.
        drain_at, drain_reason: when the fleet policy wants it gone at the latest, and why; None if it stays.
        preempt_at: when the injector preempts it; `injected` once that is requested.
        released_at, reason: when it was last released, and why.
        trained_generation: the newest generation in which it reported training, -1 if none.
        first_step, progressed: the first step it reported, None before; whether it got past that step.
    """

    machine: Machine
    state: MachineState
    offer: Offer | None
    ordered_at: Instant
    slot: str | None = None
    superseded_in: str | None = None
    ordinal: int = 0
    running_at: Instant | None = None
    ready_at: Instant | None = None
    report: Report | None = None
    last_contact_at: Instant | None = None
    ends_at: Instant | None = None
    silent_since: Instant | None = None
    drain_at: Instant | None = None
    drain_reason: str = ""
    preempt_at: Instant | None = None
    injected: bool = False
    released_at: Instant = NO_TIME
    reason: str = ""
    trained_generation: int = -1
    first_step: int | None = None
    progressed: bool = False

    @property
    def machine_id(self) -> str:
        """Its id at its provider."""
        return self.machine.machine_id

    @property
    def status(self) -> MachineStatus | None:
        """The status in its last report; None before the first."""
        return None if self.report is None else self.report.status

    @property
    def ready(self) -> bool:
        """Whether it could train now: it has reported, is not silent, and is waiting or training."""
        return self.silent_since is None and self.status in READY and self.state is not MachineState.RELEASING

    @property
    def expires(self) -> bool:
        """Whether the announced end is the time limit that it has had from its start."""
        limit_at = self.machine.limit_at
        return self.ends_at is not None and limit_at is not None and self.ends_at >= limit_at - _LIMIT_S

    @property
    def key(self) -> OfferKey:
        """The key of its offer."""
        machine = self.machine
        return machine.provider, machine.machine_type, machine.zone, machine.reliability


class SlotState(Struct, frozen=True):
    """A need for one machine, and the machines that fill it.

    Attributes:
        number: how many slots the job had before this one.
        incumbent: the machine that fills it, from the answer to its order until it is gone.
        successor: a second machine, because the incumbent's end is announced.
        awaits: token of the order that will fill it.
        machine_count: how many machines it has had.
        retiring: nothing is bought for it any more; it is forgotten once its machines have left.
    """

    need: Slot
    number: int
    incumbent: str | None = None
    successor: str | None = None
    awaits: str | None = None
    machine_count: int = 0
    retiring: bool = False

    @property
    def id(self) -> str:
        """Its id."""
        return self.need.id


class OrderEntry(Struct, frozen=True):
    """An open order, or a cancelled one.

    Attributes:
        placed_at: when it was first sent.
        tries: how often its outcome stayed unknown.
        resend_at: when the same order is sent again; None while a listing is awaited.
        waiting: how many slots still wait for one of its machines.
        outcome_unknown: cancelled before its outcome was known; the job cannot end before a listing shows it.
    """

    order: Order
    state: OrderState
    placed_at: Instant
    waiting: int
    tries: int = 0
    resend_at: Instant | None = None
    outcome_unknown: bool = False


class GoneMachine(Struct, frozen=True):
    """A machine that is gone, kept while its provider still lists it.

    Attributes:
        announced: whether its end was announced.
        injected: whether the injector preempted it.
        expired: whether that end was a time limit that it had from its start: no preemption.
    """

    machine: Machine
    announced: bool
    injected: bool
    expired: bool = False


class JobEnd(Struct, frozen=True):
    """How the job ends.

    Attributes:
        final, exit_code, message: its phase, exit code and message at the end.
        saves_until: until when to wait for the run's release; None if no save is needed.
        since: when this was decided.
        now: do not wait for a save, only for the run's release.
        run_released: the run's log has since shown that no machine holds the lease.
        resume: the user wants the job to resume as soon as it has stopped.
    """

    final: JobPhase
    exit_code: int
    message: str
    since: Instant
    saves_until: Instant | None = None
    now: bool = False
    run_released: bool = False
    resume: bool = False


class FleetState(Struct, frozen=True):
    """The driver's state: one job and its machines.

    Attributes:
        job, owner, measured, forecast, submitted_at: from the first fact; None before it.
        resumed: a user resumed it after a stop or a failure.
        now: time of the newest batch.
        needs: the slots that are wanted, as the fleet policy named them last.
        policy_memory: what the fleet policy wants to be reminded of.
        slots: these and the ones that are being retired, by id, in the order in which they arose; `slots_opened` counts
            all that there ever were.
        units: the tracked machines, by id; `gone` holds those that are gone and may still be listed.
        unknown_machines: reports of machines that no listing or order answer has named yet, by id.
        orders: open orders and the newest cancelled ones, by token; `sequence` is the number of the newest.
        listed: providers whose complete listing was compared since the controller started.
        offers_at: when the offers were last observed; None before the first time.
        blocks: offers that are not tried for now; `refused` lists the reasons why others are unavailable.
        retry_at: when buying is retried; None if no machine is missing.
        progress: the newest observation of it.
        forgiven: (term, failures) of the run when the user resumed the job; these do not count.
        machine_failures: machines that failed since the run last progressed; `failure` is the last one's message.
        failed_to_start: machines in a row that ended before their first report.
        losses_without_progress: machines in a row that ended without a new step.
        buying_paused_until: until when nothing is bought, because machines keep failing to start.
        generation: the newest; None before the first, and where a machine trains alone.
        allocations, boots: time from order to start, and from start to ready [s].
        timer_at: the earliest timer that is set and has not fired.
        waiting_notified: the user was notified that nothing can be bought, and no machine has come since.
        deadline_notified: the user was notified that the deadline has passed.
        schedules: by machine, the newest save schedule, or why there is none.
        weighed: by machine that runs items, what the next one is expected to take there and on a new one.
        pending_end: how the job is about to end; None while it continues. `ended`: how it ended last.
    """

    job: Job | None = None
    owner: str = ""
    measured: tuple[Measurement, ...] = ()
    forecast: Forecast | None = None
    submitted_at: Instant = NO_TIME
    resumed: bool = False
    now: Instant = NO_TIME
    phase: JobPhase = JobPhase.BUYING
    units: Mapping[str, TrackedMachine] = msgspec.field(default_factory=dict)
    gone: Mapping[str, GoneMachine] = msgspec.field(default_factory=dict)
    unknown_machines: Mapping[str, MachineReported] = msgspec.field(default_factory=dict)
    needs: tuple[Slot, ...] = ()
    policy_memory: Mapping[str, float] = msgspec.field(default_factory=dict)
    slots: Mapping[str, SlotState] = msgspec.field(default_factory=dict)
    slots_opened: int = 0
    orders: Mapping[str, OrderEntry] = msgspec.field(default_factory=dict)
    sequence: int = 0
    listed: frozenset[str] = frozenset()
    offers_at: Instant | None = None
    offers: tuple[Offer, ...] = ()
    quotas: tuple[Quota, ...] = ()
    provider_errors: tuple[tuple[str, Refusal, str], ...] = ()
    rates: Rates = ()
    blocks: Mapping[OfferKey, OfferBlock] = msgspec.field(default_factory=dict)
    refused: tuple[str, ...] = ()
    retry_at: Instant | None = None
    progress: ProgressObserved | None = None
    forgiven: tuple[int, int] = (-1, 0)
    machine_failures: int = 0
    failure: str = ""
    failed_to_start: int = 0
    losses_without_progress: int = 0
    buying_paused_until: Instant = NO_TIME
    preemptions: int = 0
    generation: Generation | None = None
    allocations: Window = Window()
    boots: Window = Window()
    ledger: Ledger = Ledger()
    timer_at: Instant | None = None
    waiting_notified: bool = False
    deadline_notified: bool = False
    schedules: Mapping[str, ScheduleComputed] = msgspec.field(default_factory=dict)
    weighed: Mapping[str, AgeWeighed] = msgspec.field(default_factory=dict)
    pending_end: JobEnd | None = None
    ended: JobEnd | None = None

    @property
    def holders(self) -> tuple[str, ...]:
        """The machines that hold the job's work, by the record of its runtime."""
        return () if self.progress is None else self.progress.progress.holders

    @property
    def safe_amount(self) -> float:
        """How much of the job's work no loss can undo, in the unit of its runtime."""
        return 0.0 if self.progress is None else self.progress.progress.safe.amount

    @property
    def the_job(self) -> Job:
        """The job."""
        assert self.job is not None, "nothing can happen before JobSubmitted"
        return self.job


@dataclass(slots=True)
class FleetTurn:
    """One turn: the state so far, and the commands and decisions to return.

    Attributes:
        state: the given state until the first change; from then on this turn's own copy, changed in place.
        units, gone, slots, orders, blocks: copies of the state's tables, changed in place during the turn.
        touched, charges: machines and charges that the ledger records at the end.
        lost: slots that lost their machine in this batch without a release, with its id.
        later: instants at which the next turn may be due.
    """

    state: FleetState
    now: Instant
    units: dict[str, TrackedMachine] = field(init=False)
    gone: dict[str, GoneMachine] = field(init=False)
    slots: dict[str, SlotState] = field(init=False)
    orders: dict[str, OrderEntry] = field(init=False)
    blocks: dict[OfferKey, OfferBlock] = field(init=False)
    commands: list[Command] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    touched: dict[str, tuple[Machine, Offer | None]] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)
    later: list[Instant] = field(default_factory=list)
    _awaiting: dict[str, list[str]] | None = None

    def __post_init__(self) -> None:
        """Copy the tables."""
        state = self.state
        self.units, self.gone, self.slots = copied(state.units), copied(state.gone), copied(state.slots)
        self.orders, self.blocks = copied(state.orders), copied(state.blocks)

    def frozen(self) -> FleetState:
        """Return the state after this turn."""
        self.change(
            now=self.now,
            units=MappingProxyType(self.units),
            gone=MappingProxyType(self.gone),
            slots=MappingProxyType(self.slots),
            orders=MappingProxyType(self.orders),
            blocks=MappingProxyType(self.blocks),
        )
        return self.state

    @property
    def job(self) -> Job:
        """The job."""
        return self.state.the_job

    @property
    def active(self) -> bool:
        """Whether the job needs machines."""
        return self.state.phase in ACTIVE and self.state.pending_end is None

    def change(self, **changes: Any) -> None:
        """Replace plain fields of the state."""
        if any(getattr(self.state, name) is not value for name, value in changes.items()):
            self.state = replace(self.state, **changes)

    def emit(self, *commands: Command) -> None:
        """Append commands."""
        self.commands.extend(commands)

    def log(self, message: str) -> None:
        """Log a message in the job's log."""
        self.emit(LogMessage(message))

    def set_unit(self, unit: TrackedMachine, **changes: Any) -> TrackedMachine:
        """Replace a machine by its newer version."""
        newer = replace(unit, **changes) if changes else unit
        self.units[newer.machine_id] = newer
        return newer

    def become(self, unit: TrackedMachine, state: MachineState, **changes: Any) -> TrackedMachine:
        """Change a machine's state, if the transition is legal."""
        if unit.state is not state:
            changes["state"] = transition(MACHINE, unit.state, state)
        return self.set_unit(unit, **changes)

    def enter(self, phase: JobPhase) -> None:
        """Change the job's phase, if the transition is legal."""
        if self.state.phase is not phase:
            self.change(phase=transition(JOB, self.state.phase, phase))

    def set_slot(self, slot: SlotState, **changes: Any) -> SlotState:
        """Replace a slot by its newer version."""
        newer = replace(slot, **changes)
        self.slots[newer.id] = newer
        return newer

    def update_ledger(self, unit: TrackedMachine) -> None:
        """Record in the ledger, at the end of the turn, what the listing says about a machine."""
        self.touched[unit.machine_id] = (unit.machine, unit.offer)

    def awaiting(self, token: str) -> list[str]:
        """Return the slots that wait for a machine of an order, in reverse order: pop from the end."""
        if self._awaiting is None:
            self._awaiting = {}
            for slot in reversed(self.slots.values()):
                if slot.awaits is not None:
                    self._awaiting.setdefault(slot.awaits, []).append(slot.id)
        return self._awaiting.setdefault(token, [])

    def forget_awaiting(self) -> None:
        """Clear the cache of `awaiting`, because no slot waits for an order."""
        self._awaiting = None

    def release(self, unit: TrackedMachine, reason: str) -> None:
        """Release a machine."""
        if unit.state is not MachineState.RELEASING:
            unit = self.become(unit, MachineState.RELEASING, released_at=self.now, reason=reason)
            self.emit(ReleaseMachine(unit.machine_id, unit.machine.provider, reason))
            self.later.append(Instant(self.now + RELEASE_AGAIN_S))

    def detach(self, unit: TrackedMachine) -> TrackedMachine:
        """Remove a machine from its slot; a successor becomes the incumbent."""
        if unit.slot is None:
            return unit
        slot = self.slots[unit.slot]
        if slot.incumbent == unit.machine_id:
            self.set_slot(slot, incumbent=slot.successor, successor=None)
        elif slot.successor == unit.machine_id:
            self.set_slot(slot, successor=None)
        return self.set_unit(unit, slot=None)

    def wall_time(self) -> WallTime:
        """Return the providers' wall-clock time, as the journal clock knows it."""
        return WallTime(self.now)
