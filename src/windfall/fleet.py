"""Facts and commands of the driver (the reducer over a job's machines), and controller-machine messages.

Times are `Instant`s of the controller's journal clock.  It starts at Unix time and then advances with the monotonic
clock; a restart advances it by the elapsed wall-clock time, never backwards.  So the time of a row means the same on
any host that replays it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from windfall.events import Command, Fact, ScheduleAssigned
from windfall.jobs import Forecast, Job, Measurement
from windfall.market import Charge, Machine, Offer, OfferKey, Order, Quota, Refusal
from windfall.structs import Struct, Tagged
from windfall.terms import (
    Generation,
    Instant,
    JobProgress,
    NoticeLevel,
    Reliability,
    SaveCosts,
    Seconds,
    Step,
    Term,
    WallTime,
)

VERSION = 1
"""Version of the messages between controller and machines in the run's store."""


class MachineStatus(enum.StrEnum):
    """Status reported by a machine."""

    SETUP = "setup"
    """Running, and executing the job's setup."""
    WAITING = "waiting"
    """Ready, but another machine holds the run, or the generation is incomplete."""
    TRAINING = "training"
    """The script is running."""
    STOPPING = "stopping"
    """Shutting down, because of the dead-man limit or a directive."""
    FAILED = "failed"
    """Cannot run the job; `Report.message` gives the reason."""


class DesiredState(enum.StrEnum):
    """What the controller wants a machine to do."""

    RUN = "run"
    """Run the agent of `windfall exec`, which waits while another machine holds the run."""
    WAIT = "wait"
    """Wait, ready to run."""
    DRAIN = "drain"
    """Save or hand over the work, then wait; start nothing new."""
    STOP = "stop"
    """Stop the machine; its state is saved or not needed."""


class Event(enum.StrEnum):
    """Events that users are notified of (`Notify`)."""

    PREEMPTED = "preempted"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    OVER_BUDGET = "over-budget"
    LATE = "late"
    """The job's deadline has passed; the job keeps running."""


class JobPhase(enum.StrEnum):
    """Phase of a job; `core.lifecycle` defines the transitions."""

    BUYING = "buying"
    """Machines are ordered, none is training."""
    RUNNING = "running"
    WAITING = "waiting"
    """No machine is available now; the reason is shown and the order is retried."""
    STOPPING = "stopping"
    """Saving, then releasing the machines."""
    STOPPED = "stopped"
    """Stopped by the user, or by budget, price or duration; `resume` continues the job."""
    DONE = "done"
    FAILED = "failed"


TERMINAL = frozenset({JobPhase.STOPPED, JobPhase.DONE, JobPhase.FAILED})
"""Phases of a job that has ended, unless a user resumes it."""
SUPERSEDED = "its successor has taken its place"
RUN_DONE = "the run is done"
"""Reasons of `ReleaseMachine` that the bill recognises."""


# ------------------------------------------------------------------------------------------------------------ needs


class Slot(Tagged, frozen=True):
    """A need for one machine.

    Attributes:
        id: unique in its job, and never used for another need.
        role: what the machine is for; a word of the job's runtime.
        reliability: `reliable` if only a machine that cannot be preempted will do, `transient` if only one that can;
            None for whatever the job's resources allow.
        wants: the offers to order it from, best first; empty to leave the choice to the ranking of the job's resources.
        gang: slots of one gang are ordered together, all or nothing, and lost together; empty for none.
        bid_usd_per_hour: the price limit of its machines, as long as it exists; None for the job's.
    """

    id: str
    role: str
    reliability: Reliability | None = None
    wants: tuple[OfferKey, ...] = ()
    gang: str = ""
    bid_usd_per_hour: float | None = None


# ------------------------------------------------------------------------------- between controller and machine


