"""Filter the offers for a job and rank them by the expected cost of an hour of kept work.

An hour of *kept* work costs more than an hour of machine time: saves, redo and restarts are paid too.
`models.expected_runtime` computes how much more; this module filters offers by the job's resources and orders them by

    USD per kept work hour = price x billed hours per hour of kept work / relative speed

(thesis, equations 4.1 and 4.4, for the overhead; Proteus, EuroSys 2017, section 4, for cost per work as what to
minimize).  `any_of` is a set, as in SkyPilot: the cheapest of all alternatives wins; their order only breaks ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from windfall.events import ComparedValue
from windfall.jobs import Job, Measurement, Minimize, Resources, Use
from windfall.market import Offer
from windfall.models import lifetime_pool
from windfall.models.expected_runtime import Expectation
from windfall.policies.planning.estimates import (
    Knowledge,
    NumberBasis,
    OfferEstimate,
    PlanNumber,
    PlanNumberKey,
    offer_estimate,
)
from windfall.structs import Struct
from windfall.terms import Reliability

_ASSUMED = ", assumed"
TOO_SLOW = "too many losses for progress: time per work"
HORIZON_S = 86_400.0
"""Work over which offers are compared if the job's own is unknown [s]."""
SLOWDOWN_MAX = 10.0
"""A job that losses make this many times longer is refused; if its work is unknown, it gets a warning."""


class Ranked(Struct, frozen=True):
    """An offer that matches the job, with its rank.

    Attributes:
        usd_per_work_hour: expected cost of one machine per hour of kept work [USD/h]; where speeds were measured, an
            hour of work is what the slowest measured type does in an hour.
        hours_per_work_hour: expected time for such an hour, losses and saves included [h].
        rationale: the numbers behind it.
        offer_estimate: the complete estimate.
    """

    offer: Offer
    usd_per_work_hour: float
    hours_per_work_hour: float
    rationale: tuple[ComparedValue, ...]
    offer_estimate: OfferEstimate


class Ranking(Struct, frozen=True):
    """All offers: those that match, best first, and the others, each with the reason."""

    ranked: tuple[Ranked, ...]
    refused: tuple[tuple[Offer, str], ...]


def rank(
    job: Job, offers: Iterable[Offer], rates: tuple[lifetime_pool.Rate, ...], measured: tuple[Measurement, ...] = ()
) -> Ranking:
    """Order the offers for a job.

    With `use: auto` spot comes first whatever is minimized, except spot that is expected to cost more per hour of kept
    work than the cheapest on-demand machine.  Ties are broken by the order of the job's resources, then by the
    offer's name, so that the same offers in any order give the same ranking.

    Args:
        job: the job.
        offers: what the providers offer.
        rates: MTTP and restart time per (provider, type, zone), as `fleet.EstimatesPooled` carries them.
        measured: speeds and save costs of earlier runs of this job; an unmeasured type counts as fast as the slowest.
    """
    return rank_with(job, offers, Knowledge(rates, measured))


def rank_with(job: Job, offers: Iterable[Offer], knowledge: Knowledge) -> Ranking:
    """Order the offers for a job as `rank` does, with all available estimates."""
    fitting: list[tuple[int, Offer]] = []
    refused: list[tuple[Offer, str]] = []
    for offer in sorted(offers, key=_name):
        reason = refusal(job, offer)
        if reason is None:
            fitting.append((_preference(job.resources, offer), offer))
        else:
            refused.append((offer, reason))
    offer_estimates = [(place, offer_estimate(job, offer, knowledge)) for place, offer in fitting]
    slowest = min((found.work_per_s for _, found in offer_estimates if found.work_per_s is not None), default=None)
    rows = [(place, _rank(found, slowest)) for place, found in offer_estimates]
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
    """Return why a job cannot take an offer; None if it can."""
    if job.use is Use.SPOT and offer.reliability is Reliability.RELIABLE:
        return "it is on-demand, and the job uses spot machines only"
    if job.use is Use.ON_DEMAND and offer.reliability is Reliability.TRANSIENT:
        return "it is spot, and the job uses on-demand machines only"
    misses = min((missing(request, offer) for request in job.resources), key=len, default=())
    if misses:
        return "; ".join(misses)
    price_max = job.max_price_usd_per_hour
    if price_max is not None and offer.price_usd_per_hour > price_max:
        return f"it costs {offer.price_usd_per_hour:g} USD/h, and max_price is {price_max:g} USD/h"
    return None


