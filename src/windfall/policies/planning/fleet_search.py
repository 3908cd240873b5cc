"""Which fleet to have, where a job can use more or fewer machines: how many of which offers, mixes included.

A mix wins where the cheapest offer is limited (a quota, a pool), where the time is limited, or where the machines are few and a
larger one costs less than one more small one saves.

The search is local: from the best fleets of one offer each, machines are added, removed or swapped while that helps, several
of an offer at a time and then one.  It is not exact: `tests/policies/test_fleet_search.py` compares it with all fleets of
random small markets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windfall.policies.acquisition.bidbrain import Floats
from windfall.policies.planning.fleet_course import (
    Counts,
    FleetCourse,
    FleetGoal,
    FleetRates,
    FleetSums,
    Pools,
    counts_of,
    course,
    rates_of,
    score_of,
    sums_of,
)
from windfall.structs import Struct, replace

POOLS_MAX = 48
"""Of more offers than this that no other dominates, those with the cheapest core-hours are searched."""
STARTS = 3
"""From how many fleets of one offer each the search starts."""
STEPS = (8, 1)
"""How many machines of an offer are moved at a time: first many, so that a fleet of a hundred is reached in few moves."""
FRONT_MAX = 10
FRONT_STEP = 0.85
"""On the front of cost against finish, each fleet is asked to finish in this share of the time of the one before."""


def best(pools: Pools, goal: FleetGoal) -> FleetCourse | None:
    """Return the best fleet, None if there is none: no offer, or too few machines of all of them.

    Of fleets that miss the deadline or the budget, the one that misses by least is returned; the caller compares.
    """
    kept = pools.rows(undominated(pools, goal))
    counts = _search(kept, goal, _starts(kept, goal))
    return None if counts is None or counts.sum() < goal.machines_min else course(kept, counts, goal)


def front(pools: Pools, goal: FleetGoal, cheapest: FleetCourse) -> tuple[FleetCourse, ...]:
    """Return fleets of which none is both cheaper and faster than another, the cheapest first.

    Args:
        pools: what fleets can be made of.
        goal: its deadline and budget do not count.
        cheapest: the fleet of least cost.
    """
    if cheapest.finish_s is None or cheapest.cost_usd is None:
        return (cheapest,)
    kept = pools.rows(undominated(pools, goal))
    fleets, deadline_s = [cheapest], cheapest.finish_s
    counts = counts_of(kept, cheapest)
    while len(fleets) < FRONT_MAX:
        deadline_s *= FRONT_STEP
        asked = replace(goal, deadline_s=deadline_s, budget_usd=None, fastest=False)
        found = _search(kept, asked, [counts, *_starts(kept, asked)])
        if found is None:
            break
        fleet = course(kept, found, asked)
        if fleet.finish_s is None or fleet.finish_s >= fleets[-1].finish_s:  # type: ignore[operator]
            break
        fleets.append(fleet)
        if fleet.finish_s > deadline_s:
            break
        counts = found
    return tuple(fleets)


def undominated(pools: Pools, goal: FleetGoal) -> NDArray[np.intp]:
    """Return the rows that the best fleet can need.

    A machine is never needed if others, as many as the job can use, have no fewer cores, cost no more, are lost no more often
    and start no later.  That is exact as long as more cores do more work.
    """
    rates = rates_of(pools)
    usable = (pools.cores > 0.0) & (pools.limit > 0) & np.isfinite(rates.start_s)
    rows = np.flatnonzero(usable)
    columns = (-rates.cores, rates.usd_per_hour, rates.losses_per_s, rates.start_s, rates.prepare_s)
    no_worse = np.ones((len(rows), len(rows)), dtype=np.bool_)  # [i, j]: i is no worse than j
    for column in columns:
        no_worse &= column[rows][:, None] <= column[rows][None, :]
    equal = no_worse & no_worse.T
    first = np.triu(np.ones_like(equal), 1)
    better = no_worse & (~equal | first)
    kept = rows[better.T @ pools.limit[rows].astype(np.float64) < goal.machines_max]
    if len(kept) > POOLS_MAX:
        per_core = rates.usd_per_hour[kept] / rates.cores[kept]
        kept = np.sort(kept[np.argsort(per_core, kind="stable")[:POOLS_MAX]])
    return np.asarray(kept, dtype=np.intp)


def _starts(pools: Pools, goal: FleetGoal) -> list[Counts]:
    """Return the best fleets of one offer each, the best first, and the largest one of the cheapest cores."""
    rates = rates_of(pools)
    numbers = np.arange(1, min(int(pools.limit.max(initial=0)), goal.machines_max) + 1)
    score = score_of(_alone(rates, numbers), goal)
    few_or_many = np.where(numbers <= pools.limit[:, None], score[0], np.inf)
    order = np.lexsort([values.ravel() for values in (few_or_many, *score[1:])][::-1])
    rows, places = np.divmod(order, len(numbers))
    starts = []
    for row in dict.fromkeys(rows.tolist()):
        counts = np.zeros(len(pools.keys), dtype=np.int64)
        counts[row] = numbers[places[np.argmax(rows == row)]]
        starts.append(counts)
        if len(starts) == STARTS:
            break
    return [*starts, _full(pools, rates, goal)]


def _alone(rates: FleetRates, numbers: NDArray[np.int64]) -> FleetSums:
    """Return the sums of fleets of one offer each; shape (offers, numbers)."""
    machines = np.broadcast_to(numbers.astype(np.float64), (len(rates.cores), len(numbers)))
    each = (rates.cores, rates.usd_per_hour, rates.losses_per_s)
    latest = (np.broadcast_to(value[:, None], machines.shape) for value in (rates.start_s, rates.prepare_s))
    return FleetSums(machines, *(machines * value[:, None] for value in each), *latest)


def _full(pools: Pools, rates: FleetRates, goal: FleetGoal) -> Counts:
    """Return the fleet of as many machines as the job can use, those with the cheapest core-hours first."""
    counts, room = np.zeros(len(pools.keys), dtype=np.int64), goal.machines_max
    for row in np.argsort(rates.usd_per_hour / rates.cores, kind="stable"):
        counts[row] = min(int(pools.limit[row]), room)
        room -= int(counts[row])
    return counts


def _search(pools: Pools, goal: FleetGoal, starts: Sequence[Counts]) -> Counts | None:
    """Return the best of the fleets that a search from each of these ends at; None if all are empty."""
    if not pools.keys:
        return None
    rates = rates_of(pools)
    effects = [_effects(rates, step) for step in STEPS]
    ended = [_climb(pools, rates, goal, start, effects) for start in starts]
    scores = score_of(sums_of(rates, np.stack(ended)), goal)
    found = ended[_first(scores)]
    return found if found.any() else None


def _climb(pools: Pools, rates: FleetRates, goal: FleetGoal, counts: Counts, steps: Sequence[_Effects]) -> Counts:
    """Add, remove or swap machines while that helps."""
    counts = counts.copy()
    now = tuple(float(values) for values in score_of(sums_of(rates, counts), goal))
    for effects in steps:
        while True:
            score = score_of(_moves(rates, counts, effects), goal)
            allowed = _allowed(pools, counts, effects.step)
            place = _first([np.where(allowed, score[0], np.inf), *score[1:]])
            then = tuple(float(values.ravel()[place]) for values in score)
            if not (allowed.ravel()[place] and _is_better(then, now)):
                break
            now = then
            removed, added = divmod(place, len(counts) + 1)
            if removed < len(counts):
                counts[removed] -= effects.step
            if added < len(counts):
                counts[added] += effects.step
    return counts


def _first(score: Sequence[Floats]) -> int:
    """Return the place of the least score."""
    places = np.arange(score[0].size)
    for values in score:
        found = values.ravel()[places]
        places = places[found == found.min()]
    return int(places[0])


def _is_better(then: tuple[float, ...], now: tuple[float, ...]) -> bool:
    """Whether a score is less by more than rounding."""
    for new, old in zip(then, now, strict=True):
        if not math.isclose(new, old, rel_tol=1e-12, abs_tol=1e-15):
            return new < old
    return False


def _allowed(pools: Pools, counts: Counts, step: int) -> NDArray[np.bool_]:
    """Return which moves there are: row: the offer to remove machines of, column: to add some of; the last ones: none."""
    removable = np.append(counts >= step, True)
    addable = np.append(counts + step <= pools.limit, True)
    allowed: NDArray[np.bool_] = removable[:, None] & addable[None, :]
    return allowed


class _Effects(Struct, frozen=True):
    """What each move adds to the sums of any fleet, and what follows from one more machine of each offer."""

    step: int
    machines: Floats
    cores: Floats
    usd_per_hour: Floats
    losses_per_s: Floats
    start_s: Floats
    prepare_s: Floats


def _effects(rates: FleetRates, step: int) -> _Effects:
    def change(each: Floats) -> Floats:
        moved = step * np.append(each, 0.0)
        changes: Floats = moved[None, :] - moved[:, None]
        return changes

    return _Effects(
        step,
        change(np.ones(len(rates.cores))),
        change(rates.cores),
        change(rates.usd_per_hour),
        change(rates.losses_per_s),
        np.append(rates.start_s, 0.0),
        np.append(rates.prepare_s, 0.0),
    )


def _moves(rates: FleetRates, counts: Counts, effects: _Effects) -> FleetSums:
    """Return the sums of the fleets after each move."""
    fleet = sums_of(rates, counts)
    start_s, prepare_s = (_latest_without(each, counts, effects.step) for each in (rates.start_s, rates.prepare_s))
    return FleetSums(
        fleet.machines + effects.machines,
        np.maximum(fleet.cores + effects.cores, 0.0),
        np.maximum(fleet.usd_per_hour + effects.usd_per_hour, 0.0),
        np.maximum(fleet.losses_per_s + effects.losses_per_s, 0.0),
        np.maximum(start_s[:, None], effects.start_s),
        np.maximum(prepare_s[:, None], effects.prepare_s),
    )


def _latest_without(each: Floats, counts: Counts, step: int) -> Floats:
    """Return the largest value of the offers that a fleet uses without some machines of each, and as it is."""
    used = np.where(counts > 0, each, 0.0)
    first = int(np.argmax(used))
    largest = used[first]
    found = np.full(len(counts) + 1, largest)
    if counts[first] == step:
        used[first] = 0.0
        found[first] = used.max()
    return found
