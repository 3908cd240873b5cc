"""`windfall lab fit`: a law of machine lifetimes, fitted to a table of them."""

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

from windfall.cli.options import Json, OptionalDuration, Plot
from windfall.errors import InvalidFile, Misuse
from windfall.extras import install
from windfall.report.console import console
from windfall.units import duration_s

if TYPE_CHECKING:
    from windfall.models.lifetimes.groups import Group
    from windfall.models.lifetimes.model_selection import Fit
    from windfall.models.lifetimes.observations import Lifetimes

ROWS_MAX = 1_000_000
ASIDE_SHARE_MAX = 0.2
"""If a larger share of the rows is bad, the whole table is refused."""
_LENGTHS = (("duration_s", 1.0), ("lifetime_s", 1.0), ("duration_h", 3600.0), ("lifetime_h", 3600.0), ("hours", 3600.0))
_ENDS = ("event", "end_event", "lost", "preempted")
_BATCHES = ("batch", "launch_batch")
_LOST = frozenset({"1", "true", "yes", "preempted", "lost"})
_CENSORED = frozenset({"0", "false", "no", "censored", "stopped", "user_stop", "running"})

Switch = Annotated[bool, Parameter(negative="")]


def fit(
    file: Path,
    *,
    limit: OptionalDuration = None,
    by: Annotated[str | None, Parameter(metavar="COLUMN")] = None,
    plot: Plot = None,
    dark: Switch = False,
    seed: int = 0,
    strict: Switch = False,
    json_: Json = False,
) -> None:
    """Fit laws to a table of machine lifetimes, and choose the law that predicts best.

    The table is CSV with a header line.  Its columns are the lifetime (`duration_s` or `lifetime_s` in seconds;
    `duration_h`, `lifetime_h` or `hours` in hours), the `event` (1 or preempted: lost; 0 or censored: stopped by its
    user, or still running) and, if known, the launch `batch`.  Machines of one batch are lost together: without the
    batch, confidence intervals are too narrow.

    Example: `windfall lab fit lifetimes.csv --limit 24h --by zone --plot lifetimes.png`

    Args:
        file: the table.
        limit: the provider's maximum age of a machine, such as 24h; default: detected from the data.
        by: a column (type, zone, ...): find which of its values need a separate law.
        plot: draw distribution, quantiles and hazard to this file (PNG or SVG).
        dark: use a dark background for the picture.
        seed: seed of the bootstrap.
        strict: refuse the table if any row is bad; by default bad rows are skipped, counted and named.
        json_: print one JSON object.
    """
    if plot is not None and (plot.suffix not in (".png", ".svg") or not os.access(plot.absolute().parent, os.W_OK)):
        raise Misuse(f"--plot: {plot} must be a .png or .svg file in an existing folder that you can write to")
    limit_s = None if limit is None else float(duration_s(limit, "--limit"))
    if limit_s == 0:
        raise Misuse("--limit must be positive, for example 24h")
    try:
        found, groups = _fitted(read_lifetimes(file, by, strict=strict), limit_s, by, seed)
        from windfall.lab import lifetimes_report  # noqa: PLC0415 - needs numpy, an extra
    except ImportError as error:
        raise Misuse(f"this needs numpy and scipy: {install('lab')}") from error
    if plot is not None:
        lifetimes_report.draw(found, plot, title=file.name, dark=dark)
    if json_:
        print(json.dumps(lifetimes_report.as_json(found, groups)))
        return
    screen = console()
    screen.print(lifetimes_report.render(found, groups))
    if plot is not None:
        screen.print(f"picture: {plot}")


def _fitted(lifetimes: Lifetimes, limit_s: float | None, by: str | None, seed: int) -> tuple[Fit, tuple[Group, ...]]:
    from windfall.models.lifetimes import groups as lifetime_groups  # noqa: PLC0415 - needs scipy, an extra
    from windfall.models.lifetimes import model_selection  # noqa: PLC0415
    from windfall.models.lifetimes.maximum_likelihood import Bounds  # noqa: PLC0415

    found = model_selection.fit_lifetimes(lifetimes, bounds=Bounds(limit_s=limit_s), seed=seed)
    return found, () if by is None else lifetime_groups.fit_groups(found, by)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Positions of the needed values in a line."""

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


def read_lifetimes(file: Path, by: str | None = None, *, strict: bool = True) -> Lifetimes:
    """Read a table of lifetimes.

    Args:
        file: CSV with a header line.
        by: a column to group by.
        strict: refuse the table if any row is bad; otherwise bad rows are skipped, with a warning.

    Raises:
        InvalidFile: a row or the header is wrong; the message says where.
        Misuse: the file cannot be read, or has no rows or too many.
    """
    from windfall.models.lifetimes.observations import lifetimes_of  # noqa: PLC0415 - needs numpy, an extra

    table = _Table()
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            aside = _read(file, csv.reader(opened, strict=True), by, table)
    except FileNotFoundError as error:
        raise Misuse(f"{file} does not exist") from error
    except OSError as error:
        raise Misuse(f"cannot read {file}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise Misuse(f"{file} is not a CSV table in UTF-8: {error}") from error
    if aside and (strict or len(aside) > ASIDE_SHARE_MAX * (len(aside) + len(table.duration_s))):
        raise aside[0]
    if aside:
        others = f" (and {len(aside) - 1} more)" if len(aside) > 1 else ""
        print(f"windfall: skipped {len(aside)} bad row{'s' * (len(aside) > 1)}: {aside[0]}{others}", file=sys.stderr)
    if not table.duration_s:
        raise Misuse(f"{file} has no lifetimes: add one line per machine below the header line")
    keys = {} if by is None else {by: table.by}
    return lifetimes_of(table.duration_s, table.lost, batch=table.batch or None, keys=keys)


def _read(file: Path, lines: Iterator[list[str]], by: str | None, table: _Table) -> list[InvalidFile]:
    """Read the good rows into the table; return the errors of the others."""
    aside: list[InvalidFile] = []
    head = [name.strip().lower() for name in next(lines, [])]
    columns = _columns(file, head, by)
    for number, cells in enumerate(lines, 2):
        if not cells:
            continue
        if number > ROWS_MAX:
            raise Misuse(f"{file} has more than {ROWS_MAX} lifetimes: fit a sample of them")
        try:
            if len(cells) != len(head):
                raise InvalidFile(f"{file}:{number}:1: {len(cells)} values, but the header line has {len(head)}")
            length_s = _length(file, number, cells[columns.length], columns)
            lost = _is_lost(file, number, cells[columns.end], columns)
        except InvalidFile as error:
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
        raise InvalidFile(f"{file}:1:1: the header line must name exactly one lifetime column: {known}")
    ends = [head.index(name) for name in _ENDS if name in head]
    if not ends:
        raise InvalidFile(f"{file}:1:1: the header line has no column `event` (1: lost, 0: censored)")
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
        raise InvalidFile(f"{file}:{number}:{columns.length + 1}: {text!r} is not a lifetime; write a positive number")
    return value * columns.unit_s


def _is_lost(file: Path, number: int, text: str, columns: _Columns) -> bool:
    word = text.strip().lower()
    if word not in _LOST and word not in _CENSORED:
        raise InvalidFile(
            f"{file}:{number}:{columns.end + 1}: {text!r} is not an event; write 1 (lost) or 0 (censored)"
        )
    return word in _LOST
