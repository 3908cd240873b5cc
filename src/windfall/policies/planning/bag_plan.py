"""The plan of a bag on machines of one type: which type, how many machines, and what they need.

With `fleet: explore` it is the type on which an item costs least, and as many machines as the deadline needs; else the offer
that ranks best, and `num_nodes` machines.  It rests on the time of an item in earlier runs of the bag.  Without one, cost and
finish are unknown until the first items measure it.

Where an item runs on several machines of one allocation, these are a gang: lost with the first of them, at n times the rate of
one, and replaced together (SciSpot, draft 2019, section 4.3, equations 4 to 6).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from windfall.bags import Bag
from windfall.errors import Infeasible
from windfall.jobs import DEFAULT_FLEET, Job, Measurement
from windfall.market import Offer, Quota
from windfall.models import expected_runtime, lifetime_pool
from windfall.policies.acquisition import exploring_fleet, ranking
from windfall.policies.acquisition.exploring_fleet import ItemCost
from windfall.policies.layout import bag_rules
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import job_plan, nearest_limits, offer_notes
from windfall.policies.planning.estimates import Knowledge, NumberBasis, PlanNumber, PlanNumberKey, offer_estimate
from windfall.policies.planning.job_plan import ExpectedOutcome, JobPlan, PlanCandidate, PlanItem, RefusedOffer
from windfall.policies.planning.unmet_needs import PLACES_MAX
from windfall.policies.policy_registry import BAG, BY_AGE, EXPLORE
from windfall.structs import Struct, replace
from windfall.terms import Reliability, Seconds, Unit, Usd, WallTime
from windfall.units import time_text, usd_text

ONE_TYPE = (DEFAULT_FLEET, BY_AGE, EXPLORE)
"""Fleet policies that keep machines of one type for a bag, or end up with them."""
_HOUR_S = 3600.0
_SHOWN = frozenset(
    {PlanNumberKey.ALLOCATION, PlanNumberKey.PREPARATION, PlanNumberKey.MTTP, PlanNumberKey.SILENT_SHARE}
)


class BagCourse(Struct, frozen=True):
    """How a bag runs on machines of one offer; `simulation.bag_odds` plays it.

    Attributes:
        items: that must be done.
        at_once: items that a machine runs at once.
        machines: how many, those of all gangs together.
        item_s: time of an item [s].
        mttp_s: mean time to preemption of a machine [s]; None if it cannot be preempted.
        allocate_s, prepare_s: from an order to the machine's start, and from there to the first item [s].
        usd_per_hour: of a machine.
        gang: on how many machines an item runs; `at_once` is of a gang.
    """

    items: int
    at_once: int
    machines: int
    item_s: float
    mttp_s: float | None
    allocate_s: float
    prepare_s: float
    usd_per_hour: float
    gang: int = 1

    @property
    def slots(self) -> int:
        """How many items run at once on all machines."""
        return self.at_once * (self.machines // self.gang)

    @property
    def gang_mttp_s(self) -> float | None:
        """Mean time until the first machine of a gang is lost [s]; None if none is."""
        return None if self.mttp_s is None else self.mttp_s / self.gang

    @property
    def expected_item_s(self) -> float:
        """E[T] of an item that starts again after each loss [s]."""
        if self.gang_mttp_s is None:
            return self.item_s
        return expected_runtime.unsaved_s(self.item_s, self.gang_mttp_s, 0.0)

    @property
    def work_s(self) -> float:
        """How long all machines run items, losses included [s]."""
        rounds = math.ceil(self.items / self.slots)
        return max(self.items * self.expected_item_s / self.slots, rounds * self.item_s)

    @property
    def losses(self) -> float:
        """How many machines are lost meanwhile."""
        return 0.0 if self.mttp_s is None else self.machines * self.work_s / self.mttp_s


class _BagCase(Struct, frozen=True):
    """A bag, and what its plan rests on."""

    job: Job
    bag: Bag
    scaling: Scaling | None
    knowledge: Knowledge
    now: WallTime


def suits(job: Job) -> bool:
    """Return whether a job is planned here: a bag of known items, on machines of one type."""
    return job.runtime.name == BAG and job.fleet in ONE_TYPE and not bag_rules.bag_of(job.runtime.settings).grows


def plan(
    job: Job,
    scaling: Scaling | None,
    offers: Iterable[Offer],
    measured: tuple[Measurement, ...],
    now: WallTime,
    *,
    quotas: tuple[Quota, ...] = (),
    pooled: tuple[lifetime_pool.PooledEstimate, ...] = (),
) -> JobPlan:
    """Return on which type a bag is expected to run, and what it comes to, without spending.

    Args:
        job: with a bag, checked.
        scaling: of its runtime; None if its items run on gangs.
        offers: the providers' current offers.
        measured: measurements from earlier runs of this bag.
        now: the current time, from which finish and deadline count.
        quotas: the account's limits.
        pooled: estimates of losses with their evidence.

    Raises:
        Infeasible: no machine has room for an item, or no offer meets the job's limits; the message says what is possible.
    """
    offers = tuple(offers)
    case = _BagCase(job, bag_rules.bag_of(job.runtime.settings), scaling, _knowledge(measured, pooled), now)
    refused = [RefusedOffer(offer, reason) for offer in offers if (reason := ranking.refusal(job, offer)) is not None]
    fitting = [
        offer for offer in offers if ranking.refusal(job, offer) is None and ranking.quota_limit(quotas, offer) != 0
    ]
    if not fitting:
        raise Infeasible(job_plan.no_matching_offer(job, tuple((one.offer, one.reason) for one in refused)))
    costs = _costs(case, fitting)
    if not costs:
        raise Infeasible(_no_quota(case, offers) or _too_small(case.bag, fitting))
    by_key = {offer.key: offer for offer in offers}
    rows = [_candidate(case, by_key[cost.key], cost) for cost in costs]
    met = [row for row in rows if _misses(job, row) is None]
    if not met:
        raise Infeasible(_nearest(job, rows))
    return _job_plan(case, met, tuple(refused), offers)


def _knowledge(measured: tuple[Measurement, ...], pooled: tuple[lifetime_pool.PooledEstimate, ...]) -> Knowledge:
    return Knowledge(tuple(row.rate for row in pooled), measured, pooled)


def _costs(case: _BagCase, offers: Sequence[Offer]) -> list[ItemCost]:
    """Return what an item costs on each offer where one fits, in the order of the policy: measured types first."""
    times = {(row.provider, row.machine_type): row.item_s for row in case.knowledge.measured if row.unit is Unit.ITEM}
    guess_s = max((float(time_s) for time_s in times.values() if time_s is not None), default=exploring_fleet.ITEM_S)
    found = []
    for offer in offers:
        mttp_s = exploring_fleet.mttp_of(case.knowledge.rates, offer)
        time_s = times.get((offer.provider, offer.machine_type))
        cost = exploring_fleet.item_cost(offer, case.bag, time_s, mttp_s, guess_s=guess_s)
        if cost is not None:
            found.append(cost)
    if case.job.fleet != EXPLORE:
        ranked = ranking.rank_with(case.job, offers, case.knowledge).ranked
        places = {row.offer.key: place for place, row in enumerate(ranked)}
        return sorted((one for one in found if one.key in places), key=lambda one: places[one.key])
    return sorted(found, key=lambda one: (one.run_s is None, one.usd, one.key))


def machines_most(job: Job, scaling: Scaling | None) -> int:
    """Return the most machines that a bag has at once: of gangs, and where the number is fixed, what the job says."""
    return job.nodes if scaling is None or job.fleet != EXPLORE else exploring_fleet.machines_most(job, scaling)


def _no_quota(case: _BagCase, offers: Sequence[Offer]) -> str | None:
    """Return that an item fits only machines of which the account may have none; None if it fits none at all."""
    large = _costs(case, [offer for offer in offers if ranking.refusal(case.job, offer) is None])
    if not large:
        return None
    places = [f"{cost.key[1]} in {cost.key[2]}" for cost in large]
    named = ", ".join(dict.fromkeys(places[:PLACES_MAX]))
    return (
        f"an item needs {bag_rules.needs_text(case.bag)}, and the quota is 0 for every machine with room for it ({named}): "
        "raise the quota, or lower what an item needs under bag"
    )


def _too_small(bag: Bag, offers: Sequence[Offer]) -> str:
    largest = max(offers, key=lambda offer: (offer.cpus, offer.memory_gib))
    return (
        f"an item needs {bag_rules.needs_text(bag)}, and the largest machine that fits the job, {largest.machine_type} in "
        f"{largest.zone}, has {largest.cpus:g} CPUs and {largest.memory_gib:g} GiB: lower what an item needs under bag, or "
        "widen resources"
    )


def course_of(job: Job, offer: Offer, cost: ItemCost, knowledge: Knowledge, machines_max: int) -> BagCourse | None:
    """Return how a bag runs on an offer; None if the time of an item is not known there.

    Args:
        job: with the bag.
        offer: its machines.
        cost: of an item there.
        knowledge: of earlier runs.
        machines_max: the most machines at once.
    """
    if cost.run_s is None:
        return None
    restart = offer_estimate(job, offer, knowledge).restart
    mttp_s = None if offer.reliability is Reliability.RELIABLE else exploring_fleet.mttp_of(knowledge.rates, offer)
    left_s = (
        None if job.objective.deadline_s is None else job.objective.deadline_s - restart.allocate_s - restart.prepare_s
    )
    items = max(math.ceil(bag_rules.items_left(job, 0.0)), 1)
    explores = job.fleet == EXPLORE
    return BagCourse(
        items,
        cost.at_once,
        exploring_fleet.machines_for(job, cost, float(items), left_s, machines_max) if explores else machines_max,
        cost.run_s,
        mttp_s,
        restart.allocate_s,
        restart.prepare_s,
        offer.price_usd_per_hour,
        bag_rules.bag_of(job.runtime.settings).nodes,
    )


def _candidate(case: _BagCase, offer: Offer, cost: ItemCost) -> tuple[PlanCandidate, BagCourse | None]:
    most = machines_most(case.job, case.scaling)
    course = course_of(case.job, offer, cost, case.knowledge, most)
    explores = case.job.fleet == EXPLORE
    machines = course.machines if course is not None else min(most, case.bag.items) if explores else most
    expected = None if course is None else _expected(course, case.now)
    candidate = PlanCandidate(offer, machines, machines * offer.price_usd_per_hour, None, expected, case.now)
    return candidate, course


def _expected(course: BagCourse, now: WallTime) -> ExpectedOutcome:
    """Return the expected course: the first machines start, items run, and each loss costs its items and a new start."""
    usd_per_s = course.machines * course.usd_per_hour / _HOUR_S
    redo_s = course.items * (course.expected_item_s - course.item_s) / course.slots
    again = course.losses / (course.machines // course.gang)
    allocate_s, prepare_s = course.allocate_s * (1.0 + again), course.prepare_s * (1.0 + again)
    work_s = course.work_s - redo_s
    parts = (
        PlanItem("work", Seconds(work_s), Usd(work_s * usd_per_s)),
        PlanItem("redo", Seconds(redo_s), Usd(redo_s * usd_per_s)),
        PlanItem("allocate", Seconds(allocate_s), Usd(0.0)),
        PlanItem("prepare", Seconds(prepare_s), Usd(prepare_s * usd_per_s)),
    )
    wall_s, billed_s = course.work_s + allocate_s + prepare_s, course.work_s + prepare_s
    return ExpectedOutcome(
        cost_usd=Usd(billed_s * usd_per_s),
        wall_s=Seconds(wall_s),
        finish=WallTime(now + wall_s),
        machine_hours=course.machines * billed_s / _HOUR_S,
        preemptions=course.losses,
        parts=parts,
    )


def _misses(job: Job, row: tuple[PlanCandidate, BagCourse | None]) -> str | None:
    """Return which limit a candidate misses; None if it meets them, or what it needs is unknown."""
    expected, aim = row[0].expected, job.objective
    if expected is None:
        return None
    if aim.deadline_s is not None and expected.wall_s > aim.deadline_s:
        return f"the deadline of {time_text(aim.deadline_s)}"
    if aim.budget_usd is not None and expected.cost_usd > aim.budget_usd:
        return f"the budget of {usd_text(aim.budget_usd)}"
    return None


def _nearest(job: Job, rows: Sequence[tuple[PlanCandidate, BagCourse | None]]) -> str:
    """Return the message for limits that no offer meets: the fastest and the cheapest one."""
    known = [(row, row[0].expected) for row in rows if row[0].expected is not None]
    fastest = min(known, key=lambda one: one[1].wall_s if one[1] else math.inf)
    cheapest = min(known, key=lambda one: one[1].cost_usd if one[1] else math.inf)
    missed = dict.fromkeys(filter(None, (_misses(job, row) for row, _ in known)))

    def says(word: str, found: tuple[tuple[PlanCandidate, BagCourse | None], ExpectedOutcome | None]) -> str:
        (candidate, _), expected = found
        assert expected is not None, "only known ones are compared"
        count = f"{candidate.machines} {candidate.offer.machine_type}"
        return f"the {word}, {count}, takes {time_text(expected.wall_s)} and costs {usd_text(expected.cost_usd)}"

    return (
        f"no machines meet {' and '.join(missed)}: {says('fastest', fastest)}; {says('cheapest', cheapest)}; raise the limit, "
        "or num_nodes"
    )


def _job_plan(
    case: _BagCase,
    met: Sequence[tuple[PlanCandidate, BagCourse | None]],
    refused: tuple[RefusedOffer, ...],
    offers: tuple[Offer, ...],
) -> JobPlan:
    job, (chosen, course) = case.job, met[0]
    others = tuple(candidate for candidate, _ in met[1 : 1 + job_plan.ALTERNATIVES_MAX])
    baseline, savings = None, None
    if course is not None:
        on_demand = replace(course, mttp_s=None, usd_per_hour=chosen.offer.on_demand_usd_per_hour)
        baseline = _expected(on_demand, case.now)
        if chosen.offer.reliability is Reliability.TRANSIENT and chosen.expected and baseline.cost_usd > 0.0:
            savings = 100.0 * (1.0 - chosen.expected.cost_usd / baseline.cost_usd)
    numbers = _numbers(case, chosen.offer, course)
    return JobPlan(
        job_id=job.job_id,
        quoted_at=case.now,
        chosen=chosen,
        alternatives=others,
        refused=refused,
        baseline=baseline,
        savings_percent=savings,
        notice="an item that a loss cuts off runs again from its start; items that are done stay done",
        notice_suffices=None,
        numbers=numbers,
        unknown=tuple(f"{one.name}: {one.source}" for one in numbers if one.basis is NumberBasis.UNKNOWN),
        warnings=(
            *nearest_limits.contradictions(job),
            *offer_notes.old_prices((chosen.offer,), case.now),
            *offer_notes.unknown_exclusions(job, offers),
        ),
        rationale=(),
        bag=course,
    )


def _numbers(case: _BagCase, offer: Offer, course: BagCourse | None) -> tuple[PlanNumber, ...]:
    work = PlanNumber(
        PlanNumberKey.WORK, bag_rules.items_left(case.job, 0.0), "items", NumberBasis.GIVEN, "by the job file"
    )
    at_once = bag_rules.items_at_once(case.bag, offer.cpus, offer.memory_gib)
    slots = PlanNumber(
        PlanNumberKey.AT_ONCE, float(at_once), "items", NumberBasis.DERIVED, bag_rules.needs_text(case.bag)
    )
    if course is None:
        detail = "no earlier run of this bag on this type of machine; its first items measure it"
        time = PlanNumber(PlanNumberKey.ITEM, None, "s", NumberBasis.UNKNOWN, detail)
    else:
        runs = max((row.runs for row in case.knowledge.measured if row.machine_type == offer.machine_type), default=1)
        detail = f"in {runs} earlier run{'s' * (runs != 1)}"
        time = PlanNumber(PlanNumberKey.ITEM, course.item_s, "s", NumberBasis.MEASURED, detail)
    found = offer_estimate(case.job, offer, case.knowledge).numbers
    return (work, slots, time, *(number for number in found if number.name in _SHOWN))
