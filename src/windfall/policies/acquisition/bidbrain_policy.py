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
from collections.abc import Callable, Iterator, Mapping
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
from windfall.policies.acquisition.bidbrain_scores import BidOdds, Held, Offered, Outlook, Purchases, Rules
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
from windfall.structs import Struct
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


class _Quotes(Struct, frozen=True):
    """What is known of the offers: the same until a price or a lifetime changes.

    Attributes:
        seen: the offers as they were read.
        rates: mean times to preemption as they were read.
        offers: by key.
        facts: the numbers of each offer, as `_fleet` reads them.
        wanted: those that can be preempted and cost no more than the settings allow.
        cores_min: of the smallest of these; infinite for none.
        offered: returns, with the odds, what can be bought of them.
    """

    seen: tuple[Offer, ...]
    rates: tuple[lifetime_pool.Rate, ...]
    offers: Mapping[OfferKey, Offer]
    facts: Mapping[OfferKey, tuple[float, ...]]
    wanted: tuple[Offer, ...]
    cores_min: float
    offered: Callable[[EvictionTable | None], Offered]


_Found = TypeVar("_Found")


class _Fleet(Struct, frozen=True):
    """The allocations that are held; the same until one comes or goes, its hour ends, or an offer changes.

    Attributes:
        quotes: of the offers.
        allocations: those of offers that are known.
        slots: which they fill.
        held: in columns, without rows of the odds.
        known: returns, with the odds, the same with those rows.
    """

    quotes: _Quotes
    allocations: tuple[FleetAllocation, ...]
    slots: frozenset[str]
    held: Held
    known: Callable[[EvictionTable | None], Held]


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
    rules: Rules

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
    app = settings.app
    rules = Rules(
        float(app.eviction_s), float(app.change_s), float(app.loss_per_core), float(settings.cores),
        float(settings.cores_max), float(settings.machines_min), float(settings.machines_max),
        settings.purchases_max, settings.whole_hour,
    )  # fmt: skip
    # Caches: what follows from the same offers, or from the same allocations too, is the same.
    last: list[_Quotes] = []
    fleets: list[tuple[tuple[FleetAllocation, ...], _Fleet]] = []

    def decide(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        offers = ranking.without_excluded(view.job, view.offers) if usable is None else usable(view)
        rates, forecast = estimates.rates, estimates.evictions
        if not last or last[0].seen is not offers or last[0].rates is not rates:
            last[:] = [_quotes(settings, offers, rates)]
        find_odds = _once(lambda: None if forecast is None else forecast.at(view.now))
        market = _Situation(settings, view.now, view.refused(), last[0], find_odds, view.job.limits, rules)
        held = tuple(view.allocations())
        if not fleets or fleets[0][0] != held:
            fleets[:] = [(held, _fleet(last[0], held))]
        elif fleets[0][1].quotes is not last[0]:
            fleets[:] = [(held, _fleet(last[0], held, fleets[0][1]))]
        return _decide(market, view, fleets[0][1])

    return decide


def _decide(market: _Situation, view: FleetView, fleet: _Fleet) -> FleetTarget:
    awaited = view.awaited
    fleet, outlook, dropped = _renewed(market, fleet)
    needs = kept(view.needs, awaited, fleet.slots)
    wake_at = Instant(market.now + outlook.wake_s)
    buys = not awaited and _has_room(market, outlook)
    if not buys and len(needs) == len(view.needs):
        return FleetTarget(view.needs, wake_at=wake_at)
    rooms = _rooms(market, machines_held(view.job, fleet.allocations)) if buys else _NO_ROOM
    found = _purchases(market, fleet, outlook, rooms)
    slots, bought = _bought(market, found, new_slot_ids(market.settings.role, market.now, view.needs))
    if len(needs) == len(view.needs) and not bought:
        return FleetTarget(view.needs, wake_at=wake_at)
    choices = [f"release {len(one.slots)} {one.key[1]} in {one.key[2]}" for one in dropped] + bought
    decision = Decision(BIDBRAIN, VERSION, "; ".join(choices) or "drop lost machines", _rationale(found, outlook))
    return FleetTarget((*needs, *slots), wake_at=wake_at, decision=decision)


def _quotes(settings: BidBrain, seen: tuple[Offer, ...], rates: tuple[lifetime_pool.Rate, ...]) -> _Quotes:
    by_kind = {(provider, kind, zone): mttp_s for provider, kind, zone, mttp_s, _ in rates}
    offers = {offer.key: offer for offer in seen}
    facts = {key: _offer_facts(settings, offer, by_kind.get(key[:3], MTTP_S)) for key, offer in offers.items()}
    wanted = tuple(offer for offer in offers.values() if _is_wanted(settings, offer) and offer.cpus > 0.0)
    cores_min = min((offer.cpus for offer in wanted), default=math.inf)
    # Columns are made when they are asked for: a full fleet buys nothing.
    offered = _for_last(functools.partial(_offered, wanted, facts))
    return _Quotes(seen, rates, offers, facts, wanted, cores_min, offered)


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


def _fleet(quotes: _Quotes, held: tuple[FleetAllocation, ...], last: _Fleet | None = None) -> _Fleet:
    """Return the allocations of known offers; of the last fleet what still holds."""
    held = tuple(one for one in held if one.key in quotes.offers)
    if last is not None and last.allocations == held:
        slots = last.slots
    else:
        slots = frozenset(slot for one in held for slot in one.slots)
    columns = _held(held, quotes.facts)
    return _Fleet(quotes, held, slots, columns, _for_last(functools.partial(_known, held, columns)))


def _known(allocations: tuple[FleetAllocation, ...], held: Held, odds: EvictionTable | None) -> Held:
    """Return the columns of allocations with their rows of the odds."""
    rows = np.array([_row(odds, one.key) for one in allocations], dtype=np.intp)
    return held._replace(row=rows)


_FACTS = 13


def _held(allocations: tuple[FleetAllocation, ...], facts: Mapping[OfferKey, tuple[float, ...]]) -> Held:
    """Return allocations in columns."""
    # One array of all numbers: an array for each column takes longer than what is done with it.
    rows = [(*_facts(one), *facts[one.key]) for one in allocations]
    table = np.array(tuple(zip(*rows, strict=True)), dtype=np.float64).reshape(_FACTS, len(rows))
    machines, usd_per_hour, started_s, bid, cores, renewed_usd_per_hour, hour_s, on_demand, mttp_s = table[:-4]
    refund, works, by_hour, too_dear = table[-4:] > 0.0
    delta_usd = np.where(np.isnan(bid), on_demand, bid) - renewed_usd_per_hour
    return Held(
        machines, cores, usd_per_hour, renewed_usd_per_hour, started_s, hour_s, delta_usd, mttp_s, np.full(len(rows), -1),
        refund, works, by_hour, too_dear,
    )  # fmt: skip


def _row(odds: EvictionTable | None, key: OfferKey) -> int:
    return -1 if odds is None else odds.rows.get(key, -1)


def _facts(one: FleetAllocation) -> tuple[float, ...]:
    """Return an allocation's machines, price, start and bid, as `_held` reads them; NaN for none."""
    started, bid = one.started, one.bid_usd_per_hour
    none = math.nan
    return len(one.slots), one.price_usd_per_hour, none if started is None else started, none if bid is None else bid


def _offer_facts(settings: BidBrain, offer: Offer, mttp_s: float) -> tuple[float, ...]:
    """Return an offer's numbers, as `_held` and `_offered` read them."""
    return (
        offer.cpus,
        offer.price_usd_per_hour,
        offer.billing.hour_s,
        offer.on_demand_usd_per_hour,
        mttp_s,
        offer.refund,
        offer.reliability is Reliability.TRANSIENT,
        offer.billing.basis is BillingBasis.STARTED_HOUR,
        # One billed as purchased is never billed at another price.
        offer.billing.basis is not BillingBasis.PURCHASE and not _is_wanted(settings, offer),
    )


def _offered(
    wanted: tuple[Offer, ...], facts: Mapping[OfferKey, tuple[float, ...]], odds: EvictionTable | None
) -> Offered:
    """Return what can be bought in columns."""
    rows = [facts[one.key][:6] for one in wanted]
    cores, usd_per_hour, hour_s, _, mttp_s, refund = np.array(rows, dtype=np.float64).reshape(len(rows), 6).T.copy()
    row = np.array([_row(odds, one.key) if one.bid else -1 for one in wanted], dtype=np.intp)
    return Offered(usd_per_hour, hour_s, cores, mttp_s, row, refund > 0.0)


_NO_ODDS = BidOdds(np.empty(0), np.empty((0, 0, 0)), np.empty((0, 0, 0)))


def _numbers(odds: EvictionTable | None) -> BidOdds:
    return _NO_ODDS if odds is None else BidOdds(odds.deltas_usd, odds.evicted, odds.median_s)


# ---------------------------------------------------------------------------------------------------- what is released


def _renewed(market: _Situation, fleet: _Fleet) -> tuple[_Fleet, Outlook, list[FleetAllocation]]:
    """Return the allocations that stay, what lies before them, and those that leave before they are billed again.

    The dearest leave first.
    """
    outlook = _outlook(market, fleet)
    dropped: list[FleetAllocation] = []
    while outlook.is_any_due:
        gone = outlook.due & fleet.held.too_dear
        if not gone.any():
            gone = _dearest(market, fleet, outlook)
        if not gone.any():
            break
        dropped += itertools.compress(fleet.allocations, gone.tolist())
        fleet = _fleet(market.quotes, tuple(itertools.compress(fleet.allocations, (~gone).tolist())))
        outlook = _outlook(market, fleet)
    return fleet, outlook, dropped


def _dearest(market: _Situation, fleet: _Fleet, outlook: Outlook) -> NDArray[np.bool_]:
    """Return which allocation that can leave costs most, of those without which the fleet costs less per work; or none."""
    settings, odds = market.settings, market.find_odds()
    held = fleet.held
    cost, without = bidbrain_scores.renewals(fleet.known(odds), outlook, _numbers(odds), market.rules)
    limits = cost * np.where(held.by_hour, 1.0, 1.0 - settings.margin)
    spare = outlook.machines - settings.machines_min
    better = outlook.due & (held.machines <= spare) & (without < limits)
    dearest = int(np.argmin(np.where(better, without, np.inf)))
    gone: NDArray[np.bool_] = better & (np.arange(len(better)) == dearest)
    return gone


def _outlook(market: _Situation, fleet: _Fleet) -> Outlook:
    settings = market.settings
    return bidbrain_scores.outlook(fleet.held, market.now, settings.renew_before_s, settings.decide_every_s)


def _has_room(market: _Situation, outlook: Outlook) -> bool:
    """Whether a machine of any offer fits under the cap."""
    settings = market.settings
    return outlook.machines < settings.machines_max and market.quotes.cores_min <= settings.cores_max - outlook.cores


def _is_wanted(settings: BidBrain, offer: Offer) -> bool:
    """Whether an offer can be preempted, and costs no more than the settings allow."""
    limit = min(settings.price_max * offer.on_demand_usd_per_hour, settings.usd_per_hour_max)
    return offer.reliability is Reliability.TRANSIENT and offer.price_usd_per_hour <= limit


# ------------------------------------------------------------------------------------------------------ what is bought


_NO_ROOM = np.empty(0)


def _rooms(market: _Situation, in_pools: Mapping[OfferKey, int]) -> Floats:
    """Return how many more machines there may be of each offer that is wanted; none of one that is not ordered now."""
    wanted, limits = market.quotes.wanted, market.limits
    if not market.refused and limits.pool_machines_max is None:
        return np.full(len(wanted), math.inf)
    return np.array(
        [0.0 if one.key in market.refused else ranking.pool_room(limits, in_pools, one.key) for one in wanted],
        np.float64,  # whole numbers would be another loop to compile
    )


def _purchases(market: _Situation, fleet: _Fleet, outlook: Outlook, rooms: Floats) -> Purchases:
    """Return what to buy, and what a unit of work costs without and with it; without any room nothing."""
    odds = market.find_odds()
    offered, rules = market.quotes.offered(odds), market.rules
    if len(rooms) < len(offered.cores):
        rooms, rules = np.zeros(len(offered.cores)), rules._replace(purchases_max=0)
    return bidbrain_scores.purchases(fleet.known(odds), outlook, (offered, rooms), _numbers(odds), rules)


def _bought(market: _Situation, found: Purchases, names: Iterator[str]) -> tuple[list[Slot], list[str]]:
    """Return the slots of what is bought, and what that is in words."""
    slots: list[Slot] = []
    words = []
    for place, delta, count in zip(found.offers.tolist(), found.deltas.tolist(), found.machines.tolist(), strict=True):
        offer = market.quotes.wanted[place]
        odds = market.find_odds()
        bid = None if delta < 0 or odds is None else offer.price_usd_per_hour + float(odds.deltas_usd[delta])
        slots += [
            Slot(name, market.settings.role, Reliability.TRANSIENT, (offer.key,), bid_usd_per_hour=bid)
            for name in itertools.islice(names, count)
        ]
        at = "" if bid is None else f", bid {bid:g} USD/h"
        words.append(f"buy {count} {offer.machine_type} in {offer.zone} at {offer.price_usd_per_hour:g} USD/h{at}")
    return slots, words


def _rationale(found: Purchases, outlook: Outlook) -> tuple[ComparedValue, ...]:
    unit = "USD per core-hour of work"
    known = [("cost before", found.before), ("cost after", found.after)]
    compared = [ComparedValue(name, cost * HOUR_S, unit) for name, cost in known if math.isfinite(cost)]
    cores = ComparedValue("cores held", outlook.cores, "")
    odds = ComparedValue("odds of an eviction of what is held", 100.0 * (1.0 - found.stays), "%")
    return (*compared, cores, odds)
