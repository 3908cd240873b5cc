"""Scores of forecasts against sums done by hand, and against what they are for: the true quantile scores best."""

from __future__ import annotations

import math
import random

import pytest

from windfall.models import forecast_scores as scores


@pytest.mark.parametrize(
    ("outcome", "said", "level", "loss"),
    [
        (12.0, 10.0, 0.9, 1.8),
        (8.0, 10.0, 0.9, 0.2),
        (10.0, 10.0, 0.9, 0.0),
        (8.0, 10.0, 0.5, 1.0),
        (12.0, 10.0, 0.5, 1.0),
    ],
)
def test_pinball_weighs_a_miss_by_its_side(outcome: float, said: float, level: float, loss: float) -> None:
    """Above P90 a dollar costs 90 cents, below it 10: by hand."""
    assert scores.pinball(outcome, said, level) == pytest.approx(loss)


def test_an_outcome_that_never_came_costs_infinitely_much() -> None:
    """A run that does not finish has no finite loss, unless its quantile said so."""
    assert scores.pinball(math.inf, 10.0, 0.9) == math.inf
    assert scores.pinball(math.inf, math.inf, 0.9) == 0.0


def test_the_true_quantile_has_the_least_loss() -> None:
    """Of exponential outcomes the P90 is ln 10 times the mean; 20 % beside it is worse on either side."""
    draw = random.Random(3)
    outcomes = [draw.expovariate(1.0) for _ in range(20_000)]
    losses = {
        factor: scores.pinball_mean(outcomes, [factor * math.log(10.0)] * len(outcomes), 0.9)
        for factor in (0.8, 1.0, 1.2)
    }
    assert losses[1.0] < losses[0.8]
    assert losses[1.0] < losses[1.2]


def test_an_outcome_at_its_quantile_is_inside() -> None:
    """Three of four; the interval is that of four outcomes, or wider if fewer are independent."""
    found = scores.coverage([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.9])
    assert (found.inside, found.count, found.share) == (3, 4, 0.75)
    fewer = scores.coverage([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.9], independent=2)
    assert fewer.low < found.low < 0.75 < found.high < fewer.high


def test_wilsons_interval_is_the_printed_one() -> None:
    """For 8 of 10 at 95 %: 0.4902 to 0.9433 (Newcombe, Statistics in Medicine 17, 1998, method 3)."""
    assert scores.wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert scores.wilson(0.0, 0) == (0.0, 1.0)
    low, high = scores.wilson(1.0, 20)
    assert low == pytest.approx(0.8389, abs=1e-4)
    assert high == 1.0


def test_without_outcomes_nothing_is_claimed() -> None:
    """No share, no loss, and an interval that says so."""
    found = scores.coverage([], [])
    assert math.isnan(found.share)
    assert (found.low, found.high) == (0.0, 1.0)
    assert math.isnan(scores.pinball_mean([], [], 0.9))


def test_only_spans_that_do_not_overlap_are_independent() -> None:
    """A run that begins as another ends is independent of it; one inside another is not."""
    assert scores.independent_blocks([(0.0, 10.0), (1.0, 2.0), (2.0, 3.0), (2.5, 4.0), (10.0, 20.0)]) == 3
    assert scores.independent_blocks([(float(start), start + 10.0) for start in range(100)]) == 10
    assert scores.independent_blocks([]) == 0


def test_climatology_covers_the_share_that_it_claims() -> None:
    """Of ten past outcomes the ninth is P90, and the fifth P50: outcomes themselves, none made up between them."""
    past = [10.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0]
    assert [scores.quantile(past, level) for level in (0.5, 0.9, 1.0)] == [5.0, 9.0, 10.0]
    assert scores.quantile([7.0], 0.9) == 7.0
    with pytest.raises(ValueError, match="needs outcomes"):
        scores.quantile([], 0.9)
