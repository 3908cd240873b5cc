"""Starts a run from another run's checkpoint, which is copied so that all objects of a run are under its URL."""

from __future__ import annotations

from collections.abc import Callable

from windfall.errors import CheckpointDamaged, Misuse
from windfall.ports import Clock, ObjectStore
from windfall.storage import manifest, run_log, store_operations
from windfall.storage.acquire_run import open_marker
from windfall.storage.restore import read_manifest
from windfall.storage.run_state import to_bytes
from windfall.storage.store_operations import create
from windfall.structs import replace
from windfall.terms import CheckpointRef, Outcome, Record, RecordKind, RunState, Seconds, Term
from windfall.wire.run_layout import manifest_key, record_key

_LEASE_S = Seconds(30.0)
"""Lease of a state without a holder; never waited for [s]."""


def clone_checkpoint(
    source: ObjectStore, target: ObjectStore, clock: Clock, new_nonce: Callable[[], str]
) -> CheckpointRef:
    """Copy the newest intact checkpoint of a run to a new run, as its first.

    Args:
        source: the earlier run.
        target: the new run.
        clock: of this machine.
        new_nonce: returns a new random name at each call.

    Returns:
        The checkpoint, as recorded in the new run's log.

    Raises:
        Misuse: the earlier run does not exist or has no intact checkpoint, or the new run already exists.
    """
    head = store_operations.run(run_log.read_head(), source, clock)
    if head is None:
        raise Misuse(f"checkpoint.from: there is no run at {source.url}")
    for ref in reversed(head.state.checkpoints):
        try:
            copied = _copy(ref, source, target, clock)
        except CheckpointDamaged:
            continue
        return _start_run(copied, target, clock, new_nonce)
    raise Misuse(f"checkpoint.from: the run at {source.url} has no intact checkpoint")


def _copy(ref: CheckpointRef, source: ObjectStore, target: ObjectStore, clock: Clock) -> CheckpointRef:
    """Copy a checkpoint's bytes and its manifest, and verify both.

    Raises:
        CheckpointDamaged: bytes are missing or differ from the manifest.
    """
    checkpoint = store_operations.run(read_manifest(ref), source, clock)
    for shard in checkpoint.shards:
        for entry in shard.files:
            for chunk in entry.chunks:
                data = source.get(chunk.key)
                if data is None or len(data) != chunk.size_bytes or manifest.digest_of(data) != chunk.digest:
                    raise CheckpointDamaged(f"{chunk.key} of the checkpoint at step {checkpoint.step} is damaged")
                target.put(chunk.key, data)
    first = replace(checkpoint, term=Term(1))
    data = manifest.to_bytes(first)
    target.put(manifest_key(checkpoint.checkpoint_id), data)
    return replace(ref, term=Term(1), manifest_digest=manifest.digest_of(data))


def _start_run(ref: CheckpointRef, target: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> CheckpointRef:
    run_id = store_operations.run(open_marker(new_nonce), target, clock)
    wall_time = clock.wall_time()
    state = RunState(run_id, Term(1), Outcome.WAITING, None, wall_time, _LEASE_S, checkpoints=(ref,))
    # Only this log does not start with an acquire record: no machine has held the run yet.
    record = Record(1, new_nonce(), RecordKind.COMMIT, wall_time, state)
    if not store_operations.run(create(record_key(1), to_bytes(record)), target, clock):
        raise Misuse(f"checkpoint.from: the run at {target.url} already exists")
    return ref
