"""The same bag with more rows: what an earlier run has done is carried over, and the new run stands by itself."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from windfall.bags import ItemEnd, ItemLease, ItemLeases, ItemOutcome, ItemRecord, StoredItemFile, StoredOutput
from windfall.cli import bag_history
from windfall.cli.bag_history import BagHistory, CarriedItem
from windfall.core.item_table import ItemTable
from windfall.runtimes.item_dispatcher import order_of, read_records
from windfall.spec import bag_rows
from windfall.spec.bag_rows import BagRows
from windfall.spec.job_file import JobFile
from windfall.spec.job_loader import load
from windfall.storage import bundle
from windfall.storage.object_stores import open_reader
from windfall.storage.store_operations import get, put
from windfall.terms import Seconds, WallTime
from windfall.wire import bag_layout

CODE = "c0de"


class Submitter:
    """One who submits the same bag again and again; items that are run have their row as result."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base, self.at = folder, f"file://{folder}/runs", 0.0

    def read(self, numbers: Sequence[int], *, run: str = "x {{T}}", extra: str = "") -> tuple[JobFile, BagRows]:
        """Write and read a bag file."""
        (self.folder / "bag.yaml").write_text(f"run: {run}\nbag:\n  parameters: {{T: {list(numbers)}}}\n{extra}")
        file = load(str(self.folder / "bag.yaml"))
        assert file.bag is not None
        return file, bag_rows.rows_of(file.bag, lambda _: None)

    def submit(self, name: str, read: tuple[JobFile, BagRows], done: Sequence[int]) -> tuple[CarriedItem, ...]:
        """Submit a bag, of which the items `done` are then run; return what was carried over."""
        file, rows = read
        self.at += 1.0
        carried = bag_history.done_before(file, rows, CODE, self.base).carried
        reader = open_reader(f"{self.base}/{name}")
        for key, data in rows.objects().items():
            reader.run(put(key, data))
        bag_history.store(reader, carried, self.base, "nonce", WallTime(self.at))
        open_reader(self.base).run(bag_history.remember(file, rows, CODE, name, WallTime(self.at)))
        runner, outcomes = f"runner of {name}", []
        for item in done:
            keys = f"items/output/{runner}/1", f"items/files/{runner}/{item}-1/0"
            for key in keys:
                reader.run(put(key, f"of {rows.rows[item]}".encode()))
            values = {"row": str(rows.rows[item])}
            kept = StoredOutput(keys[0], 0, 8), (StoredItemFile("out", keys[1], 8),)
            lease = ItemLease(item, 1)
            outcomes.append(
                (runner, ItemOutcome(lease, ItemEnd.DONE, 0, WallTime(0.0), Seconds(1.0), "", values, *kept))
            )
        number = len(reader.run(read_records(0))) + 1
        leased = (ItemLeases(runner, tuple(done)),)
        record = ItemRecord(
            number, "n", WallTime(0.0), joined=((runner, "m"),), leased=leased, outcomes=tuple(outcomes)
        )
        reader.run(put(bag_layout.item_record_key(number), bag_layout.record_to_bytes(record)))
        return carried


@pytest.fixture
def submitter(tmp_path: Path) -> Submitter:
    """Return one, with an empty store."""
    (tmp_path / "runs").mkdir()
    return Submitter(tmp_path)


def test_only_new_rows_run(submitter: Submitter) -> None:
    """Rows that were done are done from the start, under their new number, with their own result, also over two runs."""
    submitter.submit("first", submitter.read([1, 2, 3]), done=[0, 2])
    submitter.submit("second", submitter.read([1, 2, 3, 4]), done=[3])
    file, rows = submitter.read([9, 4, 3, 2, 1])

    carried = bag_history.done_before(file, rows, CODE, submitter.base).carried

    assert [(one.outcome.lease.item, one.outcome.values["row"], one.run) for one in carried] == [
        (1, "(4,)", "second"),
        (2, "(3,)", "second"),
        (4, "(1,)", "second"),
    ]


