"""The log of layouts and the checkpoints of a parameter server, in a store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from windfall.core.tier_decisions import first_layout, taken_by_next_coordinator
from windfall.errors import LogDamaged, NewerFormat
from windfall.policies.layout.tiers import TierPlacement
from windfall.runtimes.tier_pace import USUAL
from windfall.runtimes.tier_store import ObjectTierStore, StoredLog
from windfall.storage.object_stores import folder_url, open_store
from windfall.structs import replace
from windfall.terms import WallTime
from windfall.tier_layout import StoredClock
from windfall.tier_status import TierCounters, TierMachineStatus, TierStatus

FIRST = replace(first_layout(TierPlacement(("r1",), ("r1",), ("r1", "t1"))), nonce="a")


@pytest.fixture
def store(tmp_path: Path) -> ObjectTierStore:
    """An empty store."""
    return ObjectTierStore(open_store(folder_url(str(tmp_path))))


def test_the_newest_layout_is_read_as_it_was_written(store: ObjectTierStore) -> None:
    """Without any, there is none."""
    assert store.newest_layout() is None
    second = taken_by_next_coordinator(FIRST)

    assert store.write_layout(FIRST)
    assert store.newest_layout() == FIRST
    assert store.write_layout(second)
    assert store.newest_layout() == second
    assert store.newest_layout(FIRST) == second


def test_of_two_coordinators_one_writes_the_next_layout(store: ObjectTierStore) -> None:
    """The other one learns that it exists; one whose answer was lost finds its own."""
    store.write_layout(FIRST)
    one, other = (replace(taken_by_next_coordinator(FIRST), nonce=nonce) for nonce in "bc")

    assert store.write_layout(one)
    assert not store.write_layout(other)
    assert store.write_layout(one)
    assert store.newest_layout() == one


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_part_of_a_checkpoint_is_read_as_it_was_written(store: ObjectTierStore, dtype: type) -> None:
    """Bit for bit, in its own precision."""
    values = np.random.default_rng(1).standard_normal((5, 3)).astype(dtype)
    store.save(2, StoredClock(1, 40), values)
    found = store.load(2, StoredClock(1, 40))

    assert found.dtype == dtype
    assert np.array_equal(found, values)


def test_a_checkpoint_that_is_gone_or_damaged_says_which_object_it_is(store: ObjectTierStore, tmp_path: Path) -> None:
    """And that the log names it."""
    with pytest.raises(LogDamaged, match="a checkpoint at clock 40, and tiers/checkpoints/1-40/0002 is not there"):
        store.load(2, StoredClock(1, 40))

    store.save(2, StoredClock(1, 40), np.zeros((1, 1)))
    (file,) = tmp_path.rglob("0002")
    file.write_bytes(b"no array")
    with pytest.raises(LogDamaged, match="tiers/checkpoints/1-40/0002 cannot be read"):
        store.load(2, StoredClock(1, 40))


def test_a_status_is_read_as_it_was_written_and_takes_the_place_of_the_last_one(
    store: ObjectTierStore, tmp_path: Path
) -> None:
    """Without any, there is none; one that is damaged, or of a newer version, is not taken for one."""
    counters = TierCounters(turns=3, staleness_max=1, waited_s=0.25)
    machine = TierMachineStatus("r1", True, False, (0, 1), (0, 1), (2,), counters)
    status = TierStatus(WallTime(5.0), 1, 2, 1, 40, 100, 1.5, (machine,), TierCounters(), 0, 0, 0, 0, 0, False)
    assert store.status() is None

    store.write_status(status)
    assert store.status() == status
    store.write_status(replace(status, stage=None, over=True))
    assert store.status() == replace(status, stage=None, over=True)
    (file,) = tmp_path.rglob("status*")
    text = file.read_text()
    file.write_text(text.replace('"version":1', '"version":2', 1))
    with pytest.raises(NewerFormat, match="a parameter server's status has version 2"):
        store.status()
    file.write_text(text[:-9])
    with pytest.raises(LogDamaged, match="tiers/status cannot be read"):
        store.status()


def test_the_two_newest_checkpoints_remain(store: ObjectTierStore, tmp_path: Path) -> None:
    """A machine may still be reading the last one; keys that are no part of a checkpoint stay."""
    log = StoredLog(store, USUAL, lambda: WallTime(0.0), FIRST.checkpoint)
    others = {"tiers/checkpoints/notes", "tiers/checkpoints/1-x/0000"}
    for key in others:
        store._store.put(key, b"unknown")
    layout = FIRST
    assert asyncio.run(log.write(layout))
    for number, stored in enumerate([StoredClock(0, 40), StoredClock(0, 80), StoredClock(1, 60), StoredClock(1, 100)]):
        for part in range(2):
            store.save(part, stored, np.zeros((1, 1)))
        layout = replace(layout, version=number + 2, checkpoint=stored)
        assert asyncio.run(log.write(layout))

    assert set(store._store.list("tiers/checkpoints/")) == others | {
        f"tiers/checkpoints/{name}/{part:04d}" for name in ("1-60", "1-100") for part in range(2)
    }
    assert store.newest_layout() == layout


def test_a_layout_of_another_coordinator_deletes_nothing(store: ObjectTierStore) -> None:
    """The log's newest record is another's, so its checkpoint is not this one's to judge by."""
    store.save(0, StoredClock(0, 20), np.zeros((1, 1)))
    store.save(0, StoredClock(0, 40), np.zeros((1, 1)))
    log = StoredLog(store, USUAL, lambda: WallTime(0.0), StoredClock(0, 40))
    store.write_layout(FIRST)

    assert not asyncio.run(log.write(replace(FIRST, nonce="other", checkpoint=StoredClock(0, 80))))
    assert len(list(store._store.list("tiers/checkpoints/"))) == 2
