"""A run's attempts over time: as a picture, and as text for a terminal.

Each attempt is a row; colours say what its machine was doing.  Triangles are notices, ticks are commits, crosses are
losses with their cause.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.errors import Misuse
from windfall.extras import install
from windfall.report.account import Account, Loss
from windfall.report.kinds import Kind, Spell
from windfall.terms import NoticeLevel, SaveKind
from windfall.units import duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN, DOTS_PER_IN = 12.0, 5.0, 100
ROWS_LABELLED_MAX = 24

# Colours that stay apart for colour-blind readers (Okabe and Ito, "Color Universal Design", 2008).
COLOURS = {
    Kind.COMPUTE: "#009E73",
    Kind.REDO: "#D55E00",
    Kind.SAVE: "#F0E442",
    Kind.RESTORE: "#0072B2",
    Kind.START: "#56B4E9",
    Kind.OTHER: "#CC79A7",
    Kind.UNSEEN: "#8FD3BE",
    Kind.FINISH: "#999999",
    Kind.UNKNOWN: "#FFFFFF",
}
LETTERS = {
    Kind.COMPUTE: "#",
    Kind.REDO: "r",
    Kind.SAVE: "S",
    Kind.RESTORE: "<",
    Kind.START: ".",
    Kind.OTHER: "-",
    Kind.UNSEEN: "u",
    Kind.FINISH: "~",
    Kind.WAITING: " ",
    Kind.UNKNOWN: "?",
}
COMMIT_COLOURS = {
    SaveKind.PERIODIC: "#000000",
    SaveKind.INSURANCE: "#000000",
    SaveKind.EMERGENCY: "#C00000",
    SaveKind.STOP: "#C00000",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One attempt: its spells without the waiting after it, and the loss that ended it, if one did."""

    term: int
    attempt: int
    spells: tuple[Spell, ...]
    loss: Loss | None

    @property
    def label(self) -> str:
        """What the row is called; attempts count from 1 over the whole run."""
        return f"attempt {self.attempt}" if self.attempt else f"term {self.term}"


def steps_lost(loss: Loss) -> str:
    """How many steps a loss cost, in words; a range where the last rows never arrived."""
    return f"{loss.steps.text()} step{'s' * (loss.steps.ends != (1, 1))} lost"


def lines(made: Account) -> list[Line]:
    """Split an account into attempts, oldest first; what a term did before its first attempt belongs to it."""
    found = []
    for term, spells in itertools.groupby(made.spells, key=lambda spell: spell.term):
        held = [spell for spell in spells if spell.kind is not Kind.WAITING]
        numbers = sorted({spell.attempt for spell in held})
        first = next((number for number in numbers if number), 0)
        for number in [number for number in numbers if number] or numbers:
            mine = tuple(spell for spell in held if spell.attempt == number or (number == first and not spell.attempt))
            loss = next((loss for loss in made.losses if (loss.term, loss.attempt) == (term, number)), None)
            found.append(Line(term, number, mine, loss))
    return found


# ------------------------------------------------------------------------------------------------------------- picture


def draw(made: Account, path: Path, *, title: str) -> None:
    """Draw the timeline, 1200 x 500 pixels, in the format that the path's ending names.

    Raises:
        Misuse: matplotlib is not installed.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    rows = lines(made)
    unit_s, unit = unit_of(made.end - made.begin)
    for index, row in enumerate(rows):
        _draw_line(axes, row, index, begin=made.begin, unit_s=unit_s)
    _draw_handovers(axes, rows, begin=made.begin, unit_s=unit_s)
    _draw_marks(axes, made, rows, unit_s=unit_s)
    _decorate(axes, made, rows, title=title, unit=unit, span=(made.end - made.begin) / unit_s)
    figure.savefig(path)


def new_figure() -> Figure:
    """Make an empty picture.

    Raises:
        Misuse: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, needed here alone
        from matplotlib.figure import Figure as NewFigure  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"the timeline's picture needs matplotlib: {install('plot')}") from error
    figure = NewFigure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_IN, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def unit_of(span_s: float) -> tuple[float, str]:
    """Return the unit for a stretch of time: its length [s] and its name."""
    if span_s < 600:
        return 1.0, "seconds"
    return (60.0, "minutes") if span_s < 4 * 3600 else (3600.0, "hours")


