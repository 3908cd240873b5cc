"""A market in virtual time: `ports.Provider` for storms, plans and experiments.

It sells as the local market does: orders wait for their allocation, quota and capacity end, prices follow a series,
bids are outbid, the hour of an eviction may be free, machines are taken with notices that hold, lie, are withdrawn, or
never come, and the bill is closed later.  What its machines do is not its business: whoever runs them is told by
`Tenant` when one starts, is warned, and ends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from windfall.errors import ProviderDenied
from windfall.market import (
    Answer,
    Bill,
    Boot,
    Capabilities,
    Ended,
    Life,
    Machine,
    Offer,
    Order,
    Quota,
    Refusal,
)
from windfall.simulation.clock import WALL_START, Timeline
from windfall.simulation.meter import Meter
from windfall.terms import NoticeLevel, Reliability, Seconds, WallTime

LISTED_S = 3600.0
"""How long a machine that ended stays in the listing [s]."""


@dataclass(frozen=True, slots=True)
class Market:
    """One type of machine in one zone, with or without the risk of losing it.

    Attributes:
        prices: (from this virtual time on [s], USD per hour), oldest first; at least one, from 0 on.
        notice_s: the warning it promises [s].
        allocate_s: an order's machines start after a draw from this range [s].
        startup_s: what the market says of it; None: it says nothing.
        stillborn: share of machines that never start [1].
    """

    machine_type: str
    zone: str
    reliability: Reliability
    prices: tuple[tuple[float, float], ...]
    on_demand_usd_per_hour: float
    notice_s: Seconds
    allocate_s: tuple[float, float] = (5.0, 20.0)
    startup_s: Seconds | None = None
    bid: bool = False
    refund: bool = False
    stillborn: float = 0.0
    cpus: float = 4.0
    memory_gib: float = 16.0
    accelerator: str | None = None
    accelerators: int = 0

    @property
    def key(self) -> tuple[str, str, Reliability]:
        """What makes it another market."""
        return self.machine_type, self.zone, self.reliability

    def price(self, time_s: float) -> float:
        """Return the price at a virtual time [USD per hour]."""
        return [usd for since, usd in self.prices if since <= time_s][-1]


class Tenant(Protocol):
    """Whoever lives on the machines."""

    def started(self, machine: Machine, boot: Boot) -> None:
        """A machine runs: its init starts what `boot` says."""

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        """A machine's own notice source says something about its end."""

    def ended(self, machine: Machine) -> None:
        """A machine is gone with everything on it."""


@dataclass
class _Instance:
    """A machine as its maker has it."""

    machine_id: str
    order: Order
    market: Market
    boot: Boot
    usd_per_hour: float
    life: Life = Life.PENDING
    began: WallTime | None = None
    ended: WallTime | None = None
    cause: Ended | None = None
    taken_at: WallTime | None = None


@dataclass
class Shelf:
    """What changes about the markets: capacity left by (type, zone, reliability), limits by (type, zone).

    Attributes:
        capacity: how many may run at once; a market that is not in it has no end.
        quota: how many the account may have, over both kinds of reliability; not in it: no limit.
        denied: the account's credentials are refused.
    """

    capacity: dict[tuple[str, str, Reliability], int] = field(default_factory=dict)
    quota: dict[tuple[str, str], int] = field(default_factory=dict)
    denied: bool = False


