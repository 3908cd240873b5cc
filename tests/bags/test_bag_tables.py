"""What is shown of a bag, from its log alone: the table of results, the status page at 80 columns, what an item printed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.report.market_story import machine
from windfall import codec
from windfall.bags import (
    Bag,
    ItemEnd,
    ItemLease,
    ItemLeases,
    ItemOutcome,
    ItemRecord,
    ResultRule,
    StoredItemFile,
    StoredOutput,
)
from windfall.linux.clock import SystemClock
from windfall.report import bag_page, bag_table
from windfall.report.bag_log import BagLog, outcomes_of
from windfall.report.bag_types import TriedType, tried_types
from windfall.runtimes.item_dispatcher import open_table
from windfall.storage.object_stores import Reader, open_store
from windfall.structs import replace
from windfall.terms import Seconds, Usd, WallTime
from windfall.wire import bag_layout

AT = 1_800_000_000.0
RULES = (ResultRule("y", "-", "y = (.*)"),)


def outcome(item: int, end: ItemEnd = ItemEnd.DONE, problem: str = "", number: int = 1) -> ItemOutcome:
    """The outcome of an item that ran two seconds."""
    values = {"y": 2.5 * item} if end is ItemEnd.DONE else {}
    output = StoredOutput("items/output/r/00000001", 3 * item, 3)
    return ItemOutcome(
        ItemLease(item, number),
        end,
        0 if end is ItemEnd.DONE else 1,
        WallTime(AT),
        Seconds(2.0),
        problem,
        values,
        output,
    )


class Written:
    """A run's store with a bag's rows and log."""

    def __init__(self, folder: Path, items: int, **settings: object) -> None:
        self.store = open_store(f"file://{folder}")
        keys = ("items/rows/d/00000000",)
        self.bag = Bag(items, ("T", "name"), keys, 1_000_000, shuffled=False, retries_max=0, results=RULES, **settings)  # type: ignore[arg-type]
        self.store.put(keys[0], bag_layout.rows_to_bytes([(item / 10.0, f"n{item}") for item in range(items)]))
        self.number = 0

    def record(self, **changes: object) -> None:
        """Append a record, ten seconds after the last one."""
        self.number += 1
        record = ItemRecord(self.number, f"n{self.number}", WallTime(AT + 10.0 * self.number), **changes)  # type: ignore[arg-type]
        self.store.create(bag_layout.item_record_key(self.number), bag_layout.record_to_bytes(record))

    def log(self) -> tuple[Reader, BagLog]:
        """The log as a verb reads it."""
        reader = Reader(self.store, SystemClock())
        log = BagLog(reader.run(open_table(self.bag)))
        reader.run(log.read())
        return reader, log


def written(folder: Path, items: int = 5, **settings: object) -> Written:
    """A bag of which two items are done, one failed, and the others are leased."""
    found = Written(folder, items, **settings)
    found.record(joined=(("r", "m-1"),), leased=(ItemLeases("r", tuple(range(items))),))
    found.record(
        outcomes=(
            ("r", outcome(0)),
            ("r", outcome(1)),
            ("r", outcome(2, ItemEnd.FAILED, "the command ended with exit code 1")),
        )
    )
    return found


def test_the_table_has_a_row_for_each_item_with_parameters_and_results(tmp_path: Path) -> None:
    """Columns are the item, its parameters, its results, and how it ran; what is not there is empty."""
    reader, log = written(tmp_path).log()
    text = io.StringIO()

    bag_table.write_csv(log.bag, (reader.run(log.row(item)) for item in range(4)), text)

    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [(row["item"], row["T"], row["name"], row["y"], row["state"]) for row in rows] == [
        ("0", "0.0", "n0", "0.0", "done"),
        ("1", "0.1", "n1", "2.5", "done"),
        ("2", "0.2", "n2", "", "failed"),
        ("3", "0.3", "n3", "", "leased"),
    ]
    assert (rows[1]["machine"], rows[1]["run_s"], rows[2]["problem"]) == (
        "m-1",
        "2.0",
        "the command ended with exit code 1",
    )


def test_json_has_numbers_where_the_bag_has_them(tmp_path: Path) -> None:
    """One object for each item; nothing becomes text."""
    reader, log = written(tmp_path).log()

    (row,) = bag_table.objects(log.bag, [reader.run(log.row(1))])

    assert json.loads(json.dumps(row))["T"] == 0.1
    assert row["y"] == 2.5


def test_a_name_that_is_there_twice_gets_another_column(tmp_path: Path) -> None:
    """A parameter that is called as one of the table's own columns loses nothing."""
    bag = Bag(1, ("state", "item"), ("k",), 1, results=(ResultRule("machine", "-", "m"),))

    assert [name for name, _ in bag_table.columns(bag)][:4] == ["item", "state", "parameter_item", "machine"]
    assert "item_state" in [name for name, _ in bag_table.columns(bag)]


def test_all_outcomes_of_an_item_are_found_the_oldest_first(tmp_path: Path) -> None:
    """`logs BAG/ITEM --attempt N` shows each of them."""
    bag = written(tmp_path)
    bag.record(outcomes=(("r", outcome(3)),))
    reader, _ = bag.log()

    assert [one.end for one in reader.run(outcomes_of(2))] == [ItemEnd.FAILED]
    assert reader.run(outcomes_of(4)) == []


