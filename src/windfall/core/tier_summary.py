"""What a parameter server in tiers is doing, by its newest layout, what machines report, and what was said before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import training_loss
from windfall.policies.layout.tiers import stage_for
from windfall.structs import replace
from windfall.terms import WallTime
from windfall.tier_layout import ServerLayout, TierMachine, TierReport
from windfall.tier_status import TierCounters, TierMachineStatus, TierStatus


class ClockRate:
    """How many clocks are committed in a second, over a window that ends now.

    Args:
        window_s: its length [s].
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now_s: float, clock: int) -> float:
        """Take in the newest clock, and return the rate [1/s]; 0 at first, and after all went back."""
        if self._seen and clock < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now_s, clock))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._window_s:
            self._seen.popleft()
        (since_s, first) = self._seen[0]
        return (clock - first) / (now_s - since_s) if now_s > since_s else 0.0


def summed(counters: Iterable[TierCounters]) -> TierCounters:
    """Return the sum of what several machines have counted; of the largest staleness, the largest."""
    total: dict[str, Any] = {}
    for one in counters:
        for name in one.__struct_fields__:
            value, so_far = getattr(one, name), total.get(name, 0)
            total[name] = max(so_far, value) if name == "staleness_max" else so_far + value
    return replace(TierCounters(), **total)


def tier_status(
    coordinator: TierCoordinator, machines: Sequence[TierMachine], before: TierStatus | None, at: WallTime, rate: float
) -> TierStatus:
    """Return the status.

    Args:
        coordinator: what it knows.
        machines: all that are there.
        before: the status before this one, from which it counts on; None: there is none.
        at: now.
        rate: clocks that are committed in a second.
    """
    layout, committed, reports = coordinator.layout, coordinator.committed(), coordinator.reports
    known = {} if before is None else {one.name: one for one in before.machines}
    there = {machine.name for machine in machines}
    went = [one for name, one in known.items() if name not in there]
    loss = training_loss(layout, reports)
    gone = [] if before is None else [before.gone]
    return TierStatus(
        at=at,
        stage=stage_for(machines, coordinator.ratios) if any(machine.reliable for machine in machines) else None,
        layout=layout.version,
        coordinator=layout.coordinator,
        clock=committed.clock,
        clocks=coordinator.clocks,
        clocks_per_s=rate,
        machines=tuple(_machine(machine, layout, _newest(machine.name, reports, known)) for machine in machines),
        gone=summed([*gone, *(_newest(one.name, reports, known) for one in went)]),
        rollbacks=layout.term - layout.restores,
        restores=layout.restores,
        clocks_redone=layout.redone,
        lost=(0 if before is None else before.lost) + sum(not one.leaving for one in went),
        left=(0 if before is None else before.left) + sum(one.leaving for one in went),
        over=committed.over,
        loss=before.loss if loss is None and before is not None else loss,
        goal=coordinator.goal,
        reached=layout.reached,
    )


def _newest(name: str, reports: Mapping[str, TierReport], known: Mapping[str, TierMachineStatus]) -> TierCounters:
    """Return what a machine has reported to this coordinator, or else to the one before it."""
    if name in reports:
        return reports[name].counters
    return known[name].counters if name in known else TierCounters()


def _machine(machine: TierMachine, layout: ServerLayout, counters: TierCounters) -> TierMachineStatus:
    parts = list(enumerate(layout.parts))
    return TierMachineStatus(
        machine.name,
        machine.reliable,
        machine.leaving,
        tuple(part for part, place in parts if place.active == machine.name),
        tuple(part for part, place in parts if place.backup == machine.name),
        tuple(data for data, place in enumerate(layout.data) if place.holder == machine.name),
        counters,
    )
