"""`fleet: bidbrain` of a job: the settings of its job file and the scaling of its runtime, as settings of the policy.

Live, a price history of each offer is not known, so the odds of a loss come from the lifetimes of its machines; an order
without a bid of its own has the job's `max_price`, or the on-demand price.  What the rest of a paid hour is good for is
decided inside the job: there is no next one in a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from windfall.jobs import Job, Use
from windfall.market import Offer
from windfall.policies.acquisition import bidbrain_policy, fleet_settings, ranking
from windfall.policies.acquisition.bidbrain_policy import BidBrain
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetPolicyRules, FleetTarget, FleetView
from windfall.policies.layout import runtime_list
from windfall.structs import replace

_WHOLE: Final = ("machines_max", "purchases_max")
_NUMBERS: Final = ("allocation_cores", "decide_every_s", "margin", "price_max")
_FLAGS: Final = ("whole_hour",)


def check(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings; None if they are valid."""
    return fleet_settings.problem(settings, whole=_WHOLE, numbers=_NUMBERS, flags=_FLAGS)


def job_check(job: Job) -> str | None:
    """Return why a job cannot have this policy; None if it can."""
    if job.use is Use.ON_DEMAND and runtime_list.scaling_of(job) is not None:
        return "buys machines that can be preempted, but the job takes none: set spot_policy to spot or auto"
    return fleet_settings.needs_scaling(job)


def bidbrain_of(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return BidBrain's answer for a job whose runtime says how it scales."""
    return bidbrain_policy.policy(settings_of(view.job), _usable)(view, estimates)


def settings_of(job: Job) -> BidBrain:
    """Return the policy's settings for a job that passed `job_check`; without others, it buys machines one by one."""
    scaling, given = runtime_list.scaling_of(job), dict(job.fleet_settings)
    if scaling is None:
        raise ValueError(f"the runtime {job.runtime.name} needs a fixed number of machines")
    given.pop("machines_max", None)
    chosen = BidBrain(
        fleet_settings.application(scaling), scaling.role, given.pop("allocation_cores", 1.0), math.inf,
        usd_per_hour_max=math.inf if job.max_price_usd_per_hour is None else job.max_price_usd_per_hour,
        machines_min=scaling.machines_min, machines_max=fleet_settings.machines_max(job, scaling),
    )  # fmt: skip
    return replace(chosen, **given)


def _usable(view: FleetView) -> tuple[Offer, ...]:
    """Return the offers whose machines the job can use, whatever they cost now: a machine held may be dear for a while."""
    any_price = replace(view.job, max_price_usd_per_hour=None, use=Use.AUTO)
    return tuple(offer for offer in view.offers if ranking.refusal(any_price, offer) is None)


RULES = FleetPolicyRules(bidbrain_of, check, job_check)
