"""The cheapest way to a deadline while spot machines come and go: a dynamic programme over compute left and time left.

A state is (time left, slack, whether spot is available and for how long, what the machines are).  At each step a job without
machines, or on demand, may become idle, spot or on demand; spot machines are kept until they are lost.  A changeover takes
whole steps; on the way to spot it can be cut off by a loss, on the way to on-demand it cannot.  Spot is only tried with slack
for two changeovers, and waiting ends with slack for one: so no plan of the table is ever late.

Costs are in steps of spot machines.  Availability changes by the hazards of `models.availability`, at any age.

Source: backward induction (R. Bellman, "Dynamic Programming", 1957) on the setting of "Can't Be Late" (NSDI 2024, section
3), whose authors leave the known distribution of availability to future work.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from windfall.models.availability import DOWN, UP, AvailabilityHazards
from windfall.structs import Struct

STEPS_MAX: Final = 600
"""The window has about this many steps at most."""
CHANGEOVER_STEPS_MAX: Final = 4
CELLS_MAX: Final = 100_000
"""Of time left and slack together; a wider table gets longer steps."""
GO_IDLE, GO_SPOT, GO_ON_DEMAND, STAY_ON_DEMAND = 0, 1, 2, 3
"""The choices of a cell; the last one is for machines that work on demand."""
CHOICES: Final = 4
NEVER: Final = 1e9
"""The cost of what cannot be chosen, and of being late [steps of spot]."""
_EQUAL: Final = 1e-9

Costs = NDArray[np.float32]
_Floats = NDArray[np.float64]


class DeadlineTable(Struct, frozen=True):
    """The expected cost of every choice in every state.

    Attributes:
        step_s: of the table [s].
        ages_s: where the classes of age begin [s].
        costs: by (steps left, steps of slack, choice, spot available, class of age) [steps of spot].
    """

    step_s: float
    ages_s: NDArray[np.float64]
    costs: Costs


class TableInputs(Struct, frozen=True):
    """What a table depends on.

    Attributes:
        hazards: of spot machines.
        compute_s, window_s: work and time at the start [s].
        changeover_s: from the decision for other machines to work on them [s].
        price_ratio: on-demand price over spot price [1].
    """

    hazards: AvailabilityHazards
    compute_s: float
    window_s: float
    changeover_s: float
    price_ratio: float


def step_s(window_s: float, slack_s: float, changeover_s: float) -> float:
    """Return the step of a table [s]: a whole part of the changeover, or longer where the window is long.

    Args:
        window_s: time until the deadline at the start [s].
        slack_s: what the work leaves of it [s].
        changeover_s: as in `TableInputs` [s].

    Example:
        60 h with 12 h of slack, changeovers of 720 s: 360 s.
    """
    least_s = max(window_s / STEPS_MAX, math.sqrt(window_s * slack_s / CELLS_MAX))
    parts = min(int(changeover_s / least_s + _EQUAL), CHANGEOVER_STEPS_MAX)
    return changeover_s / parts if parts else least_s


def cell(step_s: float, compute_left_s: float, time_left_s: float) -> tuple[int, int]:
    """Return the steps left and the steps of slack; below 0 if the work does not fit.  Both are rounded to the safe side.

    Args:
        step_s: of the table [s].
        compute_left_s: C [s].
        time_left_s: R [s].
    """
    left = math.floor(time_left_s / step_s + _EQUAL)
    return left, left - math.ceil(compute_left_s / step_s - _EQUAL)


def age_class(ages_s: NDArray[np.float64], age_s: float) -> int:
    """Return the class of an age [s]."""
    found = 0
    while found + 1 < len(ages_s) and ages_s[found + 1] <= age_s:
        found += 1
    return found


def solve(inputs: TableInputs) -> DeadlineTable:
    """Return the table of a job whose work fits its window."""
    slack_s = inputs.window_s - inputs.compute_s
    assert slack_s >= 0.0, "a job that is late from its start has no table"
    step = step_s(inputs.window_s, slack_s, inputs.changeover_s)
    _, slack = cell(step, inputs.compute_s, inputs.window_s)
    steps = math.floor(inputs.window_s / step + _EQUAL)
    hazards, ages = inputs.hazards, len(inputs.hazards.ages_s)
    stages = max(math.ceil(inputs.changeover_s / step - _EQUAL), 1)
    ends, ageing = hazards.changes(step), hazards.ageing(step)
    chances = ends, (1.0 - ends) * (1.0 - ageing), (1.0 - ends) * ageing
    rows = np.arange(max(slack, 0) + 1)
    waits, tries = (rows > stages)[:, None, None], (rows >= 2 * stages)[:, None]
    idle = np.zeros((len(rows), 2, ages))
    # The first index is how many steps of the changeover are left; with none, the machines work.
    spot, on_demand = np.zeros((stages + 1, len(rows), ages)), np.zeros((stages + 1, len(rows), 2, ages))
    costs = np.zeros((steps + 1, len(rows), CHOICES, 2, ages), np.float32)
    for left in range(1, steps + 1):
        kept, onward = 1.0 + _on_spot(spot, idle, chances), inputs.price_ratio + _expected(on_demand, chances)
        stay = onward[0]
        spot = np.concatenate((kept[:1], _later(kept[:-1])))
        on_demand = np.concatenate((onward[:1], _later(onward[:-1])))
        go_idle = np.where(waits, _later(_expected(idle, chances)[None])[0], NEVER)
        go_spot = np.full_like(idle, NEVER)
        go_spot[:, UP] = np.where(tries, spot[stages], NEVER)
        idle = np.minimum(np.minimum(go_idle, go_spot), on_demand[stages])
        on_demand[0] = np.minimum(idle, stay)
        costs[left] = np.stack((go_idle, go_spot, on_demand[stages], stay), axis=1)
        done = rows >= left
        idle[done] = spot[:, done] = on_demand[:, done] = costs[left, done] = 0.0
    return DeadlineTable(step, np.array(hazards.ages_s), costs)


def _expected(values: _Floats, chances: tuple[_Floats, _Floats, _Floats]) -> _Floats:
    """Return the expectation over availability a step later, by (..., available, class of age)."""
    changes, stays, ageing = chances
    older = np.concatenate((values[..., 1:], values[..., -1:]), axis=-1)
    expected: _Floats = changes * values[..., ::-1, :1] + stays * values + ageing * older
    return expected


def _on_spot(spot: _Floats, idle: _Floats, chances: tuple[_Floats, _Floats, _Floats]) -> _Floats:
    """Return the expectation for machines that are, or become, spot: lost, they are idle."""
    changes, stays, ageing = (one[UP] for one in chances)
    older = np.concatenate((spot[..., 1:], spot[..., -1:]), axis=-1)
    expected: _Floats = changes * idle[:, DOWN, :1] + stays * spot + ageing * older
    return expected


def _later(values: _Floats) -> _Floats:
    """Return values of a step later with one step of slack used up, by (stage, slack, ...); without slack it is late."""
    return np.concatenate((np.full_like(values[:, :1], NEVER), values[:, :-1]), axis=1)
