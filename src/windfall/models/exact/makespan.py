"""The expected time of a run under any schedule of saves and any lifetime law, exactly.

A run is cut into units of work.  A schedule says, for the machine it begins on and for a fresh machine with j units
left, after how many units each next save comes.  Symbols: S survival by age, I its integral, u the share of losses
that redo work, c = 1 - u the share that an emergency save covers, delta the stall of a save, L the time from the end
of the stall to the commit, A allocation, P preparation, h a unit.

A life that begins at age a with j units left and saves after i1, i2, ... units has the stalls' ends b1 < b2 < ... and
the durable instants d1 = b1 + L, ...; with the work J0 = j, J1 = j - i1, ... left at each, its expected rest V obeys

    S(a) V = I(b_last) - I(a)  +  u sum_k (S(d_k-1) - S(d_k)) (g + V(J_k-1, P))        d_0 = a, d_last = b_last
             + c sum over units and stalls (loss of survival) (g + V(work left then, P))

with the gap g = (A + I(P)) / S(P): from a loss to training on a machine of age P, losses while it prepares included.
A loss goes back to the last *durable* point; a covered one goes on where it stood, for which a unit that was begun
counts as half done.  V(j, P) stands on both sides and is solved for.  Losses count from the machine's start, and
survival is conditional on the age at which the life begins.

Source: SciSpot (HPDC'20 text, checkpointing policy), whose recursion weighs by the unconditional F(t + w) - F(t), takes
half a segment for the loss, and does not let the fresh machine be fresh; here none of the three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.errors import Infeasible, Misuse
from windfall.models.exact.survival import Array, SurvivalTable, one

Intervals = Sequence[int]
"""After how many units of work each next save comes; the last one ends with the work."""


@dataclass(frozen=True, eq=False, slots=True)
class World:
    """What a schedule meets.

    Attributes:
        lives: how long machines live.
        stall_s: delta, how long the script stands still for a save [s].
        durable_s: from the begin of a save to its commit [s]; None: as long as the stall.
        allocate_s: A, from a loss to the next machine's start [s].
        prepare_s: P, from its start to training [s]; it ages and can be lost meanwhile.
        covered_share: c, the share of losses that are announced early enough for an emergency save.
        saves_at_end: whether the run ends with a save that must be durable, rather than with its last unit.
    """

    lives: SurvivalTable
    stall_s: float
    durable_s: float | None = None
    allocate_s: float = 0.0
    prepare_s: float = 0.0
    covered_share: float = 0.0
    saves_at_end: bool = False

    def __post_init__(self) -> None:
        for name in ("stall_s", "allocate_s", "prepare_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise Misuse(f"{name} is {getattr(self, name):g}: give a length of time in seconds, 0 or more")
        if self.durable_s is not None and self.durable_s < self.stall_s:
            raise Misuse(f"a save cannot be durable after {self.durable_s:g} s if it stalls for {self.stall_s:g} s")
        if not 0.0 <= self.covered_share <= 1.0:
            raise Misuse(f"the covered share of losses is {self.covered_share:g}: give a number from 0 to 1")

    @property
    def lag_s(self) -> float:
        """L, from the end of the stall to the commit [s]."""
        return 0.0 if self.durable_s is None else self.durable_s - self.stall_s

    @property
    def final_s(self) -> float:
        """What follows the last unit of work [s]."""
        return self.stall_s + self.lag_s if self.saves_at_end else 0.0

    @property
    def gap_s(self) -> float:
        """g, expected time from a loss to training again [s].

        Raises:
            Infeasible: no machine lives as long as it prepares.
        """
        survival, integral_s = self.lives.at(np.array([self.prepare_s]))
        if survival[0] <= 0.0:
            raise Infeasible(f"no machine lives for the {self.prepare_s:g} s that it needs to prepare")
        return float((self.allocate_s + integral_s[0]) / survival[0])


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """When to save, on this machine and on any fresh one.

    Attributes:
        unit_s: h, a unit of work [s].
        age_s: age of the machine that the run begins on [s].
        first: intervals on that machine [units].
        flat, offsets: intervals on a fresh machine with j units left are `flat[offsets[j]:offsets[j + 1]]`; empty
            where j cannot be met.
    """

    unit_s: float
    age_s: float
    first: NDArray[np.int64]
    flat: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def units(self) -> int:
        """The run's work [units]."""
        return int(self.first.sum())

    def fresh(self, units: int) -> tuple[int, ...]:
        """Return the intervals on a fresh machine with so many units left."""
        return tuple(int(value) for value in self.flat[self.offsets[units] : self.offsets[units + 1]])


@dataclass(frozen=True, eq=False, slots=True)
class Makespan:
    """Expected times of a run [s], from the instant at which the machine trains.

    Attributes:
        expected_s: of the run.
        fresh_s: by units left, from training on a fresh machine; not a number where they cannot be met.
        gap_s: from a loss to training again.
    """

    expected_s: float
    fresh_s: Array
    gap_s: float

    @property
    def from_nothing_s(self) -> float:
        """Expected time if the run had to order its first machine now [s]."""
        return self.gap_s + float(self.fresh_s[-1])


def every(units: int, interval: int) -> tuple[int, ...]:
    """Return the intervals of a save every so many units.

    Example:
        `every(10, 4)` is (4, 4, 2).
    """
    full, rest = divmod(units, interval)
    return (interval,) * full + ((rest,) if rest else ())


