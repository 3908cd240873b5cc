"""The dispatcher of a bag: reads what runners report, appends a record to the bag's log, and writes what runners get.

It keeps nothing that it could not read again: killed at any moment, the next one reads the newest state, folds the records
after it and continues.  A state is written every `STATE_EVERY` records; one that is damaged, or is not there, costs time only.
Two dispatchers that do not know of each other do no harm: only one of them creates the next record, and the other one takes
that record in.

A turn is a step function (`ports.Steps`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from array import array
from collections.abc import Callable, Collection, Sequence

from windfall.bags import (
    AddedItems,
    Bag,
    GrantedItem,
    ItemGrant,
    ItemLease,
    ItemRecord,
    MetricCurve,
    RunnerReport,
    StoppedLease,
    Value,
)
from windfall.core import item_decisions
from windfall.core.item_decisions import DispatcherView
from windfall.core.item_table import ItemTable
from windfall.errors import LogDamaged
from windfall.fleet import FleetFacts
from windfall.ports import Clock, Steps
from windfall.storage.store_operations import create, delete_all, get, get_all, keys_under, put
from windfall.structs import replace
from windfall.terms import Instant, Seconds
from windfall.wire import bag_layout, restart_layout

AGAIN_S = 5.0
"""A grant that a runner has not read after this time is written again: an older one may have overwritten it [s]."""
REQUESTS_S = 2.0
"""How often requests of users are looked for [s]."""
STATE_EVERY = 256
"""A state is written after this many records: that is about how many a dispatcher reads when it starts again."""
STATES_KEPT = 2
LOOK_S = 5.0
"""Between two looks for the heartbeat of a bag's client, at most so much counts as its silence [s]."""
RECORDS_AT_ONCE = 16
"""How many records are read together."""


def order_of(bag: Bag) -> Sequence[int]:
    """Return the items in the order in which they run: by chance, so that what is done by any moment is an even sample.

    Source:
        SciSpot, draft 2019, section 4.1.
    """
    items = array("I", range(bag.items))
    if bag.shuffled:
        random.Random(bag.seed).shuffle(items)  # noqa: S311 - an order, not a secret
    return items


def read_records(after: int) -> Steps[list[ItemRecord]]:
    """Return the records of a bag's log after a number, in order.

    Raises:
        NewerFormat: one was written by a newer Windfall.
        LogDamaged: one cannot be read.
    """
    found: list[ItemRecord] = []
    while some := (yield from read_some_records(after + len(found))):
        found += some
    return found


def read_some_records(after: int) -> Steps[list[ItemRecord]]:
    """Return the next records after a number, at most `RECORDS_AT_ONCE`; raises as `read_records`."""
    keys = [bag_layout.item_record_key(number) for number in range(after + 1, after + 1 + RECORDS_AT_ONCE)]
    found = zip(keys, (yield from get_all(keys)), strict=True)
    return [_record(key, data) for key, data in itertools.takewhile(lambda one: one[1] is not None, found) if data]


def _record(key: str, data: bytes) -> ItemRecord:
    try:
        return bag_layout.record_from_bytes(data)
    except ValueError as error:
        raise LogDamaged(
            f"{key} is not a record of a bag ({error}): check what else writes to this location"
        ) from error


def read_rows(keys: Sequence[str]) -> Steps[list[tuple[tuple[Value, ...], ...]]]:
    """Return parts of the rows.

    Raises:
        NewerFormat: one was written by a newer Windfall.
        LogDamaged: one is missing, or cannot be read.
    """
    found: list[tuple[tuple[Value, ...], ...]] = []
    for key, data in zip(keys, (yield from get_all(keys)), strict=True):
        if data is None:
            raise LogDamaged(f"{key} is not there: the rows of the bag are incomplete")
        try:
            found.append(bag_layout.rows_from_bytes(data))
        except ValueError as error:
            raise LogDamaged(f"{key} has no rows of a bag ({error})") from error
    return found


