"""How long asynchronous training with parameter servers takes on a mixed cluster, and which loss it reaches.

Every worker pulls the parameters, computes a gradient on its own batch, and pushes it, without waiting for the others.

Symbols: S size of the parameters [MB = 10^6 bytes], B_req bandwidth that one worker alone uses [MB/s], B_ps that of all
servers together, B_pcie that of the bus inside a worker, n workers, worker i with g_i GPUs, the batch b_i of all of them, and
the iteration time T_i [s].

    T_i  = T_comp,i + 2 S / B(n) + 2 g_i S / B_pcie                                       (6), (7)
    B(n) = P B_ps / n + (1 - P) B_req  if n B_req > B_ps,  else B_req                     (8)
    P    = alpha1 sqrt(n) + beta1, within [0, 1]                                          (9)
    q    = sum 1 / T_i,  v = sum b_i / T_i,  b_w = v / q                                  (2), (4)
    R    = || w - (1, 0, ..., 0) ||,  w_i = b_i / T_i / v,  the 1 on the largest share    (5)
    loss after j iterations = (gamma2 b_w + gamma3) sqrt((R + gamma4) n) / (j + gamma1) + gamma5    (3)
    time = j / q                                                                          (1)

**Two forms.**  The authors' prototype has no R in the loss: sqrt(n) in place of sqrt((R + gamma4) n); here `gamma4` is None
then.  It also rounds b_w to one decimal, and j to an integer, half to even: `AspModel.as_prototype`, which the published
numbers need.

**A common start.**  With one gamma1 for all clusters, equation 3 gives each another loss before its first iteration, though
all start from the same parameters; and where short profiles are fitted, the floor pays for it.  (The curves of the paper's
Figure 3 all start at 4.96, and their gamma1 are in proportion to their numerators.)  With `AspWorkload.start_loss` in place of
gamma1, every cluster starts there: gamma1 is its numerator / (start_loss - gamma5).

**Workers.**  With more workers an update is staler, which the paper's sqrt(n) stands for.  Where it is no staler, because as
many updates are under way on few workers as on many, their number does not matter: `AspWorkload.workers_power` is the
exponent in place of 1/2.

**Plain formulas.**  `contention` to `iterations_to` are elementwise: numbers or arrays, and compilable by numba, as is
`totals`.  `AspModel.arrays` has what a compiled search passes to them.

Source: R. Shang et al., "spotDNN: provisioning spot instances for predictable distributed DNN training in the cloud", IWQoS
2023; equation numbers are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windfall.errors import Misuse
from windfall.structs import Struct

Floats = NDArray[np.float64]
WORKERS_POWER: Final = 0.5
"""The paper's exponent of the number of workers in the loss."""
MARGIN_MAX: Final = 0.05
"""The safety margin is at most this share of the contention (section IV-C: 1 to 5 %)."""


