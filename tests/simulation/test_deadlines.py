"""Jobs with a deadline on series of spot availability: never late, and against every plan there is."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from windfall.errors import Infeasible
from windfall.models import availability
from windfall.policies.deadlines import deadline_rules, deadline_table
from windfall.policies.deadlines.deadline_table import DeadlineTable, TableInputs
from windfall.simulation import deadline_kernel as kernel
from windfall.simulation import deadline_optimum as optimum
from windfall.simulation.deadline_kernel import DeadlineRun

HOUR_S = 3600.0
RATIO = 3.0
JOB = DeadlineRun(8.0 * HOUR_S, 11.0 * HOUR_S, 720.0)
HAZARDS = availability.constant(1.5 * HOUR_S, 1.0 * HOUR_S)
PROMISING = (kernel.GREEDY, kernel.UNIFORM, kernel.UNIFORM_MAY_IDLE, kernel.PLANNED)


def drawn(ticks: int, seed: int, tick_s: float = 120.0) -> np.ndarray:
    """Return a series of the hazards' world; it is unavailable before it starts."""
    random = np.random.default_rng(seed)
    chances = HAZARDS.changes(tick_s)[:, 0]
    up, found = False, np.zeros(ticks, np.bool_)
    for tick, uniform in enumerate(random.random(ticks)):
        up = up != (uniform < chances[int(up)]) if tick else False
        found[tick] = up
    return found


@pytest.fixture(scope="module")
def table() -> DeadlineTable:
    return deadline_table.solve(TableInputs(HAZARDS, JOB.compute_s, JOB.window_s, JOB.changeover_s, RATIO))


