"""The cheapest way to a deadline if it were known when spot machines come and go: exact, by dynamic programme.

A state is (tick, slack in ticks, what the machines are).  Work keeps the slack; waiting uses up a tick of it, a changeover as
many as it takes.  With the series known, no changeover to spot is begun that will be cut off, so each is carried through; that
is the only simplification, and it excludes no best plan.

Source: the omniscient policy of "Can't Be Late" (NSDI 2024, section 5.1), there solved as an integer programme.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
from typing import Any, Final

import numpy as np

from windfall.errors import Infeasible
from windfall.models import compiled_loops
from windfall.models.availability import Availability
from windfall.policies.deadlines import deadline_rules
from windfall.policies.deadlines.deadline_rules import IDLE, ON_DEMAND, SPOT
from windfall.simulation.deadline_kernel import DeadlineRun

_NEVER: Final = 1e18
_EQUAL: Final = 1e-9
COLUMNS: Final = 3
ON_DEMAND_WORK_S, SPOT_WORK_S, COST_S = 0, 1, 2
"""What a run's row has: work on either kind [s]; the cost, changeovers included [s of spot]."""


def best(
    available: Availability, starts: np.ndarray[Any, Any], run: DeadlineRun, price_ratio: float
) -> np.ndarray[Any, Any]:
    """Return the row of the cheapest run from each start.

    Args:
        available: by tick; as long as any run needs.
        starts: first ticks of the runs.
        run: the job; its work and its window are whole ticks, a changeover is rounded up to them.
        price_ratio: on-demand price over spot price [1].

    Raises:
        Infeasible: the window is too short for the work and one changeover.
    """
    window, work = (round(value / run.tick_s) for value in (run.window_s, run.compute_s))
    changeover = math.ceil(run.changeover_s / run.tick_s - _EQUAL)
    if window - work < changeover:
        raise Infeasible(
            f"{run.compute_s:g} s of work and a changeover of {run.changeover_s:g} s do not fit into {run.window_s:g} s"
        )
    rows = np.zeros((len(starts), COLUMNS))
    _loop()(available, starts, window, work, changeover, price_ratio, rows)
    rows *= run.tick_s
    return rows


@functools.cache
def _loop() -> Any:
    return compiled_loops.cached(deadline_rules)(_all)


def _all(available, starts, window, work, changeover, price_ratio, rows):  # noqa: PLR0917
    depth = changeover + 2
    slack_max = window - work
    # Costs, and on-demand ticks of work behind them, of the ticks that a step or a changeover can lead to.
    costs = np.empty((depth, slack_max + 1, 3))
    paid = np.empty((depth, slack_max + 1, 3))
    for number in range(len(starts)):
        up = 0
        for tick in range(window, -1, -1):
            at = starts[number] + tick
            up = up + 1 if tick < window and at < len(available) and available[at] else 0
            here, after, later = tick % depth, (tick + 1) % depth, (tick + changeover) % depth
            for slack in range(slack_max + 1):
                if tick + slack >= window:
                    costs[here, slack] = 0.0
                    paid[here, slack] = 0.0
                    continue
                cost, ticks = _NEVER, 0.0
                if slack >= 1 and costs[after, slack - 1, IDLE] < cost:
                    cost, ticks = costs[after, slack - 1, IDLE], paid[after, slack - 1, IDLE]
                if slack >= changeover:
                    left = slack - changeover
                    if changeover and up > changeover and changeover + costs[later, left, SPOT] < cost:
                        cost, ticks = changeover + costs[later, left, SPOT], paid[later, left, SPOT]
                    pay = price_ratio * changeover + costs[later, left, ON_DEMAND]
                    if changeover and pay < cost:
                        cost, ticks = pay, paid[later, left, ON_DEMAND]
                costs[here, slack] = cost
                paid[here, slack] = ticks
                if up and 1.0 + costs[after, slack, SPOT] < costs[here, slack, SPOT]:
                    costs[here, slack, SPOT] = 1.0 + costs[after, slack, SPOT]
                    paid[here, slack, SPOT] = paid[after, slack, SPOT]
                pay = price_ratio + costs[after, slack, ON_DEMAND]
                if pay < costs[here, slack, ON_DEMAND]:
                    costs[here, slack, ON_DEMAND] = pay
                    paid[here, slack, ON_DEMAND] = paid[after, slack, ON_DEMAND] + 1.0
        rows[number, ON_DEMAND_WORK_S] = paid[0, slack_max, IDLE]
        rows[number, SPOT_WORK_S] = work - paid[0, slack_max, IDLE]
        rows[number, COST_S] = costs[0, slack_max, IDLE]
