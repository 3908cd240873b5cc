"""BidBrain as a fleet policy: buy what lowers the cost of a unit of work, release what raises it when its hour ends.

Every two minutes, shortly before a billing hour ends, and after an eviction:

- machines that were lost, or could not be bought, are given up: their slots are retired, and nothing is bought in their place
  but what pays now;
- an allocation whose hour is about to end stays for the next one unless the fleet without it costs less per work;
- of all offers and bid deltas, the allocation that gives the lowest cost per work is bought, if that is less than without it.

Machines that cannot be preempted are the runtime's: they are never released, and their cost counts in all that is compared.

In markets without bids an offer has one candidate, whose odds of an eviction are those of the lifetimes known of it; where
billing is by the second there is no hour to wait for, and an allocation is released when the fleet without it costs
less by `margin`, so that nothing is bought and released in turn.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, sections 4 and 5.  The paper does not say how large an allocation is, how large the fleet may be, how
many allocations one decision buys, and how long before the end of an hour it decides: these are settings.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from windfall.events import ComparedValue, Decision
from windfall.fleet import Slot
from windfall.jobs import BuyingLimits
from windfall.market import BillingBasis, Offer, OfferKey
from windfall.models import lifetime_pool
from windfall.models.price_evictions import EvictionTable
from windfall.policies.acquisition import bidbrain_scores, ranking
from windfall.policies.acquisition.bidbrain import HOUR_S, Application, Floats
from windfall.policies.acquisition.bidbrain_scores import Allocations
from windfall.policies.acquisition.fleet_policy import (
    FleetAllocation,
    FleetEstimates,
    FleetPolicy,
    FleetTarget,
    FleetView,
    machines_held,
    new_slot_ids,
)
from windfall.policies.policy_registry import BIDBRAIN
from windfall.structs import Struct, replace
from windfall.terms import Instant, Reliability

VERSION = 1
MTTP_S = 14_400.0
"""Mean time to preemption where nothing is known of an offer's machines [s]: the thesis' default."""


class BidBrain(Struct, frozen=True):
    """The settings.

    Attributes:
        app: how the application reacts to changes of its fleet.
        role: of the machines that are bought.
        cores: of one allocation, about: as many machines as have no more, and at least one.
        cores_max: of the fleet, without machines that cannot be preempted.
        purchases_max: allocations that one decision buys at most.
        decide_every_s: between two decisions [s].
        renew_before_s: how long before an hour's end it is decided whether the allocation stays [s].
        whole_hour: take the odds of the whole hour, as the paper does, whatever is left of it.
        margin: by how much the fleet without an allocation must cost less, where no hour is paid ahead [1].
        price_max: nothing is bought, or kept for another hour, at more than this share of its on-demand price [1].  The
            paper states no limit; without one, an hour in which nothing else is offered costs what the market asks.
        usd_per_hour_max: nor at more than this [USD/h].
        machines_min, machines_max: how many machines can work on the job; the fewest are bought whatever they cost per work.
    """

    app: Application
    role: str
    cores: float
    cores_max: float
    purchases_max: int = 1
    decide_every_s: float = 120.0
    renew_before_s: float = 120.0
    whole_hour: bool = False
    margin: float = 0.05
    price_max: float = 1.0
    usd_per_hour_max: float = math.inf
    machines_min: int = 0
    machines_max: float = math.inf


class _Candidates(Struct, frozen=True):
    """What could be bought, in columns: each offer with each bid delta, or alone where there are no bids.

    Attributes:
        place: of the offer.
        bids_usd_per_hour: NaN where there are none.
    """

    offers: tuple[Offer, ...]
    place: NDArray[np.intp]
    bids_usd_per_hour: Floats
    columns: Allocations


class _Quotes(Struct, frozen=True):
    """What is known of the offers: the same until a price, a lifetime or the odds change.

    Attributes:
        seen: the offers as they were read.
        rates: mean times to preemption as they were read.
        cores_min: of the smallest machine that the settings allow; infinite if they allow none.
        candidates: returns all that the settings allow, as if the fleet had room for a whole allocation.
    """

    seen: tuple[Offer, ...]
    rates: tuple[lifetime_pool.Rate, ...]
    odds: EvictionTable | None
    offers: Mapping[OfferKey, Offer]
    mttp_s: Mapping[OfferKey, float]
    cores_min: float
    candidates: Callable[[], _Candidates]


class _Situation(Struct, frozen=True):
    """The settings, and what is known of the offers now; those in `refused` are not ordered.  The limits are the job's."""

    settings: BidBrain
    now: Instant
    refused: frozenset[OfferKey]
    quotes: _Quotes
    limits: BuyingLimits

    @property
    def offers(self) -> Mapping[OfferKey, Offer]:
        """The offers by key."""
        return self.quotes.offers


