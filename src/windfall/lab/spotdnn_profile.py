"""spotDNN's profiling on a simulated cluster: the constants it fits beside the true ones, and predictions beside outcomes.

The cluster (`simulation.asp_cluster`) has a size of the parameters, bandwidths, computation times, memory and losses;
these are true.  Its contention and its staleness are what the events make of them: alpha1, beta1, gamma1 to gamma4 have no
true value, and what they predict is compared with longer runs of the same cluster, also of sizes that were not profiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.random import Generator

from windfall.models import asp, asp_fits
from windfall.models.asp import AspModel, AspPlatform
from windfall.models.asp_fits import BandwidthFit, FittedConstant, LossFit, MemoryFit
from windfall.models.asp_profiling import CLUSTER_EPOCHS, WorkerShape, mixed_clusters, profile
from windfall.simulation.asp_cluster import AspWorld, GpuKind, SimulatedAspRunner, StopRule, simulate_cluster
from windfall.structs import Struct

WORLD: Final = AspWorld(
    gpus={"V100": GpuKind(0.05, 0.00309), "T4": GpuKind(0.05, 0.00634), "M60": GpuKind(0.05, 0.0105)},
    parameters_mb=98.0,
    connection_mb_per_s=562.0,
    server_mb_per_s=1200.0,
    pcie_mb_per_s=10_000.0,
    apply_s=0.005,
    compute_spread=0.05,
    transfer_spread=0.03,
    traffic_spread=0.01,
    model_gb=1.2,
    sample_gb=0.09,
    memory_spread_gb=0.03,
    loss_start=4.605,
    loss_floor=0.31,
    gain=6.9e-6,
    batch_power=0.5,
    staleness_cost=0.15,
    loss_spread=1.0,
    epoch_samples=50_000,
)
"""Much like Inception-v3 on CIFAR-100 (S and B_req of Table IV, section V-A's bandwidths, 100 classes: ln 100 at the start)."""
PLATFORM: Final = AspPlatform(WORLD.server_mb_per_s, WORLD.pcie_mb_per_s, WORLD.servers)
V100: Final = WorkerShape("p3.2xlarge", "V100", 1, 128)
T4: Final = WorkerShape("g4dn.4xlarge", "T4", 1, 64)
M60: Final = WorkerShape("g3.4xlarge", "M60", 1, 32)
FOUR_M60: Final = WorkerShape("g3.16xlarge", "M60", 4, 32)
TYPES: Final = (V100, T4, FOUR_M60)
MEMORY_BATCHES: Final = (8, 16, 32, 64)
STEADY_UPDATES: Final = 4000
"""Updates of the runs that predictions are compared with."""
PLANS: Final = (
    *((0, size, 0) for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)),
    *((1, 1, 1), (2, 2, 2), (2, 3, 3)),
)
"""Of `TYPES`; predictions for these are compared with runs."""


class FittedProfile(Struct, frozen=True):
    """Everything that is fitted to one profile.

    Attributes:
        bandwidth: traffic, computation, contention.
        memory: samples by memory.
        as_published: the loss with one gamma1.
        common_start: the loss with one start.
    """

    bandwidth: BandwidthFit
    memory: MemoryFit
    as_published: LossFit
    common_start: LossFit


class ConstantRow(Struct, frozen=True):
    """A fitted constant beside the true one.

    Attributes:
        constant: its name.
        unit: of all numbers.
        true: in the simulated cluster; None: it has no such constant.
        fitted: with its 95 % interval.
        covered: whether the interval holds the true value; None without one.
        reason: why there is no true value, or why it is missed.
    """

    constant: str
    unit: str
    true: float | None
    fitted: FittedConstant
    covered: bool | None
    reason: str


class PredictionRow(Struct, frozen=True):
    """A prediction of the fitted model beside what the simulated cluster does.

    Attributes:
        plan: workers of each of `TYPES`.
        quantity: what is predicted.
        simulated: in a long run.
        predicted: None if the fitted model says that it cannot be.
        difference_pct: of the prediction, relative to the simulation [%].
        within_bound: whether the cluster is within n_upper, where spotDNN plans.
    """

    plan: tuple[int, ...]
    quantity: str
    simulated: float
    predicted: float | None
    difference_pct: float | None
    within_bound: bool


def fitted_profile(rng: Generator, *, epochs: float = CLUSTER_EPOCHS) -> FittedProfile:
    """Run the protocol of section V-D on the simulated cluster, and fit the constants (the prototype's loss, without R).

    Args:
        rng: of all chance.
        epochs: of each cluster.
    """
    runner = SimulatedAspRunner(WORLD, rng)
    runs = profile(runner, (V100, T4, M60), mixed_clusters(TYPES), memory_batches=MEMORY_BATCHES, epochs=epochs)
    return FittedProfile(
        asp_fits.fit_bandwidth(runs, PLATFORM, rng),
        asp_fits.fit_memory(runs),
        asp_fits.fit_loss(runs, heterogeneity=False, common_start=False),
        asp_fits.fit_loss(runs, heterogeneity=False, common_start=True),
    )


