"""Asynchronous training with parameter servers, event by event: workers, the servers' network and queue, each worker's bus.

A worker pulls the parameters, copies them to its GPUs over its bus, computes on each, collects the gradients over the bus,
pushes their sum, and starts again when the servers have applied it.

    network    transfers share the servers' bandwidth evenly, each up to the bandwidth of a single connection
    bus        the copies of a worker's GPUs share its bandwidth evenly
    servers    apply one update after the other, in the order of arrival
    loss       every applied update raises the reciprocal of the loss above its floor, by a gain that grows with its batch
               and shrinks with its *staleness*: the updates applied since its worker's pull began

Nothing here knows the equations of `models.asp`: contention is what the transfers do to one another.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.random import Generator

from windfall.errors import Misuse
from windfall.models.asp_profiling import AloneRun, ClusterRun, Floats, WorkerShape
from windfall.simulation.virtual_time import Timeline
from windfall.structs import Struct

UPDATES_MAX = 1_000_000
"""A run ends after at most this number of updates, whatever it waits for."""


class GpuKind(Struct, frozen=True):
    """A type of GPU.

    Attributes:
        launch_s: of an iteration, whatever its batch [s].
        sample_s: of each sample [s].
    """

    launch_s: float
    sample_s: float

    def compute_s(self, batch: int) -> float:
        """Mean computation in an iteration [s]."""
        return self.launch_s + self.sample_s * batch


class AspWorld(Struct, frozen=True):
    """The workload and the machines of a simulated training.

    Attributes:
        gpus: by name.
        parameters_mb: size of the parameters [MB].
        connection_mb_per_s: bandwidth of one transfer alone [MB/s].
        server_mb_per_s: bandwidth of a server; the parameters are spread over all [MB/s].
        servers: how many.
        pcie_mb_per_s: bandwidth of a worker's bus [MB/s].
        apply_s: of the servers, for one update [s].
        compute_spread: standard deviation of a GPU's computation, relative to its mean.
        transfer_spread: standard deviation of a transfer's time at a given bandwidth, relative to its mean.
        traffic_spread: standard deviation of the data of a transfer, relative to the parameters.
        model_gb: memory of a GPU that holds no sample [GB].
        sample_gb: memory of each sample [GB].
        memory_spread_gb: standard deviation of the memory in use [GB].
        loss_start: before the first update.
        loss_floor: that no training goes below.
        gain: of an update of one sample that is not stale, in the reciprocal of the loss above the floor.
        batch_power: the gain grows with this power of the batch.
        staleness_cost: a staleness of s divides the gain by 1 + this x s.
        loss_spread: standard deviation of the loss of one sample, relative to the loss; that of a batch is the mean of its own.
        epoch_samples: of a pass over the data.
    """

    gpus: Mapping[str, GpuKind]
    parameters_mb: float
    connection_mb_per_s: float
    server_mb_per_s: float
    pcie_mb_per_s: float
    apply_s: float
    compute_spread: float
    transfer_spread: float
    traffic_spread: float
    model_gb: float
    sample_gb: float
    memory_spread_gb: float
    loss_start: float
    loss_floor: float
    gain: float
    batch_power: float
    staleness_cost: float
    loss_spread: float
    epoch_samples: int
    servers: int = 1


class StopRule(Struct, frozen=True):
    """When a run ends: at the first that is reached.

    Attributes:
        updates: applied by the servers.
        samples: in these.
        loss: the true one is at this or below.
    """

    updates: int = UPDATES_MAX
    samples: float = math.inf
    loss: float = -math.inf


class AspHistory(Struct, frozen=True):
    """What happened in a run, one row for each applied update.

    Attributes:
        worker: whose.
        ended_s: when it was applied [s from the start].
        iteration_s: since the worker's pull began [s].
        staleness: updates of others since then.
        loss: on the worker's batch.
        true_loss: after the update.
        transfers_mb: of pull and push; shape (updates, 2) [MB].
        transfers_s: of pull and push; shape (updates, 2) [s].
    """

    worker: np.ndarray
    ended_s: Floats
    iteration_s: Floats
    staleness: np.ndarray
    loss: Floats
    true_loss: Floats
    transfers_mb: Floats
    transfers_s: Floats


class SharedLink:
    """Transfers that share a bandwidth evenly, each up to a bandwidth of its own (processor sharing).

    All have the same rate at any moment, so each ends when the data served per transfer reach a mark known at its start.
    """

    def __init__(self, timeline: Timeline, *, total_mb_per_s: float, each_mb_per_s: float) -> None:
        self._timeline = timeline
        self._total, self._each = total_mb_per_s, each_mb_per_s
        self._served_mb, self._since_s = 0.0, 0.0
        self._order, self._plan = itertools.count(), 0
        self._marks: list[tuple[float, int, Callable[[], None]]] = []

    def send(self, megabytes: float, done: Callable[[], None]) -> None:
        """Start a transfer; `done` is called at its end."""
        self._advance()
        heapq.heappush(self._marks, (self._served_mb + megabytes, next(self._order), done))
        self._schedule()

    def _rate(self) -> float:
        return min(self._each, self._total / len(self._marks))

    def _advance(self) -> None:
        if self._marks:
            self._served_mb += self._rate() * (self._timeline.time - self._since_s)
        self._since_s = self._timeline.time

    def _schedule(self) -> None:
        self._plan += 1
        plan = self._plan
        if self._marks:
            left_mb = max(self._marks[0][0] - self._served_mb, 0.0)
            self._timeline.at(left_mb / self._rate(), lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:  # another transfer began or ended since
            return
        self._advance()
        _, _, done = heapq.heappop(self._marks)
        self._schedule()
        done()


class _Servers:
    """The queue of updates and the loss they bring about."""

    def __init__(self, world: AspWorld, timeline: Timeline, rng: Generator) -> None:
        self._world, self._timeline, self._rng = world, timeline, rng
        self._free_s = 0.0
        self._reciprocal = 1.0 / (world.loss_start - world.loss_floor)
        self.updates, self.samples = 0, 0.0

    @property
    def loss(self) -> float:
        """The true loss now."""
        return self._world.loss_floor + 1.0 / self._reciprocal

    def batch_loss(self, batch: int) -> float:
        """Return the loss that a worker sees on a batch of the parameters now."""
        return self.loss * (1.0 + self._world.loss_spread / math.sqrt(batch) * float(self._rng.standard_normal()))

    def apply(self, batch: int, seen: int, done: Callable[[int], None]) -> None:
        """Queue an update computed from version `seen`; `done` gets its staleness."""
        self._free_s = max(self._free_s, self._timeline.time) + self._world.apply_s

        def applied() -> None:
            staleness = self.updates - seen
            gain = self._world.gain * batch**self._world.batch_power / (1.0 + self._world.staleness_cost * staleness)
            self._reciprocal += gain
            self.updates += 1
            self.samples += batch
            done(staleness)

        self._timeline.when(self._free_s, applied)


class _Cluster:
    """The links, the servers and the rows of one run."""

    def __init__(self, world: AspWorld, shapes: Sequence[WorkerShape], rng: Generator) -> None:
        self.world, self.rng, self.timeline = world, rng, Timeline()
        self.servers = _Servers(world, self.timeline, rng)
        total = world.server_mb_per_s * world.servers
        self.network = SharedLink(
            self.timeline, total_mb_per_s=total, each_mb_per_s=min(world.connection_mb_per_s, total)
        )
        self.rows: list[tuple[float, ...]] = []
        for place, shape in enumerate(shapes):
            _Worker(self, place, shape).pull()


class _Worker:
    """One worker's round, for ever: pull, copy, compute, collect, push, wait until applied."""

    def __init__(self, cluster: _Cluster, place: int, shape: WorkerShape) -> None:
        world = cluster.world
        self._cluster, self._place, self._shape = cluster, place, shape
        self._mean_s = world.gpus[shape.gpu].compute_s(shape.gpu_batch)
        bus = world.pcie_mb_per_s
        self._bus = SharedLink(cluster.timeline, total_mb_per_s=bus, each_mb_per_s=bus)
        self._began_s, self._seen, self._waiting, self._loss = 0.0, 0, 0, 0.0
        self._sent: list[tuple[float, float]] = []

    def pull(self) -> None:
        """Begin an iteration."""
        self._began_s = self._cluster.timeline.time
        self._seen = self._cluster.servers.updates
        self._loss = self._cluster.servers.batch_loss(self._shape.batch)
        self._sent = []
        self._transfer(self._copy)

    def _transfer(self, done: Callable[[], None]) -> None:
        world, timeline = self._cluster.world, self._cluster.timeline
        megabytes = world.parameters_mb * _varied(self._cluster.rng, world.traffic_spread)
        began_s = timeline.time

        def ended() -> None:
            self._sent.append((megabytes, timeline.time - began_s))
            done()

        self._cluster.network.send(megabytes * _varied(self._cluster.rng, world.transfer_spread), ended)

    def _copy(self) -> None:
        self._waiting = self._shape.gpus
        for _ in range(self._shape.gpus):
            self._bus.send(self._cluster.world.parameters_mb, self._compute)

    def _compute(self) -> None:
        spread = self._cluster.world.compute_spread
        self._cluster.timeline.at(self._mean_s * _varied(self._cluster.rng, spread), self._collect)

    def _collect(self) -> None:
        self._bus.send(self._cluster.world.parameters_mb, self._collected)

    def _collected(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._transfer(lambda: self._cluster.servers.apply(self._shape.batch, self._seen, self._applied))

    def _applied(self, staleness: int) -> None:
        now_s, servers = self._cluster.timeline.time, self._cluster.servers
        (pull_mb, pull_s), (push_mb, push_s) = self._sent
        row = self._place, now_s, now_s - self._began_s, staleness, self._loss, servers.loss
        self._cluster.rows.append((*row, pull_mb, push_mb, pull_s, push_s))
        self.pull()


def _varied(rng: Generator, spread: float) -> float:
    """Return a factor with mean 1 and this standard deviation, above 0 (gamma distribution)."""
    return float(rng.gamma(1.0 / spread**2, spread**2)) if spread > 0.0 else 1.0


def simulate_cluster(world: AspWorld, shapes: Sequence[WorkerShape], stop: StopRule, rng: Generator) -> AspHistory:
    """Train on a cluster until a rule stops it.

    Args:
        world: workload and machines.
        shapes: of the workers.
        stop: when it ends.
        rng: of all chance.

    Raises:
        Misuse: there is no worker, or a GPU that the world does not have.
    """
    unknown = sorted({shape.gpu for shape in shapes} - set(world.gpus))
    if unknown or not shapes:
        raise Misuse(f"a simulated cluster has workers with {', '.join(world.gpus)}, not {unknown or 'none'}")
    cluster = _Cluster(world, shapes, rng)
    servers, most = cluster.servers, min(stop.updates, UPDATES_MAX)
    while servers.updates < most and servers.samples < stop.samples and servers.loss > stop.loss:
        cluster.timeline.step()
    rows = np.array(cluster.rows, np.float64)
    worker, ended_s, iteration_s, staleness, loss, true_loss = rows[:, :6].T
    whole = worker.astype(np.int64), ended_s, iteration_s, staleness.astype(np.int64)
    return AspHistory(*whole, loss, true_loss, rows[:, 6:8], rows[:, 8:])


class SimulatedAspRunner:
    """Runs the profiling protocol (`models.asp_profiling.AspRunner`) on simulated clusters."""

    def __init__(self, world: AspWorld, rng: Generator) -> None:
        self._world, self._rng = world, rng

    def alone(self, shape: WorkerShape, iterations: int) -> AloneRun:
        """Train on one worker for some iterations."""
        history = simulate_cluster(self._world, (shape,), StopRule(updates=iterations), self._rng)
        memory_gb = self._world.model_gb + self._world.sample_gb * shape.gpu_batch
        return AloneRun(
            shape,
            history.iteration_s,
            history.transfers_mb.sum(axis=1),
            (history.transfers_mb / history.transfers_s).ravel(),
            memory_gb + self._world.memory_spread_gb * float(self._rng.standard_normal()),
        )

    def cluster(self, shapes: Sequence[WorkerShape], epochs: float) -> ClusterRun:
        """Train from the start on a cluster, for some passes over the data."""
        history = simulate_cluster(self._world, shapes, StopRule(samples=epochs * self._world.epoch_samples), self._rng)
        return ClusterRun(tuple(shapes), history.worker, history.iteration_s, history.loss)
