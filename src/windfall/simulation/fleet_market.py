"""The markets of the fast fleet loop: what is offered, what to order, when a bought machine starts and ends.

What is chosen is chosen by the driver's own functions: the ranking of offers, and the pause after a refused order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.market import Offer, OfferKey, Refusal
from windfall.policies.acquisition import ranking
from windfall.policies.acquisition.ranking import OfferBlock, OfferMarket, Ranking
from windfall.simulation import random_draws, sampling
from windfall.simulation.engine_fleet import OFFERS_EVERY_S
from windfall.simulation.scenario import LifetimeQuantiles, MemorylessLifetimes, RecordedLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket, price_limit_usd
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import Struct, replace
from windfall.terms import Instant, WallTime

SOURCE: Final = "sim"
"""Name of the provider."""


class Purchase(Struct, frozen=True):
    """A unit that was bought: a machine, or a gang.

    Attributes:
        place: of its market.
        start_s: when it starts [s].
        end_s: when the market takes it [s]; infinite for never.
        usd_per_hour: its price at the purchase.
    """

    place: int
    start_s: float
    end_s: float
    usd_per_hour: float


class FleetMarket:
    """What a provider sells in one history.

    Attributes:
        pools: the markets.
        retry_s: when slots for which nothing could be ordered can be tried again [s]; infinite without any.
    """

    def __init__(self, job: Job, pools: Sequence[SimulatedMarket], seed: int) -> None:
        """Prepare.

        Args:
            job: whose offers are ranked.
            pools: the markets.
            seed: of the lifetimes; the same as in the event engine.

        Raises:
            Misuse: a market has what the fleet loop leaves out.
        """
        self.pools = tuple(pools)
        self.retry_s = math.inf
        self._job = job
        self._keys = [_unsigned(random_draws.key(seed, place)) for place in range(len(pools))]
        laws = [_law(pool) for pool in self.pools]
        self._lives = [None if law is None else sampling.pack(law) for law in laws]
        self._sold = [0] * len(pools)
        self._looked_s = 0.0
        self._changes_s = self._next_change_s()
        self._offers: tuple[Offer, ...] = ()
        self._places: dict[OfferKey, int] = {}
        self._rankings: dict[tuple[object, ...], Ranking] = {}
        self._blocks: dict[OfferKey, OfferBlock] = {}

    def offers(self, now_s: float) -> tuple[Offer, ...]:
        """Return what the provider offers, as of the last look; as often as the event engine looks."""
        self.look(now_s)
        return self._offers

    def look_now(self, now_s: float) -> None:
        """Look at the offers, whenever the last look was."""
        if self.look(now_s) or self._changes_s > now_s:
            return
        self._looked_s = now_s
        self._see()

    def _see(self) -> None:
        self._rankings.clear()
        self._changes_s = self._next_change_s()
        self._offers = tuple(_offer(pool, self._looked_s) for pool in self.pools)
        self._places = {offer.key: place for place, offer in enumerate(self._offers)}

    def _next_change_s(self) -> float:
        return min(pool.prices.next_change_s(self._looked_s) for pool in self.pools)

    def look(self, now_s: float) -> bool:
        """Look at the offers if it is time; return whether it was."""
        looked = False
        while not self._offers or self.look_s() <= now_s:
            if self._offers:
                self._looked_s = self.look_s()
            self._see()
            looked = True
        return looked

    def look_s(self) -> float:
        """Return when the offers are looked at next [s]; infinite if no price changes any more."""
        return self._changes_s if self._changes_s == math.inf else max(self._changes_s, self._looked_s + OFFERS_EVERY_S)

    def refused(self, now_s: float) -> frozenset[OfferKey]:
        """Return the offers that are not ordered at a time [s], because an order was refused."""
        return ranking.blocked(self._blocks, Instant(WALL_START + now_s))

    def choose(self, slot: Slot, count: int, now_s: float, pooled: Mapping[OfferKey, int]) -> tuple[int, int] | None:
        """Return what to order for slots of one kind: the place of the market and how many; None if nothing can be now.

        Args:
            slot: one of them.
            count: of the slots.
            now_s: the time [s].
            pooled: the job's machines by offer, where the job limits them.

        Raises:
            Misuse: no market fits the slot at any price.
        """
        self.look(now_s)
        kind = (slot.reliability, slot.wants)
        if kind not in self._rankings:
            self._rankings[kind] = ranking.rank_for(self._job, slot, self._offers, ())
        found = self._rankings[kind]
        any_price = replace(self._job, max_price_usd_per_hour=None)
        if not found.ranked and not ranking.rank_for(any_price, slot, self._offers, ()).ranked:
            raise Misuse(f"no market of this history has a machine for slot {slot.id}: add one that fits the job")
        if not self._blocks and self._job.limits.pool_machines_max is None:
            best = (found.ranked[0], count) if found.ranked else None
            retry_s = math.inf
        else:
            market = OfferMarket(found, self._blocks, (), (), lambda _: True, self._job.limits, pooled)
            chosen = ranking.choose(market, count, Instant(WALL_START + now_s), whole=bool(slot.gang))
            best = chosen.orders[0] if chosen.orders else None
            retry_s = math.inf if chosen.retry_at is None else chosen.retry_at - WALL_START
        if best is None:
            self.retry_s = min(self.retry_s, retry_s, self.look_s())
            return None
        return self._places[best[0].offer.key], best[1]

    def buy(self, place: int, count: int, now_s: float, bid_usd_per_hour: float | None) -> list[Purchase]:
        """Buy units; none if the price is above the bid: then the offer is not ordered for a while.

        Args:
            place: of the market.
            count: of the units.
            now_s: the time [s].
            bid_usd_per_hour: None for the market's default, the on-demand price.
        """
        pool, key = self.pools[place], self._offers[place].key
        price = pool.prices.at(now_s)
        bid = price_limit_usd(pool, bid_usd_per_hour)
        if price > bid:
            block = ranking.block_after(self._blocks.get(key), Refusal.PRICE, "", Instant(WALL_START + now_s))
            self._blocks[key] = block
            return []
        self._blocks.pop(key, None)
        start_s = now_s + sum(pool.allocate_s) / 2.0
        outbid_s = _outbid_s(pool, start_s, bid)
        if self._lives[place] is None:
            return [Purchase(place, start_s, outbid_s, price)] * count
        return [Purchase(place, start_s, min(self._life_ends_s(place, start_s), outbid_s), price) for _ in range(count)]

    def _life_ends_s(self, place: int, start_s: float) -> float:
        number, packed = self._sold[place], self._lives[place]
        self._sold[place] += 1
        if packed is None:
            return math.inf
        return start_s + float(sampling.lifetime_s(packed.kind, packed.values, self._keys[place], 0, number))


def _outbid_s(pool: SimulatedMarket, start_s: float, bid_usd_per_hour: float) -> float:
    """Return when a price above the bid comes, after a machine has started [s]; infinite for never."""
    if bid_usd_per_hour == math.inf:
        return math.inf
    first = int(pool.prices.times_s.searchsorted(start_s, "right"))
    above = pool.prices.values[first:] > bid_usd_per_hour
    place = int(above.argmax()) if len(above) else 0
    return float(pool.prices.times_s[first + place]) if len(above) and above[place] else math.inf


def _unsigned(key: Any) -> Any:
    """Return a key for compiled code: half of all keys do not fit a signed word."""
    return np.uint64(key)


def _law(pool: SimulatedMarket) -> MemorylessLifetimes | LifetimeQuantiles | RecordedLifetimes | None:
    """Return how long a market's machines live, None for ever; refuse what the fleet loop leaves out."""
    if pool.notice_s > 0.0:
        raise Misuse(
            f"the market {pool.machine_type} in {pool.zone} gives notice; the fleet loop knows none: set it to 0 s"
        )
    limited = pool.capacity is not None or pool.quota is not None or pool.failed_to_start
    law = pool.eviction
    if not limited and (law is None or isinstance(law, MemorylessLifetimes | LifetimeQuantiles | RecordedLifetimes)):
        return law
    raise Misuse(
        f"the market {pool.machine_type} in {pool.zone} has a capacity, a quota, failed starts or a trace of ends, "
        "which the fleet loop does not know: use the event engine"
    )


def _offer(pool: SimulatedMarket, at_s: float) -> Offer:
    return Offer(
        SOURCE, pool.machine_type, pool.zone, pool.prices.at(at_s), pool.on_demand_usd_per_hour, pool.reliability,
        pool.notice_s, WallTime(WALL_START + at_s), pool.cpus, pool.memory_gib, pool.accelerator, pool.accelerators,
        pool.startup_s, pool.bid, pool.refund, None, pool.billing,
    )  # fmt: skip
