"""Parts: files and folders of any shape travel to the store, and never torn."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.storage.make import Bench
from windfall.errors import Misuse, ShardChanged
from windfall.ports import PutRange, StoreOp, Together
from windfall.storage import shard_transfer
from windfall.storage.store_operations import perform


def upload(bench: Bench, path: Path, already: dict[str, str] | None = None) -> shard_transfer.Shard:
    return bench.run(
        shard_transfer.upload_shard(shard_transfer.plan_shard(str(path)), "shards/1-a/p/0/", 0, already=already)
    )


def test_a_single_file_is_a_part(bench: Bench, tmp_path: Path) -> None:
    """`backup("model.pt")` stores one file under its own name."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    shard = upload(bench, tmp_path / "model.pt")
    (entry,) = shard.files
    assert (shard.name, entry.path, entry.size_bytes) == ("model.pt", ".", 7)
    assert bench.store.get(entry.chunks[0].key) == b"weights"


def test_a_folder_keeps_its_shape(bench: Bench, tmp_path: Path) -> None:
    """Nested, empty and odd names: all of it is listed, sorted, empty files and folders too."""
    root = tmp_path / "checkpoint-5"
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a" / "b" / "x y\nü.bin").write_bytes(b"1")
    (root / "nothing").touch()
    shard = upload(bench, root)
    assert [entry.path for entry in shard.files] == ["a/b/x y\nü.bin", "empty/", "nothing"]
    assert [entry.size_bytes for entry in shard.files] == [1, 0, 0]


def test_an_empty_folder_is_a_part(bench: Bench, tmp_path: Path) -> None:
    """A checkpoint without files has none."""
    (tmp_path / "c").mkdir()
    assert upload(bench, tmp_path / "c").files == ()


def test_long_files_go_in_chunks(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is stored in stretches of the chunk's length, the last one shorter."""
    monkeypatch.setattr(shard_transfer, "CHUNK_BYTES", 10)
    (tmp_path / "m").write_bytes(bytes(range(25)))
    (entry,) = upload(bench, tmp_path / "m").files
    assert [chunk.size_bytes for chunk in entry.chunks] == [10, 10, 5]
    assert b"".join(bench.store.objects[chunk.key] for chunk in entry.chunks) == bytes(range(25))


def test_a_link_inside_is_followed(bench: Bench, tmp_path: Path) -> None:
    """A link to a file or folder of the same checkpoint is stored as what it points to."""
    root = tmp_path / "c"
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_bytes(b"1")
    (root / "latest").symlink_to("d")
    (root / "file").symlink_to("d/f")
    assert [entry.path for entry in upload(bench, root).files] == ["d/f", "file", "latest/f"]


def test_a_link_handed_over_is_what_it_points_to(bench: Bench, tmp_path: Path) -> None:
    """`backup("last")` with a link `last -> checkpoint-7` stores the checkpoint under the link's name."""
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-7" / "f").write_bytes(b"1")
    (tmp_path / "last").symlink_to("checkpoint-7")
    shard = upload(bench, tmp_path / "last")
    assert (shard.name, [entry.path for entry in shard.files]) == ("last", ["f"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/etc/hostname", "outside the checkpoint: copy what it points to"),
        ("../other", "outside the checkpoint"),
        ("gone", "a broken link"),
        (".", "a link to a folder that contains it"),
    ],
)
def test_a_link_that_cannot_travel_is_refused(tmp_path: Path, target: str, message: str) -> None:
    """Links out of the checkpoint, into nothing or in circles: one sentence, and nothing is stored."""
    (tmp_path / "other").mkdir()
    root = tmp_path / "c"
    root.mkdir()
    (root / "link").symlink_to(target)
    with pytest.raises(Misuse, match=message):
        shard_transfer.plan_shard(str(root))


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket cannot be a checkpoint, and neither can nothing."""
    with socket.socket(socket.AF_UNIX) as one:
        monkeypatch.chdir(tmp_path)
        one.bind("s")
        with pytest.raises(Misuse, match="neither a file nor a folder"):
            shard_transfer.plan_shard(str(tmp_path))
    with pytest.raises(Misuse, match="does not exist"):
        shard_transfer.plan_shard(str(tmp_path / "absent"))


def test_a_failed_upload_goes_on_where_it_stopped(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are in the store are not sent again, unless the file has changed since."""
    monkeypatch.setattr(shard_transfer, "CHUNK_BYTES", 10)
    monkeypatch.setattr(shard_transfer, "CHUNKS_AT_ONCE", 1)
    path = tmp_path / "m"
    path.write_bytes(bytes(25))
    done: dict[str, str] = {}
    steps = shard_transfer.upload_shard(
        shard_transfer.plan_shard(str(path)), "p/", 0, on_chunk=lambda chunk: done.update({chunk.key: chunk.digest})
    )
    operation: StoreOp = next(steps)
    for _ in range(2):
        operation = steps.send([perform(op, bench.store, bench.clock) for op in operation.ops])
    steps.close()
    assert len(done) == 2
    assert sent(shard_transfer.upload_shard(shard_transfer.plan_shard(str(path)), "p/", 0, already=done), bench) == [20]
    path.write_bytes(bytes(24))
    assert sent(shard_transfer.upload_shard(shard_transfer.plan_shard(str(path)), "p/", 0, already=done), bench) == [
        0,
        10,
        20,
    ]


def sent(steps: shard_transfer.Steps[shard_transfer.Shard], bench: Bench) -> list[int]:
    """Return the offsets of what a step function sends."""
    offsets: list[int] = []

    def listen() -> shard_transfer.Steps[None]:
        operation = next(steps)
        try:
            while True:
                assert isinstance(operation, Together)
                offsets.extend(op.offset for op in operation.ops if isinstance(op, PutRange))
                operation = steps.send((yield operation))
        except StopIteration:
            return

    bench.run(listen())
    return offsets


def change_length(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def change_bytes(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"W" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    draft = path.with_name("draft")
    draft.write_bytes(path.read_bytes())
    draft.replace(path)


def shorten(path: Path) -> None:
    os.truncate(path, 1)


def add(path: Path) -> None:
    path.with_name("another").touch()


@pytest.mark.parametrize("change", [change_length, change_bytes, replace, shorten, add, Path.unlink])
def test_a_part_that_changes_meanwhile_is_given_up(bench: Bench, tmp_path: Path, change: object) -> None:
    """A script that writes its checkpoint again while it is copied never gets a torn one committed."""
    assert callable(change)
    root = tmp_path / "c"
    root.mkdir()
    (root / "m").write_bytes(b"w" * 100)
    plan = shard_transfer.plan_shard(str(root))
    change(root / "m")
    with pytest.raises(ShardChanged, match="changed during its upload, so this checkpoint is abandoned"):
        bench.run(shard_transfer.upload_shard(plan, "p/", 0))


def test_a_name_removed_elsewhere_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    """A trainer that prunes its own checkpoint while we hold the files by other names does not tear the copy."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "m").write_bytes(b"w")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "m").hardlink_to(tmp_path / "c" / "m")
    plan = shard_transfer.plan_shard(str(tmp_path / "ours"))
    (tmp_path / "c" / "m").unlink()
    assert bench.run(shard_transfer.upload_shard(plan, "p/", 0)).files[0].size_bytes == 1
