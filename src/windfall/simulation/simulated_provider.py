"""A market in virtual time: `ports.Provider` for storm tests, plans and experiments.

It sells as the local market does: orders wait for their allocation, quota and capacity run out, prices follow a series, bids
are outbid, the hour of a preemption may be free, machines are preempted with notices that are true, false, withdrawn or
missing, and the bill is closed later.  It does not run its machines: a `MachineListener` learns of their starts, notices and
ends.

The simulated provider's meter: the cost of each machine, from its own start, end and price.

It shares no code with the ledger, on purpose: the storm tests compare the two to the cent.
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
    Charge,
    Machine,
    MachineEndCause,
    MachineLifecycle,
    Offer,
    Order,
    Quota,
    Refusal,
)
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.structs import Struct, replace
from windfall.terms import NoticeLevel, Reliability, Seconds, Usd, WallTime

HOUR_S = 3600.0
DECIMALS = 6
"""Charges are rounded to a millionth of a dollar."""


@dataclass
class MeteredMachine:
    """A running machine."""

    owner: str
    job_id: str
    started: WallTime
    usd_per_hour: float


class Meter:
    """Meters each machine from its start to its end, and writes the bill.

    `total_usd` is the truth.  The charges follow it: an unsettled one at a machine's end, a settled one with the same id when
    the bill is closed, and a separate one for a refund.
    """

    def __init__(self) -> None:
        self._running: dict[str, MeteredMachine] = {}
        self._ended_usd: dict[str, float] = {}
        self._lines: list[tuple[str, Charge]] = []

    def start(self, machine_id: str, owner_and_job: tuple[str, str], at: WallTime, usd_per_hour: float) -> None:
        """Start the meter of a machine of (owner, job)."""
        assert machine_id not in self._running, "a machine starts once"
        self._running[machine_id] = MeteredMachine(*owner_and_job, at, usd_per_hour)

    def end(self, machine_id: str, at: WallTime, *, free_hour: bool) -> tuple[Charge, ...]:
        """Stop a machine's meter; return its unsettled charges.

        Args:
            machine_id: of a running machine.
            at: the end.
            free_hour: refund the hour in which it ends, counted from its start.
        """
        one = self._running.pop(machine_id)
        amount = round((at - one.started) / HOUR_S * one.usd_per_hour, DECIMALS)
        lines = [
            Charge(f"{machine_id}/use", machine_id, Usd(amount), one.started, at, settled=False, job_id=one.job_id)
        ]
        if free_hour:
            whole_s = (at - one.started) // HOUR_S * HOUR_S
            since = WallTime(one.started + whole_s)
            back = round((at - since) / HOUR_S * one.usd_per_hour, DECIMALS)
            refund = Charge(f"{machine_id}/refund", machine_id, Usd(-back), since, at, settled=False, job_id=one.job_id)
            lines.append(refund)
        self._ended_usd[one.owner] = self._ended_usd.get(one.owner, 0.0) + sum(line.amount_usd for line in lines)
        self._write(one.owner, lines)
        return tuple(lines)

    def settle(self, owner: str, lines: tuple[Charge, ...]) -> None:
        """Settle these charges."""
        self._write(owner, [replace(line, settled=True) for line in lines])

    def _write(self, owner: str, lines: list[Charge]) -> None:
        self._lines += [(owner, line) for line in lines]

    def falsify(self, machine_id: str, by_usd: float) -> bool:
        """Falsify every use charge of a machine, for checks; return whether there was one."""
        found = False
        for at, (owner, line) in enumerate(self._lines):
            if line.charge_id == f"{machine_id}/use":
                self._lines[at] = (owner, replace(line, amount_usd=Usd(line.amount_usd + by_usd)))
                found = True
        return found

    def bill(self, owner: str, cursor: str) -> Bill:
        """Return an owner's charges since a cursor."""
        since = int(cursor or 0)
        lines = tuple(line for charged, line in self._lines[since:] if charged == owner)
        return Bill(lines, str(len(self._lines)))

    def total_usd(self, owner: str, now: WallTime) -> float:
        """Return the cost of all of an owner's machines until now [USD]."""
        running = (one for one in self._running.values() if one.owner == owner)
        return self._ended_usd.get(owner, 0.0) + sum((now - one.started) / HOUR_S * one.usd_per_hour for one in running)

    @property
    def running(self) -> frozenset[str]:
        """The running machines."""
        return frozenset(self._running)


