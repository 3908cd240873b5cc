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
from typing import TypeVar

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
from windfall.policies.acquisition.bidbrain_scores import Allocations, Leases, Outlook
from windfall.policies.acquisition.fleet_policy import (
    FleetAllocation,
    FleetEstimates,
    FleetPolicy,
    FleetTarget,
    FleetView,
    kept,
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
        cores_max: of the largest machine; 0 if there is no offer.
    """

    offers: tuple[Offer, ...]
    place: NDArray[np.intp]
    bids_usd_per_hour: Floats
    columns: Allocations
    cores_max: float


class _Quotes(Struct, frozen=True):
    """What is known of the offers: the same until a price or a lifetime changes.

    Attributes:
        seen: the offers as they were read.
        rates: mean times to preemption as they were read.
        cores_min: of the smallest machine that the settings allow; infinite if they allow none.
        facts: the numbers of each offer, as `_fleet` reads them.
        candidates: returns, with the odds, all that the settings allow, as if the fleet had room for a whole allocation.
    """

    seen: tuple[Offer, ...]
    rates: tuple[lifetime_pool.Rate, ...]
    offers: Mapping[OfferKey, Offer]
    mttp_s: Mapping[OfferKey, float]
    cores_min: float
    facts: Mapping[OfferKey, tuple[float, ...]]
    candidates: Callable[[EvictionTable | None], _Candidates]


_Found = TypeVar("_Found")
_Chances = Callable[[Floats], tuple[Floats, Floats]]
"""Returns the odds of an eviction within times [s], and the median times to it [s]."""


class _Fleet(Struct, frozen=True):
    """The allocations that are held, in columns; the same until one comes or goes, its hour ends, or an offer changes.

    Attributes:
        quotes: of the offers.
        allocations: of the rows.
        slots: which they fill.
        leases: when they are due.
        usd_per_hour, refund: as `Allocations`.
        renewed_usd_per_hour: what a machine costs from the next hour on.
        too_dear: whether it will be billed at a price that nothing is bought at.
        chances: returns, with the odds by bid, what tells those of the rows.
    """

    quotes: _Quotes
    allocations: tuple[FleetAllocation, ...]
    slots: frozenset[str]
    leases: Leases
    usd_per_hour: Floats
    refund: NDArray[np.bool_]
    renewed_usd_per_hour: Floats
    too_dear: NDArray[np.bool_]
    chances: Callable[[EvictionTable | None], _Chances]


class _Situation(Struct, frozen=True):
    """The settings, and what is known of the offers now; those in `refused` are not ordered.  The limits are the job's.

    The odds are asked for when they are needed: a fleet that is full, with no hour about to end, needs none.
    """

    settings: BidBrain
    now: Instant
    refused: frozenset[OfferKey]
    quotes: _Quotes
    find_odds: Callable[[], EvictionTable | None]
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
    # Caches: what follows from the same offers, or from the same allocations too, is the same.
    last: list[_Quotes] = []
    fleets: list[tuple[tuple[FleetAllocation, ...], _Fleet]] = []

    def decide(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        offers = ranking.without_excluded(view.job, view.offers) if usable is None else usable(view)
        rates, forecast = estimates.rates, estimates.evictions
        if not last or last[0].seen is not offers or last[0].rates is not rates:
            last[:] = [_quotes(settings, offers, rates)]
        find_odds = _once(lambda: None if forecast is None else forecast.at(view.now))
        market = _Situation(settings, view.now, view.refused(), last[0], find_odds, view.job.limits)
        held = tuple(view.allocations())
        if not fleets or fleets[0][0] != held:
            fleets[:] = [(held, _fleet(market, held))]
        elif fleets[0][1].quotes is not last[0]:
            fleets[:] = [(held, _fleet(market, held, fleets[0][1]))]
        return _decide(market, view, fleets[0][1])

    return decide


def _decide(market: _Situation, view: FleetView, fleet: _Fleet) -> FleetTarget:
    settings = market.settings
    awaited = view.awaited
    fleet, outlook, dropped = _renewed(market, fleet)
    needs = kept(view.needs, awaited, fleet.slots)
    wake_at = Instant(market.now + outlook.wake_s)
    buys = not awaited and _has_room(market, outlook)
    if not buys and len(needs) == len(view.needs):
        return FleetTarget(view.needs, wake_at=wake_at)
    columns = _columns(market, fleet, outlook)
    before = bidbrain_scores.cost_per_work(columns, settings.app)
    bought: list[str] = []
    names = new_slot_ids(settings.role, market.now, view.needs)
    needed = (needs, machines_held(view.job, fleet.allocations))
    after = _buy(market, (columns, before, outlook), needed, (names, bought)) if buys else before
    if len(needs) == len(view.needs) and not bought:
        return FleetTarget(view.needs, wake_at=wake_at)
    choices = [f"release {len(one.slots)} {one.key[1]} in {one.key[2]}" for one in dropped] + bought
    decision = Decision(
        BIDBRAIN, VERSION, "; ".join(choices) or "drop lost machines", _rationale(before, after, columns)
    )
    return FleetTarget(tuple(needs), wake_at=wake_at, decision=decision)


def _quotes(settings: BidBrain, seen: tuple[Offer, ...], rates: tuple[lifetime_pool.Rate, ...]) -> _Quotes:
    by_kind = {(provider, kind, zone): mttp_s for provider, kind, zone, mttp_s, _ in rates}
    offers = {offer.key: offer for offer in seen}
    mttp_s = {key: by_kind.get(key[:3], MTTP_S) for key in offers}
    wanted = tuple(offer for offer in offers.values() if _is_wanted(settings, offer) and offer.cpus > 0.0)
    cores_min = min((offer.cpus for offer in wanted), default=math.inf)
    # Columns are made when they are asked for: a full fleet buys nothing.
    candidates = _for_last(functools.partial(_candidates, settings, wanted, mttp_s))
    facts = {key: _offer_facts(settings, offer) for key, offer in offers.items()}
    return _Quotes(seen, rates, offers, mttp_s, cores_min, facts, candidates)


def _once(find: Callable[[], _Found]) -> Callable[[], _Found]:
    """Return a function that finds once; `functools.cache` takes longer to make than a decision has."""
    known: list[_Found] = []

    def found() -> _Found:
        if not known:
            known.append(find())
        return known[0]

    return found


def _for_last(find: Callable[[EvictionTable | None], _Found]) -> Callable[[EvictionTable | None], _Found]:
    """Return a function that remembers what was found with the last odds."""
    last: list[tuple[EvictionTable | None, _Found]] = []

    def found(odds: EvictionTable | None) -> _Found:
        if not last or last[0][0] is not odds:
            last[:] = [(odds, find(odds))]
        return last[0][1]

    return found


# ------------------------------------------------------------------------------------------------------- what there is


def _fleet(market: _Situation, held: tuple[FleetAllocation, ...], last: _Fleet | None = None) -> _Fleet:
    """Return the allocations of known offers in columns; of the last fleet what still holds."""
    quotes = market.quotes
    held = tuple(one for one in held if one.key in quotes.offers)
    # One array of all numbers: an array for each column takes longer than what is done with it.
    rows = [(*_facts(one), *quotes.facts[one.key]) for one in held]
    table = np.array(tuple(zip(*rows, strict=True)), dtype=np.float64).reshape(_FACTS, len(held))
    machines, usd_per_hour, started_s, bid, cores, renewed_usd_per_hour, hour_s, on_demand = table[:-4]
    refund, works, by_hour, too_dear = table[-4:] > 0.0
    delta_usd = np.where(np.isnan(bid), on_demand, bid) - renewed_usd_per_hour
    leases = Leases(machines, cores, works, started_s, hour_s, by_hour)
    chances = _for_last(functools.partial(_chances, market, held, (delta_usd, works)))
    if last is not None and last.allocations == held:
        slots = last.slots
    else:
        slots = frozenset(slot for one in held for slot in one.slots)
    return _Fleet(quotes, held, slots, leases, usd_per_hour, refund, renewed_usd_per_hour, too_dear, chances)


_FACTS = 12


def _facts(one: FleetAllocation) -> tuple[float, ...]:
    """Return an allocation's machines, price, start and bid, as `_fleet` reads them; NaN for none."""
    started, bid = one.started, one.bid_usd_per_hour
    none = math.nan
    return len(one.slots), one.price_usd_per_hour, none if started is None else started, none if bid is None else bid


def _offer_facts(settings: BidBrain, offer: Offer) -> tuple[float, ...]:
    """Return an offer's numbers, as `_fleet` reads them."""
    return (
        offer.cpus,
        offer.price_usd_per_hour,
        offer.billing.hour_s,
        offer.on_demand_usd_per_hour,
        offer.refund,
        offer.reliability is Reliability.TRANSIENT,
        offer.billing.basis is BillingBasis.STARTED_HOUR,
        # One billed as purchased is never billed at another price.
        offer.billing.basis is not BillingBasis.PURCHASE and not _is_wanted(settings, offer),
    )


def _columns(
    market: _Situation, fleet: _Fleet, outlook: Outlook, renewed: NDArray[np.bool_] | None = None
) -> Allocations:
    """Return the allocations as they are, or those that are renewed as they would be in their next hour."""
    leases, left_s, price = fleet.leases, outlook.left_s, fleet.usd_per_hour
    if renewed is not None:
        left_s, price = np.where(renewed, leases.hour_s, left_s), np.where(renewed, fleet.renewed_usd_per_hour, price)
    evicted, median_s = fleet.chances(market.find_odds())(left_s)
    evicted = np.where(leases.works, evicted, 0.0)
    return Allocations(leases.machines, leases.cores, price, left_s, evicted, median_s, fleet.refund, leases.works)


def _chances(
    market: _Situation,
    held: Sequence[FleetAllocation],
    columns: tuple[Floats, NDArray[np.bool_]],
    odds: EvictionTable | None,
) -> _Chances:
    """Return what tells the odds of an eviction within times [s], and the median times to it [s].

    They follow from the bid, or from the lifetimes.

    Args:
        market: the offers.
        held: the allocations.
        columns: their bid deltas [USD/h], and which can be preempted: the others' odds do not matter.
        odds: by bid.
    """
    delta_usd, works = columns
    chances: _Chances = functools.partial(_by_lifetime, market, held)
    if odds is not None:
        rows = np.array([odds.rows.get(one.key, -1) for one in held], dtype=np.intp)
        by_price, known = odds.of_bids(np.maximum(rows, 0), delta_usd).within, (rows >= 0) | ~works
        chances = by_price if known.all() else functools.partial(_either, known, (by_price, chances))
    if market.settings.whole_hour:
        found = chances(np.full(len(held), HOUR_S))
        return lambda _: found
    return chances


def _either(known: NDArray[np.bool_], either: tuple[_Chances, _Chances], ahead_s: Floats) -> tuple[Floats, Floats]:
    """Return the first's odds of those that are known, the second's of the others."""
    first, second = (one(ahead_s) for one in either)
    return np.where(known, first[0], second[0]), np.where(known, first[1], second[1])


def _by_lifetime(market: _Situation, held: Sequence[FleetAllocation], ahead_s: Floats) -> tuple[Floats, Floats]:
    mttp_s = np.array([market.quotes.mttp_s[one.key] for one in held], dtype=np.float64)
    return 1.0 - np.exp(-ahead_s / mttp_s), math.log(2.0) * mttp_s


# ---------------------------------------------------------------------------------------------------- what is released


def _renewed(market: _Situation, fleet: _Fleet) -> tuple[_Fleet, Outlook, list[FleetAllocation]]:
    """Return the allocations that stay, what lies before them, and those that leave before they are billed again.

    The dearest leave first.
    """
    outlook = _outlook(market, fleet)
    dropped: list[FleetAllocation] = []
    while outlook.is_any_due:
        gone = outlook.due & fleet.too_dear
        if not gone.any():
            gone = _dearest(market, fleet, outlook)
        if not gone.any():
            break
        dropped += itertools.compress(fleet.allocations, gone.tolist())
        fleet = _fleet(market, tuple(itertools.compress(fleet.allocations, (~gone).tolist())))
        outlook = _outlook(market, fleet)
    return fleet, outlook, dropped


def _dearest(market: _Situation, fleet: _Fleet, outlook: Outlook) -> NDArray[np.bool_]:
    """Return which allocation that can leave costs most, of those without which the fleet costs less per work; or none."""
    settings, leases = market.settings, fleet.leases
    columns = _columns(market, fleet, outlook, outlook.due)
    limits = bidbrain_scores.cost_per_work(columns, settings.app) * np.where(leases.by_hour, 1.0, 1.0 - settings.margin)
    without = bidbrain_scores.without_each(columns, settings.app)
    spare = outlook.machines - settings.machines_min
    better = outlook.due & (leases.machines <= spare) & (without < limits)
    dearest = int(np.argmin(np.where(better, without, np.inf)))
    gone: NDArray[np.bool_] = better & (np.arange(len(better)) == dearest)
    return gone


def _outlook(market: _Situation, fleet: _Fleet) -> Outlook:
    settings = market.settings
    return bidbrain_scores.outlook(fleet.leases, market.now, settings.renew_before_s, settings.decide_every_s)


def _has_room(market: _Situation, outlook: Outlook) -> bool:
    """Whether a machine of any offer fits under the cap."""
    settings = market.settings
    return outlook.machines < settings.machines_max and market.quotes.cores_min <= settings.cores_max - outlook.cores


def _is_wanted(settings: BidBrain, offer: Offer) -> bool:
    """Whether an offer can be preempted, and costs no more than the settings allow."""
    limit = min(settings.price_max * offer.on_demand_usd_per_hour, settings.usd_per_hour_max)
    return offer.reliability is Reliability.TRANSIENT and offer.price_usd_per_hour <= limit


# ------------------------------------------------------------------------------------------------------ what is bought


def _buy(
    market: _Situation,
    fleet: tuple[Allocations, float, Outlook],
    needed: tuple[list[Slot], Counter[OfferKey]],
    news: tuple[Iterator[str], list[str]],
) -> float:
    """Buy while that lowers the cost per work; return what that is then [USD per core-second].

    Args:
        market: the offers.
        fleet: in columns, what it costs per work, and what of it works.
        needed: gets the slots, and the machines by offer.
        news: ids for them; gets what was bought, in words.
    """
    (columns, cost, outlook), (needs, in_pools), (names, bought) = fleet, needed, news
    working, cores = outlook.machines, outlook.cores
    for purchase in range(market.settings.purchases_max):
        room = market.settings.cores_max - cores
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
        working, cores, cost = working + count, cores + count * offer.cpus, float(costs[best])
        if purchase + 1 < market.settings.purchases_max:
            columns = _joined(columns, candidates.columns, best)
    return cost


def _candidates(
    settings: BidBrain, offers: tuple[Offer, ...], mttp_s: Mapping[OfferKey, float], odds: EvictionTable | None
) -> _Candidates:
    """Return each offer with each bid; one without bids, or of whose prices nothing is known, alone."""
    row = [-1 if odds is None or not offer.bid else odds.rows.get(offer.key, -1) for offer in offers]
    numbers = [(one.price_usd_per_hour, one.billing.hour_s, one.cpus, one.refund) for one in offers]
    price, hour_s, cores, refund = np.array(numbers, dtype=np.float64).reshape(len(offers), 4).T
    machines = np.maximum(np.floor(settings.cores / cores), 1.0)
    ahead_s = np.full(len(offers), HOUR_S) if settings.whole_hour else hour_s
    parts = []
    if not row or min(row) < 0:
        alone = np.array([place for place, one in enumerate(row) if one < 0], dtype=np.intp)
        mean_s = np.array([mttp_s[offers[place].key] for place in alone], dtype=np.float64)
        evicted, median_s = 1.0 - np.exp(-ahead_s[alone] / mean_s), math.log(2.0) * mean_s
        parts.append((alone, np.full(len(alone), np.nan), evicted, median_s))
    if odds is not None and max(row, default=-1) >= 0:
        place = np.array([place for place, one in enumerate(row) if one >= 0], dtype=np.intp)
        evicted, median_s = odds.of_deltas(np.array(row, dtype=np.intp)[place], ahead_s[place])
        bids = price[place][:, None] + odds.deltas_usd
        parts.append((place.repeat(bids.shape[1]), bids.ravel(), evicted.ravel(), median_s.ravel()))
    places, all_bids, all_evicted, all_median_s = (
        parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    )
    columns = Allocations(
        machines[places], cores[places], price[places], hour_s[places], all_evicted, all_median_s,
        refund=refund[places] > 0.0, works=np.ones(len(places), dtype=np.bool_),
    )  # fmt: skip
    return _Candidates(offers, places, all_bids, columns, float(cores.max(initial=0.0)))


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
    every = market.quotes.candidates(market.find_odds())
    columns = every.columns
    pooled = market.limits.pool_machines_max is not None
    if market.refused or pooled or every.cores_max > room:
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
