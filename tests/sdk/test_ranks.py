"""Several ranks on a machine, started by torchrun: each hands over its part and finds it again."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.fake_agent import FakeAgent, finish, start
from windfall.wire import environment, script_page

SCRIPT = Path(__file__).with_name("training_ranks.py")


def _start(agent: FakeAgent, steps: int, **more: str):
    variables = agent.environment(step=int(more.get(environment.STEP, "0"))) | {"STEPS": str(steps)} | more
    del variables["RANK"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    return start(launcher, variables)


def _results(out: str) -> list[str]:
    return sorted(line for line in out.splitlines() if line.startswith("RANK"))


@pytest.mark.real
@pytest.mark.slow
def test_ranks_resume_with_their_own_generators_and_positions(tmp_path: Path) -> None:
    """The first rank's part has the weights, the other's its own dropout and data; together they go on bit for bit."""
    whole = _results(finish(_start(FakeAgent(tmp_path / "whole"), 11)))
    assert len(whole) == 2

    agent, go = FakeAgent(tmp_path / "first"), tmp_path / "go"
    process = _start(agent, 11, GO=str(go))
    for rank in (0, 1):
        assert agent.words(rank)[script_page.LOCAL_WORLD] == 2
        script_page.publish(agent.words(rank), request=1, target=6, exact=True, kind=3)
    go.touch()
    finish(process)
    checkpoint = tmp_path / "checkpoint"
    for rank in (0, 1):
        (backup,) = agent.backups(rank)
        assert (backup["step"], backup["request"]) == (6, 1)
        (checkpoint / str(rank)).mkdir(parents=True)
        shutil.copy(str(backup["path"]), checkpoint / str(rank))
    sizes = [next((checkpoint / str(rank)).iterdir()).stat().st_size for rank in (0, 1)]
    assert sizes[1] < sizes[0]

    first = str(next((checkpoint / "0").iterdir()))
    restored = {environment.CHECKPOINT_DIR: str(checkpoint), environment.CHECKPOINT: first, environment.STEP: "6"}
    assert _results(finish(_start(FakeAgent(tmp_path / "second"), 11, **restored))) == whole
    alone = FakeAgent(tmp_path / "alone").environment(step=6) | restored | {"STEPS": "11", "PYTHONPATH": os.curdir}
    single = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", str(SCRIPT)]
    del alone["RANK"]
    _, err = (process := start(single, alone)).communicate(timeout=60)
    assert process.returncode != 0
    assert "is the shard of rank 0 of 2, but this is rank 0 of 1: start the script with 2 ranks" in err
