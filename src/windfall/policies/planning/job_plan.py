"""Plan a job before anything is bought: its expected cost and finish, warnings, or a refusal.

The expected time of a run is the sum of these parts, and so is its cost (`models.expected_runtime` has the formulas):

    work        the work itself at the speed measured in earlier runs
    redo        work done again after losses that no save covered, including checkpoints that were still uploading
    save        the script stalled by insurance saves, and by emergency saves at notices
    allocate    waiting for machines: the first allocation, and after each loss the part that the notice does not cover.
                After an emergency save commits, the script stalls (another machine may then take the run), so the wait
                is the allocation less the rest of the current step; without an emergency save the old machine trains
                until it is preempted, and the wait is only max(0, allocate - notice)
    prepare     boot, setup, restore, the script's start and first step, for the first machine and each replacement;
                repeated where a machine is lost meanwhile
    finish      the upload of the last checkpoint

Each machine is billed from its start to its end: allocation is free (nothing runs), the time in which a machine on
notice and its successor both run counts twice, and so does the time until a finished run's machines are released.  The
controller acts on a silent loss, and releases a finished run's machines, half a polling interval later on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from windfall.errors import Infeasible
from windfall.events import ComparedValue
from windfall.jobs import Job, Measurement, Use
from windfall.market import Offer, Quota
from windfall.models import lifetime_pool
from windfall.models.expected_runtime import Expectation, unsaved_s
from windfall.policies.acquisition.ranking import (
    HORIZON_S,
    Ranked,
    exclusion,
    is_too_slow,
    missing,
    quota_limit,
    rank_with,
)
from windfall.policies.planning import nearest_limits, offer_notes
from windfall.policies.planning.estimates import (
    POLL_S,
    Knowledge,
    NumberBasis,
    OfferEstimate,
    PlanNumber,
    PlanNumberKey,
)
from windfall.policies.planning.offer_objections import (
    Objection,
    leaves_no_time,
    limit_options,
    nearest_objections,
    never_saves,
    objections_to,
    offer_name,
    too_many_losses,
)
from windfall.structs import Struct, replace
from windfall.terms import Reliability, Seconds, Usd, WallTime
from windfall.units import size_text, time_text

if TYPE_CHECKING:
    # Needs numpy, which a controller need not have.
    from windfall.policies.planning.bag_plan import BagCourse
    from windfall.policies.planning.fleet_plan import FleetPlan


def no_matching_offer(job: Job, refused: tuple[tuple[Offer, str], ...]) -> str:
    """Return the message for when no offer matches the job: the price, spot or on-demand, or the nearest offer."""
    if not refused:
        return "no provider has an offer now: run `windfall ps` to see the providers' status"
    matching = [offer for offer, _ in refused if any(not missing(requested, offer) for requested in job.resources)]
    open_to = [offer for offer in matching if exclusion(job.limits, offer) is None]
    allowed = [offer for offer in open_to if _allowed(job, offer)]
    if matching and not open_to:
        cheapest = min(matching, key=lambda offer: (offer.price_usd_per_hour, offer.key))
        return (
            f"every matching offer is excluded: the cheapest is {offer_name(cheapest)} at "
            f"{cheapest.price_usd_per_hour:g} USD/h; remove its zone or its machine type from resources.exclude"
        )
    if allowed:
        cheapest = min(allowed, key=lambda offer: (offer.price_usd_per_hour, offer.key))
        return (
            f"max_price {job.max_price_usd_per_hour:g} USD/h is below every matching offer: the cheapest is "
            f"{offer_name(cheapest)} at {cheapest.price_usd_per_hour:g} USD/h"
        )
    if open_to:
        cheapest = min(open_to, key=lambda offer: (offer.price_usd_per_hour, offer.key))
        only = "spot" if job.use is Use.SPOT else "on-demand"
        return (
            f"no matching offer is allowed: the cheapest is {offer_name(cheapest)}, and the job uses {only} machines only; "
            "set `use: auto` to allow both"
        )
    if (nowhere := _unknown_zone(job, [offer for offer, _ in refused])) is not None:
        return nowhere
    lacks = [(min((missing(requested, offer) for requested in job.resources), key=len), offer) for offer, _ in refused]
    words, offer = min(lacks, key=lambda row: (len(row[0]), row[1].price_usd_per_hour, row[1].key))
    return f"no offer matches the job's resources: the nearest is {offer_name(offer)}, but {'; '.join(words)}"


def _unknown_zone(job: Job, offers: Iterable[Offer]) -> str | None:
    """Return which zones a provider has, where a job names only others of it; None if it names one that there is."""
    wrong = []
    for wanted in job.resources:
        zones = sorted({offer.zone for offer in offers if wanted.provider in {None, offer.provider}})
        if wanted.zone is None or wanted.provider is None or not zones or wanted.zone in zones:
            return None
        others = f", or another of {', '.join(zones)}" if len(zones) > 1 else ""
        wrong.append(
            f"{wanted.provider} offers nothing in {wanted.zone}: write `infra: {wanted.provider}/{zones[0]}`{others}"
        )
    return "; ".join(dict.fromkeys(wrong)) or None


def warnings(job: Job, found: OfferEstimate) -> tuple[str, ...]:
    """Return what the user should know before approving an offer."""
    words = []
    spot = found.offer.reliability is Reliability.TRANSIENT
    if spot and found.fit.fits is False:
        words.append(_no_emergency_save(found))
    if spot and never_saves(job) and found.work_s is None:
        mttl_s = found.hazard.mttl_s
        words.append(
            f"without checkpoints each loss restarts the run from step 0, and machines like these last "
            f"{time_text(mttl_s)} on average: {time_text(3 * mttl_s)} of work would take "
            f"{time_text(unsaved_s(3 * mttl_s, mttl_s, 0.0))}; how long this job takes is unknown"
        )
    if found.work_s is None:
        if is_too_slow(found, found.expect(HORIZON_S)):
            words.append(f"{too_many_losses(found)}: the run would make almost no progress")
        requests = [
            what
            for what, limit in (("deadline", job.objective.deadline_s), ("budget", job.objective.budget_usd))
            if limit is not None
        ]
        if leaves_no_time(job, found):
            words.append(
                f"the deadline may pass before a machine is ready: it is assumed to take {time_text(found.restart.allocate_s)} "
                f"to start and {time_text(found.restart.prepare_s)} to get ready"
            )
        elif requests:
            words.append(
                f"whether the {' and the '.join(requests)} can be met is unknown: no earlier run measured the speed"
            )
        return tuple(words)
    wall_s = found.expect(found.work_s).wall_s
    if job.max_duration_s is not None and wall_s > nearest_limits.training_s(job):
        words.append(
            f"max_duration {time_text(job.max_duration_s)} stops this job before it finishes: it is expected to take "
            f"{time_text(wall_s)}"
        )
    return tuple(words)


def _allowed(job: Job, offer: Offer) -> bool:
    kinds = {Use.SPOT: Reliability.TRANSIENT, Use.ON_DEMAND: Reliability.RELIABLE}
    return kinds.get(job.use, offer.reliability) is offer.reliability


def _no_emergency_save(found: OfferEstimate) -> str:
    interval_s = found.saving.interval_s
    back = "to its start" if math.isinf(interval_s) else f"by {time_text(interval_s / 2.0)} on average"
    if found.fit.notice_s <= 0.0:
        return f"losses come without notice: each sets the run back {back}"
    return (
        f"an emergency save takes {time_text(found.fit.needs_s or 0.0)} and does not fit the notice of "
        f"{time_text(found.fit.notice_s)}: the run is saved at intervals instead, and each loss sets it back {back}"
    )


ALTERNATIVES_MAX = 5
"""How many other offers a plan shows."""


class PlanItem(Struct, frozen=True):
    """One part of the expected time and cost."""

    name: str
    duration_s: Seconds
    cost_usd: Usd


class ExpectedOutcome(Struct, frozen=True):
    """The expected outcome of the job on one offer.

    Attributes:
        wall_s: from now to the script's end [s].
        finish: now + wall.
        machine_hours: billed, of all machines together [h].
        parts: durations add up to `wall_s`, costs to `cost_usd`; the cost of `allocate` is for the other machines
            while one is missing, and for machines that run beside their successors, less what is not billed.
    """

    cost_usd: Usd
    wall_s: Seconds
    finish: WallTime
    machine_hours: float
    preemptions: float
    parts: tuple[PlanItem, ...]


class PlanCandidate(Struct, frozen=True):
    """An offer and its expected outcome.

    Attributes:
        usd_per_hour: of all the job's machines together, now.
        usd_per_work_hour: of one machine, per hour of kept work; None if no work is expected to be kept.
        expected: None if unknown.
        planned_at: when `expected` starts.
    """

    offer: Offer
    machines: int
    usd_per_hour: float
    usd_per_work_hour: float | None
    expected: ExpectedOutcome | None
    planned_at: WallTime


class RefusedOffer(Struct, frozen=True):
    """An offer that was not considered, and the reason."""

    offer: Offer
    reason: str


class JobPlan(Struct, frozen=True):
    """What to buy for a job, and the expected outcome.

    Attributes:
        quoted_at: when the plan was made; prices are the offers' own.
        alternatives: the next best, best first.
        refused: offers that cannot be used.
        baseline: the same machines on demand; None if unknown.
        savings_percent: relative to the on-demand baseline; None if unknown, or if on-demand machines were chosen.
        notice: what the provider's notice can save, as one sentence.
        notice_suffices: whether an emergency save fits it; None if unknown.
        numbers: the inputs, each with its source.
        unknown: what is unknown, one sentence each.
        warnings: what the user should know before approving.
        rationale: the numbers by which the chosen offer won.
        fleet: the fleets that were compared, where the job can use more or fewer machines; `chosen` is then the offer that
            costs most of the best one, with the numbers of the whole fleet.  None for other jobs.
        bag: how a bag runs on the chosen offer; None for other jobs, and where the time of an item is unknown.
    """

    job_id: str
    quoted_at: WallTime
    chosen: PlanCandidate
    alternatives: tuple[PlanCandidate, ...]
    refused: tuple[RefusedOffer, ...]
    baseline: ExpectedOutcome | None
    savings_percent: float | None
    notice: str
    notice_suffices: bool | None
    numbers: tuple[PlanNumber, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    rationale: tuple[ComparedValue, ...]
    fleet: FleetPlan | None = None
    bag: BagCourse | None = None


def plan(
    job: Job,
    offers: Iterable[Offer],
    rates: tuple[lifetime_pool.Rate, ...],
    measured: tuple[Measurement, ...],
    now: WallTime,
    *,
    pooled: tuple[lifetime_pool.PooledEstimate, ...] = (),
    poll_s: float = POLL_S,
    quotas: tuple[Quota, ...] = (),
) -> JobPlan:
    """Return what to buy first for a job and the expected outcome, without spending.

    The chosen offer is the best in the order of `ranking.rank` that meets deadline and budget and makes progress.

    Args:
        job: as submitted.
        offers: the providers' current offers.
        rates: MTTP and restart time per (provider, type, zone), as `fleet.EstimatesPooled` carries them.
        measured: measurements from earlier runs of this job; without them cost and finish are unknown.
        now: the current time, from which finish and deadline count.
        pooled: the rates with their evidence, and the shares of losses without notice; replaces `rates`.
        poll_s: how often the controller polls machines and run [s].
        quotas: the account's limits; an offer of which it may have none is refused.

    Raises:
        Infeasible: no offer can do the job; the message has the arithmetic.
    """
    knowledge = Knowledge(tuple(row.rate for row in pooled) or rates, measured, pooled, poll_s)
    offers = tuple(offers)
    ranking = rank_with(job, offers, knowledge)
    if not ranking.ranked:
        raise Infeasible(no_matching_offer(job, ranking.refused))
    without_quota = [row.offer for row in ranking.ranked if quota_limit(quotas, row.offer) == 0]
    rows = [(row, _candidate(row, now)) for row in ranking.ranked if row.offer not in without_quota]
    if not rows:
        raise Infeasible(f"{_quota_0(without_quota[0])}, and no other offer fits the job: raise the quota")
    comparable = any(candidate.expected is not None for _, candidate in rows)
    met: list[tuple[Ranked, PlanCandidate]] = []
    objected: list[tuple[Offer, tuple[Objection, ...]]] = []
    refused = [RefusedOffer(offer, reason) for offer, reason in ranking.refused]
    refused += [RefusedOffer(offer, _quota_0(offer)) for offer in without_quota]
    for row, candidate in rows:
        objections = objections_to(job, row.offer_estimate, comparable=comparable)
        if objections:
            objected.append((row.offer, objections))
            refused.append(RefusedOffer(row.offer, "; ".join(objection.message for objection in objections)))
        else:
            met.append((row, candidate))
    if not met:
        options = nearest_limits.nearest(job, limit_options(job, [row.offer_estimate for row, _ in rows], objected))
        raise Infeasible("; ".join(filter(None, (nearest_objections(objected), options))))
    (row, chosen), *others = met
    found = _plan(job, row, chosen, tuple(other for _, other in others[:ALTERNATIVES_MAX]), tuple(refused))
    noted = offer_notes.notes(job, [one for one, _ in met], offers, quotas, now)
    return replace(found, warnings=(*found.warnings, *nearest_limits.contradictions(job), *noted))


def _quota_0(offer: Offer) -> str:
    return f"quota 0 for {offer.machine_type} in {offer.zone}"


def _plan(
    job: Job, row: Ranked, chosen: PlanCandidate, others: tuple[PlanCandidate, ...], refused: tuple[RefusedOffer, ...]
) -> JobPlan:
    found = row.offer_estimate
    now = chosen.planned_at
    baseline = None
    savings: float | None = None
    if found.work_s is not None:
        baseline = _expected(found.reliable, found.reliable.expect(found.work_s), now)
    spot = found.offer.reliability is Reliability.TRANSIENT
    if spot and baseline is not None and chosen.expected is not None and baseline.cost_usd > 0.0:
        savings = 100.0 * (1.0 - chosen.expected.cost_usd / baseline.cost_usd)
    return JobPlan(
        job_id=job.job_id,
        quoted_at=now,
        chosen=chosen,
        alternatives=others,
        refused=refused,
        baseline=baseline,
        savings_percent=savings,
        notice=_notice(found),
        notice_suffices=found.fit.fits,
        numbers=found.numbers,
        unknown=tuple(
            f"{number.name}: {number.source}"
            for number in found.numbers
            if number.value is None and number.basis is NumberBasis.UNKNOWN
        ),
        warnings=warnings(job, found),
        rationale=row.rationale,
    )


def _candidate(row: Ranked, now: WallTime) -> PlanCandidate:
    found = row.offer_estimate
    expected = None if found.work_s is None else _expected(found, found.expect(found.work_s), now)
    return PlanCandidate(
        offer=found.offer,
        machines=found.machines,
        usd_per_hour=found.machines * found.offer.price_usd_per_hour,
        usd_per_work_hour=row.usd_per_work_hour if math.isfinite(row.usd_per_work_hour) else None,
        expected=expected,
        planned_at=now,
    )


def _expected(found: OfferEstimate, expectation: Expectation, now: WallTime) -> ExpectedOutcome | None:
    if not math.isfinite(expectation.wall_s):
        return None
    cost_usd = found.cost_usd(expectation)
    usd_per_s = found.machines * found.offer.price_usd_per_hour / 3600.0
    billed = (
        ("work", expectation.work_s),
        ("redo", expectation.redo_s),
        ("save", expectation.save_s),
        ("prepare", expectation.prepare_s),
        ("finish", expectation.finish_s),
    )
    parts = [PlanItem(name, Seconds(took_s), Usd(took_s * usd_per_s)) for name, took_s in billed]
    rest_usd = cost_usd - math.fsum(part.cost_usd for part in parts)
    parts.insert(3, PlanItem("allocate", Seconds(expectation.allocate_s), Usd(rest_usd)))
    return ExpectedOutcome(
        cost_usd=Usd(cost_usd),
        wall_s=Seconds(expectation.wall_s),
        finish=WallTime(now + expectation.wall_s),
        machine_hours=found.billed_s(expectation) / 3600.0,
        preemptions=expectation.preemptions,
        parts=tuple(parts),
    )


def _notice(found: OfferEstimate) -> str:
    """Return what the notice can save: the upload of the state compared with the time available."""
    if found.offer.reliability is Reliability.RELIABLE:
        return "this machine cannot be preempted: no notice is needed"
    fit = found.fit
    if fit.notice_s <= 0.0:
        return "there is no notice: only saves at intervals protect the run"
    known = {number.name: number.value for number in found.numbers}
    if fit.fits is None or fit.needs_s is None:
        return (
            f"whether an emergency save fits the {fit.notice_s:g} s of notice is unknown: no save was measured yet; "
            "the first run measures one early"
        )
    size, upload_s = known.get(PlanNumberKey.STATE_SIZE) or 0.0, known.get(PlanNumberKey.STATE_UPLOAD) or 0.0
    upload = f"{size_text(size)} upload in {upload_s:.1f} s" if size else f"the upload takes {upload_s:.1f} s"
    needs = f"{upload}; with the step, the stall and the commit an emergency save takes {fit.needs_s:.1f} s"
    if fit.fits:
        return f"{needs} and fits the {fit.notice_s:g} s of notice: announced losses redo no work"
    left_s = max(fit.notice_s - (fit.needs_s - upload_s), 0.0)
    fitting = f", in which {size_text(size * left_s / upload_s)} would fit" if size and upload_s > 0.0 else ""
    return f"{needs}, more than the {fit.notice_s:g} s of notice{fitting}: every loss returns to the last save"
