"""Verbs that plan and simulate, with a controller that knows our numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.posing import Controller
from windfall.cli import client
from windfall.cli.main import main

JOB = """
name: gpt
run: python train.py
work: {steps: 5000}
"""
RunVerb = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A controller with one offer, one earlier run of the job, and no lifetimes."""
    made = Controller()
    monkeypatch.setattr(client, "planner", lambda *_, **__: made)
    monkeypatch.setenv("COLUMNS", "80")
    return made


@pytest.fixture
def run_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunVerb:
    """Run a verb on a job file; returns exit code, what was printed, and the errors."""
    (tmp_path / "job.yaml").write_text(JOB)

    def run(verb: str, *words: str, job: str = "") -> tuple[int, str, str]:
        if job:
            (tmp_path / "job.yaml").write_text(job)
        code = main([verb, str(tmp_path / "job.yaml"), "--state", str(tmp_path / "state"), *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
