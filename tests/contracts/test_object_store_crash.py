"""The file writer at a power cut before and after every one of its file operations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.simulated_disk import PowerCut, SimulatedDisk
from windfall.ports import ObjectStore
from windfall.storage.file_store import DIRECT_MIN_BYTES, STAGING, FileStore

ROOT = "/disk/runs/gpt"
SEEDS = 4


@dataclass
class Story:
    """What a writer did: which contents of a key are right after a cut at this moment (None: no object)."""

    source: Path
    allowed: dict[str, set[bytes | None]] = field(default_factory=dict)

    def tell(self, store: ObjectStore) -> None:
        """Every kind of write, on new and old keys, in new and old folders."""
        data = self.source.read_bytes()
        self._step("log/00000001", b"mine" * 300, lambda: store.create("log/00000001", b"mine" * 300))
        self._step("log/00000001", b"mine" * 300, lambda: store.create("log/00000001", b"theirs" * 300), first=False)
        self._step("log/00000002", b"next", lambda: store.create("log/00000002", b"next"))
        self._step("heartbeats/1", b"beat 1", lambda: store.put("heartbeats/1", b"beat 1"))
        self._step("heartbeats/1", b"beat 2" * 99, lambda: store.put("heartbeats/1", b"beat 2" * 99))
        for key, size in (
            ("shards/1-ab/10-1/0/0", len(data) - 3),
            ("shards/1-ab/10-1/0/1", 9000),
            ("shards/1-ab/20-1/0/0", 10),
        ):
            self._step(
                key, data[3 : 3 + size], lambda key=key, size=size: store.put_range(key, str(self.source), 3, size)
            )
        self._step("shards/1-ab/20-1/0/0", None, lambda: store.delete("shards/1-ab/20-1/0/0"), durable=False)
        self._step(
            "checkpoints/10/manifest.json", b"whole", lambda: store.create("checkpoints/10/manifest.json", b"whole")
        )

    def _step(
        self, key: str, content: bytes | None, write: Callable[[], object], *, first: bool = True, durable: bool = True
    ) -> None:
        self.allowed[key] = self.allowed.get(key, {None}) | {content}
        result = write()
        assert result is not False or not first
        if durable:
            self.allowed[key] = {content}

    def verify(self, store: ObjectStore) -> None:
        """What returned is there, the rest is whole or not there, and nothing else is."""
        for key, contents in self.allowed.items():
            assert store.get(key) in contents, key
        assert set(store.list("")) <= set(self.allowed)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.bin"
    path.write_bytes(bytes(range(251)) * (DIRECT_MIN_BYTES // 251 + 20) + b"tail")
    return path


def story_up_to(source: Path, *, seed: int, cut_at: int | None, after: bool) -> tuple[Story, SimulatedDisk]:
    disk = SimulatedDisk(seed, cut_at, after=after)
    story = Story(source)
    try:
        story.tell(FileStore(ROOT, disk))
    except PowerCut:
        assert cut_at is not None
    return story, disk


def test_no_cut_shows_half_an_object_or_loses_what_returned(source: Path, record_property: Callable[..., None]) -> None:
    """At a cut before or after each file operation, what returned is there and what did not is whole or not there."""
    _, whole = story_up_to(source, seed=0, cut_at=None, after=False)
    moments = len(whole.calls)
    visited = 0
    for cut_at in range(moments):
        for after in (False, True):
            for seed in range(SEEDS):
                story, disk = story_up_to(source, seed=seed, cut_at=cut_at, after=after)
                disk.restart()
                later = FileStore(ROOT, disk)
                story.verify(later)
                later.put("heartbeats/2", b"the next writer")
                left = [name for name in disk.content() if f"/{STAGING}/" in name and not name.endswith("/lock")]
                assert left == [], "the next writer clears the workshop of the dead one"
                visited += 1

    sys.stdout.write(f"{moments} file operations, {visited} cuts (before and after each, {SEEDS} seeds)\n")
    record_property("cuts", visited)
    assert visited == moments * 2 * SEEDS
    assert set(whole.calls) >= {"make_dir", "fsync_dir", "lock", "open_new", "write", "truncate", "fsync", "close"}
    assert set(whole.calls) >= {"link", "rename", "unlink", "remove_dir", "walk"}


class WithoutFileSync(SimulatedDisk):
    def fsync(self, handle: int) -> None:
        """Forgotten."""


class WithoutFolderSync(SimulatedDisk):
    def fsync_dir(self, path: str) -> None:
        """Forgotten."""


class LinkBeforeSync(SimulatedDisk):
    """The name is given (durably, as bad luck has it) before the content is synced."""

    def __init__(self, seed: int, cut_at: int | None, *, after: bool) -> None:
        super().__init__(seed, cut_at, after=after)
        self.late: list[int] = []

    def fsync(self, handle: int) -> None:
        self.late.append(handle)

    def close(self, handle: int) -> None:
        if handle not in self.late:
            super().close(handle)

    def _sync_late(self) -> None:
        for handle in self.late:
            super().fsync(handle)
            super().close(handle)
        self.late.clear()

    def link(self, source: str, target: str) -> bool:
        linked = super().link(source, target)
        self._sync_late()
        return linked

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._sync_late()


@pytest.mark.parametrize("planted", [WithoutFileSync, WithoutFolderSync, LinkBeforeSync])
def test_a_writer_that_leaves_out_a_sync_is_caught(source: Path, planted: type[SimulatedDisk]) -> None:
    """Without a sync of file or folder, or with the name before the sync, some cut breaks the promise."""
    whole = planted(0, None, after=False)
    Story(source).tell(FileStore(ROOT, whole))
    for cut_at in range(len(whole.calls)):
        for seed in range(SEEDS):
            disk, story = planted(seed, cut_at, after=True), Story(source)
            with pytest.raises(PowerCut):
                story.tell(FileStore(ROOT, disk))
            disk.restart()
            try:
                story.verify(FileStore(ROOT, disk))
            except AssertionError:
                return
    pytest.fail("no cut showed the planted bug")
