"""Ports: the interfaces between the core's loops and the outside world.

Each implementation passes the port's contract suite in `tests/contracts`.  Stores have two interfaces.  *Operations*
(`StoreOp`) are values that the synchronous step functions of `storage` yield; an executor executes them against an
`ObjectStore` and sends back the results.  So the same step functions run against real stores and, one operation at a
time, in the simulated storms.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Protocol, TypeVar, runtime_checkable

from windfall.events import CommitCheckpoint, UploadShard
from windfall.fleet import Directive, FleetFacts, ProgressObserved, Report
from windfall.market import (
    Answer,
    Bill,
    BlockSettings,
    BootSpec,
    Capabilities,
    Machine,
    Offer,
    Order,
    OrderPreview,
    Quota,
)
from windfall.results import StoreResult
from windfall.structs import Struct
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
    """Injected time; no other module reads a clock."""

    def now(self) -> Instant:
        """Return this machine's monotonic time [s]."""
        ...

    def wall_time(self) -> WallTime:
        """Return UTC by this machine's clock [s since 1970]."""
        ...

    def sleep(self, duration_s: Seconds) -> None:
        """Block the calling thread."""
        ...


class ObjectStore(Protocol):
    """Objects under one URL.  Keys are relative POSIX paths; an object is visible completely or not at all.

    Every method may raise `StoreUnreachable` (after its own bounded retries), `StoreDenied` or `StoreFull`.
    After a lost reply `create` may return False although this call created the object; callers detect this by a nonce
    in the content.
    """

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """Create an object; return False, changing nothing, if the key exists.  Durable when it returns True."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object.  Durable when it returns."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return an object's content, None if it does not exist."""
        ...

    def size(self, key: str) -> Bytes | None:
        """Return an object's length [B], None if it does not exist."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; no error if it does not exist."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the keys that start with `prefix`, sorted."""
        ...

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, cancelled: Callable[[], bool] | None = None
    ) -> str:
        """Store a range of a local file under `key` (put semantics, durable when it returns).

        Args:
            key: of the object.
            path: of the file.
            offset: start of the range [B].
            size_bytes: its length [B].
            cancelled: polled; once it returns True the transfer ends as soon as possible.

        Returns:
            The digest (`xxh3-128:<hex>`) of the bytes that were stored.

        Raises:
            TransferCancelled: it was cancelled; the object may or may not exist.
            EOFError: the file is shorter than `offset + size_bytes`.
        """
        ...

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write an object into an existing local file at `offset`; return its digest, None if it does not exist.

        An object whose length is not `size_bytes` is not written; the digest is still that of its bytes.
        """
        ...


# ---------------------------------------------------------------------------------------------------- store operations


class Create(Struct, frozen=True):
    """`ObjectStore.create`; result bool."""

    key: str
    data: bytes


class Put(Struct, frozen=True):
    """`ObjectStore.put`; result None."""

    key: str
    data: bytes


class Get(Struct, frozen=True):
    """`ObjectStore.get`; result bytes or None."""

    key: str


class Delete(Struct, frozen=True):
    """`ObjectStore.delete`; result None."""

    key: str


class List(Struct, frozen=True):
    """`ObjectStore.list`; result list of keys."""

    prefix: str


class PutRange(Struct, frozen=True):
    """`ObjectStore.put_range`; result digest."""

    key: str
    path: str
    offset: int
    size_bytes: int


class GetRange(Struct, frozen=True):
    """`ObjectStore.get_range`; result digest or None."""

    key: str
    path: str
    offset: int
    size_bytes: int


class Pause(Struct, frozen=True):
    """Wait on the caller's monotonic clock; result the `Instant` after the wait (`duration_s` 0 reads the clock)."""

    duration_s: Seconds


SimpleOp = Create | Put | Get | Delete | List | PutRange | GetRange | Pause
"""One operation."""


class Together(Struct, frozen=True):
    """Independent operations, which the executor runs in parallel; result: the list of their results."""

    ops: tuple[SimpleOp, ...]


StoreOp = SimpleOp | Together
"""The operations that a storage step function may yield."""

