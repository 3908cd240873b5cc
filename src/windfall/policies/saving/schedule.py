"""When to save, exactly: the schedule of least expected makespan, for any lifetime law, from any age.

The run has n units of h seconds left and stands on a machine of age a.  Symbols as in `models.exact.makespan`, which
has the expectation of a *given* schedule: S survival by age, I its integral, u and c = 1 - u the shares of losses that
redo work and that an emergency save covers, delta the stall, L the time from its end to the commit, A allocation, P
preparation, g = (A + I(P)) / S(P) the expected gap after a loss.  V(j, a) is the least expected time [s] with j units
left at age a.  The next save comes after i units, at b = a + i h + delta, and is durable at b + L:

    S(a) V(j, a) = min over i of   I(b) - I(a)                                            training, stall
                                 + u (S(a) - S(b + L)) (g + V(j, P))                      lost before the save is durable
                                 - u (S(b) - S(b + L)) (g + V(j - i, P))                  ... counted below for j - i
                                 + c sum_x (S(a + x h) - S(a + (x + 1) h)) (g + (V(j - x, P) + V(j - x - 1, P)) / 2)
                                 + c (S(a + i h) - S(b)) (g + V(j - i, P))                lost, but covered
                                 + S(b) V(j - i, b)                                       lived on

and i = j ends the run: no save and no commit unless the run must end with a durable one.  At a = P the unknown V(j, P)
is on both sides and is solved for in each option.  All of the left side but one minimum of sums of two arrays is common
to every age, which is what the kernel runs over.  `expect` then gives the exact expectation of what was found.

Source: the idea and the two-dimensional state (work left, age) are SciSpot's ("Modeling The Temporally Constrained
Preemptions of Transient Cloud VMs", HPDC'20, checkpointing policy; the draft of 2019 only announces it, sections 4.5
and 5).  The published recursion

    M(J, t) = min_i  P_s (i + delta + M(J - i, t + i + delta)) + P_f (lost + M(J, t + i + delta)),   P_f = F(t+i+delta) - F(t)

is corrected in four places: survival is conditional on the age; the loss is the exact expectation, not half a segment;
a loss is followed by a *fresh* machine; and nothing is floored.  `schedule_published` keeps the authors' program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from windfall.errors import Infeasible, Misuse
from windfall.models.exact import makespan
from windfall.models.exact.makespan import Makespan, Schedule, World
from windfall.models.exact.survival import Array
from windfall.policies.saving import schedule_kernel as kernel

UNITS_USUAL = 1200
"""A run is cut into at most so many units where the caller does not say how long a unit is."""
UNITS_MAX = 20_000
CELLS_MAX = 400_000_000
"""Bounds of what is solved; the second is on units times ages, 3.2 GB."""
DEAD = 1e-14
"""A machine is over at the age that it reaches with less than these odds."""

_Grid = tuple[Array, Array, Array, Array, Array, Array, Array]


@dataclass(frozen=True, eq=False, slots=True)
class Optimal:
    """The best schedule and its exact expectation.

    Attributes:
        work_s: the work left [s].
        schedule: intervals from here, and on every fresh machine.
        expected: exact, with the stalls as they are.
    """

    work_s: float
    schedule: Schedule
    expected: Makespan

    @property
    def saves_at_s(self) -> tuple[float, ...]:
        """Work done from now at which this machine saves [s]; the end of the work is none of them."""
        return tuple(float(done) * self.schedule.unit_s for done in np.cumsum(self.schedule.first)[:-1])

    @property
    def increase_pct(self) -> float:
        """How much longer than the bare work the run is expected to take [%]."""
        return 100.0 * (self.expected.expected_s / self.work_s - 1.0)


def usual_unit_s(work_s: float, stall_s: float) -> float:
    """Return a unit of work that is fine enough: the work in `UNITS_USUAL` units, but none shorter than a stall.

    Args:
        work_s: the work left [s].
        stall_s: of a save [s].

    Example:
        100 h with saves of a minute: 300 s.  10 h: 60 s.
    """
    units = min(max(math.floor(work_s / max(stall_s, 1.0)), 60), UNITS_USUAL)
    return work_s / units


def optimal(world: World, work_s: float, *, age_s: float = 0.0, unit_s: float | None = None) -> Optimal:
    """Return the schedule of least expected makespan.

    Args:
        world: how long machines live, and what saves and losses cost.
        work_s: the work left [s], > 0; rounded up to whole units.
        age_s: of the machine that the run stands on [s].
        unit_s: saves come after whole units of work only [s]; by default `usual_unit_s`.

    Raises:
        Misuse: the lives' table ends before the ages that can be reached, or there would be too many units.
        Infeasible: no machine lives long enough for any progress.

    Example:
        4 h of work on SciSpot's bathtub, save and restart 1 min, from age 0: saves after 18, 20, 25, 32, 46 and 99
        minutes, 256.09 min, 6.70 % more than the work; from age 6 h: no save before the end, 0.44 %.
    """
    unit_s = usual_unit_s(work_s, world.stall_s) if unit_s is None else unit_s
    if not (work_s > 0.0 and unit_s > 0.0 and math.isfinite(work_s / unit_s) and age_s >= 0.0):
        raise Misuse(f"{work_s:g} s of work in units of {unit_s:g} s from age {age_s:g} s cannot be planned")
    units = math.ceil(work_s / unit_s - 1e-9)
    if units > UNITS_MAX:
        raise Misuse(f"{units} units of {unit_s:g} s are too many to plan (most: {UNITS_MAX}): use a longer unit")
    least_s = max(age_s, world.prepare_s) + units * unit_s
    if not world.lives.covers(least_s):
        known_s = world.lives.until_s
        raise Misuse(f"the work reaches an age of {least_s:g} s, and nothing is known beyond {known_s:g} s")
    ages = _ages(world, units, age_s, unit_s)
    grid, ready = _grid(world, unit_s, 0.0, ages), _grid(world, unit_s, world.prepare_s, units)
    support = _support(grid[0])
    if (units + 1) * min(ages, support) > CELLS_MAX:
        raise Misuse(f"{units} units of {unit_s:g} s over {ages} ages do not fit the memory: use a longer unit")
    grid = _cut(grid, support)
    stall = world.stall_s / unit_s
    ready_at = world.prepare_s / unit_s
    numbers = (world.gap_s, world.covered_share, _kept(world, unit_s), ages, stall, ready_at + stall)
    solved = kernel.solve(units, grid, ready, numbers)
    if not np.all(np.isfinite(solved[1])):
        raise Infeasible(f"no machine lives long enough to make {unit_s:g} s of progress and save it")
    first, flat, offsets = kernel.paths(units, (age_s / unit_s, ready_at, stall), grid, solved, numbers)
    found = Schedule(unit_s, age_s, first, flat, offsets)
    return Optimal(units * unit_s, found, makespan.expect(world, found))


def _ages(world: World, units: int, age_s: float, unit_s: float) -> int:
    """How many units old a machine can become: the work, and stalls of half the work or of 30 saves, if there are as many.

    Older ages count as the oldest, which only matters to schedules that stand still for more than a third of the time.
    """
    stalls_s = min(units * world.stall_s, max(units * unit_s / 2.0, 30.0 * world.stall_s))
    oldest_s = max(age_s, world.prepare_s) + units * unit_s + stalls_s
    return math.ceil(oldest_s / unit_s) + 2


def _kept(world: World, unit_s: float) -> int:
    """How many units must follow a save: fewer, and the run would be over before it is durable."""
    return 1 if world.saves_at_end else max(math.ceil(world.lag_s / unit_s - 1e-9), 1)


def _grid(world: World, unit_s: float, from_s: float, ages: int) -> _Grid:
    at_s = from_s + unit_s * np.arange(ages + 1, dtype=np.float64)
    lives, stall_s = world.lives, world.stall_s
    limit_s = math.inf if lives.survival[-1] == 0.0 else lives.until_s
    working, stalled, durable, final = (
        lives.at(np.minimum(at_s + more_s, limit_s)) for more_s in (0.0, stall_s, stall_s + world.lag_s, world.final_s)
    )
    return (*working, *stalled, durable[0], *final)


def _support(survival: Array) -> int:
    """The age [units] at which no machine is left; the last one if some are."""
    over = np.flatnonzero(survival < DEAD)
    return int(over[0]) if len(over) else len(survival) - 1


def _cut(grid: _Grid, support: int) -> _Grid:
    cut = tuple(np.ascontiguousarray(values[: support + 1]) for values in grid)
    return cut[0], cut[1], cut[2], cut[3], cut[4], cut[5], cut[6]
