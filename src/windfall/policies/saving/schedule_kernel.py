"""The compiled part of `schedule`: the recursion over units of work left and age.  The equations are derived there.

`grid` and `ready` hold survival and its integral at ages k h and P + k h (h a unit of work, P the age at which a
machine has prepared), each as seven arrays: S and I at the end of the work, S and I after the stall, S at the commit,
S and I after what follows the last unit.  U(j, k) = S V is kept instead of V: it needs no division, and is 0 where
nothing lives.  D(j, k) is U after the stall of a save, with what the save itself puts at risk.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def between(row, place, last):  # type: ignore[no-untyped-def]  # compiled
    """The row's value between its cells 0 to `last`, by the cubic through the four around the place."""
    cell = int(place)
    if cell >= last:
        return row[last]
    part = place - cell
    if part < 1e-9:
        return row[cell]
    if cell == 0 or cell + 2 > last:
        return row[cell] + part * (row[cell + 1] - row[cell])
    left, right = part + 1.0, part - 1.0
    return (
        part * right * (part - 2.0) * -row[cell - 1] / 6.0
        + left * right * (part - 2.0) * row[cell] / 2.0
        - left * part * (part - 2.0) * row[cell + 1] / 2.0
        + left * part * right * row[cell + 2] / 6.0
    )


@njit(cache=True, nogil=True)
def _begin_fresh(j, ready, rows, fresh_s, numbers):  # type: ignore[no-untyped-def]  # compiled
    """V(j, P) and the interval that reaches it: V stands on both sides of each option and is solved for."""
    gap_s, covered, kept, oldest, _, place = numbers
    alive, integral_s, stalled, stalled_s, durable, final, final_s = ready
    redone = 1.0 - covered
    best_s, chosen, moved = np.inf, 0, 0.0
    lost = alive[0] - alive[1]
    for i in range(1, j + 1):
        if covered > 0.0:
            x = i - 1
            moved += (alive[x] - alive[x + 1]) * (gap_s + 0.5 * (fresh_s[j - i] + (fresh_s[j - x] if x else 0.0)))
        if i == j:
            end, until_s = final[i], final_s[i]
            after = covered * (alive[i] - final[i]) * gap_s
        elif j - i < kept:
            continue
        else:
            end, until_s = durable[i], stalled_s[i]
            after = between(rows[j - i], place + i, min(oldest - (j - i), rows.shape[1] - 1))
            after -= redone * (gap_s + fresh_s[j - i]) * (stalled[i] - durable[i])
            after += covered * (alive[i] - stalled[i]) * (gap_s + fresh_s[j - i])
        own = redone * (alive[0] - end) + 0.5 * covered * lost
        if alive[0] > own * (1.0 + 1e-13):
            rest = until_s - integral_s[0] + redone * gap_s * (alive[0] - end) + covered * moved + after
            if rest / (alive[0] - own) < best_s:
                best_s, chosen = rest / (alive[0] - own), i
    return best_s, chosen


@njit(cache=True, nogil=True)
def _move(moved, alive, weight, i):  # type: ignore[no-untyped-def]  # compiled
    """Add what covered losses in the i-th unit lead to, for each age."""
    for k in range(min(len(moved), len(alive) - i)):
        moved[k] += weight * (alive[k + i - 1] - alive[k + i])


@njit(cache=True, nogil=True)
def _least(row, near, far, moved, reached):  # type: ignore[no-untyped-def]  # compiled
    """Lower the row to one more option.  Written for vectors: nearly all of the time is spent here."""
    if len(moved):
        for k in range(reached):
            value = near[k] + far[k] + moved[k]
            row[k] = value if value < row[k] else row[k]  # noqa: FURB136 - `min` minds what is not a number
    else:
        for k in range(reached):
            value = near[k] + far[k]
            row[k] = value if value < row[k] else row[k]  # noqa: FURB136


@njit(cache=True, nogil=True)
def _fill(j, grid, solved, numbers):  # type: ignore[no-untyped-def]  # compiled
    """U(j, k) for each age k: the least over the next save."""
    rows, options, fresh_s = solved
    gap_s, covered, kept, oldest, _, _ = numbers
    alive, integral_s, _, stalled_s, durable, final, final_s = grid
    support = len(alive) - 1
    ages = min(oldest - j, support) + 1
    back_s = (1.0 - covered) * (gap_s + fresh_s[j])
    ending = stalled_s - back_s * durable
    moved, row = np.zeros(ages if covered > 0.0 else 0), rows[j]
    row[:ages] = np.inf
    for i in range(1, min(j, support) + 1):
        if covered > 0.0:
            _move(moved, alive, covered * (gap_s + 0.5 * (fresh_s[j - i] + fresh_s[j - i + 1])), i)
        if i < j and j - i >= kept:
            _least(row, ending[i:], options[j - i, i:], moved, min(ages, support - i + 1))
    for k in range(min(ages, support - j + 1)):
        last = covered * (alive[k + j] - final[k + j]) * gap_s + (moved[k] if len(moved) else 0.0)
        row[k] = min(row[k], final_s[k + j] - back_s * final[k + j] + last)
    for k in range(max(support - j + 1, 0), ages):
        row[k] = min(
            row[k], final_s[support] + (moved[k] if len(moved) else 0.0)
        )  # the machine ends before the work does
    for k in range(ages):
        row[k] += back_s * alive[k] - integral_s[k]