class AspWorkload(Struct, frozen=True):
    """The constants of a workload: its traffic, its contention for the servers, its loss.

    Attributes:
        name: for messages.
        parameters_mb: S, size of the parameters [MB].
        required_mb_per_s: B_req, bandwidth between one worker alone and the servers [MB/s].
        alpha1: of the contention, above 0.
        beta1: of the contention, below 1.
        gamma1: iterations, above 0; None with `start_loss`.
        gamma2: of the batch [loss x iterations / sample], below 0.
        gamma3: [loss x iterations], above 0.
        gamma4: weight of an even cluster, above 0; None: the prototype's form, without R.
        gamma5: the loss that no number of iterations goes below.
        start_loss: the loss of every cluster before its first iteration, above gamma5; None: gamma1, as in the paper.
        workers_power: exponent of n in the loss, from 0 to 1; 1/2 in the paper.
    """

    name: str
    parameters_mb: float
    required_mb_per_s: float
    alpha1: float
    beta1: float
    gamma1: float | None
    gamma2: float
    gamma3: float
    gamma4: float | None
    gamma5: float
    start_loss: float | None = None
    workers_power: float = WORKERS_POWER

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            Misuse: a constant is outside its range.
        """
        place = f"of workload {self.name!r}"
        for key in ("parameters_mb", "required_mb_per_s", "alpha1", "gamma3"):
            _check_above_0(getattr(self, key), key, place)
        if (self.gamma1 is None) == (self.start_loss is None):
            raise Misuse(f"a loss has either a gamma1 or a start_loss: write one of the two {place}")
        if self.gamma1 is not None:
            _check_above_0(self.gamma1, "gamma1", place)
        if self.gamma4 is not None:
            _check_above_0(self.gamma4, "gamma4", place)
        if not -math.inf < self.beta1 < 1.0:
            raise Misuse(f"beta1 {place} is {self.beta1}: write a number below 1, where contention is not yet certain")
        if not -math.inf < self.gamma2 < 0.0:
            raise Misuse(f"gamma2 {place} is {self.gamma2}: write a number below 0, as a larger batch lowers the loss")
        if not math.isfinite(self.gamma5):
            raise Misuse(f"gamma5 {place} is {self.gamma5}: write the loss that the training cannot go below")
        if self.start_loss is not None and not self.gamma5 < self.start_loss < math.inf:
            raise Misuse(f"start_loss {place} is {self.start_loss}: write a loss above its floor gamma5, {self.gamma5}")
        if not 0.0 <= self.workers_power <= 1.0:
            raise Misuse(
                f"workers_power {place} is {self.workers_power}: write a number from 0, where the number of workers does not "
                f"matter to the loss, to 1; it is {WORKERS_POWER} in the paper"
            )


class AspPlatform(Struct, frozen=True):
    """The bandwidths of servers and workers.

    Attributes:
        server_mb_per_s: of one server's network [MB/s].
        pcie_mb_per_s: of the bus inside a worker [MB/s].
        servers: how many; their bandwidths add up (section IV-C).
        margin: share by which the contention is overpredicted, 0 to 0.05 (section IV-C: 1 to 5 %).
    """

    server_mb_per_s: float
    pcie_mb_per_s: float
    servers: int = 1
    margin: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            Misuse: a value is outside its range.
        """
        _check_above_0(self.server_mb_per_s, "server_mb_per_s", "of the platform")
        _check_above_0(self.pcie_mb_per_s, "pcie_mb_per_s", "of the platform")
        if self.servers < 1:
            raise Misuse(f"a cluster has at least 1 parameter server, not {self.servers}")
        if not 0.0 <= self.margin <= MARGIN_MAX:
            raise Misuse(f"the safety margin is {self.margin}: write a share of the contention from 0 to {MARGIN_MAX}")

    @property
    def servers_mb_per_s(self) -> float:
        """B_ps, the bandwidth of all servers together [MB/s]."""
        return self.server_mb_per_s * self.servers