def played(available: np.ndarray, run: DeadlineRun, policy: int, table: DeadlineTable) -> np.ndarray:
    """Return the rows of fifty starts."""
    starts = np.arange(0, len(available) - 330, (len(available) - 330) // 50)[:50]
    return kernel.play(available, starts, run, policy, table if policy == kernel.PLANNED else None)


@pytest.mark.parametrize("policy", PROMISING)
@pytest.mark.parametrize("seed", range(4))
def test_no_deadline_is_missed_while_changeovers_stay_within_their_bound(
    policy: int, seed: int, table: DeadlineTable
) -> None:
    """Whatever they are below it, and whatever spot does: also where every spot machine is lost at once."""
    lengths_s = tuple(np.random.default_rng(seed).uniform(0.0, JOB.changeover_s, 97).tolist())
    shorter = DeadlineRun(JOB.compute_s, JOB.window_s, JOB.changeover_s, changeovers_s=lengths_s)
    for available in (drawn(4000, seed), np.arange(4000) % (5 + seed) == 0, np.zeros(4000, np.bool_)):
        for run in (JOB, shorter):
            rows = played(available, run, policy, table)
            assert rows[:, kernel.LATE_S].max() == 0.0
            work_s = rows[:, kernel.ON_DEMAND_WORK_S] + rows[:, kernel.SPOT_WORK_S]
            assert np.allclose(work_s, JOB.compute_s)


@pytest.mark.parametrize("policy", PROMISING)
def test_what_breaks_the_bounds_makes_a_job_late_by_no_more_than_is_published(
    policy: int, table: DeadlineTable
) -> None:
    """Changeovers up to 1.5 times as long as stated, and ten minutes more work: late, and at most by delta + 2 (d_max - d)."""
    longest_s, extra_s = 1.5 * JOB.changeover_s, 600.0
    lengths_s = tuple(np.random.default_rng(policy).uniform(0.0, longest_s, 97).tolist())
    run = DeadlineRun(JOB.compute_s, JOB.window_s, JOB.changeover_s, changeovers_s=lengths_s, extra_s=extra_s)
    late_s = np.concatenate([played(drawn(4000, seed), run, policy, table)[:, kernel.LATE_S] for seed in range(6)])
    assert 0.0 < late_s.max() <= deadline_rules.lateness_bound_s(extra_s, JOB.changeover_s, longest_s)


def test_on_demand_only_pays_for_its_work_and_one_changeover() -> None:
    """8 h and 0.2 h, none of it spot."""
    (row,) = kernel.play(np.ones(400, np.bool_), np.zeros(1, np.int64), JOB, kernel.ON_DEMAND_ONLY, None)
    assert row[kernel.ON_DEMAND_S] == pytest.approx(8.2 * HOUR_S)
    assert row[kernel.SPOT_S] == 0.0
    assert row[kernel.SWITCHES] == 1.0


def test_the_tables_expectation_is_what_its_choices_cost() -> None:
    """The value of the first state is the mean over 3,000 series of its hazards, with ticks as long as its steps."""
    run = DeadlineRun(JOB.compute_s, JOB.window_s, JOB.changeover_s, tick_s=180.0)
    table = deadline_table.solve(TableInputs(HAZARDS, run.compute_s, run.window_s, run.changeover_s, RATIO))
    assert table.step_s == run.tick_s
    steps, slack = deadline_table.cell(table.step_s, run.compute_s, run.window_s)
    expected = table.costs[steps, slack, :3, availability.DOWN, 0].min() * table.step_s
    costs_s = []
    for seed in range(3000):
        (row,) = kernel.play(drawn(221, seed, 180.0), np.zeros(1, np.int64), run, kernel.PLANNED, table)
        costs_s.append(RATIO * row[kernel.ON_DEMAND_S] + row[kernel.SPOT_S])
    error_s = np.std(costs_s) / math.sqrt(len(costs_s))
    assert np.mean(costs_s) == pytest.approx(expected, abs=3.0 * error_s)


def test_its_own_world_makes_the_planned_policy_the_cheapest(table: DeadlineTable) -> None:
    """Where availability has the hazards of the table, it costs less than both others, which cost less than on demand."""
    available = drawn(40_000, 5)
    cost_s = {
        policy: float(np.mean(rows[:, kernel.SPOT_S] + RATIO * rows[:, kernel.ON_DEMAND_S]))
        for policy in (kernel.ON_DEMAND_ONLY, kernel.GREEDY, kernel.UNIFORM, kernel.PLANNED)
        for rows in [played(available, JOB, policy, table)]
    }
    assert cost_s[kernel.PLANNED] < min(cost_s[kernel.GREEDY], cost_s[kernel.UNIFORM])
    assert max(cost_s[kernel.GREEDY], cost_s[kernel.UNIFORM]) < cost_s[kernel.ON_DEMAND_ONLY]


# ------------------------------------------------------------------------------------------------------------- the optimum


def cheapest(available: tuple[bool, ...], work: int, changeover: int) -> float:
    """Return the least cost over every sequence of choices, losses in the middle of a changeover included [ticks of spot]."""

    @functools.cache
    def rest(tick: int, left: int, on: int, wait: int) -> float:
        if left == 0:
            return 0.0
        if tick == len(available):
            return math.inf
        costs = [rest(tick + 1, left, 0, 0)]
        for kind, price in ((1, 1.0), (2, RATIO)):
            if kind == 1 and not available[tick]:
                continue
            waits = wait if kind == on else changeover
            after = (left, waits - 1) if waits else (left - 1, 0)
            costs.append(price + rest(tick + 1, after[0], kind, after[1]))
        return min(costs)

    return rest(0, work, 0, 0)


def test_the_optimum_is_that_of_all_plans() -> None:
    """200 random series of twelve ticks, with changeovers of one and two: equal to the cost of the best of all sequences."""
    random = np.random.default_rng(1)
    for _ in range(200):
        available = random.random(12) < 0.6
        work, changeover = int(random.integers(3, 9)), int(random.integers(1, 3))
        run = DeadlineRun(work * 120.0, 12 * 120.0, changeover * 120.0)
        (row,) = optimum.best(available, np.zeros(1, np.int64), run, RATIO)
        assert row[optimum.COST_S] / 120.0 == cheapest(tuple(available.tolist()), work, changeover)
        assert row[optimum.ON_DEMAND_WORK_S] + row[optimum.SPOT_WORK_S] == pytest.approx(run.compute_s)


def test_no_policy_beats_the_optimum(table: DeadlineTable) -> None:
    """On any start of any series."""
    available = drawn(4000, 9)
    starts = np.arange(0, 3600, 73)
    least = optimum.best(available, starts, JOB, RATIO)[:, optimum.COST_S]
    for policy in (kernel.ON_DEMAND_ONLY, *PROMISING):
        rows = kernel.play(available, starts, JOB, policy, table if policy == kernel.PLANNED else None)
        assert (rows[:, kernel.SPOT_S] + RATIO * rows[:, kernel.ON_DEMAND_S] >= least - 1e-6).all()


def test_a_job_that_cannot_be_in_time_has_no_optimum() -> None:
    """An hour of work and a changeover do not fit into an hour: refused, with the numbers."""
    with pytest.raises(Infeasible, match="3600 s of work and a changeover of 720 s do not fit into 3600 s"):
        optimum.best(np.ones(40, np.bool_), np.zeros(1, np.int64), DeadlineRun(3600.0, 3600.0, 720.0), RATIO)
