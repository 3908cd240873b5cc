"""The runtime `paramserver`, as the controller sees it: what the coordinator wrote to the run's store.

Training needs no controller: who serves and computes what is decided on the machines.
"""

from __future__ import annotations

from collections.abc import Callable

from windfall.fleet import ProgressObserved
from windfall.jobs import Job
from windfall.ports import Clock, ObjectStore
from windfall.runtimes.tier_log import TierLog
from windfall.terms import JobProgress, Outcome, Term, Unit, WorkDone
from windfall.tier_layout import ServerLayout


class TierWatch:
    """`ports.Runtime` of a parameter server; calls come from one thread."""

    def __init__(self, store: TierLog) -> None:
        self._store = store
        self._layout: ServerLayout | None = None
        self._failures, self._failure = 0, ""

    def progress(self) -> ProgressObserved | None:
        """Return the newest committed clock, that of the newest checkpoint, and how often the program has failed.

        A program may fail before there is a layout, when machines load it: then the job must end by that.
        """
        self._layout = self._store.newest_layout(self._layout)
        self._count_failures()
        if self._layout is None:
            nothing = WorkDone(0.0, Unit.STEP)
            progress = JobProgress(nothing, nothing, self._failures, Outcome.RUNNING, failure=self._failure)
            return ProgressObserved(Term(0), progress) if self._failures else None
        saved = float(self._layout.checkpoint.clock)
        safe, outcome = WorkDone(saved, Unit.STEP), Outcome.RUNNING
        if self._store.product() is not None:
            outcome = Outcome.DONE
        elif self._store.stopped() == self._layout.coordinator:
            outcome = Outcome.WAITING
        progress = JobProgress(safe, safe, self._failures, outcome, loss=self._loss(), failure=self._failure)
        return ProgressObserved(Term(self._layout.coordinator), progress)

    def _count_failures(self) -> None:
        failures = self._store.failures(self._failures)
        if failures > self._failures:
            newest = self._store.failure(failures)
            self._failures, self._failure = (
                failures,
                "" if newest is None else newest.message.strip().partition("\n")[0],
            )

    def _loss(self) -> float | None:
        """Return the training loss: that with which training ends, or else the newest that its coordinator has written."""
        if self._layout is not None and self._layout.reached is not None:
            return self._layout.reached.loss
        status = self._store.status()
        return None if status is None else status.loss

    def declare_gone(self, machine_id: str) -> None:
        """Do nothing: the coordinator knows within two seconds that a machine is silent."""

    def stop(self, *, now: bool, reason: str) -> None:
        """Ask the coordinator for a checkpoint, after which training rests."""
        del now, reason
        self._layout = self._store.newest_layout(self._layout)
        if self._layout is not None:
            self._store.ask_to_stop(self._layout.coordinator)


def open_runtime(job: Job, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> TierWatch:
    """Open the runtime of a job.

    Args:
        job: the job.
        store: of its run.
        clock: time.
        new_nonce: returns a random name.
    """
    del job, clock, new_nonce
    return TierWatch(TierLog(store))
