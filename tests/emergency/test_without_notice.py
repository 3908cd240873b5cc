"""A machine that vanishes without a word costs at most interval, save, upload and one step."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.emergency.cloud import Cloud, Machine, Work, decisions, facts, quoted
from tests.emergency.measured import lost_s, step_lengths
from windfall import events as ev

pytestmark = pytest.mark.real


def _bound_s(machine: Machine, restored: int) -> float:
    """What the machine's own journal allows: interval in force, longest save, upload with commit, and step [s]."""
    rows = machine.spool
    since = next(row.sequence for row, fact in facts(rows, ev.ShardHandedOver) if fact.step == restored)
    plans = decisions([row for row in rows if row.sequence >= since], "insurance save")
    interval_s = max(quoted(plan)["interval"] for plan in plans)
    snapshot_s = max((fact.stall_s for _, fact in facts(rows, ev.ShardHandedOver)), default=0.0)
    upload_s = max((fact.duration_s for _, fact in facts(rows, ev.ShardUploaded)), default=0.0)
    commit_s = max((fact.duration_s for _, fact in facts(rows, ev.CheckpointCommitted)), default=0.0)
    return interval_s + snapshot_s + upload_s + commit_s + max(step_lengths(machine.moments))


def _vanishes(tmp_path: Path, seeds: range) -> None:
    cloud = Cloud(tmp_path, Work(4_000_000, 4_000_000, policy="adaptive", options=("--mttp", "60s")))
    losses: list[tuple[Machine, float]] = []
    for seed in seeds:
        with cloud.machine() as machine:
            if losses:
                _check(*losses[-1], restored=machine.resumed_at)
            rng = random.Random(seed)
            machine.commits(rng.randint(1, 3))
            machine.trains_for(machine.step - machine.resumed_at + rng.randint(1, 120))
            machine.vanish()
            losses.append((machine, time.monotonic()))
    with cloud.machine() as machine:
        _check(*losses[-1], restored=machine.resumed_at)


def _check(machine: Machine, gone_at: float, restored: int) -> None:
    newest = max(fact.checkpoint.step for _, fact in facts(machine.spool, ev.CheckpointCommitted))
    assert restored == newest
    lost, bound = lost_s(machine, restored, gone_at), _bound_s(machine, restored)
    print(f"\nlost {lost:.2f} s ({machine.step - restored} steps) of at most {bound:.2f} s")
    assert lost <= bound


def test_the_loss_is_bounded(tmp_path: Path) -> None:
    """The first save comes early, so that the interval rests on what saving costs soon after the start."""
    _vanishes(tmp_path, range(1, 2))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_loss_is_always_bounded(tmp_path: Path) -> None:
    """Five machines of a run vanish, each at another moment between two commits."""
    _vanishes(tmp_path, range(11, 16))
