"""The runs from which a workload's constants are fitted: a few iterations of workers alone, a few epochs of small clusters.

What runs them is handed in: a simulation, or machines.  A *shape* is a type of worker with the batch that its GPUs get.

Source: spotDNN (IWQoS 2023), section III ("Obtaining model parameters") and V-D: 30 iterations of one worker, 3 epochs on
clusters of 2, 4 and 7 workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.structs import Struct, replace

Floats = NDArray[np.float64]
ALONE_ITERATIONS: Final = 30
"""Iterations of a worker alone (section V-D)."""
CLUSTER_EPOCHS: Final = 3.0
"""Epochs of each cluster (section V-D)."""
CLUSTER_SIZES: Final = (2, 4, 7)
"""Workers of each cluster (section V-D)."""


class WorkerShape(Struct, frozen=True):
    """A type of worker and its batch.

    Attributes:
        name: of the type.
        gpu: type of its GPUs; workers with the same have the same computation time.
        gpus: how many.
        gpu_batch: samples in an iteration of one GPU.
    """

    name: str
    gpu: str
    gpus: int
    gpu_batch: int

    @property
    def batch(self) -> int:
        """Samples in an iteration of the worker."""
        return self.gpus * self.gpu_batch


class AloneRun(Struct, frozen=True):
    """What a worker showed that trained with no other; its first iterations, which also warm it up, are not among these.

    Attributes:
        shape: of the worker.
        iteration_s: of each iteration [s].
        traffic_mb: of each iteration, pulled and pushed together [MB].
        bandwidth_mb_per_s: samples of its bandwidth while it transferred [MB/s].
        memory_gb: the most that a GPU had in use [GB].
    """

    shape: WorkerShape
    iteration_s: Floats
    traffic_mb: Floats
    bandwidth_mb_per_s: Floats
    memory_gb: float


class ClusterRun(Struct, frozen=True):
    """What a cluster showed: the logs of all workers as one, in the order in which the servers took the updates.

    Attributes:
        shapes: of each worker.
        worker: of each iteration, its place in `shapes`.
        iteration_s: of each iteration [s].
        loss: of each iteration, on its own batch.
    """

    shapes: tuple[WorkerShape, ...]
    worker: NDArray[np.int64]
    iteration_s: Floats
    loss: Floats


class AspProfile(Struct, frozen=True):
    """All runs of a profiling.

    Attributes:
        alone: of each type of GPU.
        memory: of one type, with rising batches.
        clusters: of several sizes.
    """

    alone: tuple[AloneRun, ...]
    memory: tuple[AloneRun, ...]
    clusters: tuple[ClusterRun, ...]


class AspRunner(Protocol):
    """Trains the workload on workers, and reports what can be seen from outside."""

    def alone(self, shape: WorkerShape, iterations: int) -> AloneRun:
        """Train on one worker for some iterations, after those that warm it up."""

    def cluster(self, shapes: Sequence[WorkerShape], epochs: float) -> ClusterRun:
        """Train from the start on a cluster, for some passes over the data."""


def mixed_clusters(
    shapes: Sequence[WorkerShape], sizes: Sequence[int] = CLUSTER_SIZES
) -> tuple[tuple[WorkerShape, ...], ...]:
    """Return clusters of several sizes, each with another mix of the types.

    A cluster has one worker of each type, as far as its size allows, and gives the rest to one of them, in turn: equal mixes
    would leave the influence of batch and heterogeneity on the loss apart from each other unknown.

    Args:
        shapes: of the types.
        sizes: workers of each cluster.

    Raises:
        Misuse: there is no type, or a cluster without a worker.
    """
    if not shapes or any(size < 1 for size in sizes):
        raise Misuse("clusters to profile have at least one worker, of at least one type")
    clusters = []
    for number, size in enumerate(sizes):
        turned = [shapes[(number + place) % len(shapes)] for place in range(len(shapes))]
        clusters.append((*turned[:size], *(turned[0],) * (size - len(turned))))
    return tuple(clusters)


def profile(
    runner: AspRunner,
    shapes: Sequence[WorkerShape],
    clusters: Sequence[Sequence[WorkerShape]],
    *,
    memory_batches: Sequence[int],
    iterations: int = ALONE_ITERATIONS,
    epochs: float = CLUSTER_EPOCHS,
) -> AspProfile:
    """Run the profiling protocol of section V-D.

    Args:
        runner: trains.
        shapes: one for each type of GPU; one with a single GPU tells its computation time best.
        clusters: the workers of each, of several sizes (`mixed_clusters`).
        memory_batches: samples of a GPU, of the first shape; at least two, that its memory holds for certain.
        iterations: of each worker alone.
        epochs: of each cluster.

    Raises:
        Misuse: a type of GPU in a cluster is in no shape.
    """
    known = {shape.gpu for shape in shapes}
    missing = sorted({shape.gpu for cluster in clusters for shape in cluster} - known)
    if missing:
        raise Misuse(f"a cluster to profile has {missing[0]} GPUs: name a worker with them that is profiled alone too")
    sized = (replace(shapes[0], gpu_batch=batch) for batch in memory_batches)
    return AspProfile(
        tuple(runner.alone(shape, iterations) for shape in shapes),
        tuple(runner.alone(shape, iterations) for shape in sized),
        tuple(runner.cluster(cluster, epochs) for cluster in clusters),
    )
