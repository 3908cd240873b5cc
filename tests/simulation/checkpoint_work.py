"""A run with checkpoints in the fast fleet loop: one set of machines works, a restart takes its time, a drain saves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from windfall.fleet import Slot
from windfall.terms import JobProgress, Outcome, Unit, WorkDone


@dataclass
class CheckpointWork:
    """`fleet_work.FleetWork` of `nodes` machines, whose steps take a second each; a save every `save_s` costs nothing."""

    steps: float
    nodes: int = 1
    restore_s: float = 100.0
    save_s: float = 60.0
    done: float = 0.0
    safe: float = 0.0
    holders: tuple[int, ...] = ()
    finish_s: float | None = None
    _up: dict[int, bool] = field(default_factory=dict)
    _since_s: float = 0.0

    @property
    def progress(self) -> JobProgress:
        outcome = Outcome.DONE if self.done >= self.steps - 1e-6 else Outcome.RUNNING
        return JobProgress(WorkDone(self.done, Unit.STEP), WorkDone(self.safe, Unit.STEP), 0, outcome)

    def next_s(self) -> float:
        if not self.holders:
            return math.inf
        return self._since_s + min(self.steps - self.done, self.save_s - (self.done - self.safe))

    def play(self, now_s: float) -> bool:
        if self.holders and now_s > self._since_s:
            self.done = min(self.done + now_s - self._since_s, self.steps)
            self._since_s = now_s
            if self.done - self.safe >= self.save_s - 1e-6 or self.done >= self.steps - 1e-6:
                self.safe = self.done
                return True
        return False

    def take_work(self, now_s: float) -> bool:
        self.play(now_s)
        free = [machine for machine, drains in self._up.items() if not drains]
        if not self.holders and len(free) >= self.nodes:
            self.holders, self._since_s = tuple(free[: self.nodes]), now_s + self.restore_s
            return True
        return False

    def start(self, machine: int, slot: Slot, cpus: float, now_s: float) -> None:
        self._up[machine] = False

    def drain(self, machine: int) -> None:
        self._up[machine] = True
        if machine in self.holders:
            self.safe, self.holders = self.done, ()

    def end(self, machine: int, now_s: float, *, taken: bool) -> None:
        self._up.pop(machine, None)
        if machine in self.holders:
            self.done, self.holders = self.safe, ()

    def ready(self, machine: int) -> bool:
        return machine in self._up

    def works(self, machine: int) -> bool:
        return machine in self.holders
