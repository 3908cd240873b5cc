"""Checkpoints in the store: committed by a record, given up by a record, deleted afterwards.

The log fences both ends.  A point exists once its record does, and its manifest and bytes were durable before.  Bytes
may be deleted once a record has given the point up: no later state can name it again, so that even a machine that was
fenced meanwhile deletes nothing that anybody needs.  The pause before a deletion is for readers that still copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windfall.errors import CheckpointDamaged, StoreError
from windfall.ports import Delete, Steps
from windfall.storage import manifest
from windfall.storage.log import append, refresh
from windfall.storage.operations import create, delete_all, get, keys_under, pause
from windfall.storage.restore import read_manifest
from windfall.storage.state import WHOLE_POINTS_MIN, committed, dropped, with_result
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
from windfall.wire.layout import CHECKPOINTS, SHARDS, manifest_key


def commit(
    head: Record,
    point: Checkpoint,
    *,
    nonce: str,
    wall: WallTime,
    attempts: int | None = None,
    failures: int | None = None,
    costs: SaveCosts | None = None,
) -> Steps[tuple[CheckpointRef, Record]]:
    """Make a point what a restart restores: its manifest first, then the record.

    May be repeated after any error, also by an agent that was started again: a manifest that is already there is kept
    if it says the same.

    Args:
        head: the newest record this holder knows.
        point: the manifest; all of its bytes are durable.
        nonce: random, of this commit.
        wall: this machine's wall clock.
        attempts: starts of the script by now; None if unchanged.
        failures: its own failures by now; None if unchanged.
        costs: what saves cost by now; None if unknown.

    Returns:
        The point as the log names it, and the newest record.

    Raises:
        Fenced: another machine took the run.
        StoreError: another manifest lies under the point's name.
    """
    assert point.term == head.state.term, "a holder commits points of its own term alone"
    ref = yield from _described(head, point, wall)

    def advance(state: RunState) -> RunState:
        return committed(state, ref, attempts=attempts, failures=failures, costs=costs)

    record = yield from append(head, advance, kind=RecordKind.COMMIT, nonce=nonce, wall=wall)
    live = [known for known in record.state.checkpoints if known.checkpoint_id == ref.checkpoint_id]
    assert len(live) == 1, "the record that commits a point names it"
    return live[0], record


def store_result(
    head: Record, name: str, point: Checkpoint, *, nonce: str, wall: WallTime
) -> Steps[tuple[Result, Record, tuple[CheckpointRef, ...]]]:
    """Keep a result: its manifest first, then the record.  May be repeated after any error, as a commit may.

    Args:
        head: the newest record this holder knows.
        name: of the result.
        point: its manifest, of one shard; all of its bytes are durable.
        nonce: random, of this record.
        wall: this machine's wall clock.

    Returns:
        The result as the log names it, the newest record, and what the result replaces: its bytes may be deleted.

    Raises:
        Fenced: another machine took the run.
        StoreError: another manifest lies under the result's id.
    """
    assert point.term == head.state.term, "a holder stores results of its own term alone"
    result = Result(name, point.shards[0].rank, (yield from _described(head, point, wall)))
    replaced: list[CheckpointRef] = []

    def advance(state: RunState) -> RunState:
        after = with_result(state, result)
        kept = {known.stored.checkpoint_id for known in after.results}
        replaced[:] = [known.stored for known in state.results if known.stored.checkpoint_id not in kept]
        return after

    record = yield from append(head, advance, kind=RecordKind.RESULT, nonce=nonce, wall=wall)
    (known,) = [one for one in record.state.results if one.stored.checkpoint_id == point.checkpoint_id]
    return known, record, tuple(replaced)


def _described(head: Record, point: Checkpoint, wall: WallTime) -> Steps[CheckpointRef]:
    """Write a manifest; return what the log will say of it."""
    key = manifest_key(point.checkpoint_id)
    data = manifest.to_bytes(point)
    if not (yield from create(key, data)):
        data = yield from _earlier(head, key, point)
    return CheckpointRef(
        checkpoint_id=point.checkpoint_id,
        step=point.step,
        kind=point.kind,
        term=point.term,
        generation=point.generation,
        size_bytes=point.size_bytes,
        manifest_key=key,
        manifest_digest=manifest.digest_of(data),
        committed_at=wall,
    )


def _earlier(head: Record, key: str, point: Checkpoint) -> Steps[bytes]:
    """Return the manifest that an earlier try of this commit left."""
    data = yield from get(key)
    if data is None:
        # A successor sweeps what a fenced holder left uncommitted, between our two looks if it must be.
        yield from refresh(head)
        raise StoreError(f"the store says that {key} exists and does not give it: check what else writes to this place")
    there = manifest.from_bytes(data, key)
    if dataclasses.replace(there, created_at=point.created_at) != point:
        raise StoreError(f"{key} already describes another point: save again, under a new name")
    return data


def drop(head: Record, refs: Sequence[CheckpointRef], *, nonce: str, wall: WallTime) -> Steps[Record]:
    """Give points up, by a record; their bytes stay until `delete`.

    Raises:
        Fenced: another machine took the run.
        CheckpointDamaged: fewer than two whole points would stay; nothing was given up.
    """
    newest = yield from refresh(head)
    ids = {ref.checkpoint_id for ref in refs}
    yield from _check_whole([ref for ref in newest.state.checkpoints if ref.checkpoint_id not in ids])

    def advance(state: RunState) -> RunState:
        return dropped(state, ids)

    return (yield from append(newest, advance, kind=RecordKind.DROP, nonce=nonce, wall=wall))


def droppable(head: Record, refs: Sequence[CheckpointRef]) -> Steps[frozenset[str]]:
    """Return the ids of points that may be given up: all of these, or none if fewer than two whole ones would stay."""
    ids = frozenset(ref.checkpoint_id for ref in refs)
    try:
        yield from _check_whole([ref for ref in head.state.checkpoints if ref.checkpoint_id not in ids])
    except CheckpointDamaged:
        return frozenset()
    return ids


def _check_whole(staying: list[CheckpointRef]) -> Steps[None]:
    whole = 0
    for ref in reversed(staying):
        try:
            yield from read_manifest(ref)
        except CheckpointDamaged:
            continue
        whole += 1
        if whole == WHOLE_POINTS_MIN:
            return
    raise CheckpointDamaged(
        f"only {whole} of the checkpoints that would stay are whole: nothing is deleted until there are "
        f"{WHOLE_POINTS_MIN}"
    )


def delete(head: Record, refs: Sequence[CheckpointRef], *, grace_s: Seconds) -> Steps[None]:
    """Delete the bytes of points that were given up: each manifest first, then what it names.

    What a crash leaves behind is found by a later term's `sweep`.

    Args:
        head: the newest record this holder knows.
        refs: points that `drop` gave up.
        grace_s: how long to wait for readers first (one lease).

    Raises:
        Fenced: another machine took the run.
    """
    yield from pause(grace_s)
    newest = yield from refresh(head)
    live = _named(newest.state)
    for ref in refs:
        assert ref.checkpoint_id not in live, "only what a record gave up is deleted"
        try:
            point = yield from read_manifest(ref)
        except CheckpointDamaged:
            continue
        yield Delete(ref.manifest_key)
        yield from delete_all(_keys(point))


def _named(state: RunState) -> set[str]:
    """Return the ids of all whose bytes stay."""
    return {ref.checkpoint_id for ref in state.checkpoints} | {one.stored.checkpoint_id for one in state.results}


def _keys(point: Checkpoint) -> list[str]:
    return [chunk.key for shard in point.shards for entry in shard.files for chunk in entry.chunks]


def abandon(prefix: str, checkpoint_id: str) -> Steps[int]:
    """Delete what was uploaded of a point of one's own term that was never committed; return how many objects.

    Once its manifest exists a commit may be under way, its reply lost: then everything is left to a later `sweep`.

    Args:
        prefix: the folder of all its parts (`layout.shard_prefix` without the rank).
        checkpoint_id: the point.
    """
    if (yield from get(manifest_key(checkpoint_id))) is not None:
        return 0
    keys = yield from keys_under(prefix)
    yield from delete_all(keys)
    return len(keys)


def sweep(head: Record, *, grace_s: Seconds) -> Steps[int]:
    """Delete what dead terms left behind: bytes and manifests of no live point.  Return how many objects went.

    A term older than one's own can commit nothing more, so what no live point of the newest record refers to is
    garbage for ever.  Nothing of one's own term, of a newer one, or under a name of another shape is touched.

    Args:
        head: the newest record this holder knows.
        grace_s: how long to wait for readers first (one lease).

    Raises:
        Fenced: another machine took the run.
    """
    live = _named(head.state)
    manifests = [key for key in (yield from keys_under(CHECKPOINTS)) if _stale_manifest(key, head.state.term, live)]
    parts = [key for key in (yield from keys_under(SHARDS)) if _stale_part(key, head.state.term, live)]
    if not manifests and not parts:
        return 0
    yield from pause(grace_s)
    yield from refresh(head)
    yield from delete_all(manifests)
    yield from delete_all(parts)
    return len(manifests) + len(parts)


def _stale_manifest(key: str, term: int, live: set[str]) -> bool:
    checkpoint_id, _, name = key.removeprefix(CHECKPOINTS).partition("/")
    fields = checkpoint_id.split("-")
    return name == "manifest.json" and checkpoint_id not in live and len(fields) == 3 and _older(fields[1], term)


def _stale_part(key: str, term: int, live: set[str]) -> bool:
    folder, _, rest = key.removeprefix(SHARDS).partition("/")
    checkpoint_id = rest.partition("/")[0]
    return _older(folder.partition("-")[0], term) and checkpoint_id not in live


def _older(text: str, term: int) -> bool:
    return text.isdecimal() and int(text) < term