class AspWorker(Struct, frozen=True):
    """A type of worker.

    Attributes:
        name: of the type.
        gpus: how many it has.
        batch: samples in an iteration, over all its GPUs.
        compute_s: T_comp, computation in an iteration [s]; a constant of the type of GPU.
    """

    name: str
    gpus: int
    batch: float
    compute_s: float

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            Misuse: a value is outside its range.
        """
        if self.gpus < 1:
            raise Misuse(f"a worker of type {self.name!r} has at least 1 GPU, not {self.gpus}")
        _check_above_0(self.batch, "batch", f"of worker type {self.name!r}")
        _check_above_0(self.compute_s, "compute_s", f"of worker type {self.name!r}")


class LossConstants(NamedTuple):
    """The constants of a loss as numbers, in one form for all of the module's.

    Attributes:
        gamma1: of the workload; not a number with a common start (`head_start`).
        gamma2: of the workload.
        gamma3: of the workload.
        weight: of R: 1, or 0 in the prototype's form.
        offset: added to the weighted R: gamma4, or 1 in the prototype's form.
        gamma5: of the workload.
        gamma1_per_scale: with a common start: gamma1 over the `loss_scale`; 0 without.
        beside_root: what the exponent of n has beside the paper's 1/2.
    """

    gamma1: float
    gamma2: float
    gamma3: float
    weight: float
    offset: float
    gamma5: float
    gamma1_per_scale: float
    beside_root: float = 0.0


class AspArrays(NamedTuple):
    """A model as plain arrays and numbers, for compiled searches: T_i = fixed_s[i] + network_s[n].

    Attributes:
        fixed_s: computation and bus in an iteration of each type [s]; shape (types,).
        network_s: transfers in an iteration, by the number of workers; shape (most workers + 1,), the first not a number.
        batches: of each type; shape (types,).
        loss: the constants of the loss.
        rounded: whether b_w and j are rounded as the prototype does.
    """

    fixed_s: Floats
    network_s: Floats
    batches: Floats
    loss: LossConstants
    rounded: bool


class ClusterSpeed(Struct, frozen=True):
    """How fast clusters train; each array has one value per plan.

    Attributes:
        workers: n.
        iterations_per_s: q.
        samples_per_s: v.
        batch: b_w, the weighted average [samples].
        coefficient: R, the convergence coefficient, 0 to below 1.
        loss_scale: the loss above the floor is this over (j + gamma1).
    """

    workers: Floats
    iterations_per_s: Floats
    samples_per_s: Floats
    batch: Floats
    coefficient: Floats
    loss_scale: Floats


class AspModel(Struct, frozen=True, dict=True):
    """A workload on a platform with types of workers to choose from.

    A *plan* is a number of workers of each type.  Functions take one plan, shape (types,), or many, shape (..., types), and
    return one value for each, shape (...).

    Attributes:
        workload: its constants.
        platform: its bandwidths.
        types: of the workers, in the order of a plan's numbers.
        as_prototype: round b_w to one decimal and j to an integer, half to even, as the authors' prototype does.
    """

    workload: AspWorkload
    platform: AspPlatform
    types: tuple[AspWorker, ...]
    as_prototype: bool = False

    def __post_init__(self) -> None:
        """Check that the constants fit one another.

        Raises:
            Misuse: there is no type of worker, or a batch is beyond what the loss describes.
        """
        if not self.types:
            raise Misuse("a cluster has at least one type of worker: name one")
        largest = max(self.types, key=lambda one: one.batch)
        most = -self.workload.gamma3 / self.workload.gamma2
        if largest.batch >= most:
            raise Misuse(
                f"the loss of workload {self.workload.name!r} holds for batches below {most:g}, and worker type "
                f"{largest.name!r} has {largest.batch:g}: leave the type out, or give it a smaller batch"
            )

    @cached_property
    def batches(self) -> Floats:
        """The batch of each type; shape (types,)."""
        return np.array([one.batch for one in self.types], np.float64)

    @cached_property
    def fixed_s(self) -> Floats:
        """Computation and bus in an iteration of each type [s]; shape (types,)."""
        bus_s = 2.0 * self.workload.parameters_mb / self.platform.pcie_mb_per_s
        return np.array([one.compute_s + one.gpus * bus_s for one in self.types], np.float64)

    @cached_property
    def loss_constants(self) -> LossConstants:
        """The constants of the loss, in one form for all of the module's."""
        load = self.workload
        weight, offset = (0.0, 1.0) if load.gamma4 is None else (1.0, load.gamma4)
        per_scale = 0.0 if load.start_loss is None else 1.0 / (load.start_loss - load.gamma5)
        gamma1 = math.nan if load.gamma1 is None else load.gamma1
        beside_root = load.workers_power - WORKERS_POWER
        return LossConstants(gamma1, load.gamma2, load.gamma3, weight, offset, load.gamma5, per_scale, beside_root)

    def arrays(self, workers_max: int) -> AspArrays:
        """Return the model as plain arrays, for plans of up to `workers_max` workers."""
        network_s = np.append(np.nan, network_time_s(self, np.arange(1, workers_max + 1)))
        return AspArrays(self.fixed_s, network_s, self.batches, self.loss_constants, self.as_prototype)


def contention(workers: Any, alpha1: float, beta1: float, margin: float) -> Any:
    """Return P, the probability that the servers' bandwidth is the bottleneck (equation 9), within [0, 1].

    Args:
        workers: n.
        alpha1: of the workload.
        beta1: of the workload.
        margin: share by which it is overpredicted (section IV-C).
    """
    return np.minimum(np.maximum((alpha1 * np.sqrt(workers) + beta1) * (1.0 + margin), 0.0), 1.0)