class Report(Tagged, frozen=True):
    """A machine's report to the controller; the newest counts, on whichever channel it arrived.

    Attributes:
        sequence: grows with each report of this machine's node agent.
        incarnation: random; a new value means that the node agent restarted.
        term, step, saved_step: of the run while this machine holds it; None otherwise.
        exit_code: of the last `exec` that ended on this machine; None if none did.
        level, preemption_in_s: the newest notice of this machine, and the time left when the report was written [s].
        generation: the generation it belongs to; 0 for none.
        address: host:port at which other machines of the job reach its agent; empty if it does not listen.
        message: details of the status; empty for none.
        step_s: mean time of a step [s]; None if not measured yet.
        costs: measured save costs; None until one save was measured completely.
        sdk_inactive: the script has run for a while without calling the SDK.
        body: what the program of the job's runtime reports; only the runtime reads it.
    """

    machine_id: str
    sequence: int
    incarnation: str
    status: MachineStatus
    term: Term | None = None
    step: Step | None = None
    saved_step: Step | None = None
    exit_code: int | None = None
    level: NoticeLevel | None = None
    preemption_in_s: Seconds | None = None
    generation: int = 0
    address: str = ""
    message: str = ""
    step_s: Seconds | None = None
    costs: SaveCosts | None = None
    sdk_inactive: bool = False
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Peer(Tagged, frozen=True):
    """A member of a generation, and its address."""

    machine_id: str
    address: str


class Directive(Tagged, frozen=True, omit_defaults=True):
    """The controller's instructions for a machine; derived from the driver's state and sent at each contact.

    Attributes:
        controller_term: the controller's term; a machine ignores directives with an older term than it has seen.
        generation: the generation to join; 0 if the machine trains alone.
        peers: members of the generation in the order of their node ranks; the first is the leader.
        mttp_s, restart_s, notice_s: the controller's estimates [s]; None if it has none better than the machine's.
        schedule: save schedule for policy `optimal`; None if there is none.
        role: what the machine is for.
        assignment: what the job's runtime tells the machine; only its program reads it.
    """

    controller_term: Term
    desired_state: DesiredState
    generation: int = 0
    peers: tuple[Peer, ...] = ()
    mttp_s: Seconds | None = None
    restart_s: Seconds | None = None
    schedule: ScheduleAssigned | None = None
    notice_s: Seconds | None = None
    role: str = ""
    assignment: Mapping[str, Any] = msgspec.field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------------ facts


class JobSubmitted(Tagged, Fact, frozen=True):
    """The first fact of a job, in its journal before any order.

    Attributes:
        measurements: those of its earlier runs, one per kind of machine.
        forecast: what its plan promised; None if the plan knew neither cost nor finish.
    """

    job: Job
    owner: str
    measurements: tuple[Measurement, ...] = ()
    forecast: Forecast | None = None


class ControllerStarted(Tagged, Fact, frozen=True):
    """A controller took over the installation; it must list all machines before it buys any."""

    controller_term: Term


class OffersObserved(Tagged, Fact, frozen=True):
    """The current offers of all providers; sent once, and from then on only what changes (`OffersChanged`).

    Attributes:
        provider_errors: (provider, refusal, message) of those that did not return offers.
    """

    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...] = ()
    provider_errors: tuple[tuple[str, Refusal, str], ...] = ()


PriceRow = tuple[str, str, str, Reliability, float]
"""An offer (provider, type, zone, reliability) and its price [USD/h]."""


class OffersChanged(Tagged, Fact, frozen=True):
    """What differs from the offers last observed; also sent when a controller starts, even if nothing does.

    Attributes:
        offers: new ones, and those in which more than the price differs.
        prices: offers whose price alone differs.
        removed: (provider, type, zone, reliability) of offers that are gone.
        quotas, provider_errors: all of them, as in `OffersObserved`; None if they are the same.
    """

    offers: tuple[Offer, ...] = ()
    prices: tuple[PriceRow, ...] = ()
    removed: tuple[OfferKey, ...] = ()
    quotas: tuple[Quota, ...] | None = None
    provider_errors: tuple[tuple[str, Refusal, str], ...] | None = None


