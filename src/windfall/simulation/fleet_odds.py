"""P50 and P90 of cost and finish of a fleet that a job's work is spread over, from simulated histories.

Each slot has machines one after the other: allocated, prepared, working until a memoryless lifetime ends.  A loss of a
machine that works stops all for `eviction_s`, a machine that joins later for `change_s`; otherwise the fleet works at
phi(C) C for the C cores that work.  `policies.planning.fleet_course` has the same model's expectation.

All histories are computed at once: the events of each are sorted, and what happens between two of them is a column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.jobs import Job, Objective, Use
from windfall.market import Offer
from windfall.models import job_measurements, lifetime_pool
from windfall.policies.acquisition import ranking
from windfall.policies.acquisition.bidbrain import HOUR_S, Floats, efficiency
from windfall.policies.layout import runtime_list
from windfall.policies.planning import fleet_inputs
from windfall.policies.planning.estimates import Knowledge, PlanInputs
from windfall.policies.planning.fleet_course import Counts, FleetGoal, Pools, course
from windfall.simulation.odds import Odds
from windfall.simulation.outcomes import Floats as Columns
from windfall.structs import Struct

TRIALS = 1_000
_REACH = 1.3
"""How far ahead histories are drawn at first: this multiple of the expected finish."""
TRIALS_MIN = 100
_LIVES = 100_000
"""About how many machines' lives are drawn, so that the user does not wait too long."""
_LIVES_MAX = 1_000_000
"""If the fewest histories have more, none is drawn."""


class FleetHistories(Struct, frozen=True, eq=False):
    """Cost [USD] and finish [s] of each history."""

    cost_usd: Columns
    finish_s: Columns


def odds_of(
    job: Job, offers: Sequence[Offer], known: PlanInputs, fleets: Sequence[Sequence[tuple[Sequence[str], int]]]
) -> list[Odds | None]:
    """Return the odds of some fleets of a plan; None for one that loses too many machines for a quick answer.

    Args:
        job: with its runtime and limits.
        offers: all that the fleets are made of, and that of the machines that keep the state safe.
        known: what the plan is based on.
        fleets: their counts by offer.

    Raises:
        Misuse: the job's runtime is not installed.
    """
    scaling = runtime_list.scaling_of(job)
    if scaling is None:
        raise Misuse(f"the runtime {job.runtime.name} is another one here than at the controller: install the same")
    pooled = lifetime_pool.pool(known.lifetimes, known.now)
    knowledge = Knowledge((), job_measurements.merge(known.measured), pooled, known.poll_s)
    pools = fleet_inputs.pools_of(ranking.with_use(job, Use.AUTO), offers, knowledge, ())
    goal = fleet_inputs.goal_of(job, scaling, offers)
    found: list[Odds | None] = []
    for fleet in fleets:
        have = {tuple(key): count for key, count in fleet}
        counts = np.array([have.get(key, 0) for key in pools.keys], dtype=np.int64)
        few = _lives_per_history(pools, counts, goal) * TRIALS_MIN <= _LIVES_MAX
        found.append(odds(pools, counts, goal, job.objective) if few else None)
    return found


def odds(
    pools: Pools, counts: Counts, goal: FleetGoal, objective: Objective, *, trials: int = TRIALS, seed: int = 0
) -> Odds:
    """Return the odds of a fleet.

    Args:
        pools: what it is made of.
        counts: how many machines of each.
        goal: with the work.
        objective: its deadline and budget.
        trials: how many histories at most; of large fleets with many losses fewer, at least `TRIALS_MIN`.
        seed: of the draws.
    """
    trials = max(min(trials, int(_LIVES / _lives_per_history(pools, counts, goal))), TRIALS_MIN)
    found = histories(pools, counts, goal, trials=trials, seed=seed)
    cost, finish = (np.quantile(values, (0.5, 0.9)) for values in (found.cost_usd, found.finish_s))
    deadline_s, budget_usd = objective.deadline_s, objective.budget_usd
    return Odds(
        cost_usd=(float(cost[0]), float(cost[1])),
        finish_s=(float(finish[0]), float(finish[1])),
        in_time=None if deadline_s is None else float(np.mean(found.finish_s <= deadline_s)),
        in_budget=None if budget_usd is None else float(np.mean(found.cost_usd <= budget_usd)),
        trials=trials,
    )


def _lives_per_history(pools: Pools, counts: Counts, goal: FleetGoal) -> float:
    """Return about how many machines a history has."""
    finish_s = course(pools, counts, goal).finish_s or 0.0
    return float(counts @ (_REACH * finish_s / (pools.mttp_s + pools.allocate_s) + 8.0))