def bandwidth_mb_per_s(workers: Any, chance: Any, required_mb_per_s: float, servers_mb_per_s: float) -> Any:
    """Return B(n), the bandwidth of each of n workers (equation 8) [MB/s].

    Args:
        workers: n.
        chance: P, the `contention`.
        required_mb_per_s: B_req [MB/s].
        servers_mb_per_s: B_ps [MB/s].
    """
    # P B_ps / n + (1 - P) B_req, written so that it is B_req where there is enough for all.
    return required_mb_per_s - chance * np.maximum(required_mb_per_s - servers_mb_per_s / workers, 0.0)


def totals(counts: Any, iteration_s: Any, batches: Any) -> tuple[Any, Any, Any, Any]:
    """Return n, q [1/s], v [samples/s] and R of plans (equations 2, 4 and 5).

    Args:
        counts: workers of each type; the types come first: shape (types,) or (types, plans).
        iteration_s: T_i, of the same shape [s].
        batches: b_i of each type; shape (types,).
    """
    workers, rate, speed, squares, largest = 0.0, 0.0, 0.0, 0.0, 0.0
    for place in range(len(batches)):
        count, worker_rate = counts[place] * 1.0, 1.0 / iteration_s[place]
        worker_speed = worker_rate * batches[place]
        workers = workers + count
        rate = rate + count * worker_rate
        speed = speed + count * worker_speed
        squares = squares + count * (worker_speed * worker_speed)
        largest = np.maximum(largest, np.minimum(count, 1.0) * worker_speed)
    others = squares - largest * largest  # never below 0: sums and products round monotonically
    return workers, rate, speed, np.sqrt((speed - largest) * (speed - largest) + others) / speed


def mean_batch(samples_per_s: Any, iterations_per_s: Any, rounded: bool) -> Any:
    """Return b_w (equation 4) [samples]; rounded to one decimal, half to even, if asked."""
    batch = samples_per_s / iterations_per_s
    return np.rint(batch * 10.0) / 10.0 if rounded else batch


def loss_scale(batch: Any, coefficient: Any, workers: Any, loss: LossConstants) -> Any:
    """Return the loss above the floor, times (j + gamma1) (the numerator of equation 3).

    Args:
        batch: b_w.
        coefficient: R.
        workers: n.
        loss: the constants.
    """
    scale = (loss.gamma2 * batch + loss.gamma3) * np.sqrt((loss.weight * coefficient + loss.offset) * workers)
    return scale * workers**loss.beside_root


def head_start(scale: Any, loss: LossConstants) -> Any:
    """Return gamma1, of the workload or of each cluster's `loss_scale`."""
    return loss.gamma1_per_scale * scale if loss.gamma1_per_scale > 0.0 else loss.gamma1


def iterations_to(loss: Any, scale: Any, gamma1: float, gamma5: float) -> Any:
    """Return j, the iterations until a loss (equation 3 solved for j); 0 for a loss that the training starts at or below.

    Args:
        loss: the objective, above gamma5.
        scale: the `loss_scale`.
        gamma1: the `head_start`.
        gamma5: of the workload.
    """
    return np.maximum(scale / (loss - gamma5) - gamma1, 0.0)


def network_time_s(model: AspModel, workers: ArrayLike) -> Floats:
    """Return the time of the transfers between a worker and the servers in an iteration, pull and push [s].

    Args:
        model: workload and platform.
        workers: n, 1 or more; any shape.
    """
    load, platform = model.workload, model.platform
    many = np.asarray(workers, np.float64)
    chance = contention(many, load.alpha1, load.beta1, platform.margin)
    speed = bandwidth_mb_per_s(many, chance, load.required_mb_per_s, platform.servers_mb_per_s)
    found: Floats = 2.0 * load.parameters_mb / speed
    return found


def iteration_times_s(model: AspModel, workers: ArrayLike) -> Floats:
    """Return T_i of a worker of each type in a cluster of n workers (equations 6 to 9) [s]; shape (..., types).

    Args:
        model: the workload, the platform and the types.
        workers: n, 1 or more; shape (...).
    """
    found: Floats = network_time_s(model, workers)[..., None] + model.fixed_s
    return found


