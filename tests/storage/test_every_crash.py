"""A machine may die before and after every store operation: whoever comes next finds the newest committed point whole."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.make import Bench, claim, model
from tests.support.simulated_store import CrashingStore, Killed, digest
from windfall.ports import Steps
from windfall.storage import checkpoint_store, manifest, restore, run_log
from windfall.terms import Record, Seconds

OLD, MIDDLE, NEW = b"old" * 100, b"middle" * 100, b"new" * 100
MOST = 500

Story = Callable[[Bench, Record], Steps[object]]


def saving(bench: Bench, head: Record) -> Steps[object]:
    yield from bench.save_steps(head, 3, bench.folder / "third")


def retiring(bench: Bench, head: Record) -> Steps[object]:
    _, head = yield from bench.save_steps(head, 3, bench.folder / "third")
    oldest = head.state.checkpoints[:1]
    head = yield from checkpoint_store.drop(head, oldest, nonce="drop", wall_time=bench.clock.wall_time())
    yield from checkpoint_store.delete(head, oldest, grace_s=Seconds(1.0))


def taking(bench: Bench, head: Record) -> Steps[object]:
    yield from run_log.acquire(claim("second", "two"), holder_is_dead=lambda _: True, wall_time=bench.clock.wall_time)


def taking_and_sweeping(bench: Bench, head: Record) -> Steps[object]:
    acquired = yield from run_log.acquire(
        claim("second", "two"), holder_is_dead=lambda _: True, wall_time=bench.clock.wall_time
    )
    yield from checkpoint_store.sweep(acquired.record, grace_s=Seconds(1.0))


def restoring(bench: Bench, head: Record) -> Steps[object]:
    yield from restore.restore(tuple(reversed(head.state.checkpoints)), str(bench.folder / "first-try"))


def begin(folder: Path) -> tuple[Bench, Record]:
    """A run with two points, a third on the disk, and what an upload that never ended left behind."""
    bench = Bench(folder)
    head = bench.acquire("first").record
    for step, content in ((1, OLD), (2, MIDDLE)):
        _, head = bench.save(head, step, content)
    bench.part(NEW).rename(folder / "third")
    bench.store.put("shards/00000001-first/9-1-lost/0/x", b"left behind")
    return bench, head


def die_at(folder: Path, story: Story, deadly: int) -> CrashingStore | None:
    """Let the story die at one failpoint and check what the next machine finds; None when the story got to its end."""
    bench, head = begin(folder)
    crashing = CrashingStore(bench.store, bench.clock, deadly)
    died = False
    try:
        crashing.drive(story(bench, head))
    except Killed:
        died = True
    every_manifest_has_its_bytes(bench)
    before = len(head.state.checkpoints)
    record = bench.run(run_log.read_head())
    assert record is not None
    expected = NEW if any(checkpoint.step == 3 for checkpoint in record.state.checkpoints) else MIDDLE
    assert len(record.state.checkpoints) >= before
    for again in ("next", "after-next"):
        acquired = bench.acquire(again, again)
        assert acquired.mine
        assert bench.run(checkpoint_store.sweep(acquired.record, grace_s=Seconds(0.0))) >= 0
        restored, place = bench.restore(acquired.record, again)
        assert restored.skipped == ()
        assert model(place) == expected
    live = {ref.checkpoint_id for ref in acquired.record.state.checkpoints}
    left = [key for key in bench.store.objects if key.startswith(("shards/", "checkpoints/"))]
    assert all(any(checkpoint_id in key for checkpoint_id in live) for key in left), "the sweep left garbage"
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(bench.folder / "first-try.restoring")
    return crashing if died else None


def every_manifest_has_its_bytes(bench: Bench) -> None:
    """A point is there whole or not at all, whether the log names it or not."""
    for key in bench.store.list("checkpoints/"):
        for shard in manifest.from_bytes(bench.store.objects[key], key).shards:
            for chunk in (chunk for entry in shard.files for chunk in entry.chunks):
                assert digest(bench.store.objects.get(chunk.key, b"")) == chunk.digest


@pytest.mark.parametrize("story", [saving, retiring, taking, taking_and_sweeping, restoring])
def test_the_next_machine_finds_the_newest_point_whole(story: Story, tmp_path: Path) -> None:
    """Dying before or after any operation costs at most what was not committed yet, and the sweep leaves no garbage."""
    visited: Counter[str] = Counter()
    for deadly in range(1, MOST):
        folder = tmp_path / str(deadly)
        folder.mkdir()
        crashed = die_at(folder, story, deadly)
        if crashed is None:
            break
        assert len(crashed.passed) == deadly
        visited[crashed.passed[-1]] += 1
    else:
        pytest.fail(f"{story.__name__} passes more than {MOST} failpoints")
    complete = everything_passed(tmp_path / "complete", story)
    assert visited == Counter(complete), "a failpoint was not visited"
    print(f"{story.__name__}: died at {visited.total()} failpoints: {dict(sorted(visited.items()))}")


def everything_passed(folder: Path, story: Story) -> list[str]:
    """Return the failpoints of the story when nothing dies."""
    folder.mkdir()
    bench, head = begin(folder)
    crashing = CrashingStore(bench.store, bench.clock)
    crashing.drive(story(bench, head))
    return crashing.passed


def test_a_restore_after_a_torn_restore_is_whole(tmp_path: Path) -> None:
    """What a dying machine left of a restore is thrown away by the next one into the same folder."""
    bench, head = begin(tmp_path)
    with pytest.raises(Killed):
        CrashingStore(bench.store, bench.clock, 5).drive(restoring(bench, head))
    assert (tmp_path / "first-try.restoring").exists()
    assert not (tmp_path / "first-try").exists()
    _, place = bench.restore(head, "first-try")
    assert model(place) == MIDDLE
    assert not (tmp_path / "first-try.restoring").exists()