def schedule_of(
    units: int, unit_s: float, age_s: float, intervals: Callable[[int], Intervals], *, everywhere: bool = False
) -> Schedule:
    """Return the schedule of a rule that looks at the units left only.

    Args:
        units: the run's work, >= 1.
        unit_s: h [s].
        age_s: age of the machine that the run begins on [s].
        intervals: the rule.
        everywhere: also where only a covered loss can lead.

    Example:
        `schedule_of(240, 60.0, 0.0, lambda left: every(left, 38))`: a save each 38 minutes, counted from each start.
    """
    first = np.asarray(intervals(units), dtype=np.int64)
    known: dict[int, Intervals] = {}
    waiting = [*range(1, units + 1)] if everywhere else [units]
    while waiting:
        left = waiting.pop()
        if left in known:
            continue
        known[left] = intervals(left)
        waiting += [after for after in (left - np.cumsum(known[left])).tolist() if after > 0 and after not in known]
    lengths = [len(known.get(left, ())) for left in range(units + 1)]
    flat = [interval for left in sorted(known) for interval in known[left]]
    return Schedule(
        unit_s,
        age_s,
        first,
        np.asarray(flat, dtype=np.int64),
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
    )


def expect(world: World, schedule: Schedule) -> Makespan:
    """Return the expected makespan of a schedule; the module's docstring has the equations.

    Args:
        world: lives and costs.
        schedule: when to save.

    Raises:
        Misuse: the schedule reaches ages that the table of lives does not have.
        Infeasible: no machine lives long enough for what the schedule does before its first save.

    Example:
        4 h in minutes on SciSpot's bathtub, save and restart 1 min, a save each 38 min: 259.2 min, 7.98 % more.
    """
    units = schedule.units
    if units < 1 or schedule.first.min() < 1:
        raise Misuse("a schedule needs at least one unit of work, and a whole number of units between two saves")
    saves = (
        len(schedule.first)
        if len(schedule.flat) == 0
        else max(len(schedule.first), int(np.diff(schedule.offsets).max()))
    )
    oldest_s = max(schedule.age_s, world.prepare_s) + units * schedule.unit_s + saves * world.stall_s + world.final_s
    lives = world.lives
    if not lives.covers(oldest_s):
        raise Misuse(f"the schedule reaches an age of {oldest_s:g} s, and nothing is known beyond {lives.until_s:g} s")
    gap_s = world.gap_s
    law = (lives.cell_s, lives.survival, lives.integral_s)
    costs = (schedule.unit_s, world.stall_s, world.lag_s, world.final_s, gap_s, world.covered_share)
    fresh_s = _all_fresh(law, costs, world.prepare_s, schedule.flat, schedule.offsets)
    fixed, own, alive = _life(law, costs, (schedule.age_s, units), schedule.first, fresh_s)
    expected_s = (fixed + own * (gap_s + fresh_s[units])) / alive if alive > 0.0 else math.nan
    if not math.isfinite(expected_s):
        raise Infeasible("under this schedule no machine lives long enough to make any progress")
    return Makespan(float(expected_s), fresh_s, gap_s)


@njit(cache=True, nogil=True)
def _life(law, costs, begin, intervals, fresh_s):  # type: ignore[no-untyped-def]  # compiled: tuples of arrays
    """S(a) V of one life: its constant part, its weight of g + V(units, P), and S(a)."""
    unit_s, stall_s, lag_s, final_s, gap_s, covered = costs
    age_s, units = begin
    alive, begun_s = one(law[0], law[1], law[2], age_s)
    fixed, own = 0.0, 0.0
    left, durable, now_s, here = units, alive, age_s, alive
    end_s = age_s + units * unit_s + (len(intervals) - 1) * stall_s + final_s
    at_end, until_s = one(law[0], law[1], law[2], end_s)
    for place in range(len(intervals)):
        interval = intervals[place]
        if covered > 0.0:
            for unit in range(interval):
                after = one(law[0], law[1], law[2], now_s + (unit + 1) * unit_s)[0]
                share = covered * (here - after)
                full = left - unit
                if full == units:
                    fixed += 0.5 * share * (gap_s + fresh_s[full - 1])
                    own += 0.5 * share
                else:
                    fixed += share * (gap_s + 0.5 * (fresh_s[full] + fresh_s[full - 1]))
                here = after
        worked_s = now_s + interval * unit_s
        last = place == len(intervals) - 1
        now_s = worked_s + (final_s if last else stall_s)
        safe = at_end if last else one(law[0], law[1], law[2], min(now_s + lag_s, end_s))[0]
        if left == units:
            own += (1.0 - covered) * (durable - safe)
        else:
            fixed += (1.0 - covered) * (durable - safe) * (gap_s + fresh_s[left])
        durable = safe
        left -= interval
        if covered > 0.0:
            after = one(law[0], law[1], law[2], now_s)[0]
            fixed += covered * (here - after) * (gap_s + fresh_s[left])
            here = after
    return fixed + until_s - begun_s, own, alive


@njit(cache=True, nogil=True)
def _all_fresh(law, costs, prepare_s, flat, offsets):  # type: ignore[no-untyped-def]  # compiled: tuples of arrays
    """V(j, P) for every j that the schedule can meet."""
    units = len(offsets) - 2
    fresh_s = np.full(units + 1, np.nan)
    fresh_s[0] = 0.0
    for left in range(1, units + 1):
        intervals = flat[offsets[left] : offsets[left + 1]]
        if len(intervals) == 0:
            continue
        fixed, own, alive = _life(law, costs, (prepare_s, left), intervals, fresh_s)
        if alive > own * (1.0 + 1e-13):
            fresh_s[left] = (fixed + own * costs[4]) / (alive - own)
        else:
            fresh_s[left] = np.inf
    return fresh_s