class SimulatedProvider:
    """`ports.Provider` in virtual time; its calls themselves take none."""

    def __init__(
        self,
        name: str,
        timeline: Timeline,
        markets: tuple[Market, ...],
        rng: random.Random,
        *,
        tenant: Tenant | None = None,
        bill_lag_s: tuple[float, float] = (0.0, 0.0),
        allocate_s: Callable[[Order, int], float] | None = None,
    ) -> None:
        """Open the markets.

        Args:
            name: the provider's.
            timeline: its time.
            markets: what it sells.
            rng: its own stream of chance.
            tenant: who lives on its machines; None: nobody.
            bill_lag_s: a line is settled after a draw from this range [s].
            allocate_s: (order, which machine of it, from 0) -> after how long it starts [s]; None: a draw from the
                market's range.
        """
        self.name = name
        self.meter = Meter()
        self.shelf = Shelf()
        self._timeline = timeline
        self._markets: Mapping[tuple[str, str, Reliability], Market] = {market.key: market for market in markets}
        self._rng = rng
        self._tenant = tenant
        self._bill_lag_s = bill_lag_s
        self._allocate_s = allocate_s
        self._instances: dict[str, _Instance] = {}
        self._answers: dict[str, Answer] = {}
        self._cancelled: set[str] = set()
        self._count = 0
        for market in markets:
            for since, _ in market.prices:
                if since > timeline.time:
                    timeline.at(since - timeline.time, lambda market=market: self._priced(market))  # type: ignore[misc]

    # ------------------------------------------------------------------------------------------------------- the port

    def capabilities(self) -> Capabilities:
        """Say what this provider can do."""
        markets = self._markets.values()
        return Capabilities(
            bids=any(market.bid for market in markets),
            refunds=any(market.refund for market in markets),
            preempts=True,
            same_token_same_machines=True,
            notices_as="local",
            bill_lag_s=Seconds(self._bill_lag_s[1]),
        )

    def offers(self) -> tuple[Offer, ...]:
        """Return what is for sale now."""
        self._admit()
        return tuple(self._offer(market) for market in self._markets.values())

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """Return the limits of this account."""
        self._admit()
        return tuple(
            Quota(machine_type, zone, limit, self._used(owner, machine_type, zone))
            for (machine_type, zone), limit in self.shelf.quota.items()
        )

    def order(self, order: Order, boot: Boot) -> Answer:
        """Buy machines; the same token answers the same."""
        self._admit()
        if order.token in self._cancelled:
            known = self._answers.get(order.token)
            ids = () if known is None else known.machine_ids
            return Answer(order.token, ids, Refusal.CANCELLED, f"{order.token} was cancelled")
        if order.token not in self._answers:
            self._answers[order.token] = self._sell(order, boot)
        return self._answers[order.token]

    def cancel(self, token: str) -> None:
        """Make sure that nothing more comes of a token; what is promised but has not started is given back."""
        self._admit()
        self._cancelled.add(token)
        for instance in self._of(token):
            if instance.life is Life.PENDING:
                self._end(instance, Ended.RELEASED)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """Return this owner's machines: pending, running, and those that ended lately."""
        self._admit()
        oldest = self._wall() - LISTED_S
        for one in tuple(self._instances.values()):
            if one.ended is not None and one.ended < oldest:
                del self._instances[one.machine_id]
        return tuple(self._machine(one) for one in self._instances.values() if one.order.owner == owner)

    def release(self, machine_id: str) -> None:
        """Give a machine back."""
        self._admit()
        self.end(machine_id, Ended.RELEASED)

    def charges(self, owner: str, cursor: str) -> Bill:
        """Return the lines of this owner's bill since `cursor`."""
        self._admit()
        return self.meter.bill(owner, cursor)

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Take a machine back with so much notice, None for none."""
        self._admit()
        self.take(machine_id, notice_s)

    # ---------------------------------------------------------------------------------------- what happens to machines

    def take(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Take a machine back, honestly."""
        if notice_s is None:
            self.end(machine_id, Ended.PREEMPTED)
            return
        self.announce(machine_id, notice_s)
        self._timeline.at(notice_s, lambda: self.end(machine_id, Ended.PREEMPTED))

    def announce(self, machine_id: str, left_s: Seconds) -> None:
        """Tell a machine that it will be taken; whether that is true is the caller's business."""
        one = self._instances.get(machine_id)
        if one is not None and one.life is Life.RUNNING:
            one.taken_at = WallTime(self._wall() + left_s)
            self._tell(machine_id, NoticeLevel.ANNOUNCED, left_s)

    def mark(self, machine_id: str, left_s: Seconds) -> None:
        """Say in the listing that a machine will be taken, and to the machine itself nothing."""
        one = self._instances.get(machine_id)
        if one is not None and one.life is Life.RUNNING:
            one.taken_at = WallTime(self._wall() + left_s)

    def withdraw(self, machine_id: str) -> None:
        """Take an announcement back."""
        one = self._instances.get(machine_id)
        if one is not None and one.life is Life.RUNNING:
            one.taken_at = None
            self._tell(machine_id, NoticeLevel.WITHDRAWN, None)

    def hint(self, machine_id: str) -> None:
        """Tell a machine that it is at elevated risk."""
        one = self._instances.get(machine_id)
        if one is not None and one.life is Life.RUNNING:
            self._tell(machine_id, NoticeLevel.HINT, None)

    def end(self, machine_id: str, cause: Ended) -> None:
        """Let a machine end now, for whichever reason; no error if it already has."""
        one = self._instances.get(machine_id)
        if one is not None and one.life is not Life.GONE:
            self._end(one, cause)

    def alive(self, job_id: str) -> tuple[Machine, ...]:
        """Return a job's machines that are promised or run: the truth, past all delays."""
        return tuple(
            self._machine(one)
            for one in self._instances.values()
            if one.order.job_id == job_id and one.life is not Life.GONE
        )

    # -------------------------------------------------------------------------------------------------------- inside

    def _admit(self) -> None:
        if self.shelf.denied:
            raise ProviderDenied(f"{self.name} refuses these credentials: renew them")

    def _wall(self) -> WallTime:
        return WallTime(WALL_START + self._timeline.time)

    def _offer(self, market: Market) -> Offer:
        return Offer(
            provider=self.name,
            machine_type=market.machine_type,
            zone=market.zone,
            price_usd_per_hour=market.price(self._timeline.time),
            on_demand_usd_per_hour=market.on_demand_usd_per_hour,
            reliability=market.reliability,
            notice_s=market.notice_s,
            quoted_at=self._wall(),
            cpus=market.cpus,
            memory_gib=market.memory_gib,
            accelerator=market.accelerator,
            accelerators=market.accelerators,
            startup_s=market.startup_s,
            bid=market.bid,
            refund=market.refund,
        )

    def _sell(self, order: Order, boot: Boot) -> Answer:
        market = self._markets.get((order.offer.machine_type, order.offer.zone, order.offer.reliability))
        if market is None or not 1 <= order.count_min <= order.count_max:
            where = f"{order.offer.machine_type} in {order.offer.zone}"
            return Answer(order.token, (), Refusal.INVALID, f"{self.name} does not sell {order.count_max} {where}")
        price, bid = market.price(self._timeline.time), _bid(order, market)
        if price > bid:
            words = f"the price is {price:g}, the bid {bid:g} USD/h"
            return Answer(order.token, (), Refusal.PRICE, words)
        count, refusal, words = self._room(order, market)
        if count < order.count_min:
            return Answer(order.token, (), refusal, words)
        ids = tuple(self._make(order, market, boot, which) for which in range(count))
        return Answer(order.token, ids, refusal, words)

    def _room(self, order: Order, market: Market) -> tuple[int, Refusal | None, str]:
        """Return how many can be sold, and why not more."""
        count, refusal, words = order.count_max, None, ""
        limit = self.shelf.quota.get((market.machine_type, market.zone))
        if limit is not None:
            left = max(limit - self._used(order.owner, market.machine_type, market.zone), 0)
            if left < count:
                count, refusal = left, Refusal.QUOTA
                words = f"the quota for {market.machine_type} in {market.zone} is {limit}"
        capacity = self.shelf.capacity.get(market.key)
        if capacity is not None:
            left = max(capacity - sum(one.market.key == market.key for one in self._living()), 0)
            if left < count:
                count, refusal = left, Refusal.NO_CAPACITY
                words = f"no more {market.machine_type} in {market.zone} now"
        return count, refusal, words

    def _make(self, order: Order, market: Market, boot: Boot, which: int) -> str:
        self._count += 1
        machine_id = f"{self.name}-{self._count}"
        one = _Instance(machine_id, order, market, boot, market.price(self._timeline.time))
        self._instances[machine_id] = one
        drawn_s = self._rng.uniform(*market.allocate_s) if self._allocate_s is None else self._allocate_s(order, which)
        self._timeline.at(drawn_s, lambda: self._start(one))
        return machine_id

    def _start(self, one: _Instance) -> None:
        if one.life is not Life.PENDING:
            return
        if self._rng.random() < one.market.stillborn:
            self._end(one, Ended.FAILED)
            return
        one.life, one.began = Life.RUNNING, self._wall()
        self.meter.begin(one.machine_id, (one.order.owner, one.order.job_id), one.began, one.usd_per_hour)
        if self._tenant is not None:
            self._tenant.started(self._machine(one), one.boot)

    def _end(self, one: _Instance, cause: Ended) -> None:
        ran = one.life is Life.RUNNING
        one.life, one.ended, one.cause = Life.GONE, self._wall(), cause
        if ran:
            free_hour = cause is Ended.PREEMPTED and one.market.refund
            owner, lines = one.order.owner, self.meter.end(one.machine_id, one.ended, free_hour=free_hour)
            self._timeline.at(self._rng.uniform(*self._bill_lag_s), lambda: self.meter.settle(owner, lines))
        if self._tenant is not None:
            self._tenant.ended(self._machine(one))

    def _priced(self, market: Market) -> None:
        """The price changed: whoever bid less is outbid."""
        price = market.price(self._timeline.time)
        for one in self._living():
            if one.market is market and one.life is Life.RUNNING and _bid(one.order, market) < price:
                self.take(one.machine_id, market.notice_s if market.notice_s > 0 else None)

    def _tell(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        if self._tenant is not None:
            self._tenant.noticed(machine_id, level, left_s)

    def _living(self) -> tuple[_Instance, ...]:
        return tuple(one for one in self._instances.values() if one.life is not Life.GONE)

    def _of(self, token: str) -> tuple[_Instance, ...]:
        return tuple(one for one in self._instances.values() if one.order.token == token)

    def _used(self, owner: str, machine_type: str, zone: str) -> int:
        return sum(
            (one.order.owner, one.market.machine_type, one.market.zone) == (owner, machine_type, zone)
            for one in self._living()
        )

    def _machine(self, one: _Instance) -> Machine:
        return Machine(
            machine_id=one.machine_id,
            owner=one.order.owner,
            job_id=one.order.job_id,
            token=one.order.token,
            provider=self.name,
            machine_type=one.market.machine_type,
            zone=one.market.zone,
            reliability=one.market.reliability,
            price_usd_per_hour=one.usd_per_hour,
            life=one.life,
            began=one.began,
            ended=one.ended,
            cause=one.cause,
            taken_at=one.taken_at,
            address=f"{one.machine_id}.simulated",
        )


def _bid(order: Order, market: Market) -> float:
    """Return the most that may be charged: what was bid, else the price on demand; infinite where nobody bids."""
    if not market.bid:
        return math.inf
    return market.on_demand_usd_per_hour if order.bid_usd_per_hour is None else order.bid_usd_per_hour
