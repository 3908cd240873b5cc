"""The optimal schedule of saves, exactly: least expected makespan, for any lifetime law, from any age.

The run has n units of h seconds left and is on a machine of age a.  Symbols as in `models.exact.makespan`, which has
the expectation of a *given* schedule: S survival by age, I its integral, u and c = 1 - u the shares of losses that redo
work and that an emergency save covers, delta the stall, L the time from its end to the commit, A allocation, P
preparation, g = (A + I(P)) / S(P) the expected gap after a loss.  V(j, a) is the least expected time [s] with j units
left at age a.  The next save comes after i units, at b = a + i h + delta, and is durable at b + L:

    S(a) V(j, a) = min over i of   I(b) - I(a)                                            training, stall
                                 + u (S(a) - S(b + L)) (g + V(j, P))                      lost before the save is durable
                                 - u (S(b) - S(b + L)) (g + V(j - i, P))                  ... counted below for j - i
                                 + c sum_x (S(a + x h) - S(a + (x + 1) h)) (g + (V(j - x, P) + V(j - x - 1, P)) / 2)
                                 + c (S(a + i h) - S(b)) (g + V(j - i, P))                lost, but covered
                                 + S(b) V(j - i, b)                                       survived

and i = j ends the run: no save and no commit unless the run must end with a durable one.  At a = P the unknown V(j, P)
is on both sides and is solved for in each option.  All of the left side except one minimum of sums of two arrays is
common to every age; the kernel loops over these.  `expect` then gives the exact expectation of the resulting schedule.

Source: the idea and the two-dimensional state (work left, age) are SciSpot's ("Modeling The Temporally Constrained
Preemptions of Transient Cloud VMs", HPDC'20, checkpointing policy; the draft of 2019 only announces it, sections 4.5
and 5).  The published recursion

    M(J, t) = min_i  P_s (i + delta + M(J - i, t + i + delta)) + P_f (lost + M(J, t + i + delta)),   P_f = F(t+i+delta) - F(t)

is corrected in four places: survival is conditional on the age; the loss is the exact expectation, not half a segment;
a loss is followed by a *fresh* machine; and there is no rounding down.  `lab.scispot_fits` has the authors' program.

The compiled part of `optimal_schedule`: the recursion over remaining units of work and age, as derived there.

`grid` and `ready` hold survival and its integral at ages k h and P + k h (h a unit of work, P the age at which a
machine has finished its preparation), each as seven arrays: S and I at the end of the work, S and I after the stall, S
at the commit, S and I after what follows the last unit.  U(j, k) = S V is stored instead of V: it needs no division, and
is 0 where no machine survives.  D(j, k) is U after the stall of a save, with what the save itself puts at risk.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from windfall.errors import Infeasible, Misuse
from windfall.models.exact import makespan
from windfall.models.exact.makespan import Array, Makespan, MakespanWorld, Schedule
from windfall.structs import Struct


@njit(cache=True, nogil=True)
def _interpolate(row, place, last):  # type: ignore[no-untyped-def]  # compiled
    """The row's value at a place between its cells 0 and `last`, by the cubic through the four cells around it."""
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
def _solve_fresh(j, ready, rows, fresh_s, numbers):  # type: ignore[no-untyped-def]  # compiled
    """V(j, P) and the interval that attains it: V appears on both sides of each option and is solved for."""
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
            after = _interpolate(rows[j - i], place + i, min(oldest - (j - i), rows.shape[1] - 1))
            after -= redone * (gap_s + fresh_s[j - i]) * (stalled[i] - durable[i])
            after += covered * (alive[i] - stalled[i]) * (gap_s + fresh_s[j - i])
        own = redone * (alive[0] - end) + 0.5 * covered * lost
        if alive[0] > own * (1.0 + 1e-13):
            rest = until_s - integral_s[0] + redone * gap_s * (alive[0] - end) + covered * moved + after
            if rest / (alive[0] - own) < best_s:
                best_s, chosen = rest / (alive[0] - own), i
    return best_s, chosen


@njit(cache=True, nogil=True)
def _add_covered(moved, alive, weight, i):  # type: ignore[no-untyped-def]  # compiled
    """Add what covered losses in the i-th unit lead to, for each age."""
    for k in range(min(len(moved), len(alive) - i)):
        moved[k] += weight * (alive[k + i - 1] - alive[k + i])


@njit(cache=True, nogil=True)
def _take_minimum(row, near, far, moved, reached):  # type: ignore[no-untyped-def]  # compiled
    """Lower the row to one more option.  Written for vectorization: nearly all of the time is spent here."""
    if len(moved):
        for k in range(reached):
            value = near[k] + far[k] + moved[k]
            row[k] = value if value < row[k] else row[k]  # noqa: FURB136 - `min` checks for NaN
    else:
        for k in range(reached):
            value = near[k] + far[k]
            row[k] = value if value < row[k] else row[k]  # noqa: FURB136


