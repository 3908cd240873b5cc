"""With a notice a fifth longer than the measured parts of a save, no step is done twice.

So short a notice needs a machine that keeps its pace: those tests belong to `make verify AREA=emergency`.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from tests.emergency.cloud import Cloud, Work
from tests.emergency.measured import Parts, parts_of
from windfall import events as ev

pytestmark = pytest.mark.real
MARGIN, AMPLE = 1.2, 4.0


def _measures(cloud: Cloud, saves: int) -> Parts:
    """Let a first machine save a number of times, and measure."""
    with cloud.machine(dataclasses.replace(cloud.work, policy="every 10 steps")) as machine:
        machine.commits(saves)
        return parts_of(machine.spool, [machine.moments])


def _loses(tmp_path: Path, work: Work, *, losses: int, saves: int, seed: int, margin: float = MARGIN) -> None:
    cloud, rng = Cloud(tmp_path, work), random.Random(seed)
    parts = _measures(cloud, saves)
    print(f"\nstate {work.size_bytes / 1e6:g} MB at {work.rate_bytes_per_s / 1e6:g} MB/s: {parts}")
    redone = []
    last: int | None = None
    for _ in range(losses):
        with cloud.machine() as machine:
            if last is not None:
                redone.append(last - machine.resumed_at)
            machine.trains_for(rng.randint(10, 60))
            notice_s = margin * parts.sum_s
            deadline = machine.announce(notice_s)
            machine.preemption_at(deadline)
            last = machine.step
    with cloud.machine() as machine:
        assert last is not None
        redone.append(last - machine.resumed_at)
    final = parts_of(list(cloud.shipped()), [machine.moments for machine in cloud.machines])
    print(f"{losses} losses with {notice_s:.2f} s of notice, redone steps: {redone}; in all {final}")
    assert redone == [0] * losses
    assert cloud.differences() == []


def test_no_step_is_redone(tmp_path: Path) -> None:
    """The next machine resumes at the very step that the last one completed, its state whole; with a notice to spare."""
    _loses(tmp_path, Work(4_000_000, 4_000_000), losses=2, saves=2, seed=1, margin=AMPLE)


def _is_told_while_uploading(tmp_path: Path, *, seed: int) -> None:
    cloud = Cloud(tmp_path, Work(2_000_000, 8_000_000, policy="every 5 steps"))
    with cloud.machine() as machine:
        machine.commits(4)
        # The fifth upload has begun with the fourth commit and takes 4 s; the announcement may wait another second.
        machine.trains_for(machine.step - machine.resumed_at + random.Random(seed).randint(1, 30))
        parts = parts_of(machine.spool, [machine.moments])
        machine.preemption_at(machine.announce(MARGIN * parts.sum_s))
        last = machine.step
        assert "without asking" not in machine.output
    with cloud.machine() as machine:
        assert machine.resumed_at == last, cloud.machines[0].output
    abandoned = [
        command.reason for row in cloud.rows() for command in row.commands if isinstance(command, ev.AbandonCheckpoint)
    ]
    assert any("needs the uplink" in reason for reason in abandoned)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_a_notice_finds_the_uplink_busy(tmp_path: Path, seed: int) -> None:
    """The upload of an older insurance point is stopped at once, early or late, and the emergency save has the whole line."""
    _is_told_while_uploading(tmp_path, seed=seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("size_bytes", "rate_bytes_per_s", "losses"),
    [(4_000_000, 1_300_000, 7), (12_000_000, 4_000_000, 7), (40_000_000, 13_000_000, 6)],
)
def test_no_step_is_redone_in_twenty_losses(
    tmp_path: Path, size_bytes: int, rate_bytes_per_s: int, losses: int
) -> None:
    """States from 4 to 40 MB, each measured five times beforehand."""
    work = Work(rate_bytes_per_s, size_bytes, step_s=0.04)
    _loses(tmp_path, work, losses=losses, saves=5, seed=size_bytes)
