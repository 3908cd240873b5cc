"""A run in the hand of a machine of the storm: `storage.run_lease` step by step, over the very same step functions."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

from windfall.errors import StoreError
from windfall.events import CommitCheckpoint, UploadShard
from windfall.ports import Steps
from windfall.storage import checkpoint_store, restore, run_log, shard_transfer, spool_journal
from windfall.storage.run_lease import check_ownership, until_cancelled
from windfall.storage.run_state import attempted, released
from windfall.storage.store_operations import pause
from windfall.terms import (
    Cause,
    Checkpoint,
    CheckpointRef,
    Chunk,
    Instant,
    Outcome,
    Record,
    RecordKind,
    RunState,
    SaveCosts,
    Seconds,
    Shard,
    WallTime,
)
from windfall.wire.run_layout import shard_prefix

SHIP_LOCK_S = 0.05


@dataclass
class Kept:
    """What a restart of the agent finds on the local disk."""

    head: int
    term: int
    chunks: dict[str, str]
    upload_ids: dict[str, str]


@dataclass
class StoreLease:
    """`ports.RunLease`, each call a step function; all that touches the log comes from one lane, as in the agent."""

    head: Record
    nonce: str
    spool: spool_journal.SpoolJournal
    wall_time: Callable[[], WallTime]
    now: Callable[[], Instant]
    new_nonce: Callable[[], str]
    keep: Callable[[Kept], None]
    chunks: dict[str, str] = field(default_factory=dict)
    upload_ids: dict[str, str] = field(default_factory=dict)
    counter: int = 0
    counts: tuple[int, int, SaveCosts | None] = (0, 0, None)
    shipping: bool = False

    def __post_init__(self) -> None:
        self.counts = (self.head.state.attempts, self.head.state.failures, None)
        # A counter that starts again at 1 would look like a heartbeat that stands still.
        self.counter = int(self.now() * 1000)
        self.save()

    def save(self) -> None:
        self.keep(Kept(self.head.number, self.head.state.term, dict(self.chunks), dict(self.upload_ids)))

    @property
    def state(self) -> RunState:
        return self.head.state

    def restore(self, folder: str) -> Steps[restore.RestoredCheckpoint]:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        return (yield from restore.restore(tuple(reversed(self.state.checkpoints)), folder))

    def upload(self, command: UploadShard, cancelled: Callable[[], bool]) -> Steps[Shard | None]:
        plan = shard_transfer.plan_shard(command.path)
        shard_transfer.check_unmodified(
            plan,
            self.upload_ids.setdefault(f"{command.checkpoint_id}/{command.rank}", command.identity or plan.identity),
        )
        self.save()
        prefix = shard_prefix(self.state.term, self.nonce, command.checkpoint_id, command.rank)
        steps = shard_transfer.upload_shard(plan, prefix, command.rank, already=self.chunks, on_chunk=self.remember)
        return (yield from until_cancelled(steps, cancelled))

    def remember(self, chunk: Chunk) -> None:
        self.chunks[chunk.key] = chunk.digest
        self.save()

    def commit(self, command: CommitCheckpoint) -> Steps[tuple[CheckpointRef, int]]:
        with contextlib.suppress(StoreError):
            yield from self.ship()
        check_ownership(command.checkpoint_id, command.shards, self.state.term, self.nonce)
        checkpoint = Checkpoint(
            command.checkpoint_id,
            command.step,
            command.kind,
            self.state.term,
            command.generation,
            command.shards,
            self.wall_time(),
        )
        attempts, failures, costs = self.counts
        ref, self.head = yield from checkpoint_store.commit(
            self.head,
            checkpoint,
            nonce=self.new_nonce(),
            wall_time=self.wall_time(),
            attempts=attempts,
            failures=failures,
            costs=costs,
        )
        self.chunks, self.upload_ids = {}, {}
        self.save()
        return ref, self.head.number

    def drop_checkpoints(self, refs: tuple[CheckpointRef, ...]) -> Steps[None]:
        self.head = yield from checkpoint_store.drop(
            self.head, refs, nonce=self.new_nonce(), wall_time=self.wall_time()
        )
        self.save()

    def delete(self, refs: tuple[CheckpointRef, ...]) -> Steps[None]:
        yield from checkpoint_store.delete(self.head, refs, grace_s=Seconds(0.0))

    def abandon(self, checkpoint_id: str) -> Steps[int]:
        prefix = shard_prefix(self.state.term, self.nonce, checkpoint_id, 0).removesuffix("0/")
        return (yield from checkpoint_store.abandon(prefix, checkpoint_id))

    def sweep(self) -> Steps[int]:
        return (yield from checkpoint_store.sweep(self.head, grace_s=self.state.lease_s))

    def write_counts(self) -> Steps[None]:
        attempts, failures, _ = self.counts

        def advance(state: RunState) -> RunState:
            return attempted(state, attempts=attempts, failures=failures)

        nonce = self.new_nonce()
        self.head = yield from run_log.append(
            self.head, advance, kind=RecordKind.ATTEMPT, nonce=nonce, wall_time=self.wall_time()
        )
        self.save()

    def release(self, outcome: Outcome, cause: Cause, notice_s: Seconds | None = None) -> Steps[None]:
        wall_time = self.wall_time()
        attempts, failures, costs = self.counts

        def advance(state: RunState) -> RunState:
            return released(
                state,
                outcome=outcome,
                cause=cause,
                wall_time=wall_time,
                attempts=attempts,
                failures=failures,
                costs=costs,
                notice_s=notice_s,
            )

        self.head = yield from run_log.append(
            self.head, advance, kind=RecordKind.RELEASE, nonce=self.new_nonce(), wall_time=wall_time
        )

    def beat(self) -> Steps[None]:
        self.counter += 1
        head = self.head
        yield from run_log.write_heartbeat(head.state.term, self.counter, self.wall_time(), head.number, self.nonce)
        taken_by = yield from run_log.find_takeover(head)
        if taken_by is not None:
            raise run_log.fenced_by(taken_by)

    def ship(self) -> Steps[None]:
        while self.shipping:
            yield from pause(SHIP_LOCK_S)
        self.shipping = True
        try:
            yield from spool_journal.ship(self.spool)
        finally:
            self.shipping = False
