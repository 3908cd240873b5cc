"""Fleets whose slots each name the offer of their machine: what there is of each offer, and how slots are opened for more.

`fleet: mix` and `fleet: spotdnn` have such fleets; they differ in which one they want.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np

from windfall.fleet import Slot
from windfall.market import OfferKey
from windfall.policies.acquisition import ranking
from windfall.policies.acquisition.fleet_policy import FleetView
from windfall.policies.layout.runtime_list import Scaling
from windfall.policies.planning import fleet_inputs
from windfall.policies.planning.fleet_course import Counts, Pools
from windfall.structs import replace


def held(view: FleetView, scaling: Scaling) -> tuple[Slot, ...]:
    """Return the slots of workers that have a machine which stays, or wait for one that is ordered."""
    filled = {machine.slot for machine in view.machines() if machine.ends_at is None} | view.awaited
    return tuple(slot for slot in _named(view, scaling) if slot.id in filled)


def current(view: FleetView, scaling: Scaling) -> tuple[Slot, ...]:
    """Return the slots of workers that are held, or can get a machine of their offer."""
    have = {slot.id for slot in held(view, scaling)}
    sold = {offer.key for offer in view.offers} - view.refused()
    return tuple(slot for slot in _named(view, scaling) if slot.id in have or slot.wants[0] in sold)


def _named(view: FleetView, scaling: Scaling) -> tuple[Slot, ...]:
    return tuple(slot for slot in view.needs if slot.role == scaling.role and slot.wants)


def is_unlisted(view: FleetView, scaling: Scaling, slots: Sequence[Slot]) -> bool:
    """Whether an offer of these slots is not listed: its provider may only be silent, so nothing is changed."""
    listed = {offer.key for offer in view.offers}
    reliable = fleet_inputs.reliable_offer(view.job, scaling, view.offers)
    return (scaling.reliable > 0 and reliable is None) or any(slot.wants[0] not in listed for slot in slots)


def counts_of(pools: Pools, slots: Sequence[Slot]) -> Counts:
    """Return how many slots there are of each offer; shape (offers,)."""
    have = collections.Counter(slot.wants[0] for slot in slots)
    return np.array([have[key] for key in pools.keys], dtype=np.int64)


def as_sold(pools: Pools, view: FleetView, counts: Counts) -> Pools:
    """Return the pools with what there is of them as the limit of those that are not ordered now.

    An order of theirs was refused, or the job does not take them any more: they cost more than its `max_price`.
    """
    unwanted = {offer.key for offer in view.offers if ranking.refusal(view.job, offer) is not None}
    closed = unwanted | view.refused()
    sold_out = np.array([key in closed for key in pools.keys], dtype=np.bool_)
    return replace(pools, limit=np.where(sold_out, np.minimum(counts, pools.limit), pools.limit))


def each(pools: Pools, change: Counts) -> tuple[OfferKey, ...]:
    """Return the offer of each machine that is new."""
    return tuple(key for key, count in zip(pools.keys, change.tolist(), strict=True) for _ in range(max(count, 0)))


def slot(name: str, scaling: Scaling, key: OfferKey) -> Slot:
    """Return a new slot of a worker for an offer."""
    return Slot(name, scaling.role, key[3], (key,))


def joined(view: FleetView, scaling: Scaling, workers: Sequence[Slot]) -> tuple[Slot, ...]:
    """Return all slots; the very same object if they are the ones that there are."""
    needs = (*(one for one in view.needs if one.role != scaling.role), *workers)
    return view.needs if needs == view.needs else needs
