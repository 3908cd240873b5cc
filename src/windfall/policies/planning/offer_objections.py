"""Why an offer is refused for a job although it matches the job's resources, and what is said if all are.

A job without checkpoints that losses would make endless, a deadline, a budget and `max_duration` are compared with the
expected course of the run.  What rests on an assumption alone refuses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from windfall.jobs import Job
from windfall.market import Offer
from windfall.models.expected_runtime import Expectation
from windfall.policies.acquisition.ranking import is_too_slow
from windfall.policies.checkpointing.decision import parse_policy, saving_policy
from windfall.policies.deadlines import limits
from windfall.policies.planning import nearest_limits
from windfall.policies.planning.estimates import NumberBasis, OfferEstimate, PlanNumberKey
from windfall.structs import Struct
from windfall.terms import Reliability
from windfall.units import time_text, usd_text

UNSAVED_FACTOR = 2.0
"""A spot job without checkpoints is refused if it is expected to take this many times as long as without losses."""


_LIMITS = frozenset({"deadline", "max_duration", "budget"})


class Objection(Struct, frozen=True):
    """Why an offer is refused.

    Attributes:
        kind: `unsaved`, `too-slow`, `start`, `deadline`, `max_duration`, `budget` or `unknown`.
        size: how far off the offer is; of several offers the nearest is reported.
        message: about this offer.
        summary: about all offers, for when none is left and this one came nearest.
    """

    kind: str
    size: float
    message: str
    summary: str


def objections_to(job: Job, found: OfferEstimate, *, comparable: bool) -> tuple[Objection, ...]:
    """Return the objections to an offer that matches the job's resources; empty if there are none.

    Args:
        job: with its limits.
        found: the estimate for the offer.
        comparable: whether the time on another offer is known; a job with limits then takes no offer of unknown speed.
    """
    reserve = reserve_usd(job, found)
    if found.work_s is None:
        objections = never_starts(job, found) or _over_budget(job, found, reserve, 0.0)
        return objections or (_unknown_speed(job, found) if comparable else ())
    expected = found.expect(found.work_s)
    lost = _unsaved(job, found, expected) or _too_slow(found, expected)
    if lost:
        return lost
    late = (*_too_late(job, found, expected), *_cut_short(job, found, expected))
    return (*late, *_over_budget(job, found, reserve, found.cost_usd(expected)))


def nearest_objections(objected: Iterable[tuple[Offer, tuple[Objection, ...]]]) -> str:
    """Return the message for when every offer is refused: for each kind of objection, the offer that came nearest.

    A limit that some offer meets is not impossible: then that no offer meets them all is what is wrong.
    """
    rows = list(objected)
    nearest: dict[str, tuple[Offer, Objection]] = {}
    for offer, objection in ((offer, objection) for offer, found in rows for objection in found):
        known = nearest.get(objection.kind)
        if known is None or objection.size < known[1].size:
            nearest[objection.kind] = offer, objection
    if len(nearest) > 1 and all(len(found) < len(nearest) for _, found in rows):
        each = (f"{offer_name(offer)}: {objection.message}" for offer, objection in nearest.values())
        return f"no offer meets all limits of the job: {'; '.join(each)}"
    return "; ".join(objection.summary for _, objection in nearest.values())


def reserve_usd(job: Job, found: OfferEstimate) -> float:
    """Return the part of a budget held in reserve: the machines' price over the last save and the release [USD]."""
    return limits.reserve_usd(found.machines * found.offer.price_usd_per_hour, job.checkpointing.save_timeout_s)


def offer_name(offer: Offer) -> str:
    """Return an offer's name for messages."""
    kind = "spot" if offer.reliability is Reliability.TRANSIENT else "on-demand"
    return f"{offer.machine_type} in {offer.provider}/{offer.zone} ({kind})"


def limit_options(
    job: Job, estimates: Iterable[OfferEstimate], objected: Iterable[tuple[Offer, tuple[Objection, ...]]]
) -> Iterator[nearest_limits.LimitOption]:
    """Yield what the job needs on the offers to which nothing but its limits objects."""
    for found, (_, objections) in zip(estimates, objected, strict=True):
        if all(objection.kind in _LIMITS for objection in objections):
            expected = None if found.work_s is None else found.expect(found.work_s)
            cost_usd = 0.0 if expected is None else found.cost_usd(expected)
            finish_s = None if expected is None else expected.wall_s
            yield nearest_limits.LimitOption(offer_name(found.offer), finish_s, cost_usd + reserve_usd(job, found))


def never_saves(job: Job) -> bool:
    """Whether neither Windfall nor the user saves at intervals."""
    return not saving_policy(parse_policy(job.options.policy)).insures and job.checkpointing.keep_every is None


def _lossless_s(found: OfferEstimate, expected: Expectation) -> float:
    return expected.work_s + found.restart.allocate_s + found.restart.prepare_s


