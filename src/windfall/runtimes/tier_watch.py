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
        self._failures = 0

    def progress(self) -> ProgressObserved | None:
        """Return the newest committed clock, and that of the newest checkpoint."""
        self._layout = self._store.newest_layout(self._layout)
        if self._layout is None:
            return None
        saved = float(self._layout.checkpoint.clock)
        safe, outcome = WorkDone(saved, Unit.STEP), Outcome.RUNNING
        if self._store.product() is not None:
            outcome = Outcome.DONE
        elif self._store.stopped() == self._layout.coordinator:
            outcome = Outcome.WAITING
        self._failures = self._store.failures(self._failures)
        return ProgressObserved(
            Term(self._layout.coordinator), JobProgress(safe, safe, self._failures, outcome, loss=self._loss())
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