Steps = Generator[StoreOp, object, T]
"""A storage step function: yields operations, receives their results, returns T.  The executor raises store errors in it."""


class NoticeSource(Protocol):
    """Watches one source of notices for this machine; its loop runs in its own thread until `stopped()` is true."""

    name: str

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each change of the machine's notice once; return soon after `stopped()` becomes true."""
        ...

    def acknowledge(self, notice: Notice) -> None:
        """Tell the provider that the machine may be preempted now (only Azure supports this).

        Called for every notice: a source ignores those of other sources.
        """
        ...


class Restored(Struct, frozen=True):
    """Result of a restore.

    Attributes:
        checkpoint_id: None if the run has no intact checkpoint (a fresh start).
        checkpoint: path of the lowest rank's file or folder; None on a fresh start.
        skipped: one sentence for each newer checkpoint that is damaged.
    """

    checkpoint_id: str | None
    step: Step
    size_bytes: Bytes
    checkpoint: str | None
    skipped: tuple[str, ...]


class Progress(Struct, frozen=True):
    """The script's progress, as written into a heartbeat.

    Attributes:
        attempt: number of the attempt; 0 before the first.
        first_step, step: the step it started from, and the last completed one.
        max_gap_s: the next heartbeat follows within this time [s].
    """

    attempt: int
    first_step: int
    step: int
    max_gap_s: float


NO_PROGRESS = Progress(0, 0, 0, 0.0)


