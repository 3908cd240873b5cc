"""The dispatcher's table: which runner has which item, and what became of it.

The table is a fold of the dispatcher's records, and nothing else changes it: `item_decisions.decide` looks at it and at what
runners report, and returns the next record; once that record is in the log, `ItemTable.apply` takes it in.  A dispatcher that
starts again applies all records and continues; of two dispatchers only one creates the next record, so the other one stops.

The reduce step of a bag is one more item, which waits only once all others are over and counts for nothing else.

An item costs some ten bytes here, so that a bag may have millions; rows and results are not kept.
"""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeVar

from windfall.bags import (
    Bag,
    ItemEnd,
    ItemLease,
    ItemOutcome,
    ItemRecord,
    ItemRecovery,
    ItemRecoveryAction,
    ItemState,
    KeptRunnerState,
    LeaseEnd,
    MetricCurve,
    SizedItem,
    TableState,
    Value,
)
from windfall.core.sized_items import SizedItems
from windfall.structs import Struct

CLIENT_LOST = "its client was not heard of"
"""Why a bag is over whose client was silent for too long."""
CURVES_KEPT = 64
"""With this number of curves of done items a running one is compared: their median is known to a sixth of the spread of the
items, 1.25 / sqrt(64), and a state, which has them all, stays below 100 kB however many items a bag has."""
_ROUNDING = 1e-12
_Number = TypeVar("_Number", int, float)
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
        order: all items, in the order in which they run; those that are added later run after them.
        weights: how much each item counts towards the share that must be done; empty if all count the same.

    Attributes:
        items: how many there are by now.
        sealed: none are added any more.
        number: of the newest record.
        closed: the bag is over.
        reason: why.
        retried: requests to run the failed items again that were taken in.
        rounds: how often it was over and was opened again for its failed items.
        runners: by name.
        carried: how many items an earlier run of the bag had done.
        reducing: why the items are over, while the reduce step waits or runs, and after it; empty before, or without one.
        converged: why `Bag.stop_when` has ended the bag; empty if it has not.
        dropped: items that were discarded after a preemption, oldest first, while the bag is not over.
        metrics: of `Bag.stop_when`, of the items that are done, in the order in which they ended.
        timed, timed_s: items whose time is measured, those that needed one try on the processors that they want, and how
            long they took together [s].
        sized: items that wait or run on fewer processors.
        verdicts: why items in runners' hands are stopped, by item; a verdict ends with its lease.
        curves: of `Bag.stop_item`, of the items that were done last, oldest first.
        rule_problem: why the function of `Bag.stop_item` cannot be asked; empty if it can.
    """

    def __init__(self, bag: Bag, order: Sequence[int], weights: Sequence[float] = ()) -> None:
        self.bag = bag
        self.items, self.sealed = bag.items, not bag.grows
        self._starts: list[int] = []
        self.number = 0
        self.closed = False
        self.reason = ""
        self.retried: set[str] = set()
        self.rounds = 0
        self.runners: dict[str, KeptRunner] = {}
        self.carried = 0
        self.reducing = self.converged = ""
        self.dropped: dict[int, None] = {}
        self.metrics = array("d")
        self.verdicts: dict[int, str] = {}
        self.curves: deque[MetricCurve] = deque(maxlen=CURVES_KEPT)
        self.rule_problem = ""
        self.timed, self.timed_s = 0, 0.0
        self.sized = SizedItems()
        self._weights = weights
        self._weight_in = [math.fsum(weights), *[0.0] * (len(_STATES) - 1)]
        self._order, self._fresh = order, 0
        self._returned: deque[int] = deque()
        self._last: deque[int] = deque()
        length = bag.items + (bag.reduce is not None)
        self._states = bytearray(length)
        self._numbers = array("I", bytes(4 * length))
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
    def reduce_failed(self) -> bool:
        """Whether the bag is over because its reduce step failed."""
        return bool(self.reducing) and self._states[self.bag.reduce_item] == _FAILED

    @property
    def queued(self) -> int:
        """How many leases could be given now: the items that wait, or the reduce step."""
        return self._counts[_QUEUED] + (bool(self.reducing) and self._states[self.bag.reduce_item] == _QUEUED)

    @property
    def is_idle(self) -> bool:
        """Whether no runner has anything in its hands."""
        return not any(kept.leases for kept in self.runners.values())

    @property
    def added(self) -> int:
        """How many of the client's objects are taken in."""
        return len(self._starts)

    @property
    def succeeded(self) -> bool:
        """Whether enough items are done, and the reduce step too if there is one; all that a client asked for."""
        if self.bag.grows:
            return self.sealed and self.reason != CLIENT_LOST
        reduced = self.bag.reduce is None or self._states[self.bag.reduce_item] == _DONE
        return reduced and (self.is_enough() or bool(self.converged))

    def is_enough(self, outcomes: Sequence[tuple[str, ItemOutcome]] = ()) -> bool:
        """Return whether enough items are done, with these outcomes."""
        done = [outcome.lease.item for _, outcome in outcomes if outcome.end.is_done]
        if not self._weights:
            return self.counts.done + len(done) >= self.bag.must_finish
        weight = self._weight_in[_DONE] + math.fsum(self._weights[item] for item in done)
        return weight >= self.bag.finish * math.fsum(self._weights) * (1.0 - _ROUNDING)

    def weight(self, item: int) -> float:
        """Return how much an item counts towards the share that must be done."""
        return self._weights[item] if self._weights else 1.0

    def weight_in(self, *states: ItemState) -> float:
        """Return how much the items in some states count together."""
        return math.fsum((self._weight_in if self._weights else self._counts)[_CODES[state]] for state in states)

    def place(self, item: int) -> tuple[int, int]:
        """Return which object has an item's row, from 0, and the place of the row in it."""
        if not self.bag.grows:
            return divmod(item, self.bag.rows_each)
        part = bisect_right(self._starts, item) - 1
        return part, item - self._starts[part]

    def state(self, item: int) -> ItemState:
        """Return the state of an item."""
        return _STATES[self._states[item]]

    def lease(self, item: int) -> ItemLease:
        """Return the newest lease of an item; its number is 0 if it never had one."""
        return ItemLease(item, self._numbers[item])

    def is_newest(self, lease: ItemLease) -> bool:
        """Return whether a lease is that of an item in a runner's hands, the reduce step not counted."""
        if not 0 <= lease.item < self.items:
            return False
        return self._states[lease.item] == _LEASED and self._numbers[lease.item] == lease.number

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
        """Yield the queued items in the order in which they run: those that came back first, what may not be needed last."""
        sized = (one.item for one in self.sized)
        fresh = (self._in_order(place) for place in range(self._fresh, self.items))
        # One that was cancelled, or that an earlier run has done, keeps its place in line and is passed over.
        yield from (item for item in chain(sized, self._returned, fresh, self._last) if self._states[item] == _QUEUED)

    def next_fresh(self) -> int | None:
        """Return the next item that has not run; None if none is left, or others come before it."""
        item = next(self.waiting(), None)
        return None if item is None or self._numbers[item] or item in self.sized else item

    def _in_order(self, place: int) -> int:
        return self._order[place] if place < self.bag.items else place

    def fails_for_good(self, outcome: ItemOutcome) -> bool:
        """Return whether an item that failed so is not tried again; the reduce step never is.

        One that fails on fewer processors than it wants is tried again on those, and that is not counted.
        """
        if outcome.lease.item == self.bag.reduce_item:
            return True
        if self._is_retried_freely(outcome) or outcome.cpus is not None:
            return False
        return self._failures.get(outcome.lease.item, 0) >= self.bag.retries_max

    # ------------------------------------------------------------------------------------------------- kept between starts

    def keep(self) -> TableState:
        """Return all that `restore` needs."""
        runners = tuple(
            KeptRunnerState(runner, kept.machine_id, kept.left, tuple(kept.leases.items()))
            for runner, kept in self.runners.items()
        )
        return TableState(
            self.number,
            self.closed,
            self.reason,
            self._fresh,
            tuple(self._returned),
            zlib.compress(bytes(self._states), 1),
            zlib.compress(_low_first(self._numbers).tobytes(), 1),
            tuple(self._failures.items()),
            runners,
            tuple(sorted(self.retried)),
            self.rounds,
            self.carried,
            self.reducing,
            tuple(self._starts),
            self.sealed,
            tuple(self._last),
            tuple(self.dropped),
            self.timed,
            self.timed_s,
            zlib.compress(_low_first(self.metrics).tobytes(), 1),
            self.converged,
            tuple(self.sized),
            self.sized.times(),
            tuple(self.verdicts.items()),
            tuple(self.curves),
            self.rule_problem,
        )

    def restore(self, state: TableState) -> None:
        """Be as after the records of a state; this table must have applied none.

        Raises:
            ValueError: it is the state of another bag; the table is unchanged.
        """
        try:
            states, numbers = bytearray(zlib.decompress(state.states)), array("I", zlib.decompress(state.numbers))
            metrics = array("d", zlib.decompress(state.metrics))
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(states) != len(numbers) or (len(states) != len(self._states) and not self.bag.grows):
            raise ValueError(f"it has {len(states)} items, not {len(self._states)}")
        self.number, self.closed, self.reason = state.number, state.closed, state.reason
        self._fresh, self._returned = state.fresh, deque(state.returned)
        self._states, self._numbers, self._failures = states, _low_first(numbers), dict(state.failures)
        if self.bag.grows:
            self.items = len(states)
        self._starts, self.sealed = list(state.starts), state.sealed
        self._counts = [states[: self.items].count(code) for code in range(len(_STATES))]
        self.retried, self.rounds = set(state.retried), state.rounds
        self.carried, self.reducing = state.carried, state.reducing
        self._last, self.dropped = deque(state.last), dict.fromkeys(state.dropped)
        self.timed, self.timed_s = state.timed, state.timed_s
        self.metrics, self.converged = _low_first(metrics), state.converged
        self.sized.restore(state.sized, state.sizes)
        self.verdicts, self.rule_problem = dict(state.verdicts), state.rule_problem
        self.curves.extend(state.curves)
        if self._weights:
            self._weight_in = [
                math.fsum(self._weights[item] for item in range(self.bag.items) if states[item] == code)
                for code in range(len(_STATES))
            ]
        for one in state.runners:
            kept = self.runners[one.runner] = KeptRunner(one.machine_id)
            kept.left, kept.leases = one.left, dict(one.leases)

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
        self._grow(record)
        # Leases first: they were decided before the items that come back with this record could wait.
        for leased in record.leased:
            for item in leased.items:
                self._take(leased.runner, item)
        for runner, outcome in record.outcomes:
            self._end(runner, outcome.lease, self._after(outcome))
        self._queue(record)
        for runner in record.left:
            self.runners[runner].left = True
        self.converged = self.converged or record.converged
        self.verdicts |= {one.lease.item: one.reason for one in record.stopped}
        self.rule_problem = self.rule_problem or record.rule_problem
        if record.reducing:
            self.reducing = record.reducing
            self._discard_waiting()
            self._returned.append(self.bag.reduce_item)
        if record.retried:
            self._retry(record.retried)
        if record.closed:
            self.closed, self.reason = True, record.reason
            self._discard_waiting()

    def _queue(self, record: ItemRecord) -> None:
        """Let items wait, each in its line."""
        for trial in record.trials:
            self._try(trial)
        chosen = {one.item: one for one in record.recovered}
        for ended in record.ended:
            self._give_up(ended, chosen.get(ended.lease.item))
        for item in record.revived:
            del self.dropped[item]
            self._move(item, _DISCARDED, _QUEUED)
            self._last.append(item)

    def _carry(self, outcome: ItemOutcome) -> None:
        item = outcome.lease.item
        self._move(item, _QUEUED, _DONE)
        self._numbers[item] = outcome.lease.number
        self.carried += 1
        self._measure(outcome)

    def _grow(self, record: ItemRecord) -> None:
        for count in record.added:
            self._starts.append(self.items)
            self.items += count
            self._counts[_QUEUED] += count
            self._states.extend(bytes(count))
            self._numbers.frombytes(bytes(self._numbers.itemsize * count))
        for item in record.cancelled:
            self._move(item, _QUEUED, _DISCARDED)
        self.sealed = self.sealed or record.sealed

    def _after(self, outcome: ItemOutcome) -> int:
        """Count a failure, and return the state after an outcome."""
        if outcome.end.is_done:
            self._measure(outcome)
            return _DONE
        if self.fails_for_good(outcome):
            return _FAILED
        self.sized.remove(outcome.lease.item)
        if not self._is_retried_freely(outcome) and outcome.cpus is None:
            self._failures[outcome.lease.item] = self._failures.get(outcome.lease.item, 0) + 1
        return _QUEUED

    def _measure(self, outcome: ItemOutcome) -> None:
        """Take in how long an item that is done took, its metric and its curve."""
        rule = self.bag.stop_when
        if outcome.lease.item == self.bag.reduce_item:
            return
        # One that was stopped does not say how long an item takes, nor how those fare that run to their end.
        if outcome.end is ItemEnd.DONE and outcome.curve:
            self.curves.append(outcome.curve)
        if outcome.end is ItemEnd.DONE:
            self.sized.measure(outcome)
        if outcome.end is ItemEnd.DONE and outcome.lease.number == 1 and outcome.cpus is None:
            self.timed, self.timed_s = self.timed + 1, self.timed_s + outcome.run_s
        if rule is not None and (value := number_of(outcome.values.get(rule.metric))) is not None:
            self.metrics.append(value)

    def _is_retried_freely(self, outcome: ItemOutcome) -> bool:
        return outcome.end is ItemEnd.FAILED and outcome.exit_code in self.bag.retry_codes

    def _try(self, one: SizedItem) -> None:
        """Let the next item that has not run wait to run on fewer processors."""
        self._pass_over()
        if self._fresh == self.items or self._in_order(self._fresh) != one.item:
            raise ValueError(f"item {one.item} is not the next one that has not run")
        self._fresh += 1
        self.sized.add(one)

    def _give_up(self, ended: LeaseEnd, chosen: ItemRecovery | None) -> None:
        """Let an item wait again, or not, whose lease ended without an outcome; one that has not run waits as before."""
        item, action = ended.lease.item, None if chosen is None else chosen.action
        if chosen is not None:
            self.sized.remove(item)
            if chosen.cpus is not None:
                self.sized.add(SizedItem(item, chosen.cpus))
        drops = action is ItemRecoveryAction.DISCARD
        self._end(ended.runner, ended.lease, _DISCARDED if drops or ended.end is ItemEnd.DISCARDED else _QUEUED)
        if drops:
            self.dropped[item] = None
        elif action is ItemRecoveryAction.LAST:
            self._last.append(self._returned.pop())

    def _end(self, runner: str, lease: ItemLease, after: int) -> None:
        if not self.holds(runner, lease):
            raise ValueError(f"{runner} does not have item {lease.item} under number {lease.number}")
        del self.runners[runner].leases[lease.item]
        self.verdicts.pop(lease.item, None)
        self._move(lease.item, _LEASED, after)
        if after == _QUEUED and lease.item not in self.sized:
            self._returned.append(lease.item)

    def _take(self, runner: str, item: int) -> None:
        self._pass_over()
        if item in self.sized:
            pass  # it has its own line
        elif self._returned and self._returned[0] == item:
            self._returned.popleft()
        elif not self._returned and self._fresh < self.items and self._in_order(self._fresh) == item:
            self._fresh += 1
        elif not self._returned and self._fresh == self.items and self._last and self._last[0] == item:
            self._last.popleft()
        else:
            raise ValueError(f"item {item} is not the next one that waits")
        self._move(item, _QUEUED, _LEASED)
        self._numbers[item] += 1
        self.runners[runner].leases[item] = self.number

    def _pass_over(self) -> None:
        """Let the next ones in line be items that wait."""
        while self._returned and self._states[self._returned[0]] != _QUEUED:
            self._returned.popleft()
        while self._last and self._states[self._last[0]] != _QUEUED:
            self._last.popleft()
        while self._fresh < self.items and self._states[self._in_order(self._fresh)] != _QUEUED:
            self._fresh += 1

    def _discard_waiting(self) -> None:
        for item in tuple(self.waiting()):
            self._move(item, _QUEUED, _DISCARDED)
        self._returned.clear()
        self._last.clear()
        self.dropped.clear()
        self._fresh = self.items

    def _retry(self, requests: Sequence[str]) -> None:
        """Let the items that have failed wait again, as if they had never failed; the reduce step runs after them."""
        self.retried.update(requests)
        failed = [item for item in range(self.items) if self._states[item] == _FAILED]
        if not failed and not self.reduce_failed:
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
        if after not in (_QUEUED, _LEASED):
            self.sized.remove(item)
        if item == self.bag.reduce_item:
            return
        if self._weights:
            self._weight_in[before] -= self._weights[item]
            self._weight_in[after] += self._weights[item]
        self._counts[before] -= 1
        self._counts[after] += 1


def number_of(value: Value | None) -> float | None:
    """Return a result as a number; None if it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _low_first(numbers: array[_Number]) -> array[_Number]:
    """Return numbers with their low byte first, or back."""
    if sys.byteorder == "little":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped
