"""Answers about a goal of loss and time: the cheapest workers that meet it, or the nearest goal that can be met; take-over.

Source of the problem: R. Shang et al., "spotDNN", IWQoS 2023, section IV.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from windfall.models import asp
from windfall.policies.planning.exact_provisioning import cheapest_plan
from windfall.policies.planning.provisioning import HOUR_S, ProvisioningPlan, ProvisioningProblem, plan_of
from windfall.structs import Struct, replace

TAKEOVER_S = 30.0
"""T_ohd: how long new workers take to join after a loss of machines, at most (section V-C: 29.6 s)."""
LOSS_STEPS, LOSS_PART = 40, 1e-6
"""Halvings of the range of losses in the search for the least one, at most; and the part of it that is no more halved."""

PlanSearch = Callable[[ProvisioningProblem], ProvisioningPlan | None]
"""Finds the cheapest plan in time; None: it found none.  `exact` proves it; `sliding_window` sees runs of neighbours only."""


class FeasibilityAnswer(Struct, frozen=True):
    """Whether a goal can be met, and with what.

    Attributes:
        plan: the cheapest plan that meets it; None if there is none.
        fastest: if there is none: the plan of least time at this loss; None if no number of workers is allowed.
        lowest_loss: if there is none: the least loss that can be met in this time; None if there is none.
        lowest_loss_plan: the cheapest plan that meets it.
    """

    plan: ProvisioningPlan | None
    fastest: ProvisioningPlan | None = None
    lowest_loss: float | None = None
    lowest_loss_plan: ProvisioningPlan | None = None


def exact(problem: ProvisioningProblem) -> ProvisioningPlan | None:
    """Return the cheapest plan in time, by branch and bound; None if there is none."""
    return cheapest_plan(problem).plan


def least_time(problem: ProvisioningProblem, search: PlanSearch = exact) -> ProvisioningPlan | None:
    """Return the plan of least time at the problem's loss, whatever it costs; None if no number of workers is allowed.

    The bound n_lower, which follows from the deadline, is left out.

    Args:
        problem: its deadline and prices do not matter.
        search: that finds it.
    """
    free = (0.0,) * len(problem.prices_usd_per_hour)
    # With no price but one USD per second for the servers, the cost is the time.
    timed = replace(
        problem, prices_usd_per_hour=free, server_usd_per_hour=HOUR_S, time_s=math.inf, takeover_s=0.0, lower=False
    )
    found = search(timed)
    return None if found is None else plan_of(problem, found.counts)


def least_loss(problem: ProvisioningProblem, search: PlanSearch = exact) -> float | None:
    """Return the least loss that some plan reaches in the problem's time; None if no number of workers is allowed.

    Found by halving, as the least time falls with the loss; rounded up within a millionth of the range above the floor.

    Args:
        problem: its loss and prices do not matter.
        search: that is made for each loss.
    """
    floor = problem.model.workload.gamma5
    fewest, most = replace(problem, lower=False).workers_range
    if fewest > most:
        return None
    low, high = floor, min(problem.loss_now, _start_loss(problem))
    part = LOSS_PART * (high - low)
    for _ in range(LOSS_STEPS):
        if high - low <= part:
            break
        loss = (low + high) / 2.0
        found = least_time(replace(problem, loss=loss), search)
        # No plan: this loss is above the start of all of them.
        low, high = (low, loss) if found is None or found.time_s <= problem.time_s else (loss, high)
    return high


def feasibility(problem: ProvisioningProblem, search: PlanSearch = exact) -> FeasibilityAnswer:
    """Return the cheapest plan that meets loss and time, or the nearest goals that can be met.

    Args:
        problem: what can be bought and what is to be reached.
        search: that finds the plans.

    Raises:
        Misuse: as the search.
    """
    plan = search(problem)
    if plan is not None:
        return FeasibilityAnswer(plan)
    fastest, loss = least_time(problem, search), least_loss(problem, search)
    if loss is None:
        return FeasibilityAnswer(None, fastest)
    instead = search(replace(problem, loss=loss, lower=False))
    return FeasibilityAnswer(None, fastest, loss, instead)


def takeover(
    problem: ProvisioningProblem,
    left: Sequence[int],
    *,
    loss_now: float,
    time_left_s: float,
    takeover_s: float = TAKEOVER_S,
    meanwhile: Sequence[int] = (),
) -> ProvisioningProblem | None:
    """Return which workers to add after a loss of machines, as a problem: the training still reaches its loss in time.

    The quotas of the problem are those of new workers: what can be had now, the revoked types less or not at all.

    Args:
        problem: the goal, prices and quotas.
        left: workers of each type that remain.
        loss_now: that the training has reached; infinite: it has not begun.
        time_left_s: until the deadline [s].
        takeover_s: how long new workers take to join [s].
        meanwhile: those of the workers that are left which train until the new ones have joined; empty: none, as the paper
            counts nothing of it.

    Returns:
        None: the loss is reached before others could join.

    Raises:
        Misuse: as `ProvisioningProblem`: the loss is reached already, or no time is left.
    """
    changed = replace(problem, existing=tuple(left), loss_now=loss_now, time_s=time_left_s, takeover_s=takeover_s)
    if not any(meanwhile):
        return changed
    loss_then = float(asp.loss_then(problem.model, meanwhile, loss_now, takeover_s))
    return replace(changed, loss_now=loss_then) if loss_then > problem.loss else None


def _start_loss(problem: ProvisioningProblem) -> float:
    """Return a loss that every plan has at its start, or passes at once."""
    load = problem.model.workload
    if load.start_loss is not None:
        return load.start_loss
    assert load.gamma1 is not None
    most: float = (load.gamma3 + load.gamma2 * float(problem.model.batches.min())) * (
        math.sqrt(1.0 if load.gamma4 is None else 1.0 + load.gamma4) * problem.workers_most**load.workers_power
    )
    return load.gamma5 + most / load.gamma1
