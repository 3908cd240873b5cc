"""A question is answered without a daemon: `plan` and `simulate` ask the controller only if one runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.left import killed_at_the_end, processes_of
from tests.support.live import WINDFALL, plain_environment
from windfall.cli import client

JOB = "run: python train.py\nwork: {steps: 1000}\nresources: {infra: local}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a job file, and no installation yet."""
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def windfall(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb with the installation in `state`."""
    line = [*WINDFALL, *words, "--state", str(home / "state")]
    return subprocess.run(
        line, cwd=home, env=plain_environment(), capture_output=True, text=True, timeout=60, check=False
    )


def _offers(home: Path) -> list[dict[str, Any]]:
    """What a plan rests on: the chosen offer and the others, without the moment of the question."""
    planned = windfall(home, "plan", "job.yaml", "--json")
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout)
    ranked = (found["chosen"], *found["alternatives"])
    return [{name: value for name, value in one["offer"].items() if name != "quoted_at"} for one in ranked]


def test_a_plan_starts_no_process_and_writes_nothing(home: Path) -> None:
    """A user who only asks what a job would cost has no daemon afterwards, nor a folder."""
    assert "spot of local" in windfall(home, "plan", "job.yaml").stdout
    numbers = ("--step", "1s", "--save", "1s", "--upload", "1s", "--trials", "50")
    assert "price of a machine" in windfall(home, "simulate", "job.yaml", *numbers).stdout
    assert not (home / "state").exists()
    assert processes_of(home) == {}


def test_the_answer_is_the_controllers(home: Path) -> None:
    """One planner answers for both; with a controller it answers there."""
    alone = _offers(home)
    with killed_at_the_end(home), client.connect(home / "state", start=True):
        assert processes_of(home) != {}
        assert _offers(home) == alone
    assert _offers(home) == alone


def test_a_wrong_market_is_one_sentence(home: Path) -> None:
    """As with a controller: the file, and what is wrong in it."""
    (home / "state" / "market").mkdir(parents=True)
    (home / "state" / "market" / "market.yaml").write_text("zones: 7\n")
    refused = windfall(home, "plan", "job.yaml")
    assert refused.returncode == 2
    assert "market.yaml" in refused.stderr
    assert "Traceback" not in refused.stderr
