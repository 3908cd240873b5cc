"""The reduce step of a bag: `python -m windfall.cli.reduce_process REQUEST`, which the runner starts as its last item.

It writes the results of all items that are done, and the files that were kept of them, into its folder, and then becomes the
command that the bag names.
"""

from __future__ import annotations

import contextlib
import csv
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from windfall.agent import item_files, script_environment
from windfall.agent.exec_request import load
from windfall.bags import Bag, ItemOutcome
from windfall.core import item_commands
from windfall.errors import Misuse, StoreError, WindfallError
from windfall.policies.layout.bag_rules import bag_of
from windfall.runtimes.item_dispatcher import read_records, read_rows
from windfall.storage.object_stores import Reader, open_reader
from windfall.storage.store_operations import get


def main() -> int:
    """Write the folder's content and become the command; return an exit code if that fails."""
    try:
        request = load(sys.argv[1])
        bag = bag_of(request.settings)
        if bag.reduce is None:
            raise Misuse("the job's bag has no reduce step")
        reader = open_reader(request.url)
        done = done_items(reader)
        write_table(reader, bag, done, Path(item_files.TABLE))
        _write_files(reader, done, Path(item_files.COLLECTED))
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        return error.exit_code
    argv = [*request.argv[:-1], bag.reduce]
    return os.execvpe(argv[0], argv, script_environment.inherited_environment())


def done_items(reader: Reader) -> Mapping[int, ItemOutcome]:
    """Return the outcome of each item that is done, by its number, in order; the reduce step is none."""
    found: dict[int, ItemOutcome] = {}
    for record in reader.run(read_records(0)):
        for _, outcome in (*record.carried, *record.outcomes):
            if outcome.end.is_done:
                found[outcome.lease.item] = outcome
    return dict(sorted(found.items()))


def write_table(reader: Reader, bag: Bag, done: Mapping[int, ItemOutcome], path: Path) -> None:
    """Write a row for each item that is done: its number, its parameters, its results, and why it was stopped."""
    stops = bag.stop_item is not None
    names = [rule.name for rule in bag.results]
    # A link of this name leads to the user's own file.
    path.unlink(missing_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["item", *bag.parameters, *names, *(["stopped"] if stops else [])])
        for part, key in enumerate(bag.rows):
            (rows,) = reader.run(read_rows([key]))
            for item, row in enumerate(rows, part * bag.rows_each):
                if (outcome := done.get(item)) is not None:
                    # One that was stopped may lack results.
                    values = [outcome.values.get(name, "") for name in names] + ([outcome.stopped] if stops else [])
                    table.writerow([item, *map(item_commands.text_of, (*row, *values))])


def _write_files(reader: Reader, done: Mapping[int, ItemOutcome], folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.unlink()
    for item, outcome in done.items():
        for stored in outcome.files:
            data = reader.run(get(stored.key))
            if data is None:
                raise StoreError(f"{stored.key} is not there: {stored.path} of item {item} is lost")
            path = folder / str(item) / stored.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
