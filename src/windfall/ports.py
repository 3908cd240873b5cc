"""What the core's loops need from the world; each implementation passes the port's contract suite in `tests/contracts`.

Two styles, on purpose.  *Operations* (`StoreOp`) are values that the synchronous step functions of `storage` yield; an
executor carries them out against an `ObjectStore` and sends the result back in.  The same step functions therefore run
against real stores and, one operation at a time, inside the storms.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from windfall.events import CommitCheckpoint, UploadShard
from windfall.fleet import Directive, Report
from windfall.market import Answer, Bill, Boot, Capabilities, Machine, Offer, Order, Quota
from windfall.results import StoreResult
from windfall.terms import (
    Bytes,
    Cause,
    CheckpointRef,
    Instant,
    Notice,
    Outcome,
    Result,
    RunState,
    SaveCosts,
    Seconds,
    Shard,
    Step,
    WallTime,
)

T = TypeVar("T")


class Clock(Protocol):
    """Time, injected.  No other module reads a clock."""

    def now(self) -> Instant:
        """Return this machine's monotonic time [s]."""
        ...

    def wall(self) -> WallTime:
        """Return UTC as this machine believes it [s since 1970]."""
        ...

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread."""
        ...


class ObjectStore(Protocol):
    """A place of objects under one URL.  Keys are relative POSIX paths; an object is visible whole or not at all.

    Every method may raise `StoreUnreachable` (after its own bounded retries), `StoreDenied` or `StoreFull`.
    A lost reply may make `create` report False although this very call created the object: callers tell by a nonce in
    the content.
    """

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """Create an object; return False, changing nothing, if the key exists.  Durable when it returns True."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object.  Durable when it returns."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return an object's content, None if there is none."""
        ...

    def size(self, key: str) -> Bytes | None:
        """Return an object's length, None if there is none."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; no error if there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, sorted."""
        ...

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, unwanted: Callable[[], bool] | None = None
    ) -> str:
        """Store a stretch of a local file under `key` (put semantics, durable when it returns).

        Args:
            key: of the object.
            path: of the file.
            offset: where the stretch begins [B].
            size_bytes: its length [B].
            unwanted: asked now and then; once it says True the transfer ends as soon as it can be stopped.

        Returns:
            The digest (`xxh3-128:<hex>`) of the bytes that were stored.

        Raises:
            Abandoned: it was stopped; the object may be there or not.
            EOFError: the file is shorter than `offset + size_bytes`.
        """
        ...

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write an object into an existing local file at `offset`; return the digest of the bytes, None if there is none.

        An object of another length than `size_bytes` is written nowhere; the digest then is that of what was read.
        """
        ...


# ---------------------------------------------------------------------------------------------------- store operations


@dataclass(frozen=True, slots=True)
class Create:
    """`ObjectStore.create`; result bool."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """`ObjectStore.put`; result None."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """`ObjectStore.get`; result bytes or None."""

    key: str


@dataclass(frozen=True, slots=True)
class Delete:
    """`ObjectStore.delete`; result None."""

    key: str


@dataclass(frozen=True, slots=True)
class List:
    """`ObjectStore.list`; result list of keys."""

    prefix: str


@dataclass(frozen=True, slots=True)
class PutRange:
    """`ObjectStore.put_range`; result digest."""

    key: str
    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GetRange:
    """`ObjectStore.get_range`; result digest or None."""

    key: str
    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait on the caller's own monotonic clock; result the `Instant` after it (`duration_s` 0 reads the clock)."""

    duration_s: Seconds


SimpleOp = Create | Put | Get | Delete | List | PutRange | GetRange | Pause
"""One operation."""


@dataclass(frozen=True, slots=True)
class Together:
    """Operations without order among them, for the executor to run side by side; result: their results as a list."""

    ops: tuple[SimpleOp, ...]


StoreOp = SimpleOp | Together
"""What a storage step function may yield."""

Steps = Generator[StoreOp, object, T]
"""A storage step function: yields operations, receives their results, returns T.  An executor raises store errors into it."""


class NoticeSource(Protocol):
    """Watches one notice path of this machine; its loop runs in a thread of its own until `stop` is set."""

    name: str

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each change of the machine's notice once; return soon after `stopped()` is true."""
        ...

    def acknowledge(self, notice: Notice) -> None:
        """Tell the source that the machine may go (only Azure listens)."""
        ...


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore brought back.

    Attributes:
        checkpoint_id: None when the run has no whole point (a fresh start).
        checkpoint: the lowest rank's file or folder; None on a fresh start.
        skipped: one sentence for each newer point that was damaged.
    """

    checkpoint_id: str | None
    step: Step
    size_bytes: Bytes
    checkpoint: str | None
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the script has come, as a heartbeat tells it.

    Attributes:
        attempt: the start of the script; 0 before the first.
        first, step: the step it began from, and the one that is complete.
        within_s: the next heartbeat comes within so much.
    """

    attempt: int
    first: int
    step: int
    within_s: float


NO_PROGRESS = Progress(0, 0, 0, 0.0)


