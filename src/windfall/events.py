"""Facts, commands and decisions: the inputs and outputs of the reducers, and the journal's rows.

A *fact* is something that happened; a *command* is executed by a port; a *decision* records which policy chose what,
with the numbers it compared.  All are immutable values: the journal stores them (`windfall.codec`, `VERSION`), and
`replay` feeds them back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windfall.records import value
from windfall.terms import (
    Bytes,
    Cause,
    CheckpointRef,
    Failure,
    Instant,
    Metric,
    Notice,
    Outcome,
    Phase,
    SaveCosts,
    SaveKind,
    SaveTable,
    Seconds,
    Shard,
    Step,
    Term,
    WallTime,
)

VERSION = 3
_NO_LENGTH = Seconds(0.0)


class Fact:
    """Something that happened on this machine or in the store."""

    __slots__ = ()


class Command:
    """Something a port must do."""

    __slots__ = ()


# ---------------------------------------------------------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class WorkerStarted(Fact):
    """The first fact of a term: everything the reducer needs and cannot observe.

    Attributes:
        policy: `adaptive`, `optimal`, `thesis`, `young-daly`, `never`, `every:<n>steps` or `every:<s>s`.
        provider: whose notice behavior applies (`aws`, `google`, `azure`, `slurm`, `local`).
        lifetimes_s, preemptions, announced: of the run's earlier machines: total lifetime [s], number preempted, and
            number preempted with a notice.
        failures: number of the script's own failures in this run.
        failures_max: number of failures after which the run fails.
        checkpoints: the live checkpoints of the run, oldest first.
        notices_s: time between notice and end for the newest preemptions, as recorded in the run's log [s].
        grace_s: how long this machine lives after SIGTERM, as configured by the user [s]; None if not configured.
        mttp_s: mean time to preemption set by the user or the controller [s]; None to estimate it from the prior.
        restart_s: measured mean time from a loss to the resumed training [s]; None if never measured.
        keep: number of periodic checkpoints to keep; None for all.
        retry_codes: exit codes after which the script is always restarted; they do not count as failures.
        costs: save costs on the run's earlier machines; None if never measured.
        managed: a controller buys the machines, so no user is present to rerun the command.
    """

    run: str
    term: Term
    policy: str
    provider: str
    checkpoints: tuple[CheckpointRef, ...]
    attempt: int
    failures: int
    failures_max: int
    lifetimes_s: Seconds
    preemptions: int
    announced: int
    mttp_s: Seconds | None = None
    restart_s: Seconds | None = None
    keep: int | None = None
    generation: int = 1
    costs: SaveCosts | None = None
    retry_codes: tuple[int, ...] = ()
    notices_s: tuple[Seconds, ...] = ()
    grace_s: Seconds | None = None
    managed: bool = False


@dataclass(frozen=True, slots=True)
class AgentResumed(Fact):
    """The agent died and was restarted; commands in progress were lost, the script kept running."""


@dataclass(frozen=True, slots=True)
class CheckpointRestored(Fact):
    """The newest intact checkpoint is on the local disk (id None: a fresh start); `skipped`: what is wrong with newer ones."""

    checkpoint_id: str | None
    step: Step
    size_bytes: Bytes
    duration_s: Seconds
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptStarted(Fact):
    """The script's process is running."""

    attempt: int


@value
class RankStatus:
    """Current state of a rank's page; `phase_since` is the start of the current phase."""

    rank: int
    step: Step
    phase: Phase
    phase_since: Instant


@value
class RanksObserved(Fact):
    """The state of all pages; sent when a rank joins, with each window and notice, and after each published request.

    Attributes:
        age_s: upper bound on the age of the oldest entry, which may come from another machine [s].
        latency_s: round-trip time to the farthest machine [s].
    """

    ranks: tuple[RankStatus, ...]
    age_s: Seconds = _NO_LENGTH
    latency_s: Seconds = _NO_LENGTH


