"""The account agrees with what scripts wrote down themselves of their steps, whoever is killed, and whenever."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.strangers.losing import (
    SCRIPT,
    WINDFALL,
    Run,
    cost,
    count,
    disagreements,
    read_lives,
)

STEP_S = 0.02


def lost(folder: Path, seed: int, losses: int, life_s: tuple[float, float]) -> list[str]:
    """Lose a run so often, finish it, and return where its account and its script's log differ."""
    run = Run(folder, 50, STEP_S, every=50)
    run.lose(random.Random(seed), losses, life_s)
    counted = count(read_lives(run.log))
    told = run.cost()
    assert (told["steps"], run.losses) == (run.steps, losses)
    return disagreements(told, counted, losses=run.losses, step_s=STEP_S, held_s=run.machine_s)


@pytest.mark.real
@pytest.mark.trial("D1")
def test_steps_computed_again_are_those_of_the_script_s_own_log(tmp_path: Path) -> None:
    """A machine is killed amid its work, with rows that it never shipped: the account knows the steps all the same."""
    run = Run(tmp_path, 150, STEP_S, every=1000)
    run.lose(random.Random(1), 1, (2.0, 2.4), ("tree",))
    counted = count(read_lives(run.log))

    assert disagreements(run.cost(), counted, losses=1, step_s=STEP_S, held_s=run.machine_s) == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("seed", "losses", "life_s"),
    [(1, 20, (0.0, 0.6)), (2, 20, (0.2, 2.0)), (3, 20, (0.5, 4.0)), (4, 10, (6.0, 14.0))],
    ids=["at-once", "short", "middling", "long"],
)
def test_seventy_losses_under_exec(tmp_path: Path, seed: int, losses: int, life_s: tuple[float, float]) -> None:
    """Script, agent, supervisor or the whole tree, killed at random instants: the counts agree in every loss."""
    assert lost(tmp_path, seed, losses, life_s) == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mttp", ["4s", "9s"])
def test_losses_on_the_local_market(tmp_path: Path, mttp: str) -> None:
    """Machines of the market end without notice, and nothing of them is left; with the seventy above, a hundred."""
    state = tmp_path / "state"
    run = Run(tmp_path / "log", 6500 if mttp == "9s" else 4000, STEP_S, every=50)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(SCRIPT)
    numbers = {"STEPS": str(run.steps), "STEP_S": str(STEP_S), "EVERY": "50", "STEPS_LOG": str(run.log)}
    job = {"name": "lost", "workdir": ".", "run": f"{shlex.quote(sys.executable)} train.py", "envs": numbers}
    (tmp_path / "work" / "job.yaml").write_text(json.dumps(job))
    environment = run.environment() | {"XDG_STATE_HOME": str(state)}

    def say(*words: str) -> str:
        done = subprocess.run(
            [*WINDFALL, *words], cwd=tmp_path / "work", env=environment, capture_output=True, text=True,
            timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    say("run", "-y", "job.yaml", "--inject", f"mttp={mttp},seed=5,notice=none")
    told = cost("lost", environment)
    losses = sum(one["outcome"] == "preempted" for one in told["machines"])
    held_s = sum(one["hours"] for one in told["machines"]) * 3600
    counted = count(read_lives(run.log))

    print(f"{losses} losses, a machine in {mttp} on average")
    assert losses >= 15
    assert disagreements(told["run"], counted, losses=losses, step_s=STEP_S, held_s=held_s) == []
