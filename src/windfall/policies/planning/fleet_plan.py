"""The plan of a job that can use more or fewer machines: the best fleet, what else there is, and what it risks.

The search is that of the fleet policy `mix`, so a job with `fleet: mix` gets the fleet that its plan shows.  That of a job with
`fleet: fixed` is what this one orders: as many machines as the runtime needs to start, of the offers that rank best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from windfall.errors import Infeasible
from windfall.jobs import DEFAULT_FLEET, Job, Measurement, Use
from windfall.market import Offer, OfferKey, Quota
from windfall.models import lifetime_pool
from windfall.policies.acquisition import bidbrain, ranking
from windfall.policies.layout import runtime_list
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import (
    fleet_course,
    fleet_inputs,
    fleet_search,
    job_plan,
    nearest_limits,
    offer_notes,
    offer_objections,
)
from windfall.policies.planning.estimates import (
    Knowledge,
    NumberBasis,
    PlanNumber,
    PlanNumberKey,
    offer_estimate,
)
from windfall.policies.planning.fleet_course import FleetCourse, FleetGoal, Pools
from windfall.policies.planning.job_plan import (
    ExpectedOutcome,
    JobPlan,
    PlanCandidate,
    PlanItem,
    RefusedOffer,
)
from windfall.policies.planning.nearest_limits import LimitOption
from windfall.policies.policy_registry import BIDBRAIN, BY_AGE, MIX
from windfall.structs import Struct, replace
from windfall.terms import Instant, Seconds, Usd, WallTime
from windfall.units import time_text, usd_text

_FIXED = (DEFAULT_FLEET, BY_AGE)
"""Fleet policies that keep to the machines which the runtime needs."""
_SHOWN = frozenset(
    {PlanNumberKey.ALLOCATION, PlanNumberKey.PREPARATION, PlanNumberKey.MTTP, PlanNumberKey.SILENT_SHARE}
)


class FleetPlan(Struct, frozen=True):
    """The fleets that were compared.

    Attributes:
        chosen: the best one.
        runner_up: the best one without the offer of which the chosen has most; None if there is none.
        on_demand: the best one of machines that cannot be preempted; None if none is offered.
        front: those of which none is both cheaper and faster than another, the cheapest first.
        reliable: the offer of the machines that keep the state safe; None if the runtime needs none.
        reliable_machines: how many of these.
        offers: all that these fleets are made of.
        searched: how many offers fit the job.
        risk: in words.
    """

    chosen: FleetCourse
    runner_up: FleetCourse | None
    on_demand: FleetCourse | None
    front: tuple[FleetCourse, ...]
    reliable: OfferKey | None
    reliable_machines: int
    offers: tuple[Offer, ...]
    searched: int
    risk: str


class FleetCase(Struct, frozen=True):
    """A job, and what its fleet is chosen from."""

    job: Job
    scaling: Scaling
    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...]
    knowledge: Knowledge


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
    """Return the best fleet for a job and its expected course, without spending.

    Args:
        job: as submitted.
        scaling: of its runtime.
        offers: the providers' current offers.
        measured: measurements from earlier runs of this job.
        now: the current time, from which finish and deadline count.
        quotas: the account's limits.
        pooled: estimates of losses with their evidence.

    Raises:
        Infeasible: no fleet, or not the job's fixed one, can do the job within its limits; the message says what is possible.
    """
    knowledge = Knowledge(tuple(row.rate for row in pooled), measured, pooled)
    case = FleetCase(job, scaling, tuple(offers), quotas, knowledge)
    refused = tuple((offer, reason) for offer in case.offers if (reason := ranking.refusal(job, offer)) is not None)
    pools = fleet_inputs.pools_of(job, case.offers, knowledge, quotas)
    if not pools.keys:
        raise Infeasible(job_plan.no_matching_offer(job, refused))
    goal = fleet_inputs.goal_of(job, scaling, case.offers)
    if job.work is None and (problem := _never_starts(case)):
        raise Infeasible(problem)
    best = fleet_search.best(pools, goal)
    if best is None:
        raise Infeasible(_too_few(pools, goal))
    if fleet_course.misses(best, goal):
        raise Infeasible(_nearest(job, pools, goal))
    chosen = _fixed(case, pools, goal) if job.fleet in _FIXED else best
    if fleet_course.misses(chosen, goal):
        raise Infeasible(_fixed_misses(job, chosen, best))
    found = _job_plan(case, _fleets(case, pools, goal, chosen), goal, refused, now)
    return replace(found, warnings=(*_warnings(job, chosen, best), *found.warnings))


def _fixed(case: FleetCase, pools: Pools, goal: FleetGoal) -> FleetCourse:
    """Return the fleet of `fleet: fixed`, which is ordered from the best-ranked offer on, as far as quotas let it."""
    ranked = ranking.rank_with(case.job, case.offers, case.knowledge)
    market = ranking.OfferMarket(ranked, {}, case.quotas, (), lambda _: True, case.job.limits)
    found = ranking.choose(market, goal.machines_min, Instant(0.0))
    if found.unmet:
        raise Infeasible(_too_few(pools, goal))
    ordered = {one.offer.key: count for one, count in found.orders}
    return fleet_course.course(pools, np.array([ordered.get(key, 0) for key in pools.keys], dtype=np.int64), goal)


def _fixed_misses(job: Job, fixed: FleetCourse, best: FleetCourse) -> str:
    return (
        f"`fleet: {job.fleet}` misses the objective: {offer_notes.fleet_text(fixed.counts)} {_takes(fixed)}; "
        f"set `fleet: {MIX}`, whose fleet, {offer_notes.fleet_text(best.counts)}, {_takes(best)}"
    )


def _fleets(case: FleetCase, pools: Pools, goal: FleetGoal, chosen: FleetCourse) -> FleetPlan:
    reliable = fleet_inputs.reliable_offer(case.job, case.scaling, case.offers)
    on_demand = _on_demand(case, goal)
    main = chosen.counts[0][0]
    others = pools.rows(np.flatnonzero([key != main for key in pools.keys]))
    runner_up = fleet_search.best(others, goal)
    cheapest = chosen
    if goal.fastest or goal.deadline_s is not None or case.job.fleet in _FIXED:
        free = replace(goal, deadline_s=None, budget_usd=None, fastest=False)
        cheapest = fleet_search.best(pools, free) or chosen
    front = fleet_search.front(pools, goal, cheapest)
    shown = [one for one in (chosen, runner_up, on_demand, *front) if one is not None]
    used = {key for fleet in shown for key, _ in fleet.counts} | ({reliable.key} if reliable else set())
    return FleetPlan(
        chosen,
        None if runner_up is None or fleet_course.misses(runner_up, goal) else runner_up,
        on_demand,
        front,
        None if reliable is None else reliable.key,
        case.scaling.reliable,
        tuple(offer for offer in case.offers if offer.key in used),
        len(pools.keys),
        _risk(chosen),
    )


def _on_demand(case: FleetCase, goal: FleetGoal) -> FleetCourse | None:
    """Return the best fleet of machines that cannot be preempted, whatever the job may use."""
    as_reliable = ranking.with_use(case.job, Use.ON_DEMAND)
    pools = fleet_inputs.pools_of(as_reliable, case.offers, case.knowledge, case.quotas)
    return fleet_search.best(pools, replace(goal, budget_usd=None)) if pools.keys else None


def _too_few(pools: Pools, goal: FleetGoal) -> str:
    most = int(np.minimum(pools.limit, goal.machines_max).sum())
    return (
        f"the job needs at least {goal.machines_min} machines, and quotas and pool_max leave room for {most} on the offers "
        "that fit it: raise a quota, or widen the job's resources"
    )


def _never_starts(case: FleetCase) -> str | None:
    """Return what is said if no machine is ready before the deadline; None if one may be."""
    fitting = [offer for offer in case.offers if ranking.refusal(case.job, offer) is None]
    estimates = [offer_estimate(case.job, offer, case.knowledge) for offer in fitting]
    rows = [(found.offer, offer_objections.never_starts(case.job, found)) for found in estimates]
    return offer_objections.nearest_objections(rows) if all(objections for _, objections in rows) else None


def _nearest(job: Job, pools: Pools, goal: FleetGoal) -> str:
    """Return the message for limits that no fleet meets: the cheapest and the fastest fleet, and which limits would do."""
    free = replace(goal, deadline_s=None, budget_usd=None)
    aim, stops_s = job.objective, nearest_limits.training_s(job)
    unmet = [f"the deadline of {time_text(aim.deadline_s)}"] if aim.deadline_s is not None else []
    if aim.deadline_s is not None and stops_s < aim.deadline_s:
        unmet.append(f"the last save of max_duration after {time_text(stops_s)}")
    if aim.budget_usd is not None:
        unmet.append(f"the budget of {usd_text(aim.budget_usd)}")
    asked = (free, replace(free, fastest=True))
    cheapest, fastest = (fleet_search.best(pools, one) for one in asked)
    kept = (replace(goal, budget_usd=None, fastest=False), replace(goal, deadline_s=None, fastest=True))
    fleets = [one for one in (cheapest, fastest, *(fleet_search.best(pools, one) for one in kept)) if one is not None]
    possible = [
        f"the {word} fleet, {offer_notes.fleet_text(fleet.counts)}, {_takes(fleet)}"
        for word, fleet in (("cheapest", cheapest), ("fastest", fastest))
        if fleet is not None
    ]
    options = (
        LimitOption(offer_notes.fleet_text(one.counts), one.finish_s, one.budget_usd)
        for one in fleets
        if one.budget_usd is not None
    )
    says = f"no fleet meets {' and '.join(unmet)}: {'; '.join(possible)}"
    return "; ".join(filter(None, (says, nearest_limits.nearest(job, options))))


def _takes(fleet: FleetCourse) -> str:
    return f"takes {time_text(fleet.finish_s or math.inf)} and costs {usd_text(fleet.cost_usd or 0.0)}"


def _risk(fleet: FleetCourse) -> str:
    """Return what may go wrong with a fleet, in words."""
    machines = sum(count for _, count in fleet.counts)
    if not fleet.losses_per_hour:
        return "no machine of it can be preempted"
    every = time_text(3600.0 / fleet.losses_per_hour)
    stopped = 100.0 * (1.0 - fleet.working_share)
    stops = f", which stops the fleet for {stopped:.2g} % of the time" if stopped >= 0.01 else ""
    (kind, count) = max(fleet.counts, key=lambda row: row[1])
    share = f"{count} of its {machines} machines are {kind[1]} in {kind[2]}" if count > 1 else "no two are of one offer"
    return f"one machine is lost every {every} on average{stops}; {share}"


def _job_plan(
    case: FleetCase, fleets: FleetPlan, goal: FleetGoal, refused: tuple[tuple[Offer, str], ...], now: WallTime
) -> JobPlan:
    job, stop = case.job, time_text(goal.app.eviction_s)
    by_key = {offer.key: offer for offer in fleets.offers}
    main = by_key[fleets.chosen.counts[0][0]]
    numbers = _numbers(job, case.scaling, main, case.knowledge)
    expected = _expected(fleets.chosen, goal, now)
    baseline = None if fleets.on_demand is None else _expected(fleets.on_demand, goal, now)
    savings = None
    if expected is not None and baseline is not None and baseline.cost_usd > 0.0 and fleets.chosen.losses_per_hour:
        savings = 100.0 * (1.0 - expected.cost_usd / baseline.cost_usd)
    return JobPlan(
        job_id=job.job_id,
        quoted_at=now,
        chosen=PlanCandidate(
            main,
            sum(count for _, count in fleets.chosen.counts),
            fleets.chosen.usd_per_hour,
            fleets.chosen.usd_per_work_core_hour,
            expected,
            now,
        ),
        alternatives=(),
        refused=tuple(RefusedOffer(offer, reason) for offer, reason in refused),
        baseline=baseline,
        savings_percent=savings,
        notice=f"the runtime {job.runtime.name} deals with losses itself; each stops its machines for {stop}",
        notice_suffices=None,
        numbers=numbers,
        unknown=tuple(f"{one.name}: {one.source}" for one in numbers if one.basis is NumberBasis.UNKNOWN),
        warnings=(
            *nearest_limits.contradictions(job),
            *offer_notes.old_prices(tuple(by_key[key] for key, _ in fleets.chosen.counts), now),
            *offer_notes.unknown_exclusions(job, case.offers),
        ),
        rationale=(),
        fleet=fleets,
    )


def _warnings(job: Job, chosen: FleetCourse, best: FleetCourse) -> tuple[str, ...]:
    if job.fleet == BIDBRAIN:
        return (
            f"the job has `fleet: {BIDBRAIN}`, which buys step by step and may end at another fleet than this plan's",
        )
    if job.fleet not in (MIX, *_FIXED):
        return (f"the job has `fleet: {job.fleet}`, which may have another fleet than this plan's: set `fleet: {MIX}`",)
    if chosen.counts == best.counts:
        return ()
    usd = (usd_text(one.usd_per_work_core_hour) for one in (best, chosen))
    return (
        f"`fleet: {MIX}` would have {offer_notes.fleet_text(best.counts)}: {' in place of '.join(usd)} per core-hour of work",
    )


def _numbers(job: Job, scaling: Scaling, main: Offer, knowledge: Knowledge) -> tuple[PlanNumber, ...]:
    """Return what the plan rests on; of the machines those of the main offer."""
    unit = "work" if job.work is None else job.work.unit.value
    work = PlanNumber(PlanNumberKey.WORK, None, unit, NumberBasis.UNKNOWN, "the job file has no work")
    if job.work is not None:
        work = replace(work, value=job.work.amount, basis=NumberBasis.GIVEN, detail="by the job file", source="")
    if job.objective.loss is not None:
        at_most = runtime_list.rules(job.runtime.name).ends_at_loss
        basis = NumberBasis.GIVEN if at_most else NumberBasis.DERIVED
        work = replace(work, basis=basis, detail=runtime_list.work_to_loss_text(job), source="")
    speed = PlanNumber(
        PlanNumberKey.SPEED,
        None,
        f"{unit}s/s per core",
        NumberBasis.UNKNOWN,
        "the runtime does not know how fast a core works",
    )
    if scaling.work_per_core_s is not None:
        speed = replace(
            speed, value=scaling.work_per_core_s, basis=NumberBasis.GIVEN, detail="by the runtime", source=""
        )
    found = offer_estimate(job, main, knowledge).numbers
    return (work, speed, *(number for number in found if number.name in _SHOWN))


def _expected(fleet: FleetCourse, goal: FleetGoal, now: WallTime) -> ExpectedOutcome | None:
    """Return the course of a run in parts: the work of the whole fleet, what losses take from it, and the start."""
    if (
        fleet.finish_s is None
        or fleet.cost_usd is None
        or goal.work_core_s is None
        or not math.isfinite(fleet.finish_s)
    ):
        return None
    work_s = goal.work_core_s / float(fleet.cores * bidbrain.efficiency(fleet.cores, goal.app))
    losing_s = goal.work_core_s / fleet.speed_cores
    per_s = fleet.cost_usd / (losing_s + fleet.prepare_s)
    parts = (
        PlanItem("work", Seconds(work_s), Usd(work_s * per_s)),
        PlanItem("losses", Seconds(losing_s - work_s), Usd((losing_s - work_s) * per_s)),
        PlanItem("allocate", Seconds(fleet.finish_s - losing_s - fleet.prepare_s), Usd(0.0)),
        PlanItem("prepare", Seconds(fleet.prepare_s), Usd(fleet.prepare_s * per_s)),
    )
    return ExpectedOutcome(
        cost_usd=Usd(fleet.cost_usd),
        wall_s=Seconds(fleet.finish_s),
        finish=WallTime(now + fleet.finish_s),
        machine_hours=sum(count for _, count in fleet.counts) * (losing_s + fleet.prepare_s) / 3600.0,
        preemptions=fleet.losses_per_hour * losing_s / 3600.0,
        parts=parts,
    )
