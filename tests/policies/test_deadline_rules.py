"""Spot or on-demand before a deadline: what each rule answers, and that none of them is ever late."""

from __future__ import annotations

import pytest

from windfall.policies.deadlines import deadline_rules as rules
from windfall.policies.deadlines.deadline_rules import IDLE, ON_DEMAND, SPOT

HOUR_S = 3600.0
CHANGEOVER_S, TICK_S = 0.2 * HOUR_S, 120.0
NET_S = rules.net_slack_s(CHANGEOVER_S, TICK_S)
COMPUTE_S, WINDOW_S = 48.0 * HOUR_S, 60.0 * HOUR_S
"""The paper's job: 48 h of work, 60 h, changeovers of 0.2 h."""


def greedy(on: int, spot: bool, left_h: float, time_h: float) -> int:
    return rules.greedy(on, spot, left_h * HOUR_S, time_h * HOUR_S, NET_S)


def uniform(on: int, spot: bool, left_h: float, time_h: float, *, may_idle: bool = False) -> int:
    return rules.uniform_progress(
        on, spot, left_h * HOUR_S, time_h * HOUR_S, NET_S, COMPUTE_S, WINDOW_S, CHANGEOVER_S, may_idle
    )


def planned(on: int, spot: bool, slack_s: float, costs: tuple[float, float, float]) -> int:
    return rules.cheapest_safe(on, spot, slack_s, NET_S, CHANGEOVER_S + TICK_S, *costs)


def test_a_job_that_is_done_has_nothing() -> None:
    """Rule 1 of the paper, for every rule."""
    assert rules.on_demand_only(0.0) == greedy(SPOT, True, 0.0, 5.0) == uniform(ON_DEMAND, True, 0.0, 5.0) == IDLE


def test_the_safety_net_is_two_changeovers_of_slack() -> None:
    """Rule 2: without machines, with less slack than 2 x 0.2 h, only on-demand, even if spot is there."""
    assert greedy(IDLE, True, 10.0, 10.4) == SPOT
    assert greedy(IDLE, True, 10.0, 10.39) == ON_DEMAND
    assert uniform(IDLE, True, 10.0, 10.39) == ON_DEMAND


def test_a_tick_that_is_longer_than_a_changeover_widens_the_net() -> None:
    """A rule that is asked every hour must not wait with slack for less than an hour and a changeover."""
    assert rules.net_slack_s(CHANGEOVER_S, TICK_S) == 2.0 * CHANGEOVER_S
    assert rules.net_slack_s(CHANGEOVER_S, HOUR_S) == HOUR_S + CHANGEOVER_S


def test_spot_is_kept_and_taken_whenever_it_is_there() -> None:
    """Rules 3 and 4; a job on spot that runs out of slack is still best served by the machine that works."""
    assert greedy(SPOT, True, 10.0, 10.1) == uniform(SPOT, True, 10.0, 10.1) == SPOT
    assert greedy(IDLE, True, 48.0, 60.0) == uniform(IDLE, True, 48.0, 60.0) == SPOT


def test_greedy_waits_and_then_stays_on_demand() -> None:
    """Without spot it buys nothing until the net; once on demand it stays there to the end."""
    assert greedy(IDLE, False, 48.0, 60.0) == IDLE
    assert greedy(ON_DEMAND, True, 20.0, 20.3) == ON_DEMAND


def test_uniform_progress_buys_on_demand_as_soon_as_it_is_behind() -> None:
    """Rule 5: after an hour 0.8 h are expected; with 0.8 h done it waits."""
    assert uniform(IDLE, False, 48.0, 59.0) == ON_DEMAND
    assert uniform(IDLE, False, 48.0 - 0.8, 59.0) == IDLE


def test_uniform_progress_leaves_on_demand_for_spot_when_it_is_ahead_by_two_changeovers() -> None:
    """Rule 6: at 10 h, 0.8 x 10.4 = 8.32 h must be done; and it is left for nothing only where that is asked for."""
    assert uniform(ON_DEMAND, True, 48.0 - 8.31, 50.0) == ON_DEMAND
    assert uniform(ON_DEMAND, True, 48.0 - 8.33, 50.0) == SPOT
    assert uniform(ON_DEMAND, False, 48.0 - 8.33, 50.0) == ON_DEMAND
    assert uniform(ON_DEMAND, False, 48.0 - 8.33, 50.0, may_idle=True) == IDLE


def test_the_cheapest_choice_is_taken_if_it_is_safe() -> None:
    """Waiting needs slack for a tick and a changeover, spot for two changeovers; otherwise on-demand, whatever it costs."""
    wait, spot, pay = (1.0, 5.0, 9.0), (5.0, 1.0, 9.0), (5.0, 5.0, 1.0)
    assert planned(IDLE, True, 3000.0, wait) == IDLE
    assert planned(IDLE, True, 3000.0, spot) == planned(ON_DEMAND, True, 3000.0, spot) == SPOT
    assert planned(IDLE, True, 3000.0, pay) == ON_DEMAND
    assert planned(IDLE, True, 839.0, wait) == planned(IDLE, True, 1439.0, (9.0, 1.0, 8.0)) == ON_DEMAND
    assert planned(IDLE, False, 3000.0, (5.0, 1.0, 9.0)) == IDLE, "there is no spot machine"


@pytest.mark.parametrize(("extra_s", "longest_s", "bound_s"), [(0.0, 900.0, 360.0), (60.0, 700.0, 60.0)])
def test_the_bound_on_lateness(extra_s: float, longest_s: float, bound_s: float) -> None:
    """Section 4.4: delta + 2 (d_max - d); changeovers shorter than stated make nothing late."""
    assert rules.lateness_bound_s(extra_s, 720.0, longest_s) == bound_s
