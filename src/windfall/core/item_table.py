"""The dispatcher's reducer: which runner has which item, and what became of it.

The table is a fold of the dispatcher's records, and nothing else changes it: `decide` looks at it and at what runners
report, and returns the next record; once that record is in the log, `ItemTable.apply` takes it in.  A dispatcher that
starts again applies all records and continues; of two dispatchers only one creates the next record, so the other one stops.

The reduce step of a bag is one more item, which waits only once all others are over and counts for nothing else.

An item costs some ten bytes here, so that a bag may have millions; rows and results are not kept.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from windfall.bags import (
    Bag,
    ItemEnd,
    ItemLease,
    ItemLeases,
    ItemOutcome,
    ItemRecord,
    ItemState,
    LeaseEnd,
    RunnerReport,
)
from windfall.structs import Struct, replace
from windfall.terms import Instant, WallTime

SILENT_S = 60.0
"""A runner whose report has not changed for so long is taken for lost [s]."""
_ROUNDING = 1e-12
_STATES = tuple(ItemState)
_CODES = {state: code for code, state in enumerate(_STATES)}
_QUEUED, _LEASED, _DONE, _FAILED, _DISCARDED = (_CODES[state] for state in ItemState)


class ItemCounts(Struct, frozen=True):
    """How many items are in each state."""

    queued: int
    leased: int
    done: int
    failed: int
    discarded: int

    @property
    def open(self) -> int:
        """Items that may still be done."""
        return self.queued + self.leased


class KeptRunner:
    """What the table knows of a runner.

    Attributes:
        leases: the newest number of each item in its hands, with the record that leased it.
        left: it gets nothing more.
    """

    __slots__ = ("leases", "left", "machine_id")

    def __init__(self, machine_id: str) -> None:
        self.machine_id = machine_id
        self.leases: dict[int, int] = {}
        self.left = False


class ItemTable:
    """The state of all items; changed by `apply` alone.

    Args:
        bag: what is to be done.
        order: all items, in the order in which they run.
        weights: how much each item counts towards the share that must be done; empty if all count the same.

    Attributes:
        number: of the newest record.
        closed: the bag is over.
        reason: why.
        retried: requests to run the failed items again that were taken in.
        rounds: how often it was over and was opened again for its failed items.
        runners: by name.
        carried: how many items an earlier run of the bag had done.
        reducing: why the items are over, while the reduce step waits or runs, and after it; empty before, or without one.
    """

    def __init__(self, bag: Bag, order: Sequence[int], weights: Sequence[float] = ()) -> None:
        self.bag = bag
        self.number = 0
        self.closed = False
        self.reason = ""
        self.retried: set[str] = set()
        self.rounds = 0
        self.runners: dict[str, KeptRunner] = {}
        self.carried = 0
        self.reducing = ""
        self._weights, self._done_weight = weights, 0.0
        self._order, self._fresh = order, 0
        self._returned: deque[int] = deque()
        length = bag.items + (bag.reduce is not None)
        self._states = bytearray(length)
        self._numbers = array("L", bytes(array("L").itemsize * length))
        self._failures: dict[int, int] = {}
        self._counts = [0] * len(_STATES)
        self._counts[_QUEUED] = bag.items

    # ---------------------------------------------------------------------------------------------------------- reading

    @property
    def counts(self) -> ItemCounts:
        """How many items are in each state."""
        return ItemCounts(*self._counts)

    @property
    def failures(self) -> int:
        """How many items failed for good."""
        return self._counts[_FAILED]

    @property
    def queued(self) -> int:
        """How many leases could be given now: the items that wait, or the reduce step."""
        return self._counts[_QUEUED] + (bool(self.reducing) and self._states[self.bag.reduce_item] == _QUEUED)

    @property
    def is_idle(self) -> bool:
        """Whether no runner has anything in its hands."""
        return not any(kept.leases for kept in self.runners.values())

    @property
    def succeeded(self) -> bool:
        """Whether enough items are done, and the reduce step too if there is one."""
        reduced = self.bag.reduce is None or self._states[self.bag.reduce_item] == _DONE
        return reduced and self.is_enough()

    def is_enough(self, outcomes: Sequence[tuple[str, ItemOutcome]] = ()) -> bool:
        """Return whether enough items are done, with these outcomes."""
        done = [outcome.lease.item for _, outcome in outcomes if outcome.end is ItemEnd.DONE]
        if not self._weights:
            return self.counts.done + len(done) >= self.bag.must_finish
        weight = self._done_weight + math.fsum(self._weights[item] for item in done)
        return weight >= self.bag.finish * math.fsum(self._weights) * (1.0 - _ROUNDING)

    def state(self, item: int) -> ItemState:
        """Return the state of an item."""
        return _STATES[self._states[item]]

    def lease(self, item: int) -> ItemLease:
        """Return the newest lease of an item; its number is 0 if it never had one."""
        return ItemLease(item, self._numbers[item])

    def holds(self, runner: str, lease: ItemLease) -> bool:
        """Return whether a lease is the newest of its item, and in this runner's hands."""
        kept = self.runners.get(runner)
        if kept is None or not 0 <= lease.item < len(self._states):
            return False
        return lease.item in kept.leases and self._numbers[lease.item] == lease.number

    def leases(self, runner: str) -> tuple[ItemLease, ...]:
        """Return what a runner has in its hands, oldest first."""
        kept = self.runners.get(runner)
        return () if kept is None else tuple(self.lease(item) for item in kept.leases)

    def leased_in(self, runner: str, item: int) -> int:
        """Return the number of the record by which a runner got the item in its hands."""
        return self.runners[runner].leases[item]

    def waiting(self) -> Iterator[int]:
        """Yield the queued items in the order in which they run: those that came back first."""
        yield from self._returned
        for place in range(self._fresh, self.bag.items):
            if self._states[self._order[place]] == _QUEUED:
                yield self._order[place]

    def fails_for_good(self, outcome: ItemOutcome) -> bool:
        """Return whether an item that failed so is not tried again; the reduce step never is."""
        if outcome.lease.item == self.bag.reduce_item:
            return True
        if self._is_retried_freely(outcome):
            return False
        return self._failures.get(outcome.lease.item, 0) >= self.bag.retries_max

    # ---------------------------------------------------------------------------------------------------------- changes

    def apply(self, record: ItemRecord) -> None:
        """Take in the next record of the log.

        Raises:
            ValueError: it is not the next one, or it contradicts those before it.
        """
        if record.number != self.number + 1:
            raise ValueError(f"record {record.number} does not follow record {self.number}")
        self.number = record.number
        for runner, machine_id in record.joined:
            self.runners[runner] = KeptRunner(machine_id)
        for _, outcome in record.carried:
            self._carry(outcome)
        # Leases first: they were decided before the items that come back with this record could wait.
        for leased in record.leased:
            for item in leased.items:
                self._take(leased.runner, item)
        for runner, outcome in record.outcomes:
            self._end(runner, outcome.lease, self._after(outcome))
        for ended in record.ended:
            after = _DISCARDED if ended.end is ItemEnd.DISCARDED else _QUEUED
            self._end(ended.runner, ended.lease, after)
        for runner in record.left:
            self.runners[runner].left = True
        if record.reducing:
            self.reducing = record.reducing
            self._discard_waiting()
            self._returned.append(self.bag.reduce_item)
        if record.retried:
            self._retry(record.retried)
        if record.closed:
            self.closed, self.reason = True, record.reason
            self._discard_waiting()

    def _carry(self, outcome: ItemOutcome) -> None:
        item = outcome.lease.item
        self._move(item, _QUEUED, _DONE)
        self._numbers[item] = outcome.lease.number
        self.carried += 1
        self._pass_carried()

    def _pass_carried(self) -> None:
        """Let the next item that was never leased be one that is not done already."""
        while self._fresh < self.bag.items and self._states[self._order[self._fresh]] != _QUEUED:
            self._fresh += 1

    def _after(self, outcome: ItemOutcome) -> int:
        """Count a failure, and return the state after an outcome."""
        if outcome.end is ItemEnd.DONE:
            return _DONE
        if self.fails_for_good(outcome):
            return _FAILED
        if not self._is_retried_freely(outcome):
            self._failures[outcome.lease.item] = self._failures.get(outcome.lease.item, 0) + 1
        return _QUEUED

    def _is_retried_freely(self, outcome: ItemOutcome) -> bool:
        return outcome.end is ItemEnd.FAILED and outcome.exit_code in self.bag.retry_codes

    def _end(self, runner: str, lease: ItemLease, after: int) -> None:
        if not self.holds(runner, lease):
            raise ValueError(f"{runner} does not have item {lease.item} under number {lease.number}")
        del self.runners[runner].leases[lease.item]
        self._move(lease.item, _LEASED, after)
        if after == _QUEUED:
            self._returned.append(lease.item)

    def _take(self, runner: str, item: int) -> None:
        if self._returned and self._returned[0] == item:
            self._returned.popleft()
        elif not self._returned and self._fresh < self.bag.items and self._order[self._fresh] == item:
            self._fresh += 1
        else:
            raise ValueError(f"item {item} is not the next one that waits")
        self._move(item, _QUEUED, _LEASED)
        self._pass_carried()
        self._numbers[item] += 1
        self.runners[runner].leases[item] = self.number

    def _discard_waiting(self) -> None:
        for item in tuple(self.waiting()):
            self._move(item, _QUEUED, _DISCARDED)
        self._returned.clear()
        self._fresh = self.bag.items

    def _retry(self, requests: Sequence[str]) -> None:
        """Let the items that have failed wait again, as if they had never failed."""
        self.retried.update(requests)
        failed = [item for item in range(self.bag.items) if self._states[item] == _FAILED]
        if not failed:
            return
        self._unreduce()
        for item in failed:
            self._move(item, _FAILED, _QUEUED)
            self._failures.pop(item, None)
        self._returned.extend(failed)
        if self.closed:
            self.closed, self.reason = False, ""
            self.rounds += 1
            # These have seen that the bag was over.
            for kept in self.runners.values():
                kept.left = True

    def _unreduce(self) -> None:
        """Let the reduce step wait for the items again; a runner that has it gives it up."""
        if not self.reducing:
            return
        self.reducing = ""
        self._states[self.bag.reduce_item] = _QUEUED
        self._returned.clear()
        for kept in self.runners.values():
            kept.leases.pop(self.bag.reduce_item, None)

    def _move(self, item: int, before: int, after: int) -> None:
        if self._states[item] != before:
            raise ValueError(f"item {item} is {self.state(item)}")
        self._states[item] = after
        if item == self.bag.reduce_item:
            return
        if after == _DONE and self._weights:
            self._done_weight += self._weights[item]
        self._counts[before] -= 1
        self._counts[after] += 1


