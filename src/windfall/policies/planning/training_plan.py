"""The plan of a job that trains to a loss by a deadline on the workers that `fleet: spotdnn` buys for it.

The workers are those of the policy's first look; the cost and the finish are the model's (`models.asp`), and take-overs after
losses come on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from windfall.errors import Infeasible
from windfall.jobs import Job, Measurement, Use
from windfall.market import Offer, Quota
from windfall.models import asp, lifetime_pool
from windfall.policies.acquisition import ranking
from windfall.policies.layout import runtime_list
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import (
    fleet_course,
    fleet_inputs,
    job_plan,
    nearest_limits,
    offer_notes,
    provisioning_answers,
    worker_market,
)
from windfall.policies.planning.estimates import Knowledge, NumberBasis, PlanNumber, PlanNumberKey
from windfall.policies.planning.fleet_course import FleetCourse, FleetGoal
from windfall.policies.planning.fleet_plan import FleetCase, FleetPlan
from windfall.policies.planning.job_plan import ExpectedOutcome, JobPlan, PlanCandidate, PlanItem, RefusedOffer
from windfall.policies.planning.nearest_limits import LimitOption
from windfall.policies.planning.provisioning import HOUR_S, ProvisioningPlan, ProvisioningProblem
from windfall.policies.planning.provisioning_answers import FeasibilityAnswer
from windfall.policies.planning.worker_market import WorkerMarket
from windfall.structs import Struct, replace
from windfall.terms import Seconds, Usd, WallTime
from windfall.units import time_text, usd_text

FRONT_DEADLINES: Final = 10


class _TrainingCase(Struct, frozen=True):
    """A job, and what its workers are chosen from.

    Attributes:
        given: what was asked.
        market: the workers that can be bought.
        goal: of the fleet; without work, which follows from the loss.
        problem: loss and deadline as the search wants them.
    """

    given: FleetCase
    market: WorkerMarket
    goal: FleetGoal
    problem: ProvisioningProblem


def plan(
    job: Job,
    scaling: Scaling,
    offers: Iterable[Offer],
    measured: tuple[Measurement, ...],
    now: WallTime,
    *,
    quotas: tuple[Quota, ...] = (),
    pooled: tuple[lifetime_pool.PooledEstimate, ...] = (),
) -> JobPlan:
    """Return the cheapest workers that reach the job's loss by its deadline, without spending.

    Args:
        job: with `fleet: spotdnn`, checked.
        scaling: of its runtime.
        offers: the providers' current offers.
        measured: measurements from earlier runs of this job.
        now: the current time, from which finish and deadline count.
        quotas: the account's limits.
        pooled: estimates of losses with their evidence.

    Raises:
        Infeasible: no workers do it within the job's limits; the message says what is possible.
    """
    offers = tuple(offers)
    knowledge = Knowledge(tuple(row.rate for row in pooled), measured, pooled)
    refused = tuple((offer, reason) for offer in offers if (reason := ranking.refusal(job, offer)) is not None)
    given = FleetCase(job, scaling, offers, quotas, knowledge)
    case = _case(given, refused)
    search = worker_market.search_of(job)
    found = provisioning_answers.feasibility(case.problem, search)
    if found.plan is None:
        raise Infeasible(_nearest(case, found))
    chosen = _course(case, found.plan)
    if fleet_course.misses(chosen, replace(case.goal, deadline_s=None)):
        raise Infeasible(_over_budget(case, chosen))
    on_demand = _on_demand(given)
    reliable = fleet_inputs.reliable_offer(job, scaling, offers)
    runner_up, front = _without(given, chosen), _front(case, found.plan)
    courses = [one for one in (chosen, runner_up, on_demand, *front) if one is not None]
    used = {key for one in courses for key, _ in one.counts} | ({reliable.key} if reliable else set())
    fleets = FleetPlan(
        chosen=chosen,
        runner_up=runner_up,
        on_demand=on_demand,
        front=front,
        reliable=None if reliable is None else reliable.key,
        reliable_machines=scaling.reliable,
        offers=tuple(offer for offer in offers if offer.key in used),
        searched=case.market.searched,
        risk=_risk(chosen),
    )
    return _job_plan(case, found.plan, fleets, refused, now)


def _case(given: FleetCase, refused: tuple[tuple[Offer, str], ...]) -> _TrainingCase:
    job = given.job
    training, aim = runtime_list.rules(job.runtime.name).training, job.objective
    assert training is not None, "the job was checked"
    assert aim.loss is not None, "the job was checked"
    assert aim.deadline_s is not None, "the job was checked"
    pools, model = fleet_inputs.pools_of(job, given.offers, given.knowledge, given.quotas), training(job)
    most = fleet_inputs.machines_most(job, given.scaling)
    market = worker_market.market_of(model, pools, np.zeros(len(pools.keys), np.int64), most)
    if market is None:
        known = ", ".join(one.name for one in model.types)
        if not pools.keys:
            raise Infeasible(job_plan.no_matching_offer(job, refused))
        raise Infeasible(
            f"the runtime predicts the training on {known}, and none of these is sold to the job, or its quota is 0"
        )
    goal = replace(fleet_inputs.goal_of(job, given.scaling, given.offers), work_core_s=None)
    return _TrainingCase(given, market, goal, _problem(job, market, goal, aim.loss, aim.deadline_s))


def _problem(job: Job, market: WorkerMarket, goal: FleetGoal, loss: float, deadline_s: float) -> ProvisioningProblem:
    """Return the problem that the policy has at its first look.

    Raises:
        Infeasible: no machine trains before the deadline.
    """
    starts_s, left_s = worker_market.takeover_s(job, market), worker_market.deadline_s(job)
    time_s = left_s * worker_market.time_share(job)
    if time_s <= starts_s:
        raise Infeasible(
            f"the deadline of {time_text(deadline_s)} is over before a machine trains, {time_text(starts_s)} after its order: "
            "write a later one"
        )
    free = worker_market.problem_of(
        job, market, loss=loss, time_s=math.inf, server_usd_per_hour=goal.reliable_usd_per_hour
    )
    asked = provisioning_answers.takeover(free, free.held, loss_now=math.inf, time_left_s=time_s, takeover_s=starts_s)
    assert asked is not None, "no worker trains yet"
    return asked


# -------------------------------------------------------------------------------------------------------- what it comes to


def _course(case: _TrainingCase, plan: ProvisioningPlan) -> FleetCourse:
    """Return a plan of the model as a fleet: all machines are billed from their start, the workers then prepare."""
    pools, counts = case.market.pools, np.array(plan.counts)
    course = fleet_course.course(pools, counts, case.goal)
    prepare_s = min(course.prepare_s, case.problem.takeover_s)
    cost_usd = course.usd_per_hour * (plan.time_s - case.problem.takeover_s + prepare_s) / HOUR_S
    reserve_usd = course.usd_per_hour * case.goal.reserve_s / HOUR_S
    return replace(
        course, prepare_s=prepare_s, cost_usd=cost_usd, finish_s=plan.time_s, budget_usd=cost_usd + reserve_usd
    )


def _without(given: FleetCase, plan: FleetCourse) -> FleetCourse | None:
    """Return the cheapest workers in time without the offer of which a plan costs most; None if none are in time."""
    main = plan.counts[0][0]
    return _planned(replace(given, offers=tuple(one for one in given.offers if one.key != main)))


def _front(case: _TrainingCase, chosen: ProvisioningPlan) -> tuple[FleetCourse, ...]:
    """Return the cheapest workers for some deadlines, from that of the fastest to none, the cheapest first."""
    search, free = worker_market.search_of(case.given.job), replace(case.problem, lower=False)
    fastest, cheapest = provisioning_answers.least_time(free, search), search(replace(free, time_s=math.inf))
    plans = [one for one in (chosen, fastest, cheapest) if one is not None]
    if fastest is not None and cheapest is not None:
        times_s = np.geomspace(fastest.time_s, max(cheapest.time_s, fastest.time_s), FRONT_DEADLINES)[1:-1]
        plans += [one for time_s in times_s if (one := search(replace(free, time_s=float(time_s)))) is not None]
    courses = [_course(case, one) for one in {one.counts: one for one in plans}.values()]
    courses.sort(key=lambda course: (course.cost_usd or 0.0, course.finish_s or 0.0))
    front: list[FleetCourse] = []
    for course in courses:
        if not front or (course.finish_s or 0.0) < (front[-1].finish_s or 0.0):
            front.append(course)
    return tuple(front)


def _on_demand(given: FleetCase) -> FleetCourse | None:
    """Return the cheapest workers that cannot be preempted, whatever the job may use; None if none are in time."""
    return _planned(replace(given, job=ranking.with_use(given.job, Use.ON_DEMAND)))


def _planned(given: FleetCase) -> FleetCourse | None:
    try:
        case = _case(given, ())
    except Infeasible:
        return None
    found = worker_market.search_of(given.job)(case.problem)
    return None if found is None else _course(case, found)


def _risk(fleet: FleetCourse) -> str:
    if not fleet.losses_per_hour:
        return "no machine of it can be preempted"
    every = time_text(HOUR_S / fleet.losses_per_hour)
    return f"one machine is lost every {every} on average; others take over at once, which costs more than this plan"


# ------------------------------------------------------------------------------------------------------- what is possible


def _nearest(case: _TrainingCase, found: FeasibilityAnswer) -> str:
    """Return the message for a goal that no workers meet: the fastest ones, and the least loss in time."""
    aim, fastest, instead = case.given.job.objective, found.fastest, found.lowest_loss_plan
    says = [f"no workers reach a training loss of {aim.loss:g} by the deadline of {time_text(aim.deadline_s or 0.0)}"]
    if fastest is not None:
        course = _course(case, fastest)
        later_s = fastest.time_s / worker_market.time_share(case.given.job)
        says.append(
            f"the fastest, {offer_notes.fleet_text(course.counts)}, cost {usd_text(course.cost_usd or 0.0)} and need a "
            f"deadline of {time_text(nearest_limits.time_above(later_s))}"
        )
    if found.lowest_loss is not None and instead is not None:
        course = _course(case, instead)
        says.append(
            f"a training loss of {_above(found.lowest_loss):g} can be met in time, by "
            f"{offer_notes.fleet_text(course.counts)} for {usd_text(course.cost_usd or 0.0)}"
        )
    return "; ".join(says)


def _above(loss: float) -> float:
    """Return a loss rounded up to three digits, so that it can be met."""
    unit = 10.0 ** (math.floor(math.log10(loss)) - 2) if loss > 0.0 else 1e-3
    return math.ceil(loss / unit) * unit


def _over_budget(case: _TrainingCase, chosen: FleetCourse) -> str:
    """Return the message for a budget that is below the cheapest workers in time."""
    aim = case.given.job.objective
    option = LimitOption(offer_notes.fleet_text(chosen.counts), chosen.finish_s, chosen.budget_usd or 0.0)
    says = (
        f"the cheapest workers that reach a training loss of {aim.loss:g} by the deadline, {option.name}, cost "
        f"{usd_text(chosen.cost_usd or 0.0)}, and with what a budget holds in reserve {usd_text(option.budget_usd)}: more than "
        f"the budget of {usd_text(aim.budget_usd or 0.0)}"
    )
    return f"{says}; {nearest_limits.nearest(case.given.job, [option])}"


# --------------------------------------------------------------------------------------------------------------- the plan


def _job_plan(
    case: _TrainingCase,
    plan: ProvisioningPlan,
    fleets: FleetPlan,
    refused: tuple[tuple[Offer, str], ...],
    now: WallTime,
) -> JobPlan:
    job, chosen = case.given.job, fleets.chosen
    by_key = {offer.key: offer for offer in fleets.offers}
    expected = _expected(chosen, now)
    baseline = None if fleets.on_demand is None else _expected(fleets.on_demand, now)
    savings = None
    if baseline is not None and baseline.cost_usd > 0.0 and chosen.losses_per_hour:
        savings = 100.0 * (1.0 - expected.cost_usd / baseline.cost_usd)
    machines = sum(count for _, count in chosen.counts)
    return JobPlan(
        job_id=job.job_id,
        quoted_at=now,
        chosen=PlanCandidate(by_key[chosen.counts[0][0]], machines, chosen.usd_per_hour, None, expected, now),
        alternatives=(),
        refused=tuple(RefusedOffer(offer, reason) for offer, reason in refused),
        baseline=baseline,
        savings_percent=savings,
        notice=f"the runtime {job.runtime.name} deals with losses itself",
        notice_suffices=None,
        numbers=_numbers(case, plan),
        unknown=(),
        warnings=(
            *_ends_before(case, plan),
            *nearest_limits.contradictions(job),
            *offer_notes.old_prices(tuple(by_key[key] for key, _ in chosen.counts), now),
            *offer_notes.unknown_exclusions(job, case.given.offers),
        ),
        rationale=(),
        fleet=fleets,
    )


def _expected(fleet: FleetCourse, now: WallTime) -> ExpectedOutcome:
    finish_s, cost_usd = fleet.finish_s or 0.0, fleet.cost_usd or 0.0
    billed_s = cost_usd / fleet.usd_per_hour * HOUR_S if fleet.usd_per_hour else finish_s
    works_s, per_s = billed_s - fleet.prepare_s, fleet.usd_per_hour / HOUR_S
    parts = (
        PlanItem("work", Seconds(works_s), Usd(works_s * per_s)),
        PlanItem("allocate", Seconds(finish_s - billed_s), Usd(0.0)),
        PlanItem("prepare", Seconds(fleet.prepare_s), Usd(fleet.prepare_s * per_s)),
    )
    return ExpectedOutcome(
        cost_usd=Usd(cost_usd),
        wall_s=Seconds(finish_s),
        finish=WallTime(now + finish_s),
        machine_hours=sum(count for _, count in fleet.counts) * billed_s / HOUR_S,
        preemptions=fleet.losses_per_hour * works_s / HOUR_S,
        parts=parts,
    )


def _iterations(case: _TrainingCase, plan: ProvisioningPlan) -> float:
    speed = asp.cluster_speed(case.market.model, plan.counts)
    return float(asp.iterations_of(case.market.model, speed, case.problem.loss))


def _ends_before(case: _TrainingCase, plan: ProvisioningPlan) -> tuple[str, ...]:
    """Return a warning if training ends before its loss is predicted to be reached."""
    job, needed = case.given.job, _iterations(case, plan)
    most = runtime_list.rules(job.runtime.name).iterations
    if most is None or job.work is None or needed <= most(job):
        return ()
    work, turns = (
        f"{job.work.amount:g} {job.work.unit.value}s",
        f"{needed:.0f} turns are predicted until its loss is reached",
    )
    return (
        f"training ends after {work}, which are {most(job):g} turns, and {turns}: raise its number of {job.work.unit.value}s",
    )


def _numbers(case: _TrainingCase, plan: ProvisioningPlan) -> tuple[PlanNumber, ...]:
    """Return what the plan rests on."""
    speed, iterations = asp.cluster_speed(case.market.model, plan.counts), _iterations(case, plan)
    unit = "steps" if runtime_list.rules(case.given.job.runtime.name).iterations is None else "turns"
    detail, basis = f"predicted by the runtime until a training loss of {case.problem.loss:g}", NumberBasis.DERIVED
    return (
        PlanNumber(PlanNumberKey.WORK, iterations, unit, basis, detail),
        PlanNumber(PlanNumberKey.SPEED, float(speed.iterations_per_s), f"{unit}/s", basis, "of all workers together"),
    )
