"""A lifetime law as a table: survival by age, and its integral, at any age.

Between two ages of the table the hazard is constant, so that survival is a power and its integral has a closed form:
what is computed from a table is exact for the tabulated law, and a memoryless law is tabulated without any error.
For other laws the table differs from the law by the second order in its cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.errors import Misuse

Array = NDArray[np.float64]
LogSurvival = Callable[[Array], Array]
"""Logarithm of the odds to live longer than an age, for an array of ages [s]; minus infinity where nothing lives on."""
CELLS_MAX = 20_000_000
"""More cells than this are refused: the table would not fit a small machine's memory."""
TINY = 1e-300
"""Survival below this is none: its logarithm would leave the range of a double."""


@dataclass(frozen=True, eq=False, slots=True)
class SurvivalTable:
    """Survival at ages 0, c, 2c, ...; `tabulate` makes one from a law, `SurvivalTable.of` from survival values.

    Attributes:
        cell_s: c, the ages' distance [s].
        survival: S, odds to live longer than each age; begins with 1 and never rises.
        integral_s: integral of S from age 0 to each age [s]; the mean life cut at that age.
    """

    cell_s: float
    survival: Array
    integral_s: Array

    @classmethod
    def of(cls, cell_s: float, survival: Array) -> SurvivalTable:
        """Return the table of given survival values.

        Args:
            cell_s: distance of the ages [s], > 0.
            survival: at ages 0, cell_s, ...; the first is 1.

        Raises:
            Misuse: the values are no survival function.
        """
        values = np.ascontiguousarray(survival, dtype=np.float64)
        if not (math.isfinite(cell_s) and cell_s > 0.0):
            raise Misuse(f"a table of survival has a cell of {cell_s:g} s: give a positive length of time")
        if values.ndim != 1 or len(values) < 2 or not np.all(np.isfinite(values)):
            raise Misuse("a table of survival must be a row of at least two numbers, none of them missing")
        if abs(values[0] - 1.0) > 1e-9 or values[-1] < 0.0 or np.any(np.diff(values) > 1e-12):
            raise Misuse("a table of survival must begin with 1 at age 0, never rise and never fall below 0")
        values = np.where(values < TINY, 0.0, np.minimum.accumulate(values))
        values[0] = 1.0
        return cls(cell_s, values, np.concatenate(([0.0], np.cumsum(_cells_s(values, cell_s)))))

    @property
    def until_s(self) -> float:
        """The oldest age that the table knows [s]."""
        return self.cell_s * (len(self.survival) - 1)

    def covers(self, age_s: float) -> bool:
        """Return whether an age lies within the table, or beyond the end of every life."""
        return age_s <= self.until_s * (1.0 + 1e-12) or self.survival[-1] == 0.0

    def at(self, ages_s: Array) -> tuple[Array, Array]:
        """Return survival and its integral [s] at ages [s].

        Raises:
            Misuse: an age is beyond the table.
        """
        ages = np.ascontiguousarray(ages_s, dtype=np.float64)
        if len(ages) and not self.covers(float(ages.max())):
            raise Misuse(f"nothing is known of machines older than {self.until_s:g} s; {ages.max():g} s was asked for")
        return look_up(self.cell_s, self.survival, self.integral_s, ages)

    def mean_left_s(self, age_s: float = 0.0) -> float:
        """Return the expected rest of a life from an age on, counted up to the end of the table only [s]."""
        survival, integral_s = self.at(np.array([age_s]))
        return float((self.integral_s[-1] - integral_s[0]) / survival[0]) if survival[0] > 0.0 else 0.0


def tabulate(log_survival: LogSurvival, *, until_s: float, cell_s: float) -> SurvivalTable:
    """Return a law's table up to an age.

    Args:
        log_survival: the law; 0 at age 0.
        until_s: the oldest age needed [s].
        cell_s: distance of the ages [s].

    Raises:
        Misuse: the values are no survival function, or there would be too many of them.

    Example:
        `tabulate(lambda age: -age / 10800.0, until_s=86400.0, cell_s=60.0)`: a mean life of 3 h.
    """
    cells = math.ceil(until_s / cell_s) + 1
    if cells > CELLS_MAX:
        raise Misuse(f"a table of {until_s:g} s in cells of {cell_s:g} s has {cells} cells: use longer cells")
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
def one(cell_s: float, survival: Array, integral_s: Array, age_s: float) -> tuple[float, float]:
    """Return survival and its integral [s] at one age; for kernels.  Beyond the table nothing lives."""
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
def look_up(cell_s: float, survival: Array, integral_s: Array, ages_s: Array) -> tuple[Array, Array]:
    """Return survival and its integral [s] at many ages; for kernels."""
    here, integral = np.empty(len(ages_s)), np.empty(len(ages_s))
    for index in range(len(ages_s)):
        here[index], integral[index] = one(cell_s, survival, integral_s, ages_s[index])
    return here, integral
