"""A market in virtual time: `ports.Provider` for storm tests, plans and experiments.

It sells as the local market does: orders wait for their allocation, quota and capacity run out, prices follow a series, bids
are outbid, the hour of a preemption may be free, machines are preempted with notices that are true, false, withdrawn or
missing, and the bill is closed later.  An order may be a gang: all of its machines or none, one allocation, lost together.
It does not run its machines: a `MachineListener` learns of their starts, notices and ends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from windfall.errors import ProviderDenied
from windfall.market import (
    BY_THE_SECOND,
    Answer,
    Bill,
    BillingBasis,
    BillingRule,
    BootSpec,
    Capabilities,
    Machine,
    MachineEndCause,
    MachineLifecycle,
    Offer,
    Order,
    PriceChange,
    Quota,
    Refusal,
)
from windfall.simulation.market_evictions import (
    KEPT,
    ByTheJob,
    EvictionRule,
    EvictionUnit,
    MarketEvictions,
    NoticeShares,
)
from windfall.simulation.market_meter import Meter, MeteredMachine
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.structs import Struct
from windfall.terms import NoticeLevel, Reliability, Seconds, WallTime

LISTED_S = 3600.0
"""How long an ended machine stays in the listing [s]."""


class SimulatedMarket(Struct, frozen=True):
    """One type of machine in one zone, with or without the risk of losing it.

    Attributes:
        prices: USD per hour.
        notice_s: the promised notice [s].
        allocate_s: an order's machines start after a draw from this range [s].
        startup_s: the published allocation time; None: not published.
        refund: the hour in which a machine is preempted is free.
        failed_to_start: share of machines that never start [1].
        billing: what a machine's time costs.
        capacity: how many may run at once; when it falls, machines are preempted.  None: there is no limit.
        quota: how many an account may have in this zone, of both kinds of reliability; None: there is no limit.
        eviction: how long machines live, besides.
        notices: how far the promised notice is kept.
    """

    machine_type: str
    zone: str
    reliability: Reliability
    prices: ValueSeries
    on_demand_usd_per_hour: float
    notice_s: Seconds
    allocate_s: tuple[float, float] = (5.0, 20.0)
    startup_s: Seconds | None = None
    bid: bool = False
    refund: bool = False
    failed_to_start: float = 0.0
    cpus: float = 4.0
    memory_gib: float = 16.0
    accelerator: str | None = None
    accelerators: int = 0
    billing: BillingRule = BY_THE_SECOND
    capacity: ValueSeries | None = None
    quota: int | None = None
    eviction: EvictionRule = None
    notices: NoticeShares = KEPT

    @property
    def key(self) -> tuple[str, str, Reliability]:
        """The identity of the market."""
        return self.machine_type, self.zone, self.reliability


class MachineListener(Protocol):
    """Receives the events of machines."""

    def started(self, machine: Machine, boot: BootSpec) -> None:
        """Receive the start of a machine; its init executes `boot`."""

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        """Receive a notice from a machine's own notice source."""

    def ended(self, machine: Machine) -> None:
        """Receive the end of a machine, with everything on it."""


@dataclass(slots=True)
class _Instance:
    """A machine from the provider's point of view.

    Attributes:
        place: number of its market.
        number: of its unit in that market.
        gang: all machines of its unit, itself included; its name is in `allocation`, empty for a machine of its own.
    """

    machine_id: str
    order: Order
    market: SimulatedMarket
    boot: BootSpec
    usd_per_hour: float
    place: int
    number: int
    gang: _Gang
    allocation: str
    lifecycle: MachineLifecycle = MachineLifecycle.PENDING
    started: WallTime | None = None
    ended: WallTime | None = None
    cause: MachineEndCause | None = None
    preemption_at: WallTime | None = None


_Gang = list[_Instance]


