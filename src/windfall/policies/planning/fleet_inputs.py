"""What the search for a fleet is given: offers as pools, a job and its runtime as a goal.

The plan and the fleet policy `mix` both come here, so that what is planned is what is bought.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from windfall.errors import Infeasible
from windfall.jobs import Job, Minimize, Use
from windfall.market import Offer, OfferKey, Quota
from windfall.policies.acquisition import fleet_settings, ranking
from windfall.policies.deadlines import limits
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import nearest_limits
from windfall.policies.planning.estimates import Knowledge
from windfall.policies.planning.fleet_course import FleetGoal, Pools
from windfall.terms import Reliability

MACHINES_MOST = 256
"""More machines than this are not searched, whatever the job could use."""


def pools_of(
    job: Job,
    offers: Iterable[Offer],
    knowledge: Knowledge,
    quotas: tuple[Quota, ...],
    held: Collection[OfferKey] = (),
) -> Pools:
    """Return the offers that the job can use, as columns.

    Args:
        job: as submitted.
        offers: of all providers.
        knowledge: what earlier runs showed.
        quotas: the account's limits.
        held: offers of which the job has machines: these are columns whatever they cost now.
    """
    fitting = [
        offer
        for offer in sorted(offers, key=lambda one: one.key)
        if offer.key in held or ranking.refusal(job, offer) is None
    ]
    estimated = ranking.estimator(job, knowledge)
    found = [estimated(offer)[0] for offer in fitting]
    limits = [_most(job, quotas, offer) for offer in fitting]

    def column(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(values, dtype=np.float64)

    return Pools(
        tuple(offer.key for offer in fitting),
        column([offer.cpus for offer in fitting]),
        column([offer.price_usd_per_hour for offer in fitting]),
        column([one.hazard.mttp_s for one in found]),
        column([one.restart.allocate_s for one in found]),
        column([one.restart.prepare_s for one in found]),
        np.array(limits, dtype=np.int64),
    )


def _most(job: Job, quotas: tuple[Quota, ...], offer: Offer) -> int:
    """Return the most machines of an offer; a quota that several zones share counts in full in each."""
    limits = (ranking.quota_limit(quotas, offer), job.limits.pool_machines_max, MACHINES_MOST)
    return min(limit for limit in limits if limit is not None)


def goal_of(
    job: Job,
    scaling: Scaling,
    offers: Iterable[Offer],
    *,
    done: float = 0.0,
    elapsed_s: float = 0.0,
    spent_usd: float = 0.0,
) -> FleetGoal:
    """Return what a job's fleet is for.

    Args:
        job: with its limits.
        scaling: of its runtime.
        offers: of all providers; the cheapest ones that cannot be preempted keep the state safe.
        done: of the work, in its unit.
        elapsed_s: since the submission [s].
        spent_usd: so far.

    Raises:
        Infeasible: the runtime needs machines that cannot be preempted, and none is offered.
    """
    work_core_s = None
    if job.work is not None and scaling.work_per_core_s is not None:
        work_core_s = max(job.work.amount - done, 0.0) / scaling.work_per_core_s
    aim = job.objective
    # What max_duration stops before it is done meets no deadline.
    by_s = None if aim.deadline_s is None else min(aim.deadline_s, nearest_limits.training_s(job))
    return FleetGoal(
        app=fleet_settings.application(scaling),
        machines_min=scaling.machines_min,
        machines_max=machines_most(job, scaling),
        reliable_usd_per_hour=reliable_usd_per_hour(job, scaling, offers),
        work_core_s=work_core_s,
        deadline_s=None if by_s is None else max(by_s - elapsed_s, 0.0),
        budget_usd=None if aim.budget_usd is None else max(aim.budget_usd - spent_usd, 0.0),
        reserve_s=limits.reserve_s(job.checkpointing.save_timeout_s),
        fastest=aim.minimize is Minimize.TIME,
    )


def machines_most(job: Job, scaling: Scaling) -> int:
    """Return the most machines that work on a job and are searched."""
    return int(min(fleet_settings.machines_max(job, scaling), MACHINES_MOST))


def reliable_offer(job: Job, scaling: Scaling, offers: Iterable[Offer]) -> Offer | None:
    """Return the cheapest offer for the machines that keep the state safe; None if none is needed or offered."""
    if not scaling.reliable:
        return None
    on_demand = ranking.with_use(job, Use.ON_DEMAND)
    fitting = [
        offer
        for offer in offers
        if offer.reliability is Reliability.RELIABLE and ranking.refusal(on_demand, offer) is None
    ]
    return min(fitting, key=lambda offer: (offer.price_usd_per_hour, offer.key), default=None)


def reliable_usd_per_hour(job: Job, scaling: Scaling, offers: Iterable[Offer]) -> float:
    """Return what the machines that keep the state safe cost together; 0 if the runtime needs none [USD/h].

    Raises:
        Infeasible: none that fits the job is offered.
    """
    if not scaling.reliable:
        return 0.0
    found = reliable_offer(job, scaling, offers)
    if found is None:
        raise Infeasible(
            f"the runtime {job.runtime.name} needs {scaling.reliable} machine{'s' * (scaling.reliable != 1)} that cannot be "
            "preempted, and no provider offers one that fits the job's resources"
        )
    return scaling.reliable * found.price_usd_per_hour
