"""Facts, commands and decisions: the inputs and outputs of the reducers, and the journal's rows.

A *fact* is something that happened; a *command* is executed by a port; a *decision* records which policy chose what,
with the numbers it compared.  All are immutable values: the journal stores them (`windfall.codec`, `VERSION`), and
`replay` feeds them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windfall import stored_forms
from windfall.structs import Tagged
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
    RunOptions,
    SaveCosts,
    SaveKind,
    SaveTable,
    Seconds,
    Shard,
    Step,
    Term,
    WallTime,
)

VERSION = stored_forms.ROW.version
_NO_LENGTH = Seconds(0.0)


class Fact:
    """Something that happened on this machine or in the store."""

    __slots__ = ()


class Command:
    """Something a port must do."""

    __slots__ = ()


# ---------------------------------------------------------------------------------------------------------------- facts


class WorkerStarted(Tagged, Fact, frozen=True):
    """The first fact of a term: everything the reducer needs and cannot observe.

    Attributes:
        options: how the run is saved and restarted.
        provider: whose notice behavior applies (`aws`, `google`, `azure`, `slurm`, `local`).
        lifetimes_s, preemptions, announced: of the run's earlier machines: total lifetime [s], number preempted, and
            number preempted with a notice.
        failures: number of the script's own failures in this run.
        checkpoints: the live checkpoints of the run, oldest first.
        notices_s: time between notice and end for the newest preemptions, as recorded in the run's log [s].
        restart_s: measured mean time from a loss to the resumed training [s]; None if never measured.
        costs: save costs on the run's earlier machines; None if never measured.
        managed: a controller buys the machines, so no user is present to rerun the command.
    """

    run: str
    term: Term
    options: RunOptions
    provider: str
    checkpoints: tuple[CheckpointRef, ...]
    attempt: int
    failures: int
    lifetimes_s: Seconds
    preemptions: int
    announced: int
    restart_s: Seconds | None = None
    generation: int = 1
    costs: SaveCosts | None = None
    notices_s: tuple[Seconds, ...] = ()
    managed: bool = False


class AgentResumed(Tagged, Fact, frozen=True):
    """The agent died and was restarted; commands in progress were lost, the script kept running."""


class CheckpointRestored(Tagged, Fact, frozen=True):
    """The newest intact checkpoint is on the local disk (id None: a fresh start); `skipped`: what is wrong with newer ones."""

    checkpoint_id: str | None
    step: Step
    size_bytes: Bytes
    duration_s: Seconds
    skipped: tuple[str, ...] = ()


class ScriptStarted(Tagged, Fact, frozen=True):
    """The script's process is running."""

    attempt: int


class RankStatus(Tagged, frozen=True):
    """Current state of a rank's page; `phase_since` is the start of the current phase."""

    rank: int
    step: Step
    phase: Phase
    phase_since: Instant


class RanksObserved(Tagged, Fact, frozen=True):
    """The state of all pages; sent when a rank joins, with each window and notice, and after each published request.

    Attributes:
        age_s: upper bound on the age of the oldest entry, which may come from another machine [s].
        latency_s: round-trip time to the farthest machine [s].
    """

    ranks: tuple[RankStatus, ...]
    age_s: Seconds = _NO_LENGTH
    latency_s: Seconds = _NO_LENGTH


class StepsMeasured(Tagged, Fact, frozen=True):
    """A window of completed steps of the slowest rank: mean and longest step [s], excluding saves."""

    step: Step
    count: int
    mean_s: Seconds
    longest_s: Seconds


class PhaseMeasured(Tagged, Fact, frozen=True):
    """A phase other than a step ended after `duration_s`."""

    rank: int
    phase: Phase
    duration_s: Seconds


class NoticeReceived(Tagged, Fact, frozen=True):
    """A notice arrived; its deadline is on this machine's clock, minus the clock's error."""

    notice: Notice


class SaveAnswered(Tagged, Fact, frozen=True):
    """`check_save` returned True for a request on this rank at this step."""

    rank: int
    request: int
    step: Step


class ShardHandedOver(Tagged, Fact, frozen=True):
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


class RankAdvanced(Tagged, Fact, frozen=True):
    """A rank started the step after `step` without handing over (anything more): it has no (further) shard at `step`."""

    rank: int
    step: Step


class ShardUploaded(Tagged, Fact, frozen=True):
    """A shard is complete and durable in the store, but not yet committed."""

    checkpoint_id: str
    rank: int
    shard: Shard
    size_bytes: Bytes
    duration_s: Seconds


class ShardFailed(Tagged, Fact, frozen=True):
    """A shard could not be uploaded."""

    checkpoint_id: str
    rank: int
    reason: str
    failure: Failure = Failure.OTHER


class CheckpointCommitted(Tagged, Fact, frozen=True):
    """The checkpoint's record is in the log; a restart now restores it."""

    checkpoint: CheckpointRef
    record: int
    duration_s: Seconds


class CommitFailed(Tagged, Fact, frozen=True):
    """The commit failed for a reason other than the fence."""

    checkpoint_id: str
    reason: str
    failure: Failure = Failure.OTHER


