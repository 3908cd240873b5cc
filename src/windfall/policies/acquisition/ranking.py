"""Rank the offers for a job, choose the next one to order from, and explain to the user when none is left.

An hour of *kept* work costs more than an hour of machine time: saves, redo and restarts are paid too.
`models.expected_runtime` computes how much more; this module filters offers by the job's resources and orders them by

    USD per kept work hour = price x billed hours per hour of kept work / relative speed

(thesis, equations 4.1 and 4.4, for the overhead; Proteus, EuroSys 2017, section 4, for cost per work as what to
minimize).  `any_of` is a set, as in SkyPilot: the cheapest of all alternatives wins; their order only breaks ties.

Keep-alive (thesis, section 5.1: allocate until it works).  The best-ranked offer that is not blocked gets the order for
all missing machines.  A refusal therefore moves on at once to the next zone, type, or (with `use: auto`) on-demand
machine, while the first one is blocked.  A lack of capacity and a price above the bid pass with time, so these back off
exponentially.  A quota and rejected credentials need a person: they are shown to the user and retried slowly.  An invalid
request is never repeated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from windfall.events import ComparedValue
from windfall.fleet import Slot
from windfall.jobs import BuyingLimits, Job, Measurement, Minimize, Resources, Use
from windfall.market import Offer, OfferKey, Quota, Refusal
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
from windfall.structs import SameObject, Struct, replace
from windfall.terms import Instant, Reliability, Seconds, WallTime

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
        faster: its speed relative to the slowest measured type's [1].
        offer_estimate: the complete estimate.
        expected: the course of the work by it.
    """

    offer: Offer
    usd_per_work_hour: float
    hours_per_work_hour: float
    faster: float
    offer_estimate: OfferEstimate
    expected: Expectation

    @property
    def rationale(self) -> tuple[ComparedValue, ...]:
        """The numbers behind it; put together when asked for, because few offers are ever shown."""
        return _rationale(self)

    @property
    def rationale_of_start(self) -> tuple[ComparedValue, ...]:
        """Its price, its start and its losses, without saves and redo, which the items of a bag do not have."""
        numbers = (number for number in self.offer_estimate.numbers if number.name in _OF_START)
        return (ComparedValue("price", self.offer.price_usd_per_hour, "USD/h"), *_compared(numbers))


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
    estimated = estimator(job, knowledge)
    estimates = [(place, offer, *estimated(offer)) for place, offer in fitting]
    slowest = min((found.work_per_s for *_, found, _ in estimates if found.work_per_s is not None), default=None)
    rows = [
        (place, _rank(replace(found, offer=offer), expected, slowest)) for place, offer, found, expected in estimates
    ]
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


def estimator(job: Job, knowledge: Knowledge) -> Callable[[Offer], tuple[OfferEstimate, Expectation]]:
    """Return what estimates a job on an offer, and the course of its work, whatever the offer's price: it has none there.

    The driver asks for all offers whenever it buys, and meanwhile only prices move; so what was estimated is kept.
    """
    estimated = _estimator(
        SameObject(job),
        SameObject(knowledge.rates),
        SameObject(knowledge.measured),
        SameObject(knowledge.pooled),
        knowledge.poll_s,
    )
    return lambda offer: estimated(_unpriced(offer))


@functools.lru_cache(maxsize=16)
def _estimator(
    job: SameObject[Job],
    rates: SameObject[tuple[lifetime_pool.Rate, ...]],
    measured: SameObject[tuple[Measurement, ...]],
    pooled: SameObject[tuple[lifetime_pool.PooledEstimate, ...]],
    poll_s: float,
) -> Callable[[Offer], tuple[OfferEstimate, Expectation]]:
    knowledge = Knowledge(rates.value, measured.value, pooled.value, poll_s)

    @functools.lru_cache(maxsize=4096)
    def estimated(offer: Offer) -> tuple[OfferEstimate, Expectation]:
        found = offer_estimate(job.value, offer, knowledge)
        return found, found.expect(found.work_s or HORIZON_S)

    return estimated


def _unpriced(offer: Offer) -> Offer:
    return replace(offer, price_usd_per_hour=0.0, quoted_at=WallTime(0.0))


def refusal(job: Job, offer: Offer) -> str | None:
    """Return why a job cannot take an offer; None if it can."""
    if job.use is Use.SPOT and offer.reliability is Reliability.RELIABLE:
        return "on-demand; the job uses spot machines only"
    if job.use is Use.ON_DEMAND and offer.reliability is Reliability.TRANSIENT:
        return "spot; the job uses on-demand machines only"
    if (barred := exclusion(job.limits, offer)) is not None:
        return barred
    misses = min((missing(request, offer) for request in job.resources), key=len, default=())
    if misses:
        return "; ".join(misses)
    price_max = job.max_price_usd_per_hour
    if price_max is not None and offer.price_usd_per_hour > price_max:
        return f"it costs {offer.price_usd_per_hour:g} USD/h, and max_price is {price_max:g} USD/h"
    return None


