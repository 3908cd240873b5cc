"""Bugs that a bag must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from windfall import codec
from windfall.bags import (
    VERSION,
    Bag,
    GrantedItem,
    ItemEnd,
    ItemGrant,
    ItemLease,
    ItemOutcome,
    ItemRecord,
    StopItem,
    TableState,
)
from windfall.core import item_decisions, item_runner, item_stops, preempted_items
from windfall.core.item_runner import ItemRunner
from windfall.core.item_table import ItemTable
from windfall.core.sized_items import SizedItems
from windfall.policies.planning import early_stopping
from windfall.policies.planning.early_stopping import MedianRule, ReportCurve, StopRule, StopVerdict
from windfall.ports import Steps
from windfall.runtimes import item_dispatcher
from windfall.runtimes.item_dispatcher import ItemDispatcher
from windfall.structs import replace
from windfall.wire import bag_layout

Patch = tuple[object, str, object]


def _old_lease_counts() -> tuple[Patch, ...]:
    """A result counts whatever the number of its lease."""

    def holds(self: ItemTable, runner: str, lease: ItemLease) -> bool:
        return any(lease.item in kept.leases for kept in self.runners.values())

    def end(self: ItemTable, runner: str, lease: ItemLease, after: int) -> None:
        owner = next((name for name, kept in self.runners.items() if lease.item in kept.leases), runner)
        _END(self, owner, replace(lease, number=self.lease(lease.item).number), after)

    return (ItemTable, "holds", holds), (ItemTable, "_end", end)


_END = ItemTable._end


def _answer_before_the_log() -> tuple[Patch, ...]:
    """A runner is told that its outcomes have arrived before they are in the log."""

    def append(self: ItemDispatcher, record: ItemRecord) -> Steps[bool]:
        self._answered = {runner: report.sequence for runner, report in self._reports.items()}
        yield from self._write_grants(stopping=False)
        return (yield from _APPEND(self, record))

    return ((ItemDispatcher, "_append", append),)


_APPEND = ItemDispatcher._append


def _answer_without_a_record() -> tuple[Patch, ...]:
    """A dispatcher that lost its record to another one answers the reports all the same."""

    def append(self: ItemDispatcher, record: ItemRecord) -> Steps[bool]:
        yield from _APPEND(self, record)
        return True

    return ((ItemDispatcher, "_append", append),)


def _lost_keeps_its_items() -> tuple[Patch, ...]:
    """What a lost machine had is not given to another one."""
    return ((item_decisions, "_lost_leases", lambda *_: iter(())),)


def _silence_is_life() -> tuple[Patch, ...]:
    """A runner that is not heard of is never taken for lost."""
    return ((item_decisions, "SILENT_S", math.inf),)


def _taken_back_unread() -> tuple[Patch, ...]:
    """What a runner does not report at once counts as given back, though it has not read that it has it."""
    return ((ItemTable, "leased_in", lambda self, runner, item: 0),)


def _tried_for_ever() -> tuple[Patch, ...]:
    """An item that fails is always tried again."""
    return ((ItemTable, "fails_for_good", lambda self, outcome: False),)


def _too_few_suffice() -> tuple[Patch, ...]:
    """A share of the items is rounded down."""
    return ((Bag, "must_finish", property(lambda self: int(self.finish * self.items * 0.9))),)


def _rest_left_open() -> tuple[Patch, ...]:
    """A bag that is over leaves items that wait."""

    return ((ItemTable, "_discard_waiting", lambda self: None),)


def _reduced_once() -> tuple[Patch, ...]:
    """A reduce step whose machine is lost does not wait again."""

    def end(self: ItemTable, runner: str, lease: ItemLease, after: int) -> None:
        _END(self, runner, lease, after)
        if lease.item == self.bag.reduce_item and self._returned:
            self._returned.pop()

    return ((ItemTable, "_end", end),)


def _run_though_done() -> tuple[Patch, ...]:
    """An item that an earlier run has done runs again."""

    def carry(self: ItemTable, outcome: ItemOutcome) -> None:
        self.carried += 1

    return ((ItemTable, "_carry", carry),)


def _weights_forgotten() -> tuple[Patch, ...]:
    """A bag with weights ends once enough items are done, whatever they weigh."""

    def is_enough(self: ItemTable, outcomes: Sequence[tuple[str, ItemOutcome]] = ()) -> bool:
        return self.counts.done + sum(one.end is ItemEnd.DONE for _, one in outcomes) >= self.bag.must_finish

    return ((ItemTable, "is_enough", is_enough),)


def _told_once() -> tuple[Patch, ...]:
    """A runner forgets an outcome once it is written, whether or not the dispatcher has read it."""
    real = ItemRunner._report

    def report(self: ItemRunner) -> list[item_runner.RunnerAction]:
        made = real(self)
        if made:
            self._outcomes.clear()
        return made

    return ((ItemRunner, "_report", report),)


def _granted_once() -> tuple[Patch, ...]:
    """A grant that is overwritten by an older one is not written again."""
    return ((item_dispatcher, "AGAIN_S", math.inf),)


def _older_grant_obeyed() -> tuple[Patch, ...]:
    """A runner obeys a grant that is older than the last one."""
    real = ItemRunner._granted

    def granted(self: ItemRunner, grant: ItemGrant) -> list[item_runner.RunnerAction]:
        self._grant = min(self._grant, grant.number - 1)
        return real(self, grant)

    return ((ItemRunner, "_granted", granted),)


def _runs_on() -> tuple[Patch, ...]:
    """A runner lets an item run that it no longer has."""
    real = ItemRunner._kill

    def kill(self: ItemRunner, ones: list[item_runner._Running], end: ItemEnd) -> list[item_runner.RunnerAction]:
        return [] if end is ItemEnd.DISCARDED else real(self, ones, end)

    return ((ItemRunner, "_kill", kill),)


def _damage_believed() -> tuple[Patch, ...]:
    """A state is believed whatever its digest."""

    def read(data: bytes) -> TableState:
        document = data.partition(b"\n")[2]
        state: TableState = codec.decode_document(document, "state", TableState, version=VERSION, what="the state")
        return state

    return ((bag_layout, "state_from_bytes", read),)


def _state_forgets_returned() -> tuple[Patch, ...]:
    """Items that came back and wait are not in the state."""
    real = ItemTable.restore

    def restore(self: ItemTable, state: TableState) -> None:
        real(self, replace(state, returned=()))

    return ((ItemTable, "restore", restore),)


def _state_alone() -> tuple[Patch, ...]:
    """A dispatcher that starts from a state takes it for the present, and does not read the records after it."""
    real = ItemDispatcher._take_in

    def take_in(self: ItemDispatcher) -> Steps[None]:
        if self._states is None:
            yield from self._restore()
        if self.table.number:
            self._current = True
        else:
            yield from real(self)

    return ((ItemDispatcher, "_take_in", take_in),)


def _rows_twice() -> tuple[Patch, ...]:
    """What the client has added last is taken in again."""
    return ((ItemTable, "added", property(lambda self: max(len(self._starts) - 1, 0))),)


def _over_before_sealed() -> tuple[Patch, ...]:
    """A bag that grows is over once all items that it has so far have ended."""
    real = item_decisions._why_over

    def why_over(table: ItemTable, outcomes: Sequence[tuple[str, ItemOutcome]], revived: Collection[int] = ()) -> str:
        sealed, table.sealed = table.sealed, table.sealed or table.items > 0
        try:
            return real(table, outcomes, revived)
        finally:
            table.sealed = sealed

    return ((item_decisions, "_why_over", why_over),)


def _waits_for_the_dead() -> tuple[Patch, ...]:
    """A client that is not heard of is waited for."""
    return ((item_dispatcher, "LOOK_S", 0.0),)


def _cancelled_runs() -> tuple[Patch, ...]:
    """An item that was cancelled while it waited is leased all the same."""

    def waiting(self: ItemTable) -> Iterator[int]:
        yield from self._returned
        yield from range(self._fresh, self.items)

    return ((ItemTable, "waiting", waiting),)


def _given_up_for_good() -> tuple[Patch, ...]:
    """What was discarded after a preemption never runs again, though others failed."""
    return ((preempted_items, "revived", lambda *_: ()),)


def _state_forgets_last() -> tuple[Patch, ...]:
    """Items that run last are not in the state."""
    real = ItemTable.restore

    def restore(self: ItemTable, state: TableState) -> None:
        real(self, replace(state, last=()))

    return ((ItemTable, "restore", restore),)


def _metric_unread() -> tuple[Patch, ...]:
    """A metric that ends the bag is not looked at."""
    return ((item_decisions, "_why_converged", lambda *_: ""),)


def _trial_answers() -> tuple[Patch, ...]:
    """The record that lets an item run on fewer processors, which takes in no outcome, answers them."""
    return ((ItemRecord, "answers", True),)


def _state_forgets_sizes() -> tuple[Patch, ...]:
    """Items that wait to run on fewer processors are not in the state."""
    real = ItemTable.restore

    def restore(self: ItemTable, state: TableState) -> None:
        real(self, replace(state, sized=()))

    return ((ItemTable, "restore", restore),)


def _verdict_before_the_log() -> tuple[Patch, ...]:
    """A runner is told what to stop before that is in the log."""

    def append(self: ItemDispatcher, record: ItemRecord) -> Steps[bool]:
        self.table.verdicts |= {one.lease.item: one.reason for one in record.stopped}
        yield from self._write_grants(stopping=False)
        return (yield from _APPEND(self, record))

    return ((ItemDispatcher, "_append", append),)


def _verdict_unsent() -> tuple[Patch, ...]:
    """What is to be stopped is not in the grant."""
    real = ItemDispatcher._grant

    def grant(self: ItemDispatcher, runner: str, *, stopping: bool) -> Steps[ItemGrant]:
        return replace((yield from real(self, runner, stopping=stopping)), stops=())

    return ((ItemDispatcher, "_grant", grant),)


def _verdict_of_the_item() -> tuple[Patch, ...]:
    """A verdict is on the item, whatever its lease."""

    def end(self: ItemTable, runner: str, lease: ItemLease, after: int) -> None:
        known = self.verdicts.get(lease.item)
        _END(self, runner, lease, after)
        if known is not None:
            self.verdicts[lease.item] = known

    return ((ItemTable, "_end", end),)


def _stopped_is_failed() -> tuple[Patch, ...]:
    """An item that was stopped waits again, as one that failed."""
    real = ItemTable._after

    def after(self: ItemTable, outcome: ItemOutcome) -> int:
        return 0 if outcome.end is ItemEnd.STOPPED else real(self, outcome)

    return ((ItemTable, "_after", after),)


def _hopeless_again() -> tuple[Patch, ...]:
    """An item that was to be stopped and lost its machine is recovered as any other."""
    return ((item_stops, "hopeless", lambda *_: ""),)


def _state_forgets_verdicts() -> tuple[Patch, ...]:
    """Verdicts are not in the state."""
    real = ItemTable.restore

    def restore(self: ItemTable, state: TableState) -> None:
        real(self, replace(state, verdicts=()))

    return ((ItemTable, "restore", restore),)


def _overfull() -> tuple[Patch, ...]:
    """A runner counts items and not their processors."""

    def next_to_start(self: ItemRunner) -> GrantedItem | None:
        room = self.identity.room
        full = len(self._running) >= (room.slots if room.items_max is None else room.items_max)
        return None if full or not self._waiting else self._waiting[0]

    return ((ItemRunner, "_next_to_start", next_to_start),)


def _size_not_granted() -> tuple[Patch, ...]:
    """A runner is not told on how many processors an item runs."""
    return ((SizedItems, "cpus", lambda self, item: None),)


def _failed_there_for_good() -> tuple[Patch, ...]:
    """An item that fails on fewer processors than it wants may fail for good."""

    def fails_for_good(self: ItemTable, outcome: ItemOutcome) -> bool:
        return _FAILS(self, replace(outcome, cpus=None))

    return ((ItemTable, "fails_for_good", fails_for_good),)


_FAILS = ItemTable.fails_for_good


def _state_forgets_curves() -> tuple[Patch, ...]:
    """Curves of items that are done are not in the state."""
    real = ItemTable.restore

    def restore(self: ItemTable, state: TableState) -> None:
        real(self, replace(state, curves=()))

    return ((ItemTable, "restore", restore),)


def _better_is_stopped() -> tuple[Patch, ...]:
    """An item is stopped if it is no worse than the median of others."""
    real = early_stopping._by_median

    def by_median(rule: MedianRule, curve: ReportCurve, done: Sequence[ReportCurve]) -> StopVerdict:
        found = real(rule, curve, done)
        return replace(found, stop=not found.stop and "median of" in found.reason)

    return ((early_stopping, "_by_median", by_median),)


def _stopped_too_early() -> tuple[Patch, ...]:
    """An item is compared with others before enough are done."""
    real = item_stops.rule_of

    def rule_of(stop: StopItem) -> StopRule | None:
        return real(replace(stop, done_min=1))

    return ((item_stops, "rule_of", rule_of),)


BUGS: dict[str, Callable[[], tuple[Patch, ...]]] = {
    "a result under an old lease counts": _old_lease_counts,
    "answered before it is in the log": _answer_before_the_log,
    "answered though another record is there": _answer_without_a_record,
    "a lost machine keeps its items": _lost_keeps_its_items,
    "silence taken for life": _silence_is_life,
    "taken back before it was read": _taken_back_unread,
    "tried for ever": _tried_for_ever,
    "too few are enough": _too_few_suffice,
    "the rest left open": _rest_left_open,
    "a lost reduce step does not run again": _reduced_once,
    "an item that was done runs again": _run_though_done,
    "weights forgotten": _weights_forgotten,
    "told once": _told_once,
    "granted once": _granted_once,
    "an older grant obeyed": _older_grant_obeyed,
    "a discarded item runs on": _runs_on,
    "a damaged state believed": _damage_believed,
    "given up for good": _given_up_for_good,
    "a state forgets what runs last": _state_forgets_last,
    "a metric that is not read": _metric_unread,
    "a state without what came back": _state_forgets_returned,
    "a state taken for the present": _state_alone,
    "rows taken in twice": _rows_twice,
    "over before it is sealed": _over_before_sealed,
    "waits for a dead client": _waits_for_the_dead,
    "a cancelled item is leased": _cancelled_runs,
    "a trial answers reports": _trial_answers,
    "a state forgets what runs on fewer": _state_forgets_sizes,
    "more processors than there are": _overfull,
    "a size that is not granted": _size_not_granted,
    "failed on fewer for good": _failed_there_for_good,
    "a verdict before it is in the log": _verdict_before_the_log,
    "a verdict that is not sent": _verdict_unsent,
    "a verdict on the next lease": _verdict_of_the_item,
    "a stopped item runs again": _stopped_is_failed,
    "a hopeless item runs again": _hopeless_again,
    "a state forgets verdicts": _state_forgets_verdicts,
    "a state forgets curves": _state_forgets_curves,
    "a better item is stopped": _better_is_stopped,
    "stopped before enough are done": _stopped_too_early,
}


@contextmanager
def bug(name: str) -> Iterator[None]:
    """Plant one bug."""
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]():
            stack.enter_context(patch.object(target, attribute, wrong))
        yield