class DispatcherView(Struct, frozen=True):
    """What a dispatcher sees beside its table.

    Attributes:
        reports: the newest report of each runner.
        changed_at: when each runner's report last changed, by the dispatcher's clock.
        gone: machines that the provider has taken back, or that were declared gone.
        stopping: nothing more is leased; what runners have, they finish or give back.
        requests: to run the failed items again, taken in or not.
    """

    now: Instant
    wall_time: WallTime
    reports: Mapping[str, RunnerReport]
    changed_at: Mapping[str, Instant]
    gone: Collection[str] = ()
    stopping: bool = False
    requests: Collection[str] = ()


def decide(table: ItemTable, view: DispatcherView, nonce: str) -> ItemRecord | None:
    """Return the next record; None if nothing changes.

    Args:
        table: not changed.
        view: what is known now.
        nonce: random.
    """
    empty = ItemRecord(table.number + 1, nonce, view.wall_time)
    if new := sorted(set(view.requests) - table.retried):
        # A record of its own: what else is due is decided with these items in the queue.
        return replace(empty, retried=tuple(new))
    if table.closed:
        return None
    lost = {runner for runner, kept in table.runners.items() if not kept.left and _is_lost(table, view, runner)}
    lost |= _followed(table, view)
    present = [
        report
        for runner, report in sorted(view.reports.items())
        if runner not in lost and report.machine_id not in view.gone and _may_work(table, runner)
    ]
    outcomes, seen = _outcomes(table, present)
    ended: list[LeaseEnd] = [*_lost_leases(table, lost, seen), *_given_back(table, present, seen)]
    left = tuple(sorted(lost | {report.runner for report in present if report.leaves}))
    record = replace(
        empty,
        joined=tuple((one.runner, one.machine_id) for one in present if one.runner not in table.runners),
        outcomes=tuple(outcomes),
        ended=tuple(ended),
        left=left,
    )
    reason = _why_reduced(outcomes, table.reducing) if table.reducing else _why_over(table, outcomes)
    if reason:
        over = seen | {one.lease.item for one in ended}
        others = tuple(one for one in _discarded(table) if one.lease.item not in over)
        record = replace(record, ended=(*ended, *others))
        if table.bag.reduce is not None and not table.reducing and table.is_enough(outcomes):
            record = replace(record, reducing=reason)
        else:
            record = replace(record, closed=True, reason=reason)
    elif not view.stopping:
        record = replace(record, leased=tuple(_leases(table, present, outcomes, ended)))
    return None if record == empty else record


