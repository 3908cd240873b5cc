"""What a job's machines are to be before its deadline, with the numbers that were compared.

The rules are those of `deadline_rules`, which the simulations compile; this is how live and simulated drivers ask them.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Sequence
from typing import Final

from windfall.events import ComparedValue
from windfall.models.availability import AvailabilityHazards
from windfall.policies.deadlines import deadline_rules, deadline_table
from windfall.policies.deadlines.deadline_rules import IDLE, ON_DEMAND, SPOT
from windfall.policies.deadlines.deadline_table import (
    GO_IDLE,
    GO_ON_DEMAND,
    GO_SPOT,
    STAY_ON_DEMAND,
    DeadlineTable,
    TableInputs,
)
from windfall.structs import Struct

WORDS: Final = ("wait for spot machines", "spot machines", "on-demand machines")
"""The choices, by `IDLE`, `SPOT`, `ON_DEMAND`."""
_ROUNDED: Final = 0.05
"""Inputs of a table that differ by less than this share have one table."""


class DeadlineRule(enum.Enum):
    """Who decides."""

    GREEDY = enum.auto()
    UNIFORM_PROGRESS = enum.auto()
    UNIFORM_MAY_IDLE = enum.auto()
    CHEAPEST = enum.auto()
    """The table of the dynamic programme."""


class DeadlineState(Struct, frozen=True):
    """A job on its way to its deadline.

    Attributes:
        on: what its machines are (`deadline_rules`): idle if one of them was lost.
        spot: whether spot machines are available.
        age_s: for how long that is so [s].
        compute_left_s, time_left_s: C and R [s].
        compute_s, window_s: both at the start [s].
        changeover_s: d, the bound on a changeover [s].
        tick_s: until it is asked again [s].
        price_ratio: on-demand price over spot price [1].
        hazards: of spot machines.
    """

    on: int
    spot: bool
    age_s: float
    compute_left_s: float
    time_left_s: float
    compute_s: float
    window_s: float
    changeover_s: float
    tick_s: float
    price_ratio: float
    hazards: AvailabilityHazards

    @property
    def slack_s(self) -> float:
        """R - C [s]."""
        return self.time_left_s - self.compute_left_s

    @property
    def net_s(self) -> float:
        """The slack below which only on-demand machines keep the deadline [s]."""
        return deadline_rules.net_slack_s(self.changeover_s, self.tick_s)


def choose(rule: DeadlineRule, state: DeadlineState) -> tuple[int, tuple[ComparedValue, ...]]:
    """Return what the machines are to be, and the numbers that were compared."""
    known = (
        ComparedValue("work left", state.compute_left_s, "s"),
        ComparedValue("time left", state.time_left_s, "s"),
        ComparedValue("slack", state.slack_s, "s"),
        ComparedValue("slack that waiting or spot machines need", state.net_s, "s"),
    )
    match rule:
        case DeadlineRule.GREEDY:
            chosen = deadline_rules.greedy(state.on, state.spot, state.compute_left_s, state.time_left_s, state.net_s)
            return chosen, known
        case DeadlineRule.UNIFORM_PROGRESS | DeadlineRule.UNIFORM_MAY_IDLE:
            due_s = (state.window_s - state.time_left_s) * state.compute_s / state.window_s
            progress = (
                ComparedValue("work done", state.compute_s - state.compute_left_s, "s"),
                ComparedValue("work expected by now", due_s, "s"),
            )
            return _uniform(rule, state), (*known, *progress)
        case DeadlineRule.CHEAPEST:
            chosen, costs = _cheapest(state)
            return chosen, (*known, *costs)


def _uniform(rule: DeadlineRule, state: DeadlineState) -> int:
    return deadline_rules.uniform_progress(
        state.on,
        state.spot,
        state.compute_left_s,
        state.time_left_s,
        state.net_s,
        state.compute_s,
        state.window_s,
        state.changeover_s,
        rule is DeadlineRule.UNIFORM_MAY_IDLE,
    )


def _cheapest(state: DeadlineState) -> tuple[int, tuple[ComparedValue, ...]]:
    """Return the choice by the table, and its expected costs; without slack for a table it is on demand."""
    compute_s = _rounded_up(state.compute_s)
    if state.on == SPOT or compute_s >= state.window_s:
        return (SPOT if state.on == SPOT else ON_DEMAND), ()
    changeover_s, ratio = _rounded_up(state.changeover_s), _rounded_up(state.price_ratio)
    table = _table(TableInputs(state.hazards, compute_s, state.window_s, changeover_s, ratio))
    costs = _costs(table, state)
    if costs is None:
        return ON_DEMAND, ()
    wait, spot, pay = costs
    chosen = deadline_rules.cheapest_safe(
        state.on, state.spot, state.slack_s, state.net_s, state.changeover_s + state.tick_s, wait, spot, pay
    )
    named = ((WORDS[IDLE], wait), (WORDS[SPOT], spot), (WORDS[ON_DEMAND], pay))
    return chosen, tuple(
        ComparedValue(f"expected cost: {words}", value * table.step_s / 3600.0, "hours of spot")
        for words, value in named
        if value < deadline_table.NEVER / 2.0
    )


def _costs(table: DeadlineTable, state: DeadlineState) -> Sequence[float] | None:
    """Return the expected costs of idle, spot and on-demand [steps of spot]; None if there is no slack."""
    steps, slack = deadline_table.cell(table.step_s, state.compute_left_s, state.time_left_s)
    if slack < 0 or steps <= 0:
        return None
    row = min(steps, len(table.costs) - 1), min(slack, table.costs.shape[1] - 1)
    costs = table.costs[*row, :, int(state.spot), deadline_table.age_class(table.ages_s, state.age_s)]
    pay = costs[STAY_ON_DEMAND if state.on == ON_DEMAND else GO_ON_DEMAND]
    return float(costs[GO_IDLE]), float(costs[GO_SPOT]), float(pay)


def _rounded_up(value: float) -> float:
    """Return a number with few values near it, not below it, so that what is measured again seldom needs a new table."""
    step = math.log1p(_ROUNDED)
    return math.exp(math.ceil(math.log(value) / step - 1e-9) * step)


@functools.lru_cache(maxsize=8)
def _table(inputs: TableInputs) -> DeadlineTable:
    return deadline_table.solve(inputs)
