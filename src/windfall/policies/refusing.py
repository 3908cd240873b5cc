"""What is refused or warned of before anything is bought, each in a sentence with its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from windfall.jobs import Job, Use
from windfall.market import Offer
from windfall.models.runtime import Expectation, unsaved_s
from windfall.policies import limits
from windfall.policies.buying import HORIZON_S, is_hopeless, missing, refusal
from windfall.policies.prospects import Prospect
from windfall.policies.saving.decide import parse_policy
from windfall.terms import Instant, Reliability, Seconds

UNSAVED_FACTOR = 2.0
"""A spot job without checkpoints that is expected to take this many times as long as undisturbed is refused."""


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an offer will not do.

    Attributes:
        kind: `unsaved`, `hopeless`, `deadline`, `budget` or `unknown`.
        size: by how much; of several offers the smallest is told.
        sentence: about this offer.
        summary: when no offer is left and this one came nearest.
    """

    kind: str
    size: float
    sentence: str
    summary: str


def objections(job: Job, found: Prospect, *, comparable: bool) -> tuple[Objection, ...]:
    """Return what speaks against an offer that has all that was wanted; empty if nothing does.

    Args:
        job: with its limits.
        found: what is believed of the offer.
        comparable: whether the time on some other offer is known: limits are then not left to one where it is not.
    """
    held = reserve_usd(job, found)
    if found.work_s is None:
        return _unpayable(job, found, held, 0.0) or (_unknown(job, found) if comparable else ())
    expected = found.expect(found.work_s)
    lost = _unsaved(job, found, expected) or _hopeless(found, expected)
    if lost:
        return lost
    return (*_late(job, found, expected), *_unpayable(job, found, held, found.cost_usd(expected)))


def none_left(objected: Iterable[tuple[Objection, ...]]) -> str:
    """Return what to tell when every offer met an objection: per kind the one that came nearest."""
    nearest: dict[str, Objection] = {}
    for objection in (objection for found in objected for objection in found):
        known = nearest.get(objection.kind)
        if known is None or objection.size < known.size:
            nearest[objection.kind] = objection
    return "; ".join(objection.summary for objection in nearest.values())


def nothing_fits(job: Job, refused: tuple[tuple[Offer, str], ...]) -> str:
    """Return what to tell when no offer has what was wanted: the price, the kind, or the nearest."""
    if not refused:
        return "nothing is for sale now: see `windfall status` for what the providers say"
    matching = [offer for offer, _ in refused if any(not missing(want, offer) for want in job.wants)]
    allowed = [offer for offer in matching if _allowed(job, offer)]
    if allowed:
        cheapest = min(allowed, key=lambda offer: (offer.price_usd_per_hour, offer.key))
        return (
            f"max_price {job.max_price_usd_per_hour:g} USD/h is below every offer that would do: the cheapest is "
            f"{name(cheapest)} at {cheapest.price_usd_per_hour:g} USD/h"
        )
    if matching:
        cheapest = min(matching, key=lambda offer: (offer.price_usd_per_hour, offer.key))
        return (
            f"no offer that would do may be used: {name(cheapest)}: {refusal(job, cheapest)}; `use: auto` allows both"
        )
    lacks = [(min((missing(want, offer) for want in job.wants), key=len), offer) for offer, _ in refused]
    words, offer = min(lacks, key=lambda row: (len(row[0]), row[1].price_usd_per_hour, row[1].key))
    return f"no offer has what the job wants: the nearest is {name(offer)}, but {'; '.join(words)}"