@njit(cache=True, nogil=True)
def _solve_ages(j, grid, solved, numbers):  # type: ignore[no-untyped-def]  # compiled
    """U(j, k) for each age k: the least over the next save."""
    rows, options, fresh_s = solved
    gap_s, covered, kept, oldest, _, _ = numbers
    alive, integral_s, _, stalled_s, durable, final, final_s = grid
    support = len(alive) - 1
    ages = min(oldest - j, support) + 1
    back_s = (1.0 - covered) * (gap_s + fresh_s[j])
    after_stall = stalled_s - back_s * durable
    moved, row = np.zeros(ages if covered > 0.0 else 0), rows[j]
    row[:ages] = np.inf
    for i in range(1, min(j, support) + 1):
        if covered > 0.0:
            _add_covered(moved, alive, covered * (gap_s + 0.5 * (fresh_s[j - i] + fresh_s[j - i + 1])), i)
        if i < j and j - i >= kept:
            _take_minimum(row, after_stall[i:], options[j - i, i:], moved, min(ages, support - i + 1))
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
        fresh_s[j], firsts[j] = _solve_fresh(j, ready, rows, fresh_s, numbers)
        if not np.isfinite(fresh_s[j]):
            break
        _solve_ages(j, grid, (rows, options, fresh_s), numbers)
        last = min(oldest - j, support)
        back_s = gap_s + fresh_s[j]
        for k in range(last + 1):
            after = _interpolate(rows[j], k + stall_place, last)
            risk = (1.0 - covered) * back_s * (stalled[k] - durable[k])
            options[j, k] = after - risk + covered * back_s * (alive[k] - stalled[k])
    return options, fresh_s, firsts


@njit(cache=True, nogil=True)
def _next_interval(j, k, grid, solved, numbers):  # type: ignore[no-untyped-def]  # compiled
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
def trace_intervals(units, start, grid, solved, numbers):  # type: ignore[no-untyped-def]  # compiled
    """Intervals from the age at which the run starts, and from a fresh machine with j units left for each j.

    `start`: age of the first machine, age of a prepared one and the stall, in units; `solved`: the result of `solve`.
    """
    age, prepared, stall = start
    over = len(grid[0]) - 1
    intervals = np.empty(units, np.int64)
    flat = np.empty(16 * (units + 1), np.int64)
    offsets = np.zeros(units + 2, np.int64)
    first = intervals[:0].copy()
    for j in range(1, units + 2):
        own = j == units + 1
        left, now = (units, age) if own else (j, prepared)
        count = 0
        while left > 0:
            if count == 0 and not own:
                interval = solved[2][left]
            elif now >= over:
                interval = left  # no machine reaches this age
            else:
                interval = _next_interval(left, int(now + 0.5), grid, solved, numbers)
            intervals[count] = interval
            count += 1
            left -= interval
            now += interval + stall
        if own:
            first = intervals[:count].copy()
            break
        if offsets[j] + count > len(flat):
            longer = np.empty(2 * len(flat) + count, np.int64)
            longer[: len(flat)] = flat
            flat = longer
        flat[offsets[j] : offsets[j] + count] = intervals[:count]
        offsets[j + 1] = offsets[j] + count
    return first, flat[: offsets[units + 1]].copy(), offsets


UNITS_DEFAULT = 1200
"""The most units that a run is cut into if the caller gives no unit."""
UNITS_MAX = 20_000
CELLS_MAX = 400_000_000
"""Bounds on the size of the problem; the second is on units times ages, 3.2 GB."""
SURVIVAL_MIN = 1e-14
"""A machine's life ends at the age that it reaches with less than this probability."""

_Grid = tuple[Array, Array, Array, Array, Array, Array, Array]


class Optimal(Struct, frozen=True, eq=False):
    """The best schedule and its exact expectation.

    Attributes:
        work_s: the remaining work [s].
        schedule: intervals from here, and on every fresh machine.
        expected: exact, with the actual stalls.
    """

    work_s: float
    schedule: Schedule
    expected: Makespan

    @property
    def saves_at_s(self) -> tuple[float, ...]:
        """Work done from now at which this machine saves [s], without the end of the work."""
        return tuple(float(done) * self.schedule.unit_s for done in np.cumsum(self.schedule.first)[:-1])

    @property
    def increase_pct(self) -> float:
        """How much longer than the bare work the run is expected to take [%]."""
        return 100.0 * (self.expected.expected_s / self.work_s - 1.0)


def default_unit_s(work_s: float, stall_s: float) -> float:
    """Return a unit of work that is fine enough: the work in `UNITS_DEFAULT` units, but none shorter than a stall.

    Args:
        work_s: the remaining work [s].
        stall_s: of a save [s].

    Example:
        100 h with saves of a minute: 300 s.  10 h: 60 s.
    """
    units = min(max(math.floor(work_s / max(stall_s, 1.0)), 60), UNITS_DEFAULT)
    return work_s / units


