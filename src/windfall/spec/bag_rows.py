"""The items of a bag: the rows of its parameter space, from the block and from a CSV file."""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from windfall.bags import Bag, RestartRule, StopWhen, Value
from windfall.core import item_commands
from windfall.errors import Misuse
from windfall.extras import install
from windfall.models import parameter_space
from windfall.models.parameter_space import Sampling
from windfall.spec.bag_block import BagBlock, StopWhenBlock
from windfall.spec.bag_fields import ITEMS_MAX, NAME
from windfall.spec.stop_item_block import stop_item_of
from windfall.structs import Struct
from windfall.terms import Seconds
from windfall.wire import bag_layout

ROWS_EACH = 10_000
"""Rows in one object of the store."""
_DIGITS_MAX = 18
"""Longer numbers may not fit into 64 bits."""
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class BagRows(Struct, frozen=True):
    """The items of a bag: names of their parameters, and their values."""

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def parts(self) -> Iterable[tuple[tuple[Value, ...], ...]]:
        """Yield the rows of each object in the store."""
        for start in range(0, len(self.rows), ROWS_EACH):
            yield self.rows[start : start + ROWS_EACH]

    def objects(self) -> Mapping[str, bytes]:
        """Return the objects that the rows are stored as, by key; the digest in a key is that of all rows."""
        return _objects(self)


@functools.lru_cache(maxsize=1)
def _objects(rows: BagRows) -> Mapping[str, bytes]:
    # A command asks for them several times, and 100,000 rows take half a second to write.
    parts = [bag_layout.rows_to_bytes(part) for part in rows.parts()]
    found = hashlib.sha256(repr(rows.names).encode())
    for part in parts:
        found.update(part)
    digest = found.hexdigest()[:32]
    return {bag_layout.rows_key(digest, number): part for number, part in enumerate(parts)}


def rows_of(block: BagBlock, warn: Callable[[str], None]) -> BagRows:
    """Return the items of a bag.

    Args:
        block: of the job file.
        warn: receives a message for what is valid but unwise.

    Raises:
        Misuse: the file with rows cannot be used, there are too many items, or a package is missing.
    """
    names, given = read_rows(block.rows) if block.rows is not None else ((), [()])
    if twice := set(names) & {*block.names, *((item_commands.REPEAT,) if block.repeats > 1 else ())}:
        other = (
            f"bag.parameters both have {min(twice)}" if min(twice) in block.names else "bag.repeats both make repeat"
        )
        raise Misuse(f"bag.rows: {block.rows} and {other}; keep one of them")
    drawn = block.samples or 1 if block.ranged else 1
    count = len(given) * math.prod(len(one.values) for one in block.listed) * drawn * block.repeats
    if count > ITEMS_MAX:
        raise Misuse(f"bag: the parameters have {count:,} combinations, more than {ITEMS_MAX:,}")
    own = _points(block, warn)
    repeats: Sequence[tuple[Value, ...]] = [(number,) for number in range(block.repeats)] if block.repeats > 1 else [()]
    rows = tuple((*row, *point, *repeat) for row, point, repeat in itertools.product(given, own, repeats))
    made = BagRows((*names, *block.names, *((item_commands.REPEAT,) if block.repeats > 1 else ())), rows)
    if block.weights is not None:
        _check_weights(block.weights, made)
    return made


def _check_weights(name: str, made: BagRows) -> None:
    place = made.names.index(name)
    for item, row in enumerate(made.rows):
        weight = row[place]
        if isinstance(weight, (bool, str)) or not 0.0 <= weight < math.inf:
            raise Misuse(f"bag.weights: the weight {name} must be a number from 0 on, not {weight!r} (item {item})")
    if not math.fsum(float(row[place]) for row in made.rows):
        raise Misuse(f"bag.weights: {name} is 0 for all items; at least one must count")


def _points(block: BagBlock, warn: Callable[[str], None]) -> list[tuple[Value, ...]]:
    """Return the points of the block's own parameters; a sample of whole numbers that was drawn twice runs once."""
    try:
        found = list(
            parameter_space.points(
                block.listed,
                block.ranged,
                samples=block.samples or 1,
                sampling=Sampling(block.sampling),
                seed=block.seed,
            )
        )
    except ModuleNotFoundError as error:
        raise Misuse(
            f"bag.sampling: latin-hypercube needs the package {error.name}: {install('lab')}; or write sampling: random"
        ) from error
    if not block.ranged:
        return found
    different = list({tuple(map(item_commands.text_of, point)): point for point in reversed(found)}.values())[::-1]
    if len(different) < len(found):
        warn(
            f"bag.samples: {len(found) - len(different)} of {len(found)} points were drawn twice and run once; "
            "for more of the same write bag.repeats"
        )
    return different