def test_the_new_run_stands_by_itself(submitter: Submitter) -> None:
    """Its log has the outcomes and its store what they name, so that the earlier run may be removed."""
    submitter.submit("first", submitter.read([1, 2]), done=[0, 1])
    submitter.submit("second", submitter.read([0, 1, 2]), done=[])
    shutil.rmtree(submitter.folder / "runs" / "first")

    reader = open_reader(f"{submitter.base}/second")
    (record, _) = reader.run(read_records(0))
    for _, outcome in record.carried:
        assert outcome.output is not None
        row = outcome.values["row"]
        assert reader.run(get(outcome.files[0].key)) == f"of {row}".encode()
        assert reader.run(get(outcome.output.key)) is not None
    assert [outcome.lease.item for _, outcome in record.carried] == [1, 2]
    # The run that was removed is still in the index, and no longer there.
    assert len(bag_history.done_before(*submitter.read([1, 2, 7]), CODE, submitter.base).carried) == 2


@pytest.mark.parametrize(
    "other",
    [{"run": "y {{T}}"}, {"extra": "envs: {A: b}"}, {"extra": "setup: pip install x"}, {"extra": "name: other"},
     {"extra": "  results: {e: {regex: a}}"}, {"extra": "  seed: 3"}],
)  # fmt: skip
def test_another_bag_carries_nothing_over(other: dict[str, str], submitter: Submitter) -> None:
    """Another command, variable, setup, name, result or seed may mean another outcome."""
    submitter.submit("first", submitter.read([1, 2]), done=[0, 1])

    assert bag_history.done_before(*submitter.read([1, 2]), "other", submitter.base).other_code == "first"
    assert bag_history.done_before(*submitter.read([1, 2], **other), CODE, submitter.base) == BagHistory()
    assert len(bag_history.done_before(*submitter.read([1, 2]), CODE, submitter.base).carried) == 2


def test_a_command_with_the_item_s_number_needs_the_same_number(submitter: Submitter) -> None:
    """Its outcome may depend on it."""
    run = "x {{T}} {{item}}"
    submitter.submit("first", submitter.read([1, 2], run=run), done=[0, 1])

    carried = bag_history.done_before(*submitter.read([1, 3, 2], run=run), CODE, submitter.base).carried

    assert [one.outcome.lease.item for one in carried] == [0]


def test_a_limit_takes_the_first_of_the_order_that_are_not_done(submitter: Submitter) -> None:
    """And leaves them in the order of the file."""
    file, rows = submitter.read(range(20))
    assert file.bag is not None
    order = list(order_of(bag_rows.to_bag(file.bag, rows)))
    submitter.submit("first", (file, rows), done=order[:2])
    carried = bag_history.done_before(file, rows, CODE, submitter.base).carried

    left = bag_history.first_rows(file, rows, carried, 3)

    assert left.rows == tuple((item,) for item in sorted(order[2:5]))


def test_carried_items_are_never_leased(submitter: Submitter) -> None:
    """The others wait in their order, and the table says how many are this run's own."""
    submitter.submit("first", submitter.read([1, 2, 3]), done=[0, 2])
    file, rows = submitter.read([1, 2, 3, 4])
    submitter.submit("second", (file, rows), done=[])
    assert file.bag is not None
    bag = bag_rows.to_bag(file.bag, rows)
    table = ItemTable(bag, range(4))

    for record in open_reader(f"{submitter.base}/second").run(read_records(0)):
        table.apply(record)

    assert (table.counts.done, table.carried, table.queued) == (2, 2, 2)
    assert list(table.waiting()) == [1, 3]
    table.apply(ItemRecord(3, "n", WallTime(0.0), joined=(("m", "m"),), leased=(ItemLeases("m", (1, 3)),)))
    assert list(table.waiting()) == []


def test_only_the_code_of_the_items_counts(tmp_path: Path) -> None:
    """More rows, or another line in the job file, is no other code; another line in a script is."""
    for name, text in (("sim.py", "a"), ("rows.csv", "T"), ("bag.yaml", "run: x")):
        (tmp_path / name).write_text(text)
    own = [str(tmp_path / "rows.csv"), str(tmp_path / "bag.yaml")]

    def digest() -> str:
        return bag_history.code_digest(bundle.pack_for_others(str(tmp_path)), own)

    before = digest()
    (tmp_path / "rows.csv").write_text("T\n1\n")
    (tmp_path / "bag.yaml").write_text("run: x\nnum_nodes: 3")
    assert digest() == before
    (tmp_path / "sim.py").write_text("b")
    assert digest() != before
    assert bag_history.code_digest(None, ()) == "none"
