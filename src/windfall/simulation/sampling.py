"""From addresses of chance to lengths of time: the one place where a life, an allocation or a step is drawn.

Compiled, so that kernels and event engine draw by the same lines.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.simulation import chance
from windfall.simulation.scenario import Lives, Memoryless, Quantiles, Recorded, Scenario

MEMORYLESS: Final = 0
QUANTILES: Final = 1
RECORDED: Final = 2
WINDOWS: Final = 3
INSTANT_S: Final = 1e-6
"""Nobody gets a machine whose window closes so soon [s]: a wall clock does not tell it from one that has closed."""
Floats = NDArray[np.float64]


class Packed(NamedTuple):
    """Lives as a kernel takes them.

    Attributes:
        kind: `MEMORYLESS`, ..., `WINDOWS`.
        values: means; ages; recorded lives, a row a slot, infinite where nothing was recorded; (from, to) of windows.
        length_s: of a trace [s]; 0 without one.
        start_s: where the job begins in it [s]; NaN: drawn.
    """

    kind: int
    values: Floats
    length_s: float
    start_s: float


def pack(lives: Lives) -> Packed:
    """Return lives in arrays."""
    if isinstance(lives, Memoryless):
        return Packed(MEMORYLESS, np.array([lives.means_s]), 0.0, 0.0)
    if isinstance(lives, Quantiles):
        return Packed(QUANTILES, np.array([lives.ages_s]), 0.0, 0.0)
    if isinstance(lives, Recorded):
        longest = max((len(row) for row in lives.lives_s), default=0)
        values = np.full((max(len(lives.lives_s), 1), longest + 1), math.inf)
        for slot, row in enumerate(lives.lives_s):
            values[slot, : len(row)] = row
        return Packed(RECORDED, values, 0.0, 0.0)
    start_s = math.nan if lives.start_s is None else lives.start_s
    return Packed(WINDOWS, np.array(lives.up_s, dtype=np.float64), lives.length_s, start_s)


@njit(cache=True, inline="always")
def life_s(kind: int, values: Floats, trial_key: int, slot: int, n: int) -> float:
    """Return how long the n-th machine of a slot lives [s]; of `WINDOWS` only `window` knows."""
    if kind == RECORDED:
        recorded: float = values[slot, min(n, values.shape[1] - 1)] if slot < values.shape[0] else math.inf
        return recorded
    last, which = values.shape[1] - 1, chance.machine(slot, n)
    if kind == MEMORYLESS:
        mean_s = values[0, n % (last + 1) if last else 0]
        drawn_s: float = mean_s * chance.exponential(trial_key, chance.LIFE, which) if mean_s < math.inf else math.inf
        return drawn_s
    age_s: float = quantile(values, chance.uniform(trial_key, chance.LIFE, which))
    return age_s


@njit(cache=True, inline="always")
def quantile(values: Floats, uniform: float) -> float:
    """Return the life of `QUANTILES` that a uniform draw stands for [s]."""
    place = uniform * (values.shape[1] - 1)
    cell = np.uint32(place)  # unsigned: the compiler does not look whether it counts from the end
    from_s, to_s = values[0, cell], values[0, cell + np.uint32(1)]
    if to_s == math.inf:
        return math.inf if place > cell else float(from_s)
    return float(from_s + (to_s - from_s) * (place - cell))


@njit(cache=True, inline="always")
def window(windows: Floats, length_s: float, at_s: float) -> tuple[float, float]:
    """Return when a machine that is wanted from `at_s` on can be had, and when its window ends; in the trace's time [s]."""
    base_s = math.floor(at_s / length_s) * length_s
    low, high = 0, len(windows)
    while low < high:
        middle = (low + high) // 2
        if base_s + windows[middle, 1] > at_s + INSTANT_S:
            high = middle
        else:
            low = middle + 1
    if low == len(windows):
        base_s, low = base_s + length_s, 0
    return max(at_s, base_s + windows[low, 0]), base_s + windows[low, 1]


@njit(cache=True, inline="always")
def within(low_s: float, high_s: float, trial_key: int, what: int, which: int) -> float:
    """Return a draw from a range [s]."""
    if low_s == high_s:
        return low_s
    return low_s + (high_s - low_s) * chance.uniform(trial_key, what, which)


def _word(key: Any) -> Any:
    """Return a key as compiled code takes it: as a number of Python's own half of all keys fit no signed word."""
    return np.uint64(key)


class Draws:
    """The chances of one trial, for the event engine."""

    def __init__(self, scenario: Scenario, seed: int, trial: int) -> None:
        """Draw what is drawn once.

        Args:
            scenario: its ranges and lives.
            seed: of the simulation.
            trial: its number.
        """
        self._scenario = scenario
        self._packed = pack(scenario.lives)
        self._key = _word(chance.key(seed, trial))
        self.step_s = self._once(chance.STEP, scenario.step_s.low_s, scenario.step_s.high_s)
        self.stall_s = self._once(chance.STALL, scenario.stall_s.low_s, scenario.stall_s.high_s)
        self.upload_s = self._once(chance.UPLOAD, scenario.upload_s.low_s, scenario.upload_s.high_s)
        start_s = self._packed.start_s
        drawn = math.isnan(start_s)
        self._start_s = self._packed.length_s * chance.uniform(self._key, chance.OFFSET, 0) if drawn else start_s

    def _once(self, what: int, low_s: float, high_s: float) -> float:
        return float(within(low_s, high_s, self._key, what, 0))

    def allocate_s(self, slot: int, n: int) -> float:
        """Return how long the n-th machine of a slot is waited for, where it can be had [s]."""
        scenario = self._scenario.allocate_s
        return float(within(scenario.low_s, scenario.high_s, self._key, chance.ALLOCATE, chance.machine(slot, n)))

    def prepare_s(self, slot: int, n: int) -> float:
        """Return how long it prepares [s]."""
        scenario = self._scenario.prepare_s
        return float(within(scenario.low_s, scenario.high_s, self._key, chance.PREPARE, chance.machine(slot, n)))

    def announced(self, slot: int, n: int) -> bool:
        """Say whether its loss is announced."""
        draw = chance.uniform(self._key, chance.ANNOUNCED, chance.machine(slot, n))
        return self._scenario.notice_s > 0.0 and bool(draw < self._scenario.announced_share)

    def life(self, slot: int, n: int, at_s: float) -> tuple[float, float]:
        """Return when a machine that could start at `at_s` starts, and when its life ends [s since the submission]."""
        kind, values, length_s, _ = self._packed
        if kind == WINDOWS:
            starts_s, ends_s = window(values, length_s, self._start_s + at_s)
            return float(starts_s - self._start_s), float(ends_s - self._start_s)
        return at_s, at_s + float(life_s(kind, values, self._key, slot, n))
