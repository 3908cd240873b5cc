"""What a job's machines do in the fast fleet loop: the counterpart there of a runtime."""

from __future__ import annotations

from typing import Protocol

from windfall.fleet import Slot
from windfall.terms import JobProgress


class FleetWork(Protocol):
    """What the machines of a fleet do.  Machines are numbered from 0 in the order of their purchase."""

    @property
    def progress(self) -> JobProgress | None:
        """Of the job; None before the first."""

    def next_s(self) -> float:
        """Return when the work next changes anything [s]; infinite if it never does by itself."""

    def play(self, now_s: float) -> bool:
        """Let happen what is due by a time [s], at every event; return whether a machine reports to the driver."""

    def take_work(self, now_s: float) -> bool:
        """Begin new work, after the driver's decision; return whether a machine reports to the driver."""

    def start(self, machine: int, slot: Slot, cpus: float, now_s: float) -> None:
        """Start on a machine with a number of cores."""

    def drain(self, machine: int) -> None:
        """Finish or hand over what a machine does, and start nothing more on it."""

    def end(self, machine: int, now_s: float, *, taken: bool) -> None:
        """End with a machine, which its market took or its owner released; what it did and did not hand over is lost."""

    def ready(self, machine: int) -> bool:
        """Whether a machine that has started works or could work."""

    def works(self, machine: int) -> bool:
        """Whether a machine has work that an end would cut off."""
