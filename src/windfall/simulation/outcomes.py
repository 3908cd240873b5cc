"""Results of trials: one by one for the engine, in arrays for the kernels, and summarised in a row per policy.

A row has `policy`, mean, standard error and quantiles of cost and finish, and the means of the parts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windfall.structs import Struct
from windfall.terms import SaveKind

Floats = NDArray[np.float64]


class SimulatedSave(Struct, frozen=True):
    """A save of a simulated script.

    Attributes:
        machine: its number within slot 0, from 0.
        step: the last step in the save.
        committed: whether it was stored before the machine ended, or the job was done.
    """

    machine: int
    step: int
    kind: SaveKind
    committed: bool


class Trial(Struct, frozen=True):
    """One history.

    Attributes:
        finish_s: from the submission to the last step [s]; the parts below and the work itself add up to it.
        billed_s: of all machines together [s].
        redo_s, save_s, allocate_s, prepare_s: as `scenario` divides time [s].
        preemptions: how many machines were preempted.
        saves: all of them in order; empty where they are not recorded.
    """

    finish_s: float
    billed_s: float
    redo_s: float
    save_s: float
    allocate_s: float
    prepare_s: float
    preemptions: int
    saves: tuple[SimulatedSave, ...] = ()


class Trials(Struct, frozen=True, eq=False):
    """Many histories, an entry of each array a trial; fields as in `Trial`."""

    finish_s: Floats
    billed_s: Floats
    redo_s: Floats
    save_s: Floats
    allocate_s: Floats
    prepare_s: Floats
    preemptions: Floats

    def __len__(self) -> int:
        return len(self.finish_s)


class Spread(Struct, frozen=True):
    """A quantity over trials."""

    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    stderr: float


class PolicySummary(Struct, frozen=True):
    """The outcome of a job under a policy, over many trials; times [s]."""

    policy: str
    cost_usd: Spread
    finish_s: Spread
    redo_s: float
    save_s: float
    allocate_s: float
    prepare_s: float
    preemptions: float
    trials: int


def spread(values: Floats) -> Spread:
    """Return mean, quantiles, and the standard error of the mean, which is 0 for a single trial."""
    p10, p50, p90, p99 = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9, 0.99)))
    stderr = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Spread(float(values.mean()), p10, p50, p90, p99, stderr)


def summarise(policy: str, trials: Trials, price_usd_per_hour: float) -> PolicySummary:
    """Return the row of a policy's trials; each machine has the same price [USD per hour]."""
    return PolicySummary(
        policy=policy,
        cost_usd=spread(trials.billed_s * (price_usd_per_hour / 3600.0)),
        finish_s=spread(trials.finish_s),
        redo_s=float(trials.redo_s.mean()),
        save_s=float(trials.save_s.mean()),
        allocate_s=float(trials.allocate_s.mean()),
        prepare_s=float(trials.prepare_s.mean()),
        preemptions=float(trials.preemptions.mean()),
        trials=len(trials),
    )