def read_part(bag: Bag, part: int) -> Steps[tuple[tuple[Value, ...], ...]]:
    """Return the rows of the part with a number, also of a bag that grows; raises as `read_rows`."""
    if not bag.grows:
        (rows,) = yield from read_rows([bag.rows[part]])
        return rows
    key = bag_layout.added_items_key(part + 1)
    data = yield from get(key)
    if data is None:
        raise LogDamaged(f"{key} is not there: the items of the bag are incomplete")
    return _added(key, data).rows


def read_weights(bag: Bag) -> Steps[Sequence[float]]:
    """Return the weight of each item, for a bag that has weights; raises as `read_rows`."""
    assert bag.weight is not None
    place, found = bag.parameters.index(bag.weight), array("d")
    for key in bag.rows:
        (rows,) = yield from read_rows([key])
        found.extend(float(row[place]) for row in rows)
    return found


def open_table(bag: Bag) -> Steps[ItemTable]:
    """Return the table of a bag before its first record; raises as `read_rows`."""
    weights = () if bag.weight is None else (yield from read_weights(bag))
    return ItemTable(bag, order_of(bag), weights)


def _added(key: str, data: bytes) -> AddedItems:
    try:
        return bag_layout.added_from_bytes(data)
    except ValueError as error:
        raise LogDamaged(f"{key} has no items of a bag ({error})") from error


