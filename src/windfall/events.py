"""Facts, commands and decisions: what goes into and comes out of the reducers, and the journal's rows.

A *fact* happened; a *command* is to be done by a port; a *decision* says which policy chose and *because* of which
numbers.  All are immutable plain values: the journal holds them (`windfall.codec`, `VERSION`), `replay` feeds them back.
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

VERSION = 2
_NO_LENGTH = Seconds(0.0)


class Fact:
    """Something that happened on this machine or in the store."""

    __slots__ = ()


class Command:
    """Something a port shall do."""

    __slots__ = ()


# ---------------------------------------------------------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class WorkerBegan(Fact):
    """The first fact of a term: what the reducer has to know and cannot observe.

    Attributes:
        policy: `adaptive`, `optimal`, `thesis`, `young-daly`, `never`, `every:<n>steps` or `every:<s>s`.
        provider: whose habits of notice apply (`aws`, `google`, `azure`, `slurm`, `local`).
        lives_s, preemptions, announced: of the run's earlier machines: total life, how many were taken, and with a notice.
        failures: how often the script has already failed by itself in this run.
        checkpoints: the live points of the run, oldest first.
        notices_s: how long before the end the newest of these notices came, as far as the run's log remembers them.
        grace_s: how long after SIGTERM this machine lives on, as its user says; None if nobody said it.
        mttp_s: mean time to preemption as given by the user or the controller; None to learn it from the prior on.
        restart_s: mean time from a loss to training again, as measured; None if never.
        keep: how many periodic points to keep; None for all.
        retry_codes: exit codes of the script that are no failure of its own: it is always started again.
        costs: what saves cost on the run's earlier machines; None if never measured.
    """

    run: str
    term: Term
    policy: str
    provider: str
    checkpoints: tuple[CheckpointRef, ...]
    attempt: int
    failures: int
    failures_max: int
    lives_s: Seconds
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
    kept: bool = False  # a controller buys the machines: nobody sits there to start a line again


@dataclass(frozen=True, slots=True)
class AgentResumed(Fact):
    """The agent died and was started again; commands under way were lost, the script was not."""


@dataclass(frozen=True, slots=True)
class CheckpointRestored(Fact):
    """The newest whole point is on the local disk (id None: a fresh start); `skipped` says what newer ones lack."""

    checkpoint_id: str | None
    step: Step
    size_bytes: Bytes
    duration_s: Seconds
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptStarted(Fact):
    """The script's process runs."""

    attempt: int


@value
class RankStatus:
    """What a rank's page says now.  `phase_since` is when the present phase began."""

    rank: int
    step: Step
    phase: Phase
    phase_since: Instant


@value
class RanksObserved(Fact):
    """A look at all pages: sent when a rank joins, with each window, with each notice, and after each published request.

    Attributes:
        age_s: how old the oldest of these may be, where some come from other machines.
        link_s: how long a request to the farthest machine and the look after it take on their way.
    """

    ranks: tuple[RankStatus, ...]
    age_s: Seconds = _NO_LENGTH
    link_s: Seconds = _NO_LENGTH


@value
class StepsMeasured(Fact):
    """A window of finished steps of the slowest rank: mean and longest step [s], saves not counted."""

    step: Step
    count: int
    mean_s: Seconds
    longest_s: Seconds


@dataclass(frozen=True, slots=True)
class PhaseMeasured(Fact):
    """A phase other than a step has ended after this long."""

    rank: int
    phase: Phase
    duration_s: Seconds


@dataclass(frozen=True, slots=True)
class NoticeReceived(Fact):
    """A notice arrived; its deadline is already on this machine's clock, less the clock's error."""

    notice: Notice


@value
class SaveAnswered(Fact):
    """`check_save` answered True to a request on this rank at this step."""

    rank: int
    request: int
    step: Step


@value
class ShardHandedOver(Fact):
    """`backup(path)` or `save_result(path)`: a rank's part of a point, or its result, lies on the local disk.

    Attributes:
        request: the request that it answers, 0 for none.
        path: where it can be read from now on; told again when ranks have added to a folder that they share.
        stall_s: how long the script stood still for it.
        identity: what changes when its files are written again.
        source, result: the path that the script named if it is not `path`; the name of a result.
        own: made without being asked, be there a request or not: it stays.
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
    own: bool = False


@dataclass(frozen=True, slots=True)
class RankMovedOn(Fact):
    """A rank began its next step after `step` without (further) handing over: it has no (further) part at `step`."""

    rank: int
    step: Step


@value
class ShardUploaded(Fact):
    """A part is whole and durable in the store (but not yet part of any commit)."""

    checkpoint_id: str
    rank: int
    shard: Shard
    size_bytes: Bytes
    duration_s: Seconds


@dataclass(frozen=True, slots=True)
class ShardFailed(Fact):
    """A part could not be uploaded."""

    checkpoint_id: str
    rank: int
    reason: str
    failure: Failure = Failure.OTHER


@value
class CheckpointCommitted(Fact):
    """The point's record is in the log: from now on it is what a restart restores."""

    checkpoint: CheckpointRef
    record: int
    duration_s: Seconds


@dataclass(frozen=True, slots=True)
class CommitFailed(Fact):
    """The commit did not happen, for a reason other than the fence."""

    checkpoint_id: str
    reason: str
    failure: Failure = Failure.OTHER


