"""The fence between generations of machines: what an older one does can no longer enter the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.make import Bench, claim
from windfall.errors import Fenced, StoreError
from windfall.events import CommitCheckpoint, UploadShard
from windfall.storage import run_log
from windfall.storage.member_lease import MemberLease
from windfall.storage.run_lease import LocalSession, StoreLease
from windfall.storage.run_state import from_bytes
from windfall.structs import replace
from windfall.terms import Record, SaveKind, Shard, Step
from windfall.wire.run_layout import record_key


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def acquire(bench: Bench, nonce: str, generation: int, host: str = "one") -> Record:
    claimed = claim(nonce, host, generation=generation)
    acquired = bench.run(
        run_log.acquire(claimed, holder_is_dead=lambda _: True, wall_time=bench.clock.wall_time, wait=True)
    )
    assert acquired.mine
    return acquired.record


def hold(bench: Bench, head: Record, nonce: str) -> StoreLease:
    folder = bench.folder / nonce
    folder.mkdir()
    return StoreLease(
        bench.store, head, LocalSession(bench.clock, bench.nonce, str(folder), str(folder / "h"), ""), nonce
    )


def member(bench: Bench, head: Record, nonce: str) -> MemberLease:
    follower = MemberLease(bench.store, bench.clock, head.state.generation, node=1, output=str(bench.folder / "output"))
    follower.follow(head.state.term, nonce)
    return follower


def uploaded(bench: Bench, by: StoreLease | MemberLease, checkpoint_id: str, rank: int) -> Shard:
    shard = by.upload(UploadShard(checkpoint_id, rank, str(bench.part(b"state")), SaveKind.INSURANCE), lambda: False)
    assert shard is not None
    return shard


def commit(checkpoint_id: str, *shards: Shard) -> CommitCheckpoint:
    return CommitCheckpoint(checkpoint_id, Step(5), SaveKind.INSURANCE, 1, shards)


def test_an_older_generation_cannot_take_the_run(bench: Bench) -> None:
    """Its machines have been replaced; the same one and newer ones may, and so may a machine that trains alone."""
    acquire(bench, "a", 2)
    with pytest.raises(Fenced, match="generation 2 holds this run"):
        acquire(bench, "b", 1)
    assert acquire(bench, "c", 2).state.generation == 2
    assert acquire(bench, "d", 0).state.generation == 2
    assert acquire(bench, "e", 5).state.generation == 5


def test_an_older_generation_does_not_wait_for_a_newer_one(bench: Bench) -> None:
    """It is refused before a lease is waited for."""
    acquire(bench, "a", 2, host="another")
    before = bench.clock.now()
    with pytest.raises(Fenced):
        acquire(bench, "b", 1)
    assert bench.clock.now() == before


def test_a_point_has_the_parts_of_leader_and_member(bench: Bench) -> None:
    """Both upload under the leader's term, the leader commits once, and a member restores it all."""
    head = acquire(bench, "a", 1)
    leader, follower = hold(bench, head, "a"), member(bench, head, "a")
    shards = uploaded(bench, leader, "5-1-x", 0), uploaded(bench, follower, "5-1-x", 1)
    ref, _ = leader.commit(commit("5-1-x", *shards))
    follower.follow(head.state.term, "a")
    restored = follower.restore(str(bench.folder / "restored"), None)
    assert (restored.checkpoint_id, restored.step) == (ref.checkpoint_id, 5)
    assert {path.name for path in (bench.folder / "restored").iterdir()} == {"0", "1"}


def test_the_leader_of_an_older_generation_commits_nothing(bench: Bench) -> None:
    """A newer generation has made a new term: the older leader's commit and its member are both refused."""
    head = acquire(bench, "a", 1)
    leader, follower = hold(bench, head, "a"), member(bench, head, "a")
    shards = uploaded(bench, leader, "5-1-x", 0), uploaded(bench, follower, "5-1-x", 1)
    acquire(bench, "b", 2)
    with pytest.raises(Fenced):
        leader.commit(commit("5-1-x", *shards))
    with pytest.raises(Fenced, match="generation 1 does not hold the run"):
        follower.follow(head.state.term, "a")


def test_a_part_of_an_older_generation_enters_no_commit(bench: Bench) -> None:
    """Even one that reached the new leader: it does not lie under the new term."""
    old = member(bench, acquire(bench, "a", 1), "a")
    late = uploaded(bench, old, "5-2-x", 1)
    leader = hold(bench, acquire(bench, "b", 2), "b")
    own = uploaded(bench, leader, "5-2-x", 0)
    with pytest.raises(StoreError, match="the shard of rank 1 is at shards/00000001-a"):
        leader.commit(commit("5-2-x", own, late))


def test_a_record_without_a_generation_is_read(bench: Bench) -> None:
    """Runs that were begun by an earlier Windfall belong to no generation."""
    head = acquire(bench, "a", 0)
    data = bench.store.get(record_key(head.number))
    assert data is not None
    older = data.replace(b',"generation":0', b"")
    assert older != data
    assert from_bytes(older, "log/1") == replace(head, nonce="a")


def test_what_a_member_prints_is_beside_what_the_leader_prints(bench: Bench) -> None:
    """Each machine numbers its own segments: none is overwritten by another machine's."""
    head = acquire(bench, "a", 1)
    follower = member(bench, head, "a")
    (bench.folder / "output").write_bytes(b"hello from machine 1")
    follower.ship()
    follower.ship()
    found = {key: data for key, data in bench.store.objects.items() if key.startswith("output/")}
    assert found == {"output/00000001/00000001-1": b"hello from machine 1"}
