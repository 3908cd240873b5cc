"""A job's machines over time: as a picture, and as text for a terminal.

Each machine is a row, from the start of its billing to its end; colours show what it did while it held the run, or trained with
the machine that did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.report import attempt_timeline
from windfall.report.account import Account
from windfall.report.attempt_timeline import COLOURS, LETTERS, TimelineMark
from windfall.report.bill import JobBill, MachineCost, outcome_text
from windfall.report.interval_kinds import Interval, Kind
from windfall.structs import Struct, replace
from windfall.terms import CheckpointRef, WallTime
from windfall.units import duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELLED_MAX = 24
BILLED = ":"
_PAID_COLOUR = "#E4E4E4"
_RED = "#C00000"
_NOT_SHOWN = frozenset({TimelineMark.LOSS, TimelineMark.NOTICE, Kind.WAITING})
"""Entries of the attempts' legend that this picture does not have."""


class MachineRow(Struct, frozen=True):
    """One machine, and what it did while it held the run."""

    cost: MachineCost
    start: WallTime
    end: WallTime
    intervals: tuple[Interval, ...]
    commits: tuple[CheckpointRef, ...]


def rows(bill: JobBill, run: Account | None) -> list[MachineRow]:
    """Lay the account of a run over its machines' lifetimes; machines that never ran are left out."""
    held: dict[str, set[int]] = {}
    for lease in () if run is None else run.leases:
        held.setdefault(lease.holder, set()).add(lease.term)
    found = []
    for one in bill.machines:
        machine = one.machine
        if machine.started is None:
            continue
        end = machine.ended or bill.now
        terms = held.get(machine.machine_id, set())
        commits = () if run is None else tuple(checkpoint for checkpoint in run.commits if checkpoint.term in terms)
        worked = () if run is None else tuple(_worked(run, terms, one.terms - terms, (machine.started, end)))
        found.append(MachineRow(one, machine.started, end, worked, commits))
    return found


def _worked(run: Account, held: Set[int], shared: Set[int], lifetime: tuple[WallTime, WallTime]) -> Iterator[Interval]:
    """Yield what a machine did: the intervals of its own terms, and of those it shared while it was there."""
    start, end = lifetime
    for interval in run.intervals:
        if interval.kind is Kind.WAITING:
            continue
        if interval.term in held:
            yield interval
        elif interval.term in shared and interval.end > start and interval.start < end:
            yield replace(interval, start=max(interval.start, start), end=min(interval.end, end))


def _span(bill: JobBill, found: Sequence[MachineRow]) -> float:
    return max((row.end for row in found), default=bill.start) - bill.start or 1.0


# ------------------------------------------------------------------------------------------------------------- picture


def draw(bill: JobBill, run: Account | None, path: Path, *, note: str = "") -> None:
    """Draw the machines' lifetimes, 1200 x 500 pixels, in the format of the path's suffix.

    Args:
        bill: of the job.
        run: where the time went; None if unknown.
        path: of the picture.
        note: stands before the title; empty for none.

    Raises:
        Misuse: matplotlib is not installed.
    """
    figure = attempt_timeline.new_figure()
    axes = figure.add_subplot()
    found = rows(bill, run)
    span_s = _span(bill, found)
    unit_s, unit = attempt_timeline.unit_of(span_s)
    scale = 1.0 if len(found) <= LABELLED_MAX else LABELLED_MAX / len(found)
    for index, row in enumerate(found):
        _draw_row(axes, bill, row, index, unit_s=unit_s, scale=scale)
        if len(found) <= LABELLED_MAX:
            _draw_words(axes, bill, row, index, unit_s=unit_s, span_s=span_s)
    _decorate(axes, run, found, unit=unit, span=span_s / unit_s)
    axes.set_title(f"{note}{title(bill, run)}", loc="left", fontsize=11)
    figure.savefig(path)


def _draw_row(axes: Axes, bill: JobBill, row: MachineRow, index: int, *, unit_s: float, scale: float) -> None:
    """Draw a machine; with `scale` below 1 its marks are smaller, so that those of many machines stay apart."""
    left = (row.start - bill.start) / unit_s
    width = (row.end - row.start) / unit_s
    axes.barh(index, width, left=left, height=0.7, color=_PAID_COLOUR, edgecolor="#888888", linewidth=0.8 * scale)
    for interval in row.intervals:
        unknown = interval.kind is Kind.UNKNOWN
        at = (interval.start - bill.start) / unit_s
        hatch = "////" if unknown else None
        axes.barh(
            index,
            interval.duration_s / unit_s,
            left=at,
            height=0.5,
            color=COLOURS[interval.kind],
            hatch=hatch,
            linewidth=0,
        )
    for checkpoint in row.commits:
        at = (checkpoint.committed_at - bill.start) / unit_s
        colour = attempt_timeline.COMMIT_COLOURS[checkpoint.kind]
        axes.plot([at, at], [index + 0.25, index + 0.46], color=colour, linewidth=1.6 * scale)
    if row.cost.lost:
        size, edge = max(11.0 * scale, 4.0), "white" if scale == 1.0 else _RED
        axes.plot([left + width], [index], marker="X", color=_RED, markeredgecolor=edge, markersize=size, zorder=5)


