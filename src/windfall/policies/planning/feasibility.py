"""Checks before anything is bought: refusals and warnings, each one sentence with its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable

from windfall.jobs import Job, Use
from windfall.market import Offer
from windfall.models.expected_runtime import Expectation, unsaved_s
from windfall.policies.acquisition.ranking import HORIZON_S, is_too_slow, missing, refusal
from windfall.policies.checkpointing.decision import parse_policy
from windfall.policies.deadlines import limits
from windfall.policies.planning.estimates import OfferEstimate
from windfall.structs import Struct
from windfall.terms import Instant, Reliability, Seconds

UNSAVED_FACTOR = 2.0
"""A spot job without checkpoints is refused if it is expected to take this many times as long as without losses."""


class Objection(Struct, frozen=True):
    """Why an offer is refused.

    Attributes:
        kind: `unsaved`, `too-slow`, `deadline`, `budget` or `unknown`.
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
        return _over_budget(job, found, reserve, 0.0) or (_unknown_speed(job, found) if comparable else ())
    expected = found.expect(found.work_s)
    lost = _unsaved(job, found, expected) or _too_slow(found, expected)
    if lost:
        return lost
    return (*_too_late(job, found, expected), *_over_budget(job, found, reserve, found.cost_usd(expected)))


def nearest_objections(objected: Iterable[tuple[Objection, ...]]) -> str:
    """Return the message for when every offer is refused: for each kind of objection, the offer that came nearest."""
    nearest: dict[str, Objection] = {}
    for objection in (objection for found in objected for objection in found):
        known = nearest.get(objection.kind)
        if known is None or objection.size < known.size:
            nearest[objection.kind] = objection
    return "; ".join(objection.summary for objection in nearest.values())


def no_matching_offer(job: Job, refused: tuple[tuple[Offer, str], ...]) -> str:
    """Return the message for when no offer matches the job: the price, spot or on-demand, or the nearest offer."""
    if not refused:
        return "no provider has an offer now: run `windfall ps` to see the providers' status"
    matching = [offer for offer, _ in refused if any(not missing(requested, offer) for requested in job.resources)]
    allowed = [offer for offer in matching if _allowed(job, offer)]
    if allowed:
        cheapest = min(allowed, key=lambda offer: (offer.price_usd_per_hour, offer.key))
        return (
            f"max_price {job.max_price_usd_per_hour:g} USD/h is below every matching offer: the cheapest is "
            f"{offer_name(cheapest)} at {cheapest.price_usd_per_hour:g} USD/h"
        )
    if matching:
        cheapest = min(matching, key=lambda offer: (offer.price_usd_per_hour, offer.key))
        return f"no matching offer is allowed: {offer_name(cheapest)}: {refusal(job, cheapest)}; set `use: auto` to allow both"
    lacks = [(min((missing(requested, offer) for requested in job.resources), key=len), offer) for offer, _ in refused]
    words, offer = min(lacks, key=lambda row: (len(row[0]), row[1].price_usd_per_hour, row[1].key))
    return f"no offer matches the job's resources: the nearest is {offer_name(offer)}, but {'; '.join(words)}"


def warnings(job: Job, found: OfferEstimate) -> tuple[str, ...]:
    """Return what the user should know before approving an offer."""
    words = []
    spot = found.offer.reliability is Reliability.TRANSIENT
    if spot and found.fit.fits is False:
        words.append(_no_emergency_save(found))
    if spot and _never_saves(job) and found.work_s is None:
        mttl_s = found.hazard.mttl_s
        words.append(
            f"without checkpoints each loss restarts the run from step 0, and machines like these last "
            f"{time_text(mttl_s)} on average: {time_text(3 * mttl_s)} of work would take "
            f"{time_text(unsaved_s(3 * mttl_s, mttl_s, 0.0))}; how long this job takes is unknown"
        )
    if found.work_s is None:
        if is_too_slow(found, found.expect(HORIZON_S)):
            words.append(f"{_too_many_losses(found)}: the run would make almost no progress")
        requests = [
            what
            for what, limit in (("deadline", job.objective.deadline_s), ("budget", job.objective.budget_usd))
            if limit is not None
        ]
        if requests:
            words.append(
                f"whether the {' and the '.join(requests)} can be met is unknown: no earlier run measured the speed"
            )
        return tuple(words)
    wall_s = found.expect(found.work_s).wall_s
    if job.max_duration_s is not None and wall_s > _training_s(job, job.max_duration_s):
        words.append(
            f"max_duration {time_text(job.max_duration_s)} stops this job before it finishes: it is expected to take "
            f"{time_text(wall_s)}"
        )
    return tuple(words)


