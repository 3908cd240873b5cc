"""Checkpoints: committed by a record, given up by a record, and never deleted while anybody needs them."""

from __future__ import annotations

import pytest

from tests.storage.make import Bench, model
from windfall.errors import CheckpointDamaged, Fenced, StoreError
from windfall.storage import checkpoint_store, manifest
from windfall.structs import replace
from windfall.terms import Checkpoint, CheckpointRef, Record, SaveKind, Seconds
from windfall.wire.run_layout import CHECKPOINTS, SHARDS

NOW = Seconds(0.0)


def run_with(bench: Bench, count: int) -> Record:
    head = bench.acquire("a").record
    for step in range(1, count + 1):
        _, head = bench.save(head, step, f"weights {step}".encode())
    return head


def drop(bench: Bench, head: Record, *refs: CheckpointRef) -> Record:
    return bench.run(checkpoint_store.drop(head, refs, nonce=bench.nonce(), wall_time=bench.clock.wall_time()))


def test_a_commit_names_what_was_saved(bench: Bench) -> None:
    """The log's word for a point carries step, length, and the digest of its manifest."""
    head = bench.acquire("a").record
    ref, record = bench.save(head, 5, b"weights")
    assert (ref.step, ref.size_bytes, ref.term) == (5, 14, 1)
    assert record.state.checkpoints == (ref,)
    assert manifest.digest_of(bench.store.objects[ref.manifest_key]) == ref.manifest_digest


def test_a_commit_tried_again_is_the_same_commit(bench: Bench) -> None:
    """An agent started again after a lost reply commits the same point once, and its manifest stays as it was."""
    head = bench.acquire("a").record
    ref, record = bench.save(head, 5, b"weights")
    there = bench.store.objects[ref.manifest_key]
    later = replace(manifest.from_bytes(there, ""), created_at=123.0)
    again = bench.run(checkpoint_store.commit(head, later, nonce="another", wall_time=bench.clock.wall_time()))
    assert again == (ref, record)
    assert bench.store.objects[ref.manifest_key] == there


def test_two_points_of_one_name_are_refused(bench: Bench) -> None:
    """A manifest that says something else is never replaced."""
    head = bench.acquire("a").record
    ref, _ = bench.save(head, 5, b"weights")
    other = replace(manifest.from_bytes(bench.store.objects[ref.manifest_key], ""), shards=())
    with pytest.raises(StoreError, match="already describes another checkpoint"):
        bench.run(checkpoint_store.commit(head, other, nonce="n", wall_time=bench.clock.wall_time()))


def test_a_stale_holder_commits_nothing(bench: Bench) -> None:
    """After a take-over the old holder's point is in no state, and its bytes are swept."""
    head = bench.acquire("a", "one").record
    new = bench.acquire("b", "two").record
    with pytest.raises(Fenced):
        bench.save(head, 5, b"stale")
    _, new = bench.save(new, 1, b"fresh")
    assert [ref.step for ref in new.state.checkpoints] == [1]
    assert bench.run(checkpoint_store.sweep(new, grace_s=NOW)) == 3
    assert model(bench.restore(new)[1]) == b"fresh"


def test_a_retired_point_is_gone_after_the_grace(bench: Bench) -> None:
    """First a record, then a pause for readers, then manifest and bytes; the others stay whole."""
    head = run_with(bench, 3)
    oldest = head.state.checkpoints[0]
    head = drop(bench, head, oldest)
    assert oldest.manifest_key in bench.store.objects
    before = bench.clock.now()
    bench.run(checkpoint_store.delete(head, (oldest,), grace_s=Seconds(10.0)))
    assert bench.clock.now() - before == 10
    assert not [key for key in bench.store.objects if oldest.checkpoint_id in key]
    assert model(bench.restore(head)[1]) == b"weights 3"


