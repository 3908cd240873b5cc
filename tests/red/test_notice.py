"""What `windfall simulate` answers where a notice is told that is not the provider's habit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.posing import Controller
from windfall.cli import client
from windfall.cli.main import main
from windfall.simulation import kernels
from windfall.simulation.scenario import Believed, Range, Recorded, Scenario

JOB = """
name: gpt
run: python train.py
work: {steps: 3000}
"""
NUMBERS = ("--step", "4.6s", "--mttp", "1h")


@pytest.fixture
def finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Ask for the mean finish of each policy [s]."""
    made = Controller()
    monkeypatch.setattr(client, "connect", lambda *_, **__: made)
    (tmp_path / "job.yaml").write_text(JOB)

    def ask(*words: str, save: str = "2.5s", upload: str = "13s") -> dict[str, float]:
        told = ("simulate", str(tmp_path / "job.yaml"), "--state", str(tmp_path / "state"), "--json")
        code = main([*told, "--trials", "300", "--save", save, "--upload", upload, *NUMBERS, *words])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return {row["policy"]: row["finish_s"]["mean"] for row in json.loads(printed.out)["rows"]}

    return ask


@pytest.mark.trial("E1")
@pytest.mark.parametrize("notice", ["15s", "18s"])
def test_the_default_does_not_rest_on_a_notice_that_is_too_short(finishes: Any, notice: str) -> None:
    """An emergency save takes 20.1 s, and 30 s are the provider's habit: whatever shorter is told is believed."""
    found = finishes("--policy", "adaptive,young-daly", "--notice", notice, "--announced", "1")
    assert found["adaptive"] < 1.02 * found["young-daly"]


@pytest.mark.trial("E1")
def test_algorithm_1_insures_where_there_is_no_notice(finishes: Any) -> None:
    """T_grace is what was told, not what the provider does as a rule."""
    found = finishes("--policy", "thesis,young-daly", "--notice", "0s", "--announced", "0")
    assert found["thesis"] < 1.05 * found["young-daly"]


@pytest.mark.trial("E1")
def test_a_long_notice_is_worth_something_where_the_habit_is_short(finishes: Any) -> None:
    """A save of a minute fits two minutes, though not the provider's 30 s."""
    found = finishes("--policy", "adaptive,young-daly", "--notice", "2m", "--announced", "1", save="10s", upload="60s")
    assert found["adaptive"] < 0.99 * found["young-daly"]


@pytest.mark.trial("E2")
def test_a_machine_lives_as_long_as_its_life() -> None:
    """Announced 30 s ahead or not, a machine of 100 s trains for 100 s."""
    for notice_s in (0.0, 30.0):
        one = Scenario(
            steps=300,
            step_s=Range.of(1.0),
            stall_s=Range.of(2.0),
            upload_s=Range.of(1000.0),
            allocate_s=Range.of(60.0),
            prepare_s=Range.of(0.0),
            lives=Recorded(((100.0,),)),
            notice_s=notice_s,
            announced_share=1.0,
            policy="never",
            believed=Believed(1800.0, 1.0, 60.0),
            successor_at_notice=False,
        )
        assert kernels.decisions(one, seed=0, trial=0).finish_s == pytest.approx(60.0 + 100.0 + 60.0 + 300.0)