@dataclass(frozen=True, slots=True)
class FenceLost(Fact):
    """Another machine has taken the run: record `record` says so."""

    record: int
    holder: str


@dataclass(frozen=True, slots=True)
class PagesRead(Fact):
    """How far the agent has read what the script wrote, so that one that restarts reads nothing twice.

    Attributes:
        marks: per rank (rank, bytes of its message file, last acknowledged request).
    """

    attempt: int
    marks: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class MetricsReported(Fact):
    """`report(...)`: what the script wants to be known of itself; no policy looks at it."""

    rank: int
    step: Step
    metrics: tuple[tuple[str, Metric], ...]


@dataclass(frozen=True, slots=True)
class ScriptExited(Fact):
    """The script's process ended: `status` as a shell shows it (128 + n for signal n)."""

    status: int


@dataclass(frozen=True, slots=True)
class PeerLost(Fact):
    """Another machine of this generation no longer answers: the generation is over.

    Attributes:
        node: its node rank.
        sentence: what is known of it.
    """

    node: int
    sentence: str


@dataclass(frozen=True, slots=True)
class StopAsked(Fact):
    """The user wants the run to stop, after a save, or `now`."""

    now: bool
    reason: str


@dataclass(frozen=True, slots=True)
class BeliefsChanged(Fact):
    """The controller (or a message in the run's inbox) knows more about losses than this machine."""

    mttp_s: Seconds | None = None
    restart_s: Seconds | None = None
    unannounced_share: float | None = None
    notice_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class SaveTableGiven(Fact):
    """The controller has made a schedule of saves for this machine; it replaces the one before, and ends with the term.

    Attributes:
        table: counts work in seconds of training.
        from_step: where the table begins: its work done at step n is (n - from_step) x the mean time of a step.
        term: for which it was made: it may come late, to a later one.  None: for whichever it comes to.
    """

    table: SaveTable
    from_step: Step
    term: Term | None = None


@value
class Woke(Fact):
    """The instant of an earlier `WakeAt` has come."""

    why: str


# ------------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class StartScript(Command):
    """Restore the newest whole point, then start the script."""

    attempt: int


@dataclass(frozen=True, slots=True)
class KillScript(Command):
    """End the script and every descendant, now."""

    why: str


@value
class PublishSave(Command):
    """Put a request into every page: save once `step` is complete (exactly then, if there are several ranks)."""

    request: int
    step: Step
    kind: SaveKind
    exact: bool


@dataclass(frozen=True, slots=True)
class WithdrawSave(Command):
    """Take the request out of every page."""

    request: int


@dataclass(frozen=True, slots=True)
class ShowNotice(Command):
    """Show a notice to the script: page and notice file."""

    notice: Notice


@value
class UploadShard(Command):
    """Move one rank's part to the store, if it is still what was handed over; answered by `ShardUploaded` or `ShardFailed`."""

    checkpoint_id: str
    rank: int
    path: str
    kind: SaveKind
    identity: str = ""


@value
class CommitCheckpoint(Command):
    """Write the manifest, then the next record of the log; answered by `CheckpointCommitted`, `CommitFailed` or `FenceLost`."""

    checkpoint_id: str
    step: Step
    kind: SaveKind
    generation: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class AbandonCheckpoint(Command):
    """Stop working on an uncommitted point and delete what was uploaded of it."""

    checkpoint_id: str
    why: str


@value
class DeleteCheckpoints(Command):
    """Delete committed points that retention no longer wants."""

    checkpoints: tuple[CheckpointRef, ...]


@dataclass(frozen=True, slots=True)
class AcknowledgeNotice(Command):
    """Tell the source that nothing is left to be saved (Azure: hastens the eviction)."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class ReleaseRun(Command):
    """Append the record that ends this term; `notice_s`: how long before the end its notice came, if one did."""

    outcome: Outcome
    cause: Cause
    exit_status: int | None = None
    notice_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class ExitAgent(Command):
    """End `windfall exec` with this code, after everything before it has been carried out."""

    code: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Tell(Command):
    """One sentence for the user."""

    sentence: str


@value
class WakeAt(Command):
    """Ask for a `Woke(why)` at this instant; a later request with the same `why` replaces it."""

    at: Instant
    why: str


# ------------------------------------------------------------------------------------------------------------ decisions


@value
class Because:
    """One number that was compared: `name = value unit`."""

    name: str
    value: float
    unit: str


@value
class Decision:
    """What a policy chose, and the numbers it compared.

    Attributes:
        policy, version: which rule decided.
        choice: in words (`insurance save at step 51`).
        alternatives: what else there was to choose, in words.
    """

    policy: str
    version: int
    choice: str
    because: tuple[Because, ...] = ()
    alternatives: tuple[str, ...] = ()


@value
class Row:
    """One row of the journal: a batch of facts, the decisions they led to, the commands that left.

    Attributes:
        sequence: from 1 in each term, without gaps.
        at: this machine's monotonic clock; the reducer's `now`.
        wall: this machine's wall clock, for people.
    """

    term: Term
    sequence: int
    at: Instant
    wall: WallTime
    facts: tuple[Fact, ...]
    decisions: tuple[Decision, ...] = ()
    commands: tuple[Command, ...] = field(default=())
