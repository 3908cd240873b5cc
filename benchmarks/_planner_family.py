"""The planner's instances, by seed, and a compiled exhaustive search that they are compared with."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit

from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload
from windfall.policies.planning.provisioning import ProvisioningProblem
from windfall.policies.planning.provisioning_answers import least_time

TYPES, QUOTA = 7, 10
SERVER_MB_PER_S = (1_200.0, 4_800.0, 19_200.0)
"""The paper's bandwidth of the servers, and 4 and 16 times as much: with less contention more plans are worth having."""
GAMMA4 = (0.5, 2.0)
DEADLINES = (1.02, 1.15, 1.6)
"""Shares of the least possible time."""
DRAWS = 4
LOSS = 0.8


def drawn(seed: int, types: int, quota: int, server_mb_per_s: float, gamma4: float) -> ProvisioningProblem:
    """A problem without deadline: ResNet-110's published constants with R in the loss, types of drawn speed and price.

    A type has 1, 2, 4 or 8 GPUs of one of four speeds, as in the paper's Table III, drawn within a fifth; its price per speed
    is drawn within a factor of 1.6.
    """
    rng = np.random.default_rng(seed)
    load = AspWorkload("drawn", 11.54, 142.0, 0.8, -1.92, 876.5, -0.2, 2507.6, gamma4, 0.5)
    workers, prices = [], []
    for place in range(types):
        gpus = int(2 ** rng.integers(0, 4))
        speed = float(rng.choice([290.0, 510.0, 750.0, 1_885.0]) * rng.uniform(0.8, 1.2))
        batch = float(rng.choice([512.0, 1_024.0]) * (1 if gpus == 1 else gpus / 2))
        workers.append(AspWorker(f"type-{place}", gpus, batch, batch / (speed * gpus**0.9)))
        prices.append(float(0.0006 * speed * gpus**0.9 * rng.uniform(1.0, 1.6)))
    model = AspModel(load, AspPlatform(server_mb_per_s, 10_000.0), tuple(workers))
    return ProvisioningProblem(model, (quota,) * types, tuple(prices), LOSS, math.inf, lower=False, upper=False)


def family() -> Iterator[tuple[str, ProvisioningProblem]]:
    """The 72 instances with their names."""
    for place, (server, gamma4, draw) in enumerate(itertools.product(SERVER_MB_PER_S, GAMMA4, range(DRAWS))):
        problem = drawn(draw + 100 * place, TYPES, QUOTA, server, gamma4)
        for share in DEADLINES:
            name = f"{server / 1e3:g} GB/s, gamma4 {gamma4:g}, deadline {share:g}, draw {draw}"
            yield name, within(problem, share)


def within(problem: ProvisioningProblem, share: float) -> ProvisioningProblem:
    """The problem with a deadline, as a share of its least possible time."""
    from windfall.structs import replace

    found = least_time(problem)
    assert found is not None, "without a deadline there is a plan"
    return replace(problem, time_s=share * found.time_s)


@functools.cache
def _exhaustive() -> Any:
    """Every plan of every number of workers, its sums built up type by type; cost and counts of the cheapest in time."""

    @njit(cache=True, nogil=True, error_model="numpy")
    def tried(fixed_s, network_s, batches, quotas, usd_per_s, gammas, loss, training_s):
        gamma1, gamma2, gamma3, gamma4, gamma5 = gammas
        types, most = len(quotas), quotas.sum()
        open_from = np.zeros(types + 1, np.int64)
        for i in range(types - 1, -1, -1):
            open_from[i] = open_from[i + 1] + quotas[i]
        best_usd, best, plans = np.inf, np.zeros(types, np.int64), 0
        x, left = np.zeros(types, np.int64), np.zeros(types + 1, np.int64)
        sums = np.zeros((types + 1, 5))
        for n in range(1, most + 1):
            rates = 1.0 / (fixed_s + network_s[n])
            speeds = batches * rates
            squares = speeds * speeds
            depth, left[0] = 0, n
            x[0] = min(quotas[0], n) + 1
            while depth >= 0:
                x[depth] -= 1
                if x[depth] < max(0, left[depth] - open_from[depth + 1]):
                    depth -= 1
                    continue
                count, above, into = x[depth], sums[depth], sums[depth + 1]
                into[0] = above[0] + count * rates[depth]
                into[1] = above[1] + count * speeds[depth]
                into[2] = above[2] + count * squares[depth]
                into[3] = max(above[3], speeds[depth]) if count > 0 else above[3]
                into[4] = above[4] + count * usd_per_s[depth]
                left[depth + 1] = left[depth] - count
                if depth < types - 2:
                    depth += 1
                    x[depth] = min(quotas[depth], left[depth]) + 1
                    continue
                last = left[depth + 1]
                plans += 1
                q = into[0] + last * rates[types - 1]
                v = into[1] + last * speeds[types - 1]
                top = max(into[3], speeds[types - 1]) if last > 0 else into[3]
                others = into[2] + last * squares[types - 1] - top * top
                coefficient = math.sqrt((v - top) * (v - top) + others) / v
                scale = (gamma2 * v / q + gamma3) * math.sqrt((coefficient + gamma4) * n)
                time_s = max(scale / (loss - gamma5) - gamma1, 0.0) / q
                if time_s <= training_s:
                    usd = time_s * (into[4] + last * usd_per_s[types - 1])
                    if usd < best_usd:
                        best_usd = usd
                        best[:] = x
                        best[types - 1] = last
        return best_usd, best, plans

    return tried


def exhaustive(problem: ProvisioningProblem) -> tuple[float, tuple[int, ...], int]:
    """The least cost in time [USD], its plan, and how many plans there are; no bounds, servers' price, existing workers."""
    load, arrays = problem.model.workload, problem.model.arrays(sum(problem.quotas))
    cost_usd, counts, plans = _exhaustive()(
        arrays.fixed_s,
        arrays.network_s,
        arrays.batches,
        np.array(problem.quotas),
        np.array(problem.prices_usd_per_hour) / 3_600.0,
        (load.gamma1, load.gamma2, load.gamma3, load.gamma4, load.gamma5),
        problem.loss,
        problem.time_s,
    )
    return float(cost_usd), tuple(int(count) for count in counts), int(plans)
