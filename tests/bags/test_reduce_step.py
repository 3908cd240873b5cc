"""The reduce step: one more item, once the others are over."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from windfall.bags import (
    Bag,
    ItemEnd,
    ItemLease,
    ItemLeases,
    ItemOutcome,
    ItemRecord,
    ItemState,
    LeaseEnd,
    ResultRule,
    RunnerReport,
    StopItem,
    StopWhen,
)
from windfall.cli import reduce_process
from windfall.core import item_decisions
from windfall.core.item_decisions import DispatcherView
from windfall.core.item_table import ItemCounts, ItemTable
from windfall.storage.object_stores import open_reader
from windfall.storage.store_operations import put
from windfall.structs import replace
from windfall.terms import Instant, Seconds, WallTime
from windfall.wire import bag_layout

BAG = Bag(3, ("T",), ("rows",), 3, finish=0.5, reduce="sort results.csv")


def outcome(item: int, number: int = 1, end: ItemEnd = ItemEnd.DONE, problem: str = "") -> ItemOutcome:
    """Return an outcome."""
    return ItemOutcome(ItemLease(item, number), end, 0, WallTime(0.0), Seconds(1.0), problem, {"y": item / 2})


class Dispatching:
    """A table and one runner with two slots, whose reports are made up."""

    def __init__(self, bag: Bag = BAG, weights: tuple[float, ...] = ()) -> None:
        self.table = ItemTable(bag, range(bag.items), weights)
        self.sequence = 0

    def turn(self, *outcomes: ItemOutcome, wants: int = 2, machine: str = "m") -> ItemRecord:
        """Let the dispatcher read a report, and return its record."""
        self.sequence += 1
        holds = tuple(one for one in self.table.leases(machine) if one not in [each.lease for each in outcomes])
        report = RunnerReport(machine, machine, self.sequence, 2, wants, self.table.number, holds, outcomes)
        view = DispatcherView(Instant(0.0), WallTime(0.0), {machine: report}, {machine: Instant(0.0)})
        record = item_decisions.decide(self.table, view, "n")
        assert record is not None
        self.table.apply(record)
        return record


def reducing(bag: Bag = BAG) -> Dispatching:
    """Return a bag whose items are over and whose reduce step runs on `m`."""
    made = Dispatching(bag)
    made.turn()
    over = made.turn(outcome(0), outcome(1))
    assert (over.reducing, over.closed, over.leased) == ("enough items are done", False, ())
    assert made.turn().leased == (ItemLeases("m", (3,)),)
    return made


def test_the_reduce_step_runs_when_the_others_are_over() -> None:
    """The bag is over with it, and not before."""
    made = reducing()
    assert not made.table.succeeded

    record = made.turn(outcome(3))

    assert (record.closed, record.reason, made.table.succeeded) == (True, "enough items are done", True)
    assert made.table.counts == ItemCounts(0, 0, 2, 0, 1)


@pytest.mark.parametrize("reduce", ["sort results.csv", None])
def test_a_bag_that_its_metric_ends_as_its_last_item_fails_is_done(reduce: str | None) -> None:
    """Both come in one report: the metric's verdict counts, and it is the reason, though too few items are done."""
    rule = StopWhen("y", items_min=1, above=0.4)
    made = Dispatching(
        Bag(2, ("T",), ("rows",), 2, finish=1.0, shuffled=False, retries_max=0, reduce=reduce, stop_when=rule)
    )
    made.turn()
    reason = "stop_when: y: an item has 0.5, above 0.4"

    record = made.turn(outcome(1), outcome(0, end=ItemEnd.FAILED))

    assert record.converged == reason
    if reduce is None:
        assert (record.closed, record.reason) == (True, reason)
    else:
        assert (record.reducing, made.turn().leased) == (reason, (ItemLeases("m", (2,)),))
        assert made.turn(outcome(2)).reason == reason
    assert made.table.succeeded


def test_a_reduce_step_whose_machine_is_lost_runs_again() -> None:
    """On the next machine, under the next number."""
    made = reducing()
    made.table.apply(
        ItemRecord(
            made.table.number + 1,
            "n",
            WallTime(0.0),
            ended=(LeaseEnd(ItemLease(3, 1), ItemEnd.LOST, "m"),),
            left=("m",),
        )
    )

    assert made.turn(machine="other").leased == (ItemLeases("other", (3,)),)
    assert made.turn(outcome(3, 2), machine="other").closed


def test_a_reduce_step_that_fails_is_a_failed_bag() -> None:
    """It is not tried again, whatever may be retried among items, and the reason is its own."""
    made = reducing(Bag(3, ("T",), ("rows",), 3, finish=0.5, reduce="false", retries_max=5, retry_codes=(0,)))

    record = made.turn(outcome(3, end=ItemEnd.FAILED, problem="the command ended with exit code 1"))

    assert (record.closed, record.reason) == (True, "the reduce step failed: the command ended with exit code 1")
    assert not made.table.succeeded
    assert made.table.state(3) is ItemState.FAILED


