"""`windfall simulate` of an elastic training: what it comes to beside other ways to train, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windfall.cli.main import main

JOB = """
name: words
run: "true"
work: {steps: 2000}
runtime:
  elastic:
    nodes: 2..4
    profile:
      batch: 64
      micro_batch: 4
      layers: [{count: 9, forward_s: 0.01, backward_s: 0.02, parameters: 1e6}]
      start_s: 5
"""


@pytest.fixture
def simulate(tmp_path: Path) -> list[str]:
    (tmp_path / "job.yaml").write_text(JOB)
    return ["simulate", str(tmp_path / "job.yaml"), "--state", str(tmp_path / "state")]


def test_a_job_is_played_over_a_trace(simulate: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """128,000 samples on 4 machines, then 3, at 6 USD/h: every way to train ends, with free changes first and cheapest."""
    trace = tmp_path / "seen_seconds_count.csv"
    trace.write_text("0,4\n600,3\n7200,3\n")

    assert main([*simulate, "--trace", str(trace), "--price", "6", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert found["basis"] == f"machine counts of {trace}"
    assert {arm["samples"] for arm in arms.values()} == {128_000.0}
    assert {arm["finished_share"] for arm in arms.values()} == {1.0}
    assert (
        arms["if changes were free"]["time_s"]
        < arms["shapes that follow"]["time_s"]
        < arms["restart from checkpoint"]["time_s"]
    )
    assert arms["restart from checkpoint"]["cost_usd"] > arms["if changes were free"]["cost_usd"] > 6.0


def test_machines_are_drawn_by_what_the_plan_says(simulate: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The mean lifetime and the wait are those of the options, and the same seed gives the same numbers."""
    shown = []
    for seed in ("1", "1", "2"):
        assert main([*simulate, "--mttp", "20m", "--allocate", "2m", "--trials", "2", "--seed", seed, "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out))

    assert "each is lost after 20 min on average, and another one trains 2 min later" in shown[0]["basis"]
    assert shown[0] == shown[1] != shown[2]


def test_what_does_not_apply_is_refused(
    simulate: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The length of a save, and a job without a profile: one sentence each."""
    assert main([*simulate, "--save", "3s"]) == 2
    assert "--save: applies to jobs that restart from saves" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "job.yaml").write_text(JOB.partition("    profile:")[0])
    assert main(simulate) == 2
    assert "write them as runtime: {elastic: {profile: ...}}" in " ".join(capsys.readouterr().err.split())
