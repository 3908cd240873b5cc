"""What a run came to beside its forecast, in lines of at most 80 columns and as JSON."""

from __future__ import annotations

import json

import pytest

from windfall.fleet import JobPhase
from windfall.jobs import Forecast, ForecastBasis
from windfall.policies.planning.forecasts import ForecastOutcome
from windfall.report.forecast_report import as_json, lines, record_text
from windfall.structs import replace
from windfall.terms import Seconds, Usd, WallTime

SAID = Forecast(
    WallTime(5.0), "aws", "g5", "us-east-1a", True, 2, "fixed", ForecastBasis.TRIALS, 1000, Usd(1.25), Seconds(3700.0),
    Usd(1.2), Usd(1.6), Seconds(3600.0), Seconds(4200.0),
)  # fmt: skip
DONE = ForecastOutcome(SAID, JobPhase.DONE, Usd(1.31), Seconds(4300.0), False)


def test_each_number_stands_beside_what_happened() -> None:
    """Cost and finish, each inside P90 or above it."""
    assert list(lines(DONE)) == [
        "forecast    1.2 USD P50, 1.6 USD P90; actual 1.31 USD: inside P90",
        "            60 min P50, 70 min P90; actual 71 min 40 s: above P90",
    ]


def test_a_running_job_has_no_score_yet() -> None:
    """What it has cost so far, and nothing about its finish."""
    found = list(lines(replace(DONE, phase=JobPhase.RUNNING, finish_s=None, cost_usd=Usd(0.4))))
    assert found == [
        "forecast    1.2 USD P50, 1.6 USD P90; so far 0.4 USD",
        "            60 min P50, 70 min P90",
    ]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (replace(DONE, phase=JobPhase.FAILED, finish_s=None), "it failed"),
        (replace(DONE, phase=JobPhase.STOPPED, finish_s=None), "it was stopped"),
        (replace(DONE, resumed=True), "a user resumed it"),
    ],
)
def test_a_run_that_is_not_scored_says_why(changed: ForecastOutcome, why: str) -> None:
    """It is neither inside nor above."""
    text = list(lines(changed))
    assert text[-1] == f"            not scored: {why}"
    assert not any("inside" in line or "above" in line for line in text)
    assert (as_json(changed) or {})["scored"] is False


def test_a_forecast_without_quantiles_says_so() -> None:
    """The expected values alone; a job that promised nothing has no line."""
    bare = replace(
        SAID, basis=ForecastBasis.EXPECTED, cost_p50_usd=None, cost_p90_usd=None, finish_p50_s=None, finish_p90_s=None
    )
    (line,) = lines(replace(DONE, forecast=bare))
    assert line == "forecast    1.25 USD, 61 min 40 s expected; P50 and P90 were not computed"
    assert list(lines(replace(DONE, forecast=None))) == []
    assert as_json(replace(DONE, forecast=None)) is None


def test_the_data_have_the_score() -> None:
    """Pinball losses by hand: 0.5 x 0.11 and 0.1 x 0.29 USD; 0.5 x 700 and 0.9 x 100 s."""
    found = json.loads(json.dumps(as_json(DONE)))
    assert found["scored"] is True
    assert (found["basis"], found["cost_p90_usd"], found["actual_cost_usd"]) == ("trials", 1.6, 1.31)
    assert found["cost"] == {
        "inside_p90": True, "pinball_p50": pytest.approx(0.055), "pinball_p90": pytest.approx(0.029)
    }  # fmt: skip
    assert found["finish"] == {
        "inside_p90": False, "pinball_p50": pytest.approx(350.0), "pinball_p90": pytest.approx(90.0)
    }  # fmt: skip


def test_no_line_is_wider_than_a_terminal() -> None:
    """Also with long numbers."""
    wide = replace(
        SAID, cost_p50_usd=Usd(123_456.78), cost_p90_usd=Usd(223_456.78), finish_p50_s=Seconds(359_999.0),
        finish_p90_s=Seconds(358_999.0),
    )  # fmt: skip
    for line in lines(replace(DONE, forecast=wide, cost_usd=Usd(323_456.78), finish_s=Seconds(357_999.0))):
        assert len(line) <= 80


def test_the_record_is_one_sentence() -> None:
    """How many of how many; free machines have no cost to be inside of; runs that are not counted are named."""
    record = {
        "runs": 20, "cost_inside": 18, "cost_runs": 20, "finish_inside": 17, "finish_runs": 20, "left_out": 3
    }  # fmt: skip
    assert record_text(record) == (
        "your last 20 runs: 18 of 20 inside P90 of cost, 17 of 20 inside P90 of finish; "
        "not counted: 3 that failed, were stopped or were resumed"
    )
    free = {**record, "runs": 1, "cost_inside": 0, "cost_runs": 0, "finish_inside": 1, "finish_runs": 1, "left_out": 0}
    assert record_text(free) == "your last run: 1 of 1 inside P90 of finish"
    assert record_text(None) == ""
