"""Threads for slow work, with a queue each; they deliver the results to the agent's inbox as facts.

Uploads have their own thread, so that a commit, a deletion or a heartbeat never waits for an upload.  One other thread
does everything that appends to the log, in the order of the commands.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from windfall.errors import EXIT_RETRY, Fenced, Misuse, ShardChanged, StoreError, StoreFull, WindfallError
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
from windfall.ports import Clock, RunLease
from windfall.results import ResultStored, StoreResult
from windfall.terms import Bytes, CheckpointRef, Failure, Seconds, Shard

Deliver = Callable[[Fact], None]


class TaskThread:
    """A thread that runs actions one after the other.  It dies with the process and is never joined."""

    def __init__(self, name: str) -> None:
        self._actions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, action: Callable[[], object]) -> None:
        """Queue an action; it reports its own errors."""
        self._actions.put(action)

    def _work(self) -> None:
        while True:
            self._actions.get()()


class ShardUploader(Protocol):
    """The part of `ports.RunLease` that uploads need."""

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Shard | None:
        """Move one rank's shard to the store; return None if the upload was cancelled."""
        ...


class UploadQueue:
    """Uploads shards one after the other; shards of abandoned checkpoints are dropped."""

    def __init__(self, lease: ShardUploader, clock: Clock, deliver: Deliver) -> None:
        self._lease = lease
        self._clock = clock
        self._deliver = deliver
        self._abandoned: set[str] = set()
        self._worker = TaskThread("upload")

    def start(self, command: UploadShard) -> None:
        """Upload a shard and deliver `ShardUploaded` or `ShardFailed`; nothing if it is abandoned meanwhile."""
        self._worker.submit(lambda: self._upload(command))

    def abandon(self, checkpoint_id: str) -> None:
        """Stop uploading a checkpoint's shards at the next chunk."""
        self._abandoned.add(checkpoint_id)

    def _upload(self, command: UploadShard) -> None:
        started = self._clock.now()
        try:
            shard = self._lease.upload(command, lambda: command.checkpoint_id in self._abandoned)
        except Exception as error:
            self._deliver(ShardFailed(command.checkpoint_id, command.rank, _reason(error), failure_of(error)))
            return
        if shard is None:
            return
        size = Bytes(sum(entry.size_bytes for entry in shard.files))
        took = Seconds(self._clock.now() - started)
        self._deliver(ShardUploaded(command.checkpoint_id, command.rank, shard, size, took))


def commit(lease: RunLease, clock: Clock, deliver: Deliver, command: CommitCheckpoint) -> None:
    """Commit a checkpoint and deliver the outcome."""
    started = clock.now()
    try:
        checkpoint, number = lease.commit(command)
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        deliver(CommitFailed(command.checkpoint_id, _reason(error), failure_of(error)))
    else:
        deliver(CheckpointCommitted(checkpoint, number, Seconds(clock.now() - started)))


def store_result(lease: RunLease, clock: Clock, deliver: Deliver, command: StoreResult) -> tuple[CheckpointRef, ...]:
    """Store a result and deliver the outcome; return the checkpoints that it replaces."""
    started = clock.now()
    try:
        result, number, replaced = lease.store_result(command)
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        deliver(CommitFailed(command.checkpoint_id, _reason(error), failure_of(error)))
    else:
        deliver(ResultStored(result, number, Seconds(clock.now() - started)))
        return replaced
    return ()


def best_effort(action: Callable[[], object], deliver: Deliver, log: Callable[[str], None], failure: str) -> bool:
    """Run an optional action; if the store refuses, log a warning and let the run continue.

    Args:
        action: what to do.
        deliver: takes the fact that the run was lost.
        log: takes a message for the user.
        failure: the start of that message, such as "cannot delete old checkpoints".

    Returns:
        Whether the action succeeded.
    """
    try:
        action()
    except Fenced as error:
        deliver(FenceLost(error.record, error.holder))
    except WindfallError as error:
        log(f"{failure}: {error}")
    else:
        return True
    return False


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WindfallError) else f"{type(error).__name__}: {error}"


def failure_of(error: Exception) -> Failure:
    """Classify an error of the store or of the handed-over files by what it means for a retry."""
    if isinstance(error, StoreError) and error.exit_code == EXIT_RETRY:
        return Failure.UNREACHABLE
    kinds = ((ShardChanged, Failure.OVERWRITTEN), (Misuse, Failure.REFUSED), (StoreFull, Failure.FULL))
    return next((failure for kind, failure in kinds if isinstance(error, kind)), Failure.OTHER)
