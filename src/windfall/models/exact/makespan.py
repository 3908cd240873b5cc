"""The exact expected time of a run under any schedule of saves and any lifetime law.

A run is cut into units of work.  A schedule gives, for the machine it starts on and for a fresh machine with j units
left, the number of units before each next save.  Symbols: S survival by age, I its integral, u the share of losses
that redo work, c = 1 - u the share that an emergency save covers, delta the stall of a save, L the time from the end
of the stall to the commit, A allocation, P preparation, h a unit.

A machine that starts at age a with j units left and saves after i1, i2, ... units has the stalls' ends b1 < b2 < ... and
the durable instants d1 = b1 + L, ...; with the work J0 = j, J1 = j - i1, ... left at each, the expected time V satisfies

    S(a) V = I(b_last) - I(a)  +  u sum_k (S(d_k-1) - S(d_k)) (g + V(J_k-1, P))        d_0 = a, d_last = b_last
             + c sum over units and stalls (loss of survival) (g + V(work left then, P))

with the gap g = (A + I(P)) / S(P): from a loss to training on a machine of age P, including losses while it prepares.
A loss returns to the last *durable* checkpoint; after a covered loss training resumes where it stopped, and a unit in
progress counts as half done.  V(j, P) appears on both sides and is solved for.  Losses count from the machine's start,
and survival is conditional on the age at which the run starts on it.

Source: SciSpot (HPDC'20 text, checkpointing policy), whose recursion weighs by the unconditional F(t + w) - F(t), takes
half a segment for the loss, and does not treat the next machine as fresh; this module does none of the three.

A lifetime law as a table: survival by age, and its integral, at any age.

Between two ages of the table the hazard is constant, so that survival is a power and its integral has a closed form:
results from a table are exact for the tabulated law, and a memoryless law is tabulated without error.  For other laws
the table differs from the law to second order in its cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.errors import Infeasible, Misuse
from windfall.structs import Struct

Array = NDArray[np.float64]
LogSurvivalFunction = Callable[[Array], Array]
"""Logarithm of the probability to outlive an age, for an array of ages [s]; minus infinity where no machine survives."""
_TABLE_CELLS_MAX = 20_000_000
"""More cells than this are refused: the table would not fit in a small machine's memory."""
_TINY = 1e-300
"""Survival below this counts as 0: its logarithm would leave the range of a double."""


class SurvivalTable(Struct, frozen=True, eq=False):
    """Survival at ages 0, c, 2c, ...; `tabulate` makes one from a law, `SurvivalTable.of` from survival values.

    Attributes:
        cell_s: c, the distance between ages [s].
        survival: S, probability to outlive each age; starts at 1 and never rises.
        integral_s: integral of S from age 0 to each age [s]; the mean lifetime truncated at that age.
    """

    cell_s: float
    survival: Array
    integral_s: Array

    @classmethod
    def of(cls, cell_s: float, survival: Array) -> SurvivalTable:
        """Return the table of given survival values.

        Args:
            cell_s: distance between ages [s], > 0.
            survival: at ages 0, cell_s, ...; the first is 1.

        Raises:
            Misuse: the values are not a survival function.
        """
        values = np.ascontiguousarray(survival, dtype=np.float64)
        if not (math.isfinite(cell_s) and cell_s > 0.0):
            raise Misuse(f"a survival table has a cell of {cell_s:g} s: give a positive duration")
        if values.ndim != 1 or len(values) < 2 or not np.all(np.isfinite(values)):
            raise Misuse("a survival table must be a row of at least two finite numbers")
        if abs(values[0] - 1.0) > 1e-9 or values[-1] < 0.0 or np.any(np.diff(values) > 1e-12):
            raise Misuse("a survival table must start at 1 for age 0, never rise and never fall below 0")
        values = np.where(values < _TINY, 0.0, np.minimum.accumulate(values))
        values[0] = 1.0
        return cls(cell_s, values, np.concatenate(([0.0], np.cumsum(_cells_s(values, cell_s)))))

    @property
    def until_s(self) -> float:
        """The oldest age in the table [s]."""
        return self.cell_s * (len(self.survival) - 1)

    def covers(self, age_s: float) -> bool:
        """Return whether an age lies within the table, or beyond the age that no machine outlives."""
        return age_s <= self.until_s * (1.0 + 1e-12) or self.survival[-1] == 0.0

    def at(self, ages_s: Array) -> tuple[Array, Array]:
        """Return survival and its integral [s] at ages [s].

        Raises:
            Misuse: an age is beyond the table.
        """
        ages = np.ascontiguousarray(ages_s, dtype=np.float64)
        if len(ages) and not self.covers(float(ages.max())):
            raise Misuse(f"the lifetime table ends at {self.until_s:g} s; it has no age of {ages.max():g} s")
        return _survival_at_ages(self.cell_s, self.survival, self.integral_s, ages)

    def mean_left_s(self, age_s: float = 0.0) -> float:
        """Return the expected remaining lifetime at an age, counted up to the end of the table [s]."""
        survival, integral_s = self.at(np.array([age_s]))
        return float((self.integral_s[-1] - integral_s[0]) / survival[0]) if survival[0] > 0.0 else 0.0


