"""Several ranks on one machine: whoever hears of the end, all save the same step, or no point is committed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from tests.real import training_plain
from tests.real.machines import QUICK, Machine, Run, descendants, with_path
from windfall.storage import object_stores, restore
from windfall.terms import RecordKind

STEPS = 60
ROOT = Path(__file__).parents[2]
NEVER = (*QUICK[:2], *QUICK[4:], "--policy", "never")


class Ranks:
    """A run of several ranks."""

    def __init__(self, folder: Path, ranks: int, apart: int = 4, steps: int = STEPS) -> None:
        self.run = Run(folder, steps)
        self.ranks = ranks
        self.variables = {"RANKS": ranks, "MEET": apart, "MEETINGS": folder / "meetings", "PYTHONPATH": with_path(ROOT)}

    def machine(self, **more: object) -> contextlib.AbstractContextManager[Machine]:
        return self.run.machine(sys.executable, "-m", "tests.real.training_ranks", **{**self.variables, **more})

    def rank_pids(self, machine: Machine) -> list[int]:
        """The ranks' processes, lowest rank first."""
        found = []
        for pid in sorted(descendants(machine.supervisor)):
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ranks = [word for word in variables if word.startswith(b"RANK=")]
                if ranks:
                    found.append((int(ranks[0][5:]), pid))
        return [pid for _, pid in sorted(found)]

    def check_points(self) -> int:
        """Every point that was ever committed has each rank's part, all of the same step; return how many."""
        refs = {ref.checkpoint_id: ref for record in self.run.records() for ref in record.state.checkpoints}
        commits = [record for record in self.run.records() if record.kind is RecordKind.COMMIT]
        assert len(refs) == len(commits)
        reader = object_stores.open_reader(self.run.url)
        for ref in self.run.state().checkpoints:
            checkpoint = reader.run(restore.read_manifest(ref))
            assert [shard.rank for shard in checkpoint.shards] == list(range(self.ranks))
            assert all(shard.name.startswith(f"rank{shard.rank}-{ref.step}-") for shard in checkpoint.shards)
        return len(refs)

    def finish(self) -> None:
        """Let the next machine end the run, and compare every rank's state."""
        before = self.run.committed_step()
        with self.machine() as machine:
            assert machine.code() == 0, machine.printed
        assert {step for _, step in machine.starts()} == {before}
        assert len(machine.starts()) == self.ranks
        self.run.check()
        self.check_points()
        for rank in range(self.ranks):
            assert self.run.newest(rank) == training_plain.undisturbed(STEPS, rank)


@pytest.mark.real
def test_ranks_that_are_steps_apart_save_the_same_step(tmp_path: Path) -> None:
    """A notice while the fastest of three is up to three steps ahead: one emergency save, all parts, nothing redone."""
    ranks = Ranks(tmp_path, 3)
    with ranks.machine(SLOW_FROM=13) as machine:
        machine.until_step(13)
        os.kill(machine.supervisor, signal.SIGTERM)
        assert machine.code() == 75, machine.printed
    assert ranks.check_points() >= 1
    assert ranks.run.committed_step() >= 13
    ranks.finish()


@pytest.mark.real
def test_a_rank_in_evaluation_is_waited_for(tmp_path: Path) -> None:
    """The notice comes while one rank evaluates and the other waits at a meeting: both save the same step afterwards."""
    ranks = Ranks(tmp_path, 2)
    with ranks.machine(options=NEVER, HOLD="evaluation:25") as machine:
        machine.until_held()
        os.kill(machine.supervisor, signal.SIGTERM)
        machine.until("this machine will be preempted in")
        machine.let_go()
        assert machine.code() == 75, machine.printed
    assert ranks.check_points() == 1
    assert ranks.run.committed_step() >= 25
    ranks.finish()


@pytest.mark.real
def test_without_every_part_nothing_is_committed(tmp_path: Path) -> None:
    """One of two ranks never asks whether to save: the machine is taken, and no half of a point is stored."""
    ranks = Ranks(tmp_path, 2, steps=5000)
    with ranks.machine(options=(*QUICK[:-1], "3s"), LAZY=1) as machine:
        machine.until_step(12)
        os.kill(machine.supervisor, signal.SIGTERM)
        assert machine.code() == 75, machine.printed
    assert ranks.check_points() == 0
    assert "rank 1 finishes steps without asking whether to save" in machine.printed
    ranks.run.check()


@pytest.mark.real
def test_a_signal_to_one_rank_does_not_split_the_ranks(tmp_path: Path) -> None:
    """SIGTERM reaches the second rank alone: what is committed has both parts, and the run ends as if undisturbed."""
    ranks = Ranks(tmp_path, 2)
    with ranks.machine(options=NEVER, SLOW_FROM=12) as machine:
        machine.until_step(12)
        os.kill(ranks.rank_pids(machine)[1], signal.SIGTERM)
        assert machine.code() == 0, machine.printed
    assert ranks.check_points() >= 2
    for rank in range(2):
        assert ranks.run.newest(rank) == training_plain.undisturbed(STEPS, rank)


@pytest.mark.real
@pytest.mark.parametrize(
    "number", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_signal_to_every_process_of_the_machine_ends_in_a_save(number: int, tmp_path: Path) -> None:
    """SIGTERM to supervisor, agent, guard, launcher and ranks in any order: both ranks' parts are stored or nothing is.

    The launcher itself dies of it, as a careless one does; the ranks are its children in sessions of their own.
    """
    ranks = Ranks(tmp_path, 2)
    with ranks.machine(SLOW_FROM=25) as machine:
        machine.until_step(25)
        everyone = [machine.supervisor, *descendants(machine.supervisor)]
        random.Random(number).shuffle(everyone)
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert machine.code() == 75, machine.printed
    assert ranks.check_points() >= 1
    ranks.finish()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(10))
def test_ranks_go_on_together_after_any_loss(number: int, tmp_path: Path) -> None:
    """Notices and losses at random instants: every point has all parts of one step, each rank gets its own back."""
    seed = random.Random(number)
    ranks = Ranks(tmp_path, 2 + number % 2, apart=seed.randint(1, 5))
    for _ in range(3):
        base = ranks.run.committed_step()
        if base > STEPS - 20:
            break
        with ranks.machine() as machine:
            machine.until_step(base + seed.randint(1, 14))
            blow = seed.choice(("notice", "agent", "vanish"))
            if blow == "agent":
                machine.kill(machine.agent())
                machine.until_step(min(base + 18, STEPS))
            if blow == "notice":
                os.kill(machine.supervisor, signal.SIGTERM)
                assert machine.code() in (0, 75), machine.printed
            else:
                machine.vanish()
        ranks.check_points()
    ranks.finish()
