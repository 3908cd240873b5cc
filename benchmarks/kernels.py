"""What a kernel costs: the world's own loops against bare ones that only draw lives and jump, on one core each.

The bare loops are what one would write for the one case at hand: they know no notice, no parts of the time and no bill,
and draw from numpy's PCG64.
"""

# ruff: noqa: ARG001 - a policy need not look at all that it is told

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from numba import njit

from benchmarks.harness import Benchmark
from windfall.simulation import kernels
from windfall.simulation.scenario import (
    AvailabilityWindows,
    DurationRange,
    LifetimeModel,
    LifetimeQuantiles,
    MemorylessLifetimes,
    Scenario,
    WorkerEstimates,
)
from windfall.simulation.simulated_policies import UserPolicy
from windfall.structs import replace

TRIALS = 400_000
SHARE, INJECTED_SHARE = 0.7, 0.4
HOUR = 3600.0
STEP_S, INTERVAL_STEPS, STALL_S, MTTP_S = 2.5, 100, 13.0, 10_800.0
SEGMENT_S = INTERVAL_STEPS * STEP_S + STALL_S
STEPS = 180_000
RESTART = DurationRange(80.0, 120.0)


@njit
def _bare_memoryless(chance, trials, segments, last_s, mttp_s):
    times = np.empty(trials)
    for trial in range(trials):
        left, now_s = segments, chance.uniform(80.0, 120.0)
        while True:
            life_s = chance.exponential(mttp_s)
            whole = int(life_s / SEGMENT_S)
            if whole >= left and life_s >= left * SEGMENT_S + last_s:
                now_s += left * SEGMENT_S + last_s
                break
            left -= min(whole, left)
            now_s += life_s + chance.uniform(80.0, 120.0)
        times[trial] = now_s
    return times


@njit
def _bare_table(chance, trials, segments, last_s, ages_s):
    times = np.empty(trials)
    for trial in range(trials):
        left, now_s = segments, chance.uniform(80.0, 120.0)
        while True:
            place = chance.random() * (len(ages_s) - 1)
            cell = int(place)
            life_s = ages_s[cell] + (ages_s[cell + 1] - ages_s[cell]) * (place - cell)
            whole = int(life_s / SEGMENT_S)
            if whole >= left and life_s >= left * SEGMENT_S + last_s:
                now_s += left * SEGMENT_S + last_s
                break
            left -= min(whole, left)
            now_s += life_s + chance.uniform(80.0, 120.0)
        times[trial] = now_s
    return times


@njit
def _bare_trace(chance, trials, segments, last_s, trace):
    windows, length_s = trace
    times = np.empty(trials)
    for trial in range(trials):
        offset_s = chance.random() * length_s
        now_s, left = offset_s + chance.uniform(80.0, 120.0), segments
        turn_s, index = 0.0, 0
        while True:
            while turn_s + windows[index, 1] <= now_s:
                index += 1
                if index == len(windows):
                    turn_s, index = turn_s + length_s, 0
            now_s = max(now_s, turn_s + windows[index, 0])
            end_s = turn_s + windows[index, 1]
            life_s = end_s - now_s
            whole = int(life_s / SEGMENT_S)
            if whole >= left and life_s >= left * SEGMENT_S + last_s:
                now_s += left * SEGMENT_S + last_s
                break
            left -= min(whole, left)
            now_s = end_s + chance.uniform(80.0, 120.0)
        times[trial] = now_s - offset_s
    return times


def scenario(lifetimes: LifetimeModel) -> Scenario:
    """450 000 s of work saved each 250 s, 13 s to save, 80 to 120 s to go on elsewhere."""
    return Scenario(
        steps=STEPS,
        step_s=DurationRange.of(STEP_S),
        stall_s=DurationRange.of(STALL_S),
        upload_s=DurationRange.of(0.0),
        allocate_s=RESTART,
        prepare_s=DurationRange.of(0.0),
        lifetimes=lifetimes,
        notice_s=0.0,
        announced_share=0.0,
        policy=f"every:{INTERVAL_STEPS}steps",
        estimates=WorkerEstimates(MTTP_S, 1.0, 100.0),
    )


