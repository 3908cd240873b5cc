"""A run that begins with a checkpoint of another run: the point is copied, so that everything of a run lies under its URL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from windfall.errors import CheckpointDamaged, Misuse
from windfall.ports import Clock, ObjectStore
from windfall.storage import executor, log, manifest
from windfall.storage.operations import create
from windfall.storage.restore import read_manifest
from windfall.storage.state import to_bytes
from windfall.storage.taking import open_marker
from windfall.terms import CheckpointRef, Outcome, Record, RecordKind, RunState, Seconds, Term
from windfall.wire.layout import manifest_key, record_key

_LEASE_S = Seconds(30.0)
"""Of a state that nobody holds: it is never waited for."""


def seed(source: ObjectStore, target: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> CheckpointRef:
    """Make the newest whole point of one run the first of another, which must be new.

    Args:
        source: the earlier run.
        target: the new run.
        clock: of this machine.
        new_nonce: gives a fresh random name at each call.

    Returns:
        The point as the new run's log names it.

    Raises:
        Misuse: the earlier run is none, or has no whole point; the new one is not new.
    """
    head = executor.run(log.read_head(), source, clock)
    if head is None:
        raise Misuse(f"checkpoint.from: there is no run at {source.url}")
    for ref in reversed(head.state.checkpoints):
        try:
            copied = _copy(ref, source, target, clock)
        except CheckpointDamaged:
            continue
        return _begin(copied, target, clock, new_nonce)
    raise Misuse(f"checkpoint.from: the run at {source.url} has no whole checkpoint")


def _copy(ref: CheckpointRef, source: ObjectStore, target: ObjectStore, clock: Clock) -> CheckpointRef:
    """Copy a point's bytes and its manifest, each verified on the way.

    Raises:
        CheckpointDamaged: something of it is missing, or is not what its manifest says.
    """
    point = executor.run(read_manifest(ref), source, clock)
    for shard in point.shards:
        for entry in shard.files:
            for chunk in entry.chunks:
                data = source.get(chunk.key)
                if data is None or len(data) != chunk.size_bytes or manifest.digest_of(data) != chunk.digest:
                    raise CheckpointDamaged(f"{chunk.key} of the point at step {point.step} is damaged")
                target.put(chunk.key, data)
    first = dataclasses.replace(point, term=Term(1))
    data = manifest.to_bytes(first)
    target.put(manifest_key(point.checkpoint_id), data)
    return dataclasses.replace(ref, term=Term(1), manifest_digest=manifest.digest_of(data))


def _begin(ref: CheckpointRef, target: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> CheckpointRef:
    run_id = executor.run(open_marker(new_nonce), target, clock)
    wall = clock.wall()
    state = RunState(run_id, Term(1), Outcome.WAITING, None, wall, _LEASE_S, checkpoints=(ref,))
    # The one log that does not begin with a machine's taking the run: nobody has held it yet.
    record = Record(1, new_nonce(), RecordKind.COMMIT, wall, state)
    if not executor.run(create(record_key(1), to_bytes(record)), target, clock):
        raise Misuse(f"checkpoint.from: the run at {target.url} has begun already")
    return ref