def tabulate(log_survival: LogSurvivalFunction, *, until_s: float, cell_s: float) -> SurvivalTable:
    """Return a law's table up to an age.

    Args:
        log_survival: the law; 0 at age 0.
        until_s: the oldest age needed [s].
        cell_s: distance between ages [s].

    Raises:
        Misuse: the values are not a survival function, or there are too many of them.

    Example:
        `tabulate(lambda age: -age / 10800.0, until_s=86400.0, cell_s=60.0)`: a mean lifetime of 3 h.
    """
    cells = math.ceil(until_s / cell_s) + 1
    if cells > _TABLE_CELLS_MAX:
        raise Misuse(f"a survival table of {until_s:g} s in cells of {cell_s:g} s has {cells} cells: use longer cells")
    return SurvivalTable.of(cell_s, np.exp(log_survival(cell_s * np.arange(cells + 1, dtype=np.float64))))


def _cells_s(survival: Array, cell_s: float) -> Array:
    """Integral of S over each cell [s]: (S0 - S1) / hazard; a cell in which the last machine ends declines linearly."""
    before, after = survival[:-1], survival[1:]
    alive = after > 0.0
    drop = -np.log(np.where(alive, after, 1.0) / np.where(alive, before, 1.0))
    flat = drop < 1e-8
    steep = (before - after) / np.where(flat, 1.0, drop)
    inside = np.where(flat, (before + after) / 2.0, steep)
    return np.asarray(cell_s * np.where(alive, inside, before / 2.0))


@njit(cache=True, nogil=True)
def survival_at(cell_s: float, survival: Array, integral_s: Array, age_s: float) -> tuple[float, float]:
    """Return survival and its integral [s] at one age; for kernels.  Beyond the table it holds the last value."""
    last = len(survival) - 1
    place = age_s / cell_s
    cell = int(place)
    if cell >= last:
        return survival[last], integral_s[last]
    before, after = survival[cell], survival[cell + 1]
    share = place - cell
    if before <= 0.0 or share <= 0.0:
        return before, integral_s[cell]
    if after <= 0.0:
        here = before * (1.0 - share)
        return here, integral_s[cell] + (before + here) / 2.0 * share * cell_s
    drop = math.log(before / after)
    here = before * math.exp(-drop * share)
    if drop < 1e-8:
        return here, integral_s[cell] + (before + here) / 2.0 * share * cell_s
    return here, integral_s[cell] + (before - here) / drop * cell_s


@njit(cache=True, nogil=True)
def _survival_at_ages(cell_s: float, survival: Array, integral_s: Array, ages_s: Array) -> tuple[Array, Array]:
    """Return survival and its integral [s] at many ages; for kernels."""
    here, integral = np.empty(len(ages_s)), np.empty(len(ages_s))
    for index in range(len(ages_s)):
        here[index], integral[index] = survival_at(cell_s, survival, integral_s, ages_s[index])
    return here, integral


Intervals = Sequence[int]
"""The number of units of work before each next save; the last interval ends with the work."""


