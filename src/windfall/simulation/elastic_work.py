"""A job that any number of machines can work on, in the fast fleet loop: its speed follows the fleet.

Its speed is the cores of its machines, less what they lose to each other (`bidbrain.efficiency`).  A change of the fleet
stops it for a while.  How much a machine's end costs besides depends on how its state survives: a parameter server in
tiers hands it over (Proteus' AgileML: a pause), a job with checkpoints starts again from the newest one and pays for
them at all times.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, sections 4.1 (lambda, sigma, phi) and 6.3 (checkpoints cost 17 % of the run time).
"""

from __future__ import annotations

import math
from typing import Final

from windfall.fleet import Slot
from windfall.policies.acquisition.bidbrain import Application, efficiency
from windfall.structs import Struct
from windfall.terms import JobProgress, Outcome, Unit, WorkDone

_DONE: Final = 1e-6
"""Work that is too little to wait for [core-seconds]."""


class Survival(Struct, frozen=True):
    """How a job's state survives, and what that costs.

    Attributes:
        slowdown: the job takes this many times as long, whatever happens [1].
        checkpoint_s: after this much work time since the last one, its state is saved again [s]; None: nothing is lost with
            a machine.
        restart_s: how long no machine makes progress after any change of the fleet [s], besides the application's own
            times; a job with checkpoints starts again.
    """

    slowdown: float = 1.0
    checkpoint_s: float | None = None
    restart_s: float = 0.0


class ElasticWork:
    """`fleet_work.FleetWork` of a job with an amount of work.

    Attributes:
        done: work that counts so far [core-seconds].
        redone: work that was lost and had to be done again [core-seconds].
        evictions: how often machines were taken; those of one instant are one eviction.
    """

    def __init__(self, core_s: float, app: Application, survival: Survival, reliable_role: str = "") -> None:
        """Prepare.

        Args:
            core_s: the work: the time that one core would take alone [core-seconds].
            app: how the application reacts to changes of its fleet.
            survival: how its state survives.
            reliable_role: machines of this role keep the state safe and do no work; empty for none.
        """
        self.done = self.redone = 0.0
        self.evictions = 0
        self._core_s, self._app, self._survival, self._reliable_role = core_s, app, survival, reliable_role
        self._cores: dict[int, float] = {}
        self._rate, self._changed = 0.0, False
        self._since_s = self._paused_until_s = 0.0
        self._unsaved, self._unsaved_s = 0.0, 0.0
        self._evicted_s = -math.inf

    @property
    def progress(self) -> JobProgress | None:
        """Whether it is done; how far it is, in core-seconds as steps."""
        over = self.done >= self._core_s - _DONE
        done = WorkDone(self.done, Unit.STEP)
        return JobProgress(done, done, 0, Outcome.DONE if over else Outcome.RUNNING)

    def next_s(self) -> float:
        """Return when all work is done if the fleet stays as it is [s]; infinite without machines."""
        rate = self._measured()
        if rate <= 0.0:
            return math.inf
        return max(self._since_s, self._paused_until_s) + max(self._core_s - self.done, 0.0) / rate

    def play(self, now_s: float) -> bool:
        """Work until a time [s]; no machine reports."""
        if now_s == self._since_s:  # many machines change at one instant
            return False
        worked_s = max(now_s - max(self._since_s, self._paused_until_s), 0.0)
        self._since_s = now_s
        if worked_s > 0.0 and self._measured() > 0.0:
            self.done = min(self.done + worked_s * self._rate, self._core_s)
            self._save(worked_s)
        return False

    def _save(self, worked_s: float) -> None:
        every_s = self._survival.checkpoint_s
        if every_s is None:
            return
        self._unsaved_s += worked_s
        if self._unsaved_s >= every_s:
            self._unsaved_s %= every_s
            self._unsaved = self._unsaved_s * self._rate
        else:
            self._unsaved += worked_s * self._rate

    def take_work(self, now_s: float) -> bool:
        """Begin nothing new: all machines work on one thing."""
        self.play(now_s)
        return False

    def start(self, machine: int, slot: Slot, cpus: float, now_s: float) -> None:
        """Add a machine: those that work stop for the change."""
        if slot.role != self._reliable_role:
            self._change(now_s, self._app.change_s)
            self._cores[machine] = cpus
            self._changed = True

    def drain(self, machine: int) -> None:
        """Nothing to finish: what a machine has is handed over, or saved, at its end."""

    def end(self, machine: int, now_s: float, *, taken: bool) -> None:
        """Work without a machine from now on; if it was taken, what no checkpoint has is lost."""
        if machine not in self._cores:
            return
        self._change(now_s, self._app.eviction_s if taken else self._app.change_s)
        if taken and now_s > self._evicted_s:
            self._evicted_s = now_s
            self.evictions += 1
            if self._survival.checkpoint_s is not None:
                self.done -= self._unsaved
                self.redone += self._unsaved
        self._unsaved = self._unsaved_s = 0.0
        del self._cores[machine]
        self._changed = True

    def ready(self, machine: int) -> bool:  # noqa: ARG002 - all machines are alike
        """Every machine that has started works."""
        return True

    def works(self, machine: int) -> bool:  # noqa: ARG002 - all machines are alike
        """No machine has work that an end by choice would cut off."""
        return False

    def _change(self, now_s: float, pause_s: float) -> None:
        self.play(now_s)
        self._paused_until_s = max(self._paused_until_s, now_s + pause_s + self._survival.restart_s)

    def _measured(self) -> float:
        """Return the speed [work per second]; measured once for all changes of an instant."""
        if self._changed:
            cores = math.fsum(self._cores.values())
            self._rate = cores * float(efficiency(cores, self._app)) / self._survival.slowdown
            self._changed = False
        return self._rate
