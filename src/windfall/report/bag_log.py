"""What became of a bag's items: a view of the log in its run's store, which needs no controller.

The state of all items is the dispatcher's own table.  The newest outcome of each item is kept in a temporary file, so that
memory hardly grows with the number of items and results.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from array import array
from collections import Counter, deque

from windfall import codec
from windfall.bags import (
    Bag,
    ItemEnd,
    ItemOutcome,
    ItemRecord,
    ItemRecovery,
    ItemRecoveryAction,
    ItemState,
    StoppedLease,
    Value,
)
from windfall.core.item_table import ItemTable
from windfall.policies.layout import bag_rules
from windfall.ports import Steps
from windfall.runtimes.item_dispatcher import read_part, read_some_records
from windfall.storage.store_operations import get
from windfall.structs import Struct
from windfall.terms import WallTime
from windfall.wire import boot_data
from windfall.wire.run_layout import JOB

RATE_OVER_S = 300.0
"""The rate is that of the last five minutes [s]."""


class JobOfBag(Struct, frozen=True):
    """A bag, and the job that runs it."""

    job_id: str
    bag: Bag


def read_bag() -> Steps[JobOfBag | None]:
    """Return the bag of a run; None if the run has none, or has not started."""
    data = yield from get(JOB)
    if data is None:
        return None
    boot = boot_data.boot_from_json(json.loads(data))
    try:
        return JobOfBag(boot.job_id, bag_rules.bag_of(boot.runtime.settings))
    except ValueError:
        return None


class ItemRow(Struct, frozen=True):
    """An item.

    Attributes:
        values: its parameters.
        attempts: how often it was leased.
        outcome: the newest one in the log; None if there is none.
        machine: where that was; empty if there is none.
    """

    item: int
    values: tuple[Value, ...]
    state: ItemState
    attempts: int
    outcome: ItemOutcome | None
    machine: str


class BagLog:
    """A bag's log as far as it was read; `read` takes in what is new.

    Attributes:
        table: the state of all items.
        first, last: when its first and newest record were written, by the dispatcher's clock; None before.
        run_s: how long the items that are done ran, together [s].
        by_machine: how many items each machine has done.
        run_s_by_machine: how long they ran there, together [s].
        without_files: how many items are done of which no file was kept.
        recovered: how often each action was chosen for items that were preempted while they ran.
        stopped: how many items are done that were stopped before their end, in this run.
    """

    def __init__(self, table: ItemTable) -> None:
        bag = table.bag
        self.bag, self.table = bag, table
        self.first: WallTime | None = None
        self.last: WallTime | None = None
        self.run_s = 0.0
        self.by_machine: dict[str, int] = {}
        self.run_s_by_machine: dict[str, float] = {}
        self.without_files = self.stopped = 0
        self.recovered: Counter[ItemRecoveryAction] = Counter()
        self._done: deque[tuple[float, int]] = deque()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        weakref.finalize(self, self._file.close)
        self._places = array("q", bytes(8 * (bag.items + 1)))
        self._file.write(b"\0")
        self._rows: tuple[int, tuple[tuple[Value, ...], ...]] = (-1, ())

    def read(self) -> Steps[None]:
        """Take in the records that are new.

        Raises:
            NewerFormat, LogDamaged: one cannot be read.
        """
        while records := (yield from read_some_records(self.table.number)):
            for record in records:
                self._take(record)

    def _take(self, record: ItemRecord) -> None:
        self.table.apply(record)
        self.first = record.at if self.first is None else self.first
        self.last = record.at
        self.recovered.update(one.action for one in record.recovered)
        self._places.frombytes(bytes(8 * sum(record.added)))
        for runner, outcome in (*record.carried, *record.outcomes):
            known = self.table.runners.get(runner)
            machine = "" if known is None else known.machine_id
            self._places[outcome.lease.item] = self._file.tell()
            self._file.write(codec.encode_document(1, "kept", (machine, outcome)) + b"\n")
            self.stopped += outcome.end is ItemEnd.STOPPED and known is not None
            if outcome.end.is_done and known is not None and outcome.lease.item != self.bag.reduce_item:
                self.run_s += outcome.run_s
                self.by_machine[machine] = self.by_machine.get(machine, 0) + 1
                self.run_s_by_machine[machine] = self.run_s_by_machine.get(machine, 0.0) + outcome.run_s
                self.without_files += not outcome.files
        self._done.append((record.at, self.table.counts.done))
        while len(self._done) > 1 and self._done[1][0] < record.at - RATE_OVER_S:
            self._done.popleft()

    @property
    def must_finish(self) -> int:
        """How many items must be done: of a bag that grows, all that it has so far."""
        return self.table.items if self.bag.grows else self.bag.must_finish

    @property
    def own_done(self) -> int:
        """How many items this run has done, without those that an earlier run of the bag had done."""
        return self.table.counts.done - self.table.carried

    def rate_per_s(self, now: WallTime) -> float | None:
        """Return how many items are done in a second: over the last minutes, or all the time if the bag is over [1/s]."""
        if self.first is None or self.last is None:
            return None
        if self.table.closed:
            lasted_s = self.last - self.first
            return self.own_done / lasted_s if lasted_s > 0 else None
        at, done = max(((at, done) for at, done in self._done if at <= now - RATE_OVER_S), default=self._done[0])
        lasted_s = now - at
        return (self.table.counts.done - done) / lasted_s if lasted_s > 0 else None

    def left_s(self, now: WallTime) -> float | None:
        """Return how long the rest takes at the present rate [s]; None if that is unknown."""
        rate, counts = self.rate_per_s(now), self.table.counts
        if self.table.closed or not rate:
            return None
        needed = counts.open if self.table.rounds else min(counts.open, self.must_finish - counts.done)
        return needed / rate

    def outcome(self, item: int) -> tuple[str, ItemOutcome] | None:
        """Return the newest outcome of an item, with its machine; None if it has none."""
        place = self._places[item]
        if not place:
            return None
        self._file.flush()
        self._file.seek(place)
        line = self._file.readline()
        self._file.seek(0, os.SEEK_END)
        found: tuple[str, ItemOutcome] = codec.decode_document(
            line, "kept", tuple[str, ItemOutcome], version=1, what="a kept outcome"
        )
        return found

    def row(self, item: int) -> Steps[ItemRow]:
        """Return an item."""
        part, place = self.table.place(item)
        if self._rows[0] != part:
            self._rows = (part, (yield from read_part(self.bag, part)))
        machine, outcome = self.outcome(item) or ("", None)
        state, attempts = self.table.state(item), self.table.lease(item).number
        return ItemRow(item, self._rows[1][place], state, attempts, outcome, machine)


def outcomes_of(item: int) -> Steps[list[ItemOutcome]]:
    """Return all outcomes of an item that are in the log, oldest first."""
    found: list[ItemOutcome] = []
    number = 0
    while records := (yield from read_some_records(number)):
        number += len(records)
        found += [one for record in records for _, one in (*record.carried, *record.outcomes) if one.lease.item == item]
    return found


ItemDecision = ItemRecovery | StoppedLease | str
"""A decision on an item that was preempted, or is stopped by its metric; or why the rule of the bag cannot be asked."""


def item_decisions_in_log() -> Steps[list[tuple[WallTime, ItemDecision]]]:
    """Return the decisions on items while they ran, oldest first, each with its instant."""
    found: list[tuple[WallTime, ItemDecision]] = []
    number = 0
    while records := (yield from read_some_records(number)):
        number += len(records)
        for record in records:
            problem = (record.rule_problem,) if record.rule_problem else ()
            found += [(record.at, one) for one in (*record.recovered, *record.stopped, *problem)]
    return found