def policy(settings: BidBrain, usable: Callable[[FleetView], tuple[Offer, ...]] | None = None) -> FleetPolicy:
    """Return the fleet policy with these settings.

    Args:
        settings: of the policy.
        usable: returns the offers that the job can use; None: all.
    """
    last: list[_Quotes] = []  # a cache: what follows from the same offers and odds is the same

    def decide(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        odds = None if estimates.evictions is None else estimates.evictions.at(view.now)
        offers = ranking.without_excluded(view.job, view.offers) if usable is None else usable(view)
        rates = estimates.rates
        if not last or last[0].seen is not offers or last[0].odds is not odds or last[0].rates is not rates:
            last[:] = [_quotes(settings, offers, rates, odds)]
        return _decide(_Situation(settings, view.now, view.refused(), last[0], view.job.limits), view)

    return decide


def _decide(market: _Situation, view: FleetView) -> FleetTarget:
    settings = market.settings
    awaited = view.awaited
    offers = market.offers
    held = [one for one in view.allocations() if one.key in offers]
    held, dropped = _renewed(market, held)
    kept = awaited.union(*(one.slots for one in held))
    needs = [slot for slot in view.needs if slot.id in kept or slot.reliability is Reliability.RELIABLE]
    wake_at = Instant(min(_wakes(market, held)))
    buys = not awaited and _has_room(market, held)
    if not buys and len(needs) == len(view.needs):
        return FleetTarget(view.needs, wake_at=wake_at)
    columns = _columns(market, held)
    before = bidbrain_scores.cost_per_work(columns, settings.app)
    bought: list[str] = []
    names = new_slot_ids(settings.role, market.now, view.needs)
    needed = (needs, machines_held(view.job, held))
    after = _buy(market, (columns, before), needed, (names, bought)) if buys else before
    if len(needs) == len(view.needs) and not bought:
        return FleetTarget(view.needs, wake_at=wake_at)
    choices = [f"release {len(one.slots)} {one.key[1]} in {one.key[2]}" for one in dropped] + bought
    decision = Decision(
        BIDBRAIN, VERSION, "; ".join(choices) or "drop lost machines", _rationale(before, after, columns)
    )
    return FleetTarget(tuple(needs), wake_at=wake_at, decision=decision)


def _quotes(
    settings: BidBrain, seen: tuple[Offer, ...], rates: tuple[lifetime_pool.Rate, ...], odds: EvictionTable | None
) -> _Quotes:
    by_kind = {(provider, kind, zone): mttp_s for provider, kind, zone, mttp_s, _ in rates}
    offers = {offer.key: offer for offer in seen}
    mttp_s = {key: by_kind.get(key[:3], MTTP_S) for key in offers}
    wanted = tuple(offer for offer in offers.values() if _is_wanted(settings, offer) and offer.cpus > 0.0)
    cores_min = min((offer.cpus for offer in wanted), default=math.inf)
    # Columns are made when they are asked for: a full fleet buys nothing.
    candidates = functools.cache(lambda: _candidates(settings, wanted, mttp_s, odds))
    return _Quotes(seen, rates, odds, offers, mttp_s, cores_min, candidates)


# ------------------------------------------------------------------------------------------------------- what there is


def _columns(market: _Situation, held: Sequence[FleetAllocation], renewed: frozenset[str] = frozenset()) -> Allocations:
    """Return the allocations in columns; those of the given orders as they would be in their next hour."""
    # One array of all numbers: an array for each column takes longer than what is done with it.
    facts = [_facts(market, one, market.offers[one.key], next_hour=one.order in renewed) for one in held]
    table = np.array(tuple(zip(*facts, strict=True)), dtype=np.float64).reshape(_FACTS, len(held))
    machines, cores, price, left_s, delta, row, spot, refund = table
    works = spot > 0.0
    evicted, median_s = _odds(market, held, left_s, (row.astype(np.intp), delta))
    return Allocations(
        machines, cores, price, left_s, np.where(works, evicted, 0.0), median_s, refund=refund > 0.0, works=works
    )


_FACTS = 8


def _facts(market: _Situation, one: FleetAllocation, offer: Offer, *, next_hour: bool) -> tuple[float, ...]:
    """Return an allocation's machines, cores of one, price, time left, bid delta, row of the odds (-1: none), spot, refund."""
    odds, limit = market.quotes.odds, one.bid_usd_per_hour
    return (
        len(one.slots),
        offer.cpus,
        offer.price_usd_per_hour if next_hour else one.price_usd_per_hour,
        offer.billing.hour_s if next_hour else _left_s(market.now, one, offer),
        (offer.on_demand_usd_per_hour if limit is None else limit) - offer.price_usd_per_hour,
        -1 if odds is None else odds.rows.get(one.key, -1),
        one.key[3] is Reliability.TRANSIENT,
        offer.refund,
    )


def _odds(
    market: _Situation, held: Sequence[FleetAllocation], ahead_s: Floats, bids: tuple[NDArray[np.intp], Floats]
) -> tuple[Floats, Floats]:
    """Return the odds of an eviction within a time and the median time to it [s]: by the bid, or by the lifetimes.

    Args:
        market: the offers.
        held: the allocations.
        ahead_s: the times [s].
        bids: rows of the table of odds, -1 for none, and bid deltas [USD/h].
    """
    if market.settings.whole_hour:
        ahead_s = np.full(len(held), HOUR_S)
    odds, (rows, deltas_usd) = market.quotes.odds, bids
    if odds is None:
        return _by_lifetime(market, held, ahead_s)
    by_price = odds.within(np.maximum(rows, 0), deltas_usd, ahead_s)
    known = rows >= 0
    if np.logical_and.reduce(known):
        return by_price
    by_lifetime = _by_lifetime(market, held, ahead_s)
    return np.where(known, by_price[0], by_lifetime[0]), np.where(known, by_price[1], by_lifetime[1])


def _by_lifetime(market: _Situation, held: Sequence[FleetAllocation], ahead_s: Floats) -> tuple[Floats, Floats]:
    mttp_s = np.array([market.quotes.mttp_s[one.key] for one in held], dtype=np.float64)
    return 1.0 - np.exp(-ahead_s / mttp_s), math.log(2.0) * mttp_s


def _left_s(now: Instant, one: FleetAllocation, offer: Offer) -> float:
    """Return what is left of an allocation's billing hour; a whole one where none is paid ahead, or it has not begun [s]."""
    hour_s = offer.billing.hour_s
    if one.started is None or offer.billing.basis is not BillingBasis.STARTED_HOUR:
        return hour_s
    return hour_s - (now - one.started) % hour_s


# ---------------------------------------------------------------------------------------------------- what is released


def _renewed(market: _Situation, held: list[FleetAllocation]) -> tuple[list[FleetAllocation], list[FleetAllocation]]:
    """Return the allocations that stay, and those that leave before they are billed again, the dearest first."""
    offers = market.offers
    due_orders = frozenset(one.order for one in held if _is_due(market, one, offers[one.key]))
    dropped = [one for one in held if one.order in due_orders and _is_too_dear(market, one)]
    if dropped:
        held = [one for one in held if one not in dropped]
    while due := due_orders.intersection(one.order for one in held):
        columns = _columns(market, held, due)
        limits = bidbrain_scores.cost_per_work(columns, market.settings.app) * np.array(
            [1.0 if _by_hour(market.offers[one.key]) else 1.0 - market.settings.margin for one in held]
        )
        without = bidbrain_scores.without_each(columns, market.settings.app)
        spare = sum(_working(one) for one in held) - market.settings.machines_min
        better = np.array([one.order in due and _working(one) <= spare for one in held]) & (without < limits)
        if not better.any():
            break
        place = int(np.argmin(np.where(better, without, np.inf)))
        dropped.append(held[place])
        held = [one for one in held if one is not held[place]]
    return held, dropped


def _has_room(market: _Situation, held: Sequence[FleetAllocation]) -> bool:
    """Whether a machine of any offer fits under the cap."""
    if sum(_working(one) for one in held) >= market.settings.machines_max:
        return False
    offers = market.offers
    cores = sum(_working(one) * offers[one.key].cpus for one in held)
    return market.quotes.cores_min <= market.settings.cores_max - cores


def _working(one: FleetAllocation) -> int:
    """Return how many machines of an allocation work: those that cannot be preempted only keep state safe."""
    return len(one.slots) if one.key[3] is Reliability.TRANSIENT else 0


def _is_wanted(settings: BidBrain, offer: Offer) -> bool:
    """Whether an offer can be preempted, and costs no more than the settings allow."""
    limit = min(settings.price_max * offer.on_demand_usd_per_hour, settings.usd_per_hour_max)
    return offer.reliability is Reliability.TRANSIENT and offer.price_usd_per_hour <= limit


def _is_too_dear(market: _Situation, one: FleetAllocation) -> bool:
    """Whether an allocation will be billed at a price that nothing is bought at; one billed as purchased never is."""
    offer = market.offers[one.key]
    return offer.billing.basis is not BillingBasis.PURCHASE and not _is_wanted(market.settings, offer)


def _is_due(market: _Situation, one: FleetAllocation, offer: Offer) -> bool:
    if offer.reliability is Reliability.RELIABLE or one.started is None:
        return False
    return not _by_hour(offer) or _left_s(market.now, one, offer) <= market.settings.renew_before_s


def _by_hour(offer: Offer) -> bool:
    return offer.billing.basis is BillingBasis.STARTED_HOUR


def _wakes(market: _Situation, held: Sequence[FleetAllocation]) -> list[float]:
    """Return when to decide next: regularly, and shortly before an hour ends."""
    wakes, offers = [market.now + market.settings.decide_every_s], market.offers
    for one in held:
        offer = offers[one.key]
        if _by_hour(offer) and offer.reliability is Reliability.TRANSIENT and one.started is not None:
            left_s = _left_s(market.now, one, offer) - market.settings.renew_before_s
            wakes.append(market.now + (left_s if left_s > 0.0 else left_s + offer.billing.hour_s))
    return wakes


# ------------------------------------------------------------------------------------------------------ what is bought


def _buy(
    market: _Situation,
    fleet: tuple[Allocations, float],
    needed: tuple[list[Slot], Counter[OfferKey]],
    news: tuple[Iterator[str], list[str]],
) -> float:
    """Buy while that lowers the cost per work; return what that is then [USD per core-second].

    Args:
        market: the offers.
        fleet: in columns, and what it costs per work.
        needed: gets the slots, and the machines by offer.
        news: ids for them; gets what was bought, in words.
    """
    (columns, cost), (needs, in_pools), (names, bought) = fleet, needed, news
    for purchase in range(market.settings.purchases_max):
        room = market.settings.cores_max - columns.rate
        working = float(columns.machines[columns.works].sum())
        candidates = _fitting(market, room, market.settings.machines_max - working, in_pools)
        if candidates is None:
            break
        costs = bidbrain_scores.with_each(columns, candidates.columns, market.settings.app)
        best = int(costs.argmin())
        if not costs[best] < (cost if working >= market.settings.machines_min else math.inf):
            break
        count = int(candidates.columns.machines[best])
        offer, limit = candidates.offers[candidates.place[best]], float(candidates.bids_usd_per_hour[best])
        bid = None if math.isnan(limit) else limit
        needs += _slots(market.settings, offer, bid, names, count)
        in_pools[offer.key] += count
        at = "" if bid is None else f", bid {bid:g} USD/h"
        bought.append(f"buy {count} {offer.machine_type} in {offer.zone} at {offer.price_usd_per_hour:g} USD/h{at}")
        cost = float(costs[best])
        if purchase + 1 < market.settings.purchases_max:
            columns = _joined(columns, candidates.columns, best)
    return cost


def _candidates(
    settings: BidBrain, offers: tuple[Offer, ...], mttp_s: Mapping[OfferKey, float], odds: EvictionTable | None
) -> _Candidates:
    """Return each offer with each bid; one without bids, or of whose prices nothing is known, alone."""
    known = np.array([offer.bid and odds is not None and offer.key in odds.rows for offer in offers])
    price = np.array([offer.price_usd_per_hour for offer in offers])
    hour_s = np.array([offer.billing.hour_s for offer in offers])
    ahead_s = np.full(len(offers), HOUR_S) if settings.whole_hour else hour_s
    alone = np.flatnonzero(~known)
    parts = []
    if len(alone) or not len(offers):
        mean_s = np.array([mttp_s[offers[place].key] for place in alone], dtype=np.float64)
        evicted, median_s = 1.0 - np.exp(-ahead_s[alone] / mean_s), math.log(2.0) * mean_s
        parts.append((alone, np.full(len(alone), np.nan), evicted, median_s))
    if odds is not None and known.any():
        place = np.flatnonzero(known)
        rows = np.array([odds.rows[offers[one].key] for one in place], dtype=np.intp)
        evicted, median_s = odds.of_deltas(rows, ahead_s[place])
        bids = price[place][:, None] + odds.deltas_usd
        parts.append((np.repeat(place, bids.shape[1]), bids.ravel(), evicted.ravel(), median_s.ravel()))
    places, all_bids, all_evicted, all_median_s = (np.concatenate(column) for column in zip(*parts, strict=True))
    cores, refund = np.array([offer.cpus for offer in offers]), np.array([offer.refund for offer in offers])
    columns = Allocations(
        machines=np.maximum(np.floor(settings.cores / cores), 1.0)[places],
        cores=cores[places],
        usd_per_hour=price[places],
        left_s=hour_s[places],
        evicted=all_evicted,
        median_s=all_median_s,
        refund=refund[places],
        works=np.ones(len(places), dtype=np.bool_),
    )
    return _Candidates(offers, places, all_bids, columns)


def _fitting(market: _Situation, room: float, machines: float, in_pools: Mapping[OfferKey, int]) -> _Candidates | None:
    """Return the candidates that can be ordered, and of which a machine fits; None if there is none.

    Args:
        market: the offers.
        room: how many cores the fleet may still get.
        machines: how many machines it may still get.
        in_pools: how many machines it has of each offer, where that is limited.
    """
    if market.quotes.cores_min > room or machines < 1.0:
        return None
    every = market.quotes.candidates()
    columns = every.columns
    pooled = market.limits.pool_machines_max is not None
    if market.refused or pooled or not bool((columns.cores <= room).all()):
        allowed = np.array(
            [
                0.0 < offer.cpus <= room
                and offer.key not in market.refused
                and ranking.pool_room(market.limits, in_pools, offer.key) >= 1.0
                for offer in every.offers
            ]
        )
        rows = np.flatnonzero(allowed[every.place])
        if not len(rows):
            return None
        columns = columns.of(rows)
        every = replace(every, place=every.place[rows], bids_usd_per_hour=every.bids_usd_per_hour[rows])
    if room < market.settings.cores:
        columns = columns._replace(machines=np.maximum(np.floor(room / columns.cores), 1.0))
    if pooled:
        rooms = np.array([ranking.pool_room(market.limits, in_pools, offer.key) for offer in every.offers])
        columns = columns._replace(machines=np.minimum(columns.machines, rooms[every.place]))
    if math.isfinite(machines):
        columns = columns._replace(machines=np.minimum(columns.machines, machines))
    return every if columns is every.columns else replace(every, columns=columns)


def _slots(settings: BidBrain, offer: Offer, bid: float | None, names: Iterator[str], count: int) -> list[Slot]:
    """Return the slots of an allocation."""
    return [
        Slot(name, settings.role, Reliability.TRANSIENT, (offer.key,), bid_usd_per_hour=bid)
        for name in itertools.islice(names, count)
    ]


def _joined(held: Allocations, offered: Allocations, place: int) -> Allocations:
    return Allocations._make(map(np.concatenate, zip(held, offered.of(np.array([place])), strict=True)))


def _rationale(before: float, after: float, held: Allocations) -> tuple[ComparedValue, ...]:
    unit = "USD per core-hour of work"
    known = [("cost before", before), ("cost after", after)]
    compared = [ComparedValue(name, cost * HOUR_S, unit) for name, cost in known if math.isfinite(cost)]
    odds = 1.0 - held.stays
    cores = ComparedValue("cores held", held.rate, "")
    return (*compared, cores, ComparedValue("odds of an eviction of what is held", 100.0 * odds, "%"))
