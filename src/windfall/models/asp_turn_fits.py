"""The constants of `models.asp` from the turns of profiled trainings, each with a 95 % interval.

    S            half of what a turn moves
    T_comp       of each machine type: what its turns compute
    B_req        2 S over the network's time (`models.asp_turns`) of machines alone
    B_ps         what the servers carry while workers compute nothing: their bandwidth, or what their processors can do
    alpha1, beta1  the line through the P over sqrt(n) that the clusters' network times give (equations 8 and 9)
    loss         equation 3 without R and with a common start, n^power in place of sqrt(n); least squares over all trainings

Intervals: of all but the loss by a seeded bootstrap that draws blocks of consecutive turns; of the loss by the covariance at
the optimum that allows for noise of changing size (White's).  They hold if the model's form does.

**Where nothing is seen.**  Clusters that are too small for contention, or whose network time does not grow, have no line:
alpha1 is then the least, and beta1 the mean P.  If all machines have one batch, nothing tells gamma2, which is then next to 0;
if all trainings have as many workers, the power is the paper's 1/2.

Source: spotDNN (IWQoS 2023), section III ("Obtaining model parameters"); power and common start are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import optimize, stats

from windfall.errors import Misuse
from windfall.models import asp, asp_turns
from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload, Floats
from windfall.models.asp_fits import LEVEL, RESAMPLES, FittedConstant, covariance
from windfall.models.asp_turns import COMPUTED, GAP, MOVED, TurnRun
from windfall.structs import Struct

BLOCK: Final = 5
"""Consecutive turns of a machine that are drawn together."""
WARM_UP: Final = 2
"""Turns of each machine that count for no time."""
LEAST_S: Final = 1e-6
"""A network time that computing hides wholly still has a bandwidth."""
ALPHA1_LEAST: Final = 1e-6
GAMMA2_SHARE: Final = 1e-6
"""Where nothing tells gamma2, by what share of the loss's scale a batch changes it."""
BUS_MB_PER_S: Final = 1e9
"""Parameters move to no GPU over a bus."""
EVALUATIONS_MAX: Final = 500


class TurnFit(Struct, frozen=True):
    """The constants.

    Attributes:
        parameters_mb: S [MB].
        compute_s: T_comp by machine type [s].
        batch: samples in a turn by machine type.
        required_mb_per_s: B_req [MB/s].
        server_mb_per_s: B_ps [MB/s].
        alpha1, beta1: of the contention.
        contended: sizes of clusters that are large enough for contention.
        start_loss, gamma3, gamma5: of the loss.
        gamma2: of the batch; its interval is infinite where all machines have one batch.
        workers_power: exponent of the number of workers; its interval is infinite where all trainings have as many.
    """

    parameters_mb: FittedConstant
    compute_s: Mapping[str, FittedConstant]
    batch: Mapping[str, float]
    required_mb_per_s: FittedConstant
    server_mb_per_s: FittedConstant
    alpha1: FittedConstant
    beta1: FittedConstant
    contended: tuple[int, ...]
    start_loss: FittedConstant
    gamma2: FittedConstant
    gamma3: FittedConstant
    gamma5: FittedConstant
    workers_power: FittedConstant


class _Part(Struct, frozen=True, eq=False):
    """The rows of one machine."""

    rows: Floats
    kind: str
    slots: int
    workers: int


def fit_turns(trainings: Sequence[TurnRun], idle: TurnRun, seed: int = 0) -> TurnFit:
    """Fit all constants.

    Args:
        trainings: of each machine type alone, and of clusters.
        idle: workers that move the parameters and compute nothing.
        seed: of the bootstrap.

    Raises:
        Misuse: a machine had too few turns, no training is of a machine alone, or as `fit_loss`.
    """
    parts = _parts(trainings)
    if not any(part.workers == 1 for part in parts):
        raise Misuse("no machine was profiled alone, which tells its bandwidth: profile each machine type alone too")
    servers = _server_rates(idle)
    server, rng = _around_mean(servers), np.random.default_rng(seed)
    found = _speeds(parts, server.value)
    drawn = [
        _speeds([_drawn(part, rng) for part in parts], float(rng.choice(servers, len(servers)).mean()))
        for _ in range(RESAMPLES)
    ]

    def interval(key: str) -> FittedConstant:
        values = [one[key] for one in drawn]
        low, high = np.percentile(values, [50.0 * (1.0 - LEVEL), 50.0 * (1.0 + LEVEL)])
        return FittedConstant(found[key], float(low), float(high))

    kinds = list(dict.fromkeys(part.kind for part in parts))
    batches = {machine.kind: machine.batch for run in trainings for machine in run.machines}
    loss = fit_loss(trainings)
    return TurnFit(
        parameters_mb=interval("S"),
        compute_s={kind: interval(f"T {kind}") for kind in kinds},
        batch={kind: batches[kind] for kind in kinds},
        required_mb_per_s=interval("B_req"),
        server_mb_per_s=server,
        alpha1=interval("alpha1"),
        beta1=interval("beta1"),
        contended=_contended(parts, found["B_req"], server.value),
        **loss,
    )