def optimal(world: MakespanWorld, work_s: float, *, age_s: float = 0.0, unit_s: float | None = None) -> Optimal:
    """Return the schedule of least expected makespan.

    Args:
        world: the lifetimes of machines, and the costs of saves and losses.
        work_s: the remaining work [s], > 0; rounded up to whole units.
        age_s: of the machine that runs it [s].
        unit_s: saves come only after whole units of work [s]; by default `default_unit_s`.

    Raises:
        Misuse: the lifetime table ends before the ages that can be reached, or there are too many units.
        Infeasible: no machine lasts long enough for any progress.

    Example:
        4 h of work on SciSpot's bathtub, save and restart 1 min, from age 0: saves after 18, 20, 25, 32, 46 and 99
        minutes, 256.09 min, 6.70 % more than the work; from age 6 h: no save before the end, 0.44 %.
    """
    unit_s = default_unit_s(work_s, world.stall_s) if unit_s is None else unit_s
    if not (work_s > 0.0 and unit_s > 0.0 and math.isfinite(work_s / unit_s) and age_s >= 0.0):
        raise Misuse(f"{work_s:g} s of work in units of {unit_s:g} s from age {age_s:g} s cannot be planned")
    units = math.ceil(work_s / unit_s - 1e-9)
    if units > UNITS_MAX:
        raise Misuse(f"{units} units of {unit_s:g} s are too many to plan (most: {UNITS_MAX}): use a longer unit")
    least_s = max(age_s, world.prepare_s) + units * unit_s
    if not world.lifetimes.covers(least_s):
        known_s = world.lifetimes.until_s
        raise Misuse(f"the work reaches an age of {least_s:g} s, but the lifetime table ends at {known_s:g} s")
    ages = _ages(world, units, age_s, unit_s)
    grid, ready = _grid(world, unit_s, 0.0, ages), _grid(world, unit_s, world.prepare_s, units)
    support = _support(grid[0])
    if (units + 1) * min(ages, support) > CELLS_MAX:
        raise Misuse(f"{units} units of {unit_s:g} s over {ages} ages do not fit in memory: use a longer unit")
    grid = _cut(grid, support)
    stall = world.stall_s / unit_s
    ready_at = world.prepare_s / unit_s
    numbers = (world.gap_s, world.covered_share, _units_after_save(world, unit_s), ages, stall, ready_at + stall)
    solved = solve(units, grid, ready, numbers)
    if not np.all(np.isfinite(solved[1])):
        raise Infeasible(f"no machine lasts long enough to make {unit_s:g} s of progress and save it")
    first, flat, offsets = trace_intervals(units, (age_s / unit_s, ready_at, stall), grid, solved, numbers)
    found = Schedule(unit_s, age_s, first, flat, offsets)
    return Optimal(units * unit_s, found, makespan.expect(world, found))


def _ages(world: MakespanWorld, units: int, age_s: float, unit_s: float) -> int:
    """The age in units that a machine can reach: the work, and stalls of half the work or of 30 saves, if there are as many.

    Older ages count as the oldest, which only matters for schedules that stall for more than a third of the time.
    """
    stalls_s = min(units * world.stall_s, max(units * unit_s / 2.0, 30.0 * world.stall_s))
    oldest_s = max(age_s, world.prepare_s) + units * unit_s + stalls_s
    return math.ceil(oldest_s / unit_s) + 2


def _units_after_save(world: MakespanWorld, unit_s: float) -> int:
    """How many units must follow a save: with fewer, the run would end before the save is durable."""
    return 1 if world.saves_at_end else max(math.ceil(world.lag_s / unit_s - 1e-9), 1)


def _grid(world: MakespanWorld, unit_s: float, from_s: float, ages: int) -> _Grid:
    at_s = from_s + unit_s * np.arange(ages + 1, dtype=np.float64)
    lifetimes, stall_s = world.lifetimes, world.stall_s
    limit_s = math.inf if lifetimes.survival[-1] == 0.0 else lifetimes.until_s
    working, stalled, durable, final = (
        lifetimes.at(np.minimum(at_s + more_s, limit_s))
        for more_s in (0.0, stall_s, stall_s + world.lag_s, world.final_s)
    )
    return (*working, *stalled, durable[0], *final)


def _support(survival: Array) -> int:
    """The age [units] at which no machine is left; the last age if some are."""
    over = np.flatnonzero(survival < SURVIVAL_MIN)
    return int(over[0]) if len(over) else len(survival) - 1


def _cut(grid: _Grid, support: int) -> _Grid:
    cut = tuple(np.ascontiguousarray(values[: support + 1]) for values in grid)
    return cut[0], cut[1], cut[2], cut[3], cut[4], cut[5], cut[6]
