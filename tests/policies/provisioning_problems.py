"""Random provisioning problems of every kind, and a search of all plans in plain numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np

from windfall.models import asp
from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload, worker_of_speed
from windfall.policies.planning.provisioning import HOUR_S, ProvisioningProblem, training_time_s, usd_per_hour

PLATFORM = AspPlatform(1_200.0, 10_000.0)
RESNET = AspWorkload("ResNet-110", 11.5, 142.0, 0.8, -1.92, 876.5, -0.2, 2507.6, None, 0.5)
"""The constants of the authors' repository."""
_RESNET_TYPES = (
    ("p3.2xl", 1, 1024.0, 1885.0),
    ("g4dn.4xl", 1, 1024.0, 750.0),
    ("g3.8xl", 2, 1024.0, 1018.0),
    ("g3.16xl", 4, 2048.0, 1995.0),
    ("p2.8xl", 8, 8192.0, 2115.0),
)
PRICES = (0.918, 0.3612, 0.684, 1.5676, 2.16)


def resnet() -> AspModel:
    """ResNet-110 as the prototype computes it, on the types of Table V."""
    types = tuple(
        worker_of_speed(name, gpus=gpus, batch=batch, samples_per_s=speed, workload=RESNET, platform=PLATFORM)
        for name, gpus, batch, speed in _RESNET_TYPES
    )
    return AspModel(RESNET, PLATFORM, types, as_prototype=True)


def plans(problem: ProvisioningProblem) -> np.ndarray:
    """Every plan within the quotas and the bounds that are asked for; shape (plans, types)."""
    ranges = [range(held, held + quota + 1) for held, quota in zip(problem.held, problem.quotas, strict=True)]
    counts = np.array(list(itertools.product(*ranges)))
    fewest, most = problem.workers_range
    return counts[(counts.sum(1) >= fewest) & (counts.sum(1) <= most)]


def brute_force(problem: ProvisioningProblem) -> float:
    """The least cost of all plans in time [USD]; infinite if none is."""
    counts = plans(problem)
    if not len(counts):
        return math.inf
    time_s = training_time_s(problem, counts)
    cost_usd = time_s * usd_per_hour(problem, counts) / HOUR_S
    return float(np.where((time_s > 0.0) & (time_s <= problem.training_s), cost_usd, math.inf).min())


def drawn(rng: np.random.Generator, *, bounded: bool) -> ProvisioningProblem:
    """A problem of 1 to 5 types with small quotas: with or without R, rounding, a common start, existing workers, take-over.

    The deadline is between impossible and loose.
    """
    gamma4 = [None, 0.05, 0.5, 3.0][rng.integers(4)]
    started = rng.random() < 0.2
    load = AspWorkload(
        "drawn",
        float(rng.uniform(5.0, 200.0)),
        float(rng.uniform(100.0, 600.0)),
        float(rng.uniform(0.2, 1.0)),
        float(rng.uniform(-2.0, 0.5)),
        None if started else float(rng.uniform(10.0, 2000.0)),
        -0.2,
        2507.6,
        gamma4,
        0.5,
        4.6 if started else None,
    )
    workers = tuple(
        AspWorker(
            f"type-{place}",
            int(2 ** rng.integers(0, 4)),
            float(2 ** rng.integers(7, 13)),
            float(rng.uniform(0.05, 4.0)),
        )
        for place in range(rng.integers(1, 6))
    )
    server_mb_per_s, servers, margin = rng.uniform(300.0, 9_000.0), rng.integers(1, 3), rng.choice([0.0, 0.05])
    platform = AspPlatform(float(server_mb_per_s), 10_000.0, int(servers), float(margin))
    model = AspModel(load, platform, workers, as_prototype=bool(rng.random() < 0.3))
    most = (0, 60, 24, 12, 8, 5)[len(workers)]
    quotas = tuple(int(rng.integers(0, most + 1)) for _ in workers)
    quotas = quotas if sum(quotas) else (most, *quotas[1:])
    held = tuple(int(rng.integers(0, 3)) for _ in workers) if rng.random() < 0.3 else ()
    now = float(rng.uniform(0.9, 2.0)) if rng.random() < 0.3 else math.inf
    loss = float(rng.uniform(0.6, 0.89))
    free = ProvisioningProblem(
        model,
        quotas,
        tuple(float(rng.uniform(0.3, 3.0)) for _ in workers),
        loss,
        math.inf,
        now,
        held,
        float(rng.choice([0.0, 30.0])),
        float(rng.choice([0.0, 0.192])),
        lower=bounded,
        upper=bounded,
    )
    counts = plans(free)
    times_s = training_time_s(free, counts) if len(counts) else np.array([100.0])
    shortest_s = float(min(times_s[times_s > 0.0], default=100.0))
    time_s = max(shortest_s * rng.uniform(0.9, 3.0), 1.0) + free.takeover_s
    return ProvisioningProblem(*(getattr(free, name) for name in ("model", "quotas", "prices_usd_per_hour", "loss")), time_s,
                               now, held, free.takeover_s, free.server_usd_per_hour, lower=bounded, upper=bounded)  # fmt: skip


def reached(problem: ProvisioningProblem, counts: tuple[int, ...], time_s: float) -> float:
    """The loss that a plan has after a time from the problem's start, without the model's rounding."""
    speed = asp.cluster_speed(problem.model, counts)
    return float(asp.loss_after(problem.model, counts, time_s * float(speed.iterations_per_s)))
