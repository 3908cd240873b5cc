"""What becomes of items that were preempted while they ran, decision by decision, and what `windfall explain` shows of it."""

from __future__ import annotations

from tests.bags.played_bag import PlayedBag, bag
from windfall.bags import (
    ItemEnd,
    ItemLease,
    ItemRecoveryAction,
    ItemState,
    StopWhen,
)
from windfall.core.item_table import ItemTable

AGAIN, LAST, DISCARD, SMALLER = ItemRecoveryAction


def test_in_a_bag_of_which_nine_tenths_must_finish_each_choice_wins_once() -> None:
    """One short of its mean runs again, one that takes five times as long runs last, and at the end one is given up."""
    played = PlayedBag(bag(retries_max=0))
    for runner in ("a", "b", "c", "d"):
        played.join(runner)
    for item in (0, 1):
        played.end("a", item)
    assert [one.item for one in played.table.leases("b")] == [2, 3]
    played.lose("b", {2: 100.0, 3: 3000.0})
    # The one that runs again is the next in line; the long one comes after all that have not run.
    waiting = list(played.table.waiting())
    assert (waiting[0], waiting[-1]) == (2, 3)
    while played.table.counts.done < 15:
        runner = next(name for name in ("a", "d") if played.table.leases(name))
        played.end(runner, played.table.leases(runner)[0].item)
    assert played.table.counts.leased == 5
    played.lose("c", {4: 60.0, 5: 60.0})
    assert played.table.counts.discarded == 2
    choices = [(one.item, one.action) for one in played.recoveries()]
    played.end("d", 6, ItemEnd.FAILED)

    assert choices == [(2, AGAIN), (3, LAST), (4, DISCARD), (5, DISCARD)]
    # Without item 6, one of the two that were given up is needed after all, and takes its place.
    assert [record.revived for record in played.log if record.revived] == [(4,)]
    assert played.table.state(5) is ItemState.DISCARDED
    assert played.table.keep() == played.folded().keep()
    lines = played.explained().splitlines()
    assert lines[:8] == EXPLAINED
    assert [line for line in lines if line.startswith("        expected cost")][2:6] == [
        "        expected cost, replenish and restart = 0.1241 USD",
        "        expected cost, discard = 0.02086 USD",
        "        expected cost, replenish and restart = 0.02086 USD",
        "        expected cost, discard = 0 USD",
    ]
    assert "discard: the items that run suffice for the completion target of 90 %" in lines[-1]


_OTHERS = (
    "        instead of: replenish and restart: after 100 s on all 1, from the start, 8 % are lost again; "
    "discard: an item that waits takes its place: the completion target still lacks 10"
)
EXPLAINED = [
    "   1  00:00:00  item 2: run again, the least expected cost, 0.0209 USD  (item-recovery, version 1)",
    "        it had run = 100 s",
    "        an item takes = 600 s",
    "        expected cost, replenish and restart = 0.02086 USD",
    "        expected time, replenish and restart = 734.4 s",
    "        expected cost, discard = 0.02086 USD",
    "        expected time, discard = 734.4 s",
    _OTHERS,
]
"""In 600 s, 1 - exp(-600 / 7200) = 8 % are lost, and 0.12 USD/h x 600 s x (exp(1/12) - 1) x 12 = 0.02086 USD."""


def test_what_is_saved_is_not_paid_for_twice() -> None:
    """Of 3000 s, 2900 s are saved: what is left costs less than the item that would take its place."""
    played = PlayedBag(bag())
    for runner in ("a", "b", "c"):
        played.join(runner)
    played.end("a", 0)
    played.lose("b", {2: 3000.0, 3: 3000.0}, {2: 2900.0})

    assert [(one.item, one.action, one.saved_s) for one in played.recoveries()] == [(2, AGAIN, 2900.0), (3, LAST, 0.0)]


def test_a_light_item_makes_way_for_one_of_mean_weight() -> None:
    """Its run brings a tenth of what another's does; one of mean weight runs again."""
    played = PlayedBag(bag(weight="x"), [0.1 if item == 2 else 1.0 for item in range(20)])
    for runner in ("a", "b"):
        played.join(runner)
    played.end("a", 0)
    played.lose("b", {2: 60.0, 3: 60.0})

    assert [(one.item, one.action) for one in played.recoveries()] == [(2, LAST), (3, AGAIN)]


def test_where_all_must_finish_or_nothing_is_timed_items_run_again() -> None:
    """There is nothing to spare; before the first item has ended there is nothing to compare, which the reason says."""
    whole, early = PlayedBag(bag(finish=1.0)), PlayedBag(bag())
    for played in (whole, early):
        for runner in ("a", "b"):
            played.join(runner)
    whole.end("a", 0)
    whole.lose("b", {2: 6000.0})
    early.lose("b", {2: 6000.0})
    (must,), (first,) = whole.recoveries(), early.recoveries()

    assert (must.action, first.action) == (AGAIN, AGAIN)
    assert "leaves 0 to spare" in must.costs[-1].reason
    assert (first.reason, first.costs) == ("no item has been timed yet", ())
    # Item 3 was in the runner's hands and had not started: it waits again, and nothing is decided.
    assert {one.item for one in whole.recoveries()} == {2}
    assert whole.table.state(3) is ItemState.QUEUED or ItemLease(3, 2) in whole.table.leases("a")


def test_before_a_deadline_what_ends_in_time_is_chosen() -> None:
    """Discarding would be cheaper, but the item in its place ends after the deadline, and so does every other choice."""
    played = PlayedBag(bag(), left_s=60.0)
    for runner in ("a", "b", "c"):
        played.join(runner)
    played.end("a", 0)
    played.lose("b", {2: 3000.0})
    (made,) = played.recoveries()

    assert made.action is AGAIN
    assert made.reason == "nothing is expected to end in time: this ends first"


def test_a_bag_ends_with_the_item_that_meets_its_rule() -> None:
    """Three in turn without a gain: the rest is discarded, the bag has succeeded, and a retry does not end it again."""
    played = PlayedBag(bag(finish=1.0, stop_when=StopWhen("e", 2, no_gain=3)))
    played.join("a")
    for value in (5.0, 3.0, 4.0, 3.0):
        played.end("a", played.table.leases("a")[0].item, e=value)
        assert not played.table.closed
    played.end("a", played.table.leases("a")[0].item, e=3.5)
    table, kept = played.table, played.table.keep()
    fresh = ItemTable(table.bag, range(20))
    fresh.restore(kept)

    assert (table.closed, table.succeeded, table.counts.discarded) == (True, True, 15)
    assert table.reason == "stop_when: e: the best, 3, is that of 3 items before"
    assert (fresh.keep(), list(fresh.metrics)) == (kept, [5.0, 3.0, 4.0, 3.0, 3.5])


def test_a_result_that_is_no_number_ends_nothing() -> None:
    """It is passed over, and so are not a number and infinity."""
    played = PlayedBag(bag(finish=1.0, stop_when=StopWhen("e", 1, above=0.0)))
    played.join("a")
    for value in ("none", float("nan"), float("inf"), True):
        played.end("a", played.table.leases("a")[0].item, e=value)

    assert (played.table.closed, len(played.table.metrics)) == (False, 0)
