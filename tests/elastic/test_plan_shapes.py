"""`windfall plan` of an elastic training: what is trained by how many machines, time and cost, and what is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.test_simulate_shapes import JOB
from windfall.cli.main import main

LAYERS, FORWARD_S, BACKWARD_S, PARTS = 9, 0.01, 0.02, 16


def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str = JOB, *options: str) -> Any:
    """The plan as JSON."""
    assert main(_plan(tmp_path, text, *options, "--json")) == 0
    return json.loads(capsys.readouterr().out)


def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str = JOB, *options: str) -> str:
    """The plan as it is printed, in one line."""
    assert main(_plan(tmp_path, text, *options)) == 0
    return " ".join(capsys.readouterr().out.split())


def _plan(tmp_path: Path, text: str, *options: str) -> list[str]:
    (tmp_path / "job.yaml").write_text(text)
    return ["plan", str(tmp_path / "job.yaml"), "--state", str(tmp_path / "state"), *options]


def test_a_plan_says_what_each_number_of_machines_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the profile alone: 64 samples a step in 16 parts of 0.27 s, side by side on as many machines as there are."""
    plan = planned(tmp_path, capsys)

    rows = plan["shapes"]["rows"]
    assert [(row["machines"], row["shape"]) for row in rows] == [(2, "2x1"), (3, "3x1"), (4, "4x1")]
    part_s = LAYERS * (FORWARD_S + BACKWARD_S)
    for row, parts in zip(rows, (8, 6, 4), strict=True):
        assert row["samples_per_s"] == pytest.approx(64 / (parts * part_s), rel=0.02)
        start_s = row["finish_s"] - 2000 * 64 / row["samples_per_s"]
        assert 0.0 < start_s < 600.0


def test_a_plan_expects_what_a_simulation_of_the_same_machines_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cost and finish are those of `windfall simulate` on the same drawn series, and the start of the machines."""
    plan = planned(tmp_path, capsys, JOB, "--inject", "mttp=20m")
    expected = plan["chosen"]["expected"]
    options = [
        "--state",
        str(tmp_path / "state"),
        "--inject",
        "mttp=20m",
        "--trials",
        str(plan["odds"]["trials"]),
        "--json",
    ]
    assert main(["simulate", str(tmp_path / "job.yaml"), *options]) == 0
    arms = {arm["name"]: arm for arm in json.loads(capsys.readouterr().out)["arms"]}

    work, _, start = expected["parts"]
    assert work["duration_s"] == pytest.approx(2000 * 64 / plan["shapes"]["rows"][0]["samples_per_s"])
    assert expected["wall_s"] - start["duration_s"] == pytest.approx(arms["shapes that follow"]["time_s"])
    assert expected["cost_usd"] - start["cost_usd"] == pytest.approx(arms["shapes that follow"]["cost_usd"])
    assert sum(part["duration_s"] for part in expected["parts"]) == pytest.approx(expected["wall_s"])
    assert sum(part["cost_usd"] for part in expected["parts"]) == pytest.approx(expected["cost_usd"])
    assert plan["odds"]["finish_s"]["p50"] <= plan["odds"]["finish_s"]["p90"]


def test_a_plan_is_printed_with_shapes_cost_and_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each number of machines, and a warning for a deadline that is too early."""
    text = shown(tmp_path, capsys)

    assert "2 machines (planned): 2x1, " in text
    assert "3 machines: 3x1, " in text
    assert "samples/s" in text
    more = shown(tmp_path, capsys, JOB.replace("2..4", "2..30").replace("run:", "fleet: mix\nrun:"))
    assert "30 machines (planned): 16x1 and 14 spare, " in more
    assert "29 numbers of machines in `windfall plan --all`" in more
    assert "finish in " in text
    assert "the training is expected to take" in shown(tmp_path, capsys, JOB, "--deadline", "5m")


def test_without_a_profile_a_plan_says_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what is unknown, and what to write; without a number of steps as well."""
    bare = shown(tmp_path, capsys, JOB.partition("    profile:")[0])
    assert (
        "expected samples/s, cost and finish time are unknown without times and sizes of the layers: write them as"
        in bare
    )
    assert bare.count("windfall drill") == 1
    assert "`windfall drill --profile job.yaml` measures them" in bare

    endless = shown(tmp_path, capsys, JOB.replace("work: {steps: 2000}\n", ""))
    assert "expected cost and finish time are unknown without the number of steps: write work: {steps: ...}" in endless
    assert "samples/s" in endless


def test_a_model_that_fits_no_machine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is bought, with what the nearest shape lacks."""
    assert main(_plan(tmp_path, JOB.replace("      start_s: 5", "      memory_bytes: 1e6"))) == 3
    assert "GB of memory, and a machine has" in " ".join(capsys.readouterr().err.split())
