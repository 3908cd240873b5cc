"""What the driver knows between two batches of facts, and the turn in which it reacts to one.

The state is immutable.  A `FleetTurn` is local to one call of `driver.react`: it copies the big tables once, handlers
change its copies, and `frozen` gives the next state.  So a batch costs one pass over the machines, however many facts it
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from windfall.core.ledger import Ledger, copied
from windfall.core.lifecycle import JOB, MACHINE, MachineState, OrderState, move
from windfall.events import Command, Decision, Tell
from windfall.fleet import Doing, JobPhase, MachineHeard, ReleaseMachine, Report, RunObserved, ScheduleMade
from windfall.jobs import Job, Measured
from windfall.market import Charge, Machine, Offer, Order, Quota, Refusal
from windfall.models.costs import Window
from windfall.policies.keeping.backoff import Block
from windfall.records import record, renewed, renewed_with
from windfall.terms import Generation, Instant, Reliability, Seconds, WallTime

NO_TIME = Instant(0.0)
OfferKey = tuple[str, str, str, Reliability]
Rates = tuple[tuple[str, str, str, Seconds, Seconds | None], ...]
CANCELLED_KEPT = 64
"""How many cancelled orders are remembered, to know their late machines."""
GONE_KEPT = 1024
"""How many machines that are gone are remembered at least, as long as their provider lists them."""
STRANGERS_KEPT = 256
RELEASE_AGAIN_S = 120.0
"""A release of which nothing came is ordered again after so long [s]."""
ACTIVE = frozenset({JobPhase.BUYING, JobPhase.RUNNING, JobPhase.WAITING})
"""Phases in which machines are wanted."""
READY = frozenset({Doing.WAITING, Doing.TRAINING})


@record
class Unit:
    """A machine that is not known to be gone.

    Attributes:
        machine: as its provider lists it; as the order says until it is listed.
        offer: at which it was bought; None if that is not known any more.
        slot: None if no slot needs it (it is being released).
        superseded_in: the slot in which its successor took its place; None if none did.
        life: which machine of its slot it is, from 1; 0 without a slot.
        ordered_at, running_at, ready_at: when it was ordered, seen to run, first heard ready; None if it was not.
        report, heard_at: the newest, and when it came; None before the first.
        ends_at: the announced end that the machine itself reported; None if there is none.
        silent_since: since when nothing was heard on any channel; None if it is not silent.
        dies_at: when the injector takes it; `injected` once it was told to.
        released_at, why: when it was given back last, and why.
        trained_in: the newest generation in which it was heard training, -1 if it was not.
        began_step, moved: the first step it told of, None before; whether it got further.
    """

    machine: Machine
    state: MachineState
    offer: Offer | None
    ordered_at: Instant
    slot: int | None = None
    superseded_in: int | None = None
    life: int = 0
    running_at: Instant | None = None
    ready_at: Instant | None = None
    report: Report | None = None
    heard_at: Instant | None = None
    ends_at: Instant | None = None
    silent_since: Instant | None = None
    dies_at: Instant | None = None
    injected: bool = False
    released_at: Instant = NO_TIME
    why: str = ""
    trained_in: int = -1
    began_step: int | None = None
    moved: bool = False

    @property
    def machine_id(self) -> str:
        """Its name at its provider."""
        return self.machine.machine_id

    @property
    def doing(self) -> Doing | None:
        """What it last said that it does."""
        return None if self.report is None else self.report.doing

    @property
    def ready(self) -> bool:
        """Whether it could train now: it spoke, is not silent, and waits or trains."""
        return self.silent_since is None and self.doing in READY and self.state is not MachineState.RELEASING

    @property
    def key(self) -> OfferKey:
        """Of its offer."""
        machine = self.machine
        return machine.provider, machine.machine_type, machine.zone, machine.reliability


@record
class SlotState:
    """A need for a machine, and what there is for it.

    Attributes:
        incumbent: the machine that fills it, from being promised until it is gone.
        successor: a second one, because the incumbent's end is announced.
        awaits: token of the order of which a machine will be its.
        lives: how many machines it has had.
    """

    index: int
    incumbent: str | None = None
    successor: str | None = None
    awaits: str | None = None
    lives: int = 0


@record
class OrderEntry:
    """An order under way, or a cancelled one.

    Attributes:
        placed_at: when it was first asked.
        tries: how often its outcome stayed unknown.
        ask_at: when the same order is asked again; None while a listing is awaited.
        waiting: how many slots still await a machine of it.
        unsure: cancelled before its outcome was known: a listing must tell before the job can end.
    """

    order: Order
    state: OrderState
    placed_at: Instant
    waiting: int
    tries: int = 0
    ask_at: Instant | None = None
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """A machine that is gone, remembered as long as its provider lists it."""

    machine: Machine
    announced: bool
    rehearsed: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """How the job shall end.

    Attributes:
        final, exit_code, sentence: what it will be then.
        saves_until: until when the run's release is waited for; None: no save is wanted.
        since: when this was decided.
        now: no save is waited for, only the run's release.
        let_go: the run's log has said since then that nobody holds it.
        resume: the user wants it to go on as soon as it has stopped.
    """

    final: JobPhase
    exit_code: int
    sentence: str
    since: Instant
    saves_until: Instant | None = None
    now: bool = False
    let_go: bool = False
    resume: bool = False


@record
class FleetState:
    """One job's machines.

    Attributes:
        job, owner, measured, began_at: the first fact; None before it.
        now: of the newest batch.
        units: machines that are not known to be gone, by id; `gone` those that are and may still be listed.
        strangers: what machines said that no listing or answer has named yet, by id.
        orders: under way, and the newest cancelled ones, by token; `sequence` numbers the newest.
        listed: providers whose whole listing was compared since the controller began.
        offers_at: when the offers were told; None before the first time.
        blocks: offers that are left alone; `refused` says why the others cannot be had, in words.
        retry_at: when something will be tried again; None if nothing is lacking.
        run: what the run's log said last.
        forgiven: (term, failures) of the run when the user resumed the job: these do not count.
        machine_failures: machines that failed by themselves since the run last got further; `failure` the last's words.
        stillborn: machines in a row that died before they spoke; `barren` those that ended without progress.
        calm_until: until when nothing is bought, because machines came and went for nothing.
        generation: the newest; None before the first, and where a machine trains alone.
        allocations, boots: how long machines took from order to start, and from there to being ready [s].
        wake_at: the earliest instant that was asked for and has not come.
        waiting_told: the user was told that there is nothing to be had, and no machine has come since.
        late: the user was told that the deadline has passed.
        schedules: of saves, by machine: the newest that was made, or why there is none.
        closing: None as long as the job shall go on; `ended` how it ended last.
    """

    job: Job | None = None
    owner: str = ""
    measured: tuple[Measured, ...] = ()
    began_at: Instant = NO_TIME
    now: Instant = NO_TIME
    phase: JobPhase = JobPhase.BUYING
    units: Mapping[str, Unit] = field(default_factory=dict)
    gone: Mapping[str, Gone] = field(default_factory=dict)
    strangers: Mapping[str, MachineHeard] = field(default_factory=dict)
    slots: tuple[SlotState, ...] = ()
    orders: Mapping[str, OrderEntry] = field(default_factory=dict)
    sequence: int = 0
    listed: frozenset[str] = frozenset()
    offers_at: Instant | None = None
    offers: tuple[Offer, ...] = ()
    quotas: tuple[Quota, ...] = ()
    troubles: tuple[tuple[str, Refusal, str], ...] = ()
    rates: Rates = ()
    blocks: Mapping[OfferKey, Block] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    retry_at: Instant | None = None
    run: RunObserved | None = None
    forgiven: tuple[int, int] = (-1, 0)
    machine_failures: int = 0
    failure: str = ""
    stillborn: int = 0
    barren: int = 0
    calm_until: Instant = NO_TIME
    preemptions: int = 0
    generation: Generation | None = None
    allocations: Window = field(default_factory=Window)
    boots: Window = field(default_factory=Window)
    ledger: Ledger = field(default_factory=Ledger)
    wake_at: Instant | None = None
    waiting_told: bool = False
    late: bool = False
    schedules: Mapping[str, ScheduleMade] = field(default_factory=dict)
    closing: Closing | None = None
    ended: Closing | None = None

    @property
    def the_job(self) -> Job:
        """The job."""
        assert self.job is not None, "nothing can happen before JobSubmitted"
        return self.job


@dataclass(slots=True)
class FleetTurn:
    """One reaction in the making.

    Attributes:
        state: as it was given, until the first change: from then on a copy that is this turn's own and changes under
            its readers.
        units, gone, slots, orders, blocks: copies of the state's tables, changed freely during the turn.
        touched, charges: what the ledger will take in at the end.
        lost: slots whose machine went without our order in this batch, with its id.
        later: instants at which something is to be looked at again.
    """

    state: FleetState
    now: Instant
    units: dict[str, Unit] = field(init=False)
    gone: dict[str, Gone] = field(init=False)
    slots: list[SlotState] = field(init=False)
    orders: dict[str, OrderEntry] = field(init=False)
    blocks: dict[OfferKey, Block] = field(init=False)
    commands: list[Command] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    touched: dict[str, tuple[Machine, Offer | None]] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    later: list[Instant] = field(default_factory=list)
    _awaiting: dict[str, list[int]] | None = None
    _own: bool = False

    def __post_init__(self) -> None:
        """Copy the tables."""
        state = self.state
        self.units, self.gone, self.slots = copied(state.units), copied(state.gone), list(state.slots)
        self.orders, self.blocks = copied(state.orders), copied(state.blocks)

    def frozen(self) -> FleetState:
        """Return the state that this turn leaves."""
        self.change(
            now=self.now,
            units=MappingProxyType(self.units),
            gone=MappingProxyType(self.gone),
            slots=tuple(self.slots),
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
        """Whether machines are wanted."""
        return self.state.phase in ACTIVE and self.state.closing is None

    def change(self, **changes: object) -> None:
        """Replace plain fields of the state."""
        if self._own:
            self.state.__dict__.update(changes)
            return
        for name, value in changes.items():
            if getattr(self.state, name) is not value:
                self.state, self._own = renewed_with(self.state, changes), True
                return

    def order(self, *commands: Command) -> None:
        """Append commands."""
        self.commands.extend(commands)

    def tell(self, sentence: str) -> None:
        """Say a sentence in the job's log."""
        self.order(Tell(sentence))

    def set_unit(self, unit: Unit, **changes: object) -> Unit:
        """Put a machine's newer self in its place."""
        newer = renewed(unit, **changes) if changes else unit
        self.units[newer.machine_id] = newer
        return newer

    def become(self, unit: Unit, state: MachineState, **changes: object) -> Unit:
        """Let a machine make a legal move."""
        if unit.state is not state:
            changes["state"] = move(MACHINE, unit.state, state)
        return self.set_unit(unit, **changes)

    def enter(self, phase: JobPhase) -> None:
        """Let the job make a legal move."""
        if self.state.phase is not phase:
            self.change(phase=move(JOB, self.state.phase, phase))

    def set_slot(self, slot: SlotState, **changes: object) -> SlotState:
        """Put a slot's newer self in its place."""
        newer = renewed(slot, **changes)
        self.slots[newer.index] = newer
        return newer

    def account(self, unit: Unit) -> None:
        """Let the ledger know, at the end of the turn, what the listing says of a machine."""
        self.touched[unit.machine_id] = (unit.machine, unit.offer)

    def awaiting(self, token: str) -> list[int]:
        """Return the slots that await a machine of an order, the last first: take them from the end."""
        if self._awaiting is None:
            self._awaiting = {}
            for slot in reversed(self.slots):
                if slot.awaits is not None:
                    self._awaiting.setdefault(slot.awaits, []).append(slot.index)
        return self._awaiting.setdefault(token, [])

    def forget_awaiting(self) -> None:
        """No slot awaits anything any more."""
        self._awaiting = None

    def release(self, unit: Unit, why: str) -> None:
        """Give a machine back."""
        if unit.state is not MachineState.RELEASING:
            unit = self.become(unit, MachineState.RELEASING, released_at=self.now, why=why)
            self.order(ReleaseMachine(unit.machine_id, unit.machine.provider, why))
            self.later.append(Instant(self.now + RELEASE_AGAIN_S))

    def detach(self, unit: Unit) -> Unit:
        """Take a machine out of its slot; a successor moves up."""
        if unit.slot is None:
            return unit
        slot = self.slots[unit.slot]
        if slot.incumbent == unit.machine_id:
            self.set_slot(slot, incumbent=slot.successor, successor=None)
        elif slot.successor == unit.machine_id:
            self.set_slot(slot, successor=None)
        return self.set_unit(unit, slot=None)

    def wall(self) -> WallTime:
        """Return the providers' wall clock, as well as the journal clock knows it."""
        return WallTime(self.now)