def _is_lost(table: ItemTable, view: DispatcherView, runner: str) -> bool:
    if table.runners[runner].machine_id in view.gone:
        return True
    return view.now - view.changed_at.get(runner, view.now) > SILENT_S


def _followed(table: ItemTable, view: DispatcherView) -> set[str]:
    """Return the runners whose program has ended: their machines, which run one at a time, have started another since."""
    # The table has runners in the order in which they joined.
    newest = {kept.machine_id: runner for runner, kept in table.runners.items() if kept.machine_id}
    for runner, report in view.reports.items():
        if runner not in table.runners and report.machine_id:
            newest[report.machine_id] = runner
    working = ((runner, kept) for runner, kept in table.runners.items() if not kept.left and kept.machine_id)
    return {runner for runner, kept in working if newest[kept.machine_id] != runner}


def _may_work(table: ItemTable, runner: str) -> bool:
    kept = table.runners.get(runner)
    return kept is None or not kept.left


def _outcomes(table: ItemTable, present: Sequence[RunnerReport]) -> tuple[list[tuple[str, ItemOutcome]], set[int]]:
    """Return the outcomes that count, and their items."""
    found: list[tuple[str, ItemOutcome]] = []
    items: set[int] = set()
    for report in present:
        for outcome in report.outcomes:
            if table.holds(report.runner, outcome.lease) and outcome.lease.item not in items:
                found.append((report.runner, outcome))
                items.add(outcome.lease.item)
    return found, items


