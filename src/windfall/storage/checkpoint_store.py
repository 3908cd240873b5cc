"""Checkpoints in the store: committed by a record, dropped by a record, then deleted.

The log fences both.  A checkpoint exists once its record does; its manifest and bytes are durable before that.  Bytes may
be deleted once a record has dropped the checkpoint: no later state can name it again, so even a machine that was fenced in
the meantime deletes nothing that is needed.  The pause before a deletion is for readers that are still copying.
"""

from __future__ import annotations

from collections.abc import Sequence

from windfall.errors import CheckpointDamaged, StoreError
from windfall.ports import Delete, Steps
from windfall.storage import manifest
from windfall.storage.restore import read_manifest
from windfall.storage.run_log import append, refresh
from windfall.storage.run_state import INTACT_CHECKPOINTS_MIN, committed, dropped, with_result
from windfall.storage.store_operations import create, delete_all, get, keys_under, pause
from windfall.structs import replace
from windfall.terms import (
    Checkpoint,
    CheckpointRef,
    Record,
    RecordKind,
    Result,
    RunState,
    SaveCosts,
    Seconds,
    WallTime,
)
from windfall.wire.run_layout import CHECKPOINTS, SHARDS, manifest_key


def commit(
    head: Record,
    checkpoint: Checkpoint,
    *,
    nonce: str,
    wall_time: WallTime,
    attempts: int | None = None,
    failures: int | None = None,
    costs: SaveCosts | None = None,
) -> Steps[tuple[CheckpointRef, Record]]:
    """Commit a checkpoint: write its manifest, then the record.

    May be repeated after any error, also by a restarted agent: an existing manifest is kept if it is the same.

    Args:
        head: the newest record this holder knows.
        checkpoint: the manifest; all of its bytes are durable.
        nonce: random, for this commit.
        wall_time: this machine's wall clock.
        attempts: number of attempts; None if unchanged.
        failures: number of the script's own failures; None if unchanged.
        costs: current save costs; None if unknown.

    Returns:
        The checkpoint, as recorded in the log, and the newest record.

    Raises:
        Fenced: another machine acquired the run.
        StoreError: a different manifest exists for this checkpoint.
    """
    assert checkpoint.term == head.state.term, "a holder commits only checkpoints of its own term"
    ref = yield from _described(head, checkpoint, wall_time)

    def advance(state: RunState) -> RunState:
        return committed(state, ref, attempts=attempts, failures=failures, costs=costs)

    record = yield from append(head, advance, kind=RecordKind.COMMIT, nonce=nonce, wall_time=wall_time)
    live = [known for known in record.state.checkpoints if known.checkpoint_id == ref.checkpoint_id]
    assert len(live) == 1, "the record that commits a checkpoint names it"
    return live[0], record


def store_result(
    head: Record, name: str, checkpoint: Checkpoint, *, nonce: str, wall_time: WallTime
) -> Steps[tuple[Result, Record, tuple[CheckpointRef, ...]]]:
    """Store a result: write its manifest, then the record.  May be repeated after any error, like a commit.

    Args:
        head: the newest record this holder knows.
        name: name of the result.
        checkpoint: its manifest, with one shard; all of its bytes are durable.
        nonce: random, for this record.
        wall_time: this machine's wall clock.

    Returns:
        The result, as recorded in the log, the newest record, and the results it replaces, whose bytes may be deleted.

    Raises:
        Fenced: another machine acquired the run.
        StoreError: a different manifest exists for this result.
    """
    assert checkpoint.term == head.state.term, "a holder stores only results of its own term"
    result = Result(name, checkpoint.shards[0].rank, (yield from _described(head, checkpoint, wall_time)))
    replaced: list[CheckpointRef] = []

    def advance(state: RunState) -> RunState:
        after = with_result(state, result)
        kept = {known.stored.checkpoint_id for known in after.results}
        replaced[:] = [known.stored for known in state.results if known.stored.checkpoint_id not in kept]
        return after

    record = yield from append(head, advance, kind=RecordKind.RESULT, nonce=nonce, wall_time=wall_time)
    (known,) = [one for one in record.state.results if one.stored.checkpoint_id == checkpoint.checkpoint_id]
    return known, record, tuple(replaced)


def _described(head: Record, checkpoint: Checkpoint, wall_time: WallTime) -> Steps[CheckpointRef]:
    """Write a manifest; return its reference for the log."""
    key = manifest_key(checkpoint.checkpoint_id)
    data = manifest.to_bytes(checkpoint)
    if not (yield from create(key, data)):
        data = yield from _earlier(head, key, checkpoint)
    return CheckpointRef(
        checkpoint_id=checkpoint.checkpoint_id,
        step=checkpoint.step,
        kind=checkpoint.kind,
        term=checkpoint.term,
        generation=checkpoint.generation,
        size_bytes=checkpoint.size_bytes,
        manifest_key=key,
        manifest_digest=manifest.digest_of(data),
        committed_at=wall_time,
    )


def _earlier(head: Record, key: str, checkpoint: Checkpoint) -> Steps[bytes]:
    """Return the manifest written by an earlier attempt of this commit."""
    data = yield from get(key)
    if data is None:
        # A successor may sweep what a fenced holder left uncommitted, even between the two reads.
        yield from refresh(head)
        raise StoreError(
            f"the store reports that {key} exists but does not return it: check what else writes to this location"
        )
    there = manifest.from_bytes(data, key)
    if replace(there, created_at=checkpoint.created_at) != checkpoint:
        raise StoreError(f"{key} already describes another checkpoint: save again under a new name")
    return data


