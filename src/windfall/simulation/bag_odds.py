"""P50 and P90 of a bag's cost and finish, by playing its machines.

Each machine lives an exponential time, is replaced after an allocation and a preparation, and finishes `at_once` items in each
`item_s` that it lives to the end of; what a loss cuts off is done again.  The bag is over as soon as enough items are done.
A gang counts as one machine here: it lives until its first machine is lost, and costs as much as all of them.
Items all take the same time here.  Items that are handed out one by one, with different lengths, end within one item's time of
this.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windfall.policies.planning.bag_plan import BagCourse
from windfall.structs import Struct

TRIALS = 1000
_LIVES_MAX = 4000
_CELLS_MAX = 4_000_000
_HALVINGS = 50
_HOUR_S = 3600.0
Array = NDArray[np.float64]


class BagOdds(Struct, frozen=True):
    """How bags came out.

    Attributes:
        cost_usd, finish_s: P50 and P90 [USD, s].
        in_time, in_budget: shares of bags within the limits [1]; None without one.
        trials: bags played.
    """

    cost_usd: tuple[float, float]
    finish_s: tuple[float, float]
    in_time: float | None
    in_budget: float | None
    trials: int


def play(course: BagCourse, *, trials: int = TRIALS, seed: int = 0) -> tuple[Array, Array]:
    """Play bags; return the finish of each [s] and its cost [USD], shape (trials,).

    Args:
        course: the bag and its machines.
        trials: how many.
        seed: of the lifetimes.
    """
    lives_s = _lifetimes_s(course, trials, np.random.default_rng(seed))
    gaps_s = np.full(lives_s.shape, course.allocate_s)
    gaps_s[:, :, 1:] += lives_s[:, :, :-1]
    starts_s = np.cumsum(gaps_s, axis=2)
    low = np.full(trials, course.allocate_s + course.prepare_s)
    high = low + 2.0 * course.item_s
    while (behind := _done(course, lives_s, starts_s, high) < course.items).any():
        if not np.isfinite(high).all() or (high > 1e15).any():
            break
        high = np.where(behind, high * 2.0, high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        enough = _done(course, lives_s, starts_s, middle) >= course.items
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    billed_s = np.clip(high[:, None, None] - starts_s, 0.0, lives_s).sum(axis=(1, 2))
    return high, billed_s * course.gang * course.usd_per_hour / _HOUR_S


def _lifetimes_s(course: BagCourse, trials: int, rng: np.random.Generator) -> Array:
    """Return lifetimes of the machines that follow each other, shape (trials, machines, lives); the last one has no end."""
    gangs, mttp_s = course.machines // course.gang, course.gang_mttp_s
    if mttp_s is None:
        return np.full((trials, gangs, 1), np.inf)
    expected = course.losses / gangs
    lives = int(min(np.ceil(2.0 * expected + 8.0 * np.sqrt(expected + 1.0)) + 2.0, _LIVES_MAX))
    found = rng.exponential(mttp_s, (trials, gangs, lives))
    found[:, :, -1] = np.inf
    return found


def _done(course: BagCourse, lives_s: Array, starts_s: Array, at_s: Array) -> Array:
    """Return how many items are done at a time of each trial, shape (trials,)."""
    works_s = np.clip(at_s[:, None, None] - starts_s, 0.0, lives_s) - course.prepare_s
    rounds = np.floor(np.maximum(works_s, 0.0) / course.item_s + 1e-9)
    return np.asarray(course.at_once * rounds.sum(axis=(1, 2)))


def odds_of(course: BagCourse, deadline_s: float | None, budget_usd: float | None, *, seed: int = 0) -> BagOdds:
    """Return the odds of a bag.

    Args:
        course: the bag and its machines.
        deadline_s: after the submission [s]; None for none.
        budget_usd: None for none.
        seed: of the lifetimes.
    """
    cells = course.machines * (2.0 * course.losses / course.machines + 12.0)
    trials = int(np.clip(_CELLS_MAX / cells, 50, TRIALS))
    finish_s, cost_usd = play(course, trials=trials, seed=seed)
    cost, finish = (np.quantile(values, (0.5, 0.9)) for values in (cost_usd, finish_s))
    return BagOdds(
        (float(cost[0]), float(cost[1])),
        (float(finish[0]), float(finish[1])),
        None if deadline_s is None else float(np.mean(finish_s <= deadline_s)),
        None if budget_usd is None else float(np.mean(cost_usd <= budget_usd)),
        trials,
    )
