"""`windfall lab fit`: how machines are lost, from a table of their lives."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from windfall.cli.runs import Json
from windfall.errors import Misspelt, Misuse
from windfall.extras import install
from windfall.report.showing import console
from windfall.units import duration_s

if TYPE_CHECKING:
    from windfall.models.lifetimes.choosing import Fit
    from windfall.models.lifetimes.grouping import Group
    from windfall.models.lifetimes.lives import Lives

ROWS_MAX = 1_000_000
ASIDE_SHARE_MAX = 0.2
"""If more of the rows than this share are bad, it is the table that is not understood."""
_LENGTHS = (("duration_s", 1.0), ("lifetime_s", 1.0), ("duration_h", 3600.0), ("lifetime_h", 3600.0), ("hours", 3600.0))
_ENDS = ("event", "end_event", "lost", "preempted")
_BATCHES = ("batch", "launch_batch")
_LOST = frozenset({"1", "true", "yes", "preempted", "lost"})
_CENSORED = frozenset({"0", "false", "no", "censored", "stopped", "user_stop", "running"})

Switch = Annotated[bool, Parameter(negative="")]


def fit(
    file: Path,
    *,
    limit: str | None = None,
    by: str | None = None,
    plot: Path | None = None,
    dark: Switch = False,
    seed: int = 0,
    strict: Switch = False,
    json_: Json = False,
) -> None:
    """Fit laws of lifetimes to a table of lives, and choose the one that predicts best.

    The table is CSV with a head line: the length of each life (`duration_s` or `lifetime_s` in seconds; `duration_h`,
    `lifetime_h` or `hours` in hours), its `event` (1 or preempted: lost; 0 or censored: stopped by its user, or still running)
    and, if known, its launch `batch`.  Machines that were launched together share their fate: without a batch the
    intervals are too narrow.

    Example: `windfall lab fit lifetimes.csv --limit 24h --by zone --plot lifetimes.png`

    Args:
        file: the table.
        limit: the provider's limit of age, such as 24h; without it, it is looked for.
        by: a column (type, zone, ...): which of its values have a law of their own.
        plot: draw distribution, quantiles and hazard to this file (PNG or SVG).
        dark: draw on dark paper.
        seed: of the bootstrap.
        strict: refuse the table for one bad row; otherwise such rows are left out, counted and named.
        json_: one JSON object.
    """
    if plot is not None and (plot.suffix not in (".png", ".svg") or not os.access(plot.absolute().parent, os.W_OK)):
        raise Misuse(f"--plot: {plot} must be a .png or .svg in a folder that exists and is yours")
    limit_s = None if limit is None else float(duration_s(limit, "--limit"))
    if limit_s == 0:
        raise Misuse("--limit: a limit of age is above zero")
    try:
        found, groups = _fitted(read_lives(file, by, strict=strict), limit_s, by, seed)
        from windfall.report import lifetimes  # noqa: PLC0415 - needs numpy, an extra
    except ImportError as error:
        raise Misuse(f"this needs numpy and scipy: {install('lab')}") from error
    if plot is not None:
        lifetimes.draw(found, plot, title=file.name, dark=dark)
    if json_:
        print(json.dumps(lifetimes.as_json(found, groups)))
        return
    screen = console()
    screen.print(lifetimes.whole(found, groups))
    if plot is not None:
        screen.print(f"picture: {plot}")


def _fitted(lives: Lives, limit_s: float | None, by: str | None, seed: int) -> tuple[Fit, tuple[Group, ...]]:
    from windfall.models.lifetimes import choosing, grouping  # noqa: PLC0415 - needs scipy, an extra
    from windfall.models.lifetimes.fitting import Bounds  # noqa: PLC0415

    found = choosing.fit_lives(lives, bounds=Bounds(limit_s=limit_s), seed=seed)
    return found, () if by is None else grouping.fit_groups(found, by)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where in a line the needed values are."""

    length: int
    unit_s: float
    end: int
    batch: int | None
    by: int | None