@njit(cache=True, nogil=True)
def solve(units, grid, ready, numbers):  # type: ignore[no-untyped-def]  # compiled
    """Return D, V(j, P) and the first interval on a fresh machine, for each j.

    `numbers`: the gap [s], the covered share, how many units must follow a save, the oldest age [units], the stall
    [units], P and the stall [units].
    """
    gap_s, covered, _, oldest, stall_place, _ = numbers
    alive, _, stalled, _, durable, _, _ = grid
    support = len(alive) - 1
    rows = np.zeros((units + 1, min(oldest, support) + 1))
    options = np.zeros_like(rows)
    fresh_s, firsts = np.zeros(units + 1), np.zeros(units + 1, np.int64)
    for j in range(1, units + 1):
        fresh_s[j], firsts[j] = _begin_fresh(j, ready, rows, fresh_s, numbers)
        if not np.isfinite(fresh_s[j]):
            break
        _fill(j, grid, (rows, options, fresh_s), numbers)
        last = min(oldest - j, support)
        back_s = gap_s + fresh_s[j]
        for k in range(last + 1):
            after = between(rows[j], k + stall_place, last)
            risk = (1.0 - covered) * back_s * (stalled[k] - durable[k])
            options[j, k] = after - risk + covered * back_s * (alive[k] - stalled[k])
    return options, fresh_s, firsts


@njit(cache=True, nogil=True)
def next_interval(j, k, grid, solved, numbers):  # type: ignore[no-untyped-def]  # compiled
    """The best interval with j units left at age k."""
    options, fresh_s, _ = solved
    gap_s, covered, kept, oldest, _, _ = numbers
    alive, _, _, stalled_s, durable, final, final_s = grid
    support = len(alive) - 1
    k = min(k, oldest - j, support)
    back_s = (1.0 - covered) * (gap_s + fresh_s[j])
    best, chosen, moved = np.inf, j, 0.0
    for i in range(1, j + 1):
        at = min(k + i, support)
        if covered > 0.0:
            lost = alive[min(k + i - 1, support)] - alive[at]
            moved += covered * lost * (gap_s + 0.5 * (fresh_s[j - i] + fresh_s[j - i + 1]))
        if i == j:
            value = final_s[at] - back_s * final[at] + covered * (alive[at] - final[at]) * gap_s + moved
        elif j - i < kept:
            continue
        else:
            value = stalled_s[at] - back_s * durable[at] + options[j - i, at] + moved
        if value < best:
            best, chosen = value, i
    return chosen


@njit(cache=True, nogil=True)
def paths(units, begin, grid, solved, numbers):  # type: ignore[no-untyped-def]  # compiled
    """Intervals from the age at which the run begins, and from a fresh machine with j units left for each j.

    `begin`: age of the first machine, age of a prepared one and the stall, in units; `solved`: what `solve` returned.
    """
    age, prepared, stall = begin
    over = len(grid[0]) - 1
    room = np.empty(units, np.int64)
    flat = np.empty(16 * (units + 1), np.int64)
    offsets = np.zeros(units + 2, np.int64)
    first = room[:0].copy()
    for turn in range(1, units + 2):
        own = turn == units + 1
        left, now = (units, age) if own else (turn, prepared)
        count = 0
        while left > 0:
            if count == 0 and not own:
                interval = solved[2][left]
            elif now >= over:
                interval = left  # no machine gets here
            else:
                interval = next_interval(left, int(now + 0.5), grid, solved, numbers)
            room[count] = interval
            count += 1
            left -= interval
            now += interval + stall
        if own:
            first = room[:count].copy()
            break
        if offsets[turn] + count > len(flat):
            longer = np.empty(2 * len(flat) + count, np.int64)
            longer[: len(flat)] = flat
            flat = longer
        flat[offsets[turn] : offsets[turn] + count] = room[:count]
        offsets[turn + 1] = offsets[turn] + count
    return first, flat[: offsets[units + 1]].copy(), offsets