def model_of(fit: TurnFit, name: str, *, servers: int) -> AspModel:
    """Return the model with the fitted values.

    Args:
        fit: the constants.
        name: of the workload.
        servers: whose bandwidths add up to B_ps.

    Raises:
        Misuse: a value is outside its range.
    """
    workload = AspWorkload(
        name=name,
        parameters_mb=fit.parameters_mb.value,
        required_mb_per_s=fit.required_mb_per_s.value,
        alpha1=fit.alpha1.value,
        beta1=fit.beta1.value,
        gamma1=None,
        gamma2=fit.gamma2.value,
        gamma3=fit.gamma3.value,
        gamma4=None,
        gamma5=fit.gamma5.value,
        start_loss=fit.start_loss.value,
        workers_power=fit.workers_power.value,
    )
    platform = AspPlatform(fit.server_mb_per_s.value / servers, BUS_MB_PER_S, servers)
    return AspModel(
        workload, platform, tuple(AspWorker(kind, 1, fit.batch[kind], one.value) for kind, one in fit.compute_s.items())
    )


def fit_loss(trainings: Sequence[TurnRun]) -> dict[str, FittedConstant]:
    """Fit the loss to the curves of all trainings at once; return the fields of `TurnFit` that it has.

    Raises:
        Misuse: the program says no losses, there are too few, or the loss did not fall.
    """
    curves = [(_mean_batch(run), float(len(run.machines)), *asp_turns.loss_curve(run)) for run in trainings]
    done, losses = (np.concatenate([curve[key] for curve in curves]) for key in (2, 3))
    place = np.repeat(np.arange(len(curves)), [len(curve[2]) for curve in curves])
    batch, workers = (np.array([curve[key] for curve in curves]) for key in (0, 1))
    # In units of the largest batch, so that gamma2 and gamma3 are of one size.
    widest = float(batch.max())
    free = np.array([True, True, True, len(set(workers)) > 1, float(np.ptp(batch)) > 1e-6 * widest])
    if len(losses) <= int(free.sum()):
        raise Misuse(f"{len(losses)} clocks tell no loss curve: train for more turns (--turns)")
    (head, floor), wide = _ends(curves), float(trainings[0].partitions)

    def residuals(x: Floats) -> Floats:
        above, gamma3, gamma5, power, slope = np.where(free, x, (0.0, 0.0, 0.0, asp.WORKERS_POWER, GAMMA2_SHARE))
        scale = gamma3 * (1.0 - slope * batch / widest) * workers**power
        middle = done + scale[place] / above
        # The mean of scale / (turns + gamma1) over the turns that the loss is of.
        found: Floats = scale[place] / wide * np.log((middle + wide / 2.0) / (middle - wide / 2.0)) + gamma5 - losses
        return found

    low = np.array([1e-9, 1e-9, -np.inf, 0.0, GAMMA2_SHARE])
    high = np.array([np.inf, np.inf, np.inf, 1.0, 0.999])
    starts = [
        np.array([head - share * floor, gain * (head - share * floor) * done.max(), share * floor, power, 0.1])
        for share in (0.0, 0.5, 0.9)
        for gain in (0.1, 1.0)
        for power in (0.05, 0.5)
    ]
    solved = [
        optimize.least_squares(residuals, start, bounds=(low, high), x_scale="jac", max_nfev=EVALUATIONS_MAX)
        for start in starts
    ]
    return _loss_constants(min(solved, key=lambda one: float(one.cost)), free, widest)


# ------------------------------------------------------------------------------------------------------------------- speeds


def _parts(trainings: Sequence[TurnRun]) -> list[_Part]:
    found = []
    for run in trainings:
        for place, machine in enumerate(run.machines):
            rows = asp_turns.rows_of(run, place, WARM_UP)
            if len(rows) < 2:
                raise Misuse(
                    f"a {machine.kind} machine of {asp_turns.mix_text(run.machines)} had {len(rows)} turns that count: "
                    f"train for more turns (--turns), or for longer (--limit)"
                )
            found.append(_Part(rows, machine.kind, machine.slots, len(run.machines)))
    return found


def _drawn(part: _Part, rng: Generator) -> _Part:
    length = min(BLOCK, len(part.rows))
    starts = rng.integers(0, len(part.rows) - length + 1, math.ceil(len(part.rows) / length))
    rows = part.rows[(starts[:, None] + np.arange(length)).ravel()]
    return _Part(rows, part.kind, part.slots, part.workers)


