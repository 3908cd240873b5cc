"""What planning saves costs: the exact distribution against drawing it, and the optimal schedule against a bare kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit

from benchmarks.harness import Benchmark
from windfall.models.exact.finish_time import FixedIntervalRun, finish
from windfall.models.exact.makespan import MakespanWorld, tabulate
from windfall.policies.checkpointing.optimal_schedule import Optimal, optimal

RUN = FixedIntervalRun(450_000.0, 250.0, 13.0, 10_800.0, restart_s=80.0, restart_most_s=120.0, saves_at_end=True)
TRIALS = 1_000_000
DISTRIBUTION_LIMIT, DISTRIBUTION_LIMIT_MS = 0.05, 10.0
SCHEDULE_SHARE, LONG_LIMIT = 0.7, 1.001
HOUR = 3_600.0


@njit(cache=True)
def _draw(chance, trials, segments, length_s, mttp_s, least_s, most_s):
    """Finish times by one jump per lifetime: how many segments a life completes, and the restart after it."""
    times = np.empty(trials)
    for trial in range(trials):
        left, now_s = segments, 0.0
        while True:
            life_s = chance.exponential(mttp_s)
            whole = int(life_s / length_s)
            if whole >= left:
                now_s += left * length_s
                break
            left -= whole
            now_s += life_s + chance.uniform(least_s, most_s)
        times[trial] = now_s
    return times


@njit(cache=True)
def _bare(units, ages, survival, integral_s, restart_s):
    """The bare recursion: expected makespan by units left and age, a save and a restart of one unit each."""
    rows = np.zeros((units + 1, ages + 1))
    for j in range(1, units + 1):
        best_s = np.inf
        for i in range(1, j + 1):
            at = min(i + 1, ages)
            if survival[at] > 0.0:
                lost = 1.0 - survival[at]
                best_s = min(best_s, (integral_s[at] + lost * restart_s + rows[j - i, at]) / survival[at])
        back_s = restart_s + best_s
        ending = integral_s - back_s * survival
        row = rows[j]
        row[:] = np.inf
        reach = ages - j
        for i in range(1, j + 1):
            near, far = ending[i + 1 :], rows[j - i, i + 1 :]
            for k in range(min(reach, ages - i - 1) + 1):
                value = near[k] + far[k]
                row[k] = min(row[k], value)
        for k in range(ages + 1):
            row[k] += back_s * survival[k] - integral_s[k]
    return rows[units, 0]


def ageing(until_s: float, cell_s: float) -> MakespanWorld:
    """Early deaths that grow rarer, no end: no age is cut off, so that all of the work is done."""
    lifetimes = tabulate(lambda age_s: -((age_s / 80_000.0) ** 0.5), until_s=until_s, cell_s=cell_s)
    return MakespanWorld(lifetimes, 60.0, allocate_s=60.0, saves_at_end=True)


def bathtub() -> MakespanWorld:
    """Lives of at most a day, many of them short."""

    def log_survival(age_s: np.ndarray) -> np.ndarray:
        hours = age_s / HOUR
        alive = 1.0 - 0.4137 * (1.0 - np.exp(-hours / 0.9) + np.exp((hours - 24.0) / 0.76) - np.exp(-24.0 / 0.76))
        with np.errstate(divide="ignore"):
            return np.log(np.clip(alive, 0.0, 1.0))

    return MakespanWorld(
        tabulate(log_survival, until_s=26 * HOUR, cell_s=60.0), 60.0, allocate_s=60.0, saves_at_end=True
    )


def timed_s(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def drawn_s() -> float:
    """A million trials on one core [s]."""
    chance = np.random.default_rng(7)
    return timed_s(lambda: _draw(chance, TRIALS, *RUN.segments[0][:1], 263.0, RUN.mttp_s, 80.0, 120.0))


def exact_vs_million_trials() -> Benchmark:
    """The whole distribution against a million drawn runs."""
    finish(RUN)
    _draw(np.random.default_rng(1), 10, 10, 263.0, RUN.mttp_s, 80.0, 120.0)
    return Benchmark(
        name="exact finish times vs 1e6 trials",
        ours=lambda: timed_s(lambda: finish(RUN)) * 1e3,
        yardstick=lambda: drawn_s() * 1e3,
        target=DISTRIBUTION_LIMIT,
        at_most=True,
        unit="ms",
    )


def exact_in_ten_milliseconds() -> Benchmark:
    """The whole distribution against the clock."""
    finish(RUN)
    return Benchmark(
        name="exact finish times vs 10 ms",
        ours=lambda: timed_s(lambda: finish(RUN)) * 1e3,
        yardstick=lambda: DISTRIBUTION_LIMIT_MS,
        target=1.0,
        at_most=True,
        unit="ms",
    )


def schedule_vs_bare_kernel() -> Benchmark:
    """10 h in minutes with ageing, schedule and expectation and all, against the bare recursion over every age there is.

    Ours leaves out ages that are reached only by standing still for more than a third of the time.
    """
    units, world = 600, ageing(200_000.0, 60.0)
    ages = 2 * units + 2
    survival, integral_s = world.lifetimes.at(60.0 * np.arange(ages + 1))
    bare = (units, ages, survival, integral_s, 60.0)
    ours_s, bare_s = optimal(world, 36_000.0, unit_s=60.0).expected.expected_s, _bare(*bare)
    assert abs(ours_s / bare_s - 1.0) < 1e-9, (ours_s, bare_s)
    return Benchmark(
        name="10 h schedule by minutes vs bare kernel",
        ours=lambda: 1.0 / timed_s(lambda: optimal(world, 36_000.0, unit_s=60.0)),
        yardstick=lambda: 1.0 / timed_s(lambda: _bare(*bare)),
        target=SCHEDULE_SHARE,
        at_most=False,
        unit="1/s",
    )


@cache
def _finest() -> Optimal:
    return optimal(bathtub(), 360_000.0, unit_s=60.0)


def long_schedule_nearly_exact() -> Benchmark:
    """100 h at the usual unit: its exact expectation against that of the schedule by minutes."""
    return Benchmark(
        name="100 h schedule: expected vs by minutes",
        ours=lambda: optimal(bathtub(), 360_000.0).expected.expected_s / HOUR,
        yardstick=lambda: _finest().expected.expected_s / HOUR,
        target=LONG_LIMIT,
        at_most=True,
        unit="h",
        rounds=2,
    )


def long_schedule_time() -> Benchmark:
    """100 h at the usual unit: its time against that of the schedule by minutes."""
    world = bathtub()
    return Benchmark(
        name="100 h schedule: time vs by minutes",
        ours=lambda: timed_s(lambda: optimal(world, 360_000.0)),
        yardstick=lambda: timed_s(lambda: optimal(world, 360_000.0, unit_s=60.0)),
        target=0.1,
        at_most=True,
        unit="s",
        rounds=2,
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks schedules` measures."""
    return [
        exact_vs_million_trials,
        exact_in_ten_milliseconds,
        schedule_vs_bare_kernel,
        long_schedule_nearly_exact,
        long_schedule_time,
    ]
