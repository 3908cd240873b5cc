"""A fast fleet loop: what a fleet policy has and pays over days, without reducers, journal and machines' own programs.

A second implementation of how a fleet is bought, for speed: it calls the same functions as the driver where something is
chosen (the fleet policy, the ranking of offers, the draw of a lifetime), and is checked against the event engine
(`tests/simulation/test_fleet_loop.py`).  Machines are rows of columns; only purchases, ends and what the job's machines do
are events; what machines cost is computed for all of them at once.

What the machines do is a `FleetWork`, the counterpart here of a runtime.  Without one they stand, and the job has no
progress and no end.

It leaves out: capacity, quotas, refusals other than by the price, and failed starts; notices, and so successors before an
unchosen end; the job's budget; the rounding of bills.  An order takes the middle of its market's range.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.market import BillingBasis, Offer, OfferKey, Quota
from windfall.models.price_evictions import EvictionForecast
from windfall.policies.acquisition.fleet_policy import (
    WAKE_S_MIN,
    FleetAllocation,
    FleetEstimates,
    FleetMachine,
    FleetPolicy,
    price_limit_usd,
)
from windfall.policies.replacement import successor
from windfall.simulation import fleet_bill
from windfall.simulation.fleet_bill import FleetOutcome, MachineColumns
from windfall.simulation.fleet_market import SOURCE, FleetMarket, Purchase
from windfall.simulation.fleet_work import FleetWork
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Outcome

DECIDE_EVERY_S: Final = 120.0
"""How often the policy is asked [s]; with work, after each report too.  Machines that end are replaced at once."""


_ROUNDING_S: Final = 1e-3
"""More than sums of times are off by [s]."""


@dataclass(slots=True)
class _Leaving:
    """A machine that is to leave: at its deadline at the latest [s]; whether it drains."""

    deadline_s: float
    draining: bool


class FleetLoop:
    """One history; it is also the policy's view of it (`fleet_policy.FleetView`).

    Attributes:
        rows: all machines bought so far.
    """

    def __init__(
        self,
        job: Job,
        policy: FleetPolicy,
        needs: tuple[Slot, ...],
        pools: Sequence[SimulatedMarket],
        *,
        seed: int = 0,
        work: FleetWork | None = None,
        decide_every_s: float = DECIDE_EVERY_S,
        evictions: EvictionForecast | None = None,
        looks_when_asked: bool = False,
    ) -> None:
        """Prepare.

        Args:
            job: of the driver.
            policy: decides what to have.
            needs: of the job's runtime, at the start.
            pools: what the provider `sim` sells.
            seed: of the lifetimes; the same as in the event engine.
            work: of the machines; None: they stand.
            decide_every_s: how often the policy is asked; infinite: only at the start, at news and when it wants to wake.
            evictions: what the policy believes of bids; None: nothing.
            looks_when_asked: the policy sees prices as they are; otherwise as of the last look, as in the event engine.

        Raises:
            Misuse: a market has what this loop leaves out.
        """
        self.job, self.needs = job, needs
        self.rows = MachineColumns()
        self._policy, self._work = policy, work
        self._market = FleetMarket(job, pools, seed)
        self._looks_when_asked = looks_when_asked
        self._time_s = 0.0
        self._wake_s, self._decide_every_s = math.inf, decide_every_s
        self._units = self._ordered = 0
        self._alive: dict[int, list[int]] = {}
        self._bids: dict[int, float | None] = {}
        self._known: dict[int, tuple[float, FleetAllocation]] = {}
        self._hours: dict[int, tuple[float, float]] = {}
        self._gangs: set[int] = set()
        self._holder: dict[str, int] = {}
        self._successor: dict[str, int] = {}
        self._leaving: dict[int, _Leaving] = {}
        self._memory: Mapping[str, float] = {}
        self._ends: list[tuple[float, int]] = []
        self._starts: list[tuple[float, int, Slot]] = []
        startups_s = [pool.startup_s for pool in pools if pool.startup_s is not None]
        self._estimates = FleetEstimates((), (), successor.expect(max(startups_s, default=None), None, None), evictions)

    # --------------------------------------------------------------------------------------------------- the policy's view

    @property
    def now(self) -> Instant:
        """The journal clock."""
        return Instant(WALL_START + self._time_s)

    @property
    def submitted(self) -> Instant:
        """When the job was submitted."""
        return Instant(WALL_START)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The account's limits: none."""
        return ()

    @property
    def progress(self) -> JobProgress | None:
        """Of the job; None before the first."""
        return None if self._work is None else self._work.progress

    @property
    def memory(self) -> Mapping[str, float]:
        """What the policy's last target gave to be remembered."""
        return self._memory

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What the provider offers, as of the last look; as often as the event engine looks."""
        return self._market.offers(self._time_s)

    def machines(self) -> tuple[FleetMachine, ...]:
        """Return the machines that fill slots, in the order of their purchase."""
        return tuple(self._machine(row) for row in sorted((*self._holder.values(), *self._successor.values())))

    @property
    def awaited(self) -> frozenset[str]:
        """The slots for which an order is open: none, it is answered at once."""
        return frozenset()

    @property
    def leaving(self) -> int:
        """How many machines drain whose slot is no longer wanted; what is released is gone at once."""
        wanted = {slot.id for slot in self.needs}
        return sum(slot not in wanted for filled in (self._holder, self._successor) for slot in filled)

    def allocations(self) -> tuple[FleetAllocation, ...]:
        """Return the machines of slots that are wanted, by order: as `fleet_policy.allocations`, without a pass over all."""
        found = []
        for order, alive in self._alive.items():
            if not self._leaving:
                found.append(self._known_allocation(order, alive))
            elif rows := [row for row in alive if row not in self._leaving]:
                found.append(self._allocation(order, rows[0], self._filled(rows)))
        return tuple(found)

    def _known_allocation(self, order: int, alive: Sequence[int]) -> FleetAllocation:
        """Return an allocation none of whose machines leaves; the same object while nothing of it changes."""
        known = self._known.get(order)
        if known is None or self._time_s >= known[0]:
            found = self._allocation(order, alive[0], self._filled(alive))
            known = self._known[order] = self._same_until_s(alive[0]), found
        return known[1]

    def _same_until_s(self, row: int) -> float:
        """Return until when a machine's price and whether it has started stay as they are, not later [s]."""
        pool, started_s = self._market.pools[self.rows.pool[row]], self.rows.start[row]
        if started_s > self._time_s:
            return started_s
        match pool.billing.basis:
            case BillingBasis.PURCHASE:
                return math.inf
            case BillingBasis.IN_EFFECT:
                return pool.prices.next_change_s(self._time_s)
            case BillingBasis.STARTED_HOUR:
                # Near its end, rounding decides in which hour it is: `_price` is asked.
                hours = (self._time_s - started_s) // pool.billing.hour_s + 1.0
                return started_s + hours * pool.billing.hour_s - _ROUNDING_S

    def _filled(self, rows: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.rows.slot[row] for row in rows)

    def _allocation(self, order: int, row: int, slots: tuple[str, ...]) -> FleetAllocation:
        pool, started_s = self._market.pools[self.rows.pool[row]], self.rows.start[row]
        key = (SOURCE, pool.machine_type, pool.zone, pool.reliability)
        started = Instant(WALL_START + started_s) if started_s <= self._time_s else None
        return FleetAllocation(str(order), key, self._bids[order], self._price(row), started, slots)

    def refused(self) -> frozenset[OfferKey]:
        """Return the offers that are not ordered now."""
        return self._market.refused(self._time_s)

    def spent_usd(self) -> float:
        """Return the cost so far."""
        return fleet_bill.outcome(self.rows, self._market.pools, self._time_s).usd

    def _machine(self, row: int) -> FleetMachine:
        pool, started_s = self._market.pools[self.rows.pool[row]], self.rows.start[row]
        key = (SOURCE, pool.machine_type, pool.zone, pool.reliability)
        started = Instant(WALL_START + started_s) if started_s <= self._time_s else None
        leaving = self._leaving.get(row)
        ends_at = None if leaving is None else Instant(WALL_START + leaving.deadline_s)
        slot, price, order = self.rows.slot[row], self._price(row), str(self.rows.order[row])
        return FleetMachine(f"{SOURCE}-{row + 1}", slot, key, price, started, ends_at, self._ready(row), order=order)

    def _price(self, row: int) -> float:
        """Return what a machine costs now [USD/h]."""
        pool, started_s = self._market.pools[self.rows.pool[row]], self.rows.start[row]
        match pool.billing.basis:
            case BillingBasis.PURCHASE:
                return self.rows.price[row]
            case BillingBasis.IN_EFFECT:
                return pool.prices.at(self._time_s)
            case BillingBasis.STARTED_HOUR:
                hours = max((self._time_s - started_s) // pool.billing.hour_s, 0.0)
                known = self._hours.get(row)  # the search in the series, once an hour instead of at each look
                if known is None or known[0] != hours:
                    known = self._hours[row] = hours, pool.prices.at(started_s + hours * pool.billing.hour_s)
                return known[1]

    def _ready(self, row: int) -> bool:
        return self.rows.start[row] <= self._time_s and (self._work is None or self._work.ready(row))

    # ---------------------------------------------------------------------------------------------------------- a history

    def play(self, horizon_s: float) -> FleetOutcome:
        """Play from the submission to the job's end, or to a time [s], at which all machines are released."""
        decide_s = 0.0
        while True:
            self._time_s = min(decide_s, self._next_s())
            if self._time_s >= horizon_s:
                return fleet_bill.outcome(self.rows, self._market.pools, horizon_s)
            due = self._time_s >= decide_s
            decide_s += self._decide_every_s if due else 0.0
            self._settle(self._happen(), due=due)
            if self._over():
                return replace(fleet_bill.outcome(self.rows, self._market.pools, self._time_s), finish_s=self._time_s)

    def _settle(self, news: bool, *, due: bool) -> None:
        """Let the policy decide and carry it out, until the machines have no more news of this instant."""
        due = due or self._time_s >= self._wake_s
        news = (
            news
            or self._time_s >= self._market.retry_s
            or any(self._time_s >= self._due_s(leaving) for leaving in self._leaving.values())
        )
        while news or due or (self._work is not None and self._work.take_work(self._time_s)):
            if self._over():
                return
            if due or self._work is not None:
                self._decide()
            news = bool(self._leaving) and self._see_off()
            self._buy()
            due = False

    def _next_s(self) -> float:
        """Return when anything happens [s], other than a regular decision."""
        next_s = min(self._wake_s, self._market.retry_s)
        for heap in (self._ends, self._starts):
            if heap:
                next_s = min(next_s, heap[0][0])
        for leaving in self._leaving.values():
            next_s = min(next_s, self._due_s(leaving))
        if self._work is not None:
            next_s = min(next_s, self._work.next_s(), self._market.look_s())
        return max(next_s, self._time_s)

    def _happen(self) -> bool:
        """Let happen what is due; return whether that is news: machines that end, starts and reports of those that work."""
        news = False
        while self._ends and self._ends[0][0] <= self._time_s:
            end_s, row = heapq.heappop(self._ends)
            if self.rows.taken[row] and self.rows.end[row] == end_s:
                self._detach(row, taken=True)
                news = True
        while self._starts and self._starts[0][0] <= self._time_s:
            _, row, slot = heapq.heappop(self._starts)
            if self.rows.end[row] > self._time_s:
                news = True
                if self._work is not None:
                    self._work.start(row, slot, self._market.pools[self.rows.pool[row]].cpus, self._time_s)
        if self._work is not None:
            news = self._work.play(self._time_s) or self._market.look(self._time_s) or news
        return news

    def _over(self) -> bool:
        progress = self.progress
        return progress is not None and progress.outcome is not Outcome.RUNNING

    def _decide(self) -> None:
        """Ask the policy, and release what it no longer wants."""
        if self._looks_when_asked:
            self._market.look_now(self._time_s)
        else:
            self._market.look(self._time_s)
        target = self._policy(self, self._estimates)
        self._memory = self._memory if target.memory is None else target.memory
        wake_s = math.inf if target.wake_at is None else target.wake_at - WALL_START
        wake_s = max(wake_s, self._time_s + WAKE_S_MIN)
        self._wake_s = min(wake_s, self._wake_s) if self._wake_s > self._time_s else wake_s
        if target.needs is not self.needs:
            wanted = {slot.id for slot in target.needs}
            if len(wanted) < len(target.needs):
                raise Misuse("the fleet policy named a slot twice")
            self._retire(wanted)
            self.needs = target.needs
        for release in target.releases:
            for row in self._gang(int(release.machine_id.removeprefix(f"{SOURCE}-")) - 1):
                if row not in self._leaving:
                    self._leaving[row] = _Leaving(release.deadline - WALL_START, draining=False)

    # ------------------------------------------------------------------------------------------------- machines that leave

    def _retire(self, wanted: set[str]) -> None:
        """Release the machines of slots that are no longer wanted."""
        deadline_s = self._time_s + self.job.checkpointing.save_timeout_s
        for filled in (self._successor, self._holder):
            for slot, row in filled.items():
                leaving = self._leaving.get(row)
                if slot not in wanted and (leaving is None or not leaving.draining):
                    self._drain(row, deadline_s)

    def _see_off(self) -> bool:
        """Drain machines that are replaced or short of time, and release those that are drained: as `core.drains`.

        Returns:
            whether any was released.
        """
        released = False
        for row, leaving in list(self._leaving.items()):
            if not leaving.draining and (self._replaceable(row) or self._time_s >= self._due_s(leaving)):
                self._drain(row, leaving.deadline_s)
        for row, leaving in list(self._leaving.items()):
            if (
                row in self._leaving
                and leaving.draining
                and (self._time_s >= leaving.deadline_s or not self._works(row))
            ):
                released = True
                for one in self._gang(row):
                    self.rows.release(one, self._time_s)
                    self._detach(one, taken=False)
        return released

    def _due_s(self, leaving: _Leaving) -> float:
        return leaving.deadline_s - (0.0 if leaving.draining else self.job.checkpointing.save_timeout_s)

    def _drain(self, row: int, deadline_s: float) -> None:
        self._leaving[row] = _Leaving(deadline_s, draining=True)
        if self._work is not None and self.rows.start[row] <= self._time_s:
            self._work.drain(row)

    def _replaceable(self, row: int) -> bool:
        found = [self._successor.get(self.rows.slot[one]) for one in self._gang(row)]
        return all(one is not None and self._ready(one) for one in found)

    def _works(self, row: int) -> bool:
        work = self._work
        return work is not None and any(work.works(one) for one in self._gang(row))

    def _gang(self, row: int) -> list[int]:
        """Return a machine and the others of its gang that are still there."""
        filled = (*self._holder.values(), *self._successor.values()) if self.rows.unit[row] in self._gangs else (row,)
        return [one for one in filled if self.rows.unit[one] == self.rows.unit[row]]

    def _detach(self, row: int, *, taken: bool) -> None:
        """Take a machine that is gone from its slot; a successor takes its place."""
        slot, order = self.rows.slot[row], self.rows.order[row]
        self._alive[order].remove(row)
        self._known.pop(order, None)
        if not self._alive[order]:
            del self._alive[order]
        self._leaving.pop(row, None)
        if self._successor.get(slot) == row:
            del self._successor[slot]
        elif self._holder.get(slot) == row:
            later = self._successor.pop(slot, None)
            if later is None:
                del self._holder[slot]
            else:
                self._holder[slot] = later
        if self._work is not None:
            self._work.end(row, self._time_s, taken=taken)

    # ------------------------------------------------------------------------------------------------------------ buying

    def _buy(self) -> None:
        """Buy for slots without a machine, and for those whose machine is to be replaced."""
        self._market.retry_s = math.inf
        if not self._leaving and len(self._holder) == len(self.needs):
            return
        kinds: dict[tuple[object, ...], list[Slot]] = {}
        opened = [slot for slot in self.needs if slot.id not in self._holder]
        replaced = [slot for slot in self.needs if self._needs_successor(slot)] if self._leaving else []
        for slot in (*opened, *replaced):
            kinds.setdefault((slot.reliability, slot.wants, slot.gang, slot.bid_usd_per_hour), []).append(slot)
        for slots in kinds.values():
            gang = slots[0].gang
            if not gang or len(slots) == sum(slot.gang == gang for slot in self.needs):
                self._order(slots, whole=bool(gang))

    def _order(self, slots: list[Slot], *, whole: bool) -> None:
        """Order for slots of one kind, elsewhere after a refusal, until none is left or no offer can be ordered now."""
        left = [slots] if whole else [[slot] for slot in slots]
        bid = price_limit_usd(self.job, slots[0].bid_usd_per_hour)
        while left:
            missing = len(slots) if whole else len(left)
            chosen = self._market.choose(slots[0], missing, self._time_s, self._machines_held())
            if chosen is None:
                return
            place, count = chosen
            self._ordered += 1
            self._bids[self._ordered] = slots[0].bid_usd_per_hour
            bought = self._market.buy(place, 1 if whole else count, self._time_s, bid)
            for unit, purchase in zip(left, bought, strict=False):
                self._add(unit, purchase)
            left = left[len(bought) :]

    def _machines_held(self) -> Counter[OfferKey]:
        """Return the job's machines by offer, without those that leave, where the job limits them: as `core.orders`."""
        if self.job.limits.pool_machines_max is None:
            return Counter()
        alive = (row for rows in self._alive.values() for row in rows if row not in self._leaving)
        pools = (self._market.pools[self.rows.pool[row]] for row in alive)
        return Counter((SOURCE, pool.machine_type, pool.zone, pool.reliability) for pool in pools)

    def _needs_successor(self, slot: Slot) -> bool:
        return self._holder.get(slot.id) in self._leaving and slot.id not in self._successor

    def _add(self, slots: Sequence[Slot], bought: Purchase) -> None:
        """Add a machine, or a gang, which starts and is lost together."""
        rows, unit = self.rows, self._units
        self._units += 1
        if slots[0].gang:
            self._gangs.add(unit)
        for slot in slots:
            row = len(rows.pool)
            replaces = slot.id in self._holder
            (self._successor if replaces else self._holder)[slot.id] = row
            rows.add(bought.place, (bought.start_s, bought.end_s), bought.usd_per_hour, slot.id, (unit, self._ordered))
            self._alive.setdefault(self._ordered, []).append(row)
            if bought.end_s < math.inf:
                heapq.heappush(self._ends, (bought.end_s, row))
            if replaces or self._work is not None:
                heapq.heappush(self._starts, (bought.start_s, row, slot))
