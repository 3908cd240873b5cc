"""Core types of Windfall: each name has one meaning in code, journal, commands and documentation.

Every module may import this one; it imports no other module of Windfall.  All values are immutable.

There are two clocks, which must not be mixed:

* `Instant` - seconds of the machine's monotonic clock.  Comparable only between processes of one boot of one machine.
* `WallTime` - seconds since 1970-01-01 UTC.  For records that other machines read, and for people.
"""

from __future__ import annotations

import enum
from typing import NewType

from windfall.structs import Tagged

Seconds = NewType("Seconds", float)
"""A length of time [s]."""
Instant = NewType("Instant", float)
"""A moment on this machine's monotonic clock [s]."""
WallTime = NewType("WallTime", float)
"""A moment as seconds since the Unix epoch, UTC [s]."""
Bytes = NewType("Bytes", int)
"""An amount of data [B]."""
Usd = NewType("Usd", float)
"""An amount of money [USD]."""
Term = NewType("Term", int)
"""Number of the log record by which a holder acquired the run; larger is newer."""
Step = NewType("Step", int)
"""Number of training steps completed since the start of the run; repeated steps are counted once."""
BlockValue = str | bool | int | float
"""A value in a provider's block of a job file."""


class Metric(float):
    """A number that a script reports; the only kind of number that may be infinite or NaN."""

    __slots__ = ()


class Reliability(enum.StrEnum):
    """Whether the owner of the machine may take it back."""

    RELIABLE = "reliable"
    TRANSIENT = "transient"


class Unit(enum.StrEnum):
    """The unit in which work is counted."""

    STEP = "step"
    SAMPLE = "sample"
    TOKEN = "token"
    ITEM = "item"


class WorkDone(Tagged, frozen=True):
    """An amount of work."""

    amount: float
    unit: Unit


class SaveKind(enum.StrEnum):
    """Why a checkpoint was made (thesis, sections 4.2 to 4.4)."""

    PERIODIC = "periodic"
    """Made on the user's own schedule; kept."""
    INSURANCE = "insurance"
    """Protects against a loss with too little or no notice; deleted when a newer checkpoint is committed."""
    EMERGENCY = "emergency"
    """Made because of a notice; deleted when a newer checkpoint is committed."""
    STOP = "stop"
    """Made because the user stopped the run; kept like an emergency save."""
    RESULT = "result"
    """Output of the script; kept, and never restored by a restart."""


class NoticeLevel(enum.StrEnum):
    """How certain a message about this machine's end is."""

    HINT = "hint"
    """The machine is at elevated risk; it may never be preempted."""
    ANNOUNCED = "announced"
    """The machine will be preempted at a deadline."""
    WITHDRAWN = "withdrawn"
    """The announced preemption will not happen."""
    GONE = "gone"
    """The machine has been preempted."""


class Phase(enum.StrEnum):
    """What the script is doing; no save can start during any phase except `BETWEEN`."""

    START = "start"
    STEP = "step"
    BETWEEN = "between"
    SAVE = "save"
    EVALUATION = "evaluation"
    COMPILE = "compile"
    DATA = "data"


class Cause(enum.StrEnum):
    """Why a machine or an attempt ended."""

    DONE = "done"
    PREEMPTED_SAVED = "preempted-saved"
    """Preempted with a notice, after the newest step was committed."""
    PREEMPTED_UNSAVED = "preempted-unsaved"
    """Preempted with a notice, but the last steps were lost."""
    VANISHED = "vanished"
    """Ended without a notice or a final record."""
    SCRIPT_FAILED = "script-failed"
    STOPPED = "stopped"
    FENCED = "fenced"
    """Another machine acquired the run."""


class Outcome(enum.StrEnum):
    """The state of a run."""

    RUNNING = "running"
    """Held by a machine, which may have vanished."""
    WAITING = "waiting"
    """Released after a preemption or a stop; the same command resumes it."""
    DONE = "done"
    FAILED = "failed"


class JobProgress(Tagged, frozen=True):
    """How far a job is, whatever its runtime.

    Attributes:
        done: work done, as far as is known.
        safe: work that no loss can undo.
        failures: of the user's own program, not of machines.
        failure: what the newest of them was; empty if the runtime does not say.
        holders: machines whose loss stops work; empty while none works, or where each one works by itself.
        loss: the training loss that is reached; None if the runtime does not measure it.
    """

    done: WorkDone
    safe: WorkDone
    failures: int
    outcome: Outcome
    holders: tuple[str, ...] = ()
    loss: float | None = None
    failure: str = ""


class Failure(enum.StrEnum):
    """Why a save failed; decides whether it is retried."""

    OTHER = "other"
    OVERWRITTEN = "overwritten"
    """The script changed the files during the upload."""
    REFUSED = "refused"
    """The files cannot be stored in their current form."""
    UNREACHABLE = "unreachable"
    """The store did not answer within the retry budget."""
    FULL = "full"