class EstimatesPooled(Tagged, Fact, frozen=True):
    """Estimates over all runs of this installation; sent when they change: (provider, type, zone, MTTP, restart)."""

    rates: tuple[tuple[str, str, str, Seconds, Seconds | None], ...]


class Basis(Tagged, frozen=True):
    """Inputs of a save schedule; times in seconds.

    Attributes:
        stall_s, durable_s: stall of a save, and its time until it is durable.
        restart_s: from a loss to the resumed training.
        remaining_lifetime_s: mean remaining lifetime of this machine at its current age.
        step_s: mean time of a step; 0 if steps do not matter.
        reuse_s, fresh_s: expected time of the planned work on this machine, and if a new one were ordered now; 0 if unknown.
    """

    stall_s: float
    durable_s: float
    restart_s: float
    remaining_lifetime_s: float
    step_s: float = 0.0
    reuse_s: float = 0.0
    fresh_s: float = 0.0


class ScheduleComputed(Tagged, Fact, frozen=True):
    """A save schedule was computed for a machine, or the reason why there is none.

    Attributes:
        term: the machine's term at that time.
        age_s: age of the machine at the step where the schedule starts [s].
        work_s: planned amount of work [s].
        trusted: whether the schedule decides, instead of the default rule from the start.
        reason: why it was computed again; empty for the first.
    """

    machine_id: str
    term: Term
    schedule: ScheduleAssigned
    basis: Basis
    age_s: Seconds
    work_s: Seconds
    trusted: bool
    reason: str = ""


class AgeWeighed(Tagged, Fact, frozen=True):
    """What an item of a bag is expected to take on a machine of this age, and if a new machine were ordered for it.

    Attributes:
        age_s: of the machine then [s].
        item_s: mean time of an item there [s].
        reuse_s, fresh_s: expected time until the item is done, on this machine and on a new one [s]; 0 if no law of the
            lifetimes is trusted.
    """

    machine_id: str
    age_s: Seconds
    item_s: Seconds
    reuse_s: float = 0.0
    fresh_s: float = 0.0


class OrderAnswered(Tagged, Fact, frozen=True):
    """The provider answered an order."""

    token: str
    machine_ids: tuple[str, ...]
    refusal: Refusal | None = None
    message: str = ""


class OrderUnanswered(Tagged, Fact, frozen=True):
    """It is unknown whether the order was accepted; a listing, or repeating the order, will show it."""

    token: str
    message: str


class MachinesObserved(Tagged, Fact, frozen=True):
    """Machines of this job that are new or changed in the provider's listing."""

    machines: tuple[Machine, ...]


class MachinesMissing(Tagged, Fact, frozen=True):
    """Machines that were listed before and that the provider no longer knows."""

    machine_ids: tuple[str, ...]


class ListingCompleted(Tagged, Fact, frozen=True):
    """A complete listing was compared, after a controller start or an unanswered order: all machines are known.

    Attributes:
        tokens: unanswered tokens without a machine in the listing, which started after the last call.
    """

    provider: str
    tokens: tuple[str, ...] = ()


class MachineReported(Tagged, Fact, frozen=True):
    """A machine sent a new report, or its first one after a silence.

    Attributes:
        preemption_at: the announced preemption on the journal clock; None for none.
    """

    report: Report
    channel: str
    preemption_at: Instant | None = None


class MachineSilent(Tagged, Fact, frozen=True):
    """No contact with a machine on any channel for `silent_s`, by the monotonic clock."""

    machine_id: str
    silent_s: Seconds


class MachineFacts(Struct, frozen=True):
    """What a machine costs, and how such machines are lost.

    Attributes:
        usd_per_hour: its price.
        mttp_s: mean time to preemption [s]; None if it is not known.
        restart_s: from a loss to work again [s]; None if none was measured.
    """

    usd_per_hour: float
    mttp_s: Seconds | None = None
    restart_s: Seconds | None = None