def missing(request: Resources, offer: Offer) -> tuple[str, ...]:
    """Return each way in which an offer misses the requested resources; empty if it matches.

    Processors and memory are lower bounds; provider, zone and type are names; accelerators must match in kind and
    number, as in SkyPilot: a job written for one does not use eight.
    """
    words = []
    for requested, have, what in (
        (request.provider, offer.provider, "provider"),
        (request.zone, offer.zone, "zone"),
        (request.machine_type, offer.machine_type, "machine type"),
    ):
        if requested is not None and requested != have:
            words.append(f"its {what} is {have}, not {requested}")
    if request.accelerator is not None:
        has = offer.accelerators if (offer.accelerator or "").lower() == request.accelerator.lower() else 0
        if has != max(request.accelerators, 1):
            found = f"{offer.accelerator}:{offer.accelerators}" if offer.accelerators else "none"
            words.append(f"its accelerators are {found}, not {request.accelerator}:{max(request.accelerators, 1)}")
    if offer.cpus < request.cpus_min:
        words.append(f"it has {offer.cpus:g} processors, fewer than {request.cpus_min:g}")
    if offer.memory_gib < request.memory_gib_min:
        words.append(f"it has {offer.memory_gib:g} GiB of memory, less than {request.memory_gib_min:g} GiB")
    return tuple(words)


def _preference(resources: tuple[Resources, ...], offer: Offer) -> int:
    return next(place for place, request in enumerate(resources) if not missing(request, offer))


def _name(offer: Offer) -> tuple[str, ...]:
    return offer.provider, offer.machine_type, offer.zone, offer.reliability.value


def _is_assumed(number: PlanNumber) -> bool:
    return number.basis is NumberBasis.ASSUMED


def is_too_slow(found: OfferEstimate, expected: Expectation) -> bool:
    """Return whether losses make the run at least `SLOWDOWN_MAX` times longer."""
    lossless_s = expected.work_s + found.restart.allocate_s + found.restart.prepare_s
    return expected.wall_s >= SLOWDOWN_MAX * lossless_s


def _rank(found: OfferEstimate, slowest: float | None) -> Ranked:
    work_s = found.work_s or HORIZON_S
    expected = found.expect(work_s)
    faster = 1.0 if slowest is None or found.work_per_s is None else found.work_per_s / slowest
    usd = found.cost_usd(expected) / found.machines / (work_s / 3600.0) / faster
    hours = expected.wall_s / work_s / faster
    guess = _ASSUMED * (found.work_s is None)
    assumed = (
        _ASSUMED if any(_is_assumed(number) for number in found.numbers if number.name is PlanNumberKey.MTTP) else guess
    )
    rationale = (
        ComparedValue("price", found.offer.price_usd_per_hour, "USD/h"),
        *((ComparedValue(TOO_SLOW, hours * faster, ""),) if is_too_slow(found, expected) else ()),
        ComparedValue(f"expected preemptions{assumed}", expected.preemptions, ""),
        ComparedValue(f"redo{assumed}", expected.redo_s, "s"),
        ComparedValue(f"stalled by saves{guess}", expected.save_s, "s"),
        ComparedValue(f"allocation and preparation{guess}", expected.allocate_s + expected.prepare_s, "s"),
        ComparedValue(f"work{guess}", work_s, "s"),
        ComparedValue("speed relative to the slowest measured type", faster, ""),
        *(
            ComparedValue(number.name + _ASSUMED * _is_assumed(number), number.value, number.unit)
            for number in found.numbers
            if number.value is not None
        ),
    )
    finite = tuple(number for number in rationale if math.isfinite(number.value))
    return Ranked(found.offer, usd, hours, finite, found)