class Notice(Tagged, frozen=True):
    """A message about this machine's end.

    Attributes:
        deadline: when the machine is preempted; None if unknown (hint, withdrawn).
        source: where the notice came from (`aws`, `google`, `azure`, `signal`, `inject`).
        notice_id: the source's id of the event; a withdrawal carries the same id.
    """

    level: NoticeLevel
    source: str
    notice_id: str
    deadline: Instant | None = None


class Member(Tagged, frozen=True):
    """A machine of a generation, what it is for, and its rank among all members, from 0."""

    machine_id: str
    role: str
    rank: int


class RankLayout(Tagged, frozen=True):
    """Ranks that all do the same: a script started by a launcher on each machine.  A restart cannot change it."""

    machines: int = 1


class GridLayout(Tagged, frozen=True):
    """Data-parallel pipelines: `data_parallel` x `pipeline_depth` machines, by rank, pipeline after pipeline."""

    data_parallel: int
    pipeline_depth: int


Layout = RankLayout | GridLayout


class Generation(Tagged, frozen=True):
    """The machines that train together and their layout; `number` grows with each change of membership."""

    number: int
    members: tuple[Member, ...]
    layout: Layout = RankLayout()

    @property
    def machine_ids(self) -> tuple[str, ...]:
        """The members' machines, by rank."""
        return tuple(member.machine_id for member in self.members)


class Chunk(Tagged, frozen=True):
    """A range of a file, stored as one object; `digest` is `xxh3-128:<hex>` of its bytes, `key` is relative to the run."""

    key: str
    size_bytes: int
    digest: str


class FileEntry(Tagged, frozen=True):
    """One stored file of a shard: its chunks in order (none for an empty file).

    Attributes:
        path: relative POSIX path inside the shard's root; `.` if the shard is a single file; ends in `/` for an
            empty folder.
        mode: permission bits.
    """

    path: str
    mode: int
    chunks: tuple[Chunk, ...]

    @property
    def size_bytes(self) -> int:
        """The file's length [B]."""
        return sum(chunk.size_bytes for chunk in self.chunks)


class Shard(Tagged, frozen=True):
    """What one rank handed over: the file or folder `name`, with its files."""

    rank: int
    name: str
    files: tuple[FileEntry, ...]


class CheckpointRef(Tagged, frozen=True):
    """A committed checkpoint, as recorded in the log.

    Attributes:
        checkpoint_id: unique in the run; `<step>-<term>-<nonce>`.
        manifest_digest: digest of the manifest's bytes; detects a damaged or replaced manifest.
        committed_at: by the committing machine's wall clock.
    """

    checkpoint_id: str
    step: Step
    kind: SaveKind
    term: Term
    generation: int
    size_bytes: int
    manifest_key: str
    manifest_digest: str
    committed_at: WallTime


class Checkpoint(Tagged, frozen=True):
    """A checkpoint's manifest: everything needed to restore the run to its state after `step` steps."""

    checkpoint_id: str
    step: Step
    kind: SaveKind
    term: Term
    generation: int
    shards: tuple[Shard, ...]
    created_at: WallTime

    @property
    def size_bytes(self) -> int:
        """Total length of all files of all shards [B]."""
        return sum(entry.size_bytes for shard in self.shards for entry in shard.files)


class Result(Tagged, frozen=True):
    """A named result handed over by one rank; a newer one with the same name and rank replaces it."""

    name: str
    rank: int
    stored: CheckpointRef


class Bundle(Tagged, frozen=True):
    """The user's code, content-addressed: `digest` is the SHA-256 of the archive stored at `key`."""

    digest: str
    key: str
    size_bytes: int


class Holder(Tagged, frozen=True):
    """The process that holds a run; identifies it well enough for another process on the machine to check if it is alive.

    Attributes:
        boot_id: id of the machine's current boot (`/proc/sys/kernel/random/boot_id`).
        pid_namespace: inode of the PID namespace of `pid`.
        pid_started: start time of `pid` in clock ticks since boot, because process ids are reused.
        nonce: random; identifies this lease.
    """

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    pid_started: int
    nonce: str


PATIENCE_S = Seconds(120.0)
"""Default time for which requests to a store that does not answer are retried [s]."""
GRACE_S = Seconds(30.0)
"""Default time a machine lives after SIGTERM [s]."""
DEFAULT_SAVING = "adaptive"
"""The saving policy of a run that names none."""


class RunOptions(Tagged, frozen=True):
    """How a run is saved and restarted: one value from the job file, or from `windfall exec`, to the worker's reducer.

    Attributes:
        policy: when to save against losses without a notice, as `policies.checkpointing` parses it (a name of
            `policies.policy_registry`, `every:200steps`, `every:600.0s`): the job file's `insure`.
        keep: number of the script's own periodic checkpoints to keep; None for all.
        failures_max: number of the script's own failures after which the run fails.
        retry_codes: exit codes after which the script is always restarted; they do not count as failures.
        grace_s: how long a machine lives after SIGTERM [s]; None if not configured.
        lease_s: how long a heartbeat may stay unchanged before another machine may acquire the run [s].
        mttp_s: mean time to preemption set by the user or the controller [s]; None to estimate it.
    """

    policy: str = DEFAULT_SAVING
    keep: int | None = None
    failures_max: int = 3
    retry_codes: tuple[int, ...] = ()
    grace_s: Seconds | None = None
    lease_s: Seconds = Seconds(30.0)
    mttp_s: Seconds | None = None


