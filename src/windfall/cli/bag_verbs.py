"""The verbs on a bag: its results, its items' output and status, and its failed items again.

All but the last one read the run's store alone, so they work from any machine, also once the controller is gone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from windfall.bags import ItemRecovery, ItemState, RetryRequest, StoppedLease
from windfall.cli import run_reference
from windfall.cli.locations import absolute_url, local_user
from windfall.cli.options import Json, StateFolder, Switch
from windfall.control.controller_views import JobView
from windfall.errors import ControllerError, Misuse, StoreError
from windfall.events import Row
from windfall.fleet import TERMINAL
from windfall.linux.random_names import new_nonce
from windfall.report import bag_page, bag_table, recovery_words
from windfall.report.bag_log import BagLog, ItemDecision, ItemRow, item_decisions_in_log, outcomes_of, read_bag
from windfall.report.bag_types import TriedType
from windfall.runtimes.item_dispatcher import open_table
from windfall.spelling import plain
from windfall.storage import object_stores
from windfall.storage.store_operations import get, put
from windfall.structs import Struct
from windfall.terms import WallTime
from windfall.units import count_text
from windfall.wire import bag_layout

_POLL_S = 0.3
_TAKEN_S = 60.0
"""How long a request may take to reach the bag [s]."""


class OpenBag(Struct, frozen=True):
    """A bag opened for reading.

    Attributes:
        name: as messages have it: the id of its job.
        url: of its run.
    """

    name: str
    url: str
    reader: object_stores.Reader
    log: BagLog


def find_bag(url: str) -> OpenBag | None:
    """Return the bag of a run, with its log; None if the run has none or has not started."""
    reader = object_stores.open_reader(absolute_url(url))
    found = reader.run(read_bag())
    if found is None:
        return None
    log = BagLog(reader.run(open_table(found.bag)))
    reader.run(log.read())
    return OpenBag(found.job_id, url, reader, log)


def open_bag(reference: str, state: Path | None) -> OpenBag:
    """Return the bag that a user refers to.

    Raises:
        Misuse: it is none, or it has not started yet.
    """
    found = find_bag(run_reference.url_of(reference, state))
    if found is None:
        raise Misuse(f"{reference} is no bag, or has not started yet: a bag's job file has the block bag")
    return found


# ------------------------------------------------------------------------------------------------------------- results


def results(
    bag: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), metavar="FILE")] = None,
    files: Annotated[Path | None, Parameter(name="--files", metavar="FOLDER")] = None,
    all_: Switch = False,
    state: StateFolder = None,
    json_: Json = False,
) -> None:
    """Write the results of a bag as a table: a row for each item that is done.

    Example: `windfall results lj-3f9a2c -o results.csv`

    Args:
        bag: a job, or the URL of a run.
        output: write to this file, which ends in .csv, .json or .parquet (default: CSV on standard output).
        files: also download the files that were collected, into a folder for each item.
        all_: also show the items that are not done.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object per line.
    """
    if output is not None:
        _check_output(output)
    opened = open_bag(bag, state)
    states = frozenset(ItemState) if all_ else frozenset({ItemState.DONE})

    def rows() -> Iterator[ItemRow]:
        for item in range(opened.log.table.items):
            if opened.log.table.state(item) in states:
                yield opened.reader.run(opened.log.row(item))

    if output is not None:
        _write(opened, rows, output)
    elif json_:
        for made in bag_table.objects(opened.log.bag, rows()):
            print(json.dumps(made))
    elif files is None:
        bag_table.write_csv(opened.log.bag, rows(), sys.stdout)
    if files is not None:
        _download(opened, rows(), files)


def _check_output(output: Path) -> None:
    if output.suffix not in bag_table.FORMATS:
        raise Misuse(f"-o: {output} must end in .csv, .json or .parquet")
    if not os.access(output.absolute().parent, os.W_OK):
        raise Misuse(f"-o: cannot write {output}: choose a file in an existing folder that you can write to")
    if output.suffix == ".parquet":
        bag_table.check_parquet()


def _write(opened: OpenBag, rows: Callable[[], Iterator[ItemRow]], output: Path) -> None:
    """Write a table to a file, whole or not at all."""
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    bag = opened.log.bag
    try:
        if output.suffix == ".parquet":
            bag_table.write_parquet(bag, rows(), str(draft))
        else:
            with draft.open("w", newline="", encoding="utf-8") as file:
                write: Callable[..., None] = bag_table.write_csv if output.suffix == ".csv" else bag_table.write_json
                write(bag, rows(), file)
                _sync(file)
        os.replace(draft, output)
    finally:
        draft.unlink(missing_ok=True)
    counts = opened.log.table.counts
    items = opened.log.table.items
    rest = items - counts.done
    more = f"; {rest:,} of {items:,} are not done" if rest else ""
    print(f"windfall: wrote {output}: {sum(1 for _ in rows()):,} items{more}", file=sys.stderr)


def _sync(file: TextIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _download(opened: OpenBag, rows: Iterator[ItemRow], folder: Path) -> None:
    """Download collected files into a folder for each item; a file is there whole or not at all."""
    count = 0
    for row in rows:
        for kept in row.outcome.files if row.outcome is not None else ():
            data = opened.reader.run(get(kept.key))
            if data is None:
                raise StoreError(f"{kept.key} is not in the store: file {kept.path} of item {row.item} was deleted")
            target = folder / str(row.item) / kept.path
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            draft.write_bytes(data)
            os.replace(draft, target)
            count += 1
    what = count_text(count, "file", "files")
    advice = "" if count or opened.log.bag.collect else ": the job file names none in bag.collect"
    print(f"windfall: {what} in {folder}{advice}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------------- logs


def split_item(reference: str) -> tuple[str, int] | None:
    """Return bag and item of `BAG/ITEM`; None if the reference names a run."""
    head, slash, tail = reference.rpartition("/")
    folder = reference.removeprefix("file://")
    if not slash or not head or not tail.isdecimal() or os.path.isdir(folder):
        return None
    return head, int(tail)


def print_item(reference: str, item: int, attempt: int | None, state: Path | None) -> None:
    """Print what an item printed: of its newest stored attempt, or of one of them.

    Raises:
        Misuse: there is no such item, or nothing that it printed.
    """
    opened = open_bag(reference, state)
    table = opened.log.table
    if item >= table.items:
        raise Misuse(f"{reference} has {table.items:,} items, from 0 on: there is no item {item}")
    lease = table.lease(item)
    for _, one in opened.reader.run(item_decisions_in_log()) if opened.log.recovered or opened.log.stopped else ():
        if isinstance(one, ItemRecovery) and one.item == item:
            print(f"windfall: item {item} was preempted: {one.action}, {one.reason}", file=sys.stderr)
        elif isinstance(one, StoppedLease) and one.lease.item == item:
            print(f"windfall: item {item} was stopped: {one.reason}", file=sys.stderr)
    if not lease.number:
        raise Misuse(f"item {item} of {reference} has not run: it is {table.state(item)}")
    if attempt is not None and not 1 <= attempt <= lease.number:
        raise Misuse(f"--attempt: item {item} of {reference} has attempts 1 to {lease.number}, not {attempt}")
    found = opened.reader.run(outcomes_of(item))
    asked = [one for one in found if attempt in (None, one.lease.number)]
    stored = [one.output for one in asked if one.output is not None]
    if not stored and table.state(item) is ItemState.DISCARDED:
        raise Misuse(f"item {item} of {reference} was discarded before it had ended, so it has printed nothing")
    if not stored:
        raise Misuse(_why_nothing(f"item {item} of {reference}", attempt, ended=bool(asked)))
    place = stored[-1]
    data = opened.reader.run(get(place.key))
    if data is None:
        raise StoreError(f"{place.key} is not in the store: what item {item} printed was deleted")
    sys.stdout.buffer.write(data[place.offset : place.offset + place.size_bytes])
    sys.stdout.buffer.flush()


def _why_nothing(what: str, attempt: int | None, *, ended: bool) -> str:
    tried = "" if attempt is None else f" in attempt {attempt}"
    if ended:
        return f"{what} printed nothing{tried}"
    if attempt is None:
        return f"{what} has not ended yet: what it prints is stored when it has"
    return f"{what} has stored nothing of attempt {attempt}: it runs, or its machine was lost"


# ------------------------------------------------------------------------------------------------------------- explain


def decision_rows(reference: str, item: int | None, state: Path | None) -> list[Row]:
    """Return the decisions on items of a bag that were preempted or stopped, as rows of a journal; none if it has not started.

    Args:
        reference: a job or the URL of a run.
        item: the only one that counts; None for all.
        state: folder for Windfall's own files.
    """
    reader = object_stores.open_reader(absolute_url(run_reference.url_of(reference, state)))
    if reader.run(read_bag()) is None:
        return []
    made = reader.run(item_decisions_in_log())
    return list(recovery_words.decision_rows(one for one in made if item in (None, _item_of(one[1]))))


def _item_of(decision: ItemDecision) -> int | None:
    if isinstance(decision, str):
        return None
    return decision.item if isinstance(decision, ItemRecovery) else decision.lease.item


# ------------------------------------------------------------------------------------------------------------------ ps


def show(opened: OpenBag, view: JobView | None, *, json_: bool, types: Sequence[TriedType] = ()) -> None:
    """Print how a bag stands; `view` is its job's, None if the controller was not asked, as are `types`."""
    now, details = WallTime(time.time()), {} if view is None else view.details
    if json_:
        print(json.dumps({"url": opened.url, "bag": bag_page.as_json(opened.log, now, details)}))
        return
    if view is None:
        print(f"{'bag':<10}{plain(opened.name)}\n{'run':<10}{plain(opened.url)}")
    for line in bag_page.lines(opened.log, now, opened.name, details, types):
        print(line)


