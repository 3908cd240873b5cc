"""Trainings whose turns follow planted constants: of machines that wait for one another nowhere."""

from __future__ import annotations

import numpy as np

from windfall.models import asp
from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload
from windfall.models.asp_turns import TurnMachine, TurnRun

PARTITIONS = 8
KINDS = {"small": TurnMachine("small", 3000.0, 1), "large": TurnMachine("large", 3000.0, 2)}


def model(**changes: object) -> AspModel:
    """The planted constants: contention from 4 workers on, a loss on which the number of workers acts weakly."""
    values: dict[str, object] = {
        "parameters_mb": 0.5, "required_mb_per_s": 5.0, "alpha1": 0.4, "beta1": -0.6, "gamma1": None, "gamma2": -1e-5,
        "gamma3": 90.0, "gamma4": None, "gamma5": 0.3, "start_loss": 2.0, "workers_power": 0.2, **changes,
    }  # fmt: skip
    types = (AspWorker("small", 1, 3000.0, 0.4), AspWorker("large", 1, 3000.0, 0.15))
    return AspModel(AspWorkload("planted", **values), AspPlatform(16.0, 1e9), types)  # type: ignore[arg-type]


def run_of(
    kinds: list[str], turns: int, rng: np.random.Generator, *, planted: AspModel | None = None, noise: float = 0.02
) -> TurnRun:
    """A training by the planted constants, with noise in times and losses."""
    planted = planted or model()
    names = [one.name for one in planted.types]
    counts = [kinds.count(name) for name in names]
    times_s = asp.iteration_times_s(planted, len(kinds))
    rows = []
    for place, kind in enumerate(kinds):
        type_ = names.index(kind)
        gaps = times_s[type_] * (1.0 + noise * rng.standard_normal(turns))
        computed = planted.types[type_].compute_s * KINDS[kind].slots * (1.0 + noise * rng.standard_normal(turns))
        moved = np.full(turns, 2.0 * planted.workload.parameters_mb)
        rows += list(zip([place] * turns, np.cumsum(gaps), np.cumsum(computed), np.cumsum(moved), strict=True))
    rows.sort(key=lambda row: row[1])
    machine, ended_s, computed_s, moved_mb = (np.array(column) for column in zip(*rows[:turns], strict=True))
    loss = asp.loss_after(planted, counts, np.arange(1, len(machine) + 1))
    loss += noise / 4.0 * rng.standard_normal(len(loss))
    return TurnRun(
        tuple(KINDS[kind] for kind in kinds), PARTITIONS, machine, np.arange(len(machine)) % PARTITIONS, ended_s,
        computed_s, moved_mb, loss,
    )  # fmt: skip


def idle_of(rng: np.random.Generator, *, total_mb_per_s: float = 16.0, machines: int = 4, turns: int = 400) -> TurnRun:
    """Workers that compute nothing, and so get what the servers carry."""
    each_s = machines * 2.0 * 0.5 / total_mb_per_s
    gaps = each_s * (1.0 + 0.05 * rng.standard_normal((turns, machines)))
    ended_s = np.cumsum(gaps, axis=0)
    machine = np.tile(np.arange(machines), turns)
    moved_mb = np.repeat(np.arange(1, turns + 1) * 1.0, machines)
    order = np.argsort(ended_s.ravel())
    zeros = np.zeros(turns * machines)
    nothing = np.full(turns * machines, np.nan)
    return TurnRun(
        (KINDS["small"],) * machines, PARTITIONS, machine[order], machine[order] % PARTITIONS, ended_s.ravel()[order],
        zeros, moved_mb[order], nothing,
    )  # fmt: skip