def _unsaved(job: Job, found: OfferEstimate, expected: Expectation) -> tuple[Objection, ...]:
    """Refuse long work without checkpoints: 48 h at a mean lifetime of 8 h take 8 h x (e^6 - 1) = 3219 h."""
    if math.isinf(found.hazard.mttp_s) or not never_saves(job):
        return ()
    lossless_s = _lossless_s(found, expected)
    if expected.wall_s < UNSAVED_FACTOR * lossless_s:
        return ()
    hazard = found.hazard
    share = hazard.silent_share if hazard.covered else 1.0
    mttl_s, wait_s = hazard.mttl_s, found.restart.allocate_s + found.restart.notice_loss_s
    # An attempt is preparation and work; a loss costs the attempt and the wait for the next machine.
    attempt_s = found.restart.prepare_s + expected.work_s
    formula = f"({time_text(mttl_s)} + {time_text(wait_s)}) x (e^({time_text(attempt_s)} / {time_text(mttl_s)}) - 1)"
    if share < 1.0:
        formula = f"{100.0 * share:.0f} % of losses come without notice"
    price = found.machines * found.offer.price_usd_per_hour
    bill = f" and {usd_text(found.cost_usd(expected))}" if math.isfinite(expected.billed_s) and price else ""
    message = (
        f"{time_text(expected.work_s)} of work without checkpoints (insure: never, no keep_every) on "
        f"{offer_name(found.offer)}, whose machines last {time_text(mttl_s)} on average, is expected to take "
        f"{time_text(expected.wall_s)}{bill} ({formula}) instead of {time_text(lossless_s)}: "
        "leave `insure` at auto, or use on-demand machines"
    )
    return (Objection("unsaved", expected.wall_s, message, message),)


def _too_slow(found: OfferEstimate, expected: Expectation) -> tuple[Objection, ...]:
    if not is_too_slow(found, expected):
        return ()
    message = f"{too_many_losses(found)}: {time_text(expected.work_s)} of work would take {time_text(expected.wall_s)}"
    return (Objection("too-slow", expected.wall_s, message, message),)


def too_many_losses(found: OfferEstimate) -> str:
    """Return in words that machines hardly get ready before they are lost."""
    return (
        f"machines of {offer_name(found.offer)} last {time_text(found.hazard.mttl_s)} on average, and a new one takes "
        f"{time_text(found.restart.prepare_s)} to get ready"
    )


def _too_late(job: Job, found: OfferEstimate, expected: Expectation) -> tuple[Objection, ...]:
    deadline_s = job.objective.deadline_s
    if deadline_s is None or expected.wall_s <= deadline_s:
        return ()
    overhead_s = expected.wall_s - expected.work_s
    arithmetic = (
        f"{time_text(expected.wall_s)} ({time_text(expected.work_s)} of work, {time_text(overhead_s)} of starts, saves "
        f"and redo), and the deadline is {time_text(deadline_s)}"
    )
    return (
        Objection(
            "deadline",
            expected.wall_s,
            f"it is expected to take {arithmetic}",
            f"no offer is expected to meet the deadline: the fastest, {offer_name(found.offer)}, takes {arithmetic}",
        ),
    )


def never_starts(job: Job, found: OfferEstimate) -> tuple[Objection, ...]:
    """Refuse a deadline that leaves no time to train, however little the work is; what is only assumed refuses nothing."""
    start_s = found.restart.allocate_s + found.restart.prepare_s
    if not leaves_no_time(job, found) or _is_start_assumed(found):
        return ()
    message = (
        f"a machine takes {time_text(found.restart.allocate_s)} to start and {time_text(found.restart.prepare_s)} to get "
        f"ready, and the deadline is {time_text(job.objective.deadline_s or 0.0)}"
    )
    summary = f"no offer has a machine ready before the deadline: of the fastest, {offer_name(found.offer)}, {message}"
    return (Objection("start", start_s, message, summary),)


def leaves_no_time(job: Job, found: OfferEstimate) -> bool:
    """Whether the deadline comes before the first machine is ready."""
    deadline_s = job.objective.deadline_s
    return deadline_s is not None and found.restart.allocate_s + found.restart.prepare_s >= deadline_s


def _is_start_assumed(found: OfferEstimate) -> bool:
    starts = (PlanNumberKey.ALLOCATION, PlanNumberKey.PREPARATION)
    return any(one.name in starts and one.basis is NumberBasis.ASSUMED for one in found.numbers)


def _cut_short(job: Job, found: OfferEstimate, expected: Expectation) -> tuple[Objection, ...]:
    """Refuse a job with a deadline that `max_duration` stops before it is done; without a deadline the user may want that."""
    stops_s = nearest_limits.training_s(job)
    if job.objective.deadline_s is None or expected.wall_s <= stops_s:
        return ()
    message = (
        f"it is expected to take {time_text(expected.wall_s)}, and max_duration starts the last save after "
        f"{time_text(stops_s)}"
    )
    summary = (
        "max_duration stops the job before any offer is expected to meet the deadline: of the fastest, "
        f"{offer_name(found.offer)}, {message}"
    )
    return (Objection("max_duration", expected.wall_s, message, summary),)


def _over_budget(job: Job, found: OfferEstimate, reserve: float, cost_usd: float) -> tuple[Objection, ...]:
    budget_usd = job.objective.budget_usd
    if budget_usd is None or cost_usd + reserve <= budget_usd:
        return ()
    arithmetic = (
        f"{usd_text(cost_usd)} plus a reserve of {usd_text(reserve)} for a last save of at most "
        f"{time_text(job.checkpointing.save_timeout_s)}, and the budget is {usd_text(budget_usd)}"
    )
    return (
        Objection(
            "budget",
            cost_usd + reserve,
            f"it is expected to cost {arithmetic}",
            f"no offer fits the budget: the cheapest, {offer_name(found.offer)}, is expected to cost {arithmetic}",
        ),
    )


def _unknown_speed(job: Job, found: OfferEstimate) -> tuple[Objection, ...]:
    if job.objective.deadline_s is None and job.objective.budget_usd is None:
        return ()
    message = f"the speed on {offer_name(found.offer)} is unknown: request only this machine type to try it"
    return (Objection("unknown", 0.0, message, message),)
