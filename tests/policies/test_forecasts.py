"""The forecast of a job: taken from its plan as its user read it, and scored only if the run ended by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windfall.fleet import JobPhase
from windfall.jobs import Forecast, ForecastBasis, Job, Resources
from windfall.policies.planning import forecasts
from windfall.structs import plain, replace
from windfall.terms import Seconds, Usd, WallTime

JOB = Job("gpt-1", "gpt", "ada", "file:///r", ("train",), (Resources(),))
OFFER = {"provider": "aws", "machine_type": "g5", "zone": "us-east-1a", "reliability": "transient"}
SAID = Forecast(
    WallTime(5.0), "aws", "g5", "us-east-1a", True, 2, "fixed", ForecastBasis.TRIALS, 1000, Usd(1.1), Seconds(90.0),
    Usd(1.0), Usd(2.0), Seconds(80.0), Seconds(100.0),
)  # fmt: skip


def a_plan(**changes: Any) -> dict[str, Any]:
    """A plan as JSON."""
    odds = {"cost_usd": {"p50": 1.0, "p90": 2.0}, "finish_s": {"p50": 80.0, "p90": 100.0}, "trials": 1000}
    expected = {"cost_usd": 1.1, "wall_s": 90.0}
    return {"chosen": {"offer": OFFER, "machines": 2, "expected": expected}, "odds": odds, **changes}


def ended(phase: JobPhase = JobPhase.DONE, **changes: Any) -> tuple[JobPhase, str]:
    """A stored job; by default it cost 1.50 USD and took 90 s, both inside P90."""
    summary = {"money": {"due_usd": 1.5}, "finish_s": 90.0, "resumed": False, "forecast": plain(SAID), **changes}
    return phase, json.dumps(summary)


def test_a_forecast_is_what_the_plan_said() -> None:
    """Every number, for the offer that the plan chose."""
    assert forecasts.of_plan(JOB, a_plan(), WallTime(5.0)) == SAID


def test_without_odds_it_is_what_is_expected_and_says_so() -> None:
    """Where no simulation is installed, and in the controller, which computes no odds."""
    unknown = {"cost_usd": None, "finish_s": None, "trials": 0, "says": "P50 and P90 need numba"}
    for odds in (unknown, None):
        found = forecasts.of_plan(JOB, a_plan(odds=odds), WallTime(5.0))
        assert found is not None
        assert (found.basis, found.trials, found.finish_p90_s) == (ForecastBasis.EXPECTED, 0, None)
        assert (found.expected_cost_usd, found.expected_finish_s) == (1.1, 90.0)
    exact = forecasts.of_plan(JOB, a_plan(odds={**a_plan()["odds"], "trials": 0}), WallTime(5.0))
    assert exact is not None
    assert exact.basis is ForecastBasis.EXACT


def test_a_plan_that_knows_nothing_promises_nothing() -> None:
    """No measured speed: no forecast, rather than one of zeros."""
    chosen = {**a_plan()["chosen"], "expected": None}
    assert forecasts.of_plan(JOB, a_plan(chosen=chosen, odds=None), WallTime(5.0)) is None


def test_a_run_that_may_never_end_has_no_number() -> None:
    """Infinity is no JSON: the journal could not be read again."""
    odds = {**a_plan()["odds"], "finish_s": {"p50": 80.0, "p90": float("inf")}}
    found = forecasts.of_plan(JOB, a_plan(odds=odds), WallTime(5.0))
    assert found is not None
    assert (found.finish_p50_s, found.finish_p90_s) == (80.0, None)


def test_a_summary_holds_the_forecast() -> None:
    """Read back as it was; of another version, or none, it is none."""
    stored = json.loads(json.dumps({forecasts.KEY: plain(SAID)}))
    assert forecasts.of_summary(stored) == SAID
    assert forecasts.of_summary({}) is None
    assert forecasts.of_summary({forecasts.KEY: None}) is None
    assert forecasts.of_summary({forecasts.KEY: {**plain(SAID), "mood": "good"}}) is None


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, (1, 1, 1, 1)),
        ({"money": {"due_usd": 2.0}, "finish_s": 100.0}, (1, 1, 1, 1)),
        ({"money": {"due_usd": 2.01}}, (0, 1, 1, 1)),
        ({"finish_s": 100.1}, (1, 1, 0, 1)),
        ({"forecast": plain(replace(SAID, cost_p50_usd=Usd(0.0), cost_p90_usd=Usd(0.0)))}, (0, 0, 1, 1)),
    ],
)
def test_at_p90_is_inside_and_above_it_is_not(changes: dict[str, Any], counts: tuple[int, int, int, int]) -> None:
    """Cost and finish count apart; machines that cost nothing say nothing of a forecast's cost."""
    found = forecasts.track_record([ended(**changes)])
    assert found is not None
    assert (found.cost_inside, found.cost_runs, found.finish_inside, found.finish_runs) == counts


@pytest.mark.parametrize(
    "other",
    [
        ended(JobPhase.FAILED, finish_s=None),
        ended(JobPhase.STOPPED, finish_s=None),
        ended(JobPhase.DONE, resumed=True),
    ],
)
def test_a_run_that_did_not_end_by_itself_is_counted_apart(other: tuple[JobPhase, str]) -> None:
    """A stop, a failure or a night between a stop and a resume is no miss of a forecast, nor a hit."""
    assert forecasts.track_record([other]) is None
    found = forecasts.track_record([other, ended()])
    assert found is not None
    assert (found.runs, found.left_out, found.cost_runs, found.finish_runs) == (1, 1, 1, 1)


def test_runs_without_a_forecast_are_no_runs() -> None:
    """Those of an earlier release, those that promised nothing, and those without P90."""
    older = JobPhase.DONE, json.dumps({"money": {"due_usd": 1.0}, "phase": "done"})
    bare = ended(forecast=plain(replace(SAID, finish_p90_s=None, basis=ForecastBasis.EXPECTED)))
    assert forecasts.track_record([older, bare, ended(forecast=None), (JobPhase.DONE, "{}")]) is None
    assert forecasts.track_record([]) is None


def test_the_newest_twenty_count() -> None:
    """What comes after them, older, changes nothing."""
    newest = [ended()] * 18 + [ended(finish_s=1000.0)] * 2
    found = forecasts.track_record([*newest, *[ended(finish_s=1000.0), ended(JobPhase.FAILED, finish_s=None)] * 30])
    assert found == forecasts.TrackRecord(20, 20, 20, 18, 20, 0)
