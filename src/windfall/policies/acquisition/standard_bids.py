"""Simple ways to have a fleet of a given size, which BidBrain is compared with.

- **standard**: machines of the offer with the lowest price per core, at a bid of the on-demand price, kept until they are
  evicted; then again what is cheapest at that time.  The default of EC2's Spot Fleet in 2016.
- **just above**: the same at a bid a little above the price, so that evictions, and with them free hours, are frequent.
- **greedy**: as standard, but an allocation whose hour is about to end leaves if another offer is cheaper by then.

On-demand only needs no policy of its own: `fixed` keeps the machines that a runtime needs.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, section 6.3 ("Standard Bidding Strategy", and the remark on always bidding just above the market price).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from windfall.events import ComparedValue, Decision
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.market import BillingBasis, Offer, OfferKey
from windfall.policies.acquisition import fleet_policy, ranking
from windfall.policies.acquisition.fleet_policy import (
    FleetAllocation,
    FleetEstimates,
    FleetPolicy,
    FleetTarget,
    FleetView,
    new_slot_ids,
)
from windfall.structs import Struct
from windfall.terms import Instant, Reliability

NAME = "standard"
VERSION = 1


class StandardBids(Struct, frozen=True):
    """The settings.

    Attributes:
        cores: of the fleet, without machines that cannot be preempted.
        role: of the machines that are bought.
        above_usd_per_hour: bid this much above the price [USD/h]; None: bid the on-demand price.
        switches: at the end of its hour an allocation leaves if another offer costs less per core.
        decide_every_s: between two decisions [s].
        renew_before_s: how long before an hour's end it is decided whether the allocation stays [s].
    """

    cores: float
    role: str
    above_usd_per_hour: float | None = None
    switches: bool = False
    decide_every_s: float = 120.0
    renew_before_s: float = 120.0


def policy(settings: StandardBids) -> FleetPolicy:
    """Return the fleet policy with these settings."""

    def decide(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        del estimates
        return _decide(settings, view)

    return decide


def _decide(settings: StandardBids, view: FleetView) -> FleetTarget:
    offers = {offer.key: offer for offer in ranking.without_excluded(view.job, view.offers)}
    spot = [offer for offer in offers.values() if offer.reliability is Reliability.TRANSIENT and offer.cpus > 0.0]
    usable = [one for one in spot if one.price_usd_per_hour <= one.on_demand_usd_per_hour]
    cheapest = min((one for one in usable if one.key not in view.refused()), key=_usd_per_core, default=None)
    every = view.allocations()
    held = [one for one in every if one.key[3] is Reliability.TRANSIENT and one.key in offers]
    if settings.switches and cheapest is not None:
        held = [one for one in held if not _leaves(settings, view.now, one, offers[one.key], cheapest)]
    reliable = [one.slots for one in every if one.key[3] is Reliability.RELIABLE]
    filled = frozenset[str]().union(*(one.slots for one in held), *reliable)
    needs = fleet_policy.kept(view.needs, view.awaited, filled)
    missing = settings.cores - math.fsum(len(one.slots) * offers[one.key].cpus for one in held)
    bought = "drop lost machines"
    if missing > 0.0 and not view.awaited:
        choices = []
        names = new_slot_ids(settings.role, view.now, view.needs)
        for offer, count in _purchases(view.job, usable, view.refused(), held, missing):
            bid = _bid(settings, offer)
            needs += _slots(settings, offer, bid, names, count)
            choices.append(f"buy {count} {offer.machine_type} in {offer.zone}, bid {bid:g} USD/h")
        bought = "; ".join(choices) or bought
    wake_at = Instant(view.now + settings.decide_every_s) if missing > 0.0 or settings.switches else None
    if len(needs) == len(view.needs) and missing <= 0.0:
        return FleetTarget(view.needs, wake_at=wake_at)
    costs = tuple(
        ComparedValue(f"{offer.machine_type} in {offer.zone}", _usd_per_core(offer), "USD per core-hour")
        for offer in sorted(spot, key=_usd_per_core)[:5]
    )
    return FleetTarget(tuple(needs), wake_at=wake_at, decision=Decision(NAME, VERSION, bought, costs))


def _purchases(
    job: Job,
    usable: Sequence[Offer],
    refused: frozenset[OfferKey],
    held: Sequence[FleetAllocation],
    missing: float,
) -> Iterator[tuple[Offer, int]]:
    """Yield what to buy for the missing cores: the cheapest offer, and the next where the job limits what one pool holds."""
    pooled = fleet_policy.machines_held(job, held)
    for offer in sorted((one for one in usable if one.key not in refused), key=_usd_per_core):
        count = int(min(math.ceil(missing / offer.cpus), ranking.pool_room(job.limits, pooled, offer.key)))
        if count:
            yield offer, count
            missing -= count * offer.cpus
        if missing <= 0.0:
            return


def _leaves(settings: StandardBids, now: Instant, one: FleetAllocation, offer: Offer, cheapest: Offer) -> bool:
    """Whether an allocation's hour is about to end, and another offer is cheaper."""
    if one.started is None or _usd_per_core(cheapest) >= _usd_per_core(offer):
        return False
    if offer.billing.basis is not BillingBasis.STARTED_HOUR:
        return True
    return offer.billing.hour_s - (now - one.started) % offer.billing.hour_s <= settings.renew_before_s


def _usd_per_core(offer: Offer) -> float:
    return offer.price_usd_per_hour / offer.cpus


def _bid(settings: StandardBids, offer: Offer) -> float:
    if settings.above_usd_per_hour is None:
        return offer.on_demand_usd_per_hour
    return offer.price_usd_per_hour + settings.above_usd_per_hour


def _slots(settings: StandardBids, offer: Offer, bid: float, names: Iterator[str], count: int) -> Sequence[Slot]:
    """Return the slots of an allocation."""
    limit = bid if offer.bid else None
    return [
        Slot(name, settings.role, Reliability.TRANSIENT, (offer.key,), bid_usd_per_hour=limit)
        for name in itertools.islice(names, count)
    ]