class RunLease(Protocol):
    """A run, as seen by the machine that holds it; created by acquiring the run.  Calls of one kind come from one thread.

    Any call may raise a `StoreError`; those that write to the log raise `Fenced` after another machine acquired the run.
    """

    @property
    def state(self) -> RunState:
        """The newest state that this machine knows."""
        ...

    def restore(self, folder: str) -> Restored:
        """Restore the newest intact checkpoint to `<folder>/<rank>/<name>` and verify it."""
        ...

    def identify(self, path: str) -> str:
        """Return a fingerprint that changes when a handed-over file or folder is rewritten; empty if it cannot be read."""
        ...

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Upload one rank's shard; return None if it was cancelled.

        Raises:
            ShardChanged: the script changed the files during the upload.
        """
        ...

    def commit(self, command: CommitCheckpoint) -> tuple[CheckpointRef, int]:
        """Write the manifest and the log record; return the checkpoint and the record's number."""
        ...

    def store_result(self, command: StoreResult) -> tuple[Result, int, tuple[CheckpointRef, ...]]:
        """Write a result's manifest and record; return the result, the record's number, and what may be deleted."""
        ...

    def drop_checkpoints(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Append the record after which no restart uses these checkpoints."""
        ...

    def delete(self, refs: tuple[CheckpointRef, ...]) -> None:
        """Delete the bytes of dropped checkpoints."""
        ...

    def abandon(self, checkpoint_id: str) -> None:
        """Delete what was uploaded of a checkpoint that will not be committed."""
        ...

    def sweep(self) -> None:
        """Delete objects left behind by earlier terms."""
        ...

    def write_counts(self) -> None:
        """Append a record if the counts changed."""
        ...

    def count(self, *, attempts: int, failures: int, costs: SaveCosts | None) -> None:
        """Set the number of attempts and failures and the save costs; written with the next record."""
        ...

    def release(
        self,
        outcome: Outcome,
        cause: Cause,
        notice_s: Seconds | None = None,
        *,
        drop: tuple[CheckpointRef, ...] = (),
    ) -> tuple[CheckpointRef, ...]:
        """Append the record that releases the run and drops checkpoints; return those whose bytes may be deleted.

        `notice_s`: time between the notice and the end [s]; None without a notice.
        """
        ...

    def heartbeat(self, progress: Progress) -> None:
        """Write the heartbeat with the progress, and check that this machine still holds the run."""
        ...

    def ship(self) -> None:
        """Append new rows of the journal and new output to the run in the store."""
        ...

    def messages(self) -> list[dict[str, object]]:
        """Return new messages from the run's inbox."""
        ...


class Journal(Protocol):
    """Append-only record of facts, decisions and commands: of one term on a machine, or one job at a controller."""

    def append(self, line: str) -> None:
        """Append one row; it is durable before the row's commands are issued.

        A machine's journal survives the agent's process; a controller's survives a power failure, because it holds
        intents to buy.

        Raises:
            ControllerReplaced: another controller took over the installation; nothing was written.
        """
        ...

    def rows(self, after: int = 0) -> Iterator[str]:
        """Yield the rows so far after row `after`, oldest first."""
        ...


class Snapshots(Protocol):
    """The newest snapshots of a journal's reader; losing one costs only time."""

    def newest(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of the row that each follows, and its content; newest first."""
        ...

    def write(self, sequence: int, data: bytes) -> None:
        """Store the snapshot that follows row `sequence`, and drop all but the newest two.

        Raises:
            ControllerReplaced: another controller took over the installation; nothing was written.
        """
        ...


class Provider(Protocol):
    """A provider of machines.  Calls block for a bounded time.

    Every call may raise `ProviderUnreachable` (it may or may not have been executed) or `ProviderDenied` (it was not).
    `list` is authoritative: it includes machines whose order was answered but whose answer was lost, with their token.
    """

    name: str

    def capabilities(self) -> Capabilities:
        """Return what this provider supports; needs no network."""
        ...

    def offers(self, block: BlockSettings = ()) -> tuple[Offer, ...]:
        """Return the current offers, with their current prices: of a job with these settings, or of one without any."""
        ...

    def quota(self, owner: str, block: BlockSettings = ()) -> tuple[Quota, ...]:
        """Return the limits of this account, as they hold for a job with these settings; empty if they are not reported."""
        ...

    def preview(self, order: Order, block: BlockSettings) -> OrderPreview:
        """Return what would become of an order, without making it; only asked where `Capabilities.previews`."""
        ...

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """Buy machines; a second call with the same token, whatever its counts, buys nothing and returns the same machines.

        Fewer than `count_max` machines come with a refusal for the rest; fewer than `count_min` are not bought at all.
        """
        ...

    def cancel(self, token: str) -> None:
        """Cancel a token, used or not, so that it yields no more machines; running machines are kept."""
        ...

    def list(self, owner: str) -> tuple[Machine, ...]:
        """Return all machines with this owner's tag: pending, running, and recently ended."""
        ...

    def release(self, machine_id: str) -> None:
        """Release a machine; no error if it is gone or unknown."""
        ...

    def charges(self, owner: str, cursor: str) -> Bill:
        """Return the lines of this owner's bill that are new or changed since `cursor` ("" for all)."""
        ...

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Preempt a machine, with `notice_s` of notice, None for none (for rehearsals)."""
        ...


class Channel(Protocol):
    """A connection between the controller and the machines of a job.  No call may block for long."""

    name: str

    def receive(self) -> tuple[Report, ...]:
        """Return the newest report of each machine that has sent one since the last call."""
        ...

    def send(self, directives: dict[str, Directive]) -> None:
        """Set the newest directive of each machine; a machine receives it at its next contact."""
        ...


class Runtime(Protocol):
    """How a job's state survives, as the controller sees it.  Any call may raise a `StoreError`.

    What a job needs and which machines work together are the runtime's rules (`policies.layout.runtime_list`).  Machines
    are admitted and drained by directives; what follows on a machine is its program's: it prepares, restores, agrees with
    the others on a step, saves, hands over.
    """

    def progress(self) -> ProgressObserved | None:
        """Return how far the job is, by the runtime's own record; None before there is one."""
        ...

    def declare_gone(self, machine_id: str) -> None:
        """Record that a machine no longer exists: others may take over its work at once, and it can commit nothing more."""
        ...

    def stop(self, *, now: bool, reason: str) -> None:
        """Ask the machines that work to stop, after a save or `now`; does nothing if none works."""
        ...


@runtime_checkable
class FleetListener(Protocol):
    """A runtime that decides by what machines cost and how they are lost."""

    def inform(self, fleet: FleetFacts) -> None:
        """Take in what is so now, before each look at the progress."""
        ...
