"""The words of Windfall: one meaning each, used alike in code, journal, commands and documentation.

Every other module may import this one; it imports nothing of ours.  All values are immutable.

Two clocks exist and must not be mixed:

* `Instant` - seconds of the machine's monotonic clock.  Comparable between processes of one boot of one machine only.
* `WallTime` - seconds since 1970-01-01 UTC.  For records that other machines read, and for people.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

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
"""The number of the log record by which a holder took the run; larger is newer."""
Metric = NewType("Metric", float)
"""A number that a script reports of itself; alone among our numbers it need not be finite."""
Step = NewType("Step", int)
"""How many training steps are complete since the run began, restarts not counted twice."""


class Reliability(enum.StrEnum):
    """Whether the owner of the machine may take it back."""

    RELIABLE = "reliable"
    TRANSIENT = "transient"


class Unit(enum.StrEnum):
    """What work is counted in."""

    STEP = "step"
    SAMPLE = "sample"
    TOKEN = "token"
    ITEM = "item"


class SaveKind(enum.StrEnum):
    """Why a checkpoint was made (thesis, sections 4.2 to 4.4)."""

    PERIODIC = "periodic"
    """The user's own schedule: it stays."""
    INSURANCE = "insurance"
    """Against a loss without (sufficient) notice: it goes when a newer point is committed."""
    EMERGENCY = "emergency"
    """Because of a notice: it goes when a newer point is committed."""
    STOP = "stop"
    """Because the user asked the run to stop: kept like an emergency point."""
    RESULT = "result"
    """What a script made: it stays, and no restart restores it."""


class NoticeLevel(enum.StrEnum):
    """How much a message about this machine's end is worth."""

    HINT = "hint"
    """The machine is at elevated risk; it may never be taken."""
    ANNOUNCED = "announced"
    """The machine will be taken at a deadline."""
    WITHDRAWN = "withdrawn"
    """What was announced will not happen."""
    GONE = "gone"
    """The machine has been taken."""


class Phase(enum.StrEnum):
    """What the script is doing; each phase but `BETWEEN` is uninterruptible (no save can start inside it)."""

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
    """Announced, and the newest step was committed before the end."""
    PREEMPTED_UNSAVED = "preempted-unsaved"
    """Announced, but the last steps were lost."""
    VANISHED = "vanished"
    """Gone without a word."""
    SCRIPT_FAILED = "script-failed"
    STOPPED = "stopped"
    FENCED = "fenced"
    """Another machine took the run."""


class Outcome(enum.StrEnum):
    """What has become of a run."""

    RUNNING = "running"
    """Held by a machine, or left behind by one that vanished."""
    WAITING = "waiting"
    """Released after a preemption or a stop: the same line takes it up again."""
    DONE = "done"
    FAILED = "failed"


class Failure(enum.StrEnum):
    """What a store's failure means for another try."""

    OTHER = "other"
    OVERWRITTEN = "overwritten"
    """The script changed the files meanwhile."""
    REFUSED = "refused"
    """The files cannot be stored as they are."""
    AWAY = "away"
    """The store did not answer, as long as anybody waits for one."""
    FULL = "full"


@dataclass(frozen=True, slots=True)
class WorkDone:
    """An amount of finished work, with the loss where there is one."""

    amount: float
    unit: Unit = Unit.STEP
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about this machine's end.

    Attributes:
        deadline: when the machine is taken; None where nobody says (hint, withdrawn).
        source: which notice path spoke (`aws`, `google`, `azure`, `signal`, `inject`).
        notice_id: the source's own identity of the event; the same id withdraws it.
    """

    level: NoticeLevel
    source: str
    notice_id: str
    deadline: Instant | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a generation: data x pipeline ranks on this many machines.  Changing it is not a restart."""

    machines: int = 1
    ranks_per_machine: int = 1
    data_parallel: int = 1
    pipeline_depth: int = 1


@dataclass(frozen=True, slots=True)
class Generation:
    """Who is in, in which shape.  `number` grows with each change of membership."""

    number: int
    members: tuple[str, ...]
    layout: Layout = field(default_factory=Layout)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a file, stored as one object: `digest` is `xxh3-128:<hex>` of its bytes, `key` relative to the run."""

    key: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One stored file of a shard: its chunks in order (none for an empty file).

    Attributes:
        path: relative POSIX path inside the shard's root; `.` when the shard is a single file; ends in `/` for an
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


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank handed over: a file or a folder named `name`, with its files."""

    rank: int
    name: str
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A committed checkpoint as the log names it.

    Attributes:
        checkpoint_id: unique in the run; `<step>-<term>-<nonce>`.
        manifest_digest: digest of the manifest's bytes, so that a damaged or replaced manifest is noticed.
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A manifest: everything needed to restore the run as it was after `step` steps."""

    checkpoint_id: str
    step: Step
    kind: SaveKind
    term: Term
    generation: int
    shards: tuple[Shard, ...]
    created_at: WallTime

    @property
    def size_bytes(self) -> int:
        """The point's length over all files of all shards [B]."""
        return sum(entry.size_bytes for shard in self.shards for entry in shard.files)


