"""Answers about a goal of loss and time: the cheapest workers that meet it, or the nearest goal that can be met; take-over.

Source of the problem: R. Shang et al., "spotDNN", IWQoS 2023, section IV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.policies.planning.exact_provisioning import NODES_MAX, ExactAnswer, cheapest_plan
from windfall.policies.planning.provisioning import HOUR_S, ProvisioningPlan, ProvisioningProblem, plan_of
from windfall.structs import Struct, replace

TAKEOVER_S = 30.0
"""T_ohd: how long new workers take to join after a loss of machines, at most (section V-C: 29.6 s)."""
LOSS_STEPS, LOSS_PART = 40, 1e-6
"""Halvings of the range of losses in the search for the least one, at most; and the part of it that is no more halved."""


class FeasibilityAnswer(Struct, frozen=True):
    """Whether a goal can be met, and with what.

    Attributes:
        cheapest: the cheapest plan that meets it, with its proof.
        fastest: if there is none: the plan of least time at this loss; None if no number of workers is allowed.
        lowest_loss: if there is none: the least loss that can be met in this time; None if there is none.
        lowest_loss_plan: the cheapest plan that meets it.
    """

    cheapest: ExactAnswer
    fastest: ProvisioningPlan | None = None
    lowest_loss: float | None = None
    lowest_loss_plan: ProvisioningPlan | None = None

    @property
    def feasible(self) -> bool:
        """Whether a plan meets the goal."""
        return self.cheapest.plan is not None


def least_time(problem: ProvisioningProblem, *, nodes_max: int = NODES_MAX) -> ProvisioningPlan | None:
    """Return the plan of least time at the problem's loss, whatever it costs; None if no number of workers is allowed.

    The bound n_lower, which follows from the deadline, is left out.

    Args:
        problem: its deadline and prices do not matter.
        nodes_max: of the search; if it is cut off, the plan is the best one found.
    """
    free = (0.0,) * len(problem.prices_usd_per_hour)
    # With no price but one USD per second for the servers, the cost is the time.
    timed = replace(
        problem, prices_usd_per_hour=free, server_usd_per_hour=HOUR_S, time_s=math.inf, takeover_s=0.0, lower=False
    )
    found = cheapest_plan(timed, nodes_max=nodes_max).plan
    return None if found is None else plan_of(problem, found.counts)


def least_loss(problem: ProvisioningProblem, *, nodes_max: int = NODES_MAX) -> float | None:
    """Return the least loss that some plan reaches in the problem's time; None if no number of workers is allowed.

    Found by halving, as the least time falls with the loss; rounded up within a millionth of the range above the floor.

    Args:
        problem: its loss and prices do not matter.
        nodes_max: of each search.
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
        found = least_time(replace(problem, loss=loss), nodes_max=nodes_max)
        # No plan: this loss is above the start of all of them.
        low, high = (low, loss) if found is None or found.time_s <= problem.time_s else (loss, high)
    return high


def feasibility(problem: ProvisioningProblem, *, nodes_max: int = NODES_MAX) -> FeasibilityAnswer:
    """Return the cheapest plan that meets loss and time, or the nearest goals that can be met.

    Args:
        problem: what can be bought and what is to be reached.
        nodes_max: of each search.

    Raises:
        Misuse: as `cheapest_plan`.
    """
    cheapest = cheapest_plan(problem, nodes_max=nodes_max)
    if cheapest.plan is not None:
        return FeasibilityAnswer(cheapest)
    fastest, loss = least_time(problem, nodes_max=nodes_max), least_loss(problem, nodes_max=nodes_max)
    if loss is None:
        return FeasibilityAnswer(cheapest, fastest)
    instead = cheapest_plan(replace(problem, loss=loss, lower=False), nodes_max=nodes_max)
    return FeasibilityAnswer(cheapest, fastest, loss, instead.plan)


def takeover_plan(
    problem: ProvisioningProblem,
    left: Sequence[int],
    *,
    loss_now: float,
    time_left_s: float,
    takeover_s: float = TAKEOVER_S,
) -> FeasibilityAnswer:
    """Return the workers to add after a loss of machines, so that the training still reaches its loss in time.

    The quotas of the problem are those of new workers: what can be had now, the revoked types less or not at all.

    Args:
        problem: the goal, prices and quotas.
        left: workers of each type that remain.
        loss_now: that the training has reached.
        time_left_s: until the deadline [s].
        takeover_s: how long new workers take to join [s].

    Raises:
        Misuse: as `ProvisioningProblem`: the loss is reached already, or no time is left.
    """
    changed = replace(problem, existing=tuple(left), loss_now=loss_now, time_s=time_left_s, takeover_s=takeover_s)
    return feasibility(changed)


def _start_loss(problem: ProvisioningProblem) -> float:
    """Return a loss that every plan has at its start, or passes at once."""
    load = problem.model.workload
    if load.start_loss is not None:
        return load.start_loss
    assert load.gamma1 is not None
    most = (load.gamma3 + load.gamma2 * float(problem.model.batches.min())) * math.sqrt(
        (1.0 if load.gamma4 is None else 1.0 + load.gamma4) * problem.workers_most
    )
    return load.gamma5 + most / load.gamma1
