"""What a job will cost and when it will be done, before anything is bought; what cannot be done is refused here.

The expected time of a run is the sum of these parts, and so is its cost (`models.runtime` has the formulas):

    work        the work itself at the speed measured in earlier runs
    redo        work done again after losses that no save covered, with what was still on its way to the store
    save        the script standing still for insurance saves, and for emergency saves at notices
    allocate    waiting for machines: the first allocation, and after each loss what the notice leaves of it.  With an
                emergency save the script stands still from its commit on (another machine may then take the run), so
                that the wait is allocation less the rest of the step under way; without one the old machine trains on
                until it is taken and only max(0, allocate - notice) is waited
    prepare     boot, setup, restore, the script's start and first step of the first machine and of each replacement,
                begun again where a machine is lost in it
    finish      the last point's way to the store

Billed is each machine from its start to its end: not the allocations (nothing runs), but twice the time in which a
machine on notice and its successor both run, and the time until a finished run's machines are given back.  A silent
loss is acted upon, and a finished run's machines are given back, half a look of the controller later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from windfall.errors import Infeasible
from windfall.events import Because
from windfall.jobs import Job, Measured
from windfall.market import Offer
from windfall.models import pool
from windfall.models.runtime import Expectation
from windfall.policies import refusing
from windfall.policies.buying import Ranked, rank_knowing
from windfall.policies.prospects import LOOK_S, Knowledge, Number, Prospect
from windfall.terms import Reliability, Seconds, Usd, WallTime

ALTERNATIVES_MAX = 5
"""How many other offers a plan shows."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where time and money are expected to go."""

    name: str
    duration_s: Seconds
    cost_usd: Usd


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of the job on one offer.

    Attributes:
        wall_s: from now to the script's end [s].
        finish: now + wall.
        machine_hours: billed, of all machines together [h].
        parts: durations add up to `wall_s`, costs to `cost_usd`; the cost of `allocate` is that of the other machines
            while one is waited for, and of machines that run beside their successors, less what is not billed.
    """

    cost_usd: Usd
    wall_s: Seconds
    finish: WallTime
    machine_hours: float
    preemptions: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An offer and what is expected of it.

    Attributes:
        usd_per_hour: of all the job's machines together, now.
        usd_per_work_hour: of one machine, per hour of work that stays; None if nothing is expected to.
        expected: None if unknown.
        planned_at: from when `expected` counts.
    """

    offer: Offer
    machines: int
    usd_per_hour: float
    usd_per_work_hour: float | None
    expected: Expected | None
    planned_at: WallTime