@dataclass(slots=True)
class _Table:
    """The values read so far."""

    duration_s: list[float] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)
    batch: list[str] = field(default_factory=list)
    by: list[str] = field(default_factory=list)


def read_lives(file: Path, by: str | None = None, *, strict: bool = True) -> Lives:
    """Read a table of lives.

    Args:
        file: CSV with a head line.
        by: a column to keep, to group by.
        strict: whether one bad row makes the table bad; otherwise it is left out, and told.

    Raises:
        Misspelt: a line or the head is wrong; the message says where.
        Misuse: the file cannot be read, or has no lives or too many.
    """
    from windfall.models.lifetimes.lives import lives_of  # noqa: PLC0415 - needs numpy, an extra

    table = _Table()
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            aside = _read(file, csv.reader(opened, strict=True), by, table)
    except OSError as error:
        raise Misuse(f"{file} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise Misuse(f"{file} is not a CSV table in UTF-8: {error}") from error
    if aside and (strict or len(aside) > ASIDE_SHARE_MAX * (len(aside) + len(table.duration_s))):
        raise aside[0]
    if aside:
        left_out = f"{len(aside)} row{'s are' if len(aside) > 1 else ' is'} left out: {aside[0]}"
        print(f"windfall: {left_out}{' (and others)' if len(aside) > 1 else ''}", file=sys.stderr)
    if not table.duration_s:
        raise Misuse(f"{file} has no lives: below the head line, one line a machine is expected")
    keys = {} if by is None else {by: table.by}
    return lives_of(table.duration_s, table.lost, batch=table.batch or None, keys=keys)


def _read(file: Path, lines: Iterator[list[str]], by: str | None, table: _Table) -> list[Misspelt]:
    """Read the good rows into the table; return what is wrong with the others."""
    aside: list[Misspelt] = []
    head = [name.strip().lower() for name in next(lines, [])]
    columns = _columns(file, head, by)
    for number, cells in enumerate(lines, 2):
        if not cells:
            continue
        if number > ROWS_MAX:
            raise Misuse(f"{file} has more than {ROWS_MAX} lives: fit a sample of them")
        try:
            if len(cells) != len(head):
                raise Misspelt(f"{file}:{number}:1: {len(cells)} values where the head line has {len(head)}")
            length_s = _length(file, number, cells[columns.length], columns)
            lost = _is_lost(file, number, cells[columns.end], columns)
        except Misspelt as error:
            aside.append(error)
            continue
        table.duration_s.append(length_s)
        table.lost.append(lost)
        if columns.batch is not None:
            table.batch.append(cells[columns.batch].strip())
        if columns.by is not None:
            table.by.append(cells[columns.by].strip())
    return aside


def _columns(file: Path, head: Sequence[str], by: str | None) -> _Columns:
    lengths = [(head.index(name), unit_s) for name, unit_s in _LENGTHS if name in head]
    if len(lengths) != 1:
        known = ", ".join(name for name, _ in _LENGTHS)
        raise Misspelt(f"{file}:1:1: the head line must name one column of lengths, one of: {known}")
    ends = [head.index(name) for name in _ENDS if name in head]
    if not ends:
        raise Misspelt(f"{file}:1:1: the head line names no column `event` (1: lost, 0: censored)")
    if by is not None and by.lower() not in head:
        raise Misuse(f"--by: {file} has no column {by!r}; it has: {', '.join(head)}")
    batch = next((head.index(name) for name in _BATCHES if name in head), None)
    return _Columns(*lengths[0], ends[0], batch, None if by is None else head.index(by.lower()))


def _length(file: Path, number: int, text: str, columns: _Columns) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise Misspelt(
            f"{file}:{number}:{columns.length + 1}: {text!r} is not the length of a life, a number above zero"
        )
    return value * columns.unit_s


def _is_lost(file: Path, number: int, text: str, columns: _Columns) -> bool:
    word = text.strip().lower()
    if word not in _LOST and word not in _CENSORED:
        raise Misspelt(f"{file}:{number}:{columns.end + 1}: {text!r} is no event: write 1 (lost) or 0 (censored)")
    return word in _LOST
