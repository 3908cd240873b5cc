"""Bugs that a bag must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from windfall.bags import Bag, ItemEnd, ItemGrant, ItemLease, ItemOutcome, ItemRecord
from windfall.core import item_runner, item_table
from windfall.core.item_runner import ItemRunner
from windfall.core.item_table import ItemTable
from windfall.ports import Steps
from windfall.runtimes import item_dispatcher
from windfall.runtimes.item_dispatcher import ItemDispatcher
from windfall.structs import replace

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
    return ((item_table, "_lost_leases", lambda *_: iter(())),)


def _silence_is_life() -> tuple[Patch, ...]:
    """A runner that is not heard of is never taken for lost."""
    return ((item_table, "SILENT_S", math.inf),)


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
}


@contextmanager
def bug(name: str) -> Iterator[None]:
    """Plant one bug."""
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]():
            stack.enter_context(patch.object(target, attribute, wrong))
        yield
