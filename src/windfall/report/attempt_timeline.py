"""A run's attempts over time: as a picture, and as text for a terminal.

Each attempt is a row; colours say what its machine was doing.  Triangles are notices, ticks are commits, crosses are
losses with their cause.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.errors import Misuse
from windfall.extras import install
from windfall.report.account import Account, AttemptLoss
from windfall.report.interval_kinds import Interval, Kind
from windfall.structs import Struct
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


class TimelineMark(enum.StrEnum):
    """What a mark on a timeline stands for."""

    NOTICE = "notice"
    COMMIT = "commit"
    LOSS = "loss"


class TimelineLine(Struct, frozen=True):
    """One attempt: its intervals without the waiting after it, and the loss that ended it, if any."""

    term: int
    attempt: int
    intervals: tuple[Interval, ...]
    loss: AttemptLoss | None

    @property
    def label(self) -> str:
        """The row's name; attempts count from 1 over the whole run."""
        return f"attempt {self.attempt}" if self.attempt else f"term {self.term}"


def steps_lost(loss: AttemptLoss) -> str:
    """Return how many steps a loss cost; a range if the last rows never arrived."""
    return f"{loss.steps.text()} step{'s' * (loss.steps.ends != (1, 1))} lost"


def lines(account: Account) -> list[TimelineLine]:
    """Split an account into attempts, oldest first; what a term did before its first attempt belongs to it."""
    found = []
    for term, intervals in itertools.groupby(account.intervals, key=lambda interval: interval.term):
        held = [interval for interval in intervals if interval.kind is not Kind.WAITING]
        numbers = sorted({interval.attempt for interval in held})
        first = next((number for number in numbers if number), 0)
        for number in [number for number in numbers if number] or numbers:
            mine = tuple(
                interval
                for interval in held
                if interval.attempt == number or (number == first and not interval.attempt)
            )
            loss = next((loss for loss in account.losses if (loss.term, loss.attempt) == (term, number)), None)
            found.append(TimelineLine(term, number, mine, loss))
    return found


# ------------------------------------------------------------------------------------------------------------- picture


def draw(account: Account, path: Path, *, title: str) -> None:
    """Draw the timeline, 1200 x 500 pixels, in the format of the path's suffix.

    Raises:
        Misuse: matplotlib is not installed.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    rows = lines(account)
    unit_s, unit = unit_of(account.end - account.start)
    for index, row in enumerate(rows):
        _draw_line(axes, row, index, start=account.start, unit_s=unit_s)
    _draw_handovers(axes, rows, start=account.start, unit_s=unit_s)
    _draw_marks(axes, account, rows, unit_s=unit_s)
    _decorate(axes, account, rows, title=title, unit=unit, span=(account.end - account.start) / unit_s)
    figure.savefig(path)


def new_figure() -> Figure:
    """Return an empty picture.

    Raises:
        Misuse: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, needed here alone
        from matplotlib.figure import Figure as NewFigure  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"the timeline picture needs matplotlib: {install('plot')}") from error
    figure = NewFigure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_IN, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def unit_of(span_s: float) -> tuple[float, str]:
    """Return the unit for a time span: its length [s] and its name."""
    if span_s < 600:
        return 1.0, "seconds"
    return (60.0, "minutes") if span_s < 4 * 3600 else (3600.0, "hours")


def _draw_line(axes: Axes, row: TimelineLine, index: int, *, start: float, unit_s: float) -> None:
    for interval in row.intervals:
        unknown = interval.kind is Kind.UNKNOWN
        axes.barh(
            index,
            interval.duration_s / unit_s,
            left=(interval.start - start) / unit_s,
            height=0.62,
            color=COLOURS[interval.kind],
            hatch="////" if unknown else None,
            edgecolor="#777777" if unknown else "none",
            linewidth=0,
        )


def _draw_handovers(axes: Axes, rows: Sequence[TimelineLine], *, start: float, unit_s: float) -> None:
    """Draw dotted lines from the end of an attempt to the start of the next: the run waits."""
    for index, (older, newer) in enumerate(itertools.pairwise(rows)):
        left, right = (older.intervals[-1].end - start) / unit_s, (newer.intervals[0].start - start) / unit_s
        axes.plot([left, right, right], [index, index, index + 0.69], color="#555555", linewidth=1, linestyle=":")


def _row_of(rows: Sequence[TimelineLine], term: int, at: float) -> int | None:
    """Return the row of a term that a time falls into; the nearest one before if it falls between two."""
    mine = [index for index, row in enumerate(rows) if row.term == term]
    started = [index for index in mine if rows[index].intervals[0].start <= at]
    return started[-1] if started else (mine[0] if mine else None)


def _draw_marks(axes: Axes, account: Account, rows: Sequence[TimelineLine], *, unit_s: float) -> None:
    for checkpoint in account.commits:
        index = _row_of(rows, checkpoint.term, checkpoint.committed_at)
        if index is not None:
            at = (checkpoint.committed_at - account.start) / unit_s
            axes.plot([at, at], [index + 0.31, index + 0.5], color=COMMIT_COLOURS[checkpoint.kind], linewidth=1.6)
    for notice in account.notices:
        index = _row_of(rows, notice.term, notice.at)
        if index is not None:
            filled = notice.level in (NoticeLevel.ANNOUNCED, NoticeLevel.GONE)
            face = "#C00000" if filled else "#FFFFFF"
            at = (notice.at - account.start) / unit_s
            axes.plot([at], [index - 0.42], marker="v", color="#C00000", markerfacecolor=face, markersize=8, zorder=4)
    _draw_losses(axes, account, rows, unit_s=unit_s)


