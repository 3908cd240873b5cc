"""Schedules of saves, made beside the conductor's turns: its turn is never held up by the seconds that one takes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from windfall.core import schedules
from windfall.core.fleet_state import FleetState
from windfall.errors import WindfallError
from windfall.events import Fact
from windfall.fleet import Report, ScheduleMade
from windfall.policies.saving.replanning import ScheduleWish
from windfall.terms import Instant

if TYPE_CHECKING:
    from windfall.control.conductor import ConductorPorts

Scheduler = Callable[[ScheduleWish], ScheduleMade | None]
"""Returns the schedule that a machine is to have; None if the one that it has will do.  May take seconds."""
Aside = Callable[[Callable[[], None]], None]
"""Carries a call out, some time, without holding up its caller."""
_DOUBLINGS_MAX = 16


def in_thread(call: Callable[[], None]) -> None:
    """Carry a call out in a thread of its own."""
    threading.Thread(target=call, name="schedule", daemon=True).start()


class Scheduling:
    """Looks which machines want a schedule, has it made, and brings it as a fact."""

    def __init__(self, ports: ConductorPorts) -> None:
        self._ports = ports
        self._made: queue.SimpleQueue[ScheduleMade] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._first_at = self._again_at = Instant(float("-inf"))
        self._trouble = ""
        self._failures = 0

    def look(self, state: FleetState, reports: Mapping[str, Report], now: Instant, journal_now: Instant) -> list[Fact]:
        """Return the schedules that were made since the last look, and begin with those that are due.

        A machine that has none since it took the run is looked at as often as the run, all others as often as the beliefs.

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
        wishes = schedules.wishes(state, reports, journal_now)
        # What fails may have cost seconds of this process: the next time it is begun later.
        self._first_at = Instant(now + min(pace.run_s * 2.0 ** min(self._failures, _DOUBLINGS_MAX), pace.beliefs_s))
        if now < self._again_at:
            wishes = tuple(wish for wish in wishes if not wish.answered)
        elif wishes:
            self._again_at = Instant(now + pace.beliefs_s)
        if wishes:
            self._busy.set()
            self._begin(lambda: self._make(make, wishes))
        return found

    def _begin(self, call: Callable[[], None]) -> None:
        try:
            self._ports.aside(call)
        except RuntimeError as error:
            self._busy.clear()
            self._failed(f"a schedule of saves cannot be made now: {error}")

    def _make(self, make: Scheduler, wishes: tuple[ScheduleWish, ...]) -> None:
        try:
            for wish in wishes:
                made = make(wish)
                if made is not None:
                    self._made.put(made)
            self._failures = 0
        except WindfallError as error:
            self._failed(f"a schedule of saves cannot be made now: {error}")
        except Exception as error:
            # A mistake of ours here must not leave the job without its conductor: machines save by the default rule.
            self._failed(f"a schedule of saves met an error that nobody foresaw: {type(error).__name__}: {error}")
        finally:
            self._busy.clear()

    def _failed(self, sentence: str) -> None:
        self._failures += 1
        if sentence != self._trouble:
            self._trouble = sentence
            self._ports.say(sentence)
