"""The runtime `bag`, as the controller sees it: the dispatcher, which leases items to the runners on the job's machines."""

from __future__ import annotations

from collections.abc import Callable

from windfall import codec
from windfall.bags import Bag
from windfall.fleet import FleetFacts, MachineFacts, ProgressObserved
from windfall.jobs import Job
from windfall.ports import Clock, ObjectStore
from windfall.runtimes.item_dispatcher import ItemDispatcher
from windfall.storage import store_operations
from windfall.terms import JobProgress, Outcome, Term, Unit, WorkDone


class BagRuntime:
    """`ports.Runtime` of a bag; calls come from one thread.  Each look at the progress is a turn of the dispatcher."""

    def __init__(self, dispatcher: ItemDispatcher, store: ObjectStore, clock: Clock) -> None:
        self._dispatcher, self._store, self._clock = dispatcher, store, clock
        self._gone: set[str] = set()
        self._stopping = False
        self._runners_at_stop: int | None = None
        self._machines: dict[str, MachineFacts] = {}

    def inform(self, fleet: FleetFacts) -> None:
        """Remember what machines cost and how they are lost, those that are gone included."""
        self._machines |= fleet.machines
        self._dispatcher.fleet = FleetFacts(self._machines, fleet.time_left_s)

    def progress(self) -> ProgressObserved:
        """Let the dispatcher do what is due, and return how many items this job has done."""
        turn = self._dispatcher.turn(gone=tuple(self._gone), stopping=self._stopping)
        store_operations.run(turn, self._store, self._clock)
        self._follow_stop()
        table = self._dispatcher.table
        done = WorkDone(float(table.counts.done - table.carried), Unit.ITEM)
        # A bag that is opened again is a new term, so that its next end is not taken for its last one.
        return ProgressObserved(Term(1 + table.rounds), JobProgress(done, done, 0, self._outcome()))

    def _follow_stop(self) -> None:
        """End a stop when a runner joins after it was complete: the job was resumed."""
        runners = len(self._dispatcher.table.runners)
        if not self._stopping:
            return
        if self._runners_at_stop is None:
            self._runners_at_stop = runners if self._dispatcher.table.is_idle else None
        elif runners > self._runners_at_stop:
            self._stopping, self._runners_at_stop = False, None

    def _outcome(self) -> Outcome:
        table = self._dispatcher.table
        if table.closed:
            return Outcome.DONE if table.succeeded else Outcome.FAILED
        return Outcome.WAITING if self._stopping and table.is_idle else Outcome.RUNNING

    def declare_gone(self, machine_id: str) -> None:
        """Take back what a machine had; what it reports from now on does not count."""
        self._gone.add(machine_id)

    def stop(self, *, now: bool, reason: str) -> None:
        """Lease nothing more, and let runners leave."""
        del now, reason
        self._stopping = True


def open_runtime(job: Job, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> BagRuntime:
    """Open the runtime of a job.

    Args:
        job: the job.
        store: of its run.
        clock: time.
        new_nonce: returns a random name.
    """
    bag: Bag = codec.decode(job.runtime.settings["bag"], Bag)
    return BagRuntime(ItemDispatcher(clock, bag, new_nonce), store, clock)
