"""Loops as people write them who have not read how steps are counted."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import WINDFALL

STEPLESS = """
import json, os, windfall as wf
i = json.load(open(c))["i"] if (c := wf.last()) else 0
while i < 40:
    i += 1
    if i % 10 == 0:
        p = f"ck-{i}.json"; json.dump({"i": i}, open(p, "w")); wf.backup(p)
    if i == 35 and not os.path.exists("died"):
        open("died", "w"); os.kill(os.getpid(), 9)
"""
EPOCHS = """
import time, windfall as wf
for e in range(6):
    time.sleep(0.3); open(f"e{e}", "w").write(str(e)); wf.backup(f"e{e}"); wf.step()
"""


TWO_SAVES = """
import time, windfall as wf
for i in range(2):
    time.sleep(0.5); open(f"s{i}", "w").write(str(i)); wf.backup(f"s{i}")
"""
SEVERAL = """
import os, time, windfall as wf
wf.step()
for j in range(4):
    os.makedirs(f"try-{j}"); open(f"try-{j}/model", "w").write(str(j)); wf.backup(f"try-{j}/model")
"""
SHELL = f"""
for i in 1 2 3; do sleep 0.1; echo $i > s$i; {shlex.join(WINDFALL)} backup s$i; done
"""


def execute(folder: Path, script: str, *options: str, runner: str = sys.executable) -> str:
    (folder / "train.py").write_text(script)
    line = [*WINDFALL, "exec", "--lease", "3s", *options, "runs/one", "--", runner, "train.py"]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def told(folder: Path, *words: str) -> list[dict[str, Any]]:
    """What a verb prints as JSON, one object a line."""
    said = subprocess.run(
        [*WINDFALL, *words, "--json"], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    return [json.loads(line) for line in said.stdout.splitlines()]


def spent(folder: Path) -> dict[str, float]:
    (account,) = told(folder, "cost", "runs/one")
    return dict(account["spent"])


@pytest.mark.real
def test_each_save_of_a_script_without_steps_is_a_checkpoint(tmp_path: Path) -> None:
    """It dies behind its third save, goes on from there, and the newest save is what `get` brings."""
    execute(tmp_path, STEPLESS)
    line = [*WINDFALL, "get", "runs/one", "out"]
    subprocess.run(line, cwd=tmp_path, capture_output=True, check=True, timeout=60)
    (newest,) = (tmp_path / "out").iterdir()
    assert json.loads(newest.read_text()) == {"i": 40}


@pytest.mark.real
def test_work_ahead_of_a_save_is_training_and_the_save_the_user_s_own(tmp_path: Path) -> None:
    """One save for each epoch, then the step, with a request at each: all stay, and the work is no standstill."""
    said = execute(tmp_path, EPOCHS, "--policy", "every:1steps")
    assert "crashed" not in said
    checkpoints = told(tmp_path, "checkpoints", "runs/one")
    assert [(checkpoint["step"], checkpoint["kind"]) for checkpoint in checkpoints] == [
        (step, "periodic") for step in range(5, -1, -1)
    ]
    where = spent(tmp_path)
    assert where["compute_s"] >= 5 * 0.3, where
    assert where["save_s"] <= 0.3, where


@pytest.mark.real
def test_the_work_of_a_script_without_steps_is_training(tmp_path: Path) -> None:
    """It calls at its saves alone: what lies between them, and before the first, was not its start."""
    execute(tmp_path, TWO_SAVES)
    where = spent(tmp_path)
    assert where["compute_s"] >= 2 * 0.5, where
    assert where["start_s"] < 0.5, where


@pytest.mark.real
def test_saves_from_a_shell_are_the_user_s_own_and_the_work_between_them_training(tmp_path: Path) -> None:
    """Nobody can ask a shell script for a save: each of its own stays, whatever was asked for meanwhile."""
    execute(tmp_path, SHELL, "--policy", "every:1steps", runner="sh")
    checkpoints = told(tmp_path, "checkpoints", "runs/one")
    assert [(checkpoint["step"], checkpoint["kind"]) for checkpoint in checkpoints] == [
        (step, "periodic") for step in (3, 2, 1)
    ]
    where = spent(tmp_path)
    assert where["start_s"] < where["compute_s"] / 5, where


@pytest.mark.real
def test_nothing_handed_over_within_a_step_is_lost_when_the_script_ends_there(tmp_path: Path) -> None:
    """Four paths of one name at a step that never ends: the first is the checkpoint, the others are results by name."""
    execute(tmp_path, SEVERAL)
    results = {result["name"] for result in told(tmp_path, "checkpoints", "runs/one", "--results")}
    assert results == {"model", "try-1-model", "try-2-model"}
    assert [checkpoint["step"] for checkpoint in told(tmp_path, "checkpoints", "runs/one")] == [1]
    subprocess.run([*WINDFALL, "get", "runs/one", "out", "--results"], cwd=tmp_path, check=True, timeout=60)
    assert sorted(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()) == ["1", "2", "3"]
