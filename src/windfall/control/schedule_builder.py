"""Builds save schedules in the background: one takes seconds, which must not block the job loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from windfall.core import save_schedules
from windfall.core.fleet_state import FleetState
from windfall.errors import WindfallError
from windfall.events import Fact
from windfall.fleet import Report, ScheduleComputed
from windfall.policies.checkpointing.replan import ScheduleRequest
from windfall.terms import Instant

if TYPE_CHECKING:
    from windfall.control.job_loop import JobLoopPorts

Scheduler = Callable[[ScheduleRequest], ScheduleComputed | None]
"""Returns a machine's new schedule; None if its present one is good enough.  May take seconds."""
InBackground = Callable[[Callable[[], None]], None]
"""Runs a call later, without blocking its caller."""
_DOUBLINGS_MAX = 16


def in_thread(call: Callable[[], None]) -> None:
    """Run a call in its own thread."""
    threading.Thread(target=call, name="schedule", daemon=True).start()


class ScheduleBuilder:
    """Finds the machines that need a schedule, has it built, and returns it as a fact."""

    def __init__(self, ports: JobLoopPorts) -> None:
        self._ports = ports
        self._made: queue.SimpleQueue[ScheduleComputed] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._first_at = self._again_at = Instant(float("-inf"))
        self._trouble = ""
        self._failures = 0

    def poll(self, state: FleetState, reports: Mapping[str, Report], now: Instant, journal_now: Instant) -> list[Fact]:
        """Return the schedules built since the last poll, and start building those that are due.

        A machine without a schedule since it took the run is polled as often as the run, others as often as the estimates.

        Args:
            state: the driver's.
            reports: the newest of each machine.
            now: monotonic time of this process.
            journal_now: the same moment on the journal clock.
        """
        found: list[Fact] = []
        while not self._made.empty():
            found.append(self._made.get())
        make = self._ports.schedule
        if found or make is None or self._busy.is_set() or now < self._first_at:
            return found
        pace = self._ports.pace
        requests = save_schedules.requests(state, reports, journal_now)
        # A failed build may have cost seconds of this process, so the next one starts later.
        self._first_at = Instant(now + min(pace.run_s * 2.0 ** min(self._failures, _DOUBLINGS_MAX), pace.estimates_s))
        if now < self._again_at:
            requests = tuple(request for request in requests if not request.answered)
        elif requests:
            self._again_at = Instant(now + pace.estimates_s)
        if requests:
            self._busy.set()
            self._begin(lambda: self._make(make, requests))
        return found

    def _begin(self, call: Callable[[], None]) -> None:
        try:
            self._ports.in_background(call)
        except RuntimeError as error:
            self._busy.clear()
            self._failed(f"cannot build a save schedule now: {error}")

    def _make(self, make: Scheduler, requests: tuple[ScheduleRequest, ...]) -> None:
        try:
            for request in requests:
                made = make(request)
                if made is not None:
                    self._made.put(made)
            self._failures = 0
        except WindfallError as error:
            self._failed(f"cannot build a save schedule now: {error}")
        except Exception as error:
            # A bug here must not stop the job loop: machines save by the default rule.
            self._failed(f"unexpected error in building a save schedule: {type(error).__name__}: {error}")
        finally:
            self._busy.clear()

    def _failed(self, message: str) -> None:
        self._failures += 1
        if message != self._trouble:
            self._trouble = message
            self._ports.log(message)