def test_the_status_page_fits_80_columns_with_ten_thousand_items(tmp_path: Path) -> None:
    """Counts, rate, time left, cost and cost of an item; failures that differ in numbers alone are one line."""
    count = 10_000
    bag = Written(tmp_path, count)
    bag.record(joined=(("r", "m-1"),), leased=(ItemLeases("r", tuple(range(count))),))
    problems = [
        f"the command ended with exit code 1: no convergence after {item} steps of the solver" for item in range(40)
    ]
    bag.record(outcomes=tuple(("r", outcome(item, ItemEnd.FAILED, problem)) for item, problem in enumerate(problems)))
    bag.record(outcomes=tuple(("r", outcome(item)) for item in range(40, 6040)))
    _, log = bag.log()

    types = (
        TriedType("standard-64-highmem", 120, 5_900, 5_900 * 2.0, Usd(0.0059)),
        TriedType("tiny", 1, 0, 0.0, Usd(0.1)),
    )
    lines = list(bag_page.lines(log, WallTime(AT + 30.0), "sweep-3f9a2c", {"money": {"due_usd": 1.5}}, types))

    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "10,000: 3,960 leased, 6,000 done, 40 failed" in text
    assert "1,080,000 items/h" in text
    assert "13 s left" in text
    assert "1.5000 USD so far, 0.000250 USD for each item done" in text or "0.00025" in text
    assert text.count("40 items, such as 0") == 1
    assert "windfall retry-failed sweep-3f9a2c" in text
    assert "standard-64-highmem: 5,900 done, 2 s and about 0.0000010 USD each" in text
    assert "tiny: no item done, 0.1000 USD, 1 machine" in text


def test_what_is_not_known_or_not_kept_is_said_in_words(tmp_path: Path) -> None:
    """Without the controller: who knows the cost; with patterns that match nothing: how many items left no file."""
    bag = Written(tmp_path, 3, collect=("*.dat", "log"))
    bag.record(joined=(("r", "m-1"),), leased=(ItemLeases("r", (0, 1, 2)),))
    file = StoredItemFile("log", "items/files/0", 3)
    bag.record(outcomes=(("r", replace(outcome(0), files=(file,))), ("r", outcome(1)), ("r", outcome(2))))
    _, log = bag.log()

    text = "\n".join(bag_page.lines(log, WallTime(AT + 30.0), "sweep-3f9a2c", {}))

    assert "the job's controller knows it: `windfall ps sweep-3f9a2c`" in text
    assert "2 of the items that are done left no file *.dat, log" in text


def test_the_last_line_says_why_a_bag_has_failed(tmp_path: Path) -> None:
    """A reduce step that failed is no item that failed: all are done, and the bag is not."""
    bag = Written(tmp_path, 1, reduce="false")
    bag.record(joined=(("r", "m-1"),), leased=(ItemLeases("r", (0,)),))
    bag.record(outcomes=(("r", outcome(0)),), reducing="all items are done")
    bag.record(leased=(ItemLeases("r", (1,)),))
    why = "the reduce step failed: it ended with exit code 1"
    bag.record(outcomes=(("r", outcome(1, ItemEnd.FAILED)),), closed=True, reason=why)
    _, log = bag.log()

    assert bag_page.progress_text(log, WallTime(AT + 60.0)) == f"1 of 1 items done (100 %); {why}"
    assert any("windfall retry-failed sweep" in one for one in bag_page.advice(log, "sweep", None))


def test_items_of_an_earlier_run_are_in_the_table_and_cost_nothing_here(tmp_path: Path) -> None:
    """Carried items have their results; the cost of an item is that of those which this run has done."""
    bag = Written(tmp_path, 3)
    bag.record(carried=(("old", outcome(0)),))
    bag.record(joined=(("r", "m-1"),), leased=(ItemLeases("r", (1,)),))
    bag.record(outcomes=(("r", outcome(1)),))
    reader, log = bag.log()

    made = bag_page.as_json(log, WallTime(AT + 30.0), {"money": {"due_usd": 0.5}})

    assert (made["done"], made["usd_per_item"]) == (2, 0.5)
    row = reader.run(log.row(0))
    assert row.outcome is not None
    assert (row.outcome.values["y"], row.machine) == (0.0, "")


@pytest.mark.parametrize("end", list(ItemEnd))
def test_an_outcome_survives_the_log(end: ItemEnd) -> None:
    """What a verb reads is what the runner said."""
    assert codec.decode(codec.encode(outcome(1, end, "x")), ItemOutcome) == outcome(1, end, "x")


def test_what_was_learnt_of_a_type_is_that_of_all_its_machines(tmp_path: Path) -> None:
    """Their items, the time of those, and what all cost, the one included that did nothing; a pending machine costs nothing."""
    bag = written(tmp_path)
    _, log = bag.log()
    second = {"started": WallTime(AT), "ended": WallTime(AT + 50.0)}
    machines = [
        machine("m-1", "t1", started=WallTime(AT)),
        machine("m-2", "t2", **second),
        replace(machine("m-3", "t3", **second), machine_type="large"),
        machine("m-4", "t4"),
    ]

    found = tried_types(log, machines, WallTime(AT + 100.0))

    assert [(one.name, one.machines, one.items, one.run_s) for one in found] == [
        ("small", 2, 2, 4.0),
        ("large", 1, 0, 0.0),
    ]
    assert [one.usd for one in found] == pytest.approx([0.15, 0.05])