class MakespanWorld(Struct, frozen=True, eq=False):
    """The lifetimes of machines and the costs of saves and losses.

    Attributes:
        lifetimes: of machines, as a survival table.
        stall_s: delta, how long a save stalls the script [s].
        durable_s: from the start of a save to its commit [s]; None: equal to the stall.
        allocate_s: A, from a loss to the next machine's start [s].
        prepare_s: P, from its start to training [s]; it ages and can be lost meanwhile.
        covered_share: c, the share of losses that are announced early enough for an emergency save.
        saves_at_end: whether the run ends with a save that must be durable, instead of with its last unit.
    """

    lifetimes: SurvivalTable
    stall_s: float
    durable_s: float | None = None
    allocate_s: float = 0.0
    prepare_s: float = 0.0
    covered_share: float = 0.0
    saves_at_end: bool = False

    def __post_init__(self) -> None:
        for name in ("stall_s", "allocate_s", "prepare_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise Misuse(f"{name} is {getattr(self, name):g}: give a duration in seconds, 0 or more")
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
            Infeasible: no machine outlives its preparation.
        """
        survival, integral_s = self.lifetimes.at(np.array([self.prepare_s]))
        if survival[0] <= 0.0:
            raise Infeasible(f"no machine lasts for the {self.prepare_s:g} s that it needs to prepare")
        return float((self.allocate_s + integral_s[0]) / survival[0])


class Schedule(Struct, frozen=True, eq=False):
    """When to save, on this machine and on any fresh one.

    Attributes:
        unit_s: h, a unit of work [s].
        age_s: age of the machine that the run starts on [s].
        first: intervals on that machine [units].
        flat, offsets: intervals on a fresh machine with j units left are `flat[offsets[j]:offsets[j + 1]]`; empty
            where j cannot occur.
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
        """Return the intervals on a fresh machine with `units` units left."""
        return tuple(int(value) for value in self.flat[self.offsets[units] : self.offsets[units + 1]])


class Makespan(Struct, frozen=True, eq=False):
    """Expected times of a run [s], from the time at which the machine trains.

    Attributes:
        expected_s: of the run.
        fresh_s: by units left, from training on a fresh machine; NaN where they cannot occur.
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
    """Return the intervals of a save every `interval` units.

    Example:
        `every(10, 4)` is (4, 4, 2).
    """
    full, rest = divmod(units, interval)
    return (interval,) * full + ((rest,) if rest else ())


def schedule_of(
    units: int, unit_s: float, age_s: float, intervals: Callable[[int], Intervals], *, everywhere: bool = False
) -> Schedule:
    """Return the schedule of a rule that depends only on the units left.

    Args:
        units: the run's work, >= 1.
        unit_s: h [s].
        age_s: age of the machine that the run starts on [s].
        intervals: the rule.
        everywhere: also for numbers of units left that only a covered loss can lead to.

    Example:
        `schedule_of(240, 60.0, 0.0, lambda left: every(left, 38))`: a save every 38 minutes, counted from each start.
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


def expect(world: MakespanWorld, schedule: Schedule) -> Makespan:
    """Return the expected makespan of a schedule; the module's docstring has the equations.

    Args:
        world: lifetimes and costs.
        schedule: when to save.

    Raises:
        Misuse: the schedule reaches ages beyond the lifetime table.
        Infeasible: no machine lasts until the schedule's first save.

    Example:
        4 h in minutes on SciSpot's bathtub, save and restart 1 min, a save every 38 min: 259.2 min, 7.98 % more.
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
    lifetimes = world.lifetimes
    if not lifetimes.covers(oldest_s):
        raise Misuse(
            f"the schedule reaches an age of {oldest_s:g} s, but the lifetime table ends at {lifetimes.until_s:g} s"
        )
    gap_s = world.gap_s
    law = (lifetimes.cell_s, lifetimes.survival, lifetimes.integral_s)
    costs = (schedule.unit_s, world.stall_s, world.lag_s, world.final_s, gap_s, world.covered_share)
    fresh_s = _all_fresh(law, costs, world.prepare_s, schedule.flat, schedule.offsets)
    fixed, own, alive = _lifetime(law, costs, (schedule.age_s, units), schedule.first, fresh_s)
    expected_s = (fixed + own * (gap_s + fresh_s[units])) / alive if alive > 0.0 else math.nan
    if not math.isfinite(expected_s):
        raise Infeasible("under this schedule no machine lasts long enough to make any progress")
    return Makespan(float(expected_s), fresh_s, gap_s)


@njit(cache=True, nogil=True)
def _lifetime(law, costs, start, intervals, fresh_s):  # type: ignore[no-untyped-def]  # compiled: tuples of arrays
    """S(a) V of one machine's lifetime: its constant part, its weight of g + V(units, P), and S(a)."""
    unit_s, stall_s, lag_s, final_s, gap_s, covered = costs
    age_s, units = start
    alive, start_integral_s = survival_at(law[0], law[1], law[2], age_s)
    fixed, own = 0.0, 0.0
    left, durable, now_s, here = units, alive, age_s, alive
    end_s = age_s + units * unit_s + (len(intervals) - 1) * stall_s + final_s
    at_end, until_s = survival_at(law[0], law[1], law[2], end_s)
    for place in range(len(intervals)):
        interval = intervals[place]
        if covered > 0.0:
            for unit in range(interval):
                after = survival_at(law[0], law[1], law[2], now_s + (unit + 1) * unit_s)[0]
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
        safe = at_end if last else survival_at(law[0], law[1], law[2], min(now_s + lag_s, end_s))[0]
        if left == units:
            own += (1.0 - covered) * (durable - safe)
        else:
            fixed += (1.0 - covered) * (durable - safe) * (gap_s + fresh_s[left])
        durable = safe
        left -= interval
        if covered > 0.0:
            after = survival_at(law[0], law[1], law[2], now_s)[0]
            fixed += covered * (here - after) * (gap_s + fresh_s[left])
            here = after
    return fixed + until_s - start_integral_s, own, alive


@njit(cache=True, nogil=True)
def _all_fresh(law, costs, prepare_s, flat, offsets):  # type: ignore[no-untyped-def]  # compiled: tuples of arrays
    """V(j, P) for every j that can occur in the schedule."""
    units = len(offsets) - 2
    fresh_s = np.full(units + 1, np.nan)
    fresh_s[0] = 0.0
    for left in range(1, units + 1):
        intervals = flat[offsets[left] : offsets[left + 1]]
        if len(intervals) == 0:
            continue
        fixed, own, alive = _lifetime(law, costs, (prepare_s, left), intervals, fresh_s)
        if alive > own * (1.0 + 1e-13):
            fresh_s[left] = (fixed + own * costs[4]) / (alive - own)
        else:
            fresh_s[left] = np.inf
    return fresh_s
