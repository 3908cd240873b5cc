"""The failed items of a bag again: what is done stays done, a request is taken in once, an ended bag opens and ends again."""

from __future__ import annotations

from windfall.bags import Bag, ItemEnd, ItemLease, ItemLeases, ItemOutcome, ItemRecord, ItemState
from windfall.core import item_decisions
from windfall.core.item_decisions import DispatcherView
from windfall.core.item_table import ItemTable
from windfall.terms import Instant, Seconds, WallTime

AT = WallTime(1_800_000_000.0)
BAG = Bag(2, ("x",), ("rows",), 2, retries_max=0, shuffled=False)


def _outcome(item: int, number: int, end: ItemEnd) -> tuple[str, ItemOutcome]:
    return "r", ItemOutcome(ItemLease(item, number), end, 0 if end is ItemEnd.DONE else 1, AT, Seconds(1.0))


def _ended() -> ItemTable:
    table = ItemTable(BAG, range(2))
    table.apply(ItemRecord(1, "a", AT, joined=(("r", "m"),), leased=(ItemLeases("r", (0, 1)),)))
    outcomes = (_outcome(0, 1, ItemEnd.DONE), _outcome(1, 1, ItemEnd.FAILED))
    table.apply(ItemRecord(2, "b", AT, outcomes=outcomes, closed=True, reason="too many items failed"))
    return table


def _view(*requests: str) -> DispatcherView:
    return DispatcherView(Instant(0.0), AT, {}, {}, requests=requests)


def test_a_request_opens_an_ended_bag_for_what_failed_alone() -> None:
    """The failed item waits again, the one that is done stays done, and the request is not taken in twice."""
    table = _ended()
    record = item_decisions.decide(table, _view("q"), "c")
    assert record is not None
    table.apply(record)

    assert (table.closed, table.rounds) == (False, 1)
    assert [table.state(item) for item in range(2)] == [ItemState.DONE, ItemState.QUEUED]
    assert item_decisions.decide(table, _view("q"), "d") is None


def test_a_request_without_failed_items_changes_nothing() -> None:
    """A second request finds nothing that failed: a bag that is over stays over."""
    table = ItemTable(BAG, range(2))
    table.apply(ItemRecord(1, "a", AT, joined=(("r", "m"),), leased=(ItemLeases("r", (0, 1)),)))
    outcomes = (_outcome(0, 1, ItemEnd.DONE), _outcome(1, 1, ItemEnd.DONE))
    table.apply(ItemRecord(2, "b", AT, outcomes=outcomes, closed=True, reason="all items are done"))
    record = item_decisions.decide(table, _view("q"), "c")
    assert record is not None
    table.apply(record)

    assert (table.closed, table.rounds, table.counts.done) == (True, 0, 2)
