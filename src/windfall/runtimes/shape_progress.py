"""The runtime `elastic`, as the controller sees it: what the coordinator wrote to the run's store.

Training needs no controller: who trains which stage is decided on the machines.
"""

from __future__ import annotations

from collections.abc import Callable

from windfall.fleet import ProgressObserved
from windfall.jobs import Job
from windfall.ports import Clock, ObjectStore
from windfall.runtimes.shape_log import ShapeLog
from windfall.terms import JobProgress, Outcome, Term, Unit, WallTime, WorkDone

SILENT_S = 20.0
"""How long a coordinator that is asked to stop may say nothing; it writes once a second [s]."""


class ShapeProgress:
    """`ports.Runtime` of an elastic training; calls come from one thread."""

    def __init__(self, log: ShapeLog, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._asked = 0
        self._seen: tuple[WallTime, float] | None = None
        self._failures, self._failure = 0, ""

    def progress(self) -> ProgressObserved | None:
        """Return the newest step, that of the newest checkpoint, and how often the script has failed.

        A script may fail before there is a status: then the job must end by that.
        """
        failures = self._log.failures(self._failures)
        if failures > self._failures:
            newest = self._log.failure(failures)
            self._failures, self._failure = failures, "" if newest is None else newest.message.partition("\n")[0]
        status = self._log.status()
        if status is None:
            nothing = WorkDone(0.0, Unit.STEP)
            progress = JobProgress(nothing, nothing, self._failures, Outcome.RUNNING, failure=self._failure)
            return ProgressObserved(Term(0), progress) if self._failures else None
        outcome = Outcome.RUNNING
        if self._log.is_done():
            outcome = Outcome.DONE
        elif self._log.stopped() >= status.coordinator or (
            self._asked >= status.coordinator and self._is_silent(status.at)
        ):
            outcome = Outcome.WAITING
        done, safe = WorkDone(float(status.step), Unit.STEP), WorkDone(float(status.checkpoint), Unit.STEP)
        progress = JobProgress(done, safe, self._failures, outcome, failure=self._failure)
        return ProgressObserved(Term(status.coordinator), progress)

    def declare_gone(self, machine_id: str) -> None:
        """Do nothing: the coordinator knows within seconds that a machine is silent."""

    def _is_silent(self, at: WallTime) -> bool:
        """Whether the coordinator is gone: no other machine can save, and none is bought while the job stops."""
        now_s = self._clock.now()
        if self._seen is None or self._seen[0] != at:
            self._seen = (at, now_s)
        return now_s - self._seen[1] > SILENT_S

    def stop(self, *, now: bool, reason: str) -> None:
        """Ask the coordinator for a checkpoint, after which training rests."""
        del now, reason
        layout = self._log.newest_layout()
        if layout is not None:
            self._asked = layout.coordinator
            self._log.ask_to_stop(layout.coordinator)


def open_runtime(job: Job, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> ShapeProgress:
    """Open the runtime of a job.

    Args:
        job: the job.
        store: of its run.
        clock: time.
        new_nonce: returns a random name.
    """
    del job, new_nonce
    return ShapeProgress(ShapeLog(store), clock)
