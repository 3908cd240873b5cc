"""The odds of a fleet: simulated histories, against the expectation that fleets are chosen by."""

from __future__ import annotations

import numpy as np
import pytest

from tests.policies.test_fleet_plan import hours
from tests.policies.test_fleet_search import CALM, pools
from tests.policies.test_mixed_fleet import LARGE, NOW, OFFERS
from tests.support import tickets
from windfall.jobs import Objective
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.planning import fleet_course
from windfall.policies.planning.estimates import PlanInputs
from windfall.policies.planning.fleet_course import FleetGoal
from windfall.simulation import fleet_odds
from windfall.structs import replace
from windfall.terms import Seconds, Usd, WallTime

HOUR_S = 3600.0
ROUGH = Application(eviction_s=100.0, change_s=30.0, loss_per_core=1e-3)


@pytest.mark.parametrize(
    ("fleet", "app", "hours", "within"),
    [
        ([("a", 4.0, 0.28, 1.0, 1), ("b", 1.0, 0.09, 3.0, 2)], CALM, 30.0, 0.015),
        ([("a", 4.0, 0.28, 10.0, 5), ("b", 1.0, 0.09, 30.0, 9)], ROUGH, 10.0, 0.015),
        ([("a", 4.0, 0.28, 0.5, 10), ("b", 1.0, 0.09, 10.0, 20)], ROUGH, 10.0, 0.08),
        ([("a", 4.0, 0.28, np.inf, 3)], CALM, 10.0, 1e-9),
    ],
)
def test_their_mean_is_what_fleets_are_chosen_by(
    fleet: list[tuple[str, float, float, float, int]], app: Application, hours: float, within: float
) -> None:
    """Within 1.5 %, or 8 % where the fleet loses a machine every three minutes; never below what is expected."""
    market = pools(*fleet)
    counts = market.limit
    goal = FleetGoal(app, 1, 64, 0.3, float(counts @ market.cores) * HOUR_S * hours)
    expected = fleet_course.course(market, counts, goal)
    found = fleet_odds.histories(market, counts, goal, trials=400, seed=3)
    assert expected.cost_usd == pytest.approx(found.cost_usd.mean(), rel=within)
    assert expected.finish_s == pytest.approx(found.finish_s.mean(), rel=within)
    assert expected.cost_usd > found.cost_usd.mean() * (1.0 - 5e-3)


def test_one_machine_by_hand() -> None:
    """Without losses: a minute of allocation, half a minute of preparation, then the work; the first minute is free."""
    market = pools(("a", 4.0, 0.36, np.inf, 2))
    goal = FleetGoal(CALM, 1, 2, 0.1, 4.0 * HOUR_S)
    found = fleet_odds.histories(market, np.array([1]), goal, trials=3, seed=0)
    assert found.finish_s == pytest.approx([3690.0] * 3)
    assert found.cost_usd == pytest.approx([0.46 * 3630.0 / HOUR_S] * 3)


def test_a_loss_costs_the_stop_the_wait_and_the_preparation() -> None:
    """Of a fleet of one, the history with one loss is later than the one without by exactly these."""
    market = replace(pools(("a", 1.0, 0.36, 3.0, 1)), allocate_s=np.array([100.0]))
    goal = FleetGoal(Application(10.0, 20.0, 0.0), 1, 1, work_core_s=HOUR_S)
    found = fleet_odds.histories(market, np.array([1]), goal, trials=200, seed=5)
    late_s = np.round(found.finish_s - found.finish_s.min(), 6)
    assert found.finish_s.min() == pytest.approx(HOUR_S + 130.0)
    # The stop after a loss passes while the next machine is allocated; the one for its coming follows.
    assert sorted(set(late_s))[1] == pytest.approx(100.0 + 30.0 + 20.0)


def test_the_odds_count_the_limits() -> None:
    """The same seed gives the same odds; P50 lies below P90; the share in time falls with the deadline."""
    market = pools(("a", 4.0, 0.28, 1.0, 3))
    goal = FleetGoal(CALM, 1, 3, 0.1, 3.0 * 4.0 * HOUR_S * 5.0)
    found = fleet_odds.odds(market, np.array([3]), goal, Objective())
    assert found == fleet_odds.odds(market, np.array([3]), goal, Objective())
    assert found.cost_usd[0] < found.cost_usd[1]
    assert (found.in_time, found.in_budget) == (None, None)
    limited = Objective(deadline_s=Seconds(found.finish_s[1]), budget_usd=Usd(found.cost_usd[0]))
    asked = fleet_odds.odds(market, np.array([3]), goal, limited)
    assert asked.in_time == pytest.approx(0.9, abs=0.01)
    assert asked.in_budget == pytest.approx(0.5, abs=0.01)


def test_a_fleet_that_loses_too_many_machines_has_no_odds() -> None:
    """A job of years would need millions of lives; one of hours has its odds."""
    with tickets.installed():
        found = []
        for core_hours in (10.0, 1e7):
            counts = [[(LARGE.key, 3)]]
            found += fleet_odds.odds_of(hours(core_hours), OFFERS, PlanInputs(WallTime(NOW), Seconds(5.0)), counts)
    assert found[0] is not None
    assert found[0].cost_usd[0] <= found[0].cost_usd[1]
    assert found[1] is None
