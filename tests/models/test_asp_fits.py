"""Fits of asynchronous training: constants that made a profile come out of it, and profiles that cannot tell are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from windfall.errors import Misuse
from windfall.models import asp, asp_fits
from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload
from windfall.models.asp_fits import FittedConstant
from windfall.models.asp_profiling import (
    AloneRun,
    AspProfile,
    ClusterRun,
    WorkerShape,
    mixed_clusters,
    profile,
)

PLATFORM = AspPlatform(1200.0, 10_000.0)
LARGE, MIDDLE, SMALL = (WorkerShape(name, name, 1, batch) for name, batch in (("a", 512), ("b", 128), ("c", 32)))
SHAPES = (LARGE, MIDDLE, SMALL)
COMPUTE_S = {"a": 0.6, "b": 0.4, "c": 0.3}
TRUE = {"gamma1": 800.0, "gamma2": -1.5, "gamma3": 2500.0, "gamma5": 0.5}


class ModelRunner:
    """Runs that follow the model's equations, with noise: a fit must find the constants again."""

    def __init__(self, model: AspModel, rng: np.random.Generator, *, noise: float, rows: int) -> None:
        self.model, self.rng, self.noise, self.rows = model, rng, noise, rows
        self.calls: list[tuple[str, float]] = []

    def noisy(self, values: np.ndarray) -> np.ndarray:
        """The values, each a few percent off."""
        return values * (1.0 + self.noise * self.rng.standard_normal(len(values)))

    def alone(self, shape: WorkerShape, iterations: int) -> AloneRun:
        """Iterations at B_req, and memory of 2 GB and 0.1 GB for each sample."""
        self.calls.append((shape.name, iterations))
        load = self.model.workload
        place = [one.name for one in self.model.types].index(shape.name)
        time_s = float(asp.iteration_times_s(self.model, 1)[place])
        return AloneRun(
            shape,
            self.noisy(np.full(iterations, time_s)),
            self.noisy(np.full(iterations, 2.0 * load.parameters_mb)),
            self.noisy(np.full(2 * iterations, load.required_mb_per_s)),
            2.0 + 0.1 * shape.gpu_batch + 0.02 * float(self.rng.standard_normal()),
        )

    def cluster(self, shapes: Sequence[WorkerShape], epochs: float) -> ClusterRun:
        """Updates in proportion to the workers' rates, and the loss of equation 3."""
        self.calls.append(("+".join(shape.name for shape in shapes), epochs))
        types = [one.name for one in self.model.types]
        places = np.array([types.index(shape.name) for shape in shapes])
        times_s = asp.iteration_times_s(self.model, len(shapes))[places]
        ends_s = np.arange(1, self.rows + 1)[:, None] * times_s
        worker = (np.argsort(ends_s, axis=None) % len(shapes))[: self.rows]
        counts = np.bincount(places, minlength=len(types))
        loss = asp.loss_after(self.model, counts, np.arange(self.rows))
        return ClusterRun(tuple(shapes), worker, self.noisy(times_s[worker]), self.noisy(loss))


def true_model(*, gamma4: float | None = None, start_loss: float | None = None) -> AspModel:
    """Heavy traffic, contention from 3 workers on, and one of the forms of the loss."""
    gamma1 = TRUE["gamma1"] if start_loss is None else None
    gammas = gamma1, TRUE["gamma2"], TRUE["gamma3"], gamma4, TRUE["gamma5"], start_loss
    load = AspWorkload("true", 98.0, 562.0, 0.5, -0.6, *gammas)
    return AspModel(load, PLATFORM, tuple(AspWorker(s.name, s.gpus, s.batch, COMPUTE_S[s.gpu]) for s in SHAPES))


def made(seed: int, model: AspModel, *, noise: float = 0.05, rows: int = 4000) -> AspProfile:
    """A profile of the model: the protocol, and a fourth cluster, whose mix is another."""
    runner = ModelRunner(model, np.random.default_rng(seed), noise=noise, rows=rows)
    clusters = (*mixed_clusters(SHAPES), (LARGE, SMALL, SMALL, SMALL))
    return profile(runner, SHAPES, clusters, memory_batches=(8, 16, 32, 64))


def holds(fitted: FittedConstant | None, true: float) -> bool:
    """Whether the interval holds the value."""
    assert fitted is not None
    return fitted.low <= true <= fitted.high


