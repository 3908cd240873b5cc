"""Lower bounds of what plans of workers cost, of which some are placed: the compiled part of `exact_kernel`.

**For a fixed number n of workers** an iteration takes a type i always T_i, so that q = sum x_i / T_i, v = sum x_i b_i / T_i and
the price P are linear in the counts x.  In terms of the shares of the iterations, x_i / (T_i q), the mean batch b = v / q, the
price per iteration P / q and the time per iteration 1 / q are linear too.  The iterations j fall with b, and are concave in it.
So cost j P / q and time j / q are products of a concave and a linear function, and so is cost + lambda x time =
j (P + lambda) / q with a price lambda >= 0 of time: over any convex set of shares it is least at a corner.

**A node** has the counts of the first types; the other workers are of the types still open, within their quotas.  The pairs
(b, (P + lambda) / q) that they can reach lie above lines that touch them.  Each line costs one linear-fractional program over
the quotas, which Dinkelbach's method solves by sorting; the least product over the corners of some lines is a lower bound of
j (P + lambda) / q, and another line at the lowest corner raises it (`_product`).  Less lambda T_obj it bounds the cost of plans
in time, and with 1 in place of P + lambda the time.  Each n has the lambda that bounds its plans best (`_tuned`).

Where the loss has the coefficient R, j uses its least value: R^2 >= (1 - w)^2 n / (n - 1) with the largest share w <= (fastest
worker) / v, and v is at least what a plan in time needs.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit

from windfall.models import asp
from windfall.models.asp import AspArrays, Floats

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# ruff: noqa: PLR0917 - compiled functions take flat arguments

ROUND_UP: Final = 1.0 + 1e-12
"""Bounds are computed in another order than costs: they prune only beyond this factor."""
ROUNDED_BATCH, ROUNDED_ITERATIONS = 0.05, 0.5
"""How far the prototype's rounding moves b_w and j, at most."""
LINES: Final = 6
"""Lines of a bound: the first two, and as many more as are worth their time."""
FIRST: Final = np.int64(0)
"""The first type; a plain 0 would be compiled apart, as another type of argument."""
Q, V, P, TOP = 0, 1, 2, 3
"""Columns of a node's sums: iterations and samples per second, USD per second, samples per second of its fastest worker."""

compiled: Final[Any] = functools.partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
iterations_to = compiled(asp.iterations_to)
head_start = compiled(asp.head_start)
loss_scale = compiled(asp.loss_scale)
mean_batch = compiled(asp.mean_batch)
totals = compiled(asp.totals)


class SearchCase(NamedTuple):
    """A provisioning problem as arrays, types in the order of branching.

    Attributes:
        model: its arrays, for up to the most workers of a plan.
        quotas: of each type.
        held: existing workers of each type.
        usd_per_s: of a worker of each type.
        server_usd_per_s: of the servers.
        loss: objective.
        loss_now: reached already.
        training_s: time in which the training must be done [s].
        fewest: workers of a plan.
        most: workers of a plan.
    """

    model: AspArrays
    quotas: Any
    held: Any
    usd_per_s: Floats
    server_usd_per_s: float
    loss: float
    loss_now: float
    training_s: float
    fewest: int
    most: int


class SearchWork(NamedTuple):
    """Arrays for intermediate values, by type.

    Attributes:
        keys: what types are sorted by.
        order: types in that order.
        chosen: workers of a plan that is tried.
        placed: workers of the best one.
        heights: what a worker adds to q (gamma2 b + gamma3).
        mixed: weighted sums of what a worker adds.
        nothing: zeros.
        lines: of `_product`.
    """

    keys: Floats
    order: Any
    chosen: Any
    placed: Any
    heights: Floats
    mixed: Floats
    nothing: Floats
    lines: Floats


@compiled
def iterations_of(case, scale):
    """Return j without rounding."""
    start, floor = head_start(scale, case.model.loss), case.model.loss.gamma5
    return iterations_to(case.loss, scale, start, floor) - iterations_to(case.loss_now, scale, start, floor)


@compiled
def _least(case, first, left, keys, order):
    """Return the sum of the `left` least keys of the open types within their quotas, and sort the types by key."""
    size = 0
    for i in range(first, len(case.quotas)):
        if case.quotas[i] > 0:
            place = size
            while place > 0 and keys[order[place - 1]] > keys[i]:
                order[place] = order[place - 1]
                place -= 1
            order[place] = i
            size += 1
    total, place = 0.0, 0
    while left > 0:
        count = min(left, case.quotas[order[place]])
        total += count * keys[order[place]]
        left -= count
        place += 1
    return total


