"""Draw lifetimes, allocations and steps: the one place that turns addressed chance into lengths of time.

Compiled, so that kernels and event engine share these lines.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.simulation import random_draws
from windfall.simulation.scenario import (
    LifetimeModel,
    LifetimeQuantiles,
    MemorylessLifetimes,
    RecordedLifetimes,
    Scenario,
)

MEMORYLESS: Final = 0
QUANTILES: Final = 1
RECORDED: Final = 2
WINDOWS: Final = 3
INSTANT_S: Final = 1e-6
"""A window that closes within this time is closed [s]: a wall clock cannot resolve the difference."""
Floats = NDArray[np.float64]


class PackedLifetimes(NamedTuple):
    """Lifetimes as a kernel takes them.

    Attributes:
        kind: `MEMORYLESS`, ..., `WINDOWS`.
        values: means; ages; recorded lifetimes, one row per slot, infinite where none was recorded; (from, to) of windows.
        length_s: of a trace [s]; 0 without one.
        start_s: where the job starts in it [s]; NaN: drawn.
    """

    kind: int
    values: Floats
    length_s: float
    start_s: float


def pack(lifetimes: LifetimeModel) -> PackedLifetimes:
    """Return lifetimes in arrays."""
    if isinstance(lifetimes, MemorylessLifetimes):
        return PackedLifetimes(MEMORYLESS, np.array([lifetimes.means_s]), 0.0, 0.0)
    if isinstance(lifetimes, LifetimeQuantiles):
        return PackedLifetimes(QUANTILES, np.array([lifetimes.ages_s]), 0.0, 0.0)
    if isinstance(lifetimes, RecordedLifetimes):
        longest = max((len(row) for row in lifetimes.lifetimes_s), default=0)
        values = np.full((max(len(lifetimes.lifetimes_s), 1), longest + 1), math.inf)
        for slot, row in enumerate(lifetimes.lifetimes_s):
            values[slot, : len(row)] = row
        return PackedLifetimes(RECORDED, values, 0.0, 0.0)
    start_s = math.nan if lifetimes.start_s is None else lifetimes.start_s
    return PackedLifetimes(WINDOWS, np.array(lifetimes.up_s, dtype=np.float64), lifetimes.length_s, start_s)


@njit(cache=True, inline="always")
def lifetime_s(kind: int, values: Floats, trial_key: int, slot: int, n: int) -> float:
    """Return the lifetime of the n-th machine of a slot [s]; not for `WINDOWS`, see `window`."""
    if kind == RECORDED:
        recorded: float = values[slot, min(n, values.shape[1] - 1)] if slot < values.shape[0] else math.inf
        return recorded
    last, which = values.shape[1] - 1, random_draws.machine(slot, n)
    if kind == MEMORYLESS:
        mean_s = values[0, n % (last + 1) if last else 0]
        drawn_s: float = (
            mean_s * random_draws.exponential(trial_key, random_draws.LIFE, which) if mean_s < math.inf else math.inf
        )
        return drawn_s
    age_s: float = quantile(values, random_draws.uniform(trial_key, random_draws.LIFE, which))
    return age_s


@njit(cache=True, inline="always")
def quantile(values: Floats, uniform: float) -> float:
    """Return the lifetime of `QUANTILES` at a uniform draw [s]."""
    place = uniform * (values.shape[1] - 1)
    cell = np.uint32(place)  # unsigned: the compiler skips the check for negative indices
    from_s, to_s = values[0, cell], values[0, cell + np.uint32(1)]
    if to_s == math.inf:
        return math.inf if place > cell else float(from_s)
    return float(from_s + (to_s - from_s) * (place - cell))


@njit(cache=True, inline="always")
def window(windows: Floats, length_s: float, at_s: float) -> tuple[float, float]:
    """Return when a machine requested at `at_s` is available, and when its window ends; in the trace's time [s]."""
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
    return low_s + (high_s - low_s) * random_draws.uniform(trial_key, what, which)


def _unsigned(key: Any) -> Any:
    """Return a key for compiled code: half of all keys do not fit a signed word."""
    return np.uint64(key)


class Draws:
    """The draws of one trial, for the event engine."""

    def __init__(self, scenario: Scenario, seed: int, trial: int) -> None:
        """Draw the values that a trial draws once.

        Args:
            scenario: its ranges and lifetimes.
            seed: of the simulation.
            trial: its number.
        """
        self._scenario = scenario
        self._packed = pack(scenario.lifetimes)
        self._key = _unsigned(random_draws.key(seed, trial))
        self.step_s = self._once(random_draws.STEP, scenario.step_s.low_s, scenario.step_s.high_s)
        self.stall_s = self._once(random_draws.STALL, scenario.stall_s.low_s, scenario.stall_s.high_s)
        self.upload_s = self._once(random_draws.UPLOAD, scenario.upload_s.low_s, scenario.upload_s.high_s)
        start_s = self._packed.start_s
        drawn = math.isnan(start_s)
        self._start_s = (
            self._packed.length_s * random_draws.uniform(self._key, random_draws.OFFSET, 0) if drawn else start_s
        )

    def _once(self, what: int, low_s: float, high_s: float) -> float:
        return float(within(low_s, high_s, self._key, what, 0))

    def allocate_s(self, slot: int, n: int) -> float:
        """Return the allocation time of the n-th machine of a slot, where one is available [s]."""
        scenario = self._scenario.allocate_s
        return float(
            within(scenario.low_s, scenario.high_s, self._key, random_draws.ALLOCATE, random_draws.machine(slot, n))
        )

    def prepare_s(self, slot: int, n: int) -> float:
        """Return its preparation time [s]."""
        scenario = self._scenario.prepare_s
        return float(
            within(scenario.low_s, scenario.high_s, self._key, random_draws.PREPARE, random_draws.machine(slot, n))
        )

    def announced(self, slot: int, n: int) -> bool:
        """Return whether its loss is announced."""
        draw = random_draws.uniform(self._key, random_draws.ANNOUNCED, random_draws.machine(slot, n))
        return self._scenario.notice_s > 0.0 and bool(draw < self._scenario.announced_share)

    def lifetime(self, slot: int, n: int, at_s: float) -> tuple[float, float]:
        """Return start and end of a machine that could start at `at_s` [s since the submission]."""
        kind, values, length_s, _ = self._packed
        if kind == WINDOWS:
            starts_s, ends_s = window(values, length_s, self._start_s + at_s)
            return float(starts_s - self._start_s), float(ends_s - self._start_s)
        return at_s, at_s + float(lifetime_s(kind, values, self._key, slot, n))
