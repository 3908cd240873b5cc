"""Forecasts of how many machines there will be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from windfall.errors import Misuse
from windfall.models.count_forecasts import (
    Damping,
    DriftingFit,
    cleaned,
    fit_drifting,
    guarded_arima,
    l1_share,
    last_value,
    projected,
    reverting,
)

FALL = (32, 32, 32, 26, 26, 23, 22, 21, 21, 18, 18, 15)
FLAT = (32, 32, 32, 32, 32, 32, 28, 28, 28, 28, 28, 28)


def test_the_fit_is_the_most_likely_one() -> None:
    """Drift and persistence maximise the likelihood of the changes as one normal vector, searched in another way."""
    changes = np.diff(np.array(FALL, float))
    lags = np.abs(np.subtract.outer(np.arange(len(changes)), np.arange(len(changes))))

    def loss(point: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        drift, persistence, variance = point[0], np.tanh(point[1]), np.exp(point[2])
        covariance = variance * persistence**lags / (1.0 - persistence**2)
        return -float(multivariate_normal.logpdf(changes, np.full(len(changes), drift), covariance))

    best = minimize(
        loss,
        (changes.mean(), -0.1, 1.0),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000},
    )
    found = fit_drifting(FALL)

    assert (found.drift, found.persistence) == pytest.approx((best.x[0], np.tanh(best.x[1])), abs=1e-5)


def test_a_straight_line_is_continued() -> None:
    """Equal changes leave nothing to estimate but the drift."""
    assert fit_drifting((3, 5, 7, 9)) == DriftingFit(2.0, 0.0)
    assert projected((3, 5, 7, 9), DriftingFit(2.0, 0.0), 3) == (11.0, 13.0, 15.0)


def test_blips_and_what_came_before_a_turn_are_removed() -> None:
    """A value that is left for up to three intervals and returns is flattened; before the lowest value there is no trend."""
    assert cleaned((5, 5, 9, 9, 9, 5, 5, 5)) == (5,) * 8
    assert cleaned((23, 19, 19, 19, 19, 22, 28, 29)) == (19, 19, 19, 19, 19, 22, 28, 29)
    assert cleaned((4, 6, 9, 9, 9, 9, 8, 7)) == (9, 9, 9, 9, 9, 9, 8, 7)


def test_a_forecast_stays_near_its_first_value_and_between_bounds() -> None:
    """A fall by 1.5 machines an interval ends 3 below the first forecast, and never below the least."""
    found, _ = guarded_arima(FALL, 12, Damping(), least=0, most=32)
    bounded, _ = guarded_arima(FALL, 12, Damping(), least=13, most=32)

    assert max(found) - min(found) <= 3
    assert min(bounded) >= 13
    assert list(found) == sorted(found, reverse=True)


def test_damping_stays_after_a_steep_change() -> None:
    """The fall by 17 halves the changes of this forecast, and, handed on, of the next one of another history."""
    _, damping = guarded_arima(FALL, 12, Damping(), least=8, most=32)
    fresh, _ = guarded_arima(FLAT, 12, Damping(falling=1.0), least=8, most=32)
    stuck, after = guarded_arima((32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 31, 29), 12, damping, least=8, most=32)
    free, _ = guarded_arima((32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 31, 29), 12, Damping(), least=8, most=32)

    assert damping == after == Damping(1.0, 0.5)
    assert min(stuck) > min(free)
    assert min(fresh) < FLAT[-1]


def test_a_constant_history_is_continued() -> None:
    """No change was seen, and none is forecast; last value and a share of 1 say the same of any history."""
    assert guarded_arima((30,) * 12, 3, Damping(), least=8, most=32)[0] == (30, 30, 30)
    assert last_value(FALL, 3) == reverting(FALL, 3, wanted=32, share=1.0) == (15, 15, 15)


def test_a_count_returns_to_what_is_wanted() -> None:
    """16 missing of 32, half of them still missing after each interval; none above what is wanted."""
    assert reverting((16,), 4, wanted=32, share=0.5) == (24, 28, 30, 31)
    assert reverting((40,), 2, wanted=32, share=0.5) == (40, 40)


def test_the_error_is_relative_to_what_was_true() -> None:
    """1 + 0 + 2 machines off, of 30."""
    assert l1_share((9, 10, 12), (10, 10, 10)) == pytest.approx(0.1)


def test_what_cannot_be_is_refused() -> None:
    """Too short a history, a count below 0, a share above 1."""
    with pytest.raises(Misuse, match="a history of 0 counts: this forecast needs at least 1"):
        last_value((), 3)
    with pytest.raises(Misuse, match="a history of 4 counts: this forecast needs at least 5"):
        guarded_arima((1, 2, 3, 4), 3, Damping(), least=0, most=9)
    with pytest.raises(Misuse, match="count of -1 machines"):
        last_value((3, -1), 3)
    with pytest.raises(Misuse, match=r"is 1\.5: write a number from 0 to 1"):
        reverting((3,), 3, wanted=4, share=1.5)
