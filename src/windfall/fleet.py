"""Facts and commands of the driver (the reducer over a job's machines), and what controller and machines tell each other.

Times are `Instant`s of the controller's journal clock: Unix seconds at the first start, from then on only forward, at
the pace of the monotonic clock; a restart advances it by what the wall clock says passed, never back.  So a row's time
means the same on whichever host replays it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from windfall.events import Command, Fact, SaveTableGiven
from windfall.jobs import Job, Measured
from windfall.market import Charge, Machine, Offer, Order, Quota, Refusal
from windfall.terms import Generation, Instant, NoticeLevel, Outcome, SaveCosts, Seconds, Step, Term, WallTime

VERSION = 1
"""Of what controller and machines tell each other through the run's store."""


class Doing(enum.StrEnum):
    """What a machine says it is doing."""

    SETUP = "setup"
    """It is up, and installs what the job needs."""
    WAITING = "waiting"
    """Ready; the run is held elsewhere, or its generation is not complete."""
    TRAINING = "training"
    """Its script runs."""
    LEAVING = "leaving"
    """It ends itself (dead-man limit, or on our order)."""
    FAILED = "failed"
    """It cannot do the job: `Report.sentence` says why."""


class Direction(enum.StrEnum):
    """What a machine is to do."""

    RUN = "run"
    """Take part: run the agent of `windfall exec`, waiting while another machine holds the run."""
    WAIT = "wait"
    """Be ready."""
    LEAVE = "leave"
    """Stop the machine; what it holds is saved or not needed."""


class Event(enum.StrEnum):
    """What users are told of, wherever they are (`Notify`)."""

    PREEMPTED = "preempted"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    OVER_BUDGET = "over-budget"
    LATE = "late"
    """The job's deadline has passed; it goes on."""


class JobPhase(enum.StrEnum):
    """Where a job is; `core.lifecycle` has the table of moves."""

    BUYING = "buying"
    """Machines are ordered; none trains."""
    RUNNING = "running"
    WAITING = "waiting"
    """Nothing to be had now: the reason is shown, and it is tried again."""
    STOPPING = "stopping"
    """Saving, then releasing."""
    STOPPED = "stopped"
    """By the user, or by budget, price or duration; `resume` goes on."""
    DONE = "done"
    FAILED = "failed"


TERMINAL = frozenset({JobPhase.STOPPED, JobPhase.DONE, JobPhase.FAILED})
"""Phases of a job that is over, until somebody resumes it."""
SUPERSEDED = "its successor has taken its place"
RUN_DONE = "the run is done"
"""Why a machine is given back: the words of `ReleaseMachine` that a bill knows again."""


# ------------------------------------------------------------------------------- between controller and machine


@dataclass(frozen=True, slots=True)
class Report:
    """What a machine tells the controller; the newest counts, whichever channel brought it.

    Attributes:
        sequence: grows with each report of this machine's keeper.
        life: random; another one means that the keeper was started anew.
        term, step, saved_step: of the run as this machine holds it; None if it does not.
        exit_code: of the last `exec` that ended here; None if none did.
        level, taken_in_s: the newest notice of this machine, and how long is left when the report was written.
        generation: in which it takes part; 0 for none.
        address: host:port at which other machines of the job reach its agent; empty if none listens.
        step_s: mean time of a step; None before one was measured.
        costs: of saves, as measured by now; None as long as none was measured whole.
        mute: its script has run for a while and has not called Windfall.
    """

    machine_id: str
    sequence: int
    life: str
    doing: Doing
    term: Term | None = None
    step: Step | None = None
    saved_step: Step | None = None
    exit_code: int | None = None
    level: NoticeLevel | None = None
    taken_in_s: Seconds | None = None
    generation: int = 0
    address: str = ""
    sentence: str = ""
    step_s: Seconds | None = None
    costs: SaveCosts | None = None
    mute: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of a generation and where it can be reached."""

    machine_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Directive:
    """What the controller wants of a machine; a view of the driver's state, told again at each contact.

    Attributes:
        controller: the controller's term; a machine obeys no older one than it has heard.
        generation: number of the generation to take part in; 0 where a machine trains alone.
        peers: its members in the order of their node ranks; the first leads.
        mttp_s, restart_s, notice_s: what the controller believes; None if it knows no better than the machine.
        schedule: of saves, for policy `optimal`; None where none was made.
    """

    controller: Term
    direction: Direction
    generation: int = 0
    peers: tuple[Peer, ...] = ()
    mttp_s: Seconds | None = None
    restart_s: Seconds | None = None
    schedule: SaveTableGiven | None = None
    notice_s: Seconds | None = None


# ------------------------------------------------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class JobSubmitted(Fact):
    """The first fact of a job; `measured` is what earlier runs of it had shown by then, one row a kind of machine."""

    job: Job
    owner: str
    measured: tuple[Measured, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerBegan(Fact):
    """A controller took the installation: what it did not hear itself it must ask for before it buys."""

    controller: Term


@dataclass(frozen=True, slots=True)
class OffersSeen(Fact):
    """What the providers sell now, told when it has changed.

    Attributes:
        troubles: (provider, refusal, sentence) of those that did not answer with offers.
    """

    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...] = ()
    troubles: tuple[tuple[str, Refusal, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BeliefsPooled(Fact):
    """What all runs of this installation have shown, told when it has changed: (provider, type, zone, MTTP, restart)."""

    rates: tuple[tuple[str, str, str, Seconds, Seconds | None], ...]


@dataclass(frozen=True, slots=True)
class Basis:
    """What a schedule of saves was made with; lengths of time in seconds.

    Attributes:
        stall_s, durable_s: of a save.
        restart_s: from a loss to training again.
        life_left_s: mean rest of this machine's life at the age it has.
        step_s: mean time of a step; 0 where steps do not matter.
    """

    stall_s: float
    durable_s: float
    restart_s: float
    life_left_s: float
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ScheduleMade(Fact):
    """A schedule of saves was made for a machine, or the reason why there is none.

    Attributes:
        term: in which the machine held the run then.
        age_s: of the machine at the step where the schedule begins.
        work_s: so much work was planned for.
        trusted: whether the schedule decides, rather than the default rule from the beginning.
        why: why it was made anew; empty for the first.
    """

    machine_id: str
    term: Term
    given: SaveTableGiven
    basis: Basis
    age_s: Seconds
    work_s: Seconds
    trusted: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class OrderAnswered(Fact):
    """The provider answered an order."""

    token: str
    machine_ids: tuple[str, ...]
    refusal: Refusal | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class OrderUnanswered(Fact):
    """Whether the order was taken is not known; a listing will tell, or the same order again."""

    token: str
    sentence: str


@dataclass(frozen=True, slots=True)
class MachinesSeen(Fact):
    """Machines of this job that are new in the provider's listing, or listed otherwise than before."""

    machines: tuple[Machine, ...]


