"""The compiled search of `exact_provisioning`: branch and bound over the workers of each type, number of workers by number.

The open node of the least bound first, so that this bound is proven for the optimum at any moment; where there is
no room for more open nodes, that node's whole tree, depth first.
"""

from __future__ import annotations

import functools
import heapq
import math
from typing import Any

import numpy as np

from windfall.models import asp, compiled_loops
from windfall.policies.planning import exact_bounds
from windfall.policies.planning.exact_bounds import (
    FIRST,
    LINES,
    ROUND_UP,
    TOP,
    P,
    Q,
    SearchWork,
    V,
    bound,
    compiled,
    head_start,
    iterations_of,
    iterations_to,
    loss_scale,
    mean_batch,
    totals,
)

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# ruff: noqa: PLR0917 - compiled functions take flat arguments

TUNING, TUNED = 16, 1.5
"""Rounds of the search for a price of time, and the factor that is near enough."""


@compiled
def _placed(case, place, count, sums, rates, speeds, into):
    """Write the sums with `count` more workers of a type."""
    into[Q] = sums[Q] + count * rates[place]
    into[V] = sums[V] + count * speeds[place]
    into[P] = sums[P] + count * case.usd_per_s[place]
    into[TOP] = max(sums[TOP], speeds[place]) if count > 0 else sums[TOP]


@compiled
def _rates(case, n, rates, speeds, root):
    """Write what each type does in a second in a plan of n workers, and the sums of the existing workers."""
    root[Q] = root[V] = root[TOP] = 0.0
    root[P] = case.server_usd_per_s
    for i in range(len(case.quotas)):
        rates[i] = 1.0 / (case.model.fixed_s[i] + case.model.network_s[n])
        speeds[i] = case.model.batches[i] * rates[i]
        _placed(case, i, case.held[i], root, rates, speeds, root)


@compiled
def _tuned(case, n, left, root, rates, speeds, lam, found, enough, work):
    """Return the highest bound of all plans of n workers, and its price of time.

    Args:
        case: the problem.
        n: workers of the plans.
        left: workers to place.
        root: sums of the existing workers.
        rates: of each type.
        speeds: of each type.
        lam: price of time to start from, that of the number of workers before; 0: there is none.
        found: its bound.
        enough: a bound of this much need not be raised.
        work: arrays for intermediate values.
    """
    step, centre = 2.0, lam
    if lam == 0.0:
        # As if a quarter of the plan's cost were for its time.
        centre = enough / case.training_s / 4.0 if math.isfinite(enough) else case.usd_per_s.max() * n
        step = 4.0
    for _ in range(TUNING):
        higher = bound(case, n, FIRST, left, root, rates, speeds, centre * step, enough, work)
        if higher > found:
            found, lam = higher, centre * step
        else:
            lower = bound(case, n, FIRST, left, root, rates, speeds, centre / step, enough, work)
            if lower > found:
                found, lam = lower, centre / step
            elif step < TUNED:
                break
            else:
                step = math.sqrt(step)
        centre = lam if lam > 0.0 else centre
        if found >= enough:
            break
    return found, lam


@compiled
def _offer(case, n, counts, best, best_usd, work):
    """Take a whole plan if it is in time and cheaper than the best one; its time is that of `models.asp` to the last digit."""
    loss, rounded, usd_per_s = case.model.loss, case.model.rounded, case.server_usd_per_s
    for i in range(len(counts)):
        work.chosen[i] = counts[i] + case.held[i]
        work.keys[i] = case.model.fixed_s[i] + case.model.network_s[n]
        usd_per_s += work.chosen[i] * case.usd_per_s[i]
    workers, rate, speed, coefficient = totals(work.chosen, work.keys, case.model.batches)
    batch = mean_batch(speed, rate, rounded)
    scale = loss_scale(batch, coefficient, workers, loss)
    if rounded:
        start = head_start(scale, loss)
        iterations = round(iterations_to(case.loss, scale, start, loss.gamma5))
        iterations -= round(iterations_to(case.loss_now, scale, start, loss.gamma5))
    else:
        iterations = iterations_of(case, scale)
    time_s = iterations / (speed / batch)
    if 0.0 < time_s <= case.training_s and time_s * usd_per_s < best_usd[0]:
        best_usd[0] = time_s * usd_per_s
        for i in range(len(counts)):
            best[i] = counts[i]


@compiled
def _child(case, n, depth, left, counts, sums, into, tables, best, best_usd):
    """Return the bound of a node whose type `depth` has just got its count; infinite where nothing below it is open.

    Args:
        case: the problem.
        n: workers of the plan.
        depth: the type that was decided last.
        left: workers still to place.
        counts: of each type, the open ones 0.
        sums: before that type.
        into: receives the sums after it.
        tables: rates, speeds and prices of time by n, and `work`.
        best: the best plan.
        best_usd: its cost.
    """
    rates, speeds, prices, work = tables
    _placed(case, depth, counts[depth], sums, rates[n], speeds[n], into)
    if left == 0 or depth + 2 == len(counts):
        if left > 0:
            counts[depth + 1] = left
        _offer(case, n, counts, best, best_usd, work)
        if left > 0:
            counts[depth + 1] = 0
        return np.inf
    return bound(case, n, depth + 1, left, into, rates[n], speeds[n], prices[n], best_usd[0], work)


@compiled
def _range(case, depth, left, open_from):
    """Return the fewest and the most workers of a type that leave a number for the later types that they can have."""
    return max(0, left - open_from[depth + 1]), min(case.quotas[depth], left)


