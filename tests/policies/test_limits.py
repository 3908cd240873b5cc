"""What ends a job although it could go on."""

from __future__ import annotations

import math

import pytest

from windfall.policies.deadlines import limits


def test_the_reserve_pays_for_the_last_save_and_the_release() -> None:
    """At 3.6 USD/h, 600 s of saving and 60 s of release cost 0.66 USD."""
    assert limits.reserve_usd(3.6, 600.0) == pytest.approx(0.66)


def test_the_budget_ends_where_the_reserve_begins() -> None:
    """1 USD less 0.66: at 0.34 spent the job stops, with the numbers."""
    assert limits.over_budget(1.0, 0.33, 0.66) is None
    decision = limits.over_budget(1.0, 0.34, 0.66)
    assert decision is not None
    assert [item.value for item in decision.rationale] == [0.34, 0.66, 1.0]


def test_the_moment_of_the_budget_follows_from_the_rate() -> None:
    """0.5 USD at 1 USD/h last half an hour; at nothing, for ever."""
    assert limits.budget_at(100.0, 0.5, 1.0) == 1900.0
    assert limits.budget_at(100.0, 0.5, 0.0) == math.inf


def test_a_duration_is_wall_time_from_the_submission() -> None:
    """To the second; the last save and its message are kept in reserve inside it."""
    begins_at = 1000.0 + 10_000.0 - (600.0 + limits.SAVE_MARGIN_S)
    assert limits.duration_reached(begins_at - 0.1, 1000.0, 10_000.0, 600.0) is None
    assert limits.duration_reached(begins_at, 1000.0, 10_000.0, 600.0) is not None


def test_a_short_duration_keeps_a_tenth_for_the_last_save() -> None:
    """100 s with a save timeout of 600 s train for 90 s."""
    assert limits.duration_reached(1089.9, 1000.0, 100.0, 600.0) is None
    assert limits.duration_reached(1090.0, 1000.0, 100.0, 600.0) is not None


def test_a_crash_loop_ends_at_its_bound() -> None:
    """Not before."""
    assert limits.crash_loop(2, 3, "the script") is None
    decision = limits.crash_loop(3, 3, "the script")
    assert decision is not None
    assert decision.choice == "give up"