@dataclass
class MarketLimits:
    """The limits of the markets, which may change: capacity by (type, zone, reliability), quota by (type, zone).

    Attributes:
        capacity: how many may run at once; without an entry there is no limit.
        quota: how many the account may have, over both kinds of reliability; without an entry there is no limit.
        denied: refuse the account's credentials.
    """

    capacity: dict[tuple[str, str, Reliability], int] = field(default_factory=dict)
    quota: dict[tuple[str, str], int] = field(default_factory=dict)
    denied: bool = False


class SimulatedProvider:
    """`ports.Provider` in virtual time; its calls take no time."""

    def __init__(
        self,
        name: str,
        timeline: Timeline,
        markets: tuple[SimulatedMarket, ...],
        rng: random.Random,
        *,
        listener: MachineListener | None = None,
        bill_lag_s: tuple[float, float] = (0.0, 0.0),
        allocate_s: Callable[[Order, int], float] | None = None,
        seed: int = 0,
    ) -> None:
        """Open the markets.

        Args:
            name: the provider's.
            timeline: its time.
            markets: what it sells.
            rng: its own random stream.
            listener: receives the machines' events; None: none.
            bill_lag_s: a charge is settled after a draw from this range [s].
            allocate_s: (order, number of its machine, from 0) -> time until it starts [s], in markets whose jobs draw that;
                elsewhere it is a draw from the market's range.
            seed: of the markets' evictions.
        """
        self.name = name
        self.meter = Meter()
        self.limits = MarketLimits()
        self._timeline = timeline
        self._markets = markets
        self._rng = rng
        self._listener = listener
        self._bill_lag_s = bill_lag_s
        self._allocate_s = allocate_s
        self._instances: dict[str, _Instance] = {}
        self._alive: tuple[dict[str, _Instance], ...] = tuple({} for _ in markets)
        self._sold = [0] * len(markets)
        self._places = {market.key: place for place, market in enumerate(markets)}
        self._answers: dict[str, Answer] = {}
        self._cancelled: set[str] = set()
        self._count = 0
        for market in markets:
            if market.quota is not None:
                self.limits.quota[market.machine_type, market.zone] = market.quota
            if market.bid:
                self._await_price(market)
        self._evictions = MarketEvictions(timeline, markets, seed, self)

    # ------------------------------------------------------------------------------------------------------- the port

    def capabilities(self) -> Capabilities:
        """Return the capabilities of this provider."""
        markets = self._markets
        return Capabilities(
            bids=any(market.bid for market in markets),
            refunds=any(market.refund for market in markets),
            preempts=True,
            idempotent_orders=True,
            notice_format="local",
            bill_lag_s=Seconds(self._bill_lag_s[1]),
            price_floats=any(market.billing.basis is not BillingBasis.PURCHASE for market in markets),
            gangs=True,
        )

    def offers(self) -> tuple[Offer, ...]:
        """Return the present offers."""
        self._check_credentials()
        return tuple(self._offer(market) for market in self._markets)

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """Return the limits of this account."""
        self._check_credentials()
        return tuple(
            Quota(machine_type, zone, limit, self._used(owner, machine_type, zone))
            for (machine_type, zone), limit in self.limits.quota.items()
        )

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """Buy machines; the same token gives the same answer."""
        self._check_credentials()
        if order.token in self._cancelled:
            known = self._answers.get(order.token)
            ids = () if known is None else known.machine_ids
            return Answer(order.token, ids, Refusal.CANCELLED, f"{order.token} was cancelled")
        if order.token not in self._answers:
            self._answers[order.token] = self._sell(order, boot)
        return self._answers[order.token]

    def cancel(self, token: str) -> None:
        """Cancel a token: it buys nothing more, and its pending machines are released."""
        self._check_credentials()
        self._cancelled.add(token)
        for instance in self._of_token(token):
            if instance.lifecycle is MachineLifecycle.PENDING:
                self._end(instance, MachineEndCause.RELEASED)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """Return this owner's machines: pending, running, and recently ended."""
        self._check_credentials()
        oldest = self._wall() - LISTED_S
        for one in tuple(self._instances.values()):
            if one.ended is not None and one.ended < oldest:
                del self._instances[one.machine_id]
        return tuple(self._machine(one) for one in self._instances.values() if one.order.owner == owner)

    def release(self, machine_id: str) -> None:
        """Release a machine."""
        self._check_credentials()
        self.end(machine_id, MachineEndCause.RELEASED)

    def charges(self, owner: str, cursor: str) -> Bill:
        """Return this owner's charges since `cursor`."""
        self._check_credentials()
        return self.meter.bill(owner, cursor)

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Preempt a machine after a notice; None for no notice."""
        self._check_credentials()
        self.take(machine_id, notice_s)

    def next_price_s(self) -> float:
        """Return when the next price changes [s of virtual time]; infinite if none does."""
        now_s = self._timeline.time
        return min((market.prices.next_change_s(now_s) for market in self._markets), default=math.inf)

    # ---------------------------------------------------------------------------------------- machine events

    def take(self, machine_id: str, notice_s: Seconds | None) -> None:
        """Preempt a machine, with a true notice."""
        if notice_s is None:
            self.end(machine_id, MachineEndCause.PREEMPTED)
            return
        self.announce(machine_id, notice_s)
        self._timeline.at(notice_s, lambda: self.end(machine_id, MachineEndCause.PREEMPTED))

    def announce(self, machine_id: str, left_s: Seconds) -> None:
        """Send a machine a notice; the caller decides whether it is true."""
        one = self._instances.get(machine_id)
        if one is not None and one.lifecycle is MachineLifecycle.RUNNING:
            one.preemption_at = WallTime(self._wall() + left_s)
            self._notify(machine_id, NoticeLevel.ANNOUNCED, left_s)

    def units(self, place: int) -> Sequence[EvictionUnit]:
        """Return the pending and running units of a market, oldest first."""
        found: dict[int, list[_Instance]] = {}
        for one in self._alive[place].values():
            found.setdefault(one.number, []).append(one)
        return [
            EvictionUnit(number, tuple(one.machine_id for one in gang), gang[0].lifecycle is MachineLifecycle.RUNNING)
            for number, gang in found.items()
        ]

    def evict(self, unit: EvictionUnit, notice_s: Seconds | None) -> None:
        """Evict a unit: after a notice, now for None; one that is pending never starts."""
        for machine_id in unit.machine_ids:
            one = self._instances.get(machine_id)
            if one is None or one.lifecycle is MachineLifecycle.GONE:
                continue
            if one.lifecycle is MachineLifecycle.PENDING:
                self._end(one, MachineEndCause.FAILED)
            else:
                self.take(machine_id, notice_s)

    def mark(self, machine_id: str, left_s: Seconds) -> None:
        """Announce a preemption in the listing alone, without a notice to the machine."""
        one = self._instances.get(machine_id)
        if one is not None and one.lifecycle is MachineLifecycle.RUNNING:
            one.preemption_at = WallTime(self._wall() + left_s)

    def withdraw(self, machine_id: str) -> None:
        """Withdraw a notice."""
        one = self._instances.get(machine_id)
        if one is not None and one.lifecycle is MachineLifecycle.RUNNING:
            one.preemption_at = None
            self._notify(machine_id, NoticeLevel.WITHDRAWN, None)

    def hint(self, machine_id: str) -> None:
        """Send a machine a hint of elevated risk."""
        one = self._instances.get(machine_id)
        if one is not None and one.lifecycle is MachineLifecycle.RUNNING:
            self._notify(machine_id, NoticeLevel.HINT, None)

    def end(self, machine_id: str, cause: MachineEndCause) -> None:
        """End a machine now; no error if it has ended already."""
        one = self._instances.get(machine_id)
        if one is not None and one.lifecycle is not MachineLifecycle.GONE:
            self._end(one, cause)

    def alive(self, job_id: str) -> tuple[Machine, ...]:
        """Return a job's pending and running machines: the truth, without delays."""
        found = (one for alive in self._alive for one in alive.values() if one.order.job_id == job_id)
        return tuple(self._machine(one) for one in found)

    # -------------------------------------------------------------------------------------------------------- inside

    def _check_credentials(self) -> None:
        if self.limits.denied:
            raise ProviderDenied(f"{self.name} refuses these credentials: renew them")

    def _wall(self) -> WallTime:
        return WallTime(WALL_START + self._timeline.time)

    def _offer(self, market: SimulatedMarket) -> Offer:
        return Offer(
            provider=self.name,
            machine_type=market.machine_type,
            zone=market.zone,
            price_usd_per_hour=market.prices.at(self._timeline.time),
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
            billing=market.billing,
        )

    def _sell(self, order: Order, boot: BootSpec) -> Answer:
        place = self._places.get((order.offer.machine_type, order.offer.zone, order.offer.reliability))
        if place is None or not 1 <= order.count_min <= order.count_max:
            where = f"{order.offer.machine_type} in {order.offer.zone}"
            return Answer(order.token, (), Refusal.INVALID, f"{self.name} does not sell {order.count_max} {where}")
        market = self._markets[place]
        price, bid = market.prices.at(self._timeline.time), price_limit_usd(market, order.bid_usd_per_hour)
        if price > bid:
            message = f"the price is {price:g}, the bid {bid:g} USD/h"
            return Answer(order.token, (), Refusal.PRICE, message)
        count, refusal, message = self._available(order, place)
        if count < (order.count_max if order.gang else order.count_min):
            return Answer(order.token, (), refusal, message)
        return Answer(order.token, self._make(order, place, boot, count), refusal, message)

    def _available(self, order: Order, place: int) -> tuple[int, Refusal | None, str]:
        """Return how many machines are available, and why not more."""
        market = self._markets[place]
        count, refusal, message = order.count_max, None, ""
        limit = self.limits.quota.get((market.machine_type, market.zone))
        if limit is not None:
            left = max(limit - self._used(order.owner, market.machine_type, market.zone), 0)
            if left < count:
                count, refusal = left, Refusal.QUOTA
                message = f"the quota for {market.machine_type} in {market.zone} is {limit}"
        capacities = [] if market.capacity is None else [int(market.capacity.at(self._timeline.time))]
        if market.key in self.limits.capacity:
            capacities.append(self.limits.capacity[market.key])
        if capacities:
            left = max(min(capacities) - len(self._alive[place]), 0)
            if left < count:
                count, refusal = left, Refusal.NO_CAPACITY
                message = f"no more {market.machine_type} in {market.zone} now"
        return count, refusal, message

    def _make(self, order: Order, place: int, boot: BootSpec, count: int) -> tuple[str, ...]:
        """Make the machines of an order: a unit each, or one gang."""
        market, made = self._markets[place], []
        gang: _Gang = []
        for which in range(count):
            self._count += 1
            machine_id = f"{self.name}-{self._count}"
            if not (order.gang and gang):
                gang, number = [], self._sold[place]
                self._sold[place] += 1
            allocation = f"{self.name}-{market.machine_type}-{market.zone}-{number}" if order.gang else ""
            price = market.prices.at(self._timeline.time)
            one = _Instance(machine_id, order, market, boot, price, place, number, gang, allocation)
            gang.append(one)
            self._instances[machine_id] = self._alive[place][machine_id] = one
            made.append(machine_id)
            if len(gang) == 1:
                self._timeline.at(self._waits_s(order, market, which), partial(self._start, gang))
        return tuple(made)

    def _waits_s(self, order: Order, market: SimulatedMarket, which: int) -> float:
        if self._allocate_s is not None and isinstance(market.eviction, ByTheJob):
            return self._allocate_s(order, which)
        return self._rng.uniform(*market.allocate_s)

    def _start(self, gang: _Gang) -> None:
        """Start the machines of a unit, or let all of them fail."""
        first = gang[0]
        if first.lifecycle is not MachineLifecycle.PENDING:
            return
        if self._rng.random() < first.market.failed_to_start:
            self._end(first, MachineEndCause.FAILED)
            return
        started = self._wall()
        for one in gang:
            one.lifecycle, one.started = MachineLifecycle.RUNNING, started
            order, market = one.order, one.market
            metered = MeteredMachine(
                order.owner, order.job_id, started, one.usd_per_hour, market.billing, market.prices
            )
            self.meter.start(one.machine_id, metered)
        self._evictions.started(
            first.place, EvictionUnit(first.number, tuple(one.machine_id for one in gang), running=True)
        )
        if self._listener is not None:
            for one in gang:
                if one.lifecycle is MachineLifecycle.RUNNING:  # the driver may release them when the first has started
                    self._listener.started(self._machine(one), one.boot)

    def _end(self, one: _Instance, cause: MachineEndCause) -> None:
        """End a machine, and with it the others of its gang."""
        now, leaving = self._wall(), [each for each in one.gang if each.lifecycle is not MachineLifecycle.GONE]
        for each in leaving:
            ran = each.lifecycle is MachineLifecycle.RUNNING
            each.lifecycle, each.ended, each.cause = MachineLifecycle.GONE, now, cause
            del self._alive[each.place][each.machine_id]
            self._evictions.forget(each.machine_id)
            if ran:
                free_hour = cause is MachineEndCause.PREEMPTED and each.market.refund
                owner, lines = each.order.owner, self.meter.end(each.machine_id, now, free_hour=free_hour)
                self._timeline.at(self._rng.uniform(*self._bill_lag_s), partial(self.meter.settle, owner, lines))
        if self._listener is not None:
            for each in leaving:
                self._listener.ended(self._machine(each))

    def _await_price(self, market: SimulatedMarket) -> None:
        """Apply the next price when it comes."""
        at_s = market.prices.next_change_s(self._timeline.time)
        if at_s < math.inf:
            self._timeline.when(at_s, partial(self._apply_price, market))

    def _apply_price(self, market: SimulatedMarket) -> None:
        """Apply a new price: preempt machines with a lower bid."""
        self._await_price(market)
        price, place = market.prices.at(self._timeline.time), self._places[market.key]
        for one in tuple(self._alive[place].values()):
            if (
                one.lifecycle is MachineLifecycle.RUNNING
                and price_limit_usd(market, one.order.bid_usd_per_hour) < price
            ):
                self.take(one.machine_id, self._evictions.notice_of(place, one.number))

    def _notify(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        if self._listener is not None:
            self._listener.noticed(machine_id, level, left_s)

    def _of_token(self, token: str) -> tuple[_Instance, ...]:
        return tuple(one for alive in self._alive for one in alive.values() if one.order.token == token)

    def _used(self, owner: str, machine_type: str, zone: str) -> int:
        places = (
            place
            for place, market in enumerate(self._markets)
            if (market.machine_type, market.zone) == (machine_type, zone)
        )
        return sum(one.order.owner == owner for place in places for one in self._alive[place].values())

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
            lifecycle=one.lifecycle,
            started=one.started,
            ended=one.ended,
            cause=one.cause,
            preemption_at=one.preemption_at,
            address=f"{one.machine_id}.simulated",
            allocation=one.allocation,
            price_changes=() if one.started is None else self._changes(one, one.started),
        )

    def _changes(self, one: _Instance, started: WallTime) -> tuple[PriceChange, ...]:
        market = one.market
        metered = MeteredMachine("", "", started, one.usd_per_hour, market.billing, market.prices)
        return metered.listed_changes(self._wall(), one.ended)


def price_limit_usd(market: SimulatedMarket, bid_usd_per_hour: float | None) -> float:
    """Return the highest acceptable price: the bid, else the on-demand price; infinite in a market without bids."""
    if not market.bid:
        return math.inf
    return market.on_demand_usd_per_hour if bid_usd_per_hour is None else bid_usd_per_hour