def _draw_line(axes: Axes, row: Line, index: int, *, begin: float, unit_s: float) -> None:
    for spell in row.spells:
        unknown = spell.kind is Kind.UNKNOWN
        axes.barh(
            index,
            spell.duration_s / unit_s,
            left=(spell.begin - begin) / unit_s,
            height=0.62,
            color=COLOURS[spell.kind],
            hatch="////" if unknown else None,
            edgecolor="#777777" if unknown else "none",
            linewidth=0,
        )


def _draw_handovers(axes: Axes, rows: Sequence[Line], *, begin: float, unit_s: float) -> None:
    """Dotted lines from the end of an attempt to the begin of the next: the run waits."""
    for index, (older, newer) in enumerate(itertools.pairwise(rows)):
        left, right = (older.spells[-1].end - begin) / unit_s, (newer.spells[0].begin - begin) / unit_s
        axes.plot([left, right, right], [index, index, index + 0.69], color="#555555", linewidth=1, linestyle=":")


def _row_of(rows: Sequence[Line], term: int, at: float) -> int | None:
    """The row of a term that a moment falls into; the nearest one before if it falls between two."""
    mine = [index for index, row in enumerate(rows) if row.term == term]
    begun = [index for index in mine if rows[index].spells[0].begin <= at]
    return begun[-1] if begun else (mine[0] if mine else None)


def _draw_marks(axes: Axes, made: Account, rows: Sequence[Line], *, unit_s: float) -> None:
    for point in made.commits:
        index = _row_of(rows, point.term, point.committed_at)
        if index is not None:
            at = (point.committed_at - made.begin) / unit_s
            axes.plot([at, at], [index + 0.31, index + 0.5], color=COMMIT_COLOURS[point.kind], linewidth=1.6)
    for notice in made.notices:
        index = _row_of(rows, notice.term, notice.at)
        if index is not None:
            filled = notice.level in (NoticeLevel.ANNOUNCED, NoticeLevel.GONE)
            face = "#C00000" if filled else "#FFFFFF"
            at = (notice.at - made.begin) / unit_s
            axes.plot([at], [index - 0.42], marker="v", color="#C00000", markerfacecolor=face, markersize=8, zorder=4)
    _draw_losses(axes, made, rows, unit_s=unit_s)


