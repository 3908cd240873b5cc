"""Loops as people write them who have not read how steps are counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def execute(folder: Path, script: str) -> str:
    (folder / "train.py").write_text(script)
    line = [*WINDFALL, "exec", "--lease", "3s", "runs/one", "--", sys.executable, "train.py"]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.real
def test_each_save_of_a_script_without_steps_is_a_checkpoint(tmp_path: Path) -> None:
    """It dies behind its third save, goes on from there, and the newest save is what `get` brings."""
    execute(tmp_path, STEPLESS)
    line = [*WINDFALL, "get", "runs/one", "out"]
    subprocess.run(line, cwd=tmp_path, capture_output=True, check=True, timeout=60)
    (newest,) = (tmp_path / "out").iterdir()
    assert json.loads(newest.read_text()) == {"i": 40}


@pytest.mark.real
def test_a_save_before_the_end_of_its_step_crashes_nothing(tmp_path: Path) -> None:
    """One save for each epoch, then the step: each is stored, the agent lives."""
    told = execute(tmp_path, EPOCHS)
    assert "crashed" not in told
    lines = subprocess.run(
        [*WINDFALL, "points", "runs/one", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert max(json.loads(line)["step"] for line in lines) == 5