LISTED_S = 3600.0
"""How long an ended machine stays in the listing [s]."""


class SimulatedMarket(Struct, frozen=True):
    """One type of machine in one zone, with or without the risk of losing it.

    Attributes:
        prices: (from this virtual time on [s], USD per hour), oldest first; at least one, from 0 on.
        notice_s: the promised notice [s].
        allocate_s: an order's machines start after a draw from this range [s].
        startup_s: the published allocation time; None: not published.
        failed_to_start: share of machines that never start [1].
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
    failed_to_start: float = 0.0
    cpus: float = 4.0
    memory_gib: float = 16.0
    accelerator: str | None = None
    accelerators: int = 0

    @property
    def key(self) -> tuple[str, str, Reliability]:
        """The identity of the market."""
        return self.machine_type, self.zone, self.reliability

    def price(self, time_s: float) -> float:
        """Return the price at a virtual time [USD per hour]."""
        return [usd for since, usd in self.prices if since <= time_s][-1]


class MachineListener(Protocol):
    """Receives the events of machines."""

    def started(self, machine: Machine, boot: Boot) -> None:
        """Receive the start of a machine; its init executes `boot`."""

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        """Receive a notice from a machine's own notice source."""

    def ended(self, machine: Machine) -> None:
        """Receive the end of a machine, with everything on it."""