class ItemDispatcher:
    """The dispatcher; one turn at a time.

    Args:
        clock: time.
        bag: what is to be done.
        new_nonce: returns a random name.
        state_every: after how many records a state is written.

    Attributes:
        fleet: what machines cost and how they are lost; None if that is not known.
    """

    def __init__(self, clock: Clock, bag: Bag, new_nonce: Callable[[], str], *, state_every: int = STATE_EVERY) -> None:
        self._clock, self._new_nonce, self._state_every = clock, new_nonce, state_every
        self._states: list[str] | None = None
        self._kept_at = 0
        self.table = ItemTable(bag, order_of(bag))
        self._current = self._weighed = self._cleaned = False
        self._reports: dict[str, RunnerReport] = {}
        self._requests: list[str] = []
        self._requests_at = Instant(-math.inf)
        self._changed_at: dict[str, Instant] = {}
        self._answered: dict[str, int] = {}
        self._granted: dict[str, tuple[ItemGrant, Instant]] = {}
        self._rows: dict[int, tuple[tuple[Value, ...], ...]] = {}
        self._heartbeat: bytes | None = None
        self._silent_s, self._looked_at = 0.0, clock.now()
        self._ran_s: dict[ItemLease, Seconds] = {}
        self._curves: dict[ItemLease, MetricCurve] = {}
        self.fleet: FleetFacts | None = None

    def turn(self, *, gone: Collection[str] = (), stopping: bool = False) -> Steps[None]:
        """Do what is due; after an error, the next turn continues.

        Args:
            gone: machines that no longer exist.
            stopping: lease nothing more, and tell runners to leave.

        Raises:
            NewerFormat, LogDamaged: the log or the rows cannot be read.
        """
        if self.table.bag.weight is not None and not self._weighed:
            self.table = yield from open_table(self.table.bag)
            self._weighed = True
        if not self._current:
            yield from self._take_in()
        if self.table.bag.grows:
            yield from self._grow()
        yield from self._read_reports()
        if any(report.grant > self.table.number for report in self._reports.values()):
            # Another dispatcher has written what these runners have; by this table they would have nothing.
            yield from self._take_in()
        yield from self._read_requests()
        now, wall_time = self._clock.now(), self._clock.wall_time()
        view = DispatcherView(
            now,
            wall_time,
            self._reports,
            self._changed_at,
            gone,
            stopping,
            self._requests,
            self._ran_s,
            fleet=self.fleet,
            curves=self._curves,
            judged=self._answered,
        )
        nonce = self._new_nonce()
        record = item_decisions.decide(self.table, view, nonce)
        if record is not None and record.recovered:
            # What is saved of an item is read only when it is decided on.
            saved_s = yield from self._saved_s({one.item for one in record.recovered})
            record = item_decisions.decide(self.table, replace(view, saved_s=saved_s), nonce)
        if record is None or ((yield from self._append(record)) and record.answers):
            self._answered = {runner: report.sequence for runner, report in self._reports.items()}
        yield from self._write_grants(stopping=stopping)
        if self.table.closed and not self._cleaned:
            yield from self._delete_saves()

        if self.table.number - self._kept_at >= self._state_every:
            yield from self._keep_state()

    def _saved_s(self, items: Collection[int]) -> Steps[dict[int, Seconds]]:
        """Return how much of the work of each item is saved, where some is [s]."""
        newest: dict[int, str] = {}
        for key in sorted((yield from keys_under(restart_layout.RESTART))):
            item = restart_layout.item_of_save(key)
            if item in items:
                newest[item] = key
        found = {}
        for item, data in zip(newest, (yield from get_all(list(newest.values()))), strict=True):
            with contextlib.suppress(ValueError):
                if data is not None:
                    found[item] = restart_layout.save_from_bytes(data).work_s
        return found

    def _delete_saves(self) -> Steps[None]:
        """Delete what is left of items' saves: of those that were given up, and by runners that were lost."""
        yield from delete_all((yield from keys_under(restart_layout.RESTART)))
        self._cleaned = True

    def _take_in(self) -> Steps[None]:
        if self._states is None:
            yield from self._restore()
        for record in (yield from read_records(self.table.number)):
            self.table.apply(record)
        self._current = True

    def _restore(self) -> Steps[None]:
        """Start from the newest state that can be read; from the first record if none can."""
        keys = sorted((yield from keys_under(bag_layout.STATES)))
        for key in reversed(keys):
            data = yield from get(key)
            with contextlib.suppress(ValueError):
                if data is not None:
                    self.table.restore(bag_layout.state_from_bytes(data))
                    break
        self._states, self._kept_at = keys, self.table.number

    def _keep_state(self) -> Steps[None]:
        key = bag_layout.state_key(self.table.number)
        yield from put(key, bag_layout.state_to_bytes(self.table.keep()))
        self._kept_at = self.table.number
        known = [*(self._states or ()), key]
        self._states = known[-STATES_KEPT:]
        yield from delete_all(known[:-STATES_KEPT])

    def _grow(self) -> Steps[None]:
        """Append what the client has asked for since the last turn."""
        if self.table.closed:
            return
        now, heartbeat = self._clock.now(), (yield from get(bag_layout.CLIENT))
        # While the store or this process was away, the client may have been there unseen.
        self._silent_s += min(now - self._looked_at, LOOK_S)
        if heartbeat != self._heartbeat:
            self._heartbeat, self._silent_s = heartbeat, 0.0
        self._looked_at = now
        lost = self._silent_s > self.table.bag.client_silent_s
        asked = yield from self._read_added(self.table.added + 1)
        record = item_decisions.grow(self.table, asked, self._clock.wall_time(), self._new_nonce(), client_lost=lost)
        if record is not None:
            yield from self._append(record)

    def _read_added(self, first: int) -> Steps[list[AddedItems]]:
        """Return the client's objects from a number on; one is looked for, more only if that is there."""
        found: list[AddedItems] = []
        count = 1
        while True:
            keys = [bag_layout.added_items_key(first + len(found) + place) for place in range(count)]
            for key, data in zip(keys, (yield from get_all(keys)), strict=True):
                if data is None:
                    return found
                found.append(_added(key, data))
                self._rows[first + len(found) - 2] = found[-1].rows
            count = RECORDS_AT_ONCE

    def _read_reports(self) -> Steps[None]:
        known = self.table.runners
        runners = [
            runner
            for runner in bag_layout.runners_in((yield from keys_under(bag_layout.RUNNERS)))
            if runner not in known or not known[runner].left or runner not in self._granted
        ]
        found = yield from get_all([bag_layout.runner_report_key(runner) for runner in runners])
        now = self._clock.now()
        for runner, data in zip(runners, found, strict=True):
            try:
                report = None if data is None else bag_layout.report_from_bytes(data)
            except ValueError:
                continue
            before = self._reports.get(runner)
            if report is not None and report.runner == runner and (before is None or before.sequence < report.sequence):
                self._reports[runner], self._changed_at[runner] = report, now
                self._ran_s |= zip(report.holds, report.ran_s, strict=False)
                self._curves |= zip(report.holds, report.curves, strict=False)
        self._curves = {lease: curve for lease, curve in self._curves.items() if self.table.is_newest(lease)}
        self._ran_s = {lease: ran_s for lease, ran_s in self._ran_s.items() if self.table.is_newest(lease)}
        for runner in known:
            # One that this dispatcher never heard has its time from now on.
            self._changed_at.setdefault(runner, now)

    def _read_requests(self) -> Steps[None]:
        now = self._clock.now()
        if now - self._requests_at >= REQUESTS_S:
            self._requests = bag_layout.requests_in((yield from keys_under(bag_layout.REQUESTS)))
            self._requests_at = now

    def _append(self, record: ItemRecord) -> Steps[bool]:
        """Append a record and return True; if one is there, take that in, return False, and decide again at the next turn."""
        key = bag_layout.item_record_key(record.number)
        self._current = False
        made = yield from create(key, bag_layout.record_to_bytes(record))
        if made:
            self.table.apply(record)
            self._current = True
        else:
            # It may be this one all the same, by a call whose answer was lost.
            yield from self._take_in()
        return made

    def _write_grants(self, *, stopping: bool) -> Steps[None]:
        now = self._clock.now()
        for runner, report in self._reports.items():
            if runner not in self.table.runners:
                continue
            grant = yield from self._grant(runner, stopping=stopping)
            last, at = self._granted.get(runner, (None, now))
            unread = last is not None and report.grant < last.number and now - at >= AGAIN_S
            if last is None or unread or _has_news(last, grant, report):
                yield from put(bag_layout.grant_key(runner), bag_layout.grant_to_bytes(grant))
                self._granted[runner] = grant, now

    def _grant(self, runner: str, *, stopping: bool) -> Steps[ItemGrant]:
        leave = self.table.runners[runner].left or stopping
        leases = self.table.leases(runner)
        bag, place, sized = self.table.bag, self.table.place, self.table.sized
        yield from self._read_rows({place(lease.item)[0] for lease in leases if lease.item != bag.reduce_item})
        items = tuple(
            GrantedItem(lease, () if lease.item == bag.reduce_item else self._row(lease.item), sized.cpus(lease.item))
            for lease in leases
        )
        held = [lease for lease in leases if lease.item in self.table.verdicts]
        stops = tuple(StoppedLease(lease, self.table.verdicts[lease.item]) for lease in held)
        return ItemGrant(
            runner, self.table.number, self._answered.get(runner, 0), items, self.table.closed, leave, stops
        )

    def _row(self, item: int) -> tuple[Value, ...]:
        part, place = self.table.place(item)
        return self._rows[part][place]

    def _read_rows(self, parts: Collection[int]) -> Steps[None]:
        missing = sorted(set(parts) - self._rows.keys())
        if self.table.bag.grows:
            for part in missing:
                yield from self._read_added(part + 1)
            return
        keys = [self.table.bag.rows[part] for part in missing]
        for part, rows in zip(missing, (yield from read_rows(keys)), strict=True):
            self._rows[part] = rows


def _has_news(last: ItemGrant, grant: ItemGrant, report: RunnerReport) -> bool:
    """Return whether a grant says more than the last one: other items, an end, or that outcomes have arrived."""
    if replace(last, number=grant.number, answers=grant.answers) != grant:
        return True
    return bool(report.outcomes) and last.answers < grant.answers