def _draw_losses(axes: Axes, account: Account, rows: Sequence[TimelineLine], *, unit_s: float) -> None:
    half = (account.end - account.start) / unit_s * 0.72
    for index, row in enumerate(rows):
        if row.loss is None:
            continue
        at = (row.intervals[-1].end - account.start) / unit_s
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
            first = (row.intervals[0].start - account.start) / unit_s
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


def _decorate(
    axes: Axes, account: Account, rows: Sequence[TimelineLine], *, title: str, unit: str, span: float
) -> None:
    axes.set_ylim(len(rows) - 0.4, -0.75)
    axes.set_xlim(-0.005 * span, 1.02 * span if span else 1)
    every = 1 + (len(rows) - 1) // ROWS_LABELLED_MAX
    axes.set_yticks(range(0, len(rows), every), [row.label for row in rows[::every]])
    axes.set_xlabel(f"{unit} since the start of the run")
    goodput = "" if account.goodput is None else f", {account.goodput.text('.0f', scale=100.0)} % of it new steps"
    axes.set_title(
        f"{title}: {account.steps} steps in {duration_text(account.total_s)}{goodput}", loc="left", fontsize=11
    )
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, names = [handle for _, handle in legend(account)], [entry.value for entry, _ in legend(account)]
    axes.figure.legend(
        handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9, columnspacing=1.2
    )


def legend(account: Account) -> list[tuple[Kind | TimelineMark, Any]]:
    """Return the kinds and marks that occur in an account, each with its handle for a legend."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra, needed here alone
    from matplotlib.patches import Patch  # noqa: PLC0415

    entries: list[tuple[Kind | TimelineMark, Any]] = []
    for kind, _ in account.shown:
        if kind is not Kind.WAITING:
            hatch = "////" if kind is Kind.UNKNOWN else None
            entries.append((kind, Patch(facecolor=COLOURS[kind], hatch=hatch, edgecolor="#777777", linewidth=0.5)))
    marks = [
        (bool(account.notices), "v", "#C00000", TimelineMark.NOTICE),
        (bool(account.commits), "|", "#000000", TimelineMark.COMMIT),
        (bool(account.losses), "X", "#C00000", TimelineMark.LOSS),
    ]
    for present, marker, colour, mark in marks:
        if present:
            handle = Line2D([], [], marker=marker, color=colour, linestyle="none", markersize=8, markeredgewidth=1.6)
            entries.append((mark, handle))
    if account.of(Kind.WAITING):
        entries.append((Kind.WAITING, Line2D([], [], color="#555555", linestyle=":")))
    return entries


# ---------------------------------------------------------------------------------------------------------------- text


def text(account: Account, *, columns: int = 80) -> str:
    """Draw the timeline with letters: one line per attempt, one time span per column.

    A column shows the kind that took most of it; `x` marks the end of a lost attempt.
    """
    rows = lines(account)
    label = max((len(row.label) for row in rows), default=0)
    width = max(10, columns - label - 2)
    span = (account.end - account.start) or 1.0
    out = []
    for row in rows:
        cells = _cells(row, account, width, span)
        out.append(f"{row.label:>{label}} |{cells}".rstrip())
        if row.loss is not None:
            note = f"{row.loss.cause.value}: {steps_lost(row.loss)}"
            note = note if len(note) <= width else row.loss.cause.value
            out.append(f"{'':>{label}} |{_beside(cells, note, width)}".rstrip())
    left, right = "0", duration_text(span)
    out.append(f"{'':>{label}} |{left}{right:>{width - len(left)}}")
    return "\n".join([*out, *key_lines([*letter_keys(account), *["x loss"] * bool(account.losses)], columns)])


def _cells(row: TimelineLine, account: Account, width: int, span: float) -> str:
    """Return a row's letters, one per column."""
    weight: list[dict[Kind, float]] = [{} for _ in range(width)]
    for interval in row.intervals:
        left, right = ((at - account.start) / span * width for at in (interval.start, interval.end))
        for column in range(int(left), min(width, int(right) + 1)):
            covered = min(right, column + 1) - max(left, column)
            weight[column][interval.kind] = weight[column].get(interval.kind, 0.0) + covered
    letters = [
        LETTERS[max(cell, key=lambda kind: cell[kind])] if cell and max(cell.values()) > 0 else " " for cell in weight
    ]
    if row.loss is not None:
        end = int((row.intervals[-1].end - account.start) / span * width)
        letters[min(width - 1, end)] = "x"
    return "".join(letters)


def _beside(cells: str, note: str, width: int) -> str:
    """Return the note placed below the row's end, moved left if it does not fit."""
    end = len(cells.rstrip()) - 1
    return " " * max(0, min(end, width - len(note))) + note


def letter_keys(account: Account) -> list[str]:
    """Return the letters that a timeline of the account uses, each with its meaning."""
    return [f"{LETTERS[kind]} {kind.value}" for kind, _ in account.shown if kind is not Kind.WAITING]


def key_lines(parts: Sequence[str], columns: int) -> list[str]:
    """Return the legend in as few lines of at most `columns` columns as possible, all about equally long."""
    found = _wrapped(parts, columns)
    for narrower in range(columns - 1, 0, -1):
        narrow = _wrapped(parts, narrower)
        if len(narrow) > len(found) or max(map(len, narrow)) > narrower:
            break
        found = narrow
    return found


def _wrapped(parts: Sequence[str], columns: int) -> list[str]:
    out = [""]
    for part in parts:
        joined = f"{out[-1]}  {part}" if out[-1] else part
        out = [*out[:-1], joined] if len(joined) <= columns else [*out, part]
    return out