def warnings(job: Job, found: Prospect) -> tuple[str, ...]:
    """Return what the user should know before saying yes to an offer."""
    words = []
    spot = found.offer.reliability is Reliability.TRANSIENT
    if spot and found.fit.fits is False:
        words.append(_uninsured(found))
    if spot and _never_saves(job) and found.work_s is None:
        mttl_s = found.hazard.mttl_s
        words.append(
            f"without checkpoints a loss begins the run anew, and machines like these last {time(mttl_s)} in the mean: "
            f"what takes {time(3 * mttl_s)} undisturbed would take {time(unsaved_s(3 * mttl_s, mttl_s, 0.0))}; "
            "how long this job takes is unknown"
        )
    if found.work_s is None:
        if is_hopeless(found, found.expect(HORIZON_S)):
            words.append(f"{_too_often(found)}: hardly any work would ever be done")
        wishes = [
            what
            for what, limit in (("deadline", job.objective.deadline_s), ("budget", job.objective.budget_usd))
            if limit is not None
        ]
        if wishes:
            words.append(
                f"whether the {' and the '.join(wishes)} can be met is unknown: no earlier run tells the speed"
            )
        return tuple(words)
    wall_s = found.expect(found.work_s).wall_s
    if job.max_duration_s is not None and wall_s > _training_s(job, job.max_duration_s):
        words.append(
            f"max_duration {time(job.max_duration_s)} ends this job before it is done: it is expected to take "
            f"{time(wall_s)}"
        )
    return tuple(words)


def _training_s(job: Job, max_duration_s: Seconds) -> float:
    """How much of `max_duration` there is before the last save begins [s]."""
    return limits.save_begins_at(Instant(0.0), max_duration_s, job.checkpointing.save_timeout_s)


def reserve_usd(job: Job, found: Prospect) -> float:
    """Return what is held back of a budget: the machines' price over the last save and the release [USD]."""
    return limits.reserve_usd(found.machines * found.offer.price_usd_per_hour, job.checkpointing.save_timeout_s)


def name(offer: Offer) -> str:
    """An offer as people see it."""
    kind = "spot" if offer.reliability is Reliability.TRANSIENT else "on-demand"
    return f"{offer.machine_type} in {offer.provider}/{offer.zone} ({kind})"


def time(duration_s: float) -> str:
    """A length of time as people read it."""
    if not math.isfinite(duration_s):
        return "practically for ever"
    if duration_s >= 360_000.0:
        hours = duration_s / 3600.0
        return f"{hours:,.0f} h" if hours < 1e7 else f"{hours:.2g} h"
    if duration_s >= 7200.0:
        return f"{duration_s / 3600.0:.3g} h"
    return f"{duration_s / 60.0:.3g} min" if duration_s >= 120.0 else f"{duration_s:.3g} s"