def test_the_protocol_is_thirty_iterations_alone_and_three_epochs_of_2_4_and_7_workers() -> None:
    """What the runner is asked for: each type alone, the memory of the first with rising batches, then the clusters."""
    runner = ModelRunner(true_model(), np.random.default_rng(0), noise=0.01, rows=10)
    found = profile(runner, SHAPES, mixed_clusters(SHAPES), memory_batches=(8, 16))
    assert runner.calls[:5] == [("a", 30), ("b", 30), ("c", 30), ("a", 30), ("a", 30)]
    assert [run.shape.gpu_batch for run in found.memory] == [8, 16]
    assert runner.calls[5:] == [("a+b", 3.0), ("b+c+a+b", 3.0), ("c+a+b+c+c+c+c", 3.0)]


def test_a_cluster_of_gpus_that_no_worker_alone_has_is_refused_before_anything_runs() -> None:
    """The message names the type of GPU, and nothing was trained."""
    runner = ModelRunner(true_model(), np.random.default_rng(0), noise=0.01, rows=10)
    with pytest.raises(Misuse, match="a cluster to profile has c GPUs: name a worker"):
        profile(runner, (LARGE, MIDDLE), mixed_clusters(SHAPES), memory_batches=(8, 16))
    assert runner.calls == []
    with pytest.raises(Misuse, match="at least one worker, of at least one type"):
        mixed_clusters(SHAPES, (2, 0))


@pytest.mark.parametrize(("gamma4", "start_loss"), [(None, None), (0.5, None), (None, 5.0), (0.5, 5.0)])
def test_the_constants_of_the_loss_are_found_again(gamma4: float | None, start_loss: float | None) -> None:
    """In 8 profiles of each form, of 10,000 noisy losses and more, 9 of 10 intervals hold the truth and all are narrow."""
    covered = []
    for seed in range(8):
        profiled = made(seed, true_model(gamma4=gamma4, start_loss=start_loss))
        found = asp_fits.fit_loss(profiled, heterogeneity=gamma4 is not None, common_start=start_loss is not None)
        covered += [holds(found.gamma2, -1.5), holds(found.gamma3, 2500.0), holds(found.gamma5, 0.5)]
        covered += [holds(found.gamma1, 800.0)] if start_loss is None else [holds(found.start_loss, start_loss)]
        covered += [] if gamma4 is None else [holds(found.gamma4, gamma4)]
        assert found.gamma5.high - found.gamma5.low < 0.1
        assert found.gamma3.high - found.gamma3.low < 0.15 * 2500.0
        assert (found.gamma4 is None, found.gamma1 is None) == (gamma4 is None, start_loss is not None)
    assert sum(covered) >= 0.9 * len(covered)


@pytest.mark.slow
@pytest.mark.parametrize(("gamma4", "start_loss"), [(0.5, None), (None, 5.0)])
def test_intervals_are_as_wide_as_the_constants_scatter(gamma4: float | None, start_loss: float | None) -> None:
    """Over 20 profiles, half of a mean interval is 1.96 standard deviations of the fitted values, within a factor of 1.5.

    The noise is in proportion to the loss, so that a covariance for noise of one size would be too small at the start.
    """
    model = true_model(gamma4=gamma4, start_loss=start_loss)
    fits = [
        asp_fits.fit_loss(
            made(seed, model, rows=8000), heterogeneity=gamma4 is not None, common_start=start_loss is not None
        )
        for seed in range(20)
    ]
    for key in ("gamma1", "gamma2", "gamma3", "gamma4", "gamma5", "start_loss"):
        found = [getattr(one, key) for one in fits if getattr(one, key) is not None]
        if found:
            scatter = 1.96 * np.std([one.value for one in found], ddof=1)
            assert 1 / 1.5 < np.mean([one.high - one.low for one in found]) / 2.0 / scatter < 1.5, key


