"""`windfall lab replicate`: the papers' numbers beside ours."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from windfall.cli.lab_fit import read_lives
from windfall.cli.runs import Json
from windfall.errors import Misuse
from windfall.extras import install
from windfall.report import replicate as shown
from windfall.report.showing import console
from windfall.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from windfall.models.exact.rows import Row
    from windfall.models.lifetimes.lives import Lives
    from windfall.simulation.papers.parts import Tell

PAPERS = ("thesis", "scispot")
TRIALS, TRIALS_MAX = 200, 1_000_000
"""200: the totals' standard error is below 0.1 %, and the longest table takes some seconds."""
_KEYS = (("type", ("machine_type", "type")), ("zone", ("zone",)))


def replicate(
    paper: str,
    *,
    item: Annotated[tuple[str, ...] | None, Parameter(negative="")] = None,
    data: Path | None = None,
    trials: int = TRIALS,
    seed: int = 0,
    plot: Path | None = None,
    json_: Json = False,
) -> None:
    """Compute the numbers of a paper again and set them beside the published ones.

    Each row has a verdict: `match` (within what its method says), `differs` (the reason says why, with the arithmetic where
    the paper is at fault), or `cannot` (what would be needed is not published, or was not given).

    Papers: `thesis` (adaptive checkpointing: Tables 6.1 to 6.3, Figures 6.1 to 6.3, its rule, its slips), `scispot`
    (lifetimes, checkpoint program, reuse policy, evaluation).

    Example: `windfall lab replicate thesis --item table-6.2`

    Args:
        paper: thesis or scispot.
        item: only what begins with this: a table or figure (`table-6.2`, `figure`), or a column or job (`adaptive`); can be
            given again.
        data: lives of machines for SciSpot's fits (CSV as for `lab fit`, with machine_type and zone).
        trials: of each simulated column; 0: closed forms only.
        seed: of the simulation.
        plot: draw the figures that were computed into this folder, on light and on dark paper.
        json_: one JSON array.
    """
    if paper not in PAPERS:
        raise Misuse(f"there is no paper {paper!r} to replicate; {nearest(paper, PAPERS)}")
    if not 0 <= trials <= TRIALS_MAX:
        raise Misuse(f"--trials: {trials} is not a number of trials from 0 (nothing is simulated) to {TRIALS_MAX}")
    if plot is not None:
        _prepare(plot)
    lives = None if data is None else _lives(data)
    with _telling(shown=not json_ and sys.stderr.isatty()) as tell:
        rows = _replicated(paper, item or (), (trials, seed, lives), tell)
        drawn = [] if plot is None else _drawn(rows, plot, tell)
    if json_:
        print(json.dumps(shown.as_json(rows)))
        return
    screen = console()
    screen.print(shown.whole(rows))
    for path in drawn:
        screen.print(f"picture: {path}", soft_wrap=True)
    if plot is not None and not drawn:
        screen.print("no picture: what was asked for is in no figure")


def _replicated(
    paper: str, items: tuple[str, ...], options: tuple[int, int, Lives | None], tell: Tell
) -> tuple[Row, ...]:
    tell(f"loading what {paper} needs")
    try:
        from windfall.simulation.papers import parts, scispot, thesis  # noqa: PLC0415 - need numpy, an extra
    except ImportError as error:
        raise Misuse(f"this needs numpy, scipy and numba: {install('lab')}") from error
    of_paper = {"thesis": thesis.PARTS, "scispot": scispot.PARTS}[paper]
    return parts.replicated(of_paper, items, parts.Options(*options), tell)


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise Misuse(f"--plot: {folder} is no folder to draw into: {error.strerror or error}") from error


def _drawn(rows: tuple[Row, ...], folder: Path, tell: Tell) -> list[Path]:
    from windfall.report import replicate_plots  # noqa: PLC0415 - needs matplotlib, an extra

    tell("drawing")
    return replicate_plots.draw(rows, folder)


def _lives(file: Path) -> Lives:
    """Read lives with their machine types and zones, as far as the table has them."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            head = {name.strip().lower() for name in next(csv.reader(opened), [])}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Misuse(f"--data: {file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    read, keys = read_lives(file), {}
    for key, names in _KEYS:
        column = next((name for name in names if name in head), None)
        if column is not None:
            keys[key] = read_lives(file, column).keys[column]
    return dataclasses.replace(read, keys=keys)


@contextmanager
def _telling(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield what shows the last thing told on the last line of the terminal, while it lasts."""
    if not shown:
        yield lambda _words: None
        return
    with console(stderr=True).status("") as status:
        yield status.update