@pytest.mark.parametrize("items_failed", [False, True])
def test_a_reduce_step_that_failed_runs_again_when_asked(items_failed: bool) -> None:
    """After the items that had failed, if there are any; those that are done stay so, and its success is the bag's."""
    made = Dispatching(Bag(3, ("T",), ("rows",), 3, finish=0.5, shuffled=False, retries_max=0, reduce="x"))
    made.turn()
    made.turn(outcome(0), outcome(1, end=ItemEnd.FAILED if items_failed else ItemEnd.DONE))
    if items_failed:
        made.turn(outcome(2))
    made.turn()
    assert made.turn(outcome(3, end=ItemEnd.FAILED, problem="no")).closed
    assert made.table.reduce_failed

    made.table.apply(ItemRecord(made.table.number + 1, "n", WallTime(0.0), retried=("asked",)))
    assert (made.table.closed, made.table.reduce_failed, made.table.reducing) == (False, False, "")
    if items_failed:
        assert made.turn(machine="n").leased == (ItemLeases("n", (1,)),)
        over = made.turn(outcome(1, 2), machine="n")
    else:
        over = made.turn(machine="n")
    assert (over.reducing, over.closed) == (f"{'all' if items_failed else 'enough'} items are done", False)
    assert made.turn(machine="n").leased == (ItemLeases("n", (3,)),)

    assert made.turn(outcome(3, 2), machine="n").closed
    assert made.table.succeeded
    assert made.table.counts == (ItemCounts(0, 0, 3, 0, 0) if items_failed else ItemCounts(0, 0, 2, 0, 1))


def test_too_few_items_are_not_reduced() -> None:
    """A bag that has failed is over at once."""
    made = Dispatching(Bag(1, ("T",), ("rows",), 1, reduce="x", retries_max=0))
    made.turn()

    record = made.turn(outcome(0, end=ItemEnd.FAILED))

    assert (record.closed, record.reducing, record.reason) == (True, "", "too many items failed")


@pytest.mark.parametrize(("done", "closed"), [([0, 1], False), ([2], True)])
def test_weights_decide_when_enough_is_done(done: list[int], closed: bool) -> None:
    """Of weights 1, 2 and 5, the one of 5 is more than half, and the other two are less."""
    bag = Bag(3, ("T",), ("rows",), 3, finish=0.5, weight="T")
    table = ItemTable(bag, [2, 0, 1], [1.0, 2.0, 5.0])
    table.apply(ItemRecord(1, "n", WallTime(0.0), joined=(("m", "m"),), leased=(ItemLeases("m", (2, 0, 1)),)))
    outcomes = tuple(("m", outcome(item)) for item in done)

    assert table.is_enough(outcomes) is closed
    table.apply(ItemRecord(2, "n", WallTime(0.0), outcomes=outcomes))
    assert table.is_enough() is closed


def test_the_reduce_step_of_a_bag_with_weights_has_none() -> None:
    """It ends the bag, and counts for nothing."""
    made = Dispatching(Bag(2, ("T",), ("rows",), 2, finish=1.0, shuffled=False, weight="T", reduce="x"), (1.0, 2.0))
    made.turn()
    made.turn(outcome(0), outcome(1))
    made.turn()

    assert made.turn(outcome(2)).closed
    assert made.table.succeeded


def test_the_table_says_which_items_were_stopped_early(tmp_path: Path) -> None:
    """Also of those that lack a result."""
    reader = open_reader(f"file://{tmp_path}/run")
    bag = Bag(
        2, ("T",), ("items/rows/d/0",), 2, results=(ResultRule("y", "-", "y"), ResultRule("z", "-", "z")), reduce="x",
        stop_item=StopItem("y", above=1.0),
    )  # fmt: skip
    reader.run(put("items/rows/d/0", bag_layout.rows_to_bytes([(0.5,), (1.0,)])))
    whole, cut = outcome(0), outcome(1, end=ItemEnd.STOPPED)
    outcomes = (("m", replace(whole, values={"y": 1, "z": 2})), ("m", replace(cut, values={"y": 3}, stopped="y: 3")))
    record = ItemRecord(1, "n", WallTime(0.0), outcomes=outcomes)
    reader.run(put(bag_layout.item_record_key(1), bag_layout.record_to_bytes(record)))
    reduce_process.write_table(reader, bag, reduce_process.done_items(reader), tmp_path / "results.csv")

    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["item", "T", "y", "z", "stopped"], ["0", "0.5", "1", "2", ""], ["1", "1", "3", "", "y: 3"]]


def test_the_table_has_a_row_for_each_item_that_is_done(tmp_path: Path) -> None:
    """Its number, its parameters, its results; a file of this name among the code is left alone."""
    code = tmp_path / "code.csv"
    code.write_text("mine")
    (tmp_path / "results.csv").symlink_to(code)
    reader = open_reader(f"file://{tmp_path}/run")
    bag = Bag(3, ("T", "b"), ("items/rows/d/0",), 3, results=(ResultRule("y", "-", "y"),), reduce="x")
    reader.run(put("items/rows/d/0", bag_layout.rows_to_bytes([(0.5, "a"), (1.0, "b,c"), (2, True)])))
    carried = ItemRecord(1, "n", WallTime(0.0), carried=(("m", outcome(2)),))
    others = (("m", outcome(1)), ("m", outcome(0, end=ItemEnd.FAILED)), ("m", outcome(3)))
    for record in (carried, ItemRecord(2, "n", WallTime(0.0), outcomes=others)):
        reader.run(put(bag_layout.item_record_key(record.number), bag_layout.record_to_bytes(record)))

    reduce_process.write_table(reader, bag, reduce_process.done_items(reader), tmp_path / "results.csv")

    with (tmp_path / "results.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["item", "T", "b", "y"], ["1", "1", "b,c", "0.5"], ["2", "2", "true", "1"]]
    assert code.read_text() == "mine"
