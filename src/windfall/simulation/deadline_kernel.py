"""Jobs with a deadline on a series of spot availability, tick by tick, in compiled loops.

The rules are those that decide live (`policies.deadlines`), compiled.  A tick is spot's if spot is available in it; machines on
spot are lost at the first tick without.  A changeover begins whenever machines become spot or on demand, and whatever is
left of it comes before work.  After the deadline the job runs on until its work is done.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from windfall.models import compiled_loops
from windfall.models.availability import Availability
from windfall.policies.deadlines import deadline_rules, deadline_table
from windfall.policies.deadlines.deadline_rules import IDLE, ON_DEMAND, SPOT
from windfall.policies.deadlines.deadline_table import GO_IDLE, GO_ON_DEMAND, GO_SPOT, STAY_ON_DEMAND, DeadlineTable
from windfall.simulation.kernel_world import part
from windfall.structs import Struct

ON_DEMAND_ONLY, GREEDY, UNIFORM, UNIFORM_MAY_IDLE, PLANNED = 0, 1, 2, 3, 4
"""The policies."""
ON_DEMAND_S, SPOT_S, ON_DEMAND_WORK_S, SPOT_WORK_S, SWITCHES, LATE_S = 0, 1, 2, 3, 4, 5
"""What a run's row has: time on either kind, the part of it that is work, changeovers, time after the deadline [s]."""
COLUMNS: Final = 6
_DONE: Final = 1e-6
"""Work below this is done [s]."""

_on_demand_only: Final[Any] = part(deadline_rules.on_demand_only)
_greedy: Final[Any] = part(deadline_rules.greedy)
_uniform_progress: Final[Any] = part(deadline_rules.uniform_progress)
_cheapest_safe: Final[Any] = part(deadline_rules.cheapest_safe)
_cell: Final[Any] = part(deadline_table.cell)
_age_class: Final[Any] = part(deadline_table.age_class)


class DeadlineRun(Struct, frozen=True):
    """A job with a deadline, and how its world is.

    Attributes:
        compute_s, window_s: work, and time until the deadline, at the start [s].
        changeover_s: as the policy has it stated [s].
        tick_s: of the decisions [s].
        changeovers_s: those that happen, in turn; empty: as stated [s].
        extra_s: by how much the work is longer than the policy knows [s].
    """

    compute_s: float
    window_s: float
    changeover_s: float
    tick_s: float = 120.0
    changeovers_s: tuple[float, ...] = ()
    extra_s: float = 0.0


def play(
    available: Availability, starts: np.ndarray[Any, Any], run: DeadlineRun, policy: int, table: DeadlineTable | None
) -> np.ndarray[Any, Any]:
    """Return a row of numbers for each start.

    Args:
        available: by tick; unavailable after its end.
        starts: first ticks of the runs.
        run: the job.
        policy: one of the five.
        table: of `PLANNED`; None for the others.
    """
    assert (table is not None) == (policy == PLANNED), "only the planned policy has a table"
    found = table or _no_table()
    changeovers_s = np.array(run.changeovers_s or (run.changeover_s,))
    net_s = deadline_rules.net_slack_s(run.changeover_s, run.tick_s)
    numbers = (run.compute_s, run.window_s, run.changeover_s, run.tick_s, run.extra_s, net_s)
    rows = np.zeros((len(starts), COLUMNS))
    _loop()(available, starts, numbers, changeovers_s, policy, (found.step_s, found.ages_s, found.costs), rows)
    return rows


def _no_table() -> DeadlineTable:
    return DeadlineTable(1.0, np.zeros(1), np.zeros((1, 1, deadline_table.CHOICES, 2, 1), np.float32))


@functools.cache
def _loop() -> Any:
    return compiled_loops.cached(deadline_rules, deadline_table)(_play_all)


@part
def _planned(on, spot, age_s, left_s, time_s, slacks, table):  # noqa: PLR0917
    """Return the choice of the table that keeps the deadline."""
    step_s, ages_s, costs = table
    steps, slack = _cell(step_s, left_s, time_s)
    if slack < 0 or steps <= 0:
        return ON_DEMAND if on != SPOT else SPOT
    row = costs[min(steps, len(costs) - 1), min(slack, costs.shape[1] - 1), :, int(spot), _age_class(ages_s, age_s)]
    pay = row[STAY_ON_DEMAND] if on == ON_DEMAND else row[GO_ON_DEMAND]
    return _cheapest_safe(on, spot, time_s - left_s, slacks[0], slacks[1], row[GO_IDLE], row[GO_SPOT], pay)


@part
def _play_one(available, start, numbers, changeovers_s, policy, table, row):  # noqa: PLR0917
    compute_s, window_s, changeover_s, tick_s, extra_s, net_s = numbers
    left_s, on, wait_s, age_s, tick, was = compute_s + extra_s, IDLE, 0.0, 0.0, 0, False
    while left_s > _DONE:
        at = start + tick
        spot = at < len(available) and available[at]
        age_s = age_s + tick_s if tick and spot == was else 0.0
        was = spot
        lost = on == SPOT and not spot
        now = IDLE if lost else on
        time_s = window_s - tick * tick_s
        known_s = max(left_s - extra_s, min(left_s, tick_s))
        if policy == PLANNED:
            new = now
            if not (now == ON_DEMAND and wait_s > 0.0):
                new = _planned(now, spot, age_s, known_s, time_s, (net_s, changeover_s + tick_s), table)
        elif policy == ON_DEMAND_ONLY:
            new = _on_demand_only(known_s)
        elif policy == GREEDY:
            new = _greedy(now, spot, known_s, time_s, net_s)
        else:
            idles = policy == UNIFORM_MAY_IDLE
            new = _uniform_progress(now, spot, known_s, time_s, net_s, compute_s, window_s, changeover_s, idles)
        if new != IDLE and (lost or new != on):
            wait_s = changeovers_s[int(row[SWITCHES]) % len(changeovers_s)]
            row[SWITCHES] += 1.0
        on = new
        used_s = 0.0
        if on != IDLE:
            waited_s = min(wait_s, tick_s)
            worked_s = min(tick_s - waited_s, left_s)
            wait_s -= waited_s
            left_s -= worked_s
            used_s = waited_s + worked_s
            row[SPOT_S if on == SPOT else ON_DEMAND_S] += used_s
            row[SPOT_WORK_S if on == SPOT else ON_DEMAND_WORK_S] += worked_s
        tick += 1
        if left_s <= _DONE:
            row[LATE_S] = max((tick - 1) * tick_s + used_s - window_s, 0.0)


def _play_all(available, starts, numbers, changeovers_s, policy, table, rows):  # noqa: PLR0917
    for number in range(len(starts)):
        _play_one(available, starts[number], numbers, changeovers_s, policy, table, rows[number])
