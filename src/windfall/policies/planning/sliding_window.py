"""Algorithm 1: buy neighbours in a list of all workers sorted by iteration time, and keep the cheapest that are in time.

**As published**: the list is in descending order of the iteration time at B_req, and a window of n workers moves along it, for
each n within the bounds of the `ProvisioningProblem`.

**The authors' prototype** (`circular`): the list is in ascending order, the window wraps around its end, and n is 1 to one less
than all workers; there are no bounds, and it knows neither existing workers nor a take-over.

Neither is exact: a plan that is no run of neighbours is never seen.  `exact_provisioning` sees all.

Source: R. Shang et al., "spotDNN: provisioning spot instances for predictable distributed DNN training in the cloud", IWQoS
2023, Algorithm 1; the prototype's `provisioner.py` (repository `icloud-ecnu/spotDNN`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.models import asp
from windfall.policies.planning.provisioning import (
    HOUR_S,
    ProvisioningPlan,
    ProvisioningProblem,
    plan_of,
    training_time_s,
    usd_per_hour,
)

PLANS_AT_ONCE = 200_000
"""Windows are priced in pieces of about this many, which bounds the memory."""


def sliding_window(problem: ProvisioningProblem) -> ProvisioningPlan | None:
    """Return the cheapest window that is in time; None if none is.

    Args:
        problem: what can be bought and what is to be reached.
    """
    fewest, most = problem.workers_range
    held, available = np.array(problem.held), sum(problem.quotas)
    before = _counts_before(problem, descending=True)
    best: tuple[float, tuple[int, ...]] | None = None
    for sizes in _pieces(max(fewest - int(held.sum()), 0), min(most - int(held.sum()), available), available):
        windows = [before[size:] - before[: available + 1 - size] for size in sizes]
        best = _cheaper(problem, np.concatenate(windows) + held, best)
    return None if best is None else plan_of(problem, best[1])


def circular_window(problem: ProvisioningProblem) -> ProvisioningPlan | None:
    """Return the cheapest window of the authors' prototype; None if none is in time.

    Args:
        problem: what can be bought and what is to be reached, without existing workers, take-over and bounds.

    Raises:
        Misuse: it has some of these.
    """
    if sum(problem.held) or problem.takeover_s or problem.lower or problem.upper:
        raise Misuse(
            "the prototype's circular window knows no existing workers, no take-over and no bounds: leave them out"
        )
    available = sum(problem.quotas)
    before = _counts_before(problem, descending=False)
    whole = before[-1]
    best: tuple[float, tuple[int, ...]] | None = None
    for sizes in _pieces(1, available - 1, available):
        windows = []
        for size in sizes:
            ends = np.arange(available) + size
            windows.append(before[ends % available] + whole * (ends // available)[:, None] - before[:-1])
        best = _cheaper(problem, np.concatenate(windows), best)
    return None if best is None else plan_of(problem, best[1])


def _counts_before(problem: ProvisioningProblem, *, descending: bool) -> NDArray[np.int64]:
    """Return for each place in the sorted list how many workers of each type come before it; shape (workers + 1, types)."""
    order = np.argsort(asp.iteration_times_s(problem.model, 1), kind="stable")
    order = (
        order[::-1] if descending else order
    )  # types that take equally long are neighbours of the same types either way
    listed = np.repeat(order, np.array(problem.quotas)[order])
    before = np.zeros((len(listed) + 1, len(problem.quotas)), np.int64)
    before[np.arange(1, len(listed) + 1), listed] = 1
    return before.cumsum(0)


def _pieces(fewest: int, most: int, available: int) -> list[range]:
    """Return the sizes of windows in ascending pieces."""
    step = max(1, PLANS_AT_ONCE // (available + 1))
    return [range(first, min(first + step, most + 1)) for first in range(fewest, most + 1, step)]


def _cheaper(
    problem: ProvisioningProblem, counts: NDArray[np.int64], best: tuple[float, tuple[int, ...]] | None
) -> tuple[float, tuple[int, ...]] | None:
    """Return the cheapest plan in time: the best so far, or the first of the least cost among others."""
    time_s = training_time_s(problem, counts)
    in_time = (time_s > 0.0) & (time_s <= problem.training_s)
    cost_usd = np.where(in_time, time_s * usd_per_hour(problem, counts) / HOUR_S, np.inf)
    place = int(np.argmin(cost_usd))
    if not cost_usd[place] < (np.inf if best is None else best[0]):
        return best
    return float(cost_usd[place]), tuple(map(int, counts[place]))
