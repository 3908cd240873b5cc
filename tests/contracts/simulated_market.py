"""The simulated market as a world of the provider suite: virtual time, and machines that are names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.market_shop import due_usd
from windfall.errors import ProviderUnreachable
from windfall.market import BY_THE_SECOND, Answer, BillingBasis, BootSpec, Machine, MachineEndCause
from windfall.simulation.simulated_provider import SimulatedMarket, SimulatedProvider
from windfall.simulation.value_series import ValueSeries
from windfall.simulation.virtual_time import WALL_START, Timeline
from windfall.terms import NoticeLevel, Reliability, Seconds

if TYPE_CHECKING:
    from tests.contracts.providers import Setup
    from windfall.ports import Provider

PATIENCE_S = 20.0
STEP_S = 0.01


@dataclass
class Line:
    """A line to the market on which every call meets a fault."""

    provider: SimulatedProvider
    fault: str

    def __getattr__(self, name: str) -> object:
        call = getattr(self.provider, name)

        def meet(*arguments: object) -> object:
            if self.fault == "unsent":
                raise ProviderUnreachable("planted: the call was not sent")
            answer = call(*arguments)
            if self.fault == "doubled":
                answer = call(*arguments)
            if self.fault == "lost":
                raise ProviderUnreachable("planted: the answer was lost")
            return answer

        return meet


@dataclass
class SimulatedWorld:
    """See `providers.World`."""

    setup: Setup
    timeline: Timeline = field(default_factory=Timeline)
    lifetime_source: set[str] = field(default_factory=set)
    deadlines: dict[str, float] = field(default_factory=dict)
    ended_machines: list[Machine] = field(default_factory=list)

    def __post_init__(self) -> None:
        setup = self.setup
        self.keys = [("small", zone) for zone in ("zone-a", "zone-b")]
        self.provider = SimulatedProvider(
            "simulated",
            self.timeline,
            tuple(
                SimulatedMarket(
                    machine_type=machine_type,
                    zone=zone,
                    reliability=reliability,
                    prices=ValueSeries.of(setup.prices if spot and zone == "zone-a" else ((0.0, setup.on_demand),)),
                    on_demand_usd_per_hour=setup.on_demand,
                    notice_s=Seconds(setup.notice_s),
                    allocate_s=(setup.delay_s, setup.delay_s),
                    bid=spot,
                    refund=spot and setup.refund,
                    billing=setup.billing if spot else BY_THE_SECOND,
                )
                for machine_type, zone in self.keys
                for reliability in Reliability
                for spot in (reliability is Reliability.TRANSIENT,)
            ),
            random.Random(7),
            listener=self,
            bill_lag_s=(setup.lag_s, setup.lag_s),
        )
        self.change()

    # ------------------------------------------------------------------------------------- who lives on the machines

    def started(self, machine: Machine, boot: BootSpec) -> None:
        self.lifetime_source.add(machine.machine_id)
        if boot.argv[1] != "1000":
            self.timeline.at(
                float(boot.argv[1]), lambda: self.provider.end(machine.machine_id, MachineEndCause.STOPPED)
            )

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        if level is NoticeLevel.WITHDRAWN:
            del self.deadlines[machine_id]
            return
        assert level is NoticeLevel.ANNOUNCED
        assert left_s is not None
        self.deadlines[machine_id] = self.timeline.time + left_s

    def ended(self, machine: Machine) -> None:
        self.lifetime_source.discard(machine.machine_id)
        self.ended_machines.append(machine)

    # ----------------------------------------------------------------------------------------------------- the world

    @contextmanager
    def meeting(self, fault: str) -> Iterator[Provider]:
        yield Line(self.provider, fault)  # type: ignore[misc]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        until = self.timeline.time + PATIENCE_S
        while not condition():
            assert self.timeline.time < until, f"waited in vain: {what}"
            self.timeline.pass_time(STEP_S)

    def pass_time(self, duration_s: float) -> None:
        self.timeline.pass_time(duration_s)

    def change(self, **changes: int) -> None:
        capacity, quota = changes.get("capacity", self.setup.capacity), changes.get("quota", self.setup.quota)
        for key in self.keys:
            self.provider.limits.quota[key] = quota
            for reliability in Reliability:
                self.provider.limits.capacity[*key, reliability] = capacity

    @contextmanager
    def denied(self) -> Iterator[None]:
        self.provider.limits.denied = True
        yield
        self.provider.limits.denied = False

    def boot(self, lasts_s: float | None = None) -> BootSpec:
        return BootSpec(("sleep", "1000" if lasts_s is None else str(lasts_s)))

    def half_listing(self) -> AbstractContextManager[Provider]:
        return self.meeting("lost")

    def reopened(self) -> Provider:
        return self.provider

    def fails_promise(self, machine_id: str) -> None:
        raise NotImplementedError

    def loses(self, machine_id: str) -> None:
        raise NotImplementedError

    def rises(self, machine_id: str) -> str:
        raise NotImplementedError

    def withdraws(self, machine_id: str) -> bool:
        self.provider.withdraw(machine_id)
        return True

    def remains(self, owner: str) -> list[str]:
        return [
            machine.machine_id for machine in self.provider.list(owner) if machine.machine_id in self.lifetime_source
        ]

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        return [call() for call in calls]

    def breaks(self, machine_id: str) -> None:
        self.provider.end(machine_id, MachineEndCause.FAILED)

    def lives(self, machine_id: str) -> bool:
        return machine_id in self.lifetime_source

    def notice_left_s(self, machine_id: str) -> float | None:
        return None if machine_id not in self.deadlines else self.deadlines[machine_id] - self.timeline.time

    def metered_usd(self, owner: str) -> float:
        total = 0.0
        for machine in self.ended_machines:
            if machine.owner == owner and machine.started is not None and machine.ended is not None:
                free = self.setup.refund and machine.cause is MachineEndCause.PREEMPTED
                floats = self.setup.billing.basis is not BillingBasis.PURCHASE
                points = self.setup.prices if floats else ((0.0, machine.price_usd_per_hour),)
                life = (machine.started - WALL_START, machine.ended - WALL_START, 0.0)
                total += due_usd(self.setup.billing, points, *life, free=free)
        return total


@contextmanager
def simulated(setup: Setup, folder: Path) -> Iterator[SimulatedWorld]:
    """The world of the simulated market."""
    del folder
    yield SimulatedWorld(setup)
