"""What earlier runs of the same bag have done: those items are carried over to the new run, and only the others run.

bags/<name>/<fingerprint>-<code>/<job>      beside the runs: a bag that was submitted; fingerprint and code are digests of all
                                            that an item's result depends on but its parameters

Two items are the same if they have the same parameters.  The items that are carried over are the first records of the new
run's own log, and what is kept of them is copied under the keys that it had, so that the new run stands by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from windfall.bags import Bag, ItemEnd, ItemLease, ItemOutcome, ItemRecord, Value
from windfall.core import item_commands
from windfall.ports import Steps
from windfall.runtimes.item_dispatcher import order_of, read_records, read_rows
from windfall.spec import bag_rows
from windfall.spec.bag_rows import BagRows
from windfall.spec.job_file import JobFile
from windfall.spec.stop_item_block import stop_item_of
from windfall.storage.bundle import PackedBundle
from windfall.storage.object_stores import Reader, open_reader
from windfall.storage.store_operations import get, keys_under, put
from windfall.structs import Struct, replace
from windfall.terms import WallTime
from windfall.wire import bag_layout

RUNS_MAX = 20
"""Items are carried over from this many runs at most, the newest ones."""
RECORD_ITEMS = 1000
"""Carried items in one record."""


class CarriedItem(Struct, frozen=True):
    """An item that an earlier run has done.

    Attributes:
        run: its job there.
        runner: who ran it.
        outcome: with the number of the item in the new bag; its keys are relative to the earlier run.
    """

    run: str
    runner: str
    outcome: ItemOutcome


class BagHistory(Struct, frozen=True):
    """What earlier runs have done.

    Attributes:
        carried: the items, by number.
        other_code: a run of the same bag with other code, if there is none with this code; empty for none.
    """

    carried: tuple[CarriedItem, ...] = ()
    other_code: str = ""


def code_digest(code: PackedBundle | None, without: Collection[str]) -> str:
    """Return the digest of code; `none` without any.

    Args:
        code: the code.
        without: paths of files that do not count: a longer list of rows in the folder with the code is no other code.
    """
    if code is None:
        return "none"
    left_out = {os.path.realpath(path) for path in without}
    found = hashlib.sha256()
    for path in code.paths:
        place = Path(code.folder, path)
        if os.path.realpath(place) not in left_out:
            found.update(f"{path}\0".encode() + hashlib.sha256(place.read_bytes()).digest())
    return found.hexdigest()[:32]


def fingerprint(file: JobFile, names: Sequence[str]) -> str:
    """Return the digest of all that an item's result depends on but its parameters and the code.

    Args:
        file: the job file, with a bag.
        names: of the parameters.
    """
    assert file.bag is not None
    block = file.bag
    parts = [
        file.run, file.setup, sorted(file.envs.items()), list(names), block.seed, block.ranks,
        [[rule.name, rule.file, rule.regex, rule.key] for rule in block.results], list(block.collect),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def done_before(file: JobFile, rows: BagRows, code: str, base: str) -> BagHistory:
    """Return what earlier runs have done.

    Args:
        file: the job file, with a bag.
        rows: all items of the new bag.
        code: digest of the code.
        base: URL of the folder with the runs.

    Raises:
        StoreError: the store does not answer.
    """
    reader = open_reader(base)
    same = bag_layout.submitted_prefix(file.name, fingerprint(file, rows.names))
    assert file.bag is not None
    index = f"{same}{code}/"
    keys = reader.run(keys_under(same))
    found = {key.removeprefix(index): reader.run(get(key)) for key in keys if key.startswith(index)}
    if not found:
        return BagHistory(other_code=max(keys).rpartition("/")[2] if keys else "")
    known = {run: bag_layout.submitted_from_bytes(data) for run, data in found.items() if data is not None}
    places = {_identity(row): item for item, row in enumerate(rows.rows)}
    by_number, stop_item = _uses_number(file.run), stop_item_of(file.bag.stop_item)
    carried: dict[int, CarriedItem] = {}
    for run, (bag, _) in sorted(known.items(), key=lambda one: one[1][1], reverse=True)[:RUNS_MAX]:
        for row, before, runner, outcome in _done_items(open_reader(f"{base}/{run}"), bag):
            if outcome.end is ItemEnd.STOPPED and bag.stop_item != stop_item:
                continue  # another rule might have let it run
            if bag.stop_item != stop_item:
                outcome = replace(outcome, curve=())  # noqa: PLW2901 - it may be of another metric
            item = places.get(_identity(row))
            if item is None or item in carried or (by_number and item != before):
                continue
            lease = ItemLease(item, outcome.lease.number)
            carried[item] = CarriedItem(run, runner, replace(outcome, lease=lease))
    return BagHistory(tuple(carried[item] for item in sorted(carried)))


def _identity(row: Sequence[Value]) -> tuple[str, ...]:
    return tuple(item_commands.text_of(value) for value in row)


def _uses_number(command: str) -> bool:
    return item_commands.ITEM in command or any(name == "item" for name, _ in item_commands.places(command))


def _done_items(reader: Reader, bag: Bag) -> Iterator[tuple[Sequence[Value], int, str, ItemOutcome]]:
    """Yield what a run has done: row, number, runner, outcome; nothing if the run was removed."""
    done: dict[int, tuple[str, ItemOutcome]] = {}
    for record in reader.run(read_records(0)):
        for runner, outcome in (*record.carried, *record.outcomes):
            if outcome.end.is_done and outcome.lease.item != bag.reduce_item:
                done[outcome.lease.item] = runner, outcome
    parts: dict[int, Sequence[Sequence[Value]]] = {}
    for item, (runner, outcome) in done.items():
        part, place = divmod(item, bag.rows_each)
        if part not in parts:
            (parts[part],) = reader.run(read_rows([bag.rows[part]]))
        yield parts[part][place], item, runner, outcome


def first_rows(file: JobFile, rows: BagRows, done: Sequence[CarriedItem], limit: int) -> BagRows:
    """Return the rows that would run first among those that are not done, in the order of the file.

    Args:
        file: the job file, with a bag.
        rows: all items.
        done: those that are not to run.
        limit: how many are returned, if there are as many.
    """
    assert file.bag is not None
    over = {one.outcome.lease.item for one in done}
    left = [item for item in order_of(bag_rows.to_bag(file.bag, rows)) if item not in over]
    return BagRows(rows.names, tuple(rows.rows[item] for item in sorted(left[:limit])))


def store(reader: Reader, carried: Sequence[CarriedItem], base: str, nonce: str, at: WallTime) -> None:
    """Write the items that are carried over into the log of a new run, and copy what is kept of them.

    Args:
        reader: of the new run.
        carried: the items.
        base: URL of the folder with the runs.
        nonce: random.
        at: the time.
    """
    before = open_reader(base)
    copied: set[str] = set()
    for one in carried:
        output = one.outcome.output
        for key in (*(file.key for file in one.outcome.files), *((output.key,) if output is not None else ())):
            if key not in copied:
                copied.add(key)
                data = before.run(get(f"{one.run}/{key}"))
                if data is not None:
                    reader.run(put(key, data))
    for place in range(0, len(carried), RECORD_ITEMS):
        part = carried[place : place + RECORD_ITEMS]
        number = place // RECORD_ITEMS + 1
        record = ItemRecord(number, nonce, at, carried=tuple((one.runner, one.outcome) for one in part))
        reader.run(put(bag_layout.item_record_key(number), bag_layout.record_to_bytes(record)))


def remember(file: JobFile, rows: BagRows, code: str, run: str, at: WallTime) -> Steps[None]:
    """Write that a bag is submitted, beside the runs, so that later ones find it.

    Args:
        file: the job file, with a bag.
        rows: its items.
        code: digest of the code.
        run: its job.
        at: the time.
    """
    assert file.bag is not None
    key = f"{bag_layout.submitted_prefix(file.name, fingerprint(file, rows.names))}{code}/{run}"
    yield from put(key, bag_layout.submitted_to_bytes(bag_rows.to_bag(file.bag, rows), at))
