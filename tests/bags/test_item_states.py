"""A dispatcher that starts again, and a runner far from it: what storms do not ask for."""

from __future__ import annotations

import itertools

import pytest

from tests.support.simulated_store import ManualClock, MemoryStore
from windfall.bags import Bag, GrantedItem, ItemEnd, ItemGrant, ItemLease, ItemOutcome, RunnerReport, RunnerRoom
from windfall.core.item_runner import (
    ALIVE_S,
    EndAnnounced,
    GrantRead,
    ItemEnded,
    ItemRunner,
    KillItem,
    ReportWritten,
    RunnerAction,
    RunnerFact,
    RunnerIdentity,
    StartItem,
    WriteReport,
)
from windfall.core.item_table import ItemTable
from windfall.runtimes.item_dispatcher import ItemDispatcher, order_of
from windfall.storage import store_operations
from windfall.terms import Instant, Seconds, WallTime
from windfall.wire import bag_layout

ITEMS = 40


def _bag(items: int = ITEMS) -> Bag:
    return Bag(items, ("x",), ("rows",), items)


def _store() -> MemoryStore:
    store = MemoryStore()
    store.put("rows", bag_layout.rows_to_bytes([(float(item),) for item in range(ITEMS)]))
    return store


def _turn(dispatcher: ItemDispatcher, store: MemoryStore, clock: ManualClock) -> None:
    store_operations.run(dispatcher.turn(), store, clock)


def _dispatcher(clock: ManualClock, every: int) -> ItemDispatcher:
    return ItemDispatcher(clock, _bag(), lambda: "n", state_every=every)


def _done(lease: ItemLease, run_s: float = 0.05) -> ItemOutcome:
    return ItemOutcome(lease, ItemEnd.DONE, 0, WallTime(0.0), Seconds(run_s))


def _run_items(store: MemoryStore, clock: ManualClock, *, every: int, turns: int) -> ItemDispatcher:
    """Let a runner finish an item for each turn of a dispatcher."""
    dispatcher = _dispatcher(clock, every)
    for sequence in range(1, turns + 1):
        leases = dispatcher.table.leases("r")
        report = RunnerReport(
            "r", "m", sequence, 1, 2, dispatcher.table.number, leases[1:], tuple(map(_done, leases[:1]))
        )
        store.put(bag_layout.runner_report_key("r"), bag_layout.report_to_bytes(report))
        _turn(dispatcher, store, clock)
    return dispatcher


def test_a_dispatcher_that_starts_again_reads_only_the_records_after_the_newest_state() -> None:
    """The records before it are gone here, and it knows all the same what they said; two states are kept."""
    store, clock = _store(), ManualClock()
    before = _run_items(store, clock, every=4, turns=14)
    states = store.list(bag_layout.STATES)
    assert len(states) == 2
    newest = int(states[-1].rpartition("/")[2])
    assert newest < before.table.number
    for number in range(1, newest + 1):
        store.delete(bag_layout.item_record_key(number))
    again = _dispatcher(clock, 4)
    _turn(again, store, clock)
    assert again.table.keep() == before.table.keep()


def test_a_state_of_a_bag_with_other_items_is_not_taken() -> None:
    """It is an error of its own, and changes nothing, so that the log is read instead."""
    other = ItemTable(_bag(), order_of(_bag()))
    table = ItemTable(_bag(ITEMS + 1), order_of(_bag(ITEMS + 1)))
    with pytest.raises(ValueError, match="40 items, not 41"):
        table.restore(other.keep())
    assert table.counts.queued == ITEMS + 1


def test_an_item_that_ends_as_it_is_given_up_is_not_killed() -> None:
    """Both facts come in one turn: there is no process to kill any more."""
    runner = ItemRunner(RunnerIdentity("r", "m", RunnerRoom(1)), Instant(0.0))
    item = GrantedItem(ItemLease(0, 1), (1.0,))
    runner.react(Instant(0.0), (GrantRead(ItemGrant("r", 1, 0, (item,))),))
    facts = (GrantRead(ItemGrant("r", 2, 0, closed=True)), ItemEnded(_done(item.lease)))
    assert not [one for one in runner.react(Instant(1.0), facts) if isinstance(one, KillItem)]


def _granted(number: int, items: range, answers: int = 0) -> GrantRead:
    return GrantRead(ItemGrant("r", number, answers, tuple(GrantedItem(ItemLease(item, 1), (0.0,)) for item in items)))


def _last_report(actions: tuple[RunnerAction, ...]) -> RunnerReport:
    (report,) = [one.report for one in actions if isinstance(one, WriteReport)]
    return report


