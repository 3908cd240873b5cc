"""The direct channel: machines call the controller's API, and get their directive with the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from windfall.fleet import Directive, Report


class DirectChannel:
    """`ports.Channel` of one job between the API's threads, which deliver, and the job's loop, which hears and tells.

    Args:
        wake: called (from an API thread) when a report came, so that the loop need not wait for its next turn.
    """

    name = "direct"

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._unheard: dict[str, Report] = {}
        self._latest: dict[str, tuple[str, int]] = {}
        self._directives: dict[str, Directive] = {}

    def deliver(self, report: Report) -> Directive | None:
        """Take a machine's report; return what it is to do, None if nothing was decided for it yet.

        A report that overtook an older one of the same keeper's life stays the newest; the older one is still answered.
        """
        with self._lock:
            machine_id = report.machine_id
            life, sequence = self._latest.get(machine_id, ("", 0))
            news = life != report.life or sequence < report.sequence
            if news:
                self._latest[machine_id] = (report.life, report.sequence)
                self._unheard[machine_id] = report
            directive = self._directives.get(machine_id)
        if news:
            self._wake()
        return directive

    def hear(self) -> tuple[Report, ...]:
        """Return the newest report of each machine that came since the last call."""
        with self._lock:
            heard, self._unheard = self._unheard, {}
        return tuple(heard.values())

    def tell(self, directives: dict[str, Directive]) -> None:
        """Replace all directives; machines that are no longer among them are forgotten."""
        with self._lock:
            gone = self._directives.keys() - directives.keys()
            self._directives = dict(directives)
            for machine_id in gone:
                self._latest.pop(machine_id, None)
