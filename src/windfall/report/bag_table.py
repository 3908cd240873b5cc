"""The results of a bag as a table: a row for each item, as CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from windfall.bags import Bag
from windfall.errors import Misuse
from windfall.extras import install
from windfall.report.bag_log import ItemRow

FORMATS = (".csv", ".json", ".parquet")
_OWN: Mapping[str, Callable[[ItemRow], Any]] = {
    "state": lambda row: row.state.value,
    "attempts": lambda row: row.attempts,
    "exit_code": lambda row: None if row.outcome is None else row.outcome.exit_code,
    "run_s": lambda row: None if row.outcome is None else round(row.outcome.run_s, 3),
    "machine": lambda row: row.machine or None,
    "problem": lambda row: None if row.outcome is None else row.outcome.problem or None,
}


def columns(bag: Bag) -> list[tuple[str, Callable[[ItemRow], Any]]]:
    """Return the columns, each with its value of a row; a name that is there already gets a prefix."""
    found: list[tuple[str, Callable[[ItemRow], Any]]] = [("item", lambda row: row.item)]

    def add(name: str, prefix: str, value: Callable[[ItemRow], Any]) -> None:
        names = {one for one, _ in found}
        while name in names:
            name = prefix + name
        found.append((name, value))

    for place, name in enumerate(bag.parameters):
        add(name, "parameter_", partial(_parameter, place=place))
    for rule in bag.results:
        add(rule.name, "result_", partial(_result, name=rule.name))
    for name, value in _OWN.items():
        add(name, "item_", value)
    if bag.smaller:
        add("cpus", "item_", lambda row: None if row.outcome is None else row.outcome.cpus or bag.cores)
    if bag.stop_item is not None:
        add("stopped", "item_", lambda row: None if row.outcome is None else row.outcome.stopped or None)
    return found


def _parameter(row: ItemRow, place: int) -> Any:
    return row.values[place]


def _result(row: ItemRow, name: str) -> Any:
    return None if row.outcome is None else row.outcome.values.get(name)


def objects(bag: Bag, rows: Iterable[ItemRow]) -> Iterable[dict[str, Any]]:
    """Yield each row as a JSON object."""
    named = columns(bag)
    for row in rows:
        yield {name: value(row) for name, value in named}


def write_csv(bag: Bag, rows: Iterable[ItemRow], file: TextIO) -> None:
    """Write rows as CSV; what is not there is empty."""
    named = columns(bag)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(name for name, _ in named)
    for row in rows:
        writer.writerow(value(row) for _, value in named)


def write_json(bag: Bag, rows: Iterable[ItemRow], file: TextIO) -> None:
    """Write rows as one JSON list of objects."""
    file.write("[")
    file.writelines(f"{',' if place else ''}\n{json.dumps(made)}" for place, made in enumerate(objects(bag, rows)))
    file.write("\n]\n")


def check_parquet() -> None:
    """Check that Parquet can be written.

    Raises:
        Misuse: pyarrow is missing.
    """
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Misuse(
            f"-o: a .parquet file needs the package pyarrow, which is not installed: {install('parquet')}; or write .csv"
        ) from error


def write_parquet(bag: Bag, rows: Iterable[ItemRow], path: str) -> None:
    """Write rows as Parquet; a column with texts and numbers becomes one of texts."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415

    named = columns(bag)
    data: list[list[Any]] = [[] for _ in named]
    for row in rows:
        for column, (_, value) in zip(data, named, strict=True):
            column.append(value(row))
    arrays = [pa.array(_of_one_kind(column)) for column in data]
    parquet.write_table(pa.table(arrays, names=[name for name, _ in named]), path)


def _of_one_kind(column: Sequence[Any]) -> Sequence[Any]:
    kinds = {type(value) for value in column if value is not None}
    if kinds <= {int, float} and float in kinds:
        return [None if value is None else float(value) for value in column]
    return column if len(kinds) <= 1 else [None if value is None else str(value) for value in column]
