"""A job's machines over time: as a picture, and as text for a terminal.

Each machine is a row, from the moment it is paid for to its end; colours say what it did while it held the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.report import timeline
from windfall.report.account import Account
from windfall.report.bill import Bill, Machined
from windfall.report.kinds import Kind, Spell
from windfall.report.timeline import COLOURS, LETTERS
from windfall.terms import CheckpointRef, WallTime
from windfall.units import duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELLED_MAX = 24
ALIVE = ":"
_PAID_COLOUR = "#E4E4E4"
_RED = "#C00000"


@dataclass(frozen=True, slots=True)
class Row:
    """One machine, and what it did of the run while it held it."""

    machined: Machined
    begin: WallTime
    end: WallTime
    spells: tuple[Spell, ...]
    commits: tuple[CheckpointRef, ...]

    @property
    def taken(self) -> bool:
        """Whether it was taken away, or broke."""
        return self.machined.how.startswith(("taken", "broke"))


def rows(made: Bill, run: Account | None) -> list[Row]:
    """Lay the account of a run over the lives of its machines; machines that never ran are left out."""
    held: dict[str, set[int]] = {}
    for tenure in () if run is None else run.tenures:
        held.setdefault(tenure.holder, set()).add(tenure.term)
    found = []
    for one in made.machines:
        machine = one.machine
        if machine.began is None:
            continue
        terms = held.get(machine.machine_id, set())
        spells = () if run is None else tuple(spell for spell in run.spells if spell.term in terms)
        commits = () if run is None else tuple(point for point in run.commits if point.term in terms)
        worked = tuple(spell for spell in spells if spell.kind is not Kind.WAITING)
        found.append(Row(one, machine.began, machine.ended or made.now, worked, commits))
    return found


def _span(made: Bill, found: Sequence[Row]) -> float:
    return max((row.end for row in found), default=made.begin) - made.begin or 1.0


# ------------------------------------------------------------------------------------------------------------- picture


def draw(made: Bill, run: Account | None, path: Path) -> None:
    """Draw the machines' lives, 1200 x 500 pixels, in the format that the path's ending names.

    Raises:
        Misuse: matplotlib is not installed.
    """
    figure = timeline.new_figure()
    axes = figure.add_subplot()
    found = rows(made, run)
    span_s = _span(made, found)
    unit_s, unit = timeline.unit_of(span_s)
    for index, row in enumerate(found):
        _draw_row(axes, made, row, index, unit_s=unit_s)
        if len(found) <= LABELLED_MAX:
            _draw_words(axes, made, row, index, unit_s=unit_s, span_s=span_s)
    _decorate(axes, made, run, found, unit=unit, span=span_s / unit_s)
    figure.savefig(path)


def _draw_row(axes: Axes, made: Bill, row: Row, index: int, *, unit_s: float) -> None:
    left = (row.begin - made.begin) / unit_s
    width = (row.end - row.begin) / unit_s
    axes.barh(index, width, left=left, height=0.7, color=_PAID_COLOUR, edgecolor="#888888", linewidth=0.8)
    for spell in row.spells:
        unknown = spell.kind is Kind.UNKNOWN
        at = (spell.begin - made.begin) / unit_s
        hatch = "////" if unknown else None
        axes.barh(
            index, spell.duration_s / unit_s, left=at, height=0.5, color=COLOURS[spell.kind], hatch=hatch, linewidth=0
        )
    for point in row.commits:
        at = (point.committed_at - made.begin) / unit_s
        colour = timeline.COMMIT_COLOURS[point.kind]
        axes.plot([at, at], [index + 0.25, index + 0.46], color=colour, linewidth=1.6)
    if row.taken:
        axes.plot([left + width], [index], marker="X", color=_RED, markeredgecolor="white", markersize=11, zorder=5)


def _draw_words(axes: Axes, made: Bill, row: Row, index: int, *, unit_s: float, span_s: float) -> None:
    """How it ended, where there is room: behind its end, or before its begin."""
    behind = row.end - made.begin < 0.66 * span_s
    at = (row.end if behind else row.begin) - made.begin
    axes.annotate(
        row.machined.how.partition(": ")[0],
        (at / unit_s, index),
        xytext=(12 if behind else -8, 0),
        textcoords="offset points",
        ha="left" if behind else "right",
        va="center",
        fontsize=9,
        color="#800000" if row.taken else "#444444",
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        zorder=6,
    )


def _decorate(axes: Axes, made: Bill, run: Account | None, found: Sequence[Row], *, unit: str, span: float) -> None:
    axes.set_ylim(max(len(found), 1) - 0.4, -0.75)
    axes.set_xlim(-0.005 * span, 1.02 * span)
    every = 1 + (len(found) - 1) // LABELLED_MAX if found else 1
    axes.set_yticks(range(0, len(found), every), [row.machined.machine.machine_id for row in found[::every]])
    axes.set_xlabel(f"{unit} since the job was submitted")
    axes.set_title(title(made, run), loc="left", fontsize=11)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, names = _legend(run, found)
    axes.figure.legend(
        handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9, columnspacing=1.2
    )


def _legend(run: Account | None, found: Sequence[Row]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra, needed here alone
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles: list[Any] = [Patch(facecolor=_PAID_COLOUR, edgecolor="#888888", linewidth=0.8)]
    names = ["paid for, not holding the run"]
    if run is not None:
        theirs = dict(zip(reversed(timeline.legend(run)[1]), reversed(timeline.legend(run)[0]), strict=True))
        kept = [(theirs[name], name) for name in reversed(theirs) if name not in {"loss", "notice", "waiting"}]
        handles += [handle for handle, _ in kept]
        names += [name for _, name in kept]
    if any(row.taken for row in found):
        handles.append(Line2D([], [], marker="X", color=_RED, linestyle="none", markersize=8))
        names.append("taken away")
    return handles, names


def title(made: Bill, run: Account | None = None) -> str:
    """The bill in one line: `gpt-1 is done: 4 machines, 0.0032 USD, 67 % less than undisturbed on demand`.

    The same hours on demand would flatter: machines that cannot be taken need fewer of them.
    """
    count = len(made.machines)
    words = f"{made.job.job_id} is {made.phase}: {count} machine{'s' * (count != 1)}"
    if made.free:
        return f"{words}, {made.sums.hours:.3f} machine-hours"
    undisturbed = None if run is None else made.undisturbed_usd(run)
    saved = ""
    if undisturbed:
        less = 100 * (1 - made.sums.due_usd / undisturbed)
        saved = f", {less:.0f} % less than undisturbed on demand"
    elif made.savings_percent is not None:
        saved = f", {made.savings_percent:.0f} % less than the same hours on demand"
    return f"{words}, {made.sums.due_usd:.4g} USD{saved}"


# ---------------------------------------------------------------------------------------------------------------- text


def text(made: Bill, run: Account | None, *, columns: int = 80) -> str:
    """Draw the machines' lives with letters: a line a machine, a column a stretch of time; `x` where one was taken."""
    found = rows(made, run)
    label = max((len(row.machined.machine.machine_id) for row in found), default=0)
    width = max(10, columns - label - 2)
    span_s = _span(made, found)
    out = [f"{row.machined.machine.machine_id:>{label}} |{_cells(made, row, width, span_s)}".rstrip() for row in found]
    right = duration_text(span_s)
    out.append(f"{'':>{label}} |0{right:>{width - 1}}")
    used = [] if run is None else [kind for kind, seconds in run.spent if seconds and kind is not Kind.WAITING]
    keys = timeline.key_lines(used, lost=False, columns=columns - 24)
    out += [f"{ALIVE} paid, does not train  {keys[0]}", *keys[1:]]
    if any(row.taken for row in found):
        out.append("x taken away")
    return "\n".join(out)


def _cells(made: Bill, row: Row, width: int, span_s: float) -> str:
    def column(at: float) -> float:
        return min(max((at - made.begin) / span_s, 0.0), 1.0) * width

    letters = [" "] * width
    first, last = column(row.begin), column(row.end)
    for index in range(int(first), min(width, max(int(last), int(first) + 1))):
        letters[index] = ALIVE
    weight: list[dict[str, float]] = [{} for _ in range(width)]
    for spell in row.spells:
        left, right = column(spell.begin), column(spell.end)
        for index in range(int(left), min(width, int(right) + 1)):
            covered = min(right, index + 1) - max(left, index)
            letter = LETTERS[spell.kind]
            weight[index][letter] = weight[index].get(letter, 0.0) + covered
    for index, cell in enumerate(weight):
        if cell and max(cell.values()) > 0:
            letters[index] = max(cell, key=lambda letter, cell=cell: cell[letter])  # type: ignore[misc]
    if row.taken:
        letters[min(width - 1, int(last))] = "x"
    return "".join(letters)
