"""Restore: byte for byte what was handed over, or the one before it, or a clear word."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tests.storage.make import Bench, model, tree
from windfall.errors import CheckpointDamaged, Misuse, NewerFormat, StoreFull
from windfall.storage import manifest, restore, shard_transfer
from windfall.structs import replace
from windfall.terms import Checkpoint, CheckpointRef, Chunk, FileEntry, Record, SaveKind, Shard


@pytest.fixture
def saved(bench: Bench) -> Record:
    """A run with three points."""
    head = bench.acquire("a").record
    for step in (1, 2, 3):
        _, head = bench.save(head, step, f"weights {step}".encode())
    return head


def first_chunk(bench: Bench, ref: CheckpointRef) -> str:
    checkpoint = manifest.from_bytes(bench.store.objects[ref.manifest_key], "")
    return checkpoint.shards[0].files[0].chunks[0].key


def test_everything_comes_back(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, bytes, permissions, empty files and folders are as they were."""
    monkeypatch.setattr(shard_transfer, "CHUNK_BYTES", 7)
    root = tmp_path / "c"
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a" / "b" / "x y\nü.bin").write_bytes(bytes(range(100)))
    (root / "run.sh").write_bytes(b"#!")
    (root / "run.sh").chmod(0o750)
    (root / "nothing").touch()
    _, head = bench.run(bench.save_steps(bench.acquire("a").record, 4, root))
    restored, place = bench.restore(head)
    assert restored.ref == head.state.checkpoints[-1]
    assert tree(place / "0" / "c") == tree(root)


def test_a_run_without_points_restores_nothing(bench: Bench) -> None:
    """A fresh start is no error."""
    restored, place = bench.restore(bench.acquire("a").record)
    assert restored == restore.RestoredCheckpoint()
    assert not place.exists()


@pytest.mark.parametrize("harm", ["flipped", "shorter", "lost", "no manifest", "other manifest"])
def test_a_damaged_point_is_passed_over(bench: Bench, saved: Record, harm: str) -> None:
    """Whatever happened to the newest point, the one before is restored, and one sentence says why."""
    newest = saved.state.checkpoints[-1]
    key = first_chunk(bench, newest)
    data = bench.store.objects[key]
    match harm:
        case "flipped":
            bench.store.objects[key] = bytes([data[0] ^ 1]) + data[1:]
        case "shorter":
            bench.store.objects[key] = data[:-1]
        case "lost":
            bench.store.delete(key)
        case "no manifest":
            bench.store.delete(newest.manifest_key)
        case _:
            bench.store.objects[newest.manifest_key] = bench.store.objects[saved.state.checkpoints[0].manifest_key]
    before = dict(bench.store.objects)
    restored, place = bench.restore(saved)
    assert model(place) == b"weights 2"
    (message,) = restored.skipped
    assert message.startswith(f"checkpoint {newest.checkpoint_id} (step 3): ")
    assert bench.store.objects == before, "a restore never touches the store"


def test_without_a_whole_point_nothing_is_started(bench: Bench, saved: Record) -> None:
    """If no point is whole the run does not silently begin anew."""
    for ref in saved.state.checkpoints:
        bench.store.delete(first_chunk(bench, ref))
    with pytest.raises(CheckpointDamaged, match="all 3 checkpoints of the run are damaged; the newest: checkpoint 3-"):
        bench.restore(saved)
    assert not list(bench.folder.glob("restored*"))


def test_a_newer_manifest_is_not_passed_over(bench: Bench, saved: Record) -> None:
    """A point of a newer Windfall is no damaged one: going back behind it would lose work."""
    data = b'{"version": 5, "checkpoint": {}}'
    newest = replace(saved.state.checkpoints[-1], manifest_digest=manifest.digest_of(data))
    bench.store.put(newest.manifest_key, data)
    with pytest.raises(NewerFormat, match="version 5"):
        bench.run(restore.restore((newest, *saved.state.checkpoints[1::-1]), str(bench.folder / "r")))


def test_nothing_is_written_over(bench: Bench, saved: Record) -> None:
    """A folder with something in it is left alone."""
    (bench.folder / "mine").mkdir()
    (bench.folder / "mine" / "thesis.tex").touch()
    with pytest.raises(Misuse, match="is not empty"):
        bench.restore(saved, "mine")


def test_a_small_disk_is_noticed_before_the_copy(bench: Bench, saved: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little space is said in numbers, is no damage, and leaves nothing behind."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(StoreFull, match=r"needs 0.00 GB, but .* has 0.00 GB free"):
        bench.restore(saved)
    assert not list(bench.folder.glob("restored*"))


BYTES = (Chunk("shards/1-a/p/0/x", 1, "xxh3-128:00"),)


@pytest.mark.parametrize(
    "shard",
    [
        Shard(0, "..", ()),
        Shard(0, "a/b", ()),
        Shard(0, "", ()),
        Shard(-1, "m", ()),
        Shard(0, "m", (FileEntry("../../etc/passwd", 0o644, BYTES),)),
        Shard(0, "m", (FileEntry("/etc/passwd", 0o644, BYTES),)),
        Shard(0, "m", (FileEntry("a//b", 0o644, BYTES),)),
        Shard(0, "m", (FileEntry("a/./b", 0o644, BYTES),)),
        Shard(0, "m", (FileEntry("a\0b", 0o644, BYTES),)),
        Shard(0, "m", (FileEntry("a", 0o644, BYTES), FileEntry("a", 0o644, BYTES))),
        Shard(0, "m", (FileEntry("a", 0o644, BYTES), FileEntry("a/b", 0o644, BYTES))),
        Shard(0, "m", (FileEntry(".", 0o644, BYTES), FileEntry("b", 0o644, BYTES))),
        Shard(0, "m", (FileEntry("a", 0o644, (Chunk("shards/../../x", 1, ""),)),)),
        Shard(0, "m", (FileEntry("a", 0o644, (Chunk("log/00000001", 1, ""),)),)),
        Shard(0, "m", (FileEntry("a", 0o644, (Chunk("shards/x", -1, ""),)),)),
    ],
)
def test_a_manifest_cannot_lead_outside(shard: Shard) -> None:
    """Names that would leave the folder, exclude each other or read other objects are refused before a byte is written."""
    checkpoint = Checkpoint("1-1-a", 1, SaveKind.PERIODIC, 1, 1, (shard,), 0.0)
    with pytest.raises(CheckpointDamaged, match=r"the-manifest is not a valid manifest: it (names|has)"):
        manifest.from_bytes(manifest.to_bytes(checkpoint), "the-manifest")


def test_a_hostile_manifest_writes_nothing(bench: Bench, saved: Record) -> None:
    """A manifest whose names lead outside counts as damaged: the point before it is restored."""
    newest = saved.state.checkpoints[-1]
    checkpoint = manifest.from_bytes(bench.store.objects[newest.manifest_key], "")
    entry = replace(checkpoint.shards[0].files[0], path="../../../../escaped")
    data = manifest.to_bytes(replace(checkpoint, shards=(Shard(0, "m", (entry,)),)))
    bench.store.put(newest.manifest_key, data)
    hostile = replace(newest, manifest_digest=manifest.digest_of(data))
    place = bench.folder / "r"
    restored = bench.run(restore.restore((hostile, *saved.state.checkpoints[1::-1]), str(place)))
    assert model(place) == b"weights 2"
    assert "is outside its shard" in restored.skipped[0]
    assert not (bench.folder / "escaped").exists()
    assert not (bench.folder.parent / "escaped").exists()