def drop(head: Record, refs: Sequence[CheckpointRef], *, nonce: str, wall_time: WallTime) -> Steps[Record]:
    """Drop checkpoints, by a record; their bytes are kept until `delete`.

    Raises:
        Fenced: another machine acquired the run.
        CheckpointDamaged: fewer than two intact checkpoints would remain; nothing was dropped.
    """
    newest = yield from refresh(head)
    ids = {ref.checkpoint_id for ref in refs}
    yield from _check_intact([ref for ref in newest.state.checkpoints if ref.checkpoint_id not in ids])

    def advance(state: RunState) -> RunState:
        return dropped(state, ids)

    return (yield from append(newest, advance, kind=RecordKind.DROP, nonce=nonce, wall_time=wall_time))


def droppable_ids(head: Record, refs: Sequence[CheckpointRef]) -> Steps[frozenset[str]]:
    """Return the ids of checkpoints that may be dropped: all of `refs`, or none if fewer than two intact ones would remain."""
    ids = frozenset(ref.checkpoint_id for ref in refs)
    try:
        yield from _check_intact([ref for ref in head.state.checkpoints if ref.checkpoint_id not in ids])
    except CheckpointDamaged:
        return frozenset()
    return ids


def _check_intact(staying: list[CheckpointRef]) -> Steps[None]:
    whole = 0
    for ref in reversed(staying):
        try:
            yield from read_manifest(ref)
        except CheckpointDamaged:
            continue
        whole += 1
        if whole == INTACT_CHECKPOINTS_MIN:
            return
    raise CheckpointDamaged(
        f"only {whole} of the remaining checkpoints would be intact: nothing is deleted until there are "
        f"{INTACT_CHECKPOINTS_MIN}"
    )


def delete(head: Record, refs: Sequence[CheckpointRef], *, grace_s: Seconds) -> Steps[None]:
    """Delete the bytes of dropped checkpoints: each manifest first, then the objects it names.

    After a crash, `sweep` of a later term deletes the rest.

    Args:
        head: the newest record this holder knows.
        refs: checkpoints dropped by `drop`.
        grace_s: how long to wait for readers first (one lease) [s].

    Raises:
        Fenced: another machine acquired the run.
    """
    yield from pause(grace_s)
    newest = yield from refresh(head)
    live = _named(newest.state)
    for ref in refs:
        assert ref.checkpoint_id not in live, "only dropped checkpoints are deleted"
        try:
            checkpoint = yield from read_manifest(ref)
        except CheckpointDamaged:
            continue
        yield Delete(ref.manifest_key)
        yield from delete_all(_keys(checkpoint))


def _named(state: RunState) -> set[str]:
    """Return the ids of all checkpoints and results whose bytes are kept."""
    return {ref.checkpoint_id for ref in state.checkpoints} | {one.stored.checkpoint_id for one in state.results}


def _keys(checkpoint: Checkpoint) -> list[str]:
    return [chunk.key for shard in checkpoint.shards for entry in shard.files for chunk in entry.chunks]


def abandon(prefix: str, checkpoint_id: str) -> Steps[int]:
    """Delete what was uploaded of an uncommitted checkpoint of the current term; return the number of objects.

    Once its manifest exists, a commit may be in progress or its reply lost: then everything is left to a later `sweep`.

    Args:
        prefix: the folder of all its shards (`run_layout.shard_prefix` without the rank).
        checkpoint_id: id of the checkpoint.
    """
    if (yield from get(manifest_key(checkpoint_id))) is not None:
        return 0
    keys = yield from keys_under(prefix)
    yield from delete_all(keys)
    return len(keys)


def sweep(head: Record, *, grace_s: Seconds) -> Steps[int]:
    """Delete what earlier terms left behind: bytes and manifests of no live checkpoint.  Return the number of objects.

    An earlier term can commit nothing more, so objects that no live checkpoint of the newest record refers to remain
    unused forever.  Objects of the current term, of a newer one, or with a name of another form are not touched.

    Args:
        head: the newest record this holder knows.
        grace_s: how long to wait for readers first (one lease) [s].

    Raises:
        Fenced: another machine acquired the run.
    """
    live = _named(head.state)
    manifests = [key for key in (yield from keys_under(CHECKPOINTS)) if _stale_manifest(key, head.state.term, live)]
    shards = [key for key in (yield from keys_under(SHARDS)) if _stale_shard(key, head.state.term, live)]
    if not manifests and not shards:
        return 0
    yield from pause(grace_s)
    yield from refresh(head)
    yield from delete_all(manifests)
    yield from delete_all(shards)
    return len(manifests) + len(shards)


def _stale_manifest(key: str, term: int, live: set[str]) -> bool:
    checkpoint_id, _, name = key.removeprefix(CHECKPOINTS).partition("/")
    fields = checkpoint_id.split("-")
    return name == "manifest.json" and checkpoint_id not in live and len(fields) == 3 and _older(fields[1], term)


def _stale_shard(key: str, term: int, live: set[str]) -> bool:
    folder, _, rest = key.removeprefix(SHARDS).partition("/")
    checkpoint_id = rest.partition("/")[0]
    return _older(folder.partition("-")[0], term) and checkpoint_id not in live


def _older(text: str, term: int) -> bool:
    return text.isdecimal() and int(text) < term
