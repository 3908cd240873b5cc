"""`windfall lab replicate`: published numbers next to computed ones."""

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

from windfall.cli.options import Json
from windfall.errors import Misuse
from windfall.extras import install
from windfall.lab import replicate_report as shown
from windfall.lab.fit_verb import read_lifetimes
from windfall.report.console import console
from windfall.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from windfall.lab.published_rows import Progress, PublishedRow
    from windfall.models.lifetimes.observations import Lifetimes

PAPERS = ("thesis", "scispot", "proteus", "spotdnn", "deadlines", "parcae")
REPLAYED = {
    "proteus": "the AWS spot prices of 2016",
    "deadlines": "SkyPilot's spot traces",
    "parcae": "Parcae's tables",
}
"""The papers whose `--data` is a folder, and of what."""
TRIALS, TRIALS_MAX = 200, 1_000_000
"""With 200 trials the totals' standard error is below 0.1 %, and the longest table takes a few seconds."""
STARTS = {"deadlines": 300}
"""The papers that say how many."""
_KEYS = (("type", ("machine_type", "type")), ("zone", ("zone",)))


def replicate(
    paper: str,
    *,
    item: Annotated[tuple[str, ...] | None, Parameter(metavar="NAME", negative="")] = None,
    data: Annotated[Path | None, Parameter(metavar="PATH")] = None,
    trials: int | None = None,
    seed: int = 0,
    held_out: bool = False,
    plot: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    json_: Json = False,
) -> None:
    """Compute the numbers of a paper and compare them with the published ones.

    Each row has a verdict: `match` (within the tolerance that its method names), `differs` (the reason says why, with
    the arithmetic if the paper is wrong), or `cannot` (the necessary data are not published, or were not passed).

    Papers: `thesis` (adaptive checkpointing: Tables 6.1 to 6.3, Figures 6.1 to 6.3, its rule, its slips), `scispot`
    (lifetimes, checkpoint program, reuse policy, evaluation), `proteus` (purchase at moving prices: Figures 1, 8 to 10;
    servers in tiers: 11 to 16),
    `spotdnn` (time and loss on mixed machines, and which to buy: Tables I, V, VI, Figures 2, 3, 5 to 9),
    `deadlines` (Can't Be Late: Uniform Progress, greedy and Windfall's own policy on traces of spot availability),
    `parcae` (shapes that change while training: costs of migrations, forecasts, policies of its simulator, cost table).

    Example: `windfall lab replicate thesis --item table-6.2`

    Args:
        paper: thesis, scispot, proteus, spotdnn, deadlines or parcae.
        item: compute only the parts whose name starts with this: a table or figure (`table-6.2`, `figure`), or a column
            or job (`adaptive`); can be repeated.
        data: machine lifetimes for SciSpot's fits (CSV as for `lab fit`, with machine_type and zone); the folder of the
            AWS spot prices of 2016 for Proteus; that of SkyPilot's spot traces for the deadlines; that of the measured tables
            for Parcae.
        trials: trials of each simulated column, for Proteus starts in each zone (200), for the deadlines starts on each
            series (300); 0: closed forms only.
        seed: seed of the simulation.
        held_out: Proteus: play on the months that no constant was chosen on.
        plot: draw the computed figures into this folder, with light and with dark background.
        json_: print one JSON array.
    """
    if paper not in PAPERS:
        raise Misuse(f"unknown paper {paper!r}; {nearest(paper, PAPERS)}")
    trials = STARTS.get(paper, TRIALS) if trials is None else trials
    if not 0 <= trials <= TRIALS_MAX:
        raise Misuse(f"--trials must be between 0 and {TRIALS_MAX}; 0 computes closed forms only")
    if plot is not None:
        _prepare(plot)
    if held_out and paper != "proteus":
        raise Misuse(f"--held-out is for proteus: {paper} holds nothing out")
    folder = None if data is None or paper not in REPLAYED else _folder(data, REPLAYED[paper])
    lifetimes = None if data is None or folder is not None else _lifetimes(data)
    with _show_progress(shown=sys.stderr.isatty()) as progress:
        rows = _replicated(paper, item or (), (trials, seed, lifetimes, folder, held_out), progress)
        drawn = [] if plot is None else _drawn(rows, plot, folder, progress)
    if json_:
        print(json.dumps(shown.as_json(rows)))
        return
    screen = console()
    screen.print(shown.render(rows))
    for path in drawn:
        screen.print(f"picture: {path}", soft_wrap=True)
    if plot is not None and not drawn:
        screen.print("no picture: the requested items are in no figure")


def _replicated(
    paper: str, items: tuple[str, ...], options: tuple[int, int, Lifetimes | None, str | None, bool], progress: Progress
) -> tuple[PublishedRow, ...]:
    progress(f"loading the packages for {paper}")
    try:
        from windfall.lab import (  # noqa: PLC0415 - its packages are an extra
            deadlines,
            parcae,
            proteus,
            published_rows,
            scispot,
            spotdnn,
            thesis,
        )
    except ImportError as error:
        raise Misuse(f"this needs numpy, scipy and numba: {install('lab')}") from error
    of_paper = {
        "thesis": thesis.PARTS,
        "scispot": scispot.PARTS,
        "proteus": proteus.PARTS,
        "spotdnn": spotdnn.PARTS,
        "deadlines": deadlines.PARTS,
        "parcae": parcae.PARTS,
    }[paper]
    return published_rows.replicated(of_paper, items, published_rows.Options(*options), progress)


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise Misuse(f"--plot: cannot create the folder {folder}: {error.strerror or error}") from error


def _drawn(rows: tuple[PublishedRow, ...], folder: Path, data: str | None, progress: Progress) -> list[Path]:
    from windfall.lab import replicate_plots  # noqa: PLC0415 - needs matplotlib, an extra

    progress("drawing")
    return replicate_plots.draw(rows, folder, data)


def _folder(path: Path, contents: str) -> str:
    if not path.is_dir():
        raise Misuse(f"--data: {path} is no folder: pass the folder of {contents}")
    return str(path)


def _lifetimes(file: Path) -> Lifetimes:
    """Read lifetimes with their machine types and zones, if the table has these columns."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            head = {name.strip().lower() for name in next(csv.reader(opened), [])}
    except FileNotFoundError as error:
        raise Misuse(f"--data: {file} does not exist") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Misuse(f"--data: cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    read, keys = read_lifetimes(file), {}
    for key, names in _KEYS:
        column = next((name for name in names if name in head), None)
        if column is not None:
            keys[key] = read_lifetimes(file, column).keys[column]
    return dataclasses.replace(read, keys=keys)


@contextmanager
def _show_progress(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows its argument on the last line of the terminal, until the context ends."""
    if not shown:
        yield lambda _words: None
        return
    with console(stderr=True).status("") as status:
        yield status.update