def histories(pools: Pools, counts: Counts, goal: FleetGoal, *, trials: int, seed: int) -> FleetHistories:
    """Return the cost and finish of a fleet's histories.

    Raises:
        ValueError: the work is unknown, or the fleet does none.
    """
    cores = float(counts @ pools.cores)
    if goal.work_core_s is None or cores <= 0.0:
        raise ValueError("there is no work to do, or no machine to do it")
    slots = pools.rows(np.repeat(np.arange(len(counts)), counts))
    start_s = float(np.max(slots.allocate_s + slots.prepare_s))
    reach_s = _REACH * (goal.work_core_s / float(cores * efficiency(cores, goal.app)) + start_s)
    while True:
        starts, ends = _lives(slots, reach_s, trials, np.random.default_rng(seed))
        finish_s = _finishes(slots, goal, starts, ends, reach_s)
        if np.isfinite(finish_s).all():
            return FleetHistories(_costs(slots, goal, starts, ends, finish_s), finish_s)
        reach_s *= 2.0


def _lives(slots: Pools, reach_s: float, trials: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return when the machines of each slot start and end [s], of shape (trials, slots, machines)."""
    lost = np.isfinite(slots.mttp_s)
    cycle_s = np.where(lost, slots.mttp_s, math.inf) + slots.allocate_s
    most = float(np.max(reach_s / cycle_s))
    machines = max(1, math.ceil(most + 6.0 * math.sqrt(most) + 4.0))
    lives_s = (
        rng.exponential(1.0, (trials, len(slots.keys), machines)) * np.where(lost, slots.mttp_s, 0.0)[None, :, None]
    )
    lives_s = np.where(lost[None, :, None], lives_s, 2.0 * reach_s + 1.0)
    ends = np.cumsum(slots.allocate_s[None, :, None] + lives_s, axis=-1)
    return ends - lives_s, ends


def _finishes(slots: Pools, goal: FleetGoal, starts: Floats, ends: Floats, reach_s: float) -> Floats:
    """Return when the work of each history is done [s]; infinite if not within `reach_s`."""
    trials = len(starts)
    ready = starts + slots.prepare_s[None, :, None]
    works = ready < ends
    later = works & (np.arange(starts.shape[-1]) > 0)[None, None, :]
    cores = np.broadcast_to(slots.cores[None, :, None], starts.shape)
    never = np.zeros_like(cores)
    # Rows of events: when, change of the cores that work, change of how many stops there are.
    rows = [
        (ready, np.where(works, cores, 0.0), never),
        (ends, np.where(works, -cores, 0.0), never),
        *_stops(ends, works, goal.app.eviction_s),
        *_stops(ready, later, goal.app.change_s),
    ]
    at, cores_by, stops_by = (
        np.concatenate([row[place].reshape(trials, -1) for row in rows], axis=1) for place in range(3)
    )
    at = np.minimum(at, reach_s)
    order = np.argsort(at, axis=1, kind="stable")
    at, cores_by, stops_by = (np.take_along_axis(values, order, axis=1) for values in (at, cores_by, stops_by))
    working = np.maximum(np.cumsum(cores_by, axis=1), 0.0)
    speed = np.where(np.cumsum(stops_by, axis=1) > 0.5, 0.0, efficiency(working, goal.app) * working)
    last = np.full((trials, 1), reach_s)
    lengths = np.diff(np.concatenate([at, last], axis=1), axis=1)
    done = np.cumsum(speed * lengths, axis=1)
    return _reached(at, speed, lengths, done, goal.work_core_s or 0.0)


def _stops(at: Floats, counts: NDArray[np.bool_], length_s: float) -> list[tuple[Floats, Floats, Floats]]:
    """Return the events of stops that begin at these moments."""
    if length_s <= 0.0:
        return []
    one, none = counts.astype(np.float64), np.zeros_like(at)
    return [(at, none, one), (at + length_s, none, -one)]


def _reached(at: Floats, speed: Floats, lengths: Floats, done: Floats, work: float) -> Floats:
    """Return when an amount of work is done [s]; infinite where it is not."""
    place = np.argmax(done >= work, axis=1)
    rows = np.arange(len(at))
    surplus = done[rows, place] - work
    found = (
        at[rows, place] + lengths[rows, place] - surplus / np.where(speed[rows, place] > 0.0, speed[rows, place], 1.0)
    )
    return np.where(done[:, -1] >= work, found, np.inf)


def _costs(slots: Pools, goal: FleetGoal, starts: Floats, ends: Floats, finish_s: Floats) -> Floats:
    """Return what each history costs [USD]: machines from start to end, those that keep the state safe throughout."""
    until = finish_s[:, None, None]
    billed_s = np.clip(np.minimum(ends, until) - np.minimum(starts, until), 0.0, None).sum(axis=-1)
    reliable_s = finish_s - float(np.max(slots.allocate_s))
    found: Floats = (billed_s @ slots.usd_per_hour + reliable_s * goal.reliable_usd_per_hour) / HOUR_S
    return found