def _draw_words(axes: Axes, bill: JobBill, row: MachineRow, index: int, *, unit_s: float, span_s: float) -> None:
    """Write the outcome where it fits: after the row's end, or before its start."""
    behind = row.end - bill.start < 0.66 * span_s
    at = (row.end if behind else row.start) - bill.start
    axes.annotate(
        row.cost.label,
        (at / unit_s, index),
        xytext=(12 if behind else -8, 0),
        textcoords="offset points",
        ha="left" if behind else "right",
        va="center",
        fontsize=9,
        color="#800000" if row.cost.lost else "#444444",
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        zorder=6,
    )


def _decorate(axes: Axes, run: Account | None, found: Sequence[MachineRow], *, unit: str, span: float) -> None:
    axes.set_ylim(max(len(found), 1) - 0.4, -0.75)
    axes.set_xlim(-0.005 * span, 1.02 * span)
    every = 1 + (len(found) - 1) // LABELLED_MAX if found else 1
    axes.set_yticks(range(0, len(found), every), [row.cost.machine.machine_id for row in found[::every]])
    axes.set_xlabel(f"{unit} since the job was submitted")
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, names = _legend(run, found)
    axes.figure.legend(
        handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9, columnspacing=1.2
    )


def _legend(run: Account | None, found: Sequence[MachineRow]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra, needed here alone
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles: list[Any] = [Patch(facecolor=_PAID_COLOUR, edgecolor="#888888", linewidth=0.8)]
    names = [_billed(run)]
    if run is not None:
        for entry, handle in attempt_timeline.legend(run):
            if entry not in _NOT_SHOWN:
                handles.append(handle)
                names.append(entry.value)
    if any(row.cost.lost for row in found):
        handles.append(Line2D([], [], marker="X", color=_RED, linestyle="none", markersize=8))
        names.append("lost")
    return handles, names


def _billed(run: Account | None) -> str:
    return "billed" if run is None else "billed, not training"


def title(bill: JobBill, run: Account | None = None) -> str:
    """Return the bill in one line: `gpt-1 is done: 4 machines, 0.0032 USD, 67 % less than on demand`.

    The comparison is with the same work without preemptions: comparing the same hours would overstate the savings,
    since machines that cannot be preempted need fewer of them.
    """
    count = len(bill.machines)
    line = f"{outcome_text(bill)}: {count} machine{'s' * (count != 1)}"
    if bill.free:
        return f"{line}, {bill.sums.hours:.3f} machine-hours"
    undisturbed = None if run is None else bill.undisturbed_usd(run)
    saved = ""
    if undisturbed:
        less = 100 * (1 - bill.sums.due_usd / undisturbed)
        saved = f", {less:.0f} % less than on demand"
    elif bill.savings_percent is not None:
        saved = f", {bill.savings_percent:.0f} % less than the same hours on demand"
    return f"{line}, {bill.sums.due_usd:.4g} USD{saved}"


# ---------------------------------------------------------------------------------------------------------------- text


def text(bill: JobBill, run: Account | None, *, columns: int = 80) -> str:
    """Draw the machines' lifetimes with letters: one line per machine, one time span per column; `x` marks a loss."""
    found = rows(bill, run)
    label = max((len(row.cost.machine.machine_id) for row in found), default=0)
    width = max(10, columns - label - 2)
    span_s = _span(bill, found)
    out = [f"{row.cost.machine.machine_id:>{label}} |{_cells(bill, row, width, span_s)}".rstrip() for row in found]
    right = duration_text(span_s)
    out.append(f"{'':>{label}} |0{right:>{width - 1}}")
    keys = [f"{BILLED} {_billed(run)}", *([] if run is None else attempt_timeline.letter_keys(run))]
    keys += ["x lost"] * any(row.cost.lost for row in found)
    return "\n".join([*out, *attempt_timeline.key_lines(keys, columns)])


def _cells(bill: JobBill, row: MachineRow, width: int, span_s: float) -> str:
    def column(at: float) -> float:
        return min(max((at - bill.start) / span_s, 0.0), 1.0) * width

    letters = [" "] * width
    first, last = column(row.start), column(row.end)
    for index in range(int(first), min(width, max(int(last), int(first) + 1))):
        letters[index] = BILLED
    weight: list[dict[str, float]] = [{} for _ in range(width)]
    for interval in row.intervals:
        left, right = column(interval.start), column(interval.end)
        for index in range(int(left), min(width, int(right) + 1)):
            covered = min(right, index + 1) - max(left, index)
            letter = LETTERS[interval.kind]
            weight[index][letter] = weight[index].get(letter, 0.0) + covered
    for index, cell in enumerate(weight):
        if cell and max(cell.values()) > 0:
            letters[index] = max(cell, key=lambda letter, cell=cell: cell[letter])  # type: ignore[misc]
    if row.cost.lost:
        letters[min(width - 1, int(last))] = "x"
    return "".join(letters)
