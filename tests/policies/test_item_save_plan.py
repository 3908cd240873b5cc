"""How often an item of a bag saves: the optimum of the exact schedule, and no save where one costs more than it brings."""

from __future__ import annotations

import math

import pytest

from windfall.models.exact.makespan import MakespanWorld, tabulate
from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies.checkpointing import optimal_schedule, rules
from windfall.policies.checkpointing.item_save_plan import expected_s, plan_item_saves


def plan(work_s: float | None, save_s: float, mttp_s: float, restart_s: float = 60.0) -> float:
    """The interval [s]."""
    losses = PreemptionHistory("local", mttp_given_s=mttp_s, restart_given_s=restart_s)
    return plan_item_saves(losses, age_s=0.0, work_s=work_s, save_s=save_s, durable_s=save_s).every_s


@pytest.mark.parametrize(
    ("work_s", "save_s", "mttp_s"),
    [(3600.0, 10.0, 3600.0), (600.0, 5.0, 7200.0), (86_400.0, 30.0, 10_800.0), (60.0, 2.0, 300.0)],
)  # fmt: skip
def test_it_is_the_optimal_schedule_of_memoryless_losses(work_s: float, save_s: float, mttp_s: float) -> None:
    """The exact recursion over the tabulated law expects the same time, to a thousandth, and not less."""
    restart_s = 60.0
    every_s = plan(work_s, save_s, mttp_s, restart_s)
    pieces = round(work_s / every_s) if every_s else 1
    mine_s = expected_s(work_s, pieces, save_s, mttp_s, restart_s)
    lifetimes = tabulate(lambda age: -age / mttp_s, until_s=4.0 * work_s, cell_s=work_s / 2000.0)
    world = MakespanWorld(lifetimes, save_s, save_s, restart_s, 0.0, 0.0)
    best = optimal_schedule.optimal(world, work_s, unit_s=work_s / 600.0)

    assert mine_s == pytest.approx(best.expected.expected_s, rel=1e-3)
    # Its intervals are whole units of a 600th of the work, and the optimum is flat.
    assert len(best.saves_at_s) == pytest.approx(pieces - 1, rel=0.1, abs=1)


@pytest.mark.parametrize("save_s", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("mttp_s", [50.0, 600.0, 1e5])
@pytest.mark.parametrize("work_s", [10.0, 300.0, 5000.0])
def test_no_other_number_of_pieces_is_expected_to_take_less_time(work_s: float, mttp_s: float, save_s: float) -> None:
    """All numbers of pieces are tried."""
    every_s = plan(work_s, save_s, mttp_s)
    chosen = round(work_s / every_s) if every_s else 1
    most = max(math.floor(work_s / save_s), 1)
    times_s = [expected_s(work_s, pieces, save_s, mttp_s, 60.0) for pieces in range(1, min(most, 4000) + 1)]

    assert times_s[chosen - 1] == pytest.approx(min(times_s), rel=1e-12)


def test_the_examples_of_the_equation_hold() -> None:
    """They are those of its docstring."""
    assert expected_s(3600.0, 1, 10.0, 3600.0, 0.0) == pytest.approx(6186.0, abs=1.0)
    assert expected_s(3600.0, 13, 10.0, 3600.0, 0.0) == pytest.approx(3872.0, abs=1.0)


def test_without_a_known_length_the_default_rule_decides() -> None:
    """As for a run whose work is not known."""
    assert plan(None, 2.0, 3600.0) == rules.adaptive_interval_s(2.0, 3600.0, 60.0, 2.0)
