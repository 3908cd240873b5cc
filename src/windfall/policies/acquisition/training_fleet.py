"""`fleet: spotdnn`: the cheapest workers for a training loss by a deadline; where machines are lost, others take over at once.

The first fleet is the cheapest that `models.asp` predicts to be in time.  It is kept while each worker has a machine, or one
is ordered, and the prediction for them, from the loss that the training has reached, is in time.  Otherwise the workers that
are missing are chosen beside those that are left: what is sold now and how much time and loss remain decide, not what
was lost.  A machine whose end is announced counts as lost.  Nothing is released, as the paper releases nothing.

    takeover_s      T_ohd, until a new worker trains; without it, as long as the slowest offer is expected to take.
                    Those that are ready train meanwhile (the paper counts nothing of it)
    margin          plans are in time by this share of what is left, so that a fleet as planned is not corrected at once
    decide_every_s  the period of the paper's detector; a loss that the driver hears of is answered at once
    bounds          n_lower and n_upper (equations 15 and 16)
    exact           the optimum in place of the sliding window of Algorithm 1; its search is compiled when first used

Where no workers are in time, those of least time are bought; where even they could only join when all is over, none.

Source: R. Shang et al., "spotDNN", IWQoS 2023, section IV and V (revocation detector); overlap, margin and the correction of
fleets that fall behind are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from windfall.errors import Misuse
from windfall.events import ComparedValue, Decision
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.policies.acquisition import fleet_settings, offer_slots
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetPolicyRules,
    FleetTarget,
    FleetView,
    new_slot_ids,
)
from windfall.policies.layout import runtime_list
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import fleet_inputs, offer_notes, provisioning_answers, worker_market
from windfall.policies.planning.estimates import Knowledge
from windfall.policies.planning.fleet_course import Counts, Pools
from windfall.policies.planning.provisioning import ProvisioningPlan, ProvisioningProblem, plan_of
from windfall.policies.planning.worker_market import WorkerMarket
from windfall.policies.policy_registry import SPOTDNN
from windfall.structs import Struct, replace
from windfall.terms import Instant

VERSION: Final = 1
DECIDE_EVERY_S: Final = 15.0
_WHOLE: Final = ("machines_max",)
_NUMBERS: Final = ("takeover_s", "margin", "decide_every_s")
_FLAGS: Final = ("bounds", "exact")


class _Course(Struct, frozen=True):
    """Where the training is.

    Attributes:
        loss_now: that is reached; infinite before it is measured.
        left_s: until the deadline [s]; below 0 after it.
        takeover_s: until a new worker trains [s].
        share: of the time left in which plans are done.
        training: workers of each offer that are ready.
    """

    loss_now: float
    left_s: float
    takeover_s: float
    share: float
    training: tuple[int, ...]


def workers_of(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return the workers that are there, and those that are missing for the loss by the deadline."""
    job, rules = view.job, runtime_list.rules(view.job.runtime.name)
    scaling = runtime_list.scaling_of(job)
    if scaling is None or rules.training is None or job.objective.loss is None or job.objective.deadline_s is None:
        raise ValueError(f"the job {job.name} has no goal of loss and time, or a runtime that predicts none")
    wake_at = Instant(view.now + job.fleet_settings.get("decide_every_s", DECIDE_EVERY_S))
    kept = FleetTarget(view.needs, wake_at=wake_at)
    held = offer_slots.held(view, scaling)
    if _loss_now(view) <= job.objective.loss or offer_slots.is_unlisted(view, scaling, held):
        return kept
    market = _market(view, estimates, scaling, held)
    if market is None or not np.any(market.pools.limit):
        return kept
    course = _course(view, market, held)
    problem = _problem(view, scaling, market, job.objective.loss)
    whole = len(held) == sum(slot.role == scaling.role for slot in view.needs)
    if whole and _in_time(problem, course):
        return kept
    plan = _plan(problem, course, worker_market.search_of(job))
    if plan is None:
        return kept
    workers = (*held, *_added(view, scaling, market.pools, held, np.array(plan.added)))
    needs = offer_slots.joined(view, scaling, workers)
    if needs is view.needs:
        return kept
    return FleetTarget(needs, wake_at=wake_at, decision=_decision(market, problem, course, plan))


# ---------------------------------------------------------------------------------------------------------- what is seen


def _loss_now(view: FleetView) -> float:
    """Return the loss that is reached; infinite before it is measured."""
    return math.inf if view.progress is None or view.progress.loss is None else view.progress.loss


def _course(view: FleetView, market: WorkerMarket, held: tuple[Slot, ...]) -> _Course:
    ready = {machine.slot for machine in view.machines() if machine.ready and machine.ends_at is None}
    training = offer_slots.counts_of(market.pools, [slot for slot in held if slot.id in ready])
    return _Course(
        loss_now=_loss_now(view),
        left_s=view.submitted + worker_market.deadline_s(view.job) - view.now,
        takeover_s=worker_market.takeover_s(view.job, market),
        share=worker_market.time_share(view.job),
        training=tuple(training.tolist()),
    )


