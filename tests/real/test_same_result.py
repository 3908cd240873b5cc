"""Whatever is lost at whatever moment: the final state is, byte for byte, that of a run which nobody disturbed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.real.machines import Run, wait_for
from windfall.terms import Outcome, RecordKind

STEPS = 120
MOMENTS = ("save", "upload", "commit", "restore", "start", "resume", "evaluation", "step")
FAILPOINTS = {
    "upload": ("store.put_range:before", "store.put_range:middle", "store.put_range:after"),
    "commit": ("store.create:before", "file.link:before", "file.link:after", "store.create:after"),
    "restore": ("store.get_range:before", "store.get_range:after"),
}


def lose(run: Run, moment: str, seed: random.Random) -> str:
    """Start a machine and take it away at a moment; return what exactly was done."""
    if moment in FAILPOINTS:
        # The log's first creations take the run; those of a commit come after them.
        count = seed.randint(3, 6) if moment == "commit" else 1
        exact = f"{seed.choice(FAILPOINTS[moment])}:{count}"
        with run.machine(WINDFALL_FAILPOINT=exact) as machine:
            machine.until_agent_dies()
            machine.vanish()
        assert run.state().outcome is Outcome.RUNNING, f"{exact} was not passed:\n{machine.printed}"
        return exact
    exact = f"step:{run.committed_step() + seed.randint(1, 9)}" if moment == "step" else moment
    with run.machine(HOLD=exact) as machine:
        machine.until_held()
        machine.vanish()
    return exact


def begin(run: Run, seed: random.Random) -> str:
    """Lose the first machine when it has stored something: only then there is something to restore."""
    exact = f"step:{seed.randint(20, 30)}"
    with run.machine(HOLD=exact, STEP_S=0.02) as machine:
        machine.until_held()
        wait_for(run.committed_step, "a first point")
        machine.vanish()
    return exact


def live(folder: Path, number: int) -> None:
    """Lose a machine at several moments, in an order that the seed chooses, and finish on the last one."""
    seed = random.Random(number)
    run = Run(folder, STEPS)
    lost = [begin(run, seed)]
    for moment in (MOMENTS[number % len(MOMENTS)], *seed.sample(MOMENTS, 2)):
        lost.append(lose(run, moment, seed))
        run.check()
    assert run.committed_step() < STEPS
    with run.machine() as last:
        assert last.code() == 0, last.printed
    run.check_done()
    assert run.state().preemptions == sum(record.kind is RecordKind.ACQUIRE for record in run.records()) - 1
    print(f"seed {number}: lost at {', '.join(lost)}; {len(run.records())} records")


@pytest.mark.real
@pytest.mark.parametrize("number", [0, 2, 3])
def test_losses_leave_no_trace_in_the_result(number: int, tmp_path: Path) -> None:
    """Four machines are lost in the middle of something, and the final state is byte-identical."""
    live(tmp_path, number)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(100, 120))
def test_twenty_stories_of_losses_leave_no_trace(number: int, tmp_path: Path) -> None:
    """Four losses each during step, save, upload, commit, restore, start and evaluation, twenty seeds."""
    live(tmp_path, number)