class SaveCosts(Tagged, frozen=True):
    """Cost of the run's last save, recorded so that the next machine does not have to measure it again.

    Attributes:
        stall_s: how long the script was blocked [s].
        size_bytes: size of the state [B].
        upload_s: duration of the upload [s].
        commit_s: duration of the commit [s].
    """

    stall_s: Seconds
    size_bytes: Bytes
    upload_s: Seconds
    commit_s: Seconds


class SaveTable(Tagged, frozen=True):
    """Save schedule of one machine, by the work done since its start; built by `policies.checkpointing.schedule_table`.

    Attributes:
        saves_at_s: work done at which to save, ascending [s].
        horizon_s: work done up to which the schedule applies [s]; after that the default rule decides.
        interval_s: save interval of the default rule when the table was built [s].
        explanation: what the schedule is based on, or why the default rule decides; one sentence.
    """

    saves_at_s: tuple[float, ...]
    horizon_s: float
    interval_s: float
    explanation: str


class LastProgress(Tagged, frozen=True):
    """Last known progress of a holder that vanished, from its last heartbeat or its files on the local disk.

    Attributes:
        attempt: number of the script's attempt; 0 before the first.
        first_step: step from which the attempt started.
        step: last completed step of the slowest rank.
        wall_time: when this was observed, by the holder's wall clock; the holder was alive until then.
        max_gap_s: the holder lived at most this long after `wall_time`, unless it lost its connection to the store [s].
        last: whether `step` is known to be the last step it completed.
    """

    attempt: int
    first_step: Step
    step: Step
    wall_time: WallTime
    max_gap_s: Seconds
    last: bool = False


class Loss(Tagged, frozen=True):
    """How one term of the run ended.

    Attributes:
        step: the newest committed step at that time.
        reached: last progress of a holder that vanished, as seen by its successor; None if unknown.
        notice_s: time between the notice and the end [s]; None without a notice, or if the machine was not preempted.
    """

    cause: Cause
    term: Term
    wall_time: WallTime
    step: Step
    reached: LastProgress | None = None
    notice_s: Seconds | None = None


def noticed(losses: tuple[Loss, ...]) -> tuple[Seconds, ...]:
    """Return the notice time of each loss that had a notice [s]."""
    return tuple(loss.notice_s for loss in losses if loss.notice_s is not None)


class RecordKind(enum.StrEnum):
    """What a log record changes."""

    ACQUIRE = "acquire"
    """A holder acquired the run; the record's number is its term."""
    COMMIT = "commit"
    """A checkpoint was committed; a restart restores the newest."""
    RESULT = "result"
    """A result was stored; it replaces the earlier one with the same name and rank."""
    DROP = "drop"
    """Checkpoints were dropped; their bytes may be deleted from now on."""
    ATTEMPT = "attempt"
    """The script was restarted, or failed on its own, within the term."""
    RELEASE = "release"
    """The holder released the run."""


class RunState(Tagged, frozen=True):
    """The full state of a run.  Each log record carries all of it, so a reader needs only the newest record.

    Attributes:
        term: number of the record by which the run was last acquired.
        holder: None after a release.
        holder_since: when the holder acquired the run, by its wall clock.
        lease_s: how long the holder's heartbeat may stay unchanged before another machine may acquire the run [s].
        checkpoints: the live checkpoints, oldest first.
        attempts: number of starts of the script.
        failures: number of the script's own failures since a user last started the run.
        lifetimes_s: total lifetime of the machines that were preempted or released [s].
        preemptions, announced: number of preempted machines, and how many of them had a notice.
        losses: how the last terms ended, oldest first (at most 64).
        code: digest of the list of code files of the newest attempt; None if unknown.
        costs: costs of the last fully measured save; None before the first.
        generation: newest generation of several machines that acquired the run; 0 if there was none.
        results: the script's results in the order of their records; never restored by a restart.
    """

    run_id: str
    term: Term
    outcome: Outcome
    holder: Holder | None
    holder_since: WallTime
    lease_s: Seconds
    checkpoints: tuple[CheckpointRef, ...] = ()
    attempts: int = 0
    failures: int = 0
    lifetimes_s: Seconds = Seconds(0.0)
    preemptions: int = 0
    announced: int = 0
    losses: tuple[Loss, ...] = ()
    command: tuple[str, ...] = ()
    bundle: Bundle | None = None
    code: str | None = None
    costs: SaveCosts | None = None
    generation: int = 0
    results: tuple[Result, ...] = ()


class Record(Tagged, frozen=True):
    """One record of a run's log: `log/<number>`, created once, never changed.

    Attributes:
        nonce: random; lets the writer recognise its own record after a lost reply.
        wall_time: by the writer's wall clock.
    """

    number: int
    nonce: str
    kind: RecordKind
    wall_time: WallTime
    state: RunState
