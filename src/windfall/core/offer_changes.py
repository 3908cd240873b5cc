"""Offers as differences: what the journal holds of a market that moves, and the offers that follow from it.

The first observation of a job is whole.  From then on a fact says only what differs from the driver's state, so a journal
grows with what happened and not with what is for sale.  The time at which an offer was queried is no difference.
"""

from __future__ import annotations

from collections.abc import Iterable

from windfall.core.fleet_state import FleetState
from windfall.fleet import OffersChanged, OffersObserved, PriceRow
from windfall.market import Offer, OfferKey
from windfall.structs import replace
from windfall.terms import Instant, WallTime

_UNQUOTED = WallTime(0.0)


def difference(state: FleetState, seen: OffersObserved) -> OffersObserved | OffersChanged | None:
    """Return the fact that turns a state's offers into those seen; None if it has them.

    Args:
        state: the driver's.
        seen: all present offers, quotas and errors.
    """
    before, now = _by_key(state.offers), _by_key(seen.offers)
    distinct = len(before) == len(state.offers) and len(now) == len(seen.offers)
    if state.offers_at is None or not distinct:
        return None if state.offers_at is not None and _same(state, seen) else seen
    changed: list[Offer] = []
    prices: list[PriceRow] = []
    for key, offer in now.items():
        old = before.get(key)
        if old is None or _without_price(old) != _without_price(offer):
            changed.append(offer)
        elif old.price_usd_per_hour != offer.price_usd_per_hour:
            prices.append((*key, offer.price_usd_per_hour))
    fact = OffersChanged(
        tuple(changed),
        tuple(prices),
        tuple(key for key in before if key not in now),
        None if seen.quotas == state.quotas else seen.quotas,
        None if seen.provider_errors == state.provider_errors else seen.provider_errors,
    )
    return None if fact == OffersChanged() else fact


def applied(state: FleetState, fact: OffersChanged, now: Instant) -> OffersObserved:
    """Return all offers, quotas and errors after a change: an offer keeps its place, a new one comes last.

    Args:
        state: the driver's, before the fact.
        fact: the change.
        now: the instant of its row; the journal clock shows Unix time.
    """
    offers = _by_key(state.offers)
    for key in fact.removed:
        offers.pop(key, None)
    offers.update((offer.key, offer) for offer in fact.offers)
    for provider, machine_type, zone, reliability, price in fact.prices:
        key = (provider, machine_type, zone, reliability)
        if key in offers:
            offers[key] = replace(offers[key], price_usd_per_hour=price, quoted_at=WallTime(now))
    quotas = state.quotas if fact.quotas is None else fact.quotas
    errors = state.provider_errors if fact.provider_errors is None else fact.provider_errors
    return OffersObserved(tuple(offers.values()), quotas, errors)


def _by_key(offers: Iterable[Offer]) -> dict[OfferKey, Offer]:
    return {offer.key: offer for offer in offers}


def _without_price(offer: Offer) -> Offer:
    return replace(offer, price_usd_per_hour=0.0, quoted_at=_UNQUOTED)


def _same(state: FleetState, seen: OffersObserved) -> bool:
    """Return whether a state has exactly these offers, in this order, whenever they were queried."""
    ours = tuple(replace(offer, quoted_at=_UNQUOTED) for offer in state.offers)
    theirs = tuple(replace(offer, quoted_at=_UNQUOTED) for offer in seen.offers)
    return (ours, state.quotas, state.provider_errors) == (theirs, seen.quotas, seen.provider_errors)