def cluster_speed(model: AspModel, counts: ArrayLike) -> ClusterSpeed:
    """Return how fast clusters train (equations 2, 4 and 5).

    Args:
        model: the workload, the platform and the types.
        counts: workers of each type; shape (..., types).

    Raises:
        Misuse: a plan is for other types, has no worker, or fewer than none of a type.
    """
    plans = np.asarray(counts, np.float64)
    if plans.ndim == 0 or plans.shape[-1] != len(model.types):
        raise Misuse(f"a plan has one number for each of the {len(model.types)} types of workers, not {plans.tolist()}")
    if bool(np.any(plans < 0.0)) or bool(np.any(plans.sum(-1) < 1.0)):
        raise Misuse("a plan has at least one worker, and 0 or more of each type")
    by_type = np.moveaxis(plans, -1, 0)
    iteration_s = np.moveaxis(iteration_times_s(model, plans.sum(-1)), -1, 0)
    workers, rate, speed, coefficient = totals(by_type, iteration_s, model.batches)
    batch = mean_batch(speed, rate, model.as_prototype)
    rate = speed / batch
    scale = loss_scale(batch, coefficient, workers, model.loss_constants)
    return ClusterSpeed(*(np.asarray(one, np.float64) for one in (workers, rate, speed, batch, coefficient, scale)))


def loss_after(model: AspModel, counts: ArrayLike, iterations: ArrayLike) -> Floats:
    """Return the loss after j iterations (equation 3).

    Args:
        model: the workload, the platform and the types.
        counts: workers of each type; shape (..., types).
        iterations: j, 0 or more; shape (...), or one that broadcasts with it.

    Raises:
        Misuse: a number of iterations is below 0; as `cluster_speed`.
    """
    done = np.asarray(iterations, np.float64)
    if not bool(np.all(done >= 0.0)):
        raise Misuse("a loss is that after 0 or more iterations")
    scale, constants = cluster_speed(model, counts).loss_scale, model.loss_constants
    found: Floats = scale / (done + head_start(scale, constants)) + constants.gamma5
    return found


def loss_then(model: AspModel, counts: ArrayLike, loss_now: float, time_s: float) -> Floats:
    """Return the loss of clusters that continue from a training loss for a while; shape (...).

    Equation 3 moved to where the cluster itself would have had the loss: j(loss_now) iterations after its start.

    Args:
        model: the workload, the platform and the types.
        counts: workers of each type; shape (..., types).
        loss_now: above the floor gamma5; infinite: they start.
        time_s: how long they train [s], 0 or more.

    Raises:
        Misuse: the loss is at the floor or below it, the time is below 0; as `cluster_speed`.
    """
    if not 0.0 <= time_s < math.inf:
        raise Misuse(f"a cluster trains for 0 s or more, not {time_s}")
    speed = cluster_speed(model, counts)
    done = np.zeros_like(speed.loss_scale)
    if math.isfinite(loss_now):
        check_loss(model.workload, loss_now)
        constants = model.loss_constants
        done = iterations_to(loss_now, speed.loss_scale, head_start(speed.loss_scale, constants), constants.gamma5)
    return loss_after(model, counts, done + speed.iterations_per_s * time_s)


def iterations_for(model: AspModel, counts: ArrayLike, loss: float) -> Floats:
    """Return j, the iterations until a loss; shape (...).

    Args:
        model: the workload, the platform and the types.
        counts: workers of each type; shape (..., types).
        loss: above the floor gamma5.

    Raises:
        Misuse: the loss is at the floor or below it; as `cluster_speed`.
    """
    return iterations_of(model, cluster_speed(model, counts), loss)


def time_for_s(model: AspModel, counts: ArrayLike, loss: float) -> Floats:
    """Return the time until a loss (equation 1) [s]; shape (...).

    Args:
        model: the workload, the platform and the types.
        counts: workers of each type; shape (..., types).
        loss: above the floor gamma5.

    Raises:
        Misuse: the loss is at the floor or below it; as `cluster_speed`.
    """
    speed = cluster_speed(model, counts)
    return iterations_of(model, speed, loss) / speed.iterations_per_s


def iterations_of(model: AspModel, speed: ClusterSpeed, loss: float) -> Floats:
    """Return j, the iterations until a loss, of clusters whose speed is known; as `iterations_for`."""
    check_loss(model.workload, loss)
    constants = model.loss_constants
    found: Floats = iterations_to(loss, speed.loss_scale, head_start(speed.loss_scale, constants), constants.gamma5)
    return np.rint(found) if model.as_prototype else found