def _training_s(job: Job, max_duration_s: Seconds) -> float:
    """Return how much of `max_duration` remains for training before the last save starts [s]."""
    return limits.last_save_at(Instant(0.0), max_duration_s, job.checkpointing.save_timeout_s)


def reserve_usd(job: Job, found: OfferEstimate) -> float:
    """Return the part of a budget held in reserve: the machines' price over the last save and the release [USD]."""
    return limits.reserve_usd(found.machines * found.offer.price_usd_per_hour, job.checkpointing.save_timeout_s)


def offer_name(offer: Offer) -> str:
    """Return an offer's name for messages."""
    kind = "spot" if offer.reliability is Reliability.TRANSIENT else "on-demand"
    return f"{offer.machine_type} in {offer.provider}/{offer.zone} ({kind})"


def time_text(duration_s: float) -> str:
    """Return a duration as text, in the unit that reads best."""
    if not math.isfinite(duration_s):
        return "practically forever"
    if duration_s >= 360_000.0:
        hours = duration_s / 3600.0
        return f"{hours:,.0f} h" if hours < 1e7 else f"{hours:.2g} h"
    if duration_s >= 7200.0:
        return f"{duration_s / 3600.0:.3g} h"
    return f"{duration_s / 60.0:.3g} min" if duration_s >= 120.0 else f"{duration_s:.3g} s"


def size_text(size_bytes: float) -> str:
    """Return an amount of data as text, in the unit that reads best."""
    units = ("B", "kB", "MB", "GB", "TB")
    place = min(int(math.log10(size_bytes) // 3), len(units) - 1) if size_bytes >= 1.0 else 0
    return f"{size_bytes / 1000.0**place:.3g} {units[place]}"


def usd_text(value: float) -> str:
    """Return an amount of money as text: to the cent, or with more digits below a dollar."""
    return f"{value:,.2f} USD" if value >= 1.0 else f"{value:.4f} USD"


def _allowed(job: Job, offer: Offer) -> bool:
    kinds = {Use.SPOT: Reliability.TRANSIENT, Use.ON_DEMAND: Reliability.RELIABLE}
    return kinds.get(job.use, offer.reliability) is offer.reliability


def _never_saves(job: Job) -> bool:
    return parse_policy(job.options.policy) == "never" and job.checkpointing.keep_every is None


def _lossless_s(found: OfferEstimate, expected: Expectation) -> float:
    return expected.work_s + found.restart.allocate_s + found.restart.prepare_s


def _unsaved(job: Job, found: OfferEstimate, expected: Expectation) -> tuple[Objection, ...]:
    """Refuse long work without checkpoints: 48 h at a mean lifetime of 8 h take 8 h x (e^6 - 1) = 3219 h."""
    if math.isinf(found.hazard.mttp_s) or not _never_saves(job):
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
        formula = f"{share:.0%} of losses come without notice"
    price = found.machines * found.offer.price_usd_per_hour
    bill = f" and {usd_text(found.cost_usd(expected))}" if math.isfinite(expected.billed_s) and price else ""
    message = (
        f"{time_text(expected.work_s)} of work without checkpoints (insure: never, no keep_every) on "
        f"{offer_name(found.offer)}, which loses a machine every {time_text(mttl_s)} on average, is expected to take "
        f"{time_text(expected.wall_s)}{bill} ({formula}) instead of {time_text(lossless_s)}: "
        "leave `insure` at auto, or use on-demand machines"
    )
    return (Objection("unsaved", expected.wall_s, message, message),)


def _too_slow(found: OfferEstimate, expected: Expectation) -> tuple[Objection, ...]:
    if not is_too_slow(found, expected):
        return ()
    message = f"{_too_many_losses(found)}: {time_text(expected.work_s)} of work would take {time_text(expected.wall_s)}"
    return (Objection("too-slow", expected.wall_s, message, message),)


def _too_many_losses(found: OfferEstimate) -> str:
    return (
        f"{offer_name(found.offer)} loses a machine every {time_text(found.hazard.mttl_s)} on average, and a new one needs "
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


def _no_emergency_save(found: OfferEstimate) -> str:
    interval_s = found.saving.interval_s
    back = "to its start" if math.isinf(interval_s) else f"by {time_text(interval_s / 2.0)} on average"
    if found.fit.notice_s <= 0.0:
        return f"losses come without notice: each sets the run back {back}"
    return (
        f"an emergency save takes {time_text(found.fit.needs_s or 0.0)} and does not fit the notice of "
        f"{time_text(found.fit.notice_s)}: the run is saved at intervals instead, and each loss sets it back {back}"
    )
