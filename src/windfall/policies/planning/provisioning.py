"""Which workers to buy so that asynchronous training reaches a loss in time: the problem, and what a plan is worth.

    minimise C = T (sum n_m p_m + p_server)    (11)
    subject to loss after j iterations = L     (12)
               T + T_ohd <= T_obj              (13; T_ohd: line 12 of Algorithm 1)
               n_m <= Lim_m                    (14)

with T = j / q of `models.asp`.  A plan is a number of workers of each type; those that exist already stay and are part of it.
A training that has reached a loss needs only the iterations from there: j(L) - j(L_now), both on the new cluster.  A plan
whose loss would be at the objective before the first iteration is no plan: the fitted loss does not hold for its batches.

**Bounds** (15, 16), each a switch: n_upper is where contention becomes certain, n_lower is what the paper takes for the fewest
workers that could do it.  Neither is proven: n_lower counts samples with the smallest batch, and more workers than n_upper can
be cheaper where the server is no bottleneck.  They hold for all workers of a plan, bought and existing (Algorithm 1 as printed
adds n machines to those that exist, and would with existing machines exceed the bound that it has just computed).

Source: R. Shang et al., "spotDNN: provisioning spot instances for predictable distributed DNN training in the cloud", IWQoS
2023, section IV; equation numbers are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windfall.errors import Misuse
from windfall.models import asp
from windfall.models.asp import AspModel, Floats
from windfall.structs import Struct

HOUR_S = 3600.0


class ProvisioningProblem(Struct, frozen=True, dict=True):
    """What can be bought, and what is to be reached.

    Attributes:
        model: workload, platform and types of workers.
        quotas: how many more workers of each type can be bought.
        prices_usd_per_hour: of a worker of each type.
        loss: L, that is trained to.
        time_s: T_obj, from now [s]; may be infinite.
        loss_now: that is reached already; infinite: training starts.
        existing: workers of each type that stay; empty: none.
        takeover_s: T_ohd, how long new workers take to join after a loss of machines [s]; part of the time, not of the cost.
        server_usd_per_hour: price of all parameter servers together; 0 leaves it out, as the paper does.
        lower: whether plans have at least n_lower workers (equation 16).
        upper: whether plans have at most n_upper workers (equation 15).
        workers_max: plans have at most this many workers; None: no limit besides the quotas.
    """

    model: AspModel
    quotas: tuple[int, ...]
    prices_usd_per_hour: tuple[float, ...]
    loss: float
    time_s: float
    loss_now: float = math.inf
    existing: tuple[int, ...] = ()
    takeover_s: float = 0.0
    server_usd_per_hour: float = 0.0
    lower: bool = True
    upper: bool = True
    workers_max: int | None = None

    def __post_init__(self) -> None:
        """Check that the values fit the model and one another.

        Raises:
            Misuse: a value is impossible, or no worker can be had.
        """
        _check_each(self.quotas, "quota", len(self.model.types))
        _check_each(self.prices_usd_per_hour, "price", len(self.model.types))
        if self.existing:
            _check_each(self.existing, "number of existing workers", len(self.model.types))
        if self.workers_most < 1:
            raise Misuse("no worker can be bought: every quota is 0; raise one, or name another type")
        asp.check_loss(self.model.workload, self.loss)
        if not self.loss < self.loss_now:
            raise Misuse(
                f"the training is at a loss of {self.loss_now:g} already: write one below it, not {self.loss:g}"
            )
        if not 0.0 <= self.takeover_s < math.inf:
            raise Misuse(f"a take-over takes {self.takeover_s} s: write 0 or more")
        if not 0.0 <= self.server_usd_per_hour < math.inf:
            raise Misuse(f"the parameter servers cost {self.server_usd_per_hour} USD per hour: write 0 or more")
        if not self.training_s > 0.0:
            raise Misuse(
                f"there are {self.time_s:g} s until the deadline, and a take-over alone takes {self.takeover_s:g} s: "
                f"write a later deadline"
            )

    @cached_property
    def held(self) -> tuple[int, ...]:
        """Existing workers of each type."""
        return self.existing or (0,) * len(self.quotas)

    @cached_property
    def training_s(self) -> float:
        """The time in which the training must reach its loss [s]."""
        return self.time_s - self.takeover_s

    @cached_property
    def workers_most(self) -> int:
        """How many workers a plan could have without bounds."""
        return sum(self.quotas) + sum(self.existing)

    @cached_property
    def workers_range(self) -> tuple[int, int]:
        """The fewest and the most workers of a plan, by the quotas, the existing ones, the limit, and the bounds asked for.

        The first is above the second where no number is allowed.
        """
        fewest, most = max(1, sum(self.held)), self.workers_most
        if self.workers_max is not None:
            most = min(most, self.workers_max)
        if self.upper:
            most = min(most, asp.workers_upper(self.model.workload, self.model.platform))
        if self.lower and math.isfinite(self.training_s):
            found = [
                place for place, (quota, held) in enumerate(zip(self.quotas, self.held, strict=True)) if quota + held
            ]
            least = asp.workers_lower(self.model, self.loss, self.training_s, types=found, loss_now=self.loss_now)
            fewest = max(fewest, least)
        return fewest, most


class ProvisioningPlan(Struct, frozen=True):
    """A set of workers and what it comes to.

    Attributes:
        counts: workers of each type, existing ones included.
        added: those of them that are to be bought.
        time_s: until the loss, with the take-over [s].
        cost_usd: of the training, by equation 11.
    """

    counts: tuple[int, ...]
    added: tuple[int, ...]
    time_s: float
    cost_usd: float


def training_time_s(problem: ProvisioningProblem, counts: ArrayLike) -> Floats:
    """Return T, the time from `loss_now` to `loss` without any take-over [s]; shape (...).

    Args:
        problem: what is to be reached.
        counts: workers of each type; shape (..., types).
    """
    speed = asp.cluster_speed(problem.model, counts)
    iterations = asp.iterations_of(problem.model, speed, problem.loss)
    if math.isfinite(problem.loss_now):
        iterations = iterations - asp.iterations_of(problem.model, speed, problem.loss_now)
    return iterations / speed.iterations_per_s


def usd_per_hour(problem: ProvisioningProblem, counts: NDArray[np.int64]) -> Floats:
    """Return what plans cost in an hour, with the servers; shape (...)."""
    found: Floats = counts @ np.array(problem.prices_usd_per_hour) + problem.server_usd_per_hour
    return found


def plan_of(problem: ProvisioningProblem, counts: Sequence[int]) -> ProvisioningPlan:
    """Return a plan with its time and cost, whether or not it meets the objective.

    Args:
        problem: what is to be reached.
        counts: workers of each type, at least the existing ones.

    Raises:
        Misuse: as `asp.cluster_speed`.
    """
    whole = tuple(int(count) for count in counts)
    time_s = float(training_time_s(problem, whole))
    cost_usd = time_s * float(usd_per_hour(problem, np.array(whole))) / HOUR_S
    added = tuple(count - held for count, held in zip(whole, problem.held, strict=True))
    return ProvisioningPlan(whole, added, time_s + problem.takeover_s, cost_usd)


def _check_each(values: Sequence[float], what: str, types: int) -> None:
    if len(values) != types:
        raise Misuse(
            f"there are {types} types of workers and {len(values)} values for the {what}: write one for each type"
        )
    wrong = [value for value in values if not 0.0 <= value < math.inf]
    if wrong:
        raise Misuse(f"the {what} of a type of worker is {wrong[0]}: write 0 or more")
