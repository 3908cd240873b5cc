"""The cheapest workers that reach a loss in time, exactly: branch and bound over the provisioning problem, and its proof.

The search is `exact_kernel`.  It needs numba, is compiled at the first call (some 15 s), and is cached on disk.  The sliding
window of Algorithm 1 gives it a first plan.

Source of the problem: R. Shang et al., "spotDNN", IWQoS 2023, equations 1 to 16.  The paper calls it NP-hard and searches by
heuristic; for a fixed number of workers it has bounds that make it easy at the sizes of a user's quotas.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.models import asp
from windfall.policies.planning.provisioning import HOUR_S, ProvisioningPlan, ProvisioningProblem, plan_of
from windfall.policies.planning.sliding_window import sliding_window
from windfall.structs import Struct

if TYPE_CHECKING:
    from windfall.policies.planning.exact_bounds import SearchCase

Places = NDArray[np.int64]
NODES_MAX = 100_000_000
OPEN_NODES = 1 << 16
"""How many nodes are kept open; beyond them the search is depth first.  Twelve types need some 7 MB."""


class ExactAnswer(Struct, frozen=True):
    """The best plan found, and what is proven of it.

    Attributes:
        plan: the best plan; None: none was found.
        bound_usd: no plan in time costs less [USD]; infinite: it is proven that there is none.
        gap: how much cheaper an optimum could still be, as a share of the plan's cost; 0: the plan is optimal.
        nodes: how many nodes were searched.
        proven: whether the search was completed.
    """

    plan: ProvisioningPlan | None
    bound_usd: float
    gap: float
    nodes: int
    proven: bool


def cheapest_plan(
    problem: ProvisioningProblem, *, nodes_max: int = NODES_MAX, open_nodes: int = OPEN_NODES
) -> ExactAnswer:
    """Return the cheapest plan in time.

    Args:
        problem: what can be bought and what is to be reached.
        nodes_max: after this many nodes, at least 1, the search ends with what is proven by then.
        open_nodes: kept at most, or as many as there are numbers of workers.

    Raises:
        Misuse: a limit is too small.
    """
    if nodes_max < 1:
        raise Misuse(f"a search of {nodes_max} nodes finds nothing: write at least 1")
    first = sliding_window(problem)
    return search(problem, first, nodes_max=nodes_max, open_nodes=open_nodes)


def search(
    problem: ProvisioningProblem, first: ProvisioningPlan | None, *, nodes_max: int, open_nodes: int = OPEN_NODES
) -> ExactAnswer:
    """Return the cheapest plan in time, starting from a plan that is known to be in time; as `cheapest_plan`."""
    from windfall.policies.planning.exact_kernel import compiled_search  # noqa: PLC0415 - needs numba, and compiles

    fewest, most = problem.workers_range
    if fewest > most:
        return ExactAnswer(None, math.inf, 0.0, 0, True)
    order = _branching(problem)
    case = _case(problem, order, fewest, most)
    best, best_usd = np.zeros(len(order), np.int64), np.array([math.inf])
    if first is not None:
        best[:] = np.array(first.added)[order]
        best_usd[0] = first.cost_usd
    room = max(open_nodes, most - fewest + 3)
    bound_usd, nodes = compiled_search()(case, best, best_usd, nodes_max, room)
    plan = None
    if math.isfinite(best_usd[0]):
        counts = np.array(problem.held)
        counts[order] += best
        plan = plan_of(problem, [int(count) for count in counts])
    proven = bound_usd >= best_usd[0]
    bound_usd = min(bound_usd, best_usd[0])
    gap = 0.0 if proven else 1.0 if plan is None else 1.0 - bound_usd / plan.cost_usd
    return ExactAnswer(plan, float(bound_usd), float(gap), int(nodes), proven)


def _branching(problem: ProvisioningProblem) -> Places:
    """Return the types in the order in which they are decided: the fastest first, as R depends on the fastest in use."""
    return np.argsort(asp.iteration_times_s(problem.model, 1) / problem.model.batches, kind="stable")


def _case(problem: ProvisioningProblem, order: Places, fewest: int, most: int) -> SearchCase:
    from windfall.policies.planning.exact_bounds import SearchCase  # noqa: PLC0415 - needs numba

    arrays = problem.model.arrays(most)
    arrays = arrays._replace(fixed_s=arrays.fixed_s[order], batches=arrays.batches[order])
    return SearchCase(
        arrays,
        np.array(problem.quotas, np.int64)[order],
        np.array(problem.held, np.int64)[order],
        np.array(problem.prices_usd_per_hour)[order] / HOUR_S,
        problem.server_usd_per_hour / HOUR_S,
        problem.loss,
        problem.loss_now,
        problem.training_s,
        fewest,
        most,
    )