def _market(
    view: FleetView, estimates: FleetEstimates, scaling: Scaling, held: tuple[Slot, ...]
) -> WorkerMarket | None:
    """Return the workers that are sold to the job now, beside those that it holds."""
    job, training = view.job, runtime_list.rules(view.job.runtime.name).training
    assert training is not None, "the job was checked"
    keys = {slot.wants[0] for slot in held}
    known = Knowledge(estimates.rates, estimates.measured)
    pools = fleet_inputs.pools_of(job, view.offers, known, view.quotas, keys)
    counts = offer_slots.counts_of(pools, held)
    pools = offer_slots.as_sold(pools, view, counts)
    return worker_market.market_of(training(job), pools, counts, fleet_inputs.machines_most(job, scaling))


def _problem(view: FleetView, scaling: Scaling, market: WorkerMarket, loss: float) -> ProvisioningProblem:
    """Return the goal without any time limit."""
    usd_per_hour = fleet_inputs.reliable_usd_per_hour(view.job, scaling, view.offers)
    return worker_market.problem_of(view.job, market, loss=loss, time_s=math.inf, server_usd_per_hour=usd_per_hour)


# -------------------------------------------------------------------------------------------------------- what is wanted


def _in_time(problem: ProvisioningProblem, course: _Course) -> bool:
    """Whether the workers that there are reach the loss by the deadline."""
    if not any(problem.existing):
        return False
    as_is = replace(problem, loss_now=course.loss_now)
    return plan_of(as_is, problem.held).time_s <= course.left_s


def _plan(
    problem: ProvisioningProblem, course: _Course, search: provisioning_answers.PlanSearch
) -> ProvisioningPlan | None:
    """Return the cheapest workers in time, else those of least time; None: keep what there is."""
    time_left_s = course.left_s * course.share
    if time_left_s > course.takeover_s:
        asked = provisioning_answers.takeover(
            problem,
            problem.held,
            loss_now=course.loss_now,
            time_left_s=time_left_s,
            takeover_s=course.takeover_s,
            meanwhile=course.training,
        )
        if asked is None:
            return plan_of(replace(problem, loss_now=course.loss_now), problem.held)
        return search(asked) or provisioning_answers.least_time(asked, search)
    if any(problem.held):
        return plan_of(replace(problem, loss_now=course.loss_now), problem.held)
    return search(replace(problem, loss_now=course.loss_now, lower=False))


def _added(view: FleetView, scaling: Scaling, pools: Pools, held: tuple[Slot, ...], added: Counts) -> tuple[Slot, ...]:
    """Return slots for the workers that are added: first those that are there and have no machine."""
    empty = [slot for slot in view.needs if slot.role == scaling.role and slot.wants and slot not in held]
    names, found = new_slot_ids(scaling.role, view.now, view.needs), []
    for key in offer_slots.each(pools, added):
        again = next((slot for slot in empty if slot.wants[0] == key), None)
        if again is not None:
            empty.remove(again)
        found.append(again or offer_slots.slot(next(names), scaling, key))
    return tuple(found)


def _decision(market: WorkerMarket, problem: ProvisioningProblem, course: _Course, plan: ProvisioningPlan) -> Decision:
    def text(counts: tuple[int, ...]) -> str:
        return offer_notes.fleet_text(tuple((key, n) for key, n in zip(market.pools.keys, counts, strict=True) if n))

    values = [
        ("loss now", course.loss_now, ""),
        ("loss to reach", problem.loss, ""),
        ("time left", course.left_s, "s"),
        ("predicted time", plan.time_s, "s"),
        ("predicted cost", plan.cost_usd, "USD"),
    ]
    before = (text(problem.held),) if any(problem.held) else ()
    rationale = tuple(ComparedValue(*row) for row in values if math.isfinite(row[1]))
    return Decision(SPOTDNN, VERSION, text(plan.counts), rationale, before)


# ------------------------------------------------------------------------------------------------------------- the policy


def check(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings; None if they are valid."""
    return fleet_settings.problem(settings, whole=_WHOLE, numbers=_NUMBERS, flags=_FLAGS)


def job_check(job: Job) -> str | None:
    """Return why a job cannot have a fleet for a training loss; None if it can."""
    if job.objective.loss is None or job.objective.deadline_s is None:
        return "needs a training loss and a deadline to meet; write `objective: {loss: 0.8, deadline: 12h}`"
    training = runtime_list.rules(job.runtime.name).training
    if training is None:
        return f"needs a runtime that predicts the training on each machine type, and {job.runtime.name} does not"
    try:
        training(job)
    except Misuse as error:
        return f"needs a prediction of the training, and the job {error}"
    return fleet_settings.needs_scaling(job)


RULES = FleetPolicyRules(workers_of, check, job_check)