@compiled
def _support(case, first, left, above, up, sums, rates, work):
    """Return the least (up + sum x above) / q over the open workers, attained by the workers `work.placed`.

    Dinkelbach's method: for a ratio theta, the least difference up + sum x above - theta q takes workers by their coefficient.
    """
    types = len(case.quotas)
    for i in range(first, types):
        work.keys[i] = above[i] / rates[i]
    theta = np.inf
    while True:
        _least(case, first, left, work.keys, work.order)
        top, bottom, rest, place = up, sums[Q], left, 0
        for i in range(first, types):
            work.chosen[i] = 0
        while rest > 0:
            i = work.order[place]
            count = min(rest, case.quotas[i])
            work.chosen[i] = count
            top += count * above[i]
            bottom += count * rates[i]
            rest -= count
            place += 1
        ratio = top / bottom
        if theta < np.inf and ratio >= theta - 1e-13 * abs(theta):
            return min(ratio, theta)
        theta = ratio
        for i in range(first, types):
            work.placed[i] = work.chosen[i]
            work.keys[i] = above[i] - theta * rates[i]


@compiled
def _size_of_scale(case, n, top, speed):
    """Return the least sqrt(R + gamma4) n^power of plans with a speed of at least `speed` and workers of at most `top`."""
    share = min(top / speed, 1.0)
    coefficient = (1.0 - share) * math.sqrt(n / (n - 1.0)) if n > 1 else 0.0
    size = math.sqrt((case.model.loss.weight * coefficient + case.model.loss.offset) * n)
    return size * n**case.model.loss.beside_root


@compiled
def _fewest_iterations(case, size, height):
    """Return j at the least, from the height gamma2 b + gamma3: for a rounded model the least that rounding leaves."""
    loss = case.model.loss
    if not case.model.rounded:
        return iterations_of(case, max(height, 0.0) * size)
    iterations = iterations_of(case, max(height + loss.gamma2 * ROUNDED_BATCH, 0.0) * size)
    return max(iterations - 2.0 * ROUNDED_ITERATIONS, 0.0) * (1.0 - ROUNDED_BATCH / case.model.batches.min())


@compiled
def _speed_needed(case, size, low, high):
    """Return the least speed of a plan in time: T = j b / v, and j b is least at an end of the range of mean batches."""
    loss = case.model.loss
    at_low = low * _fewest_iterations(case, size, loss.gamma2 * low + loss.gamma3)
    at_high = high * _fewest_iterations(case, size, loss.gamma2 * high + loss.gamma3)
    return min(at_low, at_high) / case.training_s


@compiled
def _size_of_node(case, n, first, left, sums, speeds, work):
    """Return the least sqrt(R + gamma4) n^power of plans below a node that are in time."""
    if case.model.loss.weight == 0.0:
        return math.sqrt(case.model.loss.offset * n) * n**case.model.loss.beside_root
    top, low, high = sums[TOP], np.inf, 0.0
    if sums[Q] > 0.0:
        low = high = sums[V] / sums[Q]
    for i in range(first, len(case.quotas)):
        if case.quotas[i] > 0:
            batch = case.model.batches[i]
            top, low, high = max(top, speeds[i]), min(low, batch), max(high, batch)
    speed = sums[V] + _least(case, first, left, speeds, work.order)
    size = _size_of_scale(case, n, top, speed)
    for _ in range(2):
        speed = max(speed, _speed_needed(case, size, low, high) / ROUND_UP)
        size = _size_of_scale(case, n, top, speed)
    return size


@compiled
def _vertex(case, first, above, up, sums, rates, speeds, work):
    """Return height gamma2 b + gamma3 and (up + sum x above) / q of the workers in `work.placed`."""
    loss, q, v, y = case.model.loss, sums[Q], sums[V], up
    for i in range(first, len(case.quotas)):
        count = work.placed[i]
        q += count * rates[i]
        v += count * speeds[i]
        y += count * above[i]
    return loss.gamma2 * v / q + loss.gamma3, y / q


@compiled
def _heights(case, first, rates, speeds, work):
    """Write what each type adds to q (gamma2 b + gamma3)."""
    loss = case.model.loss
    for i in range(first, len(case.quotas)):
        work.heights[i] = loss.gamma2 * speeds[i] + loss.gamma3 * rates[i]