def test_short_items_start_until_the_announced_end_and_the_others_are_given_back_at_once() -> None:
    """Items of 1 s, an end in 8 s: what has not 2 s and the last 2 s is not started; 4 s before the end nothing is wanted."""
    runner = ItemRunner(RunnerIdentity("r", "m", RunnerRoom(1)), Instant(0.0))
    runner.react(Instant(0.0), (_granted(1, range(20)),))
    runner.react(Instant(1.0), (ItemEnded(_done(ItemLease(0, 1), 1.0)), ReportWritten(1)))

    actions = runner.react(Instant(2.0), (ReportWritten(2), EndAnnounced(Instant(10.0))))
    report = _last_report(actions)
    assert report.wants == 5
    assert [one.item for one in report.holds] == [1, 2, 3, 4, 5]

    assert runner.next_s(Instant(2.0)) == 4.0

    started = []
    for second in range(2, 10):
        done = (ItemEnded(_done(ItemLease(second - 1, 1), 1.0)),)
        actions = runner.react(Instant(float(second)), (ReportWritten(3), *done))
        started += [(second, one.item.lease.item) for one in actions if isinstance(one, StartItem)]
    assert started == [(2, 2), (3, 3), (4, 4), (5, 5)]
    assert runner.wants == 0
    # What comes all the same is given back at once.
    report = _last_report(runner.react(Instant(9.3), (ReportWritten(4), _granted(2, range(20, 22)))))
    assert (report.holds, report.grant, report.wants) == ((), 2, 0)


@pytest.mark.parametrize(("timed", "item"), [(False, 1), (True, 7)])
def test_what_may_take_any_time_does_not_start_before_an_announced_end(timed: bool, item: int) -> None:
    """Neither an item, while none has been timed, nor the reduce step; both may if the end is taken back."""
    runner = ItemRunner(RunnerIdentity("r", "m", RunnerRoom(1), reduce_item=7), Instant(0.0))
    if timed:
        runner.react(Instant(0.0), (_granted(1, range(1)),))
        runner.react(Instant(0.1), (ItemEnded(_done(ItemLease(0, 1), 0.1)),))
    runner.react(Instant(1.0), (ReportWritten(1), EndAnnounced(Instant(100.0))))
    assert (runner.wants > 0) is timed

    actions = runner.react(Instant(2.0), (_granted(2, range(item, item + 1)), ReportWritten(2)))
    assert not [one for one in actions if isinstance(one, StartItem)]
    assert (_last_report(actions).holds, runner.wants) == ((), 0)

    assert runner.react(Instant(3.0), (EndAnnounced(None),)) is not None
    assert runner.wants > 0


@pytest.mark.parametrize(("slots", "run_s"), [(2, 0.05), (8, 0.5)])
def test_short_items_do_not_wait_for_a_dispatcher_with_turns_of_five_seconds(slots: int, run_s: float) -> None:
    """Once it knows how long items and answers take, a runner has enough of them: its slots are busy without a gap."""
    runner = ItemRunner(RunnerIdentity("r", "m", RunnerRoom(slots)), Instant(0.0))
    granted: dict[ItemLease, GrantedItem] = {}
    ends: list[tuple[float, ItemLease]] = []
    report = RunnerReport("r", "m", 0, slots, 0, 0)
    fresh, idle_s, step_s = itertools.count(), 0.0, 0.025
    for step in range(int(60.0 / step_s)):
        now = step * step_s
        facts: list[RunnerFact] = [ReportWritten(report.sequence)]
        facts += [ItemEnded(_done(lease, run_s)) for at, lease in ends if at <= now]
        ends = [(at, lease) for at, lease in ends if at > now]
        if step % int(5.0 / step_s) == 0:
            for outcome in report.outcomes:
                granted.pop(outcome.lease, None)
            for item in itertools.islice(fresh, max(report.wants - len(granted), 0)):
                granted[ItemLease(item, 1)] = GrantedItem(ItemLease(item, 1), (0.0,))
            facts.append(GrantRead(ItemGrant("r", step + 1, report.sequence, tuple(granted.values()))))
        for action in runner.react(Instant(now), tuple(facts)):
            if isinstance(action, StartItem):
                ends.append((now + run_s, action.item.lease))
            elif isinstance(action, WriteReport):
                report = action.report
        if now > 2 * ALIVE_S:
            idle_s += (slots - runner.running) * step_s
    assert idle_s < 0.02 * slots * 40.0