@dataclass
class _Instance:
    """A machine from the provider's point of view."""

    machine_id: str
    order: Order
    market: SimulatedMarket
    boot: Boot
    usd_per_hour: float
    lifecycle: MachineLifecycle = MachineLifecycle.PENDING
    started: WallTime | None = None
    ended: WallTime | None = None
    cause: MachineEndCause | None = None
    preemption_at: WallTime | None = None


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
    ) -> None:
        """Open the markets.

        Args:
            name: the provider's.
            timeline: its time.
            markets: what it sells.
            rng: its own random stream.
            listener: receives the machines' events; None: none.
            bill_lag_s: a charge is settled after a draw from this range [s].
            allocate_s: (order, number of its machine, from 0) -> time until it starts [s]; None: a draw from the market's
                range.
        """
        self.name = name
        self.meter = Meter()
        self.limits = MarketLimits()
        self._timeline = timeline
        self._markets: Mapping[tuple[str, str, Reliability], SimulatedMarket] = {
            market.key: market for market in markets
        }
        self._rng = rng
        self._listener = listener
        self._bill_lag_s = bill_lag_s
        self._allocate_s = allocate_s
        self._instances: dict[str, _Instance] = {}
        self._answers: dict[str, Answer] = {}
        self._cancelled: set[str] = set()
        self._count = 0
        for market in markets:
            for since, _ in market.prices:
                if since > timeline.time:
                    timeline.at(since - timeline.time, lambda market=market: self._apply_price(market))  # type: ignore[misc]

    # ------------------------------------------------------------------------------------------------------- the port

    def capabilities(self) -> Capabilities:
        """Return the capabilities of this provider."""
        markets = self._markets.values()
        return Capabilities(
            bids=any(market.bid for market in markets),
            refunds=any(market.refund for market in markets),
            preempts=True,
            idempotent_orders=True,
            notice_format="local",
            bill_lag_s=Seconds(self._bill_lag_s[1]),
        )

    def offers(self) -> tuple[Offer, ...]:
        """Return the present offers."""
        self._check_credentials()
        return tuple(self._offer(market) for market in self._markets.values())

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """Return the limits of this account."""
        self._check_credentials()
        return tuple(
            Quota(machine_type, zone, limit, self._used(owner, machine_type, zone))
            for (machine_type, zone), limit in self.limits.quota.items()
        )

    def order(self, order: Order, boot: Boot) -> Answer:
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
        return tuple(
            self._machine(one)
            for one in self._instances.values()
            if one.order.job_id == job_id and one.lifecycle is not MachineLifecycle.GONE
        )

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
            message = f"the price is {price:g}, the bid {bid:g} USD/h"
            return Answer(order.token, (), Refusal.PRICE, message)
        count, refusal, message = self._available(order, market)
        if count < order.count_min:
            return Answer(order.token, (), refusal, message)
        ids = tuple(self._make(order, market, boot, which) for which in range(count))
        return Answer(order.token, ids, refusal, message)

    def _available(self, order: Order, market: SimulatedMarket) -> tuple[int, Refusal | None, str]:
        """Return how many machines are available, and why not more."""
        count, refusal, message = order.count_max, None, ""
        limit = self.limits.quota.get((market.machine_type, market.zone))
        if limit is not None:
            left = max(limit - self._used(order.owner, market.machine_type, market.zone), 0)
            if left < count:
                count, refusal = left, Refusal.QUOTA
                message = f"the quota for {market.machine_type} in {market.zone} is {limit}"
        capacity = self.limits.capacity.get(market.key)
        if capacity is not None:
            left = max(capacity - sum(one.market.key == market.key for one in self._active()), 0)
            if left < count:
                count, refusal = left, Refusal.NO_CAPACITY
                message = f"no more {market.machine_type} in {market.zone} now"
        return count, refusal, message

    def _make(self, order: Order, market: SimulatedMarket, boot: Boot, which: int) -> str:
        self._count += 1
        machine_id = f"{self.name}-{self._count}"
        one = _Instance(machine_id, order, market, boot, market.price(self._timeline.time))
        self._instances[machine_id] = one
        drawn_s = self._rng.uniform(*market.allocate_s) if self._allocate_s is None else self._allocate_s(order, which)
        self._timeline.at(drawn_s, lambda: self._start(one))
        return machine_id

    def _start(self, one: _Instance) -> None:
        if one.lifecycle is not MachineLifecycle.PENDING:
            return
        if self._rng.random() < one.market.failed_to_start:
            self._end(one, MachineEndCause.FAILED)
            return
        one.lifecycle, one.started = MachineLifecycle.RUNNING, self._wall()
        self.meter.start(one.machine_id, (one.order.owner, one.order.job_id), one.started, one.usd_per_hour)
        if self._listener is not None:
            self._listener.started(self._machine(one), one.boot)

    def _end(self, one: _Instance, cause: MachineEndCause) -> None:
        ran = one.lifecycle is MachineLifecycle.RUNNING
        one.lifecycle, one.ended, one.cause = MachineLifecycle.GONE, self._wall(), cause
        if ran:
            free_hour = cause is MachineEndCause.PREEMPTED and one.market.refund
            owner, lines = one.order.owner, self.meter.end(one.machine_id, one.ended, free_hour=free_hour)
            self._timeline.at(self._rng.uniform(*self._bill_lag_s), lambda: self.meter.settle(owner, lines))
        if self._listener is not None:
            self._listener.ended(self._machine(one))

    def _apply_price(self, market: SimulatedMarket) -> None:
        """Apply a new price: preempt machines with a lower bid."""
        price = market.price(self._timeline.time)
        for one in self._active():
            if one.market is market and one.lifecycle is MachineLifecycle.RUNNING and _bid(one.order, market) < price:
                self.take(one.machine_id, market.notice_s if market.notice_s > 0 else None)

    def _notify(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        if self._listener is not None:
            self._listener.noticed(machine_id, level, left_s)

    def _active(self) -> tuple[_Instance, ...]:
        return tuple(one for one in self._instances.values() if one.lifecycle is not MachineLifecycle.GONE)

    def _of_token(self, token: str) -> tuple[_Instance, ...]:
        return tuple(one for one in self._instances.values() if one.order.token == token)

    def _used(self, owner: str, machine_type: str, zone: str) -> int:
        return sum(
            (one.order.owner, one.market.machine_type, one.market.zone) == (owner, machine_type, zone)
            for one in self._active()
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
            lifecycle=one.lifecycle,
            started=one.started,
            ended=one.ended,
            cause=one.cause,
            preemption_at=one.preemption_at,
            address=f"{one.machine_id}.simulated",
        )


def _bid(order: Order, market: SimulatedMarket) -> float:
    """Return the highest acceptable price: the bid, else the on-demand price; infinite in a market without bids."""
    if not market.bid:
        return math.inf
    return market.on_demand_usd_per_hour if order.bid_usd_per_hour is None else order.bid_usd_per_hour