def bathtub() -> LifetimeQuantiles:
    """Lives of at most a day, many of them short: 4096 quantiles."""
    hours = np.linspace(0.0, 24.0, 100_001)
    dead = 1.0 - np.exp(-hours / 0.9) + np.exp((hours - 24.0) / 0.76) - np.exp(-24.0 / 0.76)
    ages = np.interp(np.linspace(0.0, 1.0, 4097), np.maximum.accumulate(dead) / dead.max(), hours)
    return LifetimeQuantiles(tuple(float(age) * HOUR for age in ages))


def trace() -> AvailabilityWindows:
    """Forty days of windows of some hours, as a public trace shows them."""
    chance = np.random.default_rng(3)
    edges = np.cumsum(chance.uniform(0.2, 1.8, 240) * np.tile([0.5 * HOUR, 3.0 * HOUR], 120))
    return AvailabilityWindows(
        tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)), float(edges[-1]) + HOUR
    )


def rate(work: Callable[[], object]) -> float:
    """Trials a second of the processor's time."""
    begun = time.process_time()
    work()
    return TRIALS / (time.process_time() - begun)


def pair(
    name: str, ours: Scenario, bare: Callable[..., np.ndarray], more: object, policy: UserPolicy | None
) -> Benchmark:
    """One case; what both simulate must be the same."""
    segments = math.ceil(STEPS / INTERVAL_STEPS) - 1
    chance = np.random.Generator(np.random.PCG64(7))
    last_s = (STEPS - segments * INTERVAL_STEPS) * STEP_S

    def kernel() -> np.ndarray:
        return kernels.simulate(ours, trials=TRIALS, cores=1, policy=policy).finish_s

    def yardstick() -> np.ndarray:
        return bare(chance, TRIALS, segments, last_s, more)

    mine, other = kernel(), yardstick()
    apart = abs(mine.mean() - other.mean()) / math.hypot(mine.std(), other.std()) * TRIALS**0.5
    assert apart < 4.5, (name, mine.mean(), other.mean(), apart)
    target = SHARE if policy is None else INJECTED_SHARE
    return Benchmark(name, lambda: rate(kernel), lambda: rate(yardstick), target, at_most=False, unit="trials/s")


def memoryless_vs_bare() -> Benchmark:
    """Exponential lives."""
    return pair(
        "kernel, memoryless lives, vs bare loop",
        scenario(MemorylessLifetimes((MTTP_S,))),
        _bare_memoryless,
        MTTP_S,
        None,
    )


def table_vs_bare() -> Benchmark:
    """A bathtub, by its quantiles."""
    lifetimes = bathtub()
    return pair(
        "kernel, bathtub's table, vs bare loop", scenario(lifetimes), _bare_table, np.array(lifetimes.ages_s), None
    )


def trace_vs_bare() -> Benchmark:
    """A trace of availability, from any moment of it on."""
    windows = trace()
    more = np.array(windows.up_s), windows.length_s
    return pair("kernel, trace, vs bare loop", scenario(windows), _bare_trace, more, None)


def injected_vs_bare() -> Benchmark:
    """A user's function decides for each machine."""

    def constant(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):
        return max(250.0, stall_s) if work_left_s > 0.0 else mttp_s

    policy = UserPolicy("constant", constant)
    ours = replace(scenario(MemorylessLifetimes((MTTP_S,))), policy="never")
    return pair("kernel, user's policy, vs bare loop", ours, _bare_memoryless, MTTP_S, policy)


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks kernels` measures."""
    return [memoryless_vs_bare, table_vs_bare, trace_vs_bare, injected_vs_bare]