def _lines(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each line of a CSV file that is not empty, with the number of its last line in the file."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, skipinitialspace=True, strict=True)
            for line in lines:
                if line:
                    yield lines.line_num, line
    except UnicodeDecodeError as error:
        raise Misuse(f"bag.rows: cannot read {path}: it is not text in UTF-8") from error
    except (OSError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Misuse(f"bag.rows: cannot read {path}: {reason}") from error


def names_of(path: str) -> tuple[str, ...]:
    """Return the names in the first line of a CSV file.

    Raises:
        Misuse: it cannot be read, or they cannot be the names of parameters.
    """
    number, first = next(_lines(path), (1, []))
    names = tuple(name.strip() for name in first)
    if not names:
        raise Misuse(f"bag.rows: {path} is empty; its first line has the names, each other line is an item")
    for column, name in enumerate(names, 1):
        place = f"{path}:{number}: column {column}"
        if not re.fullmatch(NAME, name):
            used = next((word for sign, word in _SEPARATORS.items() if sign in name and len(names) == 1), None)
            advice = (
                f"separate values by commas, not {used}"
                if used
                else "write names in the first line: letters, digits and _"
            )
            raise Misuse(f"{place}: {name!r} cannot be the name of a parameter: {advice}")
        if name in item_commands.OWN:
            raise Misuse(f"{place}: Windfall sets {{{{{name}}}}} itself; choose another name")
        if names.count(name) > 1:
            raise Misuse(f"{path}:{number}: column {names.index(name, column) + 1}: the name {name} is there twice")
    return names


def read_rows(path: str) -> tuple[tuple[str, ...], list[tuple[Value, ...]]]:
    """Return the names and the rows of a CSV file.

    Raises:
        Misuse: it cannot be used; the message says in which line.
    """
    names = names_of(path)
    seen: dict[tuple[str, ...], int] = {}
    rows: list[tuple[Value, ...]] = []
    for number, line in itertools.islice(_lines(path), 1, None):
        if len(line) != len(names):
            raise Misuse(f"{path}:{number}: the row has {len(line)} values, but the first line has {len(names)} names")
        row = tuple(_cell(cell) for cell in line)
        texts = tuple(item_commands.text_of(value) for value in row)
        for name, text in zip(names, texts, strict=True):
            if "\0" in text:
                raise Misuse(f"{path}:{number}: {name} has a character that no command can be given")
        before = seen.setdefault(texts, number)
        if before != number:
            raise Misuse(f"{path}:{number}: the row is that of line {before}; remove one, or write bag.repeats")
        rows.append(row)
        if len(rows) > ITEMS_MAX:
            raise Misuse(f"bag.rows: {path} has more than {ITEMS_MAX:,} rows")
    if not rows:
        raise Misuse(f"bag.rows: {path} has no rows: its first line has the names, each other line is an item")
    return names, rows


def _cell(cell: str) -> Value:
    """Return a number where a cell is one that is written again as it was: 007 and 1.10 stay texts."""
    text = cell.strip()
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX:
        return int(text) if digits[0] != "0" or text == "0" else cell
    try:
        value = float(text)
    except ValueError:
        return cell
    return value if math.isfinite(value) and item_commands.text_of(value) == text else cell


_SIGNALS = {"HUP": 1, "INT": 2, "TERM": 15, "USR1": 10, "USR2": 12}


def _stop_when(block: StopWhenBlock | None) -> StopWhen | None:
    if block is None:
        return None
    rules = {name: getattr(block, name) for name in block.rules}
    return StopWhen(block.metric, block.min_items, goal=block.goal or "min", **rules)


def to_bag(block: BagBlock, rows: BagRows) -> Bag:
    """Return the bag that a block describes."""
    return Bag(
        items=len(rows.rows),
        parameters=rows.names,
        rows=tuple(rows.objects()),
        rows_each=ROWS_EACH,
        finish=block.finish,
        item_timeout_s=None if block.item_timeout is None else Seconds(block.item_timeout),
        retries_max=block.retries,
        retry_codes=block.retry_codes,
        at_once_max=block.at_once,
        cores=block.cpus_each,
        memory_gib=block.memory_each_gib,
        ranks=block.ranks,
        nodes=block.nodes_per_item,
        weight=block.weights,
        reduce=block.reduce,
        seed=block.seed,
        shuffled=block.order == "random",
        results=block.results,
        collect=block.collect,
        restart=RestartRule(
            block.restart,
            0 if block.restart_signal is None else _SIGNALS[block.restart_signal],
            None if block.save_time is None else Seconds(block.save_time),
        ),
        stop_when=_stop_when(block.stop_when),
        smaller=block.smaller,
        stop_item=stop_item_of(block.stop_item),
    )