def test_traffic_computation_and_contention_are_found_again() -> None:
    """In 16 profiles, 17 of 20 intervals or more hold S, B_req, T_comp, alpha1 and beta1, and the values are near."""
    covered = []
    for seed in range(16):
        found = asp_fits.fit_bandwidth(made(seed, true_model()), PLATFORM, np.random.default_rng(seed))
        covered += [holds(found.parameters_mb, 98.0), holds(found.required_mb_per_s, 562.0)]
        covered += [holds(found.compute_s[gpu], true_s) for gpu, true_s in COMPUTE_S.items()]
        covered += [holds(found.alpha1, 0.5), holds(found.beta1, -0.6)]
        assert found.alpha1.value == pytest.approx(0.5, abs=0.15)
        assert found.compute_s["a"].value == pytest.approx(0.6, abs=0.03)
    assert sum(covered) >= 0.85 * len(covered)


def test_without_noise_the_fit_is_exact() -> None:
    """S, B_req, T_comp, alpha1 and beta1 come back to 9 digits from a profile that follows the equations."""
    found = asp_fits.fit_bandwidth(made(0, true_model(), noise=0.0), PLATFORM, np.random.default_rng(0))
    assert found.parameters_mb.value == pytest.approx(98.0)
    assert found.compute_s["c"].value == pytest.approx(0.3, rel=1e-9)
    assert (found.alpha1.value, found.beta1.value) == pytest.approx((0.5, -0.6), rel=1e-9)
    assert (found.alpha1.low, found.alpha1.high) == pytest.approx((0.5, 0.5), rel=1e-9)


def test_the_same_seed_gives_the_same_intervals() -> None:
    """The bootstrap draws from the generator it is handed, and from nothing else."""
    profiled = made(0, true_model())
    one, two = (asp_fits.fit_bandwidth(profiled, PLATFORM, np.random.default_rng(3)) for _ in range(2))
    assert (one.alpha1, one.compute_s["b"]) == (two.alpha1, two.compute_s["b"])


def test_memory_gives_the_batch_of_a_gpu() -> None:
    """2 GB and 0.1 GB for each sample are alpha2 = 10 and beta2 = -20 in 9 of 10 intervals; a GPU of 16 GB gets 128 samples."""
    runner = ModelRunner(true_model(), np.random.default_rng(0), noise=0.0, rows=0)
    shapes = [WorkerShape("a", "a", 1, batch) for batch in (8, 16, 32, 64)]
    runs = (tuple(runner.alone(shape, 2) for shape in shapes) for _ in range(200))
    fits = [asp_fits.fit_memory(AspProfile((), run, ())) for run in runs]
    assert sum(holds(found.alpha2, 10.0) for found in fits) >= 180
    assert sum(holds(found.beta2, -20.0) for found in fits) >= 180
    assert fits[0].alpha2.value == pytest.approx(10.0, rel=0.03)
    assert asp.largest_batch(16.0, fits[0].alpha2.value, fits[0].beta2.value) == 128


def test_the_fitted_model_predicts_a_cluster_that_was_not_profiled() -> None:
    """Workload and workers from the fits give the time of 5 workers within 3 %."""
    profiled, model = made(1, true_model(gamma4=0.5)), true_model(gamma4=0.5)
    bandwidth = asp_fits.fit_bandwidth(profiled, PLATFORM, np.random.default_rng(0))
    loss = asp_fits.fit_loss(profiled, heterogeneity=True, common_start=False)
    workers = tuple(asp_fits.fitted_worker(shape, bandwidth) for shape in SHAPES)
    fitted = AspModel(asp_fits.fitted_workload("fitted", bandwidth, loss), PLATFORM, workers)
    assert float(asp.time_for_s(fitted, (2, 2, 1), 0.9)) == pytest.approx(
        float(asp.time_for_s(model, (2, 2, 1), 0.9)), rel=0.03
    )
    with pytest.raises(Misuse, match="has K80 GPUs, and the profile only a, b, c"):
        asp_fits.fitted_worker(WorkerShape("p2.xlarge", "K80", 1, 64), bandwidth)


def test_the_protocol_on_resnet_110_cannot_show_contention() -> None:
    """7 workers of 142 MB/s use 994 of the servers' 1200 MB/s: the published protocol is refused with the size it needs."""
    load = AspWorkload("ResNet-110", 11.5, 142.0, 0.8, -1.92, 876.5, -0.2, 2507.6, None, 0.5)
    light = AspModel(load, PLATFORM, true_model().types)
    with pytest.raises(Misuse, match=r"0 of the profiled sizes .* at least 2 sizes of more than 8\.4\d workers"):
        asp_fits.fit_bandwidth(made(0, light), PLATFORM, np.random.default_rng(0))