def constant_rows(fits: FittedProfile) -> tuple[ConstantRow, ...]:
    """Return every fitted constant beside the true one."""
    band, memory, published, started = fits.bandwidth, fits.memory, fits.as_published, fits.common_start
    none = "the queue has no such constant: what it predicts is compared with runs"
    rows = [
        _row("S", "MB", WORLD.parameters_mb, band.parameters_mb),
        _row("B_req", "MB/s", WORLD.connection_mb_per_s, band.required_mb_per_s),
    ]
    for shape in (V100, T4, M60):
        # A worker alone waits for the servers to apply its update; the model has no other place for that.
        true_s = WORLD.gpus[shape.gpu].compute_s(shape.gpu_batch) + WORLD.apply_s
        rows.append(_row(f"T_comp of {shape.gpu}, with the update's", "s", true_s, band.compute_s[shape.gpu]))
    rows += [
        _row("alpha2", "samples/GB", 1.0 / WORLD.sample_gb, memory.alpha2),
        _row("beta2", "samples", -WORLD.model_gb / WORLD.sample_gb, memory.beta2),
        _row("alpha1", "", None, band.alpha1, none),
        _row("beta1", "", None, band.beta1, none),
    ]
    one_gamma1 = "one gamma1 gives each cluster another start; all start at one loss, and the floor makes up for it"
    root_n = "the loss in the queue slows with the size of the cluster, but not as sqrt(n)"
    for label, loss, why in (("one gamma1", published, one_gamma1), ("one start", started, root_n)):
        rows.append(_row(f"gamma5 with {label}", "", WORLD.loss_floor, loss.gamma5, why))
        rows += [
            _row(f"{name} with {label}", unit, None, found, none)
            for name, unit, found in (
                ("gamma1", "iterations", loss.gamma1),
                ("gamma2", "iterations/sample", loss.gamma2),
                ("gamma3", "iterations", loss.gamma3),
            )
            if found is not None
        ]
    assert started.start_loss is not None
    return (*rows, _row("start loss with one start", "", WORLD.loss_start, started.start_loss))


def speed_rows(fits: FittedProfile, rng: Generator) -> tuple[PredictionRow, ...]:
    """Return speeds beside those of long runs, for sizes profiled and not profiled.

    Args:
        fits: the fitted constants.
        rng: of the runs.
    """
    model = _models(fits)["one start"]
    return tuple(
        _prediction(model, plan, "samples/s", simulated_speed(_shapes(plan), rng), _speed(model, plan))
        for plan in PLANS
    )


def loss_rows(fits: FittedProfile, rng: Generator, *, loss: float) -> tuple[PredictionRow, ...]:
    """Return iterations and times to a loss beside those of runs, with one gamma1 and with one start.

    Args:
        fits: the fitted constants.
        rng: of the runs.
        loss: that is trained to, between the floor and the start.
    """
    rows = []
    models = _models(fits)
    for plan in PLANS:
        trained = simulate_cluster(WORLD, _shapes(plan), StopRule(loss=loss), rng)
        updates, time_s = float(len(trained.loss)), float(trained.ended_s[-1])
        for label, model in models.items():
            reached = loss > model.workload.gamma5
            needed = float(asp.iterations_for(model, plan, loss)) if reached else None
            needed_s = float(asp.time_for_s(model, plan, loss)) if reached else None
            rows += [
                _prediction(model, plan, f"iterations to {loss:g}, {label}", updates, needed),
                _prediction(model, plan, f"s to {loss:g}, {label}", time_s, needed_s),
            ]
    return tuple(rows)


def _models(fits: FittedProfile) -> dict[str, AspModel]:
    workers = tuple(asp_fits.fitted_worker(shape, fits.bandwidth) for shape in TYPES)
    return {
        label: AspModel(asp_fits.fitted_workload(label, fits.bandwidth, fitted), PLATFORM, workers)
        for label, fitted in (("one gamma1", fits.as_published), ("one start", fits.common_start))
    }


def _shapes(plan: Sequence[int]) -> list[WorkerShape]:
    return [shape for shape, count in zip(TYPES, plan, strict=True) for _ in range(count)]


def _speed(model: AspModel, plan: Sequence[int]) -> float:
    return float(asp.cluster_speed(model, plan).samples_per_s)


def simulated_speed(shapes: Sequence[WorkerShape], rng: Generator) -> float:
    """Return the speed of a cluster in a long run, its first tenth left out [samples/s]."""
    run = simulate_cluster(WORLD, shapes, StopRule(updates=STEADY_UPDATES), rng)
    first = STEADY_UPDATES // 10
    batches = np.array([shape.batch for shape in shapes], np.float64)[run.worker]
    return float(batches[first:].sum() / (run.ended_s[-1] - run.ended_s[first - 1]))


def _row(constant: str, unit: str, true: float | None, fitted: FittedConstant, reason: str = "") -> ConstantRow:
    covered = None if true is None else fitted.low <= true <= fitted.high
    return ConstantRow(constant, unit, true, fitted, covered, "" if covered else reason)


def _prediction(
    model: AspModel, plan: tuple[int, ...], quantity: str, simulated: float, predicted: float | None
) -> PredictionRow:
    difference = None if predicted is None else 100.0 * (predicted / simulated - 1.0)
    inside = sum(plan) <= asp.workers_upper(model.workload, PLATFORM)
    return PredictionRow(plan, quantity, simulated, predicted, difference, inside)
