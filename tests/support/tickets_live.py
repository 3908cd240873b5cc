"""The controller's side of the toy runtime `tickets`: the counter that the clerk keeps in the run's store."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.support import ticket_counter
from tests.support.ticket_counter import TicketCounter
from windfall.fleet import ProgressObserved
from windfall.jobs import Job
from windfall.ports import Clock, ObjectStore

COUNTER, GONE, STOP = "tickets/counter.json", "tickets/gone/", "tickets/stop"


def read(store: ObjectStore) -> TicketCounter | None:
    """Return the counter as the clerk last wrote it; None before the first clerk."""
    data = store.get(COUNTER)
    return None if data is None else msgspec.json.decode(data, type=TicketCounter)


class TicketRuntime:
    """`ports.Runtime` of a job of tickets."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def progress(self) -> ProgressObserved | None:
        """Return how many numbers are done."""
        counter = read(self._store)
        return None if counter is None else ticket_counter.observed(counter)

    def declare_gone(self, machine_id: str) -> None:
        """Tell the clerk, who takes back the machine's numbers."""
        self._store.put(f"{GONE}{machine_id}", b"")

    def stop(self, *, now: bool, reason: str) -> None:
        """Tell the clerk to hand out no more."""
        self._store.put(STOP, reason.encode())


def open_runtime(job: Job, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> TicketRuntime:
    """Open it."""
    del job, clock, new_nonce
    return TicketRuntime(store)