@dataclass(frozen=True, slots=True)
class Result:
    """What one rank handed over as a result of the run, under a name; the newest of a name and rank counts."""

    name: str
    rank: int
    stored: CheckpointRef


@dataclass(frozen=True, slots=True)
class Bundle:
    """The user's code, content-addressed: `digest` is the SHA-256 of the archive stored at `key`."""

    digest: str
    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a run: enough for another process of the same machine to tell whether this one still lives.

    Attributes:
        boot_id: the kernel's identity of the machine's present boot (`/proc/sys/kernel/random/boot_id`).
        pid_namespace: inode of the PID namespace in which `pid` counts.
        pid_started: start time of `pid` in clock ticks since boot, because numbers of processes are used again.
        nonce: random; names this holding and nothing else.
    """

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    pid_started: int
    nonce: str


@dataclass(frozen=True, slots=True)
class SaveCosts:
    """What the run's last save cost, so that the next machine need not learn it anew.

    Attributes:
        stall_s: how long the script stood still [s].
        size_bytes: length of the state [B].
        upload_s: how long its upload took [s].
        commit_s: how long a commit took [s].
    """

    stall_s: Seconds
    size_bytes: Bytes
    upload_s: Seconds
    commit_s: Seconds


@dataclass(frozen=True, slots=True)
class SaveTable:
    """When one machine saves, by the work done since the table begins; `policies.saving.schedule_table` makes it.

    Attributes:
        saves_at_s: work done at which to save, rising [s].
        known_s: work done up to which the schedule is trusted [s]; from there on the default rule decides.
        interval_s: of the default rule when the table was made [s].
        says: one sentence: what the schedule rests on, or why the default rule decides.
    """

    saves_at_s: tuple[float, ...]
    known_s: float
    interval_s: float
    says: str


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a holder had come that gave no last word: by its last heartbeat, or by what it left on its disk.

    Attributes:
        attempt: the start of the script that ran; 0 before the first.
        first: the step from which that one began.
        step: complete by then, of the slowest rank.
        wall: when that was, by the holder's wall clock: it lived until then at least.
        within_s: unless it was cut off from the store, it lived no longer than so much beyond `wall`.
        last: whether it completed no step after `step`.
    """

    attempt: int
    first: Step
    step: Step
    wall: WallTime
    within_s: Seconds
    last: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """How one term of the run ended.

    Attributes:
        step: the newest committed step at that time.
        reached: of a holder that vanished, as far as its taker could see.
        notice_s: how long before its end the machine heard of it [s]; None if it did not, or was not taken.
    """

    cause: Cause
    term: Term
    wall: WallTime
    step: Step
    reached: Reached | None = None
    notice_s: Seconds | None = None


def noticed(losses: tuple[Loss, ...]) -> tuple[Seconds, ...]:
    """Return how long before the end the notices came, of those losses that had one [s]."""
    return tuple(loss.notice_s for loss in losses if loss.notice_s is not None)


class RecordKind(enum.StrEnum):
    """What a record of the log did."""

    TAKE = "take"
    """A holder took the run; the record's number is its term."""
    COMMIT = "commit"
    """A checkpoint became what a restart restores."""
    RESULT = "result"
    """A result is stored; the one of the same name and rank before it is given up."""
    DROP = "drop"
    """Points are given up; their bytes may be deleted from now on."""
    ATTEMPT = "attempt"
    """The script was started again, or failed by itself, inside the term."""
    RELEASE = "release"
    """The holder let go."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the log says about a run; each record carries it whole, so that the newest record suffices.

    Attributes:
        term: number of the record by which the run was last taken.
        holder: None once released.
        holder_since: by the holder's wall clock.
        lease_s: how long the holder's heartbeat may stand still before others may take the run.
        checkpoints: the live checkpoints, oldest first.
        attempts: how often the script was started so far.
        failures: how often it failed by itself since a person last started it.
        lives_s: total life of the machines that were taken away or released.
        preemptions, announced: how many machines were taken away, how many of them with a notice.
        losses: how the last terms ended, oldest first (at most 64).
        code: digest of the listing of the code files that the newest attempt ran; None if unknown.
        costs: of the last save that was measured whole; None before the first.
        generation: number of the newest generation of several machines that took the run; 0 if none ever did.
        results: what the script made, in the order of the records; no restart restores it.
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
    lives_s: Seconds = Seconds(0.0)
    preemptions: int = 0
    announced: int = 0
    losses: tuple[Loss, ...] = ()
    command: tuple[str, ...] = ()
    bundle: Bundle | None = None
    code: str | None = None
    costs: SaveCosts | None = None
    generation: int = 0
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a run's log: `log/<number>`, created once, never changed.

    Attributes:
        nonce: random; by it the writer knows its own record again after a lost reply.
        wall: by the writer's wall clock.
    """

    number: int
    nonce: str
    kind: RecordKind
    wall: WallTime
    state: RunState
