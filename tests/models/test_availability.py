"""Hazards of spot availability, learnt from series."""

from __future__ import annotations

import numpy as np
import pytest

from windfall.models import availability


def series(*runs: tuple[int, int]) -> np.ndarray:
    """Return runs of (value, ticks)."""
    return np.repeat([bool(value) for value, _ in runs], [ticks for _, ticks in runs])


def test_rates_are_changes_over_exposure_drawn_to_the_mean_by_one_change() -> None:
    """Up for 2 ticks of 100 s, three times, down for 4: (3 + 1) ends over 600 s + 200 s; (2 + 1) starts over 800 s + 400 s."""
    found = availability.learn([(series((1, 2), (0, 4), (1, 2), (0, 4), (1, 2), (0, 3)), 100.0)])
    assert found.ends_per_s[0] == pytest.approx(4.0 / 800.0)
    down_s = 4 + 4 + 3  # ticks; all in the classes from 0 s and from 300 s
    mean_s = 100.0 * down_s / 2.0
    assert found.begins_per_s[1] == pytest.approx((2 + 1) / (100.0 * 2 + mean_s))


def test_the_run_that_is_not_seen_to_end_counts_by_its_exposure_alone() -> None:
    """A series that ends in the middle of a long run has one change less than one whose run ends there."""
    cut = availability.learn([(series((0, 9), (1, 9), (0, 9), (1, 200)), 100.0)])
    seen = availability.learn([(series((0, 9), (1, 9), (0, 9), (1, 200), (0, 1)), 100.0)])
    assert sum(cut.ends_per_s) < sum(seen.ends_per_s)


def test_what_lasts_longer_ends_more_rarely() -> None:
    """Half of the runs last 300 s, half a day: the rate of the first class is far above that of the last ones."""
    found = availability.learn([(series(*((1, 3), (0, 3), (1, 864), (0, 864)) * 20), 100.0)])
    assert found.ends_per_s[0] > 20.0 * found.ends_per_s[-2]
    assert found.begins_per_s[0] > 20.0 * found.begins_per_s[-2]


def test_the_chance_of_a_change_within_a_step() -> None:
    """Mean times of 1 h and 2 h, a step of 6 minutes: 1 - exp(-0.05) down, 1 - exp(-0.1) up."""
    found = availability.constant(3600.0, 7200.0).changes(360.0)
    assert found[availability.DOWN, 0] == pytest.approx(0.04877, abs=1e-5)
    assert found[availability.UP, 0] == pytest.approx(0.09516, abs=1e-5)