def exclusion(limits: BuyingLimits, offer: Offer) -> str | None:
    """Return how a job excludes an offer; None if it does not."""
    if offer.zone in limits.zones_excluded:
        return f"the job excludes the zone {offer.zone}"
    if offer.machine_type in limits.machine_types_excluded:
        return f"the job excludes the machine type {offer.machine_type}"
    return None


def without_excluded(job: Job, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Return the offers that a job does not exclude; the same tuple if it excludes none."""
    limits = job.limits
    if not limits.zones_excluded and not limits.machine_types_excluded:
        return offers
    return tuple(offer for offer in offers if exclusion(limits, offer) is None)


def pool_room(limits: BuyingLimits, pooled: Mapping[OfferKey, int], key: OfferKey) -> float:
    """Return how many more machines of an offer a job may have; infinite without a limit.

    Args:
        limits: of the job.
        pooled: its machines by offer, without those that are about to leave, but with those that are ordered.
        key: of the offer.
    """
    most = limits.pool_machines_max
    return math.inf if most is None else max(most - pooled.get(key, 0), 0)


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
            found = f"{offer.accelerator}:{offer.accelerators}" if offer.accelerators else "no accelerators"
            words.append(f"it has {found}, and the job needs {request.accelerator}:{max(request.accelerators, 1)}")
    if offer.cpus < request.cpus_min:
        cpus = f"{offer.cpus:g} CPU{'' if offer.cpus == 1 else 's'}"
        words.append(f"it has {cpus}, and the job needs {request.cpus_min:g}")
    if offer.memory_gib < request.memory_gib_min:
        words.append(f"it has {offer.memory_gib:g} GiB of memory, and the job needs {request.memory_gib_min:g} GiB")
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


def _rank(found: OfferEstimate, expected: Expectation, slowest: float | None) -> Ranked:
    work_s = found.work_s or HORIZON_S
    faster = 1.0 if slowest is None or found.work_per_s is None else found.work_per_s / slowest
    usd = found.cost_usd(expected) / found.machines / (work_s / 3600.0) / faster
    return Ranked(found.offer, usd, expected.wall_s / work_s / faster, faster, found, expected)


def _rationale(row: Ranked) -> tuple[ComparedValue, ...]:
    found, expected = row.offer_estimate, row.expected
    guess = _ASSUMED * (found.work_s is None)
    assumed = (
        _ASSUMED if any(_is_assumed(number) for number in found.numbers if number.name is PlanNumberKey.MTTP) else guess
    )
    slow = (ComparedValue(TOO_SLOW, row.hours_per_work_hour * row.faster, ""),) if is_too_slow(found, expected) else ()
    rationale = (
        ComparedValue("price", row.offer.price_usd_per_hour, "USD/h"),
        *slow,
        ComparedValue(f"expected preemptions{assumed}", expected.preemptions, ""),
        ComparedValue(f"redo{assumed}", expected.redo_s, "s"),
        ComparedValue(f"stalled by saves{guess}", expected.save_s, "s"),
        ComparedValue(f"allocation and preparation{guess}", expected.allocate_s + expected.prepare_s, "s"),
        ComparedValue(f"work{guess}", found.work_s or HORIZON_S, "s"),
        ComparedValue("speed relative to the slowest measured type", row.faster, ""),
        *_compared(found.numbers),
    )
    return tuple(number for number in rationale if math.isfinite(number.value))


_OF_START = frozenset({PlanNumberKey.ALLOCATION, PlanNumberKey.PREPARATION, PlanNumberKey.MTTP})


def _compared(numbers: Iterable[PlanNumber]) -> Iterator[ComparedValue]:
    for number in numbers:
        if number.value is not None:
            yield ComparedValue(number.name + _ASSUMED * _is_assumed(number), number.value, number.unit)


FIRST_S, FACTOR, LONGEST_S = 1.0, 2.0, 300.0
"""Pause after the first refusal [s], the factor for each further one, the upper bound [s]."""
MANUAL_RETRY_S = 300.0
"""Pause before an automatic retry after a quota or credentials refusal, which a person has to fix [s]."""


class OfferBlock(Struct, frozen=True):
    """Why an offer cannot be ordered now.

    Attributes:
        refusal: None if machines of this offer failed to start.
        message: the provider's message.
        refusals: how many in a row.
        until: when it can be tried again; infinity for never.
    """

    refusal: Refusal | None
    message: str
    refusals: int
    until: Instant


def blocked(blocks: Mapping[OfferKey, OfferBlock], now: Instant) -> frozenset[OfferKey]:
    """Return the offers that cannot be ordered at a moment."""
    return frozenset(key for key, block in blocks.items() if now < block.until)


def pause_s(refusals: int) -> Seconds:
    """Return the pause after a number of refusals in a row: min(FIRST_S x FACTOR^(tries - 1), LONGEST_S) [s].

    Args:
        refusals: from 1.
    """
    assert refusals >= 1, "there is no pause before the first refusal"
    return Seconds(min(FIRST_S * FACTOR ** min(refusals - 1, 32), LONGEST_S))


def block_after(before: OfferBlock | None, refusal: Refusal | None, message: str, now: Instant) -> OfferBlock:
    """Return the block after one more refusal.

    Args:
        before: the offer's previous block; None if the offer has sold a machine since.
        refusal: None for a machine that failed to start.
        message: the provider's message.
        now: when it was refused.
    """
    refusals = 1 if before is None or before.refusal is not refusal else before.refusals + 1
    if refusal is Refusal.INVALID:
        until = Instant(math.inf)
    elif refusal in {Refusal.QUOTA, Refusal.CREDENTIALS}:
        until = Instant(now + MANUAL_RETRY_S)
    else:
        until = Instant(now + pause_s(refusals))
    return OfferBlock(refusal, message, refusals, until)


REASONS_MAX = 8
"""How many reasons are kept, those of the best-ranked offers first."""


_USES: Mapping[Reliability, Use] = MappingProxyType(
    {Reliability.RELIABLE: Use.ON_DEMAND, Reliability.TRANSIENT: Use.SPOT}
)


def job_for(job: Job, slot: Slot) -> Job:
    """Return a job as it is for one slot: a slot that needs one kind of machine overrides what the job may use."""
    return job if slot.reliability is None else with_use(job, _USES[slot.reliability])


def with_use(job: Job, use: Use) -> Job:
    """Return a job that may use these machines; the same object each time, so that estimates for it are found again."""
    return _with_use(SameObject(job), use)


@functools.lru_cache(maxsize=64)
def _with_use(job: SameObject[Job], use: Use) -> Job:
    return replace(job.value, use=use)


def rank_for(
    job: Job,
    slot: Slot,
    offers: Iterable[Offer],
    rates: tuple[lifetime_pool.Rate, ...],
    measured: tuple[Measurement, ...] = (),
) -> Ranking:
    """Order the offers for a slot: as `rank` does, or as the slot wants them.

    Args:
        job: the job.
        slot: its need.
        offers: what the providers offer.
        rates: as for `rank`.
        measured: as for `rank`.
    """
    found = rank(job_for(job, slot), offers, rates, measured)
    if not slot.wants:
        return found
    by_key = {ranked.offer.key: ranked for ranked in found.ranked}
    return Ranking(tuple(by_key[key] for key in slot.wants if key in by_key), found.refused)


class OfferMarket(Struct, frozen=True):
    """The state of the market.

    Attributes:
        ranking: of all offers for this job.
        blocks: offers that cannot be ordered now.
        quotas: the account's limits.
        provider_errors: (provider, refusal, message) of providers that returned no offers.
        usable: whether a provider can take orders now (its listing is known).
        limits: of the job.
        pooled: its machines by offer, as `pool_room` wants them; only read where the limits have a number.
    """

    ranking: Ranking
    blocks: Mapping[OfferKey, OfferBlock]
    quotas: tuple[Quota, ...]
    provider_errors: tuple[tuple[str, Refusal, str], ...]
    usable: Callable[[str], bool]
    limits: BuyingLimits = BuyingLimits()
    pooled: Mapping[OfferKey, int] = msgspec.field(default_factory=dict)


class OfferChoice(Struct, frozen=True):
    """What to order.

    Attributes:
        orders: (offer, count), best first.
        unmet: how many machines cannot be ordered now.
        reasons: why not, the best-ranked offer's first.
        retry_at: when one of the blocked offers can be tried again; None if never.
    """

    orders: tuple[tuple[Ranked, int], ...]
    unmet: int
    reasons: tuple[str, ...]
    retry_at: Instant | None


def choose(market: OfferMarket, needed: int, now: Instant, *, whole: bool = False) -> OfferChoice:
    """Choose what to order.

    Args:
        market: its state.
        needed: how many machines are missing.
        now: the current time.
        whole: all of them from one offer, or none.
    """
    orders: list[tuple[Ranked, int]] = []
    reasons: list[str] = []
    retry_at, pending = math.inf, False
    refused_by = {
        provider: message for provider, reason, message in market.provider_errors if reason is Refusal.CREDENTIALS
    }
    for ranked in market.ranking.ranked:
        if needed == 0:
            break
        offer = ranked.offer
        if not market.usable(offer.provider):
            pending = True
            continue
        limit = quota_limit(market.quotas, offer)
        reason, until = _hold_reason(market, refused_by, offer, now)
        if limit == 0:
            reason, until = f"quota 0 for {offer.machine_type} in {offer.zone}", math.inf
        elif whole and limit is not None and limit < needed:
            reason = (
                f"quota {limit} for {offer.machine_type} in {offer.zone} is too small for {needed} machines at once"
            )
            until = math.inf
        room = pool_room(market.limits, market.pooled, offer.key)
        if reason is None and room < (needed if whole else 1):
            reason, until = _full(market.limits, offer, needed, whole=whole), math.inf
        if reason is not None:
            reasons.append(reason)
            retry_at = min(retry_at, until)
            continue
        count = int(min(needed, room, math.inf if limit is None else limit))
        orders.append((ranked, count))
        needed -= count
    if needed and not pending:
        reasons += _other_reasons(market)
    kept = tuple(dict.fromkeys(reasons))[:REASONS_MAX]
    return OfferChoice(tuple(orders), needed, kept, Instant(retry_at) if retry_at < math.inf else None)


def _full(limits: BuyingLimits, offer: Offer, needed: int, *, whole: bool) -> str:
    """Return why the limit of a pool leaves no room, for the user."""
    place = f"{offer.machine_type} in {offer.zone}"
    if whole and needed > (limits.pool_machines_max or 0):
        return f"pool_max {limits.pool_machines_max} is too small for {needed} machines of {place} at once"
    return f"pool_max {limits.pool_machines_max} is reached by the machines of {place}"


def quota_limit(quotas: tuple[Quota, ...], offer: Offer) -> int | None:
    """Return how many machines of an offer's type the account may have in its zone; None if unknown.

    Machines in use are not subtracted: one of them may just be being preempted, and a refusal costs nothing.
    """
    limits = [
        quota.limit for quota in quotas if quota.machine_type == offer.machine_type and quota.zone in {None, offer.zone}
    ]
    return min(limits, default=None)


def _hold_reason(
    market: OfferMarket, refused_by: Mapping[str, str], offer: Offer, now: Instant
) -> tuple[str | None, float]:
    """Return why an offer cannot be ordered now, and until when; None if it can."""
    if offer.provider in refused_by:
        return f"{offer.provider} does not accept the credentials: {refused_by[offer.provider]}", math.inf
    for key, block in market.blocks.items():
        if key[0] == offer.provider and block.refusal is Refusal.CREDENTIALS and now < block.until:
            return f"{offer.provider} does not accept the credentials: {block.message}", block.until
    found = market.blocks.get(offer.key)
    if found is None or now >= found.until:
        return None, math.inf
    return block_reason(offer, found, quota_limit(market.quotas, offer)), found.until


def block_reason(offer: Offer, block: OfferBlock, limit: int | None) -> str:
    """Return the reason why an offer is blocked, for the user.

    Args:
        offer: the blocked offer.
        block: its newest refusal.
        limit: the account's quota; None if unknown.
    """
    place = f"{offer.machine_type} in {offer.zone}"
    if offer.reliability is Reliability.RELIABLE:
        place = f"on-demand {place}"
    detail = f" ({block.message})" if block.message else ""
    if block.refusal is Refusal.QUOTA:
        return (
            f"no quota left for {place}{detail}" if limit is None else f"quota {limit} for {place} is used up{detail}"
        )
    if block.refusal is Refusal.PRICE:
        return f"the price of {place} is above the limit{detail}"
    if block.refusal is Refusal.NO_CAPACITY:
        return f"no capacity for {place}{detail}"
    if block.refusal is Refusal.INVALID:
        return f"{offer.provider} does not offer {place}{detail}"
    return f"waiting before trying {place} again{detail}"


def _other_reasons(market: OfferMarket) -> list[str]:
    """Return why the remaining offers cannot be used."""
    reasons = [
        f"{provider}: {message}"
        for provider, reason, message in market.provider_errors
        if reason is Refusal.NO_CAPACITY
    ]
    reasons += [
        f"{provider} does not accept the credentials: {message}"
        for provider, reason, message in market.provider_errors
        if reason is Refusal.CREDENTIALS
    ]
    reasons += [f"{offer.machine_type} in {offer.zone}: {reason}" for offer, reason in market.ranking.refused]
    if not reasons and not market.ranking.ranked:
        reasons.append("no provider has an offer")
    return reasons