def test_profiles_that_cannot_tell_are_refused_in_a_sentence() -> None:
    """One point, one size, a type that never trained alone, one mean batch, too few clusters, batches or falling losses."""
    whole, rng = made(0, true_model(), rows=200), np.random.default_rng(0)
    point = AloneRun(LARGE, np.array([0.9]), np.array([196.0]), np.array([562.0]), 3.0)
    with pytest.raises(Misuse, match="a profile with one point has no interval"):
        asp_fits.fit_bandwidth(AspProfile((point, *whole.alone[1:]), whole.memory, whole.clusters), PLATFORM, rng)
    with pytest.raises(Misuse, match="a profile with one point has no interval"):
        asp_fits.fit_bandwidth(AspProfile((), whole.memory, whole.clusters), PLATFORM, rng)
    with pytest.raises(Misuse, match="c GPUs were profiled in a cluster only"):
        asp_fits.fit_bandwidth(AspProfile(whole.alone[:2], whole.memory, whole.clusters), PLATFORM, rng)
    with pytest.raises(Misuse, match="1 of the profiled sizes of clusters"):
        asp_fits.fit_bandwidth(AspProfile(whole.alone, whole.memory, whole.clusters[:2]), PLATFORM, rng)
    with pytest.raises(Misuse, match="on 2 clusters that differ: this form of it needs at least 3"):
        asp_fits.fit_loss(AspProfile((), (), whole.clusters[:2]), heterogeneity=True, common_start=False)
    with pytest.raises(Misuse, match="on 1 clusters that differ"):
        asp_fits.fit_loss(AspProfile((), (), whole.clusters[:1] * 2), heterogeneity=False, common_start=False)
    alike = tuple(
        ClusterRun((LARGE,) * size, np.arange(90) % size, np.ones(90), np.linspace(5.0, 4.0, 90)) for size in (2, 3)
    )
    with pytest.raises(Misuse, match="have a mean batch of 512, so gamma2 and gamma3 cannot be told apart"):
        asp_fits.fit_loss(AspProfile((), (), alike), heterogeneity=False, common_start=False)
    rising = tuple(
        ClusterRun(run.shapes, run.worker, run.iteration_s, np.linspace(4.0, 5.0, len(run.loss)))
        for run in whole.clusters
    )
    with pytest.raises(Misuse, match=r"the loss did not fall while it was profiled, from 4.* to 4\.99"):
        asp_fits.fit_loss(AspProfile((), (), rising), heterogeneity=False, common_start=False)
    with pytest.raises(Misuse, match="memory was profiled with 2 batches"):
        asp_fits.fit_memory(AspProfile((), whole.memory[:2], ()))
    for falls_gb in (0.01, 0.0, -1e-16):
        with pytest.raises(Misuse, match="did not grow with the batch"):
            asp_fits.fit_memory(AspProfile((), tuple(_alone(batch, falls_gb) for batch in (8, 16, 32)), ()))


def _alone(batch: int, falls_gb: float) -> AloneRun:
    return AloneRun(WorkerShape("a", "a", 1, batch), np.ones(3), np.ones(3), np.ones(3), 4.0 - falls_gb * batch)


def test_contention_that_falls_with_the_size_is_refused() -> None:
    """Clusters in which 7 workers are as fast as 4 give no alpha1 above 0."""
    whole = made(0, true_model())
    small, large = whole.clusters[1], whole.clusters[2]
    fast = np.array([COMPUTE_S[shape.gpu] for shape in large.shapes])[large.worker] + 0.35
    clusters = (small, ClusterRun(large.shapes, large.worker, fast, large.loss))
    with pytest.raises(Misuse, match="contention does not grow with the size of the profiled clusters"):
        asp_fits.fit_bandwidth(AspProfile(whole.alone, whole.memory, clusters), PLATFORM, np.random.default_rng(0))


def test_an_influence_that_no_cluster_shows_has_no_bounded_interval() -> None:
    """Losses made without R leave gamma4 open to infinity, and say nothing false about the floor."""
    found = asp_fits.fit_loss(made(1, true_model()), heterogeneity=True, common_start=False)
    assert found.gamma4 is not None
    assert found.gamma4.high == math.inf
    assert holds(found.gamma5, 0.5)
