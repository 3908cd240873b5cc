"""The runner's calls to the store, in a thread of their own: reports with what they name, and looks for a newer grant."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from windfall.agent.item_inputs import ItemInputs
from windfall.bags import ItemGrant, ItemLease, RunnerReport, StoredItemFile, StoredOutput
from windfall.core.item_runner import GrantRead, ReportWritten, RunnerFact
from windfall.errors import StoreError
from windfall.ports import Clock, ObjectStore
from windfall.structs import Struct
from windfall.wire import bag_layout

GRANT_S = 0.1
"""The least time between two looks for a grant; as long as the last look took, times ten, where the store is slow [s]."""


class StorePorts(Struct, frozen=True):
    """What the thread depends on.

    Attributes:
        store: of the run.
        log: takes a message for the machine's output.
    """

    clock: Clock
    store: ObjectStore
    log: Callable[[str], None]


class ItemStoreThread:
    """The calls to the store, in one thread: what items printed and their files before the report that names them."""

    def __init__(self, ports: StorePorts, runner: str, inputs: ItemInputs) -> None:
        self._ports, self._runner, self._inputs = ports, runner, inputs
        self._jobs: queue.SimpleQueue[RunnerReport | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[RunnerFact] = queue.SimpleQueue()
        self.wake_fd, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._segment = 1
        self._output = bytearray()
        self._unsent: dict[str, bytes] = {}
        self._seen = b""
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the loop."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_end, b".")

    def add_output(self, printed: bytes) -> StoredOutput:
        """Add what an item printed to the segment that goes with the next report."""
        key = bag_layout.item_output_key(self._runner, self._segment)
        stored = StoredOutput(key, len(self._output), len(printed))
        self._output += printed
        return stored

    def add_file(self, lease: ItemLease, place: int, path: Path, data: bytes) -> StoredItemFile:
        """Add a file that goes with the next report."""
        key = bag_layout.item_file_key(self._runner, lease.item, lease.number, place)
        self._unsent[key] = data
        return StoredItemFile(str(path), key, len(data))

    def write(self, report: RunnerReport) -> None:
        """Write a report, after what it names."""
        if self._output:
            self._unsent[bag_layout.item_output_key(self._runner, self._segment)] = bytes(self._output)
            self._segment += 1
            self._output = bytearray()
        self._jobs.put(report)

    def results(self) -> list[RunnerFact]:
        """Return what has happened since the last call."""
        found: list[RunnerFact] = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def close(self) -> None:
        """End the thread once it has done what it was given."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        pause_s = GRANT_S
        while True:
            try:
                report = self._jobs.get(timeout=pause_s)
            except queue.Empty:
                pause_s = self._look()
                continue
            if report is None:
                return
            self._send(report)
            self._post(ReportWritten(report.sequence))

    def _send(self, report: RunnerReport) -> None:
        try:
            for key, data in tuple(self._unsent.items()):
                self._ports.store.put(key, data)
                del self._unsent[key]
            data = bag_layout.report_to_bytes(report)
            self._ports.store.put(bag_layout.runner_report_key(self._runner), data)
        except StoreError as error:
            self._ports.log(f"cannot report, trying again: {error}")

    def _look(self) -> float:
        """Look for a newer grant; return how long to wait until the next look [s]."""
        before = self._ports.clock.now()
        try:
            data = self._ports.store.get(bag_layout.grant_key(self._runner))
        except StoreError:
            return 1.0
        if data is not None and data != self._seen:
            try:
                grant: ItemGrant = bag_layout.grant_from_bytes(data)
                self._inputs.fetch(grant)
            except ValueError:
                return GRANT_S
            except StoreError as error:
                self._ports.log(f"cannot fetch what items need, trying again: {error}")
                return 1.0
            self._seen = data
            self._post(GrantRead(grant))
        return max(GRANT_S, 10.0 * (self._ports.clock.now() - before))

    def _post(self, fact: RunnerFact) -> None:
        self._results.put(fact)
        self.wake()