def _lost_leases(table: ItemTable, lost: Collection[str], seen: Collection[int]) -> Iterator[LeaseEnd]:
    for runner in sorted(lost):
        yield from (LeaseEnd(lease, ItemEnd.LOST, runner) for lease in table.leases(runner) if lease.item not in seen)


def _given_back(table: ItemTable, present: Sequence[RunnerReport], seen: Collection[int]) -> Iterator[LeaseEnd]:
    """Yield what runners no longer have, though they have read the grant with it."""
    for report in present:
        held = set(report.holds)
        for lease in table.leases(report.runner):
            granted = table.leased_in(report.runner, lease.item) <= report.grant
            if lease.item not in seen and lease not in held and (granted or report.leaves):
                yield LeaseEnd(lease, ItemEnd.RETURNED, report.runner)


def _discarded(table: ItemTable) -> Iterator[LeaseEnd]:
    for runner in table.runners:
        yield from (LeaseEnd(lease, ItemEnd.DISCARDED, runner) for lease in table.leases(runner))


_TOO_FEW = "too many items failed"


def _why_over(table: ItemTable, outcomes: Sequence[tuple[str, ItemOutcome]]) -> str:
    """Return why the bag is over after these outcomes; empty if it is not."""
    counts = table.counts
    done = counts.done + sum(one.end is ItemEnd.DONE for _, one in outcomes)
    failed = counts.failed + sum(one.end is not ItemEnd.DONE and table.fails_for_good(one) for _, one in outcomes)
    # Once it was opened again, the share that must finish does not end it: a user wants what had failed.
    is_enough = table.is_enough(outcomes)
    if (is_enough and not table.rounds) or done + failed + counts.discarded == table.bag.items:
        return ("all items are done" if done == table.bag.items else "enough items are done") if is_enough else _TOO_FEW
    return ""


def _why_reduced(outcomes: Sequence[tuple[str, ItemOutcome]], reason: str) -> str:
    """Return why the bag is over once the reduce step has ended; empty if it has not."""
    for _, outcome in outcomes:
        return reason if outcome.end is ItemEnd.DONE else f"the reduce step failed: {outcome.problem}"
    return ""


def _leases(
    table: ItemTable,
    present: Sequence[RunnerReport],
    outcomes: Sequence[tuple[str, ItemOutcome]],
    ended: Sequence[LeaseEnd],
) -> Iterator[ItemLeases]:
    """Yield what runners get: as many as each wants, but no runner more than its share of what is left.

    A runner that hoarded the last items would keep the others idle: of w waiting items it gets at most half of w times its
    share of all slots, and at least what its free slots need (guided self-scheduling: Polychronopoulos and Kuck, IEEE ToC
    C-36, 1987, with half of their share, because items do not all take the same time).
    """
    freed = {(runner, one.lease.item) for runner, one in outcomes} | {(one.runner, one.lease.item) for one in ended}
    held = {
        report.runner: sum((report.runner, lease.item) not in freed for lease in table.leases(report.runner))
        for report in present
    }
    requesting = [report for report in present if not report.leaves and report.wants > held[report.runner]]
    slots = sum(report.slots for report in present if not report.leaves)
    waiting, left = table.waiting(), table.queued
    room = left if table.bag.at_once_max is None else max(table.bag.at_once_max - sum(held.values()), 0)
    for report in requesting:
        share = -(-left * report.slots // (2 * slots))
        most = max(share, report.slots - held[report.runner])
        count = min(report.wants - held[report.runner], most, left, room)
        if count > 0:
            left, room = left - count, room - count
            yield ItemLeases(report.runner, tuple(next(waiting) for _ in range(count)))