def _speeds(parts: Sequence[_Part], server_mb_per_s: float) -> dict[str, float]:
    """Return S, B_req, T_comp of each type, alpha1 and beta1, without intervals."""
    moved_mb = float(np.concatenate([part.rows[:, MOVED] for part in parts]).mean()) / 2.0
    found = {"S": moved_mb, "B_req": 2.0 * moved_mb / _network_s(parts, 1)}
    for kind in dict.fromkeys(part.kind for part in parts):
        mine = [part.rows[:, COMPUTED] / part.slots for part in parts if part.kind == kind]
        found[f"T {kind}"] = float(np.concatenate(mine).mean())
    sizes = _contended(parts, found["B_req"], server_mb_per_s)
    chances = []
    for size in sizes:
        speed, share = 2.0 * moved_mb / _network_s(parts, size), server_mb_per_s / size
        chances.append(min(max((found["B_req"] - speed) / (found["B_req"] - share), 0.0), 1.0))
    alpha1, beta1 = _line(sizes, chances)
    return {**found, "alpha1": alpha1, "beta1": beta1}


def _network_s(parts: Sequence[_Part], workers: int) -> float:
    """Return the network's time in an iteration, over all machines of trainings of a size [s]."""
    rests = [part.rows[:, GAP] - part.rows[:, COMPUTED] / part.slots for part in parts if part.workers == workers]
    return max(float(np.mean([rest.mean() for rest in rests])), LEAST_S)


def _contended(parts: Sequence[_Part], required_mb_per_s: float, server_mb_per_s: float) -> tuple[int, ...]:
    """Return the sizes of clusters that need more than the servers carry."""
    sizes = sorted({part.workers for part in parts if part.workers > 1})
    return tuple(size for size in sizes if size * required_mb_per_s > server_mb_per_s)


def _line(sizes: Sequence[int], chances: Sequence[float]) -> tuple[float, float]:
    """Return alpha1 and beta1."""
    if not sizes:
        return ALPHA1_LEAST, 0.0
    if len(sizes) == 1:
        # A machine alone is not contended.
        sizes, chances = (1, *sizes), (0.0, *chances)
    slope, start = np.polyfit(np.sqrt(sizes), chances, 1)
    if slope <= ALPHA1_LEAST:
        return ALPHA1_LEAST, min(float(np.mean(chances)), 1.0 - 1e-3)
    return float(slope), float(start)


def _server_rates(idle: TurnRun) -> Floats:
    """Return what the servers carried in each of some parts of a run [MB/s]."""
    each = [asp_turns.rows_of(idle, place, WARM_UP) for place in range(len(idle.machines))]
    if not each or min(len(rows) for rows in each) < 2 * BLOCK:
        raise Misuse(
            "the servers' bandwidth is not known: workers that compute nothing had too few turns; raise --limit"
        )
    split = [np.array_split(rows, BLOCK) for rows in each]
    return np.array([sum(one[k][:, MOVED].sum() / one[k][:, GAP].sum() for one in split) for k in range(BLOCK)])


def _around_mean(values: Floats) -> FittedConstant:
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    error *= float(stats.t.ppf(0.5 + LEVEL / 2.0, len(values) - 1))
    return FittedConstant(mean, mean - error, mean + error)


# --------------------------------------------------------------------------------------------------------------------- loss


def _mean_batch(run: TurnRun) -> float:
    batches = np.array([one.batch for one in run.machines])
    return float(batches[run.machine].mean())


def _ends(curves: Sequence[tuple[float, float, Floats, Floats]]) -> tuple[float, float]:
    """Return the first losses and the last ones.

    Raises:
        Misuse: they did not fall.
    """
    seen = [curve[3] for curve in curves if len(curve[3]) > 1]
    if not seen:
        raise Misuse("no training is long enough for a loss curve: train for more turns (--turns)")
    first, last = float(np.mean([one[0] for one in seen])), float(np.mean([one[-1] for one in seen]))
    if last >= first:
        raise Misuse(
            f"the loss did not fall while it was profiled, from {first:.4g} to {last:.4g}: train for more turns (--turns)"
        )
    return first, last


def _loss_constants(best: Any, free: NDArray[np.bool_], widest: float) -> dict[str, FittedConstant]:
    """Return the constants with their intervals; one at an end of its range has that end in its interval."""
    x = np.where(free, best.x, (0.0, 0.0, 0.0, asp.WORKERS_POWER, GAMMA2_SHARE))
    change = np.eye(5)
    # start = floor + what is above it; gamma2 = -gamma3 slope / widest.
    change[0, 2] = 1.0
    change[4, 1], change[4, 4] = -x[4] / widest, -x[1] / widest
    spread, seen = np.zeros((5, 5)), covariance(best.jac[:, free], best.fun)
    unknown = not bool(np.all(np.isfinite(seen)))
    if not unknown:
        spread[np.ix_(free, free)] = seen
    spread = change @ spread @ change.T
    error = np.sqrt(np.maximum(np.diag(spread), 0.0)) * stats.t.ppf(0.5 + LEVEL / 2.0, len(best.fun) - int(free.sum()))
    values = np.array([x[0] + x[2], x[1], x[2], x[3], -x[1] * x[4] / widest])
    names = ("start_loss", "gamma3", "gamma5", "workers_power", "gamma2")
    found = {}
    for place, name in enumerate(names):
        around = math.inf if unknown or not free[place] else float(error[place])
        found[name] = FittedConstant(float(values[place]), float(values[place] - around), float(values[place] + around))
    return found