class FleetFacts(Struct, frozen=True):
    """What a job's runtime may decide by.

    Attributes:
        machines: those that run, by id.
        time_left_s: until the deadline [s]; None without one.
    """

    machines: Mapping[str, MachineFacts]
    time_left_s: Seconds | None = None


class ProgressObserved(Tagged, Fact, frozen=True):
    """How far the job is, by the record that its runtime keeps; sent when it changes.

    Attributes:
        term: of the record; grows whenever other machines take over the work.
    """

    term: Term
    progress: JobProgress


class ChargesObserved(Tagged, Fact, frozen=True):
    """New or changed lines of a provider's bill; `cursor` is the cursor for the next query."""

    charges: tuple[Charge, ...]
    provider: str = ""
    cursor: str = ""


class JobStopRequested(Tagged, Fact, frozen=True):
    """A user requested a stop of the job, after a save or `now`."""

    now: bool
    user: str


class JobResumeRequested(Tagged, Fact, frozen=True):
    """A user requested to resume a stopped or failed job; with `more`, one that is done too: its run has more to do."""

    user: str
    more: bool = False


class PreemptionRequested(Tagged, Fact, frozen=True):
    """A user requested a preemption as a rehearsal (`windfall inject`); `notice_s` None: without notice."""

    machine_id: str
    notice_s: Seconds | None
    user: str


# --------------------------------------------------------------------------------------------------------- commands


class PlaceOrder(Tagged, Command, frozen=True):
    """Place an order; its journal row is durable before the provider is called."""

    order: Order


class CancelOrder(Tagged, Command, frozen=True):
    """Cancel a token, so that it yields no more machines."""

    token: str
    provider: str


class ReleaseMachine(Tagged, Command, frozen=True):
    """Release a machine now."""

    machine_id: str
    provider: str
    reason: str


class DrainMachine(Tagged, Command, frozen=True):
    """Let a machine save or hand over its work; it is released once it holds none, or at the deadline.

    Directives carry it to the machine.
    """

    machine_id: str
    deadline: Instant
    reason: str


class RequestListing(Tagged, Command, frozen=True):
    """Compare a provider's complete listing; answered by `ListingCompleted`."""

    provider: str


class DeclareGone(Tagged, Command, frozen=True):
    """The provider reports that a machine is gone; if it holds the run, others need not wait for its lease."""

    machine_id: str


class StopRun(Tagged, Command, frozen=True):
    """Ask the holder of the run to stop it, after a save or `now`."""

    now: bool
    reason: str


class FormGeneration(Tagged, Command, frozen=True):
    """Start a generation; directives inform its members, and the run's log fences it."""

    generation: Generation


class PreemptMachine(Tagged, Command, frozen=True):
    """Preempt a machine, as the injector."""

    machine_id: str
    provider: str
    notice_s: Seconds | None


class NotifyUser(Tagged, Command, frozen=True):
    """Send a notification to the user."""

    event: Event
    message: str


class SettleJob(Tagged, Command, frozen=True):
    """Fetch the rest of the bill: the job has ended and all its machines are gone."""

    phase: JobPhase
    exit_code: int
    message: str


class Lifetime(Tagged, frozen=True):
    """One machine's lifetime, for the pool of lifetimes; `ended` None: still running, so censored now."""

    machine_id: str
    provider: str
    machine_type: str
    zone: str
    started: WallTime
    ended: WallTime | None
    preempted: bool
    announced: bool


class LifetimeSum(Tagged, frozen=True):
    """The lifetimes of all machines of one kind together.

    Attributes:
        lifetimes, preemptions, announced: how many machines, how many of them were preempted, and how many of these with a
            notice.
        lifetime_s: their lifetimes; those that still run count until the time of the question [s].
    """

    provider: str
    machine_type: str
    zone: str
    lifetimes: int
    preemptions: int
    announced: int
    lifetime_s: Seconds
