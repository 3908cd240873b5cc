"""Bugs that a run must not have, planted one at a time to see that the whole storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING
from unittest.mock import patch

from tests.storms import planted
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_store import digest
from windfall import events as ev
from windfall.core import checkpoints, worker
from windfall.core import checkpoints as core_points
from windfall.core.worker_state import WorkerTurn
from windfall.errors import CheckpointDamaged
from windfall.ports import GetRange, PutRange, Steps
from windfall.storage import checkpoint_store, restore, run_log, run_state, shard_transfer
from windfall.storage.store_operations import ranges
from windfall.terms import Checkpoint, CheckpointRef, Chunk, FileEntry, Record, Shard

if TYPE_CHECKING:
    from tests.storms.whole import Whole

Patch = tuple[object, str, object]


def _manifest_before_parts() -> tuple[Patch, ...]:
    """The part is described from the local disk and committed; its bytes follow."""
    promised: dict[Shard, tuple[PutRange, ...]] = {}
    real_commit = checkpoint_store.commit

    def upload_shard(plan: shard_transfer.ShardPlan, prefix: str, rank: int, **_: object) -> Steps[Shard]:
        yield from run_log.pause(0.0)
        entries = []
        for index, file in enumerate(plan.files):
            chunks = []
            for op in shard_transfer._file_ops(plan, index, prefix):
                with open(op.path, "rb") as source:
                    source.seek(op.offset)
                    chunks.append(Chunk(op.key, op.size_bytes, digest(source.read(op.size_bytes))))
            entries.append(FileEntry(file.path, file.mode, tuple(chunks)))
        shard = Shard(rank, plan.name, tuple(entries))
        promised[shard] = tuple(shard_transfer._chunk_ops(plan, prefix))
        return shard

    def commit(head: Record, checkpoint: Checkpoint, **named: object) -> Steps[tuple[CheckpointRef, Record]]:
        done = yield from real_commit(head, checkpoint, **named)  # type: ignore[arg-type]
        for shard in checkpoint.shards:
            yield from ranges(promised.get(shard, ()))
        return done

    return (shard_transfer, "upload_shard", upload_shard), (checkpoint_store, "commit", commit)


def _record_before_manifest() -> tuple[Patch, ...]:
    late = planted._commit(manifest_first=False)

    def commit(head: Record, checkpoint: Checkpoint, *, nonce: str, wall_time: float, **_: object) -> Steps[object]:
        return (yield from late(head, checkpoint, nonce=nonce, wall_time=wall_time))

    return ((checkpoint_store, "commit", commit),)


def _delete_before_drop() -> tuple[Patch, ...]:
    return (checkpoint_store, "drop", planted._drop_nothing), (
        checkpoint_store,
        "delete",
        planted._delete_without_record,
    )


def _digest_not_verified() -> tuple[Patch, ...]:
    def fetch(ref: CheckpointRef, batch: list[tuple[GetRange, str]]) -> Steps[None]:
        if None in (yield from ranges(tuple(op for op, _ in batch))):
            raise CheckpointDamaged(ref.checkpoint_id)

    return ((restore, "_fetch", fetch),)


def _newest_without_checking() -> tuple[Patch, ...]:
    def fetch(ref: CheckpointRef, batch: list[tuple[GetRange, str]]) -> Steps[None]:
        del ref
        yield from ranges(tuple(op for op, _ in batch))

    return ((restore, "_fetch", fetch),)


def _no_falling_back() -> tuple[Patch, ...]:
    real = restore.restore
    return ((restore, "restore", lambda refs, folder: real(tuple(refs)[:1], folder)),)


def _handler(kind: type[ev.Fact], handler: Callable[[WorkerTurn, ev.Fact], None]) -> Patch:
    return worker, "_HANDLERS", MappingProxyType({**worker._HANDLERS, kind: handler})


def _one_rank_missing() -> tuple[Patch, ...]:
    def settle(turn: WorkerTurn) -> None:
        for checkpoint in turn.state.checkpoints:
            if not checkpoint.complete:
                core_points._complete(turn, checkpoint)
        core_points._start_next(turn)

    return (core_points, "_absent_agreed", lambda turn, checkpoint: True), (core_points, "settle", settle)


def _uploads_forgotten() -> tuple[Patch, ...]:
    def resumed(turn: WorkerTurn, fact: ev.Fact) -> None:
        assert isinstance(fact, ev.AgentResumed)
        worker._agent_resumed(turn, fact)
        turn.commands = [
            order for order in turn.commands if not isinstance(order, ev.UploadShard | ev.CommitCheckpoint)
        ]

    return (_handler(ev.AgentResumed, resumed),)


def _retention_keeps_one() -> tuple[Patch, ...]:
    kept = ((checkpoint_store, "INTACT_CHECKPOINTS_MIN", 1), (run_state, "INTACT_CHECKPOINTS_MIN", 1))
    return (checkpoints, "INTACT_MIN", 1), *kept


BUGS: dict[str, Callable[[], tuple[Patch, ...]]] = {
    "manifest before parts": _manifest_before_parts,
    "record before manifest": _record_before_manifest,
    "stale holder trusted": lambda: ((run_log, "_same_term", lambda mine, there: True),),
    "fsync of the file left out": lambda: ((SimulatedDisk, "fsync", lambda disk, handle: None),),
    "fsync of the folder left out": lambda: ((SimulatedDisk, "fsync_dir", lambda disk, path: None),),
    "torn part not noticed": lambda: ((shard_transfer, "_check_unchanged", lambda plan: None),),
    "digest not verified on restore": _digest_not_verified,
    "newest restored without checking": _newest_without_checking,
    "no falling back to an older point": _no_falling_back,
    "lease not waited": lambda: ((run_log, "_heartbeat_unchanged", lambda still_s, lease_s: True),),
    "deleted before a record dropped it": _delete_before_drop,
    "sweep takes live points": lambda: ((checkpoint_store, "_stale_shard", lambda key, term, live: True),),
    "retention keeps one": _retention_keeps_one,
    "resumed agent forgets uploads": _uploads_forgotten,
    "part changed between two tries": lambda: ((shard_transfer, "check_unmodified", lambda plan, first: None),),
    "commit without one rank": _one_rank_missing,
}


@contextmanager
def bug(name: str, world: Whole) -> Iterator[None]:
    """Plant one bug."""
    del world
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]():
            stack.enter_context(patch.object(target, attribute, wrong))
        yield
