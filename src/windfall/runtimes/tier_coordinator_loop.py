"""The loop of the coordinator of a parameter server in tiers: it hears machines, and writes the next layout to the run's log.

A machine that has not reported for a while is lost for ever: it is told so if it reports again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from windfall.core.tier_coordinator import TierCoordinator
from windfall.errors import WindfallError
from windfall.structs import replace
from windfall.tier_layout import CommittedClock, ServerLayout, TierMachine, TierReport

TURN_S = 0.05
"""Between two looks at what has changed."""
LOST_AFTER_S = 1.5
"""A transient machine is lost that has not reported for so long: a loss is known within two seconds."""
RELIABLE_LOST_AFTER_S = 10.0
"""A reliable one is: it hardly ever is, and all would be restored from the store for one that was only slow."""
START_WITHIN_S = 60.0
"""How long the machines of the first layout may take to report for the first time."""
RUNNING_REPORT_WITHIN_S = 5.0
"""How long machines that run may take to find a coordinator that has started."""


class LostMachine(WindfallError):
    """A machine that its coordinator takes for lost reports: it must stop."""


class Superseded(WindfallError):
    """Another coordinator has written a layout."""


class TierCoordinatorLoop:
    """A coordinator.

    Args:
        coordinator: what it knows; its layout is in the log.
        write: appends a layout to the log; returns whether it could: not if that record exists.
        time_s: a monotonic clock [s].
        new_nonce: returns a random name.
    """

    def __init__(
        self,
        coordinator: TierCoordinator,
        write: Callable[[ServerLayout], Awaitable[bool]],
        time_s: Callable[[], float],
        new_nonce: Callable[[], str],
    ) -> None:
        self.coordinator, self._write, self._time_s, self._new_nonce = coordinator, write, time_s, new_nonce
        self._machines: dict[str, TierMachine] = {}
        self._awaited: set[str] = set()
        self._lost_at: dict[str, float] = {}
        self._lost: set[str] = set()
        self._dismissed: set[str] = set()

    @property
    def machines(self) -> tuple[TierMachine, ...]:
        """All that are there."""
        return tuple(self._machines.values())

    def start(self, report_within_s: float) -> None:
        """Await the machines that the layout names: nothing is decided before each has reported, or had the time to [s]."""
        for machine in self.coordinator.machines_named():
            self._awaited.add(machine)
            self._lost_at[machine] = self._time_s() + report_within_s

    def lose(self, machine: str) -> None:
        """Take in that a machine is lost."""
        self._lost.add(machine)
        self._awaited.discard(machine)
        self._machines.pop(machine, None)
        self._lost_at.pop(machine, None)

    def hear(self, report: TierReport) -> tuple[ServerLayout, CommittedClock]:
        """Take in a report and return what counts; a machine joins with its first one.

        Raises:
            LostMachine: it was taken for lost before.
        """
        if report.machine in self._lost:
            raise LostMachine(f"machine {report.machine} was silent for too long: others do its work")
        self._awaited.discard(report.machine)
        self._machines[report.machine] = report.about
        silence_max_s = RELIABLE_LOST_AFTER_S if report.about.reliable else LOST_AFTER_S
        self._lost_at[report.machine] = self._time_s() + silence_max_s
        self.coordinator.take(report)
        committed = self.coordinator.committed()
        if committed.over:
            self._dismissed.add(report.machine)
        return self.coordinator.layout, committed

    async def run(self) -> None:
        """Write layouts until training is over, and each machine that is there has heard of it.

        Raises:
            Superseded: another coordinator has written one.
        """
        while not self.coordinator.committed().over or self._machines.keys() - self._dismissed:
            await self.turn()
            await asyncio.sleep(TURN_S)

    async def turn(self) -> None:
        """Write the next layout if there is one.

        Raises:
            Superseded: another coordinator has written it.
        """
        now_s = self._time_s()
        for name in [name for name, lost_at in self._lost_at.items() if lost_at < now_s]:
            self.lose(name)
        if self._awaited or self.coordinator.committed().over:
            return
        layout = self.coordinator.next(self.machines)
        if layout is None:
            return
        layout = replace(layout, nonce=self._new_nonce())
        if not await self._write(layout):
            raise Superseded(f"another coordinator has written layout {layout.version}")
        self.coordinator.written(layout)