# -------------------------------------------------------------------------------------------------------- failed again


def retry_failed(bag: str, /, *, state: StateFolder = None) -> int:
    """Run the items of a bag that have failed again, those that took too long included, and a reduce step that failed.

    What is done stays done.  A bag that has ended resumes with what failed; a reduce step runs once the items are over.

    Example: `windfall retry-failed lj-3f9a2c`

    Args:
        bag: the job: its id, id prefix or name.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
    """
    if run_reference.is_url(bag):
        raise Misuse(f"{bag} is a run: name its job, whose controller orders the machines (`windfall ps` lists jobs)")
    with run_reference.controller(state) as client:
        view = run_reference.find(client, bag)
        if view.run_deleted:
            raise Misuse(run_reference.deleted(view))
        opened = open_bag(view.run_url, state)
        log, name = opened.log, view.job_id
        if log.bag.grows:
            raise Misuse(f"{name} runs the calls of a wf.Executor: submit those that failed to a new one")
        failed, reduces = log.table.counts.failed, log.table.reduce_failed
        if not failed and not reduces:
            print(f"no item of {name} has failed: {bag_page.progress_text(log, WallTime(time.time()))}")
            return 0
        nonce = new_nonce()
        request = RetryRequest(local_user(), WallTime(time.time()))
        opened.reader.run(put(bag_layout.retry_request_key(nonce), bag_layout.retry_to_bytes(request)))
        started, resumed_at = time.monotonic(), 0.0
        while True:
            opened.reader.run(log.read())
            view = client.job(name)
            taken, over = nonce in log.table.retried, view.phase in TERMINAL
            if taken and (log.table.closed or not over):
                break
            now = time.monotonic()
            if now - started > _TAKEN_S:
                raise ControllerError(
                    f"{name} has not taken in the request yet: `windfall ps {name}` shows why; the request is kept"
                )
            if over and now - resumed_at > _POLL_S * 10:
                client.resume(name, more=True)
                resumed_at = now
            time.sleep(_POLL_S)
    items = [count_text(failed, "item", "items")] if failed else []
    again = " and ".join([*items, *(["the reduce step"] if reduces else [])])
    verb = "runs" if failed + reduces == 1 else "run"
    print(f"{again} {verb} again: `windfall ps {name}` shows how far, `windfall logs -f {name}` follows")
    return 0