@value
class StepsMeasured(Fact):
    """A window of completed steps of the slowest rank: mean and longest step [s], excluding saves."""

    step: Step
    count: int
    mean_s: Seconds
    longest_s: Seconds


@dataclass(frozen=True, slots=True)
class PhaseMeasured(Fact):
    """A phase other than a step ended after `duration_s`."""

    rank: int
    phase: Phase
    duration_s: Seconds


@dataclass(frozen=True, slots=True)
class NoticeReceived(Fact):
    """A notice arrived; its deadline is on this machine's clock, minus the clock's error."""

    notice: Notice


@value
class SaveAnswered(Fact):
    """`check_save` returned True for a request on this rank at this step."""

    rank: int
    request: int
    step: Step


@value
class ShardHandedOver(Fact):
    """`backup(path)` or `save_result(path)`: a rank's shard, or its result, is on the local disk.

    Attributes:
        request: the request it answers, 0 for none.
        path: where it can be read; sent again when ranks add to a folder they share.
        stall_s: how long the script was blocked [s].
        identity: changes when the files are rewritten.
        source, result: the path the script passed, if it is not `path`; the name of a result.
        unrequested: the script saved on its own schedule, whether or not a request was open; the save is kept.
    """

    rank: int
    step: Step
    request: int
    path: str
    size_bytes: Bytes
    stall_s: Seconds
    identity: str = ""
    source: str = ""
    result: str = ""
    unrequested: bool = False


@dataclass(frozen=True, slots=True)
class RankAdvanced(Fact):
    """A rank started the step after `step` without handing over (anything more): it has no (further) shard at `step`."""

    rank: int
    step: Step


@value
class ShardUploaded(Fact):
    """A shard is complete and durable in the store, but not yet committed."""

    checkpoint_id: str
    rank: int
    shard: Shard
    size_bytes: Bytes
    duration_s: Seconds


@dataclass(frozen=True, slots=True)
class ShardFailed(Fact):
    """A shard could not be uploaded."""

    checkpoint_id: str
    rank: int
    reason: str
    failure: Failure = Failure.OTHER


@value
class CheckpointCommitted(Fact):
    """The checkpoint's record is in the log; a restart now restores it."""

    checkpoint: CheckpointRef
    record: int
    duration_s: Seconds


@dataclass(frozen=True, slots=True)
class CommitFailed(Fact):
    """The commit failed for a reason other than the fence."""

    checkpoint_id: str
    reason: str
    failure: Failure = Failure.OTHER


@dataclass(frozen=True, slots=True)
class FenceLost(Fact):
    """Another machine acquired the run, by record `record`."""

    record: int
    holder: str


@dataclass(frozen=True, slots=True)
class PagesRead(Fact):
    """How far the agent has read the script's messages, so that a restarted agent reads nothing twice.

    Attributes:
        positions: for each rank (rank, bytes read of its message file, last acknowledged request).
    """

    attempt: int
    positions: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class MetricsReported(Fact):
    """`report(...)`: metrics reported by the script; no policy uses them."""

    rank: int
    step: Step
    metrics: tuple[tuple[str, Metric], ...]


@dataclass(frozen=True, slots=True)
class ScriptExited(Fact):
    """The script's process ended; `status` as in a shell (128 + n for signal n)."""

    status: int


@dataclass(frozen=True, slots=True)
class PeerLost(Fact):
    """Another machine of this generation no longer responds: the generation has ended.

    Attributes:
        node: its node rank.
        message: what is known about it.
    """

    node: int
    message: str


@dataclass(frozen=True, slots=True)
class RunStopRequested(Fact):
    """The user requested a stop of the run, after a save or `now`."""

    now: bool
    reason: str