def test_two_points_always_stay(bench: Bench) -> None:
    """One point may turn out damaged: giving up the last but one is refused, and nothing changes."""
    head = run_with(bench, 2)
    with pytest.raises(CheckpointDamaged, match="only 1 of the remaining checkpoints would be intact"):
        drop(bench, head, head.state.checkpoints[0])
    assert len(bench.store.list("log/")) == head.number


def test_a_damaged_point_does_not_count_as_one_that_stays(bench: Bench) -> None:
    """An old good point is kept while a newer one has lost its manifest."""
    head = run_with(bench, 3)
    bench.store.delete(head.state.checkpoints[-1].manifest_key)
    with pytest.raises(CheckpointDamaged, match="nothing is deleted"):
        drop(bench, head, head.state.checkpoints[0])


def test_a_live_point_is_never_deleted(bench: Bench) -> None:
    """Deleting what no record gave up is a mistake of ours, not of the user."""
    head = run_with(bench, 3)
    with pytest.raises(AssertionError, match="only dropped checkpoints"):
        bench.run(checkpoint_store.delete(head, head.state.checkpoints[:1], grace_s=NOW))


def test_a_fenced_holder_deletes_nothing(bench: Bench) -> None:
    """The log is read again after the pause."""
    head = run_with(bench, 3)
    oldest = head.state.checkpoints[0]
    head = drop(bench, head, oldest)
    bench.acquire("b", "two")
    with pytest.raises(Fenced):
        bench.run(checkpoint_store.delete(head, (oldest,), grace_s=NOW))
    assert oldest.manifest_key in bench.store.objects


def test_an_abandoned_point_leaves_nothing(bench: Bench) -> None:
    """Bytes of a point that was never committed go at once, unless its commit may be under way."""
    head = run_with(bench, 1)
    bench.store.put("shards/00000001-a/9-1-x/0/f/1", b"1")
    bench.store.put("shards/00000001-a/9-1-x/1/f/1", b"1")
    assert bench.run(checkpoint_store.abandon("shards/00000001-a/9-1-x/", "9-1-x")) == 2
    ref = head.state.checkpoints[0]
    assert bench.run(checkpoint_store.abandon(f"shards/00000001-a/{ref.checkpoint_id}/", ref.checkpoint_id)) == 0
    assert model(bench.restore(head)[1]) == b"weights 1"


def test_a_sweep_takes_what_dead_terms_left_and_nothing_else(bench: Bench) -> None:
    """Live points, one's own term, newer terms and foreign names stay."""
    head = run_with(bench, 2)
    garbage = ["shards/00000001-a/9-1-x/0/f", "checkpoints/9-1-x/manifest.json", "shards/00000001-zz/8-1-y/0/f"]
    kept = [
        f"shards/{head.number + 1:08d}-b/9-{head.number + 1}-x/0/f",
        "shards/00000099-c/9-99-x/0/f",
        "checkpoints/9-99-x/manifest.json",
        "shards/readme.txt",
        "checkpoints/mine/notes.txt",
        "checkpoints/a-b-c/manifest.json",
    ]
    for key in (*garbage, *kept):
        bench.store.put(key, b"1")
    acquired = bench.acquire("b", "two").record
    assert bench.run(checkpoint_store.sweep(acquired, grace_s=NOW)) == len(garbage)
    left = set(bench.store.list(SHARDS) + bench.store.list(CHECKPOINTS))
    assert left >= set(kept)
    assert not left & set(garbage)
    assert model(bench.restore(acquired)[1]) == b"weights 2"
    assert bench.run(checkpoint_store.sweep(acquired, grace_s=NOW)) == 0


def test_a_commit_belongs_to_its_term(bench: Bench) -> None:
    """A point of another term cannot be committed by accident."""
    head = bench.acquire("a").record
    checkpoint = Checkpoint("1-7-x", 1, SaveKind.STOP, 7, 1, (), 0.0)
    with pytest.raises(AssertionError, match="own term"):
        bench.run(checkpoint_store.commit(head, checkpoint, nonce="n", wall_time=bench.clock.wall_time()))