def amount(size_bytes: float) -> str:
    """An amount of data as people read it."""
    units = ("B", "kB", "MB", "GB", "TB")
    place = min(int(math.log10(size_bytes) // 3), len(units) - 1) if size_bytes >= 1.0 else 0
    return f"{size_bytes / 1000.0**place:.3g} {units[place]}"


def usd(value: float) -> str:
    """Money as people read it: cents, or more digits below a dollar."""
    return f"{value:,.2f} USD" if value >= 1.0 else f"{value:.4f} USD"


def _allowed(job: Job, offer: Offer) -> bool:
    kinds = {Use.SPOT: Reliability.TRANSIENT, Use.ON_DEMAND: Reliability.RELIABLE}
    return kinds.get(job.use, offer.reliability) is offer.reliability


def _never_saves(job: Job) -> bool:
    return parse_policy(job.checkpointing.policy) == "never" and job.checkpointing.keep_every is None


def _undisturbed_s(found: Prospect, expected: Expectation) -> float:
    return expected.work_s + found.restart.allocate_s + found.restart.prepare_s


def _unsaved(job: Job, found: Prospect, expected: Expectation) -> tuple[Objection, ...]:
    """48 h at a mean life of 8 h: 8 h x (e^6 - 1) = 3219 h."""
    if math.isinf(found.hazard.mttp_s) or not _never_saves(job):
        return ()
    undisturbed_s = _undisturbed_s(found, expected)
    if expected.wall_s < UNSAVED_FACTOR * undisturbed_s:
        return ()
    hazard = found.hazard
    share = hazard.silent_share if hazard.covered else 1.0
    mttl_s, empty_s = hazard.mttl_s, found.restart.allocate_s + found.restart.notice_loss_s
    # A try is preparation and work: what is lost with each is the try and the wait for the next machine.
    tried_s = found.restart.prepare_s + expected.work_s
    formula = f"({time(mttl_s)} + {time(empty_s)}) x (e^({time(tried_s)} / {time(mttl_s)}) - 1)"
    if share < 1.0:
        formula = f"a share of {share:.2g} of the losses comes without notice"
    price = found.machines * found.offer.price_usd_per_hour
    bill = f" and {usd(found.cost_usd(expected))}" if math.isfinite(expected.billed_s) and price else ""
    sentence = (
        f"{time(expected.work_s)} of work without checkpoints (insure: never, no keep_every) on {name(found.offer)}, "
        f"where a machine is lost every {time(mttl_s)} in the mean, are expected to take {time(expected.wall_s)}{bill} "
        f"({formula}) instead of {time(undisturbed_s)}: leave `insure` at auto, or use on-demand machines"
    )
    return (Objection("unsaved", expected.wall_s, sentence, sentence),)


def _hopeless(found: Prospect, expected: Expectation) -> tuple[Objection, ...]:
    if not is_hopeless(found, expected):
        return ()
    sentence = f"{_too_often(found)}: {time(expected.work_s)} of work are expected to take {time(expected.wall_s)}"
    return (Objection("hopeless", expected.wall_s, sentence, sentence),)


def _too_often(found: Prospect) -> str:
    return (
        f"{name(found.offer)} loses a machine every {time(found.hazard.mttl_s)} in the mean, and a new one needs "
        f"{time(found.restart.prepare_s)} to get ready"
    )


def _late(job: Job, found: Prospect, expected: Expectation) -> tuple[Objection, ...]:
    deadline_s = job.objective.deadline_s
    if deadline_s is None or expected.wall_s <= deadline_s:
        return ()
    lost_s = expected.wall_s - expected.work_s
    arithmetic = (
        f"{time(expected.wall_s)} ({time(expected.work_s)} of work, {time(lost_s)} of starting, saving and redoing), "
        f"and the deadline is {time(deadline_s)}"
    )
    return (
        Objection(
            "deadline",
            expected.wall_s,
            f"it is expected to take {arithmetic}",
            f"no offer is expected to meet the deadline: the quickest, {name(found.offer)}, takes {arithmetic}",
        ),
    )


def _unpayable(job: Job, found: Prospect, held_usd: float, cost_usd: float) -> tuple[Objection, ...]:
    budget_usd = job.objective.budget_usd
    if budget_usd is None or cost_usd + held_usd <= budget_usd:
        return ()
    arithmetic = (
        f"{usd(cost_usd)}, with {usd(held_usd)} held back for a last save of at most "
        f"{time(job.checkpointing.save_timeout_s)}, and the budget is {usd(budget_usd)}"
    )
    return (
        Objection(
            "budget",
            cost_usd + held_usd,
            f"it is expected to cost {arithmetic}",
            f"no plan fits the budget: the cheapest, {name(found.offer)}, is expected to cost {arithmetic}",
        ),
    )


def _unknown(job: Job, found: Prospect) -> tuple[Objection, ...]:
    if job.objective.deadline_s is None and job.objective.budget_usd is None:
        return ()
    sentence = f"the speed on {name(found.offer)} is unknown: ask for this type alone to try it"
    return (Objection("unknown", 0.0, sentence, sentence),)


def _uninsured(found: Prospect) -> str:
    interval_s = found.saving.interval_s
    back = "to its begin" if math.isinf(interval_s) else f"by {time(interval_s / 2.0)} in the mean"
    if found.fit.notice_s <= 0.0:
        return f"losses come without notice: each throws the run back {back}"
    return (
        f"a last save takes {time(found.fit.needs_s or 0.0)} and fits no notice of {time(found.fit.notice_s)}: the run is "
        f"saved at intervals instead, and each loss throws it back {back}"
    )
