"""A fast fleet loop: what a fleet policy has and pays over days, without reducers, journal and machines' own work.

A second implementation of how a fleet is bought, for speed: it calls the same functions as the driver where something is
chosen (the fleet policy, the ranking of offers, the draw of a lifetime), and is checked against the event engine
(`tests/simulation/test_fleet_loop.py`).  Machines are rows of columns; only purchases and ends are events; what machines
cost is computed for all of them at once.

It leaves out: capacity, quotas, bids, refusals and failed starts; notices, and so successors before an end; gangs; the
hand-over of a machine that leaves (it is released at once; one that is replaced by choice once its successor has started,
or at its deadline); the job's progress, budget and end; the rounding of bills.  An order takes the middle of its market's
range.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.market import Offer
from windfall.policies.acquisition import ranking
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetMachine,
    FleetPolicy,
    FleetTarget,
    MachineDrain,
)
from windfall.policies.replacement import successor
from windfall.simulation import random_draws, sampling
from windfall.simulation.engine_fleet import OFFERS_EVERY_S
from windfall.simulation.market_meter import HOUR_S, BillingBasis
from windfall.simulation.scenario import LifetimeQuantiles, MemorylessLifetimes, RecordedLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import Struct
from windfall.terms import Instant, JobProgress, WallTime

DECIDE_EVERY_S: Final = 120.0
"""How often the policy is asked [s]; machines that end are replaced at once."""
_INSTANT = 1e-9
Floats = NDArray[np.float64]


class FleetOutcome(Struct, frozen=True):
    """What a fleet cost.

    Attributes:
        usd: all bills, refunds subtracted [USD].
        machine_hours: billed time [h].
        machines: how many were bought.
        preemptions: how many the market took.
    """

    usd: float
    machine_hours: float
    machines: int
    preemptions: int


@dataclass(slots=True)
class _MachineColumns:
    """The machines, one row each; times in seconds, `price` at the purchase [USD/h]."""

    pool: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    price: list[float] = field(default_factory=list)
    taken: list[bool] = field(default_factory=list)
    slot: list[str] = field(default_factory=list)


class FleetLoop:
    """One history; it is also the policy's view of it (`fleet_policy.FleetView`)."""

    def __init__(
        self, job: Job, policy: FleetPolicy, needs: tuple[Slot, ...], pools: Sequence[SimulatedMarket], *, seed: int = 0
    ) -> None:
        """Prepare.

        Args:
            job: of the driver.
            policy: decides what to have.
            needs: of the job's runtime, at the start.
            pools: what the provider `sim` sells.
            seed: of the lifetimes; the same as in the event engine.

        Raises:
            Misuse: a market has what this loop leaves out.
        """
        self.job, self.needs = job, needs
        self.progress: JobProgress | None = None
        self._offers: tuple[Offer, ...] = ()
        self._policy, self._pools = policy, tuple(pools)
        for pool in self._pools:
            _check(pool)
        self._time_s = self._looked_s = 0.0
        self._keys = [_unsigned(random_draws.key(seed, place)) for place in range(len(pools))]
        self._lives = [None if pool.eviction is None else sampling.pack(pool.eviction) for pool in self._pools]  # type: ignore[arg-type]
        self._sold = [0] * len(pools)
        self._rows = _MachineColumns()
        self._holder: dict[str, int] = {}
        self._ends: list[tuple[float, int]] = []
        self._best: dict[tuple[object, ...], int] = {}
        startups_s = [pool.startup_s for pool in self._pools if pool.startup_s is not None]
        self._estimates = FleetEstimates((), (), successor.expect(max(startups_s, default=None), None, None))

    # --------------------------------------------------------------------------------------------------- the policy's view

    @property
    def now(self) -> Instant:
        """The journal clock."""
        return Instant(WALL_START + self._time_s)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What the provider offers, as of the last look; as often as the event engine looks."""
        while not self._offers or self._look_s() <= self._time_s:
            if self._offers:
                self._looked_s = self._look_s()
            self._best.clear()
            self._offers = tuple(_offer(pool, self._looked_s) for pool in self._pools)
        return self._offers

    def _look_s(self) -> float:
        """Return when the offers are looked at next [s]; infinite if no price changes any more."""
        changes_s = min(pool.prices.next_change_s(self._looked_s) for pool in self._pools)
        return changes_s if changes_s == math.inf else max(changes_s, self._looked_s + OFFERS_EVERY_S)

    def machines(self) -> tuple[FleetMachine, ...]:
        """Return the machines that fill slots."""
        return tuple(self._machine(slot, row) for slot, row in self._holder.items())

    def spent_usd(self) -> float:
        """Return the cost so far."""
        return self._outcome(self._time_s).usd

    def _machine(self, slot: str, row: int) -> FleetMachine:
        pool, started_s = self._pools[self._rows.pool[row]], self._rows.start[row]
        up = started_s <= self._time_s
        key = ("sim", pool.machine_type, pool.zone, pool.reliability)
        started = Instant(WALL_START + started_s) if up else None
        return FleetMachine(f"sim-{row + 1}", slot, key, self._rows.price[row], started, None, up)

    # ---------------------------------------------------------------------------------------------------------- a history

    def play(self, horizon_s: float) -> FleetOutcome:
        """Play from the submission to a time [s], at which all machines are released."""
        decide_s = 0.0
        while True:
            end_s = self._ends[0][0] if self._ends else math.inf
            self._time_s = min(decide_s, end_s)
            if self._time_s >= horizon_s:
                return self._outcome(horizon_s)
            if end_s <= decide_s:
                self._end(heapq.heappop(self._ends)[1])
            else:
                self._decide()
                decide_s += DECIDE_EVERY_S

    def _decide(self) -> None:
        """Ask the policy, and carry out what differs."""
        target = self._policy(self, self._estimates)
        if target.needs is not self.needs:
            wanted = {slot.id for slot in target.needs}
            for slot in [slot for slot in self._holder if slot not in wanted]:
                self._release(self._holder.pop(slot), self._time_s)
            self.needs = target.needs
        self._buy([slot for slot in target.needs if slot.id not in self._holder])
        for release in target.releases:
            self._replace(target, release)

    def _end(self, row: int) -> None:
        """The market takes a machine, unless it was released; its slot buys another."""
        slot = self._rows.slot[row]
        if self._holder.get(slot) == row:
            del self._holder[slot]
            self._buy([need for need in self.needs if need.id == slot])

    def _replace(self, target: FleetTarget, release: MachineDrain) -> None:
        """Replace a machine by choice: it ends once its successor has started, or at its deadline."""
        row = int(release.machine_id.removeprefix("sim-")) - 1
        slot = self._rows.slot[row]
        if self._holder.get(slot) != row:
            return
        del self._holder[slot]
        self._buy([need for need in target.needs if need.id == slot])
        self._release(row, min(self._rows.start[self._holder[slot]], release.deadline - WALL_START))

    def _release(self, row: int, at_s: float) -> None:
        rows = self._rows
        if at_s < rows.end[row]:
            rows.end[row], rows.taken[row] = max(at_s, rows.start[row]), False

    # ------------------------------------------------------------------------------------------------------------ buying

    def _buy(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            self._order(slot, self._choose(slot))

    def _choose(self, slot: Slot) -> int:
        """Return the pool of the best offer for a slot."""
        offers, kind = self.offers, (slot.reliability, slot.wants)
        if kind not in self._best:
            ranked = ranking.rank_for(self.job, slot, offers, ())
            if not ranked.ranked:
                raise Misuse(f"no market of this history has a machine for slot {slot.id}: add one that fits the job")
            self._best[kind] = offers.index(ranked.ranked[0].offer)
        return self._best[kind]

    def _order(self, slot: Slot, place: int) -> None:
        if slot.gang:
            raise Misuse(f"slot {slot.id} is of a gang, which the fleet loop does not know: use the event engine")
        pool, rows, packed = self._pools[place], self._rows, self._lives[place]
        number, row = self._sold[place], len(rows.pool)
        self._sold[place] += 1
        start_s = self._time_s + sum(pool.allocate_s) / 2.0
        lasts_s = math.inf
        if packed is not None:
            lasts_s = float(sampling.lifetime_s(packed.kind, packed.values, self._keys[place], 0, number))
        rows.pool.append(place)
        rows.start.append(start_s)
        rows.end.append(start_s + lasts_s)
        rows.price.append(pool.prices.at(self._time_s))
        rows.taken.append(lasts_s < math.inf)
        rows.slot.append(slot.id)
        self._holder[slot.id] = row
        if lasts_s < math.inf:
            heapq.heappush(self._ends, (start_s + lasts_s, row))

    # ------------------------------------------------------------------------------------------------------------- money

    def _outcome(self, until_s: float) -> FleetOutcome:
        """Return what all machines have cost by a time [s]."""
        rows = self._rows
        pool, start, end = np.array(rows.pool), np.array(rows.start), np.array(rows.end)
        taken = np.array(rows.taken, dtype=np.bool_) & (end < until_s)
        end, price = np.minimum(end, until_s), np.array(rows.price)
        usd = hours = 0.0
        for place, market in enumerate(self._pools):
            of = (pool == place) & (start < end)
            usd += _cost_usd(market, start[of], end[of], price[of], taken[of])
            hours += float(np.sum(end[of] - start[of])) / HOUR_S
        return FleetOutcome(usd, hours, len(rows.pool), int(taken.sum()))


def _unsigned(key: Any) -> Any:
    """Return a key for compiled code: half of all keys do not fit a signed word."""
    return np.uint64(key)


def _check(pool: SimulatedMarket) -> None:
    law = (
        isinstance(pool.eviction, MemorylessLifetimes | LifetimeQuantiles | RecordedLifetimes) or pool.eviction is None
    )
    if pool.capacity is not None or pool.quota is not None or pool.bid or pool.failed_to_start or not law:
        raise Misuse(
            f"the market {pool.machine_type} in {pool.zone} has a capacity, a quota, bids, failed starts or a trace of ends, "
            "which the fleet loop does not know: use the event engine"
        )
    if pool.notice_s > 0.0:
        raise Misuse(
            f"the market {pool.machine_type} in {pool.zone} gives notice; the fleet loop knows none: set it to 0 s"
        )


def _offer(pool: SimulatedMarket, at_s: float) -> Offer:
    return Offer(
        "sim", pool.machine_type, pool.zone, pool.prices.at(at_s), pool.on_demand_usd_per_hour, pool.reliability,
        pool.notice_s, WallTime(WALL_START + at_s), pool.cpus, pool.memory_gib, pool.accelerator, pool.accelerators,
        pool.startup_s, pool.bid, pool.refund,
    )  # fmt: skip


def _cost_usd(market: SimulatedMarket, start: Floats, end: Floats, price: Floats, taken: NDArray[np.bool_]) -> float:
    """Return the cost of machines of one market [USD]: the rule of `market_meter`, for all at once."""
    prices, billing = market.prices, market.billing
    billed = np.maximum(end, start + billing.minimum_s)
    refunded = taken & market.refund
    since = start + np.floor((end - start) / HOUR_S) * HOUR_S
    if billing.basis is BillingBasis.STARTED_HOUR:
        hours = np.ceil((billed - start) / HOUR_S - _INSTANT).astype(np.int64)
        which = np.arange(int(hours.sum())) - np.repeat(np.cumsum(hours) - hours, hours)
        usd = float(np.sum(_values(prices, np.repeat(start, hours) + HOUR_S * which)))
        begun = refunded & ((end - since) / HOUR_S > _INSTANT)
        return usd - float(np.sum(_values(prices, since[begun])))
    back = np.maximum(billed, since)[refunded]
    if billing.basis is BillingBasis.PURCHASE:
        usd = float(np.sum((billed - start) * price)) - float(np.sum((back - since[refunded]) * price[refunded]))
    else:
        usd = float(np.sum(_areas(prices, billed) - _areas(prices, start)))
        usd -= float(np.sum(_areas(prices, back) - _areas(prices, since[refunded])))
    return usd / HOUR_S


def _values(series: ValueSeries, times_s: Floats) -> Floats:
    return series.values[np.maximum(series.times_s.searchsorted(times_s, "right") - 1, 0)]


def _areas(series: ValueSeries, times_s: Floats) -> Floats:
    """Return the integral of a series up to times [value x s]."""
    place = np.maximum(series.times_s.searchsorted(times_s, "right") - 1, 0)
    ahead = np.concatenate(([0.0], np.cumsum(np.diff(series.times_s) * series.values[:-1])))
    return ahead[place] + (times_s - series.times_s[place]) * series.values[place]
