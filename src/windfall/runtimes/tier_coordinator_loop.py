"""The loop of the coordinator of a parameter server in tiers: it hears machines, and writes the next layout to the run's log.

A machine that has not reported for a while is lost for ever: it is told so if it reports again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from windfall.core.bulk_watch import BulkWatch
from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_summary import ClockRate, tier_status
from windfall.errors import StoreError, WindfallError
from windfall.runtimes.tier_pace import TierPace
from windfall.structs import replace
from windfall.terms import WallTime
from windfall.tier_layout import CommittedClock, ServerLayout, TierMachine, TierReport
from windfall.tier_status import TierStatus

LAST_STATUS_TRIES = 10
"""How often the last status is tried."""


class LostMachine(WindfallError):
    """A machine that its coordinator takes for lost reports: it must stop."""


class Superseded(WindfallError):
    """Another coordinator has written a layout."""


class CoordinatorLog(Protocol):
    """Where a coordinator writes."""

    async def write(self, layout: ServerLayout) -> bool:
        """Append a layout to the log; return whether it could: not if that record exists."""
        ...

    async def newest(self, since: ServerLayout) -> ServerLayout | None:
        """Return the newest layout, from one that is known on.

        Raises:
            StoreError: it was not found.
        """
        ...

    async def write_status(self, status: TierStatus) -> None:
        """Write the status over the last one.

        Raises:
            StoreError: it was not written.
        """
        ...

    def now(self) -> WallTime:
        """Return the time that a status bears."""
        ...


class TierCoordinatorLoop:
    """A coordinator.

    Args:
        coordinator: what it knows; its layout is in the log.
        log: where it writes.
        time_s: a monotonic clock [s].
        new_nonce: returns a random name.
        pace: how often it does what.
        status: the last one that was written.
    """

    def __init__(
        self,
        coordinator: TierCoordinator,
        log: CoordinatorLog,
        time_s: Callable[[], float],
        new_nonce: Callable[[], str],
        *,
        pace: TierPace,
        status: TierStatus | None = None,
    ) -> None:
        self._pace = pace
        self.coordinator, self._log, self._time_s, self._new_nonce = coordinator, log, time_s, new_nonce
        self._status, self._rate = status, ClockRate(pace.rate_over_s)
        self._ends = asyncio.Event()
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._reported, self._followed = True, False
        self._machines: dict[str, TierMachine] = {}
        self._bulk = BulkWatch(pace.settle_s)
        self._awaited: set[str] = set()
        self._lost_at: dict[str, float] = {}
        self._lost: set[str] = set()
        self._dismissed: set[str] = set()

    @property
    def machines(self) -> tuple[TierMachine, ...]:
        """All that are there."""
        return tuple(self._machines.values())

    def start(self) -> None:
        """Await the machines that the layout names: nothing is decided before each has reported, or had the time to."""
        first = self.coordinator.layout.version == 1
        report_within_s = self._pace.start_within_s if first else self._pace.found_within_s
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
        may_be_silent_s = self._pace.reliable_lost_after_s if report.about.reliable else self._pace.lost_after_s
        self._lost_at[report.machine] = self._time_s() + may_be_silent_s
        self._reported = True
        # A coordinator with nothing to write to the log learns of its successor by those who obey it.
        self._followed = self._followed or report.coordinator > self.coordinator.layout.coordinator
        known = self.coordinator.reports.get(report.machine)
        if known is None or known.decisive != report.decisive:
            self._news.set()
        self.coordinator.take(report)
        committed = self.coordinator.committed()
        if committed.over:
            self._dismissed.add(report.machine)
        return self.coordinator.layout, committed

    async def newer(self, version: int) -> ServerLayout:
        """Return the newest layout once it is newer than this version, or after a while whatever it is."""
        if self.coordinator.layout.version <= version:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._written.wait(), self._pace.held_s)
        return self.coordinator.layout

    async def run(self) -> None:
        """Write layouts until training is over, and each machine that is there has heard of it.

        Raises:
            Superseded: another coordinator has written one.
        """
        reporting = asyncio.get_running_loop().create_task(self._report_status())
        try:
            while not self._all_know_the_end():
                if reporting.done():
                    reporting.result()
                await self.turn()
                with suppress(TimeoutError):
                    wait_s = min(self._pace.decide_s, self._bulk.settles_in_s(self._time_s()))
                    await asyncio.wait_for(self._news.wait(), wait_s)
                self._news.clear()
            self._ends.set()
            await reporting
        finally:
            reporting.cancel()

    def _all_know_the_end(self) -> bool:
        return self.coordinator.committed().over and self._machines.keys() <= self._dismissed

    def status(self) -> TierStatus:
        """Return what training is doing."""
        committed = self.coordinator.committed()
        rate = self._rate.at(self._time_s(), committed.clock)
        self._status = tier_status(self.coordinator, self.machines, self._status, self._log.now(), rate)
        return self._status

    async def _report_status(self) -> None:
        """Write the status now and then, and at the end; a store that fails then is tried a few times more."""
        failures = 0
        while failures < LAST_STATUS_TRIES:
            last = self._ends.is_set()
            try:
                # One that hears nothing may have a successor, which all report to; it must not write over its status.
                if not self._reported:
                    await self._look_for_successor()
                if self._followed:
                    return
                self._reported = False
                await self._log.write_status(self.status())
            except StoreError:
                failures += last
            else:
                if last:
                    return
            if last:
                await asyncio.sleep(self._pace.status_s)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), self._pace.status_s)

    async def _look_for_successor(self) -> None:
        newest, layout = await self._log.newest(self.coordinator.layout), self.coordinator.layout
        self._followed = newest is not None and newest.coordinator > layout.coordinator

    async def turn(self) -> None:
        """Write the next layout if there is one.

        Raises:
            Superseded: another coordinator has written it, or has started.
        """
        if self._followed:
            raise Superseded("another coordinator has started")
        now_s = self._time_s()
        for name in [name for name, lost_at in self._lost_at.items() if lost_at < now_s]:
            self.lose(name)
        if self._awaited or self.coordinator.committed().over:
            return
        layout = self.coordinator.next(self.machines, self._bulk.counted(self.machines, now_s))
        if layout is None:
            return
        layout = replace(layout, nonce=self._new_nonce())
        if not await self._log.write(layout):
            raise Superseded(f"another coordinator has written layout {layout.version}")
        self.coordinator.written(layout)
        self._written.set()
        self._written = asyncio.Event()
