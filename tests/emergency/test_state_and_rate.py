"""What the uplink can carry within the notice is always committed; what it cannot is refused before it begins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.emergency.cloud import Cloud, Work, decisions, facts, quoted
from tests.emergency.measured import Parts, parts_of
from windfall import events as ev
from windfall.errors import EXIT_RETRY
from windfall.terms import SaveKind

pytestmark = pytest.mark.real
RATE_BYTES_PER_S = 1_000_000
FIRST_SAVE = 10
"""The trainer's own save, by which the run learns what saving costs."""


def _work(share: float, notice_s: float) -> Work:
    return Work(RATE_BYTES_PER_S, int(share * RATE_BYTES_PER_S * notice_s), first_save=FIRST_SAVE)


def _learns(cloud: Cloud, notice_s: float) -> Parts:
    """Let the first machine make the trainer's own save and one in good time before its end."""
    with cloud.machine() as machine:
        machine.commits(1)
        parts = parts_of(machine.spool, [machine.moments])
        print(f"\nnotice {notice_s:g} s, state {cloud.work.size_bytes / 1e6:g} MB at 1 MB/s: {parts}")
        assert machine.preemption_at(machine.announce(5 * notice_s)) == 75
    return parts


def _commits(tmp_path: Path, notice_s: float, *, losses: int, seed: int) -> None:
    cloud, rng = Cloud(tmp_path, _work(0.8, notice_s)), random.Random(seed)
    parts = _learns(cloud, notice_s)
    assert parts.but_upload_s <= 0.1 * notice_s, "this machine is too slow for what the test assumes"
    last = cloud.machines[-1].step
    for _ in range(losses):
        with cloud.machine() as machine:
            assert machine.resumed_at == last
            machine.trains_for(rng.randint(10, 60))
            assert machine.preemption_at(machine.announce(notice_s)) == 75, machine.output
            last = machine.step
            assert f"step {last} is stored" in machine.output
    with cloud.machine() as machine:
        assert machine.resumed_at == last


def _is_refused(tmp_path: Path, notice_s: float, *, losses: int, seed: int) -> None:
    cloud, rng = Cloud(tmp_path, _work(1.2, notice_s)), random.Random(seed)
    _learns(cloud, notice_s)
    stored = cloud.machines[-1].step
    for _ in range(losses):
        with cloud.machine() as machine:
            assert machine.resumed_at == stored
            machine.trains_for(rng.randint(10, 60))
            machine.preemption_at(machine.announce(notice_s))
            assert machine.step > stored + 10, "the trainer works on to the end"
            assert "ends too soon for another save" in machine.output
    with cloud.machine() as machine:
        assert machine.resumed_at == stored
    rows = [row for row in cloud.rows() if row.term > 1]
    refusals = decisions(rows, "no emergency save: it would not be committed in time")
    assert len(refusals) == losses
    for refusal in refusals:
        numbers = quoted(refusal)
        assert numbers["upload"] > numbers["remaining"]
    assert decisions(rows, "emergency save") == []
    assert [command for row in rows for command in row.commands if isinstance(command, ev.UploadShard)] == []


def _is_forced(tmp_path: Path, notice_s: float, seed: int) -> None:
    cloud, rng = Cloud(tmp_path, _work(1.2, notice_s)), random.Random(seed)
    with cloud.machine() as machine:
        # Gone right after its first commit: no record says yet what that save cost.
        machine.commits(1)
    with cloud.machine() as machine:
        assert machine.resumed_at == FIRST_SAVE
        machine.trains_for(rng.randint(10, 60))
        code = machine.preemption_at(machine.announce(notice_s))
        assert code == EXIT_RETRY  # it lets go in time, whatever is tried: nobody has to wait for its lease
    rows = [row for row in cloud.rows() if row.term > 1]
    with cloud.machine() as machine:
        assert machine.resumed_at == FIRST_SAVE
    (tried,) = decisions(rows, "emergency save")
    assert "its cost is unknown: trying anyway" in tried.choice
    uploads = [command for row in rows for command in row.commands if isinstance(command, ev.UploadShard)]
    assert [upload.kind for upload in uploads] == [SaveKind.EMERGENCY]
    assert facts(rows, ev.CheckpointCommitted) == []


def test_a_state_of_six_fifths_is_refused_beforehand(tmp_path: Path) -> None:
    """The decision says so with its numbers, nothing is uploaded, the trainer is not held up, the older point stands."""
    _is_refused(tmp_path, 4.0, losses=1, seed=2)


@pytest.mark.slow
@pytest.mark.trial("A5")
def test_an_attempt_all_the_same_fails_and_harms_nothing(tmp_path: Path) -> None:
    """A run that does not know its costs yet tries, and lets go before its end: the older point is whole."""
    _is_forced(tmp_path, 4.0, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "notice_s"), [(1, 4.0), (11, 3.0), (12, 3.5), (13, 4.5), (14, 5.0), (15, 6.0)])
def test_four_fifths_are_always_committed(tmp_path: Path, seed: int, notice_s: float) -> None:
    """Three losses each; rest of the step, snapshot and commit take no more than a tenth of the notice."""
    _commits(tmp_path, notice_s, losses=3, seed=seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "notice_s"), [(21, 3.0), (22, 3.5), (23, 4.5), (24, 5.0), (25, 6.0)])
def test_six_fifths_are_always_refused(tmp_path: Path, seed: int, notice_s: float) -> None:
    """Three losses each."""
    _is_refused(tmp_path, notice_s, losses=3, seed=seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("seed", "notice_s"), [(31, 3.0), (32, 3.5), (33, 4.5), (34, 5.0), (35, 6.0)])
def test_six_fifths_always_fail_when_forced(tmp_path: Path, seed: int, notice_s: float) -> None:
    """The older point is whole each time."""
    _is_forced(tmp_path, notice_s, seed)
