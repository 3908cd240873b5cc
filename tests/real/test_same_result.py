"""Whatever is lost at whatever moment: the final state is, byte for byte, that of a run which nobody disturbed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.real.machines import Machine, Run, wait_for

STEPS = 75
MOMENTS = ("step", "save", "upload", "commit", "restore", "start", "evaluation")
UPLOADS = ("store.put_range:before", "store.put_range:after", "file.write:after")
COMMITS = ("store.create:before", "store.create:after", "file.link:before", "file.link:after")
RESTORES = ("store.get_range:before", "store.get_range:after", "file.read:after")


def lose(run: Run, moment: str, seed: random.Random) -> str:
    """Start a machine and take it away at a moment; return what exactly was done."""
    base = run.committed_step()
    ahead = base + seed.randint(1, 14)
    exact = {
        "step": {"HOLD": f"step:{ahead}"},
        "save": {"HOLD": ",".join(f"save:{step}" for step in range(base + 1, STEPS + 1))},
        "start": {"HOLD": seed.choice(("start", "resume" if base else "start"))},
        "evaluation": {"HOLD": ",".join(f"evaluation:{step}" for step in range(base + 1, STEPS + 1))},
        "upload": {"WINDFALL_FAILPOINT": f"{seed.choice(UPLOADS)}:1"},
        "commit": {"WINDFALL_FAILPOINT": f"{seed.choice(COMMITS)}:{seed.randint(4, 9)}"},
        "restore": {"WINDFALL_FAILPOINT": f"{seed.choice(RESTORES)}:1"},
    }[moment]
    with run.machine(**exact) as machine:
        if "HOLD" in exact:
            machine.until_held()
        else:
            until_agent_dies(machine)
        machine.vanish()
    return f"{moment} ({', '.join(exact.values())})"


def until_agent_dies(machine: Machine) -> None:
    """Wait until the agent has killed itself (the supervisor would start another), or the run was over before."""
    known: set[int] = set()

    def changed() -> bool:
        agent = machine.agent()
        if agent is not None:
            known.add(agent)
        return machine.ended or len(known) > 1 or (bool(known) and agent is None)

    wait_for(changed, f"the agent dies at its failpoint:\n{machine.printed[-2000:]}")


def live(folder: Path, number: int) -> None:
    """Lose a machine at some of the moments, in an order that the seed chooses, and finish on the last one."""
    seed = random.Random(number)
    run = Run(folder, STEPS)
    lost = []
    for moment in [MOMENTS[number % len(MOMENTS)], *seed.sample(MOMENTS, 2)]:
        if run.committed_step() < STEPS - 20:
            lost.append(lose(run, moment, seed))
            run.check() if run.records() else None
    with run.machine() as last:
        assert last.code() == 0, last.printed
    run.check_done()
    print(f"seed {number}: lost at {'; '.join(lost)}; {len(run.records())} records")  # noqa: T201


@pytest.mark.real
@pytest.mark.parametrize("number", [1, 3, 5])
def test_losses_leave_no_trace_in_the_result(number: int, tmp_path: Path) -> None:
    """Three machines are lost in the middle of something, and the final state is byte-identical."""
    live(tmp_path, number)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(20))
def test_twenty_stories_of_losses_leave_no_trace(number: int, tmp_path: Path) -> None:
    """Losses during step, save, upload, commit, restore, start and evaluation, twenty seeds."""
    live(tmp_path, number)