@dataclass(frozen=True, slots=True)
class MachinesMissing(Fact):
    """Machines that the provider listed before and, asked again, no longer knows."""

    machine_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedAll(Fact):
    """A whole listing was compared after the controller began or an order stayed unanswered: now the truth is known.

    Attributes:
        tokens: unanswered tokens of which the listing, begun after the last call, shows nothing.
    """

    provider: str
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineHeard(Fact):
    """A machine said something new, or spoke again after a silence.

    Attributes:
        taken_at: the announced end on the journal clock; None if there is none.
    """

    report: Report
    channel: str
    taken_at: Instant | None = None


@dataclass(frozen=True, slots=True)
class MachineSilent(Fact):
    """Nothing was heard of a machine on any channel for so long, by the monotonic clock."""

    machine_id: str
    for_s: Seconds


@dataclass(frozen=True, slots=True)
class RunObserved(Fact):
    """What the run's log says, told when it has changed.

    Attributes:
        holder: machine that holds the run; None if nobody does.
        failures: how often the script failed by itself.
    """

    outcome: Outcome
    term: Term
    holder: str | None
    saved_step: Step
    failures: int


@dataclass(frozen=True, slots=True)
class ChargesSeen(Fact):
    """New or changed lines of a provider's bill; `cursor` is where the next reading goes on."""

    charges: tuple[Charge, ...]
    provider: str = ""
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class StopWanted(Fact):
    """A user wants the job to stop, after a save or `now`."""

    now: bool
    user: str


@dataclass(frozen=True, slots=True)
class ResumeWanted(Fact):
    """A user wants a stopped or failed job to go on."""

    user: str


@dataclass(frozen=True, slots=True)
class PreemptWanted(Fact):
    """A user wants to see what happens if a machine is taken (`windfall inject`); `notice_s` None: without a word."""

    machine_id: str
    notice_s: Seconds | None
    user: str


# --------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class PlaceOrder(Command):
    """Buy; the row that carries it is durable before the provider is called."""

    order: Order


@dataclass(frozen=True, slots=True)
class CancelOrder(Command):
    """Nothing more shall come of a token."""

    token: str
    provider: str


@dataclass(frozen=True, slots=True)
class ReleaseMachine(Command):
    """Give a machine back, now."""

    machine_id: str
    provider: str
    why: str


@dataclass(frozen=True, slots=True)
class AskListing(Command):
    """Compare a provider's whole listing; answered by `ListedAll`."""

    provider: str


@dataclass(frozen=True, slots=True)
class DeclareGone(Command):
    """The provider says that a machine is gone: if it still holds the run, whoever waits need not wait for the lease."""

    machine_id: str


@dataclass(frozen=True, slots=True)
class StopRun(Command):
    """Ask whoever holds the run to stop it, after a save or `now`."""

    now: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FormGeneration(Command):
    """Tell the members who is in; the directives carry it, the run's log fences it."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class PreemptMachine(Command):
    """The injector takes a machine."""

    machine_id: str
    provider: str
    notice_s: Seconds | None


@dataclass(frozen=True, slots=True)
class NotifyUser(Command):
    """Tell the user, wherever they are."""

    event: Event
    sentence: str


@dataclass(frozen=True, slots=True)
class SettleJob(Command):
    """The job has ended and no machine of it lives: fetch the rest of the bill."""

    phase: JobPhase
    exit_code: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One machine's life for the pool of lifetimes; `ended` None: still running, censored now."""

    machine_id: str
    provider: str
    machine_type: str
    zone: str
    began: WallTime
    ended: WallTime | None
    preempted: bool
    announced: bool
