"""A provider that is nothing like the local market, under a handed-in clock and seed.

It forgets tokens after a minute, lists late and forgets what ended, confirms machines without saying when they start (some
never do, some fail instead), charges the price in effect, lets preempted machines rise again, sells gangs that are lost
together, and may call a machine gone that lives.  It shares no code with the simulated market: its meter is its own.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from windfall.errors import ProviderDenied, ProviderUnreachable
from windfall.market import (
    BY_THE_SECOND,
    PRICES_LISTED_S,
    Answer,
    Bill,
    BillingBasis,
    BillingRule,
    BootSpec,
    Capabilities,
    Charge,
    Machine,
    MachineEndCause,
    MachineLifecycle,
    Offer,
    Order,
    PriceChange,
    Quota,
    Refusal,
)
from windfall.simulation.simulated_provider import MachineListener
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.structs import replace
from windfall.terms import NoticeLevel, Reliability, Seconds, Usd, WallTime

HOUR_S = 3600.0
PAGE = 2
"""Machines on one page of the listing."""


@dataclass(frozen=True)
class ToyRules:
    """How the toy behaves.

    Attributes:
        token_memory_s, listing_lag_s, keeps_ended_s, bill_lag_s: as `Capabilities` states them [s].
        start_s: a confirmed machine starts after a draw from this range [s].
        never, fails: shares of confirmed machines that stay pending for ever, and that fail instead of starting.
        life_s: mean time until a preemption [s]; None for none.
        promise_s: how long a buyer is to wait for a confirmed machine [s].
        notice_s: its notice, which is also in the listing [s].
        rises: share of preempted machines that rise again; `rise_s` later [s].
        prices: (since [s], USD/h) of every zone; empty for a series of its own that changes every `price_step_s`.
    """

    token_memory_s: float = 60.0
    listing_lag_s: float = 8.0
    keeps_ended_s: float = 30.0
    bill_lag_s: float = 5.0
    start_s: tuple[float, float] = (4.0, 20.0)
    never: float = 0.0
    fails: float = 0.0
    life_s: float | None = None
    notice_s: float = 20.0
    rises: float = 0.0
    rise_s: float = 15.0
    price_step_s: float = 50.0
    promise_s: float = 60.0
    prices: tuple[tuple[float, float], ...] = ()
    on_demand: float = 4.0
    machine_type: str = "small"
    zones: tuple[str, ...] = ("zone-a", "zone-b")


@dataclass
class _Stretch:
    """One machine from its confirmation to its end, with every state that it ever had."""

    order: Order
    boot: BootSpec
    states: list[tuple[float, Machine]]
    alive: bool = False
    disk: bool = True
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def now(self) -> Machine:
        return self.states[-1][1]


@dataclass
class ToyProvider:
    """`ports.Provider`; see the module."""

    timeline: Timeline
    rules: ToyRules = ToyRules()
    seed: int = 1
    name: str = "toy"
    listener: MachineListener | None = None
    denied: bool = False
    page_fails: bool = False
    capacity: int = 100
    quota_limit: int = 100
    orders: list[Order] = field(default_factory=list)
    born: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"toy-{self.seed}")
        self._stretches: dict[str, _Stretch] = {}
        self._tokens: dict[str, tuple[float, Answer]] = {}
        self._cancelled: dict[str, float] = {}
        self._lines: list[tuple[str, Charge]] = []
        self._numbers = itertools.count(1)
        self._gangs = itertools.count(1)

    # ------------------------------------------------------------------------------------------------------- the port

    def capabilities(self) -> Capabilities:
        rules = self.rules
        return Capabilities(
            bids=True, refunds=False, preempts=True, idempotent_orders=True, notice_format="local",
            bill_lag_s=Seconds(rules.bill_lag_s), token_memory_s=Seconds(rules.token_memory_s),
            listing_lag_s=Seconds(rules.listing_lag_s), keeps_ended_s=Seconds(rules.keeps_ended_s),
            promises_dated=False, promises_fail=True, price_floats=True, false_deaths=True, rises_again=True,
            announces=True, gangs=True,
        )  # fmt: skip

    def offers(self) -> tuple[Offer, ...]:
        self._check()
        return tuple(
            Offer(
                self.name, self.rules.machine_type, zone,
                self.price(zone, self.timeline.time) if spot else self.rules.on_demand, self.rules.on_demand,
                Reliability.TRANSIENT if spot else Reliability.RELIABLE, Seconds(self.rules.notice_s),
                self._wall(self.timeline.time), 4.0, 16.0, bid=spot,
                promise_s=Seconds(self.rules.promise_s),
                billing=BillingRule(BillingBasis.IN_EFFECT) if spot else BY_THE_SECOND,
            )
            for zone in self.rules.zones for spot in (True, False)
        )  # fmt: skip

    def quota(self, owner: str) -> tuple[Quota, ...]:
        self._check()
        return tuple(
            Quota(self.rules.machine_type, zone, self.quota_limit, self._used(owner, zone)) for zone in self.rules.zones
        )

    def order(self, order: Order, boot: BootSpec) -> Answer:
        self._check()
        self.orders.append(order)
        time, memory_s = self.timeline.time, self.rules.token_memory_s
        if time - self._cancelled.get(order.token, -1e9) < memory_s:
            _, known = self._tokens.get(order.token, (0.0, Answer(order.token, ())))
            return replace(known, refusal=Refusal.CANCELLED, message="cancelled")
        at, known = self._tokens.get(order.token, (-1e9, Answer(order.token, ())))
        if time - at < memory_s:
            return known
        self._tokens[order.token] = (time, self._sell(order, boot))
        return self._tokens[order.token][1]

    def cancel(self, token: str) -> None:
        self._check()
        self._cancelled[token] = self.timeline.time
        for name, one in list(self._stretches.items()):
            if one.order.token == token and one.now.lifecycle is MachineLifecycle.PENDING:
                self.end(name, MachineEndCause.RELEASED)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """All pages, as they were a while ago; a page that cannot be read makes the whole listing unknown."""
        self._check()
        at = self.timeline.time - self.rules.listing_lag_s
        seen = [machine for one in self._stretches.values() if (machine := self._seen(one, at)) is not None]
        mine = [machine for machine in seen if machine.owner == owner]
        if self.page_fails and len(mine) > PAGE:
            raise ProviderUnreachable("planted: the second page cannot be read")
        return tuple(mine)

    def release(self, machine_id: str) -> None:
        self._check()
        self.end(machine_id, MachineEndCause.RELEASED)

    def charges(self, owner: str, cursor: str) -> Bill:
        self._check()
        found = [line for whose, line in self._lines[int(cursor or 0) :] if whose == owner]
        return Bill(tuple(found), str(len(self._lines)))

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        self._check()
        one = self._stretches.get(machine_id)
        if one is None or one.now.lifecycle is not MachineLifecycle.RUNNING:
            return
        if notice_s is None:
            self._taken(machine_id)
            return
        until = self._wall(self.timeline.time + notice_s)
        self._becomes(one, preemption_at=until)
        self._tell(machine_id, NoticeLevel.ANNOUNCED, notice_s)
        self.timeline.at(notice_s, lambda: self._taken(machine_id, until))

    # -------------------------------------------------------------------------------------------------- what may happen

    def withdraw(self, machine_id: str) -> None:
        """An announced end does not come."""
        self._becomes(self._stretches[machine_id], preemption_at=None)
        self._tell(machine_id, NoticeLevel.WITHDRAWN, None)

    def loses(self, machine_id: str) -> None:
        """The listing calls it gone; it lives until it is released."""
        one = self._stretches[machine_id]
        self._bill(one)
        self._becomes(one, **self._gone(MachineEndCause.FAILED))

    def rise(self, machine_id: str) -> str:
        """A machine that is gone starts again: another machine in the listing, from the same order."""
        before = self._stretches[machine_id]
        assert not before.alive
        name = f"{machine_id}.{next(self._numbers)}"
        pending = replace(self._confirmed(before.order, name, before.now.allocation), token=before.order.token)
        self._stretches[name] = _Stretch(before.order, before.boot, [(self.timeline.time, pending)])
        self._start(name)
        return name

    def end(self, machine_id: str, cause: MachineEndCause) -> None:
        """It ends, and with it all of its gang; its disk goes too."""
        one = self._stretches.get(machine_id)
        if one is None:
            return
        gang = one.now.allocation
        together = [name for name, other in self._stretches.items() if gang and other.now.allocation == gang]
        for name in together or [machine_id]:
            self._end(self._stretches[name], cause)

    def lives(self, machine_id: str) -> bool:
        return self._stretches[machine_id].alive

    def remains(self, owner: str) -> list[str]:
        """Machines, and disks of machines, that are still there: the truth."""
        return [name for name, one in self._stretches.items() if one.order.owner == owner and (one.alive or one.disk)]

    def alive(self, job_id: str) -> tuple[Machine, ...]:
        """A job's pending and running machines: the truth, without delays."""
        return tuple(
            one.now
            for one in self._stretches.values()
            if one.order.job_id == job_id and one.now.lifecycle is not MachineLifecycle.GONE
        )

    def metered_usd(self, owner: str) -> float:
        """What an owner's ended machines cost, second by second of the price series, without the bill."""
        return sum(
            self._cost(one) for one in self._stretches.values() if one.order.owner == owner and one.ended_at is not None
        )

    def price(self, zone: str, time: float) -> float:
        """The price in effect [USD/h]."""
        if self.rules.prices:
            return [usd for since, usd in self.rules.prices if since <= time][-1]
        number = int(time // self.rules.price_step_s)
        return round(self.rules.on_demand * random.Random(f"{self.seed}-{zone}-{number}").uniform(0.2, 0.8), 4)

    # -------------------------------------------------------------------------------------------------------- inside

    def _check(self) -> None:
        if self.denied:
            raise ProviderDenied("toy refuses these credentials")

    def _wall(self, time: float) -> WallTime:
        return WallTime(WALL_START + time)

    def _used(self, owner: str | None, zone: str) -> int:
        return sum(
            one.now.zone == zone and one.now.lifecycle is not MachineLifecycle.GONE and owner in {None, one.order.owner}
            for one in self._stretches.values()
        )

    def _sell(self, order: Order, boot: BootSpec) -> Answer:
        offer, rules = order.offer, self.rules
        place = f"{offer.machine_type} in {offer.zone}"
        if offer.machine_type != rules.machine_type or offer.zone not in rules.zones:
            return Answer(order.token, (), Refusal.INVALID, f"toy has no {place}")
        if not 1 <= order.count_min <= order.count_max:
            return Answer(order.token, (), Refusal.INVALID, "toy sells no such number")
        price = self.price(offer.zone, self.timeline.time)
        if order.bid_usd_per_hour is not None and order.bid_usd_per_hour < price:
            return Answer(order.token, (), Refusal.PRICE, f"{place} costs {price:g}")
        rooms = (
            (order.count_max, None),
            (self.quota_limit - self._used(order.owner, offer.zone), Refusal.QUOTA),
            (self.capacity - self._used(None, offer.zone), Refusal.NO_CAPACITY),
        )
        count, refusal = min(rooms, key=lambda room: room[0])
        message = "" if refusal is None else f"toy has {max(count, 0)} of {place}"
        if count < order.count_min:
            return Answer(order.token, (), refusal, message)
        gang = f"gang-{next(self._gangs)}" if order.gang else ""
        return Answer(order.token, tuple(self._make(order, boot, gang) for _ in range(count)), refusal, message)

    def _confirmed(self, order: Order, name: str, gang: str) -> Machine:
        offer = order.offer
        price = offer.price_usd_per_hour
        if offer.reliability is Reliability.TRANSIENT:
            price = self.price(offer.zone, self.timeline.time)
        return Machine(
            name, order.owner, order.job_id, order.token, self.name, offer.machine_type, offer.zone, offer.reliability,
            price, MachineLifecycle.PENDING, allocation=gang,
        )  # fmt: skip

    def _make(self, order: Order, boot: BootSpec, gang: str) -> str:
        name = f"{self.name}-{next(self._numbers)}"
        self._stretches[name] = _Stretch(order, boot, [(self.timeline.time, self._confirmed(order, name, gang))])
        fate, wait_s = self._rng.random(), self._rng.uniform(*self.rules.start_s)
        if fate < self.rules.fails:
            self.timeline.at(wait_s, lambda: self.end(name, MachineEndCause.FAILED))
        elif fate >= self.rules.fails + self.rules.never:
            self.timeline.at(wait_s, lambda: self._start(name))
        return name

    def _start(self, name: str) -> None:
        one = self._stretches[name]
        if one.now.lifecycle is not MachineLifecycle.PENDING:
            return
        one.alive, one.started_at = True, self.timeline.time
        self._becomes(one, lifecycle=MachineLifecycle.RUNNING, started=self._wall(self.timeline.time))
        if self.listener is not None:
            self.listener.started(one.now, one.boot)
        if self.rules.life_s is not None:
            life_s = self._rng.expovariate(1.0 / self.rules.life_s)
            self.timeline.at(life_s, lambda: self.preempt(name, Seconds(self.rules.notice_s)))

    def _taken(self, name: str, announced: WallTime | None = None) -> None:
        one = self._stretches[name]
        withdrawn = announced is not None and one.now.preemption_at != announced
        if one.now.lifecycle is not MachineLifecycle.RUNNING or withdrawn:
            return
        self.end(name, MachineEndCause.PREEMPTED)
        if not one.now.allocation and self._rng.random() < self.rules.rises:
            self.timeline.at(self.rules.rise_s, lambda: self.rise(name))

    def _gone(self, cause: MachineEndCause) -> dict[str, object]:
        return {"lifecycle": MachineLifecycle.GONE, "ended": self._wall(self.timeline.time), "cause": cause}

    def _end(self, one: _Stretch, cause: MachineEndCause) -> None:
        told, one.alive, one.disk = one.alive or one.started_at is None, False, False
        if one.now.lifecycle is not MachineLifecycle.GONE:
            self._bill(one)
            self._becomes(one, **self._gone(cause))
        if told and self.listener is not None:
            self.listener.ended(one.now)

    def _becomes(self, one: _Stretch, **changes: object) -> None:
        one.states.append((self.timeline.time, replace(one.now, **changes)))  # type: ignore[arg-type]

    def _bill(self, one: _Stretch) -> None:
        one.ended_at = self.timeline.time
        if one.started_at is None:
            return
        machine, owner = one.now, one.order.owner
        line = Charge(
            f"{machine.machine_id}/use", machine.machine_id, Usd(round(self._cost(one), 6)),
            self._wall(one.started_at), self._wall(one.ended_at), settled=False, job_id=one.order.job_id,
        )  # fmt: skip
        self._lines.append((owner, line))
        settled = (owner, replace(line, settled=True))
        self.timeline.at(self.rules.bill_lag_s, lambda: self._lines.append(settled))

    def _cost(self, one: _Stretch) -> float:
        if one.started_at is None or one.ended_at is None:
            return 0.0
        if one.now.reliability is Reliability.RELIABLE:
            return (one.ended_at - one.started_at) / HOUR_S * one.now.price_usd_per_hour
        points = [one.started_at, *self._moments(one.started_at, one.ended_at), one.ended_at]
        return sum(
            (until - since) / HOUR_S * self.price(one.now.zone, since) for since, until in itertools.pairwise(points)
        )

    def _moments(self, since: float, until: float) -> list[float]:
        """When the price changes after one moment and before another."""
        if self.rules.prices:
            return [at for at, _ in self.rules.prices if since < at < until]
        step_s = self.rules.price_step_s
        numbers = range(int(since // step_s) + 1, int(until // step_s) + 1)
        return [number * step_s for number in numbers if since < number * step_s < until]

    def _seen(self, one: _Stretch, at: float) -> Machine | None:
        """What the listing of a moment says of a machine."""
        number = bisect.bisect_right([time for time, _ in one.states], at)
        if number == 0:
            return None
        machine = one.states[number - 1][1]
        ended = machine.lifecycle is MachineLifecycle.GONE
        if ended and one.states[number - 1][0] < at - self.rules.keeps_ended_s:
            return None
        if machine.reliability is Reliability.RELIABLE:
            return machine
        until = min(at, self.timeline.time if one.ended_at is None else one.ended_at)
        moments = self._moments(max(one.states[0][0], at - PRICES_LISTED_S), until)
        changes = tuple(PriceChange(self._wall(moment), self.price(machine.zone, moment)) for moment in moments)
        return replace(machine, price_changes=changes)

    def _tell(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        if self.listener is not None:
            self.listener.noticed(machine_id, level, left_s)


@contextmanager
def faulty(provider: ToyProvider, fault: str) -> Iterator[ToyProvider]:
    """The same account over a line on which every call meets a fault: lost, doubled or unsent."""

    class Line:
        def __getattr__(self, name: str) -> object:
            call = getattr(provider, name)

            def meet(*arguments: object) -> object:
                if fault == "unsent":
                    raise ProviderUnreachable("planted: the call was not sent")
                answer = call(*arguments)
                if fault == "doubled":
                    answer = call(*arguments)
                if fault == "lost":
                    raise ProviderUnreachable("planted: the answer was lost")
                return answer

            return meet

    yield Line()  # type: ignore[misc]