@dataclass(frozen=True, slots=True)
class Refused:
    """An offer that was not considered, and why, in a sentence."""

    offer: Offer
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be bought for a job, and what is expected of it.

    Attributes:
        quoted_at: when this was planned; prices are the offers' own.
        alternatives: the next best, best first.
        refused: offers that would not do.
        twin: the same machines where they cannot be taken back; None if unknown.
        savings_percent: against the twin's cost; None if unknown or if the twin is what was chosen.
        notice: what the provider's notice can save, in a sentence.
        notice_suffices: whether an emergency save fits it; None if unknown.
        numbers: what all this rests on, each with its source.
        unknown: what is not known, each in a sentence.
        warnings: what the user should know before saying yes.
        because: the numbers by which the chosen offer won.
    """

    job_id: str
    quoted_at: WallTime
    chosen: Candidate
    alternatives: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    twin: Expected | None
    savings_percent: float | None
    notice: str
    notice_suffices: bool | None
    numbers: tuple[Number, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    because: tuple[Because, ...]


def plan(
    job: Job,
    offers: Iterable[Offer],
    rates: tuple[pool.Rate, ...],
    measured: tuple[Measured, ...],
    now: WallTime,
    *,
    pooled: tuple[pool.Pooled, ...] = (),
    look_s: float = LOOK_S,
) -> Plan:
    """Return what to buy first for a job and what it is expected to take; nothing is spent.

    The best offer in `buying.rank`'s order is chosen that meets deadline and budget and gets done at all.

    Args:
        job: as submitted.
        offers: what is for sale now.
        rates: MTTP and restart time per (provider, type, zone), as `fleet.BeliefsPooled` carries them.
        measured: what earlier runs of this job showed; without them cost and finish are unknown.
        now: the instant from which finish and deadline count.
        pooled: the rates with what they rest on, and the shares of losses without notice; replaces `rates`.
        look_s: between two looks of the controller at machines and run [s].

    Raises:
        Infeasible: nothing that can be bought does what was asked; the message has the arithmetic.
    """
    knowledge = Knowledge(tuple(row.rate for row in pooled) or rates, measured, pooled, look_s)
    ranking = rank_knowing(job, offers, knowledge)
    if not ranking.ranked:
        raise Infeasible(refusing.nothing_fits(job, ranking.refused))
    rows = [(row, _candidate(row, now)) for row in ranking.ranked]
    comparable = any(candidate.expected is not None for _, candidate in rows)
    met: list[tuple[Ranked, Candidate]] = []
    objected: list[tuple[refusing.Objection, ...]] = []
    refused = [Refused(offer, reason) for offer, reason in ranking.refused]
    for row, candidate in rows:
        objections = refusing.objections(job, row.prospect, comparable=comparable)
        if objections:
            objected.append(objections)
            refused.append(Refused(row.offer, "; ".join(objection.sentence for objection in objections)))
        else:
            met.append((row, candidate))
    if not met:
        raise Infeasible(refusing.none_left(objected))
    (row, chosen), *others = met
    return _plan(job, row, chosen, tuple(other for _, other in others[:ALTERNATIVES_MAX]), tuple(refused))


def _plan(
    job: Job, row: Ranked, chosen: Candidate, others: tuple[Candidate, ...], refused: tuple[Refused, ...]
) -> Plan:
    found = row.prospect
    now = chosen.planned_at
    twin = None
    savings: float | None = None
    if found.work_s is not None:
        twin = _expected(found.reliable, found.reliable.expect(found.work_s), now)
    spot = found.offer.reliability is Reliability.TRANSIENT
    if spot and twin is not None and chosen.expected is not None and twin.cost_usd > 0.0:
        savings = 100.0 * (1.0 - chosen.expected.cost_usd / twin.cost_usd)
    return Plan(
        job_id=job.job_id,
        quoted_at=now,
        chosen=chosen,
        alternatives=others,
        refused=refused,
        twin=twin,
        savings_percent=savings,
        notice=_notice(found),
        notice_suffices=found.fit.fits,
        numbers=found.numbers,
        unknown=tuple(
            f"{number.name}: {number.source}"
            for number in found.numbers
            if number.value is None and number.source.startswith("unknown")
        ),
        warnings=refusing.warnings(job, found),
        because=row.because,
    )


def _candidate(row: Ranked, now: WallTime) -> Candidate:
    found = row.prospect
    expected = None if found.work_s is None else _expected(found, found.expect(found.work_s), now)
    return Candidate(
        offer=found.offer,
        machines=found.machines,
        usd_per_hour=found.machines * found.offer.price_usd_per_hour,
        usd_per_work_hour=row.usd_per_work_hour if math.isfinite(row.usd_per_work_hour) else None,
        expected=expected,
        planned_at=now,
    )


def _expected(found: Prospect, expectation: Expectation, now: WallTime) -> Expected | None:
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
    parts = [Part(name, Seconds(took_s), Usd(took_s * usd_per_s)) for name, took_s in billed]
    rest_usd = cost_usd - math.fsum(part.cost_usd for part in parts)
    parts.insert(3, Part("allocate", Seconds(expectation.allocate_s), Usd(rest_usd)))
    return Expected(
        cost_usd=Usd(cost_usd),
        wall_s=Seconds(expectation.wall_s),
        finish=WallTime(now + expectation.wall_s),
        machine_hours=found.billed_s(expectation) / 3600.0,
        preemptions=expectation.preemptions,
        parts=tuple(parts),
    )


def _notice(found: Prospect) -> str:
    """Say what the notice can save: the state's way to the store against the time there is."""
    if found.offer.reliability is Reliability.RELIABLE:
        return "this machine cannot be taken back: no notice is needed"
    fit = found.fit
    if fit.notice_s <= 0.0:
        return "there is no notice: only saves at intervals are of use"
    known = {number.name: number.value for number in found.numbers}
    if fit.fits is None or fit.needs_s is None:
        return (
            f"whether the {fit.notice_s:g} s of notice suffice for a last save is unknown: no save was measured; "
            "the first run measures one early"
        )
    size, upload_s = known.get("size of the state") or 0.0, known.get("upload of the state") or 0.0
    way = f"{refusing.amount(size)} upload in {upload_s:.1f} s" if size else f"the upload takes {upload_s:.1f} s"
    needs = f"{way}; with the step, the standstill and the commit a last save takes {fit.needs_s:.1f} s"
    if fit.fits:
        return f"{needs}, and {fit.notice_s:g} s of notice suffice: announced losses redo nothing"
    left_s = max(fit.notice_s - (fit.needs_s - upload_s), 0.0)
    carries = f", in which {refusing.amount(size * left_s / upload_s)} would fit" if size and upload_s > 0.0 else ""
    return f"{needs}, more than the {fit.notice_s:g} s of notice{carries}: every loss goes back to the last save"
