"""A shopper without a driver, and an own, slow reckoning of what a market should have charged."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field

from windfall.market import BillingBasis, BillingRule, BootSpec, Machine, MachineEndCause, Order
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.terms import NoticeLevel, Seconds, WallTime

Points = tuple[tuple[float, float], ...]
BOOT = BootSpec(("true",))
OWNER = "shopper"


@dataclass
class Shopper:
    """Orders at given times, releases some machines later, and notes what happens."""

    pools: tuple[SimulatedMarket, ...]
    orders: tuple[tuple[float, int, int, bool, float | None], ...]
    seed: int = 0
    started_s: dict[str, float] = field(default_factory=dict)
    ends: dict[str, tuple[float, MachineEndCause | None]] = field(default_factory=dict)
    allocations: dict[str, list[str]] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    notices: list[tuple[str, float, float]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    exceeded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timeline = Timeline()
        self.provider = SimulatedProvider(
            "sim", self.timeline, self.pools, random.Random(self.seed), listener=self, seed=self.seed
        )
        for number, order in enumerate(self.orders):
            self.timeline.at(order[0], lambda number=number, order=order: self._order(number, order))

    def _order(self, number: int, order: tuple[float, int, int, bool, float | None]) -> None:
        _, place, count, gang, keep_s = order
        offer = self.provider.offers()[place % len(self.pools)]
        answer = self.provider.order(Order(f"t-{number}", OWNER, "job", offer, 1, count, gang=gang), BOOT)
        self.log.append(f"{self.timeline.time!r} {answer!r}")
        assert not gang or len(answer.machine_ids) in {0, count}, "a gang is bought whole"
        if keep_s is not None:
            for machine_id in answer.machine_ids:
                self.timeline.at(keep_s, lambda machine_id=machine_id: self.provider.release(machine_id))

    def started(self, machine: Machine, boot: BootSpec) -> None:
        del boot
        self.started_s[machine.machine_id] = self.timeline.time
        self.machines[machine.machine_id] = machine
        if machine.allocation:
            self.allocations.setdefault(machine.allocation, []).append(machine.machine_id)

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        assert level is NoticeLevel.ANNOUNCED
        assert left_s is not None
        self.notices.append((machine_id, self.timeline.time, left_s))

    def ended(self, machine: Machine) -> None:
        self.ends[machine.machine_id] = (self.timeline.time, machine.cause)
        self.log.append(f"{self.timeline.time!r} {machine!r}")

    def run(self, until_s: float) -> None:
        """Let time pass; capacity must hold at the end of each instant."""
        while (at := self.timeline.next_at()) is not None and at <= until_s:
            self.timeline.step()
            if self.timeline.next_at() != self.timeline.time:
                self._check()

    def _check(self) -> None:
        alive = self.provider.alive("job")
        for pool in self.pools:
            count = sum((one.machine_type, one.zone, one.reliability) == pool.key for one in alive)
            level = math.inf if pool.capacity is None else pool.capacity.at(self.timeline.time)
            if count > level:
                self.exceeded.append(f"{count} of {level:g} at {self.timeline.time}")

    def metered_usd(self) -> float:
        return self.provider.meter.total_usd(OWNER, WallTime(WALL_START + self.timeline.time))


def price_at(points: Points, time_s: float) -> float:
    """The newest price, by looking at each."""
    return [usd for since, usd in points if since <= time_s][-1]


def due_usd(rule: BillingRule, points: Points, start_s: float, end_s: float, bought_s: float, *, free: bool) -> float:
    """What one machine costs by a rule, added up in the plainest way; `free`: its last hour is refunded."""
    lasts_s, hour_s = end_s - start_s, rule.hour_s
    hours = math.floor(lasts_s / hour_s + 1e-9)
    if rule.basis is BillingBasis.STARTED_HOUR:
        billed_s = max(lasts_s, rule.minimum_s) if not free else hours * hour_s
        begun = math.ceil(billed_s / hour_s - 1e-9)
        return sum(price_at(points, start_s + hour_s * hour) for hour in range(begun)) * hour_s / 3600.0
    billed_s = hours * hour_s if free else max(lasts_s, rule.minimum_s)
    if rule.basis is BillingBasis.PURCHASE:
        return billed_s / 3600.0 * price_at(points, bought_s)
    until_s = start_s + billed_s
    edges = sorted({start_s, until_s, *(since for since, _ in points if start_s < since < until_s)})
    return sum((later - edge) / 3600.0 * price_at(points, edge) for edge, later in itertools.pairwise(edges))
