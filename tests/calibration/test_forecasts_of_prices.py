"""Forecasts from history alone, judged on months that chose nothing: P90 covers nine of ten, and knows more than climatology.

The zones, the periods and all constants are in `choices`, which was committed before the prices of the test were read.
"""

from __future__ import annotations

import math
import random

import pytest

from tests.calibration import choices as chosen
from tests.calibration import experiment
from tests.calibration.experiment import Run
from tests.simulation.shared_data import DATA
from windfall.models import forecast_scores as scores

FOLDER = DATA / "aws_spot_prices"
needs_prices = pytest.mark.skipif(
    not (FOLDER / chosen.FILE).exists(), reason="the public spot prices of 2015 are not here"
)


def drawn(count: int, seed: int = 1) -> list[Run]:
    """Runs with random costs and finishes, some of which never end."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        finish_s = math.inf if draw.random() < 0.02 else 20_000.0 + draw.expovariate(1 / 5_000.0)
        price = draw.uniform(0.01, 0.02)
        usd = math.inf if math.isinf(finish_s) else 400.0 * price * draw.uniform(0.8, 1.5)
        found.append(Run(number * chosen.EVERY_S, price, usd, finish_s))
    return found


@pytest.mark.parametrize("what", ["cost", "finish"])
def test_a_forecast_knows_nothing_of_what_comes_after_its_start(what: str) -> None:
    """Other outcomes of all runs that had not ended then change no forecast up to it."""
    played = drawn(600)
    cut = 400
    at_s = played[cut].start_s
    other = [
        Run(run.start_s, run.price, run.usd * 9.0, run.finish_s * 1.5) if run.known_s > at_s else run for run in played
    ]
    assert sum(run != before for run, before in zip(other, played, strict=True)) > 190
    span_s = (0.0, at_s + 1.0)
    before, after = (experiment.forecasts("z", one, what, 0.9, span_s) for one in (played, other))
    assert len(before.quantiles) > 200
    assert before.quantiles == after.quantiles
    assert before.climatology == after.climatology


@pytest.mark.parametrize("what", ["cost", "finish"])
def test_the_level_follows_the_misses_through_a_change(what: str) -> None:
    """Outcomes that double in the middle: coverage stays near nine of ten, where a fixed level falls behind."""
    calm, worse = drawn(1200), drawn(1200, seed=2)
    played = calm + [
        Run(run.start_s + 1200 * chosen.EVERY_S, run.price, run.usd * 1.5, run.finish_s * 1.5) for run in worse
    ]
    span_s = (300 * chosen.EVERY_S, math.inf)
    found = experiment.forecasts("z", played, what, 0.9, span_s)
    fixed = experiment.forecasts("z", played, what, 0.9, span_s, gain=0.0)
    share, without = (scores.coverage(one.outcomes, one.quantiles).share for one in (found, fixed))
    assert 0.88 <= share <= 0.92
    assert without < share


def test_runs_of_one_moment_are_one_block() -> None:
    """Both zones at one time count once, and so do overlapping starts."""
    played = [Run(number * chosen.EVERY_S, 0.01, 1.0, 5.0 * chosen.EVERY_S) for number in range(300)]
    both = [experiment.forecasts(zone, played, "cost", 0.9, (0.0, math.inf)) for zone in chosen.ZONES]
    count = len(both[0].starts_s)
    assert experiment.blocks(both, [*played, *played]) == math.ceil(count / 5)


@needs_prices
def test_prices_after_a_span_are_not_read() -> None:
    """So that nothing which chooses a constant can see the months that judge it."""
    series = experiment.read(FOLDER, chosen.VALIDATION_S[0])
    assert set(series) == {
        (zone, kind) for zone in chosen.ZONES for kind in chosen.KINDS if (zone, kind) != ("us-east-1b", "r3.large")
    }
    assert all(times_s[-1] < chosen.VALIDATION_S[0] for times_s, _ in series.values())


@needs_prices
def test_the_spans_follow_each_other() -> None:
    """History, validation, test: none reaches into the next."""
    assert chosen.HISTORY_S[1] == chosen.VALIDATION_S[0] < chosen.VALIDATION_S[1] == chosen.TEST_S[0] < chosen.TEST_S[1]


@needs_prices
@pytest.mark.slow
@pytest.mark.parametrize("span", ["validation", "test"])
def test_nine_of_ten_runs_are_inside_p90(span: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Cost and finish, over both zones; the number of independent blocks and the pinball losses are printed."""
    span_s = chosen.VALIDATION_S if span == "validation" else chosen.TEST_S
    rows, found = experiment.report(FOLDER, span_s)
    with capsys.disabled():
        print("", span, *rows, sep="\n")
    for what in ("cost", "finish"):
        outcomes, quantiles, _ = experiment.joined([one for one in found if (one.what, one.level) == (what, 0.9)])
        low, high = chosen.BAND
        assert low <= scores.coverage(outcomes, quantiles).share <= high, what
