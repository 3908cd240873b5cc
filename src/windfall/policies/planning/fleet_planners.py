"""Which plan a job gets: that of a bag, of a fleet that trains, of a fleet on markets, or of machines that do one work."""

from __future__ import annotations

from collections.abc import Callable

from windfall.jobs import Job
from windfall.policies import policy_registry
from windfall.policies.layout import runtime_list
from windfall.policies.planning.job_plan import JobPlan
from windfall.policies.policy_registry import BAG, MIX, SPOTDNN, PolicyKind


def planner_of(job: Job) -> Callable[..., JobPlan] | None:
    """Return what plans a job whose machines do not all stand for its whole work; None for one whose machines do.

    Raises:
        Misuse: a package that plans need is missing.
    """
    scaling = runtime_list.scaling_of(job)
    if job.runtime.name != BAG and scaling is None:
        return None
    policy_registry.load(PolicyKind.FLEET, MIX)  # says which package is missing
    from windfall.policies.planning import bag_plan, fleet_plan, training_plan  # noqa: PLC0415 - need numpy

    if bag_plan.suits(job):
        return bag_plan.plan
    if scaling is None:
        return None
    return training_plan.plan if job.fleet == SPOTDNN else fleet_plan.plan