class RunHold(Protocol):
    """A run as the machine that holds it sees it; made by taking the run.  Calls of one kind come from one thread.

    Any call may raise a `StoreError`; those that write to the log raise `Fenced` once another machine took the run.
    """

    @property
    def state(self) -> RunState:
        """The newest state that this machine knows."""
        ...

    def restore(self, folder: str) -> Restored:
        """Bring the newest whole point to `<folder>/<rank>/<name>` and verify it."""
        ...

    def identify(self, path: str) -> str:
        """Return what changes when a handed-over file or folder is written again; empty if it cannot be read."""
        ...

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's part to the store; None if it was cancelled.

        Raises:
            Overwritten: the script changed the files meanwhile.
        """
        ...

    def commit(self, command: CommitCheckpoint) -> tuple[CheckpointRef, int]:
        """Write manifest and record; return the point and the record's number."""
        ...

    def store_result(self, command: StoreResult) -> tuple[Result, int, tuple[CheckpointRef, ...]]:
        """Write a result's manifest and record; return it, the record's number, and what may be deleted for it."""
        ...

    def give_up(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Append the record after which no restart wants these points."""
        ...

    def delete(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Delete the bytes of points that were given up."""
        ...

    def abandon(self, checkpoint_id: str) -> None:
        """Delete what was uploaded of a point that will not be committed."""
        ...

    def sweep(self) -> None:
        """Delete what dead terms left behind."""
        ...

    def write_counts(self) -> None:
        """Append a record if the counts have changed."""
        ...

    def count(self, *, attempts: int, failures: int, costs: SaveCosts | None) -> None:
        """Remember how often the script was started and failed, and what saves cost; written with the next record."""
        ...

    def release(
        self,
        outcome: Outcome,
        cause: Cause,
        notice_s: Seconds | None = None,
        *,
        going: tuple[CheckpointRef, ...] = (),
    ) -> tuple[CheckpointRef, ...]:
        """Append the record that lets the run go, and gives up points; return those whose bytes may be deleted.

        `notice_s`: how long before its end this machine heard of it.
        """
        ...

    def beat(self, progress: Progress) -> None:
        """Show that this machine lives, and how far it is; look whether it still holds the run."""
        ...

    def ship(self) -> None:
        """Append what the session's journal and output have gained to the run in the store."""
        ...

    def messages(self) -> list[dict[str, object]]:
        """Take what others wrote into the run's inbox."""
        ...


class Journal(Protocol):
    """The append-only record of facts, decisions and commands: of one term on a machine, of one job at a controller."""

    def append(self, line: str) -> None:
        """Append one row; it is durable against what its writer may lose before the row's commands leave.

        A machine's journal outlives the agent's process; a controller's outlives a power cut, for it holds intents to
        buy.

        Raises:
            ControllerReplaced: another controller took the installation; nothing was written.
        """
        ...

    def rows(self) -> Iterator[str]:
        """Yield the rows so far, oldest first."""
        ...


class Provider(Protocol):
    """Somebody who sells machines.  Calls block for a bounded time.

    Every call may raise `ProviderUnreachable` (it may have been carried out or not) or `ProviderDenied` (it was not).
    What exists is what `list` says: a machine that was ordered and whose answer was lost is in it, with its token.
    """

    name: str

    def capabilities(self) -> Capabilities:
        """Say what this provider can do; needs no network."""
        ...

    def offers(self) -> tuple[Offer, ...]:
        """Return what is for sale now, each with its present price."""
        ...

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """Return the limits of this account; empty where the provider does not tell."""
        ...

    def order(self, order: Order, boot: Boot) -> Answer:
        """Buy machines; a second call with the same token, whatever its counts, buys nothing and answers the same machines.

        Fewer than `count_max` machines come with the refusal of the rest; fewer than `count_min` are not bought at all.
        """
        ...

    def cancel(self, token: str) -> None:
        """Make sure that nothing more comes of a token, ordered or not; machines that run already stay."""
        ...

    def list(self, owner: str) -> tuple[Machine, ...]:
        """Return every machine that carries this owner's tag: pending, running, and those that ended lately."""
        ...

    def release(self, machine_id: str) -> None:
        """Give a machine back; no error if it is gone or unknown."""
        ...

    def charges(self, owner: str, cursor: str) -> Bill:
        """Return the lines of this owner's bill that are new or changed since `cursor` ("" for all)."""
        ...

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Take a machine back as the market would, with so much notice, None for none (rehearsals)."""
        ...


class Channel(Protocol):
    """A way between the controller and the machines of a job.  Nothing it does may block for long."""

    name: str

    def hear(self) -> tuple[Report, ...]:
        """Return the newest report of each machine that came since the last call."""
        ...

    def tell(self, directives: dict[str, Directive]) -> None:
        """Make these the newest directives, by machine; a machine gets its own at its next contact."""
        ...


class RunWatch(Protocol):
    """A run as the controller sees it: through its store, never holding it.  Any call may raise a `StoreError`."""

    def observe(self) -> RunState | None:
        """Return what the run's log says now; None before the first machine took it."""
        ...

    def declare_gone(self, machine_id: str) -> None:
        """Say that a machine no longer exists: if it holds the run, whoever waits may take it at once."""
        ...

    def stop(self, *, now: bool, reason: str) -> None:
        """Ask whoever holds the run to stop it; nothing happens if nobody does."""
        ...