@dataclass(frozen=True, slots=True)
class EstimatesChanged(Fact):
    """New loss estimates from the controller, or from a message in the run's inbox."""

    mttp_s: Seconds | None = None
    restart_s: Seconds | None = None
    unannounced_share: float | None = None
    notice_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class ScheduleAssigned(Fact):
    """The controller assigned a save schedule to this machine; it replaces the previous one and ends with the term.

    Attributes:
        table: counts work in seconds of training.
        from_step: start of the table: the work done at step n is (n - from_step) x the mean time of a step.
        term: the term it was made for, since it may arrive in a later one; None for any term.
    """

    table: SaveTable
    from_step: Step
    term: Term | None = None


@value
class TimerFired(Fact):
    """A timer set by an earlier `SetTimer` expired."""

    name: str


# ------------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class StartScript(Command):
    """Restore the newest intact checkpoint, then start the script."""

    attempt: int


@dataclass(frozen=True, slots=True)
class KillScript(Command):
    """End the script and every descendant, now."""

    reason: str


@value
class PublishSave(Command):
    """Write a request into every page: save once `step` is complete (exactly then, if there are several ranks)."""

    request: int
    step: Step
    kind: SaveKind
    exact: bool


@dataclass(frozen=True, slots=True)
class WithdrawSave(Command):
    """Remove the request from every page."""

    request: int


@dataclass(frozen=True, slots=True)
class ShowNotice(Command):
    """Show a notice to the script, in its pages and the notice file."""

    notice: Notice


@value
class UploadShard(Command):
    """Upload one rank's shard if it has not changed since it was handed over; answered by `ShardUploaded` or `ShardFailed`."""

    checkpoint_id: str
    rank: int
    path: str
    kind: SaveKind
    identity: str = ""


@value
class CommitCheckpoint(Command):
    """Write the manifest, then the next log record; answered by `CheckpointCommitted`, `CommitFailed` or `FenceLost`."""

    checkpoint_id: str
    step: Step
    kind: SaveKind
    generation: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class AbandonCheckpoint(Command):
    """Abandon an uncommitted checkpoint and delete what was uploaded."""

    checkpoint_id: str
    reason: str


@value
class DeleteCheckpoints(Command):
    """Delete committed checkpoints that retention no longer keeps."""

    checkpoints: tuple[CheckpointRef, ...]


@dataclass(frozen=True, slots=True)
class AcknowledgeNotice(Command):
    """Acknowledge a notice: there is nothing left to save (Azure: speeds up the eviction)."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class ReleaseRun(Command):
    """Append the record that ends this term; `notice_s`: time between the notice, if any, and the end [s]."""

    outcome: Outcome
    cause: Cause
    exit_status: int | None = None
    notice_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class ExitAgent(Command):
    """Exit `windfall exec` with this code, after all earlier commands have been executed."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class LogMessage(Command):
    """Log a message for the user."""

    message: str


@value
class SetTimer(Command):
    """Request `TimerFired(name)` at this instant; a later timer with the same name replaces it."""

    at: Instant
    name: str


# ------------------------------------------------------------------------------------------------------------ decisions


@value
class ComparedValue:
    """A number that a policy compared: `name = value unit`."""

    name: str
    value: float
    unit: str


@value
class Decision:
    """What a policy chose, with the numbers it compared.

    Attributes:
        policy, version: the rule that decided.
        choice: as text (`insurance save at step 51`).
        rationale: the numbers it compared.
        alternatives: the other options, as text.
    """

    policy: str
    version: int
    choice: str
    rationale: tuple[ComparedValue, ...] = ()
    alternatives: tuple[str, ...] = ()


@value
class Row:
    """One row of the journal: a batch of facts, the decisions they led to, and the commands issued.

    Attributes:
        sequence: starts at 1 in each term, without gaps.
        at: this machine's monotonic clock; the reducer's `now`.
        wall_time: this machine's wall clock, for display.
    """

    term: Term
    sequence: int
    at: Instant
    wall_time: WallTime
    facts: tuple[Fact, ...]
    decisions: tuple[Decision, ...] = ()
    commands: tuple[Command, ...] = field(default=())
