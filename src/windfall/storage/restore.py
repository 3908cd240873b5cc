"""Restore: the newest checkpoint that is whole, on the local disk, every byte checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from windfall.errors import CheckpointDamaged, Misuse, StoreFull
from windfall.ports import GetRange, Steps
from windfall.storage.manifest import digest_of, from_bytes
from windfall.storage.operations import get, ranges
from windfall.storage.parts import SINGLE
from windfall.terms import Checkpoint, CheckpointRef, FileEntry, Shard

CHUNKS_AT_ONCE = 32
"""How many chunks come side by side; nothing is lost by a larger number but open requests."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored.

    Attributes:
        ref: the point, None if the run has none.
        point: its manifest.
        skipped: one sentence for each newer point that was damaged.
    """

    ref: CheckpointRef | None = None
    point: Checkpoint | None = None
    skipped: tuple[str, ...] = ()


def restore(refs: Iterable[CheckpointRef], folder: str) -> Steps[Restored]:
    """Bring the newest whole point to `folder/<rank>/<name>`; the store is only read.

    The folder appears under its name when all of it is there and checked; until then it is `<folder>.restoring`.

    Args:
        refs: the live points, newest first.
        folder: where to; must not exist, or be empty.

    Raises:
        Misuse: the folder has something in it.
        StoreFull: the local disk is too small.
        CheckpointDamaged: there are points, and none is whole.
        NewerFormat: a newer Windfall wrote the manifest.
    """
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise Misuse(f"{folder} already has something in it: restore to a folder that is empty or does not exist")
    skipped: list[str] = []
    for ref in refs:
        try:
            point = yield from _restore_one(ref, folder)
        except CheckpointDamaged as damage:
            skipped.append(str(damage))
        else:
            return Restored(ref, point, tuple(skipped))
    if skipped:
        raise CheckpointDamaged(f"none of the run's {len(skipped)} checkpoints is whole; of the newest: {skipped[0]}")
    return Restored()


def read_manifest(ref: CheckpointRef) -> Steps[Checkpoint]:
    """Return a point's manifest, checked against the log's digest of it.

    Raises:
        CheckpointDamaged: it is missing, or not the one that was committed.
        NewerFormat: a newer Windfall wrote it.
    """
    data = yield from get(ref.manifest_key)
    if data is None:
        raise CheckpointDamaged(f"point {ref.checkpoint_id} (step {ref.step}) has lost its manifest")
    if digest_of(data) != ref.manifest_digest:
        raise CheckpointDamaged(f"point {ref.checkpoint_id} (step {ref.step}) has another manifest than was committed")
    point = from_bytes(data, ref.manifest_key)
    if (point.checkpoint_id, point.step) != (ref.checkpoint_id, ref.step):
        raise CheckpointDamaged(f"point {ref.checkpoint_id} (step {ref.step}) has the manifest of another point")
    return point


def _restore_one(ref: CheckpointRef, folder: str) -> Steps[Checkpoint]:
    point = yield from read_manifest(ref)
    draft = f"{folder}.restoring"
    if os.path.lexists(draft):
        shutil.rmtree(draft)
    os.makedirs(draft)
    try:
        _check_space(draft, point)
        _lay_out(draft, point)
        waiting = list(_chunk_ops(draft, point))
        for first in range(0, len(waiting), CHUNKS_AT_ONCE):
            yield from _fetch(ref, waiting[first : first + CHUNKS_AT_ONCE])
        _set_modes(draft, point)
    except Exception:
        shutil.rmtree(draft)
        raise
    if os.path.isdir(folder):
        os.rmdir(folder)
    os.rename(draft, folder)
    return point


def _fetch(ref: CheckpointRef, batch: list[tuple[GetRange, str]]) -> Steps[None]:
    digests = yield from ranges(tuple(op for op, _ in batch))
    for (op, expected), digest in zip(batch, digests, strict=True):
        if digest is None:
            raise CheckpointDamaged(f"point {ref.checkpoint_id} (step {ref.step}) has lost the bytes {op.key}")
        if digest != expected:
            raise CheckpointDamaged(
                f"point {ref.checkpoint_id} (step {ref.step}) has other bytes in {op.key} than were saved"
            )


def _check_space(draft: str, point: Checkpoint) -> None:
    free = shutil.disk_usage(draft).free
    if point.size_bytes > free:
        raise StoreFull(
            f"point {point.checkpoint_id} needs {point.size_bytes / 1e9:.2f} GB, and {draft} has {free / 1e9:.2f} GB free: "
            "free some space or start elsewhere"
        )


def _target(draft: str, shard: Shard, entry: FileEntry) -> str:
    root = os.path.join(draft, str(shard.rank), shard.name)
    return root if entry.path == SINGLE else os.path.join(root, entry.path)


def _lay_out(draft: str, point: Checkpoint) -> None:
    """Make every folder, and every file at its full length."""
    for shard in point.shards:
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


def _chunk_ops(draft: str, point: Checkpoint) -> Iterator[tuple[GetRange, str]]:
    for shard in point.shards:
        for entry in shard.files:
            offset = 0
            for chunk in entry.chunks:
                target = _target(draft, shard, entry)
                yield GetRange(chunk.key, target, offset, chunk.size_bytes), chunk.digest
                offset += chunk.size_bytes


def _set_modes(draft: str, point: Checkpoint) -> None:
    for shard in point.shards:
        for entry in shard.files:
            # A folder stays writable for its owner, or the restored files could not be removed again.
            extra = 0o700 if entry.path.endswith("/") else 0
            os.chmod(_target(draft, shard, entry), (entry.mode & 0o777) | extra)