@compiled
def _draw(lines, place, alpha, beta, touch, vertex):
    """Write a line alpha x height + beta x ratio >= touch, and the vertex that it touches."""
    lines[place, 0] = alpha
    lines[place, 1] = beta
    lines[place, 2] = touch
    lines[place, 3] = vertex[0]
    lines[place, 4] = vertex[1]


@compiled
def _product(case, size, first, left, above, up, sums, rates, speeds, lowest, enough, work):
    """Return a lower bound of j (up + sum x above) / q over the open workers.

    The pairs (height, ratio) of plans lie above lines that touch them; the least of the product over the region above all lines
    is at a corner, and the lowest corner is cut off by one more line until it is high enough.

    Args:
        case: the problem.
        size: least sqrt(R + gamma4) n^power.
        first: the first open type.
        left: workers to place.
        above: of each type.
        up: of the workers that are placed.
        sums: of the workers that are placed.
        rates: of each type.
        speeds: of each type.
        lowest: the vertex of the least height, and its ratio.
        enough: a bound of this much need not be raised.
        work: arrays for intermediate values; `work.lines` gets alpha, beta, m, height and ratio of the vertex of each line.
    """
    loss, lines = case.model.loss, work.lines
    ratio = _support(case, first, left, above, up, sums, rates, work)
    _draw(lines, 0, 1.0, 0.0, lowest[0], lowest)
    _draw(lines, 1, 0.0, 1.0, ratio, _vertex(case, first, above, up, sums, rates, speeds, work))
    count, found = 2, 0.0
    start = loss.gamma2 * sums[V] + loss.gamma3 * sums[Q]
    while True:
        corner, least = 0, np.inf
        for place in range(count - 1):
            after = place + 1
            area = lines[place, 0] * lines[after, 1] - lines[after, 0] * lines[place, 1]
            height, y = lines[place, 3], lines[after, 4]
            if area > 0.0:
                height = (lines[place, 2] * lines[after, 1] - lines[after, 2] * lines[place, 1]) / area
                y = (lines[place, 0] * lines[after, 2] - lines[after, 0] * lines[place, 2]) / area
            value = _fewest_iterations(case, size, height) * y
            if value < least:
                corner, least = place, value
        found = max(found, least)
        if found >= enough or count == LINES:
            return found
        alpha = lines[corner, 4] - lines[corner + 1, 4]
        beta = lines[corner + 1, 3] - lines[corner, 3]
        if not (alpha > 1e-9 * lines[corner, 4] and beta > 1e-9 * lines[corner + 1, 3]):
            return found
        for i in range(first, len(case.quotas)):
            work.mixed[i] = alpha * work.heights[i] + beta * above[i]
        touch = _support(case, first, left, work.mixed, alpha * start + beta * up, sums, rates, work)
        for place in range(count, corner + 1, -1):
            for column in range(5):
                lines[place, column] = lines[place - 1, column]
        _draw(lines, corner + 1, alpha, beta, touch, _vertex(case, first, above, up, sums, rates, speeds, work))
        count += 1


@compiled
def bound(case, n, first, left, sums, rates, speeds, lam, enough, work):
    """Return a lower bound of the cost of plans below a node [USD]; infinite if none of them is in time.

    Args:
        case: the problem.
        n: workers of the plan.
        first: the first open type.
        left: workers still to place, at least 1 and no more than the open types' quotas.
        sums: of the workers that are placed.
        rates: 1 / T_i of each type.
        speeds: b_i / T_i of each type.
        lam: price of time, lambda [USD/s], 0 or more.
        enough: a bound of this much need not be raised [USD].
        work: arrays for intermediate values.
    """
    size = _size_of_node(case, n, first, left, sums, speeds, work)
    _heights(case, first, rates, speeds, work)
    start = case.model.loss.gamma2 * sums[V] + case.model.loss.gamma3 * sums[Q]
    least = _support(case, first, left, work.heights, start, sums, rates, work)
    up, late = sums[P] + lam, lam * case.training_s if lam > 0.0 else 0.0
    in_time = case.training_s * ROUND_UP
    at_s = _vertex(case, first, work.nothing, 1.0, sums, rates, speeds, work)[1]
    at_usd = _vertex(case, first, case.usd_per_s, up, sums, rates, speeds, work)[1]
    if math.isfinite(in_time):
        least_s = _product(
            case, size, first, left, work.nothing, 1.0, sums, rates, speeds, (least, at_s), in_time, work
        )
        if least_s > in_time:
            return np.inf
    found = _product(
        case, size, first, left, case.usd_per_s, up, sums, rates, speeds, (least, at_usd), enough + late, work
    )
    return max(found - late, 0.0)