def check_loss(workload: AspWorkload, loss: float) -> None:
    """Check that training can reach a loss.

    Raises:
        Misuse: it is at the floor or below it, or not finite.
    """
    if not math.isfinite(loss) or loss <= workload.gamma5:
        raise Misuse(
            f"workload {workload.name!r} cannot reach a loss of {loss:g}, as its loss stays above {workload.gamma5:g} "
            f"however long it trains: write a larger one"
        )


def largest_batch(memory_gb: float, alpha2: float, beta2: float) -> int:
    """Return the batch of a GPU, the largest power of two that its memory allows (equation 10).

    Args:
        memory_gb: of the GPU [GB].
        alpha2: samples per GB, above 0.
        beta2: samples at no memory; below 0 where the parameters take memory of their own.

    Raises:
        Misuse: not even one sample fits.
    """
    samples = alpha2 * memory_gb + beta2
    if not 1.0 <= samples < math.inf:
        raise Misuse(
            f"a GPU with {memory_gb:g} GB has memory for {samples:g} samples of this workload: take a larger one"
        )
    return int(2 ** math.floor(math.log2(samples)))


def worker_of_speed(
    name: str, *, gpus: int, batch: float, samples_per_s: float, workload: AspWorkload, platform: AspPlatform
) -> AspWorker:
    """Return a type of worker from its training speed alone (equations 6 and 7 solved for T_comp).

    Args:
        name: of the type.
        gpus: how many it has.
        batch: samples in an iteration, over all its GPUs.
        samples_per_s: measured with no other worker, so at B_req.
        workload: that it trained.
        platform: that it trained on.

    Raises:
        Misuse: it trains faster than its transfers allow.
    """
    _check_above_0(samples_per_s, "samples_per_s", f"of worker type {name!r}")
    transfers_s = 2.0 * workload.parameters_mb / workload.required_mb_per_s
    transfers_s += 2.0 * gpus * workload.parameters_mb / platform.pcie_mb_per_s
    iteration_s = batch / samples_per_s
    if iteration_s <= transfers_s:
        raise Misuse(
            f"worker type {name!r} takes {iteration_s:.4g} s for an iteration, and its transfers alone {transfers_s:.4g} s: "
            f"check its speed, the size of the parameters and the bandwidths"
        )
    return AspWorker(name, gpus, batch, iteration_s - transfers_s)


def workers_upper(workload: AspWorkload, platform: AspPlatform) -> int:
    """Return n_upper, the most workers before contention is certain (equation 15, with the safety margin); can be 0.

    Args:
        workload: its alpha1 and beta1.
        platform: its margin.
    """
    root = (1.0 / (1.0 + platform.margin) - workload.beta1) / workload.alpha1
    return math.floor(max(root, 0.0) ** 2)


def workers_lower(
    model: AspModel, loss: float, time_s: float, *, types: Sequence[int] | None = None, loss_now: float = math.inf
) -> int:
    """Return n_lower, the fewest workers that could reach a loss in a time (equation 16), at least 1.

    The paper's bound, not a proven one: it counts samples with the smallest batch, and a larger batch can need fewer.

    Args:
        model: the workload, the platform and the types.
        loss: above the floor gamma5.
        time_s: objective time [s].
        types: that can be had, by their place; None: all.
        loss_now: that the training has reached; infinite at its start.

    Raises:
        Misuse: the time is not above 0, no type can be had, or as `iterations_for`.
    """
    _check_above_0(time_s, "time_s", "of the objective")
    check_loss(model.workload, loss)
    places = list(range(len(model.types)) if types is None else types)
    if not places:
        raise Misuse("a plan needs at least one type of worker that can be had")
    smallest = float(model.batches[places].min())
    fastest = float((model.batches / iteration_times_s(model, 1))[places].max())
    scale = loss_scale(smallest, 0.0, 1.0, model.loss_constants)
    start, floor = head_start(scale, model.loss_constants), model.workload.gamma5
    fewest = float(iterations_to(loss, scale, start, floor) - iterations_to(loss_now, scale, start, floor))
    return max(1, math.ceil(smallest * fewest / (fastest * time_s)))


def _check_above_0(value: float, what: str, place: str) -> None:
    if not 0.0 < value < math.inf:
        raise Misuse(f"{what} {place} is {value}: write a number above 0")
