"""Which offers a job may take, and in which order: by expected cost of an hour of work that stays.

An hour of *kept* work costs more than an hour of machine: saves, work done again and restarts are paid too.  How much
more is `models.runtime`'s business; here offers are filtered by what the job wants and ordered by

    USD per kept work hour = price x billed hours per hour of kept work / relative speed

(thesis, equations 4.1 and 4.4, for the overhead; Proteus, EuroSys 2017, section 4, for cost per work as what to
minimize).  `any_of` is a set, as in SkyPilot: the cheapest of all wants wins, and their order decides ties only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from windfall.events import Because
from windfall.jobs import Job, Measured, Minimize, Use, Want
from windfall.market import Offer
from windfall.models import pool
from windfall.models.runtime import Expectation
from windfall.policies.prospects import Knowledge, Number, Prospect, prospect
from windfall.terms import Reliability

_ASSUMED, _MTTP = ", assumed", "mean time to preemption"
HOPELESS = "hopeless, with such losses hardly any work is ever done: time over work"
HORIZON_S = 86_400.0
"""Work over which offers are compared where the job's own is not known [s]."""
HOPELESS_FACTOR = 10.0
"""A job that losses make so many times longer is not bought for, or warned of where its own work is not known."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """An offer that would do.

    Attributes:
        usd_per_work_hour: what one machine is expected to cost per hour of work that stays [USD/h]: of work as the
            slowest measured type does it in an hour, where types were measured.
        hours_per_work_hour: how long such an hour is expected to take, losses and saves included [h].
        because: what that rests on.
        prospect: the whole of what is believed.
    """

    offer: Offer
    usd_per_work_hour: float
    hours_per_work_hour: float
    because: tuple[Because, ...]
    prospect: Prospect


@dataclass(frozen=True, slots=True)
class Ranking:
    """All offers: those that would do, best first, and the others, each with a sentence."""

    ranked: tuple[Ranked, ...]
    refused: tuple[tuple[Offer, str], ...]


def rank(
    job: Job, offers: Iterable[Offer], rates: tuple[pool.Rate, ...], measured: tuple[Measured, ...] = ()
) -> Ranking:
    """Order the offers for a job.

    With `use: auto` spot comes first whatever is minimized, but for spot that is expected to cost more per kept work
    hour than the cheapest machine that cannot be taken back.  Among equals the order of the job's wants decides, then
    the offer's name, so that the same offers in any order give the same ranking.

    Args:
        job: what is wanted.
        offers: what is for sale.
        rates: MTTP and restart time per (provider, type, zone), as `fleet.BeliefsPooled` carries them.
        measured: speeds and save costs of earlier runs of this job; a type without counts as fast as the slowest.
    """
    return rank_knowing(job, offers, Knowledge(rates, measured))


def rank_knowing(job: Job, offers: Iterable[Offer], knowledge: Knowledge) -> Ranking:
    """Order the offers for a job as `rank` does, by all that is known."""
    fitting: list[tuple[int, Offer]] = []
    refused: list[tuple[Offer, str]] = []
    for offer in sorted(offers, key=_name):
        reason = refusal(job, offer)
        if reason is None:
            fitting.append((_preference(job.wants, offer), offer))
        else:
            refused.append((offer, reason))
    prospects = [(place, prospect(job, offer, knowledge)) for place, offer in fitting]
    slowest = min((found.work_per_s for _, found in prospects if found.work_per_s is not None), default=None)
    rows = [(place, _rank(found, slowest)) for place, found in prospects]
    reliable = [row.usd_per_work_hour for _, row in rows if row.offer.reliability is Reliability.RELIABLE]
    bar = min(reliable, default=math.inf)

    def order(place_and_row: tuple[int, Ranked]) -> tuple[object, ...]:
        place, row = place_and_row
        spot = row.offer.reliability is Reliability.TRANSIENT and row.usd_per_work_hour <= bar
        values = (row.usd_per_work_hour, row.hours_per_work_hour)
        if job.objective.minimize is Minimize.TIME:
            values = (values[1], values[0])
        return (not spot, *values, place, _name(row.offer))

    return Ranking(tuple(row for _, row in sorted(rows, key=order)), tuple(refused))


def refusal(job: Job, offer: Offer) -> str | None:
    """Return in a sentence why a job may not take an offer; None if it may."""
    if job.use is Use.SPOT and offer.reliability is Reliability.RELIABLE:
        return "it is on-demand, and the job uses spot machines only"
    if job.use is Use.ON_DEMAND and offer.reliability is Reliability.TRANSIENT:
        return "it is spot, and the job uses on-demand machines only"
    misses = min((missing(want, offer) for want in job.wants), key=len, default=())
    if misses:
        return "; ".join(misses)
    price_max = job.max_price_usd_per_hour
    if price_max is not None and offer.price_usd_per_hour > price_max:
        return f"it costs {offer.price_usd_per_hour:g} USD/h, and max_price is {price_max:g} USD/h"
    return None


def missing(want: Want, offer: Offer) -> tuple[str, ...]:
    """Return in words what an offer lacks of a want; empty if it would do.

    Processors and memory are lower bounds; provider, zone, type are names; accelerators must be of this kind and just
    so many, as in SkyPilot: a job written for one does not use eight.
    """
    words = []
    for wanted, have, what in (
        (want.provider, offer.provider, "provider"),
        (want.zone, offer.zone, "zone"),
        (want.machine_type, offer.machine_type, "machine type"),
    ):
        if wanted is not None and wanted != have:
            words.append(f"its {what} is {have}, not {wanted}")
    if want.accelerator is not None:
        has = offer.accelerators if (offer.accelerator or "").lower() == want.accelerator.lower() else 0
        if has != max(want.accelerators, 1):
            found = f"{offer.accelerator}:{offer.accelerators}" if offer.accelerators else "none"
            words.append(f"its accelerators are {found}, not {want.accelerator}:{max(want.accelerators, 1)}")
    if offer.cpus < want.cpus_min:
        words.append(f"it has {offer.cpus:g} processors, fewer than {want.cpus_min:g}")
    if offer.memory_gib < want.memory_gib_min:
        words.append(f"it has {offer.memory_gib:g} GiB of memory, less than {want.memory_gib_min:g} GiB")
    return tuple(words)


def _preference(wants: tuple[Want, ...], offer: Offer) -> int:
    return next(place for place, want in enumerate(wants) if not missing(want, offer))


def _name(offer: Offer) -> tuple[str, ...]:
    return offer.provider, offer.machine_type, offer.zone, offer.reliability.value


def _is_assumed(number: Number) -> bool:
    return number.source.startswith("assumed")


def is_hopeless(found: Prospect, expected: Expectation) -> bool:
    """Say whether losses make work so much longer that hardly any of it is ever done."""
    undisturbed_s = expected.work_s + found.restart.allocate_s + found.restart.prepare_s
    return expected.wall_s >= HOPELESS_FACTOR * undisturbed_s


def _rank(found: Prospect, slowest: float | None) -> Ranked:
    work_s = found.work_s or HORIZON_S
    expected = found.expect(work_s)
    faster = 1.0 if slowest is None or found.work_per_s is None else found.work_per_s / slowest
    usd = found.cost_usd(expected) / found.machines / (work_s / 3600.0) / faster
    hours = expected.wall_s / work_s / faster
    guess = _ASSUMED * (found.work_s is None)
    assumed = _ASSUMED if any(_is_assumed(number) for number in found.numbers if number.name == _MTTP) else guess
    because = (
        Because("price", found.offer.price_usd_per_hour, "USD/h"),
        *((Because(HOPELESS, hours * faster, ""),) if is_hopeless(found, expected) else ()),
        Because(f"expected preemptions{assumed}", expected.preemptions, ""),
        Because(f"redone{assumed}", expected.redo_s, "s"),
        Because(f"standing still for saves{guess}", expected.save_s, "s"),
        Because(f"getting machines and preparing them{guess}", expected.allocate_s + expected.prepare_s, "s"),
        Because(f"work{guess}", work_s, "s"),
        Because("speed against the slowest measured type", faster, ""),
        *(
            Because(number.name + _ASSUMED * _is_assumed(number), number.value, number.unit)
            for number in found.numbers
            if number.value is not None
        ),
    )
    finite = tuple(number for number in because if math.isfinite(number.value))
    return Ranked(found.offer, usd, hours, finite, found)