def _draw_losses(axes: Axes, made: Account, rows: Sequence[Line], *, unit_s: float) -> None:
    half = (made.end - made.begin) / unit_s * 0.72
    for index, row in enumerate(rows):
        if row.loss is None:
            continue
        at = (row.spells[-1].end - made.begin) / unit_s
        axes.plot(
            [at],
            [index],
            marker="X",
            color="#C00000",
            markeredgecolor="white",
            markersize=11 if len(rows) <= 12 else 7,
            zorder=5,
        )
        lost = f"{row.loss.cause.value}: {steps_lost(row.loss)}"
        if len(rows) <= ROWS_LABELLED_MAX:
            left = at > half
            first = (row.spells[0].begin - made.begin) / unit_s
            axes.annotate(
                lost,
                (first if left else at, index),
                xytext=(-8 if left else 11, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
                fontsize=9,
                color="#800000",
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
                zorder=6,
            )


def _decorate(axes: Axes, made: Account, rows: Sequence[Line], *, title: str, unit: str, span: float) -> None:
    axes.set_ylim(len(rows) - 0.4, -0.75)
    axes.set_xlim(-0.005 * span, 1.02 * span if span else 1)
    every = 1 + (len(rows) - 1) // ROWS_LABELLED_MAX
    axes.set_yticks(range(0, len(rows), every), [row.label for row in rows[::every]])
    axes.set_xlabel(f"{unit} since the run began")
    goodput = "" if made.goodput is None else f", {made.goodput.text('.0f', scale=100.0)} % of it new steps"
    axes.set_title(f"{title}: {made.steps} steps in {duration_text(made.total_s)}{goodput}", loc="left", fontsize=11)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, names = legend(made)
    axes.figure.legend(
        handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9, columnspacing=1.2
    )


def legend(made: Account) -> tuple[list[Any], list[str]]:
    """Return handles and names of what occurs in an account."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra, needed here alone
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles: list[Any] = []
    names = []
    for kind, seconds in made.spent:
        if seconds and kind is not Kind.WAITING:
            hatch = "////" if kind is Kind.UNKNOWN else None
            handles.append(Patch(facecolor=COLOURS[kind], hatch=hatch, edgecolor="#777777", linewidth=0.5))
            names.append(kind.value)
    marks = [
        (bool(made.notices), "v", "notice"),
        (bool(made.commits), "|", "commit"),
        (bool(made.losses), "X", "loss"),
    ]
    for present, marker, name in marks:
        if present:
            colour = "#000000" if name == "commit" else "#C00000"
            handles.append(
                Line2D([], [], marker=marker, color=colour, linestyle="none", markersize=8, markeredgewidth=1.6)
            )
            names.append(name)
    if made.of(Kind.WAITING):
        handles.append(Line2D([], [], color="#555555", linestyle=":"))
        names.append("waiting")
    return handles, names


# ---------------------------------------------------------------------------------------------------------------- text


def text(made: Account, *, columns: int = 80) -> str:
    """Draw the timeline with letters: a line an attempt, a column a stretch of time.

    A column shows the kind that took most of it; `x` ends an attempt that was lost.
    """
    rows = lines(made)
    label = max((len(row.label) for row in rows), default=0)
    width = max(10, columns - label - 2)
    span = (made.end - made.begin) or 1.0
    out = []
    for row in rows:
        cells = _cells(row, made, width, span)
        out.append(f"{row.label:>{label}} |{cells}".rstrip())
        if row.loss is not None:
            note = f"{row.loss.cause.value}: {steps_lost(row.loss)}"
            note = note if len(note) <= width else row.loss.cause.value
            out.append(f"{'':>{label}} |{_beside(cells, note, width)}".rstrip())
    left, right = "0", duration_text(span)
    out.append(f"{'':>{label}} |{left}{right:>{width - len(left)}}")
    used = [kind for kind, seconds in made.spent if seconds and kind is not Kind.WAITING]
    return "\n".join([*out, *key_lines(used, bool(made.losses), columns)])


def _cells(row: Line, made: Account, width: int, span: float) -> str:
    """A row's letters, one a column."""
    weight: list[dict[Kind, float]] = [{} for _ in range(width)]
    for spell in row.spells:
        left, right = ((at - made.begin) / span * width for at in (spell.begin, spell.end))
        for column in range(int(left), min(width, int(right) + 1)):
            covered = min(right, column + 1) - max(left, column)
            weight[column][spell.kind] = weight[column].get(spell.kind, 0.0) + covered
    letters = [
        LETTERS[max(cell, key=lambda kind: cell[kind])] if cell and max(cell.values()) > 0 else " " for cell in weight
    ]
    if row.loss is not None:
        end = int((row.spells[-1].end - made.begin) / span * width)
        letters[min(width - 1, end)] = "x"
    return "".join(letters)


def _beside(cells: str, note: str, width: int) -> str:
    """The note below the row's end, moved left where it would not fit."""
    end = len(cells.rstrip()) - 1
    return " " * max(0, min(end, width - len(note))) + note


def key_lines(kinds: Sequence[Kind], lost: bool, columns: int) -> list[str]:
    """Return what the letters mean, in lines of so many columns."""
    parts = [f"{LETTERS[kind]} {kind.value}" for kind in kinds] + ["x loss"] * lost
    out = [""]
    for part in parts:
        joined = f"{out[-1]}  {part}" if out[-1] else part
        out = [*out[:-1], joined] if len(joined) <= columns else [*out, part]
    return out
