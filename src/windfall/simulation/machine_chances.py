"""The chances of a job's machines, where the market leaves them to the job: every policy then meets the same machines."""

from __future__ import annotations

from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import Scenario


class MachineChances:
    """How long the machines of a scenario's job take to start, and how long they live."""

    def __init__(self, scenario: Scenario, draws: Draws) -> None:
        """Take the scenario and the draws of the trial."""
        self._scenario = scenario
        self._draws = draws

    def machine(self, slot: int, n: int, now_s: float) -> tuple[float, float]:
        """Return how long the n-th machine of a slot takes to start [s], and when its lifetime ends [s of virtual time]."""
        waits_s = self._draws.allocate_s(slot, n)
        starts_s, ends_s = self._draws.lifetime(slot, n, now_s + waits_s)
        if starts_s != now_s + waits_s:
            waits_s = max(starts_s - now_s, 0.0)
        return waits_s, ends_s

    def end(self, slot: int, n: int, ends_s: float) -> tuple[float | None, float]:
        """Return when the machine gets its notice (None: never), and when it ends; its lifetime ends at `ends_s` [s]."""
        scenario = self._scenario
        if not self._draws.announced(slot, n):
            return None, ends_s
        if scenario.lifetime_ends_at_notice:
            return ends_s, ends_s + scenario.notice_s
        return ends_s - scenario.notice_s, ends_s
