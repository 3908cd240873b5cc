"""The runtime `checkpoint`, as the controller sees it: one run, whose log in the store says who holds it and what is saved.

On a machine it is `windfall exec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from windfall.fleet import ProgressObserved
from windfall.jobs import Job
from windfall.ports import Clock, ObjectStore
from windfall.storage.run_log import StoreWatch
from windfall.terms import JobProgress, RunState, Step, Unit, WorkDone


class RunWatch(Protocol):
    """A run, as seen without holding it."""

    def observe(self) -> RunState | None:
        """Return the current state of the run's log; None before a machine first acquired the run."""
        ...

    def declare_gone(self, machine_id: str) -> None:
        """Record that a machine no longer exists; if it holds the run, another machine may acquire it at once."""
        ...

    def stop(self, *, now: bool, reason: str) -> None:
        """Ask the holder of the run to stop it; does nothing if no machine holds it."""
        ...


class CheckpointRuntime:
    """`ports.Runtime` over the run's log; calls come from one thread."""

    def __init__(self, watch: RunWatch) -> None:
        self._watch = watch

    def progress(self) -> ProgressObserved | None:
        """Return the newest committed step, and which machine holds the run."""
        state = self._watch.observe()
        if state is None:
            return None
        saved = max((checkpoint.step for checkpoint in state.checkpoints), default=Step(0))
        safe = WorkDone(float(saved), Unit.STEP)
        holders = () if state.holder is None else (state.holder.host,)
        return ProgressObserved(state.term, JobProgress(safe, safe, state.failures, state.outcome, holders))

    def declare_gone(self, machine_id: str) -> None:
        """Let others take the run without waiting for the lease, if this machine held it."""
        self._watch.declare_gone(machine_id)

    def stop(self, *, now: bool, reason: str) -> None:
        """Ask the holder to stop."""
        self._watch.stop(now=now, reason=reason)


def open_runtime(job: Job, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> CheckpointRuntime:
    """Open the runtime of a job.

    Args:
        job: the job.
        store: of its run.
        clock: time.
        new_nonce: returns a random name.
    """
    del job
    return CheckpointRuntime(StoreWatch(store, clock, new_nonce))
