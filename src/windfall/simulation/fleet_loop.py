"""A fast fleet loop: what a fleet policy has and pays over days, without reducers, journal and machines' own programs.

A second implementation of how a fleet is bought, for speed: it calls the same functions as the driver where something is
chosen (the fleet policy, the ranking of offers, the draw of a lifetime), and is checked against the event engine
(`tests/simulation/test_fleet_loop.py`).  Machines are rows of columns; only purchases, ends and what the job's machines do
are events; what machines cost is computed for all of them at once.

What the machines do is a `FleetWork`, the counterpart here of a runtime.  Without one they stand, and the job has no
progress and no end.

It leaves out: capacity, quotas, bids, refusals and failed starts; notices, and so successors before an unchosen end; the
job's budget; the rounding of bills.  An order takes the middle of its market's range.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import Job
from windfall.market import Offer
from windfall.policies.acquisition import ranking
from windfall.policies.acquisition.fleet_policy import WAKE_S_MIN, FleetEstimates, FleetMachine, FleetPolicy
from windfall.policies.replacement import successor
from windfall.simulation import fleet_bill, random_draws, sampling
from windfall.simulation.engine_fleet import OFFERS_EVERY_S
from windfall.simulation.fleet_bill import FleetOutcome, MachineColumns
from windfall.simulation.fleet_work import FleetWork
from windfall.simulation.scenario import LifetimeQuantiles, MemorylessLifetimes, RecordedLifetimes
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import replace
from windfall.terms import Instant, JobProgress, Outcome, WallTime

DECIDE_EVERY_S: Final = 120.0
"""How often the policy is asked [s]; with work, after each report too.  Machines that end are replaced at once."""


@dataclass(slots=True)
class _Leaving:
    """A machine that is to leave: at its deadline at the latest [s]; whether it is draining to drain."""

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

        Raises:
            Misuse: a market has what this loop leaves out.
        """
        self.job, self.needs = job, needs
        self.rows = MachineColumns()
        self._offers: tuple[Offer, ...] = ()
        self._policy, self._pools, self._work = policy, tuple(pools), work
        for pool in self._pools:
            _check(pool)
        self._time_s = self._looked_s = 0.0
        self._wake_s, self._decide_every_s = math.inf, decide_every_s
        self._keys = [_unsigned(random_draws.key(seed, place)) for place in range(len(pools))]
        self._lives = [None if pool.eviction is None else sampling.pack(pool.eviction) for pool in self._pools]  # type: ignore[arg-type]
        self._sold = [0] * len(pools)
        self._units = 0
        self._gangs: set[int] = set()
        self._holder: dict[str, int] = {}
        self._successor: dict[str, int] = {}
        self._leaving: dict[int, _Leaving] = {}
        self._ends: list[tuple[float, int]] = []
        self._starts: list[tuple[float, int, Slot]] = []
        self._best: dict[tuple[object, ...], int] = {}
        startups_s = [pool.startup_s for pool in self._pools if pool.startup_s is not None]
        self._estimates = FleetEstimates((), (), successor.expect(max(startups_s, default=None), None, None))

    # --------------------------------------------------------------------------------------------------- the policy's view

    @property
    def now(self) -> Instant:
        """The journal clock."""
        return Instant(WALL_START + self._time_s)

    @property
    def progress(self) -> JobProgress | None:
        """Of the job; None before the first."""
        return None if self._work is None else self._work.progress

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What the provider offers, as of the last look; as often as the event engine looks."""
        self._look()
        return self._offers

    def _look(self) -> bool:
        """Look at the offers if it is time; return whether it was."""
        looked = False
        while not self._offers or self._look_s() <= self._time_s:
            looked = True
            if self._offers:
                self._looked_s = self._look_s()
            self._best.clear()
            self._offers = tuple(_offer(pool, self._looked_s) for pool in self._pools)
        return looked

    def _look_s(self) -> float:
        """Return when the offers are looked at next [s]; infinite if no price changes any more."""
        changes_s = min(pool.prices.next_change_s(self._looked_s) for pool in self._pools)
        return changes_s if changes_s == math.inf else max(changes_s, self._looked_s + OFFERS_EVERY_S)

    def machines(self) -> tuple[FleetMachine, ...]:
        """Return the machines that fill slots, in the order of their purchase."""
        return tuple(self._machine(row) for row in sorted((*self._holder.values(), *self._successor.values())))

    def spent_usd(self) -> float:
        """Return the cost so far."""
        return fleet_bill.outcome(self.rows, self._pools, self._time_s).usd

    def _machine(self, row: int) -> FleetMachine:
        pool, started_s = self._pools[self.rows.pool[row]], self.rows.start[row]
        key = ("sim", pool.machine_type, pool.zone, pool.reliability)
        started = Instant(WALL_START + started_s) if started_s <= self._time_s else None
        leaving = self._leaving.get(row)
        ends_at = None if leaving is None else Instant(WALL_START + leaving.deadline_s)
        slot, price = self.rows.slot[row], self.rows.price[row]
        return FleetMachine(f"sim-{row + 1}", slot, key, price, started, ends_at, self._ready(row))

    def _ready(self, row: int) -> bool:
        return self.rows.start[row] <= self._time_s and (self._work is None or self._work.ready(row))

    # ---------------------------------------------------------------------------------------------------------- a history

    def play(self, horizon_s: float) -> FleetOutcome:
        """Play from the submission to the job's end, or to a time [s], at which all machines are released."""
        decide_s = 0.0
        while True:
            self._time_s = min(decide_s, self._next_s())
            if self._time_s >= horizon_s:
                return fleet_bill.outcome(self.rows, self._pools, horizon_s)
            due = self._time_s >= decide_s
            decide_s += self._decide_every_s if due else 0.0
            self._settle(self._happen(), due=due)
            if self._over():
                return replace(fleet_bill.outcome(self.rows, self._pools, self._time_s), finish_s=self._time_s)

    def _settle(self, news: bool, *, due: bool) -> None:
        """Let the policy decide and carry it out, until the machines have no more news of this instant."""
        due = due or self._time_s >= self._wake_s
        news = news or any(self._time_s >= self._due_s(leaving) for leaving in self._leaving.values())
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
        next_s = self._wake_s
        for heap in (self._ends, self._starts):
            if heap:
                next_s = min(next_s, heap[0][0])
        for leaving in self._leaving.values():
            next_s = min(next_s, self._due_s(leaving))
        if self._work is not None:
            next_s = min(next_s, self._work.next_s(), self._look_s())
        return max(next_s, self._time_s)

    def _happen(self) -> bool:
        """Let happen what is due; return whether that is news: machines that end, starts and reports of those that work."""
        news = False
        while self._ends and self._ends[0][0] <= self._time_s:
            end_s, row = heapq.heappop(self._ends)
            if self.rows.taken[row] and self.rows.end[row] == end_s:
                self._detach(row)
                news = True
        while self._starts and self._starts[0][0] <= self._time_s:
            _, row, slot = heapq.heappop(self._starts)
            if self.rows.end[row] > self._time_s:
                news = True
                if self._work is not None:
                    self._work.start(row, slot, self._time_s)
        if self._work is not None:
            news = self._work.play(self._time_s) or self._look() or news
        return news

    def _over(self) -> bool:
        progress = self.progress
        return progress is not None and progress.outcome is not Outcome.RUNNING

    def _decide(self) -> None:
        """Ask the policy, and release what it no longer wants."""
        self._look()
        target = self._policy(self, self._estimates)
        wake_s = math.inf if target.wake_at is None else target.wake_at - WALL_START
        wake_s = max(wake_s, self._time_s + WAKE_S_MIN)
        self._wake_s = min(wake_s, self._wake_s) if self._wake_s > self._time_s else wake_s
        if target.needs is not self.needs:
            self._retire({slot.id for slot in target.needs})
            self.needs = target.needs
        for release in target.releases:
            for row in self._gang(int(release.machine_id.removeprefix("sim-")) - 1):
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
                    self._detach(one)
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

    def _detach(self, row: int) -> None:
        """Take a machine that is gone from its slot; a successor takes its place."""
        slot = self.rows.slot[row]
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
            self._work.end(row)

    # ------------------------------------------------------------------------------------------------------------ buying

    def _buy(self) -> None:
        """Buy for slots without a machine, and for those whose machine is to be replaced."""
        opened = [slot for slot in self.needs if slot.id not in self._holder]
        replaced = [slot for slot in self.needs if self._needs_successor(slot)] if self._leaving else []
        kinds: dict[tuple[object, ...], list[Slot]] = {}
        for slot in (*opened, *replaced):
            kinds.setdefault((slot.reliability, slot.wants, slot.gang), []).append(slot)
        for slots in kinds.values():
            gang = slots[0].gang
            if not gang:
                place = self._choose(slots[0])
                for slot in slots:
                    self._order([slot], place)
            elif len(slots) == sum(slot.gang == gang for slot in self.needs):
                self._gangs.add(self._units)
                self._order(slots, self._choose(slots[0]))

    def _needs_successor(self, slot: Slot) -> bool:
        return self._holder.get(slot.id) in self._leaving and slot.id not in self._successor

    def _choose(self, slot: Slot) -> int:
        """Return the pool of the best offer for a slot."""
        self._look()
        kind = (slot.reliability, slot.wants)
        if kind not in self._best:
            ranked = ranking.rank_for(self.job, slot, self._offers, ())
            if not ranked.ranked:
                raise Misuse(f"no market of this history has a machine for slot {slot.id}: add one that fits the job")
            self._best[kind] = self._offers.index(ranked.ranked[0].offer)
        return self._best[kind]

    def _order(self, slots: Sequence[Slot], place: int) -> None:
        """Buy one unit: a machine, or a gang, which starts and is lost together."""
        pool, rows, packed = self._pools[place], self.rows, self._lives[place]
        number, unit = self._sold[place], self._units
        self._sold[place] += 1
        self._units += 1
        start_s = self._time_s + sum(pool.allocate_s) / 2.0
        lasts_s = math.inf
        if packed is not None:
            lasts_s = float(sampling.lifetime_s(packed.kind, packed.values, self._keys[place], 0, number))
        for slot in slots:
            row, end_s = len(rows.pool), start_s + lasts_s
            replaces = slot.id in self._holder
            (self._successor if replaces else self._holder)[slot.id] = row
            rows.add(place, (start_s, end_s), pool.prices.at(self._time_s), slot.id, unit)
            if lasts_s < math.inf:
                heapq.heappush(self._ends, (end_s, row))
            if replaces or self._work is not None:
                heapq.heappush(self._starts, (start_s, row, slot))


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
