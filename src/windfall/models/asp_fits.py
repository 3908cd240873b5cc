"""The constants of asynchronous training from its profile, each with a 95 % interval.

    S, B_req                  means over the iterations and transfers of workers alone; intervals by Student's t
    alpha2, beta2             a line through memory over batch, turned round (equation 10); by the line's covariance
    T_comp, alpha1, beta1     iteration times alone and in clusters (equations 6 to 9); by a seeded bootstrap, which draws
                              iterations alone, and runs of 20 consecutive ones in clusters, again
    gamma1 to gamma5          the losses of all clusters at once (equation 3), least squares; by the covariance at
                              the optimum that allows for noise of changing size (White's)

**Contention.**  The time by which an iteration in a cluster of n exceeds one alone gives B(n), and with it P.  Only clusters
with n B_req > B_ps tell anything about P; alpha1 and beta1 are the line through their P over sqrt(n), by least squares.

**What the intervals do not know.**  They hold if the model's form does.  That no real queue has P = alpha1 sqrt(n) + beta1, or
a loss with the same gamma1 for all clusters, is not in them.

Source: spotDNN (IWQoS 2023), section III ("Obtaining model parameters").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from scipy import optimize, stats

from windfall.errors import Misuse
from windfall.models import asp
from windfall.models.asp import AspPlatform, AspWorker, AspWorkload, Floats
from windfall.models.asp_profiling import AloneRun, AspProfile, ClusterRun, WorkerShape
from windfall.structs import Struct

LEVEL: Final = 0.95
RESAMPLES: Final = 400
GAMMA4_MAX: Final = 100.0
"""At this gamma4, R makes a difference of at most half a percent to the loss; a fit that reaches it does not see R at all."""
STARTS_ROWS: Final = 1000
"""The best start of a fit to losses is found with so few of them ..."""
EVALUATIONS_MAX: Final = 500
"""... in at most as many evaluations, as is the fit."""
ROUNDING: Final = 1e-9
"""Growth by less than this share of what there is, is none."""
BLOCK: Final = 20
"""Consecutive iterations of a cluster that are drawn together: what one waits for, the next ones wait for too."""


class FittedConstant(Struct, frozen=True):
    """A fitted constant and its 95 % interval; the interval is infinite if the profile does not determine the constant."""

    value: float
    low: float
    high: float


class BandwidthFit(Struct, frozen=True):
    """Traffic, computation and contention.

    Attributes:
        parameters_mb: S [MB].
        required_mb_per_s: B_req [MB/s].
        compute_s: T_comp by type of GPU [s].
        alpha1: of the contention.
        beta1: of the contention.
    """

    parameters_mb: FittedConstant
    required_mb_per_s: FittedConstant
    compute_s: Mapping[str, FittedConstant]
    alpha1: FittedConstant
    beta1: FittedConstant


class MemoryFit(Struct, frozen=True):
    """Samples by memory: alpha2 [samples/GB] and beta2 [samples]."""

    alpha2: FittedConstant
    beta2: FittedConstant


class LossFit(Struct, frozen=True):
    """The constants of equation 3.

    Attributes:
        gamma1: None with a common start.
        gamma2: of the batch.
        gamma3: at a batch of 0.
        gamma4: of R; None in the prototype's form, without R.
        gamma5: the floor.
        start_loss: of all clusters; None with gamma1.
    """

    gamma1: FittedConstant | None
    gamma2: FittedConstant
    gamma3: FittedConstant
    gamma4: FittedConstant | None
    gamma5: FittedConstant
    start_loss: FittedConstant | None


def fitted_workload(name: str, bandwidth: BandwidthFit, loss: LossFit) -> AspWorkload:
    """Return a workload with the fitted values.

    Raises:
        Misuse: a value is outside its range.
    """
    return AspWorkload(
        name=name,
        parameters_mb=bandwidth.parameters_mb.value,
        required_mb_per_s=bandwidth.required_mb_per_s.value,
        alpha1=bandwidth.alpha1.value,
        beta1=bandwidth.beta1.value,
        gamma1=None if loss.gamma1 is None else loss.gamma1.value,
        gamma2=loss.gamma2.value,
        gamma3=loss.gamma3.value,
        gamma4=None if loss.gamma4 is None else loss.gamma4.value,
        gamma5=loss.gamma5.value,
        start_loss=None if loss.start_loss is None else loss.start_loss.value,
    )


def fitted_worker(shape: WorkerShape, bandwidth: BandwidthFit) -> AspWorker:
    """Return a type of worker with the fitted computation time of its GPUs.

    Raises:
        Misuse: its type of GPU was not profiled.
    """
    if shape.gpu not in bandwidth.compute_s:
        raise Misuse(
            f"worker {shape.name!r} has {shape.gpu} GPUs, and the profile only {', '.join(bandwidth.compute_s)}: "
            f"profile one alone"
        )
    return AspWorker(shape.name, shape.gpus, shape.batch, bandwidth.compute_s[shape.gpu].value)


def fit_memory(profile: AspProfile) -> MemoryFit:
    """Fit alpha2 and beta2 of equation 10.

    Raises:
        Misuse: there are fewer than three batches, or memory does not grow with them.
    """
    batches = np.array([run.shape.gpu_batch for run in profile.memory], np.float64)
    memory_gb = np.array([run.memory_gb for run in profile.memory], np.float64)
    if len(set(batches.tolist())) < 3:
        raise Misuse(
            f"memory was profiled with {len(set(batches.tolist()))} batches: "
            f"a line with an interval needs 3 or more, so profile others too"
        )
    # Memory over batch, as the batch is exact and the memory is measured.
    line = stats.linregress(batches, memory_gb)
    # The slope of a level line is not 0 but rounding, of either sign by the processor.
    if line.slope * np.ptp(batches) <= ROUNDING * memory_gb.max():
        raise Misuse("the memory in use did not grow with the batch: profile batches that are further apart")
    around = stats.t.ppf(0.5 + LEVEL / 2.0, len(batches) - 2)
    slope, intercept = float(line.slope), float(line.intercept)
    # The two errors are correlated by the mean batch.
    covariance = -float(batches.mean()) * line.stderr**2
    alpha2_error = line.stderr / slope**2
    beta2_error = math.sqrt(
        (line.intercept_stderr / slope) ** 2
        + (intercept * line.stderr / slope**2) ** 2
        - 2.0 * intercept * covariance / slope**3
    )
    return MemoryFit(_around(1.0 / slope, around * alpha2_error), _around(-intercept / slope, around * beta2_error))


def fit_bandwidth(profile: AspProfile, platform: AspPlatform, rng: Generator) -> BandwidthFit:
    """Fit S, B_req, T_comp, alpha1 and beta1.

    Args:
        profile: of workers alone, and of clusters.
        platform: the bandwidths of servers and buses; its margin is not used.
        rng: of the bootstrap.

    Raises:
        Misuse: a run has a single iteration, a type of GPU was not profiled alone, fewer than two sizes of clusters are large
            enough for contention, or contention does not grow with them.
    """
    _check_runs(profile)
    needed = float(np.concatenate([run.bandwidth_mb_per_s for run in profile.alone]).mean())
    sizes = {len(run.shapes) for run in profile.clusters if len(run.shapes) * needed > platform.servers_mb_per_s}
    if len(sizes) < 2:
        raise Misuse(
            f"a worker alone uses {needed:.4g} of the servers' {platform.servers_mb_per_s:g} MB/s, and {len(sizes)} of the "
            f"profiled sizes of clusters are large enough for contention: profile at least 2 sizes of more than "
            f"{platform.servers_mb_per_s / needed:.3g} workers"
        )
    found = _bandwidth_point(profile, platform)
    if found["alpha1"] <= 0.0:
        raise Misuse(
            "contention does not grow with the size of the profiled clusters: profile larger ones, or for longer"
        )
    drawn = [_bandwidth_point(_resampled(profile, rng), platform) for _ in range(RESAMPLES)]
    tail = 50.0 * (1.0 - LEVEL)

    def interval(key: str) -> FittedConstant:
        low, high = np.percentile([one[key] for one in drawn], [tail, 100.0 - tail])
        return FittedConstant(found[key], float(low), float(high))

    return BandwidthFit(
        _mean(np.concatenate([run.traffic_mb for run in profile.alone]) / 2.0),
        _mean(np.concatenate([run.bandwidth_mb_per_s for run in profile.alone])),
        {run.shape.gpu: interval(run.shape.gpu) for run in profile.alone},
        interval("alpha1"),
        interval("beta1"),
    )


def fit_loss(profile: AspProfile, *, heterogeneity: bool, common_start: bool) -> LossFit:
    """Fit the constants of equation 3 to the losses of all clusters at once.

    Args:
        profile: of clusters.
        heterogeneity: the paper's form with R and gamma4; False: the prototype's.
        common_start: one loss before the first iteration, for all clusters; False: one gamma1, as in the paper.

    Raises:
        Misuse: there are too few clusters for the form, all have the same mean batch, or the loss did not fall.
    """
    curves = [_curve(run) for run in profile.clusters if len(run.loss) > 2]
    distinct = {curve[:3] for curve in curves}
    least = 3 if heterogeneity else 2
    if len(distinct) < least:
        raise Misuse(
            f"the loss was profiled on {len(distinct)} clusters that differ: this form of it needs at least {least}, so "
            f"profile clusters of other sizes or mixes, for 3 iterations or more"
        )
    if len({round(batch, 6) for batch, *_ in curves}) < 2:
        raise Misuse(
            f"all profiled clusters have a mean batch of {curves[0][0]:g}, so gamma2 and gamma3 cannot be told apart: mix "
            f"types with different batches"
        )
    return _least_squares(curves, heterogeneity=heterogeneity, common_start=common_start)


def _check_runs(profile: AspProfile) -> None:
    runs: Sequence[AloneRun | ClusterRun] = (*profile.alone, *profile.clusters)
    short = next((run for run in runs if len(run.iteration_s) < 2), None)
    if not profile.alone or short is not None:
        raise Misuse(
            "a profile with one point has no interval: profile every worker and cluster for 2 iterations or more"
        )
    known = {run.shape.gpu for run in profile.alone}
    other = sorted({shape.gpu for run in profile.clusters for shape in run.shapes} - known)
    if other:
        raise Misuse(f"{other[0]} GPUs were profiled in a cluster only: profile a worker with them alone too")


def _bandwidth_point(profile: AspProfile, platform: AspPlatform) -> dict[str, float]:
    """Return T_comp by type of GPU, alpha1 and beta1 of a profile, without intervals."""
    parameters_mb = float(np.concatenate([run.traffic_mb for run in profile.alone]).mean()) / 2.0
    needed = float(np.concatenate([run.bandwidth_mb_per_s for run in profile.alone]).mean())
    bus_s = 2.0 * parameters_mb / platform.pcie_mb_per_s
    alone_s = 2.0 * parameters_mb / needed
    found = {run.shape.gpu: float(run.iteration_s.mean()) - alone_s - run.shape.gpus * bus_s for run in profile.alone}
    roots, chances = [], []
    for run in profile.clusters:
        share = platform.servers_mb_per_s / len(run.shapes)
        if needed > share:
            rest_s = np.array([found[shape.gpu] + shape.gpus * bus_s for shape in run.shapes])
            network_s = float((run.iteration_s - rest_s[run.worker]).mean())
            roots.append(math.sqrt(len(run.shapes)))
            chances.append((needed - 2.0 * parameters_mb / network_s) / (needed - share))
    # A draw of the bootstrap can have a B_req below the share of all sizes but one: no line then.
    line = np.polyfit(roots, chances, 1) if len(set(roots)) > 1 else (math.nan, math.nan)
    return {**found, "alpha1": float(line[0]), "beta1": float(line[1])}


def _resampled(profile: AspProfile, rng: Generator) -> AspProfile:
    """Return a profile of iterations drawn from this one."""
    alone = []
    for run in profile.alone:
        drawn = rng.integers(0, len(run.iteration_s), len(run.iteration_s))
        samples = rng.integers(0, len(run.bandwidth_mb_per_s), len(run.bandwidth_mb_per_s))
        seen = run.iteration_s[drawn], run.traffic_mb[drawn], run.bandwidth_mb_per_s[samples]
        alone.append(AloneRun(run.shape, *seen, run.memory_gb))
    clusters = []
    for one in profile.clusters:
        length = min(BLOCK, len(one.iteration_s))
        starts = rng.integers(0, len(one.iteration_s) - length + 1, math.ceil(len(one.iteration_s) / length))
        rows = (starts[:, None] + np.arange(length)).ravel()
        clusters.append(ClusterRun(one.shapes, one.worker[rows], one.iteration_s[rows], one.loss[rows]))
    return AspProfile(tuple(alone), profile.memory, tuple(clusters))


def _curve(run: ClusterRun) -> tuple[float, float, float, Floats]:
    """Return b_w, R, n and the losses of a cluster, as measured."""
    count = len(run.shapes)
    taken = np.bincount(run.worker, minlength=count)
    # Each worker's share of the updates stands for its rate; one that never finished an iteration has none.
    active = taken > 0
    batches = np.array([shape.batch for shape in run.shapes], np.float64)[active]
    _, rate, speed, coefficient = asp.totals(np.ones(len(batches)), 1.0 / taken[active], batches)
    return float(speed / rate), float(coefficient), float(count), run.loss


def _least_squares(
    curves: Sequence[tuple[float, float, float, Floats]], *, heterogeneity: bool, common_start: bool
) -> LossFit:
    """Fit the constants to all losses at once, from the best of several starts.

    The unknowns are gamma1 or the start above the floor, gamma2, gamma3, gamma5, and gamma4 if there is one.  With gamma4, the
    second and third stand for gamma2 and gamma3 times sqrt(1 + gamma4): those two alone would hardly be determined.
    """
    losses = np.concatenate([curve[3] for curve in curves])
    place = np.repeat(np.arange(len(curves)), [len(curve[3]) for curve in curves])
    done = np.concatenate([np.arange(len(curve[3])) for curve in curves]).astype(np.float64)
    batch, coefficient, workers = (np.array([curve[key] for curve in curves], np.float64) for key in range(3))
    weight = 1.0 if heterogeneity else 0.0

    def residuals(x: Floats, rows: slice) -> Floats:
        per_scale = 1.0 / x[0] if common_start else 0.0
        whole = 1.0 + x[4] if heterogeneity else 1.0
        constants = asp.LossConstants(
            x[0], x[1], x[2], weight / whole, x[4] / whole if heterogeneity else 1.0, x[3], per_scale
        )
        scale = asp.loss_scale(batch, coefficient, workers, constants)
        gamma1 = np.broadcast_to(asp.head_start(scale, constants), scale.shape)
        at = place[rows]
        found: Floats = scale[at] / (done[rows] + gamma1[at]) + x[3] - losses[rows]
        return found

    low = np.array([1e-6, -np.inf, 1e-6, -np.inf, *((1e-6,) if heterogeneity else ())])
    high = np.array([np.inf, -1e-9, np.inf, np.inf, *((GAMMA4_MAX,) if heterogeneity else ())])

    def solved(start: Sequence[float], rows: slice) -> Any:
        return optimize.least_squares(
            residuals, start, bounds=(low, high), x_scale="jac", max_nfev=EVALUATIONS_MAX, args=(rows,)
        )

    few = slice(None, None, max(1, len(losses) // STARTS_ROWS))
    starts = _starts(curves, heterogeneity=heterogeneity, common_start=common_start)
    best = min((solved(start, few) for start in starts), key=lambda result: float(result.cost))
    best = solved(best.x, slice(None))
    return _with_intervals(best, heterogeneity=heterogeneity, common_start=common_start)


def _starts(
    curves: Sequence[tuple[float, float, float, Floats]], *, heterogeneity: bool, common_start: bool
) -> list[list[float]]:
    """Return starts of the fit: for several gamma1, the scale that takes the first losses to a floor of 0."""
    first = float(np.mean([curve[3][: max(1, len(curve[3]) // 50)].mean() for curve in curves]))
    last = float(np.mean([curve[3][-max(1, len(curve[3]) // 50) :].mean() for curve in curves]))
    if last >= first:
        raise Misuse(f"the loss did not fall while it was profiled, from {first:.4g} to {last:.4g}: train for longer")
    longest = max(len(curve[3]) for curve in curves)
    widest, workers = max(curve[0] for curve in curves), float(np.mean([curve[2] for curve in curves]))
    starts = []
    for share in (0.3, 1.0, 3.0, 10.0):
        gamma1 = share * longest
        gamma3 = 2.0 * first * gamma1 / math.sqrt(workers)
        head = first if common_start else gamma1
        starts.append([head, -0.5 * gamma3 / widest, gamma3, 0.0, *((0.5,) if heterogeneity else ())])
    return starts


def _with_intervals(best: Any, *, heterogeneity: bool, common_start: bool) -> LossFit:
    """Return the fit with intervals from the covariance at the optimum; infinite where that is singular."""
    x, size = best.x, len(best.x)
    unseen = heterogeneity and x[4] > 0.99 * GAMMA4_MAX
    values, change = x.copy(), np.eye(size)
    if heterogeneity:
        root = math.sqrt(1.0 + x[4])
        values[1:3] = x[1:3] / root
        change[1:3, :3] /= root
        change[1:3, 4] = -x[1:3] / (2.0 * root**3)
    if common_start:
        # The start is the sum of two unknowns: its variance needs their covariance too.
        values[0], change[0, 3] = x[0] + x[3], 1.0
    free = np.arange(size - 1 if unseen else size)
    spread = change[:, free] @ covariance(best.jac[:, free], best.fun) @ change[:, free].T
    errors = np.sqrt(np.diag(spread)) * stats.t.ppf(0.5 + LEVEL / 2.0, len(best.fun) - size)
    fitted = [_around(value, error) for value, error in zip(values, errors, strict=True)]
    if unseen:
        fitted[4] = FittedConstant(fitted[4].value, 0.0, math.inf)
    return LossFit(
        gamma1=None if common_start else fitted[0],
        gamma2=fitted[1],
        gamma3=fitted[2],
        gamma4=fitted[4] if heterogeneity else None,
        gamma5=fitted[3],
        start_loss=fitted[0] if common_start else None,
    )


def covariance(jacobian: Floats, residuals: Floats) -> Floats:
    """Return the covariance at an optimum, infinite if it is singular (White, Econometrica 48, 1980)."""
    # Scaled before it is inverted: the constants are of very different sizes.
    scale = np.sqrt((jacobian**2).sum(axis=0))
    if bool(np.any(scale == 0.0)) or np.linalg.matrix_rank(jacobian / scale) < len(scale):
        return np.diag(np.full(len(scale), np.inf))
    scaled = jacobian / scale
    bread = np.linalg.inv(scaled.T @ scaled)
    found: Floats = bread @ (scaled.T * residuals**2) @ scaled @ bread / np.outer(scale, scale)
    return found


def _mean(values: Floats) -> FittedConstant:
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) * stats.t.ppf(0.5 + LEVEL / 2.0, len(values) - 1)
    return _around(float(values.mean()), float(error))


def _around(value: float, error: float) -> FittedConstant:
    return FittedConstant(float(value), float(value - error), float(value + error))
