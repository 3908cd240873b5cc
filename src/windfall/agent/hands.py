"""Threads that do what takes long, one queue each, and put what came of it into the agent's inbox as facts.

Uploads have a thread of their own, so that a commit, a deletion or a heartbeat never waits behind bytes; everything
that appends to the log is done by one other thread in the order of the commands.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from windfall.errors import EXIT_AGAIN, Fenced, Misuse, Overwritten, StoreError, StoreFull, WindfallError
from windfall.events import (
    CheckpointCommitted,
    CommitCheckpoint,
    CommitFailed,
    Fact,
    FenceLost,
    ShardFailed,
    ShardUploaded,
    UploadShard,
)
from windfall.ports import Clock, RunHold
from windfall.results import ResultStored, StoreResult
from windfall.terms import Bytes, CheckpointRef, Failure, Seconds, Shard

Deliver = Callable[[Fact], None]


class Worker:
    """A thread that carries out actions one after the other.  It dies with the process and is never joined."""

    def __init__(self, name: str) -> None:
        self._actions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def do(self, action: Callable[[], object]) -> None:
        """Queue an action; it reports its own errors."""
        self._actions.put(action)

    def _work(self) -> None:
        while True:
            self._actions.get()()


class Uploader(Protocol):
    """The one call of a hold that uploads need (`ports.RunHold`)."""

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's part to the store; None if it was cancelled."""
        ...


class Uploads:
    """Which points are being uploaded, and which of them nobody wants any more."""

    def __init__(self, hold: Uploader, clock: Clock, deliver: Deliver) -> None:
        self._hold = hold
        self._clock = clock
        self._deliver = deliver
        self._abandoned: set[str] = set()
        self._worker = Worker("upload")

    def start(self, command: UploadShard) -> None:
        """Upload a part and deliver `ShardUploaded` or `ShardFailed`; nothing if it is abandoned meanwhile."""
        self._worker.do(lambda: self._upload(command))

    def abandon(self, checkpoint_id: str) -> None:
        """Stop uploading a point's parts at the next chunk."""
        self._abandoned.add(checkpoint_id)

    def _upload(self, command: UploadShard) -> None:
        began = self._clock.now()
        try:
            shard = self._hold.upload(command, lambda: command.checkpoint_id in self._abandoned)
        except Exception as error:
            self._deliver(ShardFailed(command.checkpoint_id, command.rank, _reason(error), failure_of(error)))
            return
        if shard is None:
            return
        size = Bytes(sum(entry.size_bytes for entry in shard.files))
        took = Seconds(self._clock.now() - began)
        self._deliver(ShardUploaded(command.checkpoint_id, command.rank, shard, size, took))


def commit(hold: RunHold, clock: Clock, deliver: Deliver, command: CommitCheckpoint) -> None:
    """Commit a point and deliver what came of it."""
    began = clock.now()
    try:
        point, number = hold.commit(command)
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        deliver(CommitFailed(command.checkpoint_id, _reason(error), failure_of(error)))
    else:
        deliver(CheckpointCommitted(point, number, Seconds(clock.now() - began)))


def store_result(hold: RunHold, clock: Clock, deliver: Deliver, command: StoreResult) -> tuple[CheckpointRef, ...]:
    """Store a result and deliver what came of it; return what it replaces."""
    began = clock.now()
    try:
        result, number, replaced = hold.store_result(command)
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        deliver(CommitFailed(command.checkpoint_id, _reason(error), failure_of(error)))
    else:
        deliver(ResultStored(result, number, Seconds(clock.now() - began)))
        return replaced
    return ()


def tidy(action: Callable[[], object], deliver: Deliver, tell: Callable[[str], None], what: str) -> bool:
    """Do what the run can do without; a store that refuses costs no work: the user is told and the run goes on.

    Args:
        action: what to do.
        deliver: takes the fact that the run was lost.
        tell: takes a sentence for the user.
        what: what could not be done, as the beginning of that sentence.


    Returns:
        Whether it was done.
    """
    try:
        action()
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        tell(f"{what}: {error}")
    else:
        return True
    return False


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WindfallError) else f"{type(error).__name__}: {error}"


def failure_of(error: Exception) -> Failure:
    """Return what an error of a store, or of what was handed over, means for another try."""
    if isinstance(error, StoreError) and error.exit_code == EXIT_AGAIN:
        return Failure.AWAY
    kinds = ((Overwritten, Failure.OVERWRITTEN), (Misuse, Failure.REFUSED), (StoreFull, Failure.FULL))
    return next((failure for kind, failure in kinds if isinstance(error, kind)), Failure.OTHER)