@compiled
def _dive(case, n, first, left, counts, sums, tables, open_from, best, best_usd, nodes_max):
    """Search all plans below a node, depth first; return the number of nodes, above `nodes_max` if it was cut off."""
    types = len(counts)
    lefts, rows, fewest, nodes = np.zeros(types, np.int64), np.zeros((types + 1, 4)), np.zeros(types, np.int64), 0
    depth, lefts[first] = first, left
    for column in range(4):
        rows[first, column] = sums[column]
    fewest[first], most = _range(case, first, left, open_from)
    counts[first] = most + 1
    while depth >= first:
        counts[depth] -= 1
        if counts[depth] < fewest[depth]:
            counts[depth] = 0
            depth -= 1
            continue
        nodes += 1
        if nodes > nodes_max:
            break
        rest = lefts[depth] - counts[depth]
        found = _child(case, n, depth, rest, counts, rows[depth], rows[depth + 1], tables, best, best_usd)
        if found * ROUND_UP < best_usd[0]:
            depth += 1
            lefts[depth] = rest
            fewest[depth], most = _range(case, depth, rest, open_from)
            counts[depth] = most + 1
    return nodes


@compiled
def _roots(case, best, best_usd, tables, sums):
    """Write the sums, rates and prices of time of each number of workers, and return the bound of each."""
    rates, speeds, prices, work = tables
    found, lam, held = np.zeros(case.most + 1), 0.0, 0
    for i in range(len(best)):
        held += case.held[i]
    for n in range(case.fewest, case.most + 1):
        _rates(case, n, rates[n], speeds[n], sums[n])
        left, found[n] = n - held, np.inf
        if left == 0:
            _offer(case, n, np.zeros(len(best), np.int64), best, best_usd, work)
            continue
        found[n] = bound(case, n, FIRST, left, sums[n], rates[n], speeds[n], lam, best_usd[0], work)
        if found[n] * ROUND_UP < best_usd[0]:
            if math.isfinite(case.training_s):
                found[n], lam = _tuned(case, n, left, sums[n], rates[n], speeds[n], lam, found[n], best_usd[0], work)
            prices[n] = lam
    return found


@compiled
def _fill(case, n, depth, known, tables, root, counts, row):
    """Write counts and sums of a node whose first `depth` types are known, and return how many workers are left to place."""
    left = n
    for column in range(4):
        row[column] = root[column]
    for i in range(len(counts)):
        counts[i] = known[i] if i < depth else 0
        left -= counts[i] + case.held[i]
        if i < depth:
            _placed(case, i, counts[i], row, tables[0][n], tables[1][n], row)
    return left


@compiled
def _tables(types, most):
    """Return empty rates, speeds and prices of time by n, and arrays for intermediate values."""
    work = SearchWork(
        np.zeros(types),
        np.zeros(types, np.int64),
        np.zeros(types, np.int64),
        np.zeros(types, np.int64),
        np.zeros(types),
        np.zeros(types),
        np.zeros(types),
        np.zeros((LINES, 5)),
    )
    return np.zeros((most + 1, types)), np.zeros((most + 1, types)), np.zeros(most + 1), work


@compiled
def _open_from(quotas):
    """Return how many workers can be had of each type and all later ones."""
    found = np.zeros(len(quotas) + 1, np.int64)
    for i in range(len(quotas) - 1, -1, -1):
        found[i] = found[i + 1] + quotas[i]
    return found


def _search(case, best, best_usd, nodes_max, room):
    """Return the least bound of what was not searched, and the number of nodes; `best` and `best_usd` are updated."""
    types, open_from, tables = len(best), _open_from(case.quotas), _tables(len(best), case.most)
    sums, into, row, counts = np.zeros((case.most + 1, 4)), np.zeros(4), np.zeros(4), np.zeros(types, np.int64)
    heap, free, used = [(np.inf, 0)], [0], 1
    node_n, node_depth = np.zeros(room, np.int64), np.zeros(room, np.int64)
    node_counts = np.zeros((room, types), np.int64)
    roots = _roots(case, best, best_usd, tables, sums)
    for n in range(case.fewest, case.most + 1):
        if roots[n] * ROUND_UP < best_usd[0]:
            node_n[used] = n
            heapq.heappush(heap, (roots[n], used))
            used += 1
    nodes = case.most + 1 - case.fewest
    while heap[0][0] * ROUND_UP < best_usd[0]:
        proven, slot = heapq.heappop(heap)
        n, depth = node_n[slot], node_depth[slot]
        left = _fill(case, n, depth, node_counts[slot], tables, sums[n], counts, row)
        free.append(slot)
        fewest, most = _range(case, depth, left, open_from)
        for count in range(most, fewest - 1, -1):
            nodes += 1
            counts[depth], rest = count, left - count
            found = _child(case, n, depth, rest, counts, row, into, tables, best, best_usd)
            if found * ROUND_UP < best_usd[0]:
                if len(free) == 1 and used == room:
                    budget = nodes_max - nodes
                    nodes += _dive(case, n, depth + 1, rest, counts, into, tables, open_from, best, best_usd, budget)
                else:
                    if len(free) == 1:
                        free.append(used)
                        used += 1
                    slot = free.pop()
                    node_n[slot], node_depth[slot] = n, depth + 1
                    for i in range(types):
                        node_counts[slot, i] = counts[i]
                    heapq.heappush(heap, (found, slot))
            if nodes > nodes_max:
                return proven, nodes
    return best_usd[0], nodes


@functools.cache
def compiled_search() -> Any:
    """Return `_search`, compiled, from the cache on disk if formulas and bounds are the same."""
    return compiled_loops.cached(asp, exact_bounds)(_search)
