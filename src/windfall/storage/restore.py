"""Restores the newest intact checkpoint to the local disk, with every byte verified."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator

from windfall.errors import CheckpointDamaged, Misuse, StoreFull
from windfall.ports import GetRange, Steps
from windfall.storage.manifest import digest_of, from_bytes
from windfall.storage.shard_transfer import SINGLE
from windfall.storage.store_operations import get, ranges
from windfall.structs import Struct
from windfall.terms import Checkpoint, CheckpointRef, FileEntry, Shard

CHUNKS_AT_ONCE = 32
"""Number of chunks fetched in parallel."""


class RestoredCheckpoint(Struct, frozen=True):
    """A restored checkpoint.

    Attributes:
        ref: the checkpoint, None if the run has none.
        checkpoint: its manifest.
        skipped: one sentence for each newer checkpoint that is damaged.
    """

    ref: CheckpointRef | None = None
    checkpoint: Checkpoint | None = None
    skipped: tuple[str, ...] = ()


def restore(refs: Iterable[CheckpointRef], folder: str) -> Steps[RestoredCheckpoint]:
    """Restore the newest intact checkpoint to `folder/<rank>/<name>`; the store is only read.

    The folder gets its name once it is complete and verified; until then it is `<folder>.restoring`.

    Args:
        refs: the live checkpoints, newest first.
        folder: the target; must not exist, or must be empty.

    Raises:
        Misuse: the folder is not empty.
        StoreFull: the local disk is too small.
        CheckpointDamaged: all checkpoints are damaged.
        NewerFormat: the manifest was written by a newer Windfall.
    """
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise Misuse(f"{folder} is not empty: restore to a folder that is empty or does not exist")
    skipped: list[str] = []
    for ref in refs:
        try:
            checkpoint = yield from _restore_one(ref, folder)
        except CheckpointDamaged as damage:
            skipped.append(str(damage))
        else:
            return RestoredCheckpoint(ref, checkpoint, tuple(skipped))
    if skipped:
        raise CheckpointDamaged(f"all {len(skipped)} checkpoints of the run are damaged; the newest: {skipped[0]}")
    return RestoredCheckpoint()


def read_manifest(ref: CheckpointRef) -> Steps[Checkpoint]:
    """Return a checkpoint's manifest, checked against its digest in the log.

    Raises:
        CheckpointDamaged: it is missing, or not the one that was committed.
        NewerFormat: it was written by a newer Windfall.
    """
    data = yield from get(ref.manifest_key)
    if data is None:
        raise CheckpointDamaged(f"checkpoint {ref.checkpoint_id} (step {ref.step}): its manifest is missing")
    if digest_of(data) != ref.manifest_digest:
        raise CheckpointDamaged(
            f"checkpoint {ref.checkpoint_id} (step {ref.step}): its manifest has changed since the commit"
        )
    checkpoint = from_bytes(data, ref.manifest_key)
    if (checkpoint.checkpoint_id, checkpoint.step) != (ref.checkpoint_id, ref.step):
        raise CheckpointDamaged(
            f"checkpoint {ref.checkpoint_id} (step {ref.step}) has the manifest of another checkpoint"
        )
    return checkpoint


def _restore_one(ref: CheckpointRef, folder: str) -> Steps[Checkpoint]:
    checkpoint = yield from read_manifest(ref)
    draft = f"{folder}.restoring"
    if os.path.lexists(draft):
        shutil.rmtree(draft)
    os.makedirs(draft)
    try:
        _check_space(draft, checkpoint)
        _lay_out(draft, checkpoint)
        waiting = list(_chunk_ops(draft, checkpoint))
        for first in range(0, len(waiting), CHUNKS_AT_ONCE):
            yield from _fetch(ref, waiting[first : first + CHUNKS_AT_ONCE])
        _set_modes(draft, checkpoint)
    except Exception:
        shutil.rmtree(draft)
        raise
    if os.path.isdir(folder):
        os.rmdir(folder)
    os.rename(draft, folder)
    return checkpoint


def _fetch(ref: CheckpointRef, batch: list[tuple[GetRange, str]]) -> Steps[None]:
    digests = yield from ranges(tuple(op for op, _ in batch))
    for (op, expected), digest in zip(batch, digests, strict=True):
        if digest is None:
            raise CheckpointDamaged(f"checkpoint {ref.checkpoint_id} (step {ref.step}): {op.key} is missing")
        if digest != expected:
            raise CheckpointDamaged(
                f"checkpoint {ref.checkpoint_id} (step {ref.step}): the bytes of {op.key} have changed"
            )


def _check_space(draft: str, checkpoint: Checkpoint) -> None:
    free = shutil.disk_usage(draft).free
    if checkpoint.size_bytes > free:
        raise StoreFull(
            f"checkpoint {checkpoint.checkpoint_id} needs {checkpoint.size_bytes / 1e9:.2f} GB, "
            f"but {draft} has {free / 1e9:.2f} GB free: free some space or start elsewhere"
        )


def _target(draft: str, shard: Shard, entry: FileEntry) -> str:
    root = os.path.join(draft, str(shard.rank), shard.name)
    return root if entry.path == SINGLE else os.path.join(root, entry.path)


def _lay_out(draft: str, checkpoint: Checkpoint) -> None:
    """Create all folders, and all files with their full length."""
    for shard in checkpoint.shards:
        os.makedirs(os.path.join(draft, str(shard.rank)), exist_ok=True)
        if not any(entry.path == SINGLE for entry in shard.files):
            os.makedirs(os.path.join(draft, str(shard.rank), shard.name), exist_ok=True)
        for entry in shard.files:
            target = _target(draft, shard, entry)
            if entry.path.endswith("/"):
                os.makedirs(target, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as file:
                file.truncate(entry.size_bytes)


def _chunk_ops(draft: str, checkpoint: Checkpoint) -> Iterator[tuple[GetRange, str]]:
    for shard in checkpoint.shards:
        for entry in shard.files:
            offset = 0
            for chunk in entry.chunks:
                target = _target(draft, shard, entry)
                yield GetRange(chunk.key, target, offset, chunk.size_bytes), chunk.digest
                offset += chunk.size_bytes


def _set_modes(draft: str, checkpoint: Checkpoint) -> None:
    for shard in checkpoint.shards:
        for entry in shard.files:
            # A folder stays writable for its owner, so that the restored files can be removed.
            extra = 0o700 if entry.path.endswith("/") else 0
            os.chmod(_target(draft, shard, entry), (entry.mode & 0o777) | extra)
