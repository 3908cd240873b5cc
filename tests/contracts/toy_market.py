"""The toy provider as a world of the provider suite: virtual time, and every trait that the local market does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.toy_provider import ToyProvider, ToyRules, faulty
from windfall.market import Answer, BootSpec, Machine, MachineEndCause
from windfall.simulation.virtual_time import Timeline
from windfall.terms import NoticeLevel, Seconds

if TYPE_CHECKING:
    from tests.contracts.providers import Setup
    from windfall.ports import Provider

PATIENCE_S = 60.0
STEP_S = 0.05


@dataclass
class ToyWorld:
    """See `providers.World`."""

    setup: Setup
    timeline: Timeline = field(default_factory=Timeline)
    deadlines: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        setup = self.setup
        rules = ToyRules(
            start_s=(setup.delay_s, setup.delay_s), notice_s=setup.notice_s, bill_lag_s=setup.lag_s,
            prices=setup.prices, on_demand=setup.on_demand,
        )  # fmt: skip
        self.toy = self.provider = ToyProvider(
            self.timeline, rules, listener=self, capacity=setup.capacity, quota_limit=setup.quota
        )

    # ------------------------------------------------------------------------------------- who lives on the machines

    def started(self, machine: Machine, boot: BootSpec) -> None:
        if boot.argv[1] != "1000":
            self.timeline.at(float(boot.argv[1]), lambda: self.toy.end(machine.machine_id, MachineEndCause.STOPPED))

    def noticed(self, machine_id: str, level: NoticeLevel, left_s: Seconds | None) -> None:
        self.deadlines.pop(machine_id, None)
        if left_s is not None:
            self.deadlines[machine_id] = self.timeline.time + left_s

    def ended(self, machine: Machine) -> None:
        self.deadlines.pop(machine.machine_id, None)

    # ----------------------------------------------------------------------------------------------------- the world

    def meeting(self, fault: str) -> AbstractContextManager[Provider]:
        return faulty(self.toy, fault)  # type: ignore[return-value]

    @contextmanager
    def half_listing(self) -> Iterator[Provider]:
        self.toy.page_fails = True
        yield self.toy
        self.toy.page_fails = False

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        until = self.timeline.time + PATIENCE_S
        while not condition():
            assert self.timeline.time < until, f"waited in vain: {what}"
            self.timeline.pass_time(STEP_S)

    def pass_time(self, duration_s: float) -> None:
        self.timeline.pass_time(duration_s)

    @contextmanager
    def denied(self) -> Iterator[None]:
        self.toy.denied = True
        yield
        self.toy.denied = False

    def boot(self, lasts_s: float | None = None) -> BootSpec:
        return BootSpec(("sleep", "1000" if lasts_s is None else str(lasts_s)))

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        return [call() for call in calls]

    def reopened(self) -> Provider:
        return self.toy

    def breaks(self, machine_id: str) -> None:
        self.toy.end(machine_id, MachineEndCause.FAILED)

    def fails_promise(self, machine_id: str) -> None:
        self.toy.end(machine_id, MachineEndCause.FAILED)

    def loses(self, machine_id: str) -> None:
        self.toy.loses(machine_id)

    def rises(self, machine_id: str) -> str:
        return self.toy.rise(machine_id)

    def withdraws(self, machine_id: str) -> bool:
        self.toy.withdraw(machine_id)
        return True

    def lives(self, machine_id: str) -> bool:
        return self.toy.lives(machine_id)

    def remains(self, owner: str) -> list[str]:
        return self.toy.remains(owner)

    def notice_left_s(self, machine_id: str) -> float | None:
        return None if machine_id not in self.deadlines else self.deadlines[machine_id] - self.timeline.time

    def metered_usd(self, owner: str) -> float:
        return self.toy.metered_usd(owner)


@contextmanager
def toy(setup: Setup, folder: Path) -> Iterator[ToyWorld]:
    """The world of the toy."""
    del folder
    yield ToyWorld(setup)
