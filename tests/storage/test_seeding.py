"""A run that begins with another run's checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.make import Bench, model
from tests.support.simulated_store import MemoryStore
from windfall.errors import Misuse
from windfall.storage import run_log
from windfall.storage.acquire_run import clone_checkpoint


def _earlier(tmp_path: Path) -> Bench:
    earlier = Bench(tmp_path)
    head = earlier.acquire("a").record
    _, head = earlier.save(head, 10, b"ten")
    earlier.save(head, 20, b"twenty")
    return earlier


def test_a_run_begins_with_the_newest_point_of_another(tmp_path: Path) -> None:
    """The point is the new run's own: it is restored although the earlier run is deleted."""
    earlier, new = _earlier(tmp_path), Bench(tmp_path)
    clone_checkpoint(earlier.store, new.store, new.clock, new.nonce)
    earlier.store.objects.clear()
    acquired = new.acquire("b")
    assert acquired.mine
    assert [checkpoint.step for checkpoint in acquired.record.state.checkpoints] == [20]
    found, folder = new.restore(acquired.record)
    assert found.checkpoint is not None
    assert model(folder) == b"twenty"


def test_the_new_run_goes_on_saving(tmp_path: Path) -> None:
    """A later point follows, and the first one is still whole beside it."""
    earlier, new = _earlier(tmp_path), Bench(tmp_path)
    clone_checkpoint(earlier.store, new.store, new.clock, new.nonce)
    head = new.acquire("b").record
    _, head = new.save(head, 30, b"thirty")
    assert [checkpoint.step for checkpoint in head.state.checkpoints] == [20, 30]


def test_a_damaged_point_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    """A byte that decayed in the earlier run's newest point does not enter the new run."""
    earlier, new = _earlier(tmp_path), Bench(tmp_path)
    newest = max(key for key in earlier.store.objects if "/20-" in key and key.startswith("shards/"))
    earlier.store.objects[newest] = b"other"
    assert clone_checkpoint(earlier.store, new.store, new.clock, new.nonce).step == 10


def test_nothing_to_begin_with_is_said(tmp_path: Path) -> None:
    """No run there, or one without a checkpoint: one sentence each, and the new place stays empty."""
    bare = Bench(tmp_path)
    new = MemoryStore()
    with pytest.raises(Misuse, match="there is no run at"):
        clone_checkpoint(MemoryStore("memory://none"), new, bare.clock, bare.nonce)
    bare.acquire("a")
    with pytest.raises(Misuse, match="no intact checkpoint"):
        clone_checkpoint(bare.store, new, bare.clock, bare.nonce)
    assert not new.objects


def test_a_run_that_has_begun_is_not_seeded(tmp_path: Path) -> None:
    """The log's first record is created once: a second beginning is refused."""
    earlier, new = _earlier(tmp_path), Bench(tmp_path)
    new.run(run_log.read_head())
    clone_checkpoint(earlier.store, new.store, new.clock, new.nonce)
    with pytest.raises(Misuse, match="already exists"):
        clone_checkpoint(earlier.store, new.store, new.clock, new.nonce)