class FenceLost(Tagged, Fact, frozen=True):
    """Another machine acquired the run, by record `record`."""

    record: int
    holder: str


class PagesRead(Tagged, Fact, frozen=True):
    """How far the agent has read the script's messages, so that a restarted agent reads nothing twice.

    Attributes:
        positions: for each rank (rank, bytes read of its message file, last acknowledged request).
    """

    attempt: int
    positions: tuple[tuple[int, int, int], ...]


class MetricsReported(Tagged, Fact, frozen=True):
    """`report(...)`: metrics reported by the script; no policy uses them."""

    rank: int
    step: Step
    metrics: tuple[tuple[str, Metric], ...]


class ScriptExited(Tagged, Fact, frozen=True):
    """The script's process ended; `status` as in a shell (128 + n for signal n)."""

    status: int


class PeerLost(Tagged, Fact, frozen=True):
    """Another machine of this generation no longer responds: the generation has ended.

    Attributes:
        node: its node rank.
        message: what is known about it.
    """

    node: int
    message: str


class RunStopRequested(Tagged, Fact, frozen=True):
    """The user requested a stop of the run, after a save or `now`."""

    now: bool
    reason: str


class EstimatesChanged(Tagged, Fact, frozen=True):
    """New loss estimates from the controller, or from a message in the run's inbox."""

    mttp_s: Seconds | None = None
    restart_s: Seconds | None = None
    unannounced_share: float | None = None
    notice_s: Seconds | None = None


class AssignmentChanged(Tagged, Fact, frozen=True):
    """The controller tells the program of a job's runtime something new; it replaces what was told before."""

    role: str
    assignment: Mapping[str, Any]


class ScheduleAssigned(Tagged, Fact, frozen=True):
    """The controller assigned a save schedule to this machine; it replaces the previous one and ends with the term.

    Attributes:
        table: counts work in seconds of training.
        from_step: start of the table: the work done at step n is (n - from_step) x the mean time of a step.
        term: the term it was made for, since it may arrive in a later one; None for any term.
    """

    table: SaveTable
    from_step: Step
    term: Term | None = None


class TimerFired(Tagged, Fact, frozen=True):
    """A timer set by an earlier `SetTimer` expired."""

    name: str


# ------------------------------------------------------------------------------------------------------------- commands


class StartScript(Tagged, Command, frozen=True):
    """Restore the newest intact checkpoint, then start the script."""

    attempt: int


class KillScript(Tagged, Command, frozen=True):
    """End the script and every descendant, now."""

    reason: str


class PublishSave(Tagged, Command, frozen=True):
    """Write a request into every page: save once `step` is complete (exactly then, if there are several ranks)."""

    request: int
    step: Step
    kind: SaveKind
    exact: bool


class WithdrawSave(Tagged, Command, frozen=True):
    """Remove the request from every page."""

    request: int


class ShowNotice(Tagged, Command, frozen=True):
    """Show a notice to the script, in its pages and the notice file."""

    notice: Notice


class UploadShard(Tagged, Command, frozen=True):
    """Upload one rank's shard if it has not changed since it was handed over; answered by `ShardUploaded` or `ShardFailed`."""

    checkpoint_id: str
    rank: int
    path: str
    kind: SaveKind
    identity: str = ""


class CommitCheckpoint(Tagged, Command, frozen=True):
    """Write the manifest, then the next log record; answered by `CheckpointCommitted`, `CommitFailed` or `FenceLost`."""

    checkpoint_id: str
    step: Step
    kind: SaveKind
    generation: int
    shards: tuple[Shard, ...]


class AbandonCheckpoint(Tagged, Command, frozen=True):
    """Abandon an uncommitted checkpoint and delete what was uploaded."""

    checkpoint_id: str
    reason: str


class DeleteCheckpoints(Tagged, Command, frozen=True):
    """Delete committed checkpoints that retention no longer keeps."""

    checkpoints: tuple[CheckpointRef, ...]


class AcknowledgeNotice(Tagged, Command, frozen=True):
    """Acknowledge a notice: there is nothing left to save (Azure: speeds up the eviction)."""

    notice: Notice


class ReleaseRun(Tagged, Command, frozen=True):
    """Append the record that ends this term; `notice_s`: time between the notice, if any, and the end [s]."""

    outcome: Outcome
    cause: Cause
    exit_status: int | None = None
    notice_s: Seconds | None = None


class ExitAgent(Tagged, Command, frozen=True):
    """Exit `windfall exec` with this code, after all earlier commands have been executed."""

    code: int
    message: str


class LogMessage(Tagged, Command, frozen=True):
    """Log a message for the user."""

    message: str


class SetTimer(Tagged, Command, frozen=True):
    """Request `TimerFired(name)` at this instant; a later timer with the same name replaces it."""

    at: Instant
    name: str


# ------------------------------------------------------------------------------------------------------------ decisions


class ComparedValue(Tagged, frozen=True):
    """A number that a policy compared: `name = value unit`."""

    name: str
    value: float
    unit: str


class Decision(Tagged, frozen=True):
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


class Row(Tagged, frozen=True):
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
    commands: tuple[Command, ...] = ()
