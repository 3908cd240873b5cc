"""A picture of what the simulated world says: a row a policy, the distribution of finish on the left, of cost on the right.

Above each line the distribution, scaled to its row; on the line a thin band from P10 to P99, a thick one from P10 to P90,
a tick at P50 and a ring at the mean.  Deadline and budget are dashed.  The scale is that of the narrowest policies: one
that is far worse runs off its end, with mean and P99 in words, and does not press the others to a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windfall.errors import Misuse
from windfall.extras import install
from windfall.jobs import Objective
from windfall.report.simulated import Answer, Floats, shown, undefeated, unit_of
from windfall.simulation.outcomes import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, DOTS_PER_IN = 12.0, 100
_ROW_IN, _HEAD_IN = 0.85, 1.5
_BINS = 160
_SHOWN_SHARES = (0.0005, 0.995)
_ROOM, _ROOM_SHARE = 8.0, 0.1
"""How far the scale goes at most: so many widths of the narrowest distribution, or this share of where it begins."""
_HEIGHT = 0.62
_BELOW = 0.14
"""Of a row: how far the distribution rises above its line, how far the bands lie below it."""

# Ink, paper, faint ink; then the best policy, and the others (Okabe and Ito's blue, lighter on dark paper).
_LIGHT = {
    "paper": "#FFFFFF",
    "ink": "#1A1A1A",
    "faint": "#C4C4C4",
    "best": "#0072B2",
    "other": "#7A7A7A",
    "limit": "#C00000",
}
_DARK = {
    "paper": "#14171A",
    "ink": "#E8E8E8",
    "faint": "#4A4F55",
    "best": "#56B4E9",
    "other": "#9AA0A6",
    "limit": "#FF7B72",
}


def draw(answers: Sequence[Answer], objective: Objective, path: Path, *, title: str, dark: bool = False) -> None:
    """Draw finish and cost of each policy, in the format that the path's ending names.

    Args:
        answers: one a policy, drawn from the top down.
        objective: its deadline and budget are drawn if they are there.
        path: a `.png`, `.svg` or `.pdf`.
        title: what was simulated.
        dark: light ink on dark paper.

    Raises:
        Misuse: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, needed here alone
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"the picture needs matplotlib: {install('plot')}") from error
    colours = _DARK if dark else _LIGHT
    size = (WIDTH_IN, _HEAD_IN + _ROW_IN * len(answers))
    figure = Figure(figsize=size, dpi=DOTS_PER_IN, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    unit_s, unit = unit_of(min(one.row.finish_s.p50 for one in answers))
    deadline = None if objective.deadline_s is None else objective.deadline_s / unit_s
    scaled = _Panel(
        left, answers, lambda one: one.finish_s / unit_s, lambda one: one.row.finish_s, unit_s, "deadline", colours
    )
    _draw_panel(scaled, undefeated(answers, lambda one: one.finish_s), deadline)
    left.set_xlabel(f"finish [{unit} since the submission]")
    priced = _Panel(right, answers, lambda one: one.cost_usd, lambda one: one.row.cost_usd, 1.0, "budget", colours)
    _draw_panel(priced, undefeated(answers, lambda one: one.cost_usd), objective.budget_usd)
    right.set_xlabel("cost [USD]")
    left.set_yticks([-float(index) for index in range(len(answers))], [shown(one.row.policy) for one in answers])
    left.set_ylim(-len(answers) + 1 - 2.2 * _BELOW, _HEIGHT + 0.15)
    for axes in (left, right):
        _decorate(axes, colours)
    trials = answers[0].row.trials
    legend = (
        "distribution, band P10 .. P90 and on to P99, tick P50, ring mean; in colour the best, and its equals by chance"
    )
    words = f"{title}: {trials} trials of each policy\n{legend}"
    figure.suptitle(words, x=0.01, ha="left", fontsize=11, color=colours["ink"])
    figure.savefig(path, facecolor=colours["paper"])


@dataclass(frozen=True, slots=True)
class _Panel:
    """What is drawn on one side: the values of each answer in the panel's unit, and their spread in its own."""

    axes: Axes
    answers: Sequence[Answer]
    values: Callable[[Answer], Floats]
    spread: Callable[[Answer], Spread]
    unit: float
    limit: str
    colours: dict[str, str]


def _draw_panel(panel: _Panel, best: set[str], limit: float | None) -> None:
    bounds = [np.quantile(panel.values(one), _SHOWN_SHARES) for one in panel.answers]
    low, high = min(float(pair[0]) for pair in bounds), max(float(pair[1]) for pair in bounds)
    narrow = min(float(pair[1]) for pair in bounds) - low
    high = min(high, low + max(_ROOM * narrow, _ROOM_SHARE * abs(low), 1e-12))
    room = max(high - low, 1e-9 * max(abs(high), 1.0), 1e-12) * 0.03
    edges = np.linspace(low - room, high + room, _BINS + 1)
    for index, one in enumerate(panel.answers):
        colour = panel.colours["best" if one.row.policy in best else "other"]
        _draw_row(panel, one, -float(index), edges, colour)
    shown_low, shown_high = float(edges[0]), float(edges[-1])
    if limit is not None and limit < shown_high + 0.5 * (shown_high - shown_low):
        shown_high, shown_low = max(shown_high, limit * 1.02), min(shown_low, limit * 0.98)
        panel.axes.axvline(limit, color=panel.colours["limit"], linestyle=(0, (4, 3)), linewidth=1.4)
        text = panel.axes.text(limit, 1.01, panel.limit, transform=panel.axes.get_xaxis_transform(), ha="center")
        text.set(color=panel.colours["limit"], fontsize=9)
    panel.axes.set_xlim(shown_low, shown_high)
    for index, one in enumerate(panel.answers):
        mean, p99 = panel.spread(one).mean / panel.unit, panel.spread(one).p99 / panel.unit
        if p99 > shown_high:
            _say_beyond(panel, f"mean {mean:.3g}, P99 {p99:.3g} \u2192", shown_high, -float(index))


def _say_beyond(panel: _Panel, words: str, edge: float, base: float) -> None:
    text = panel.axes.text(edge, base + 0.06, words, ha="right", va="bottom", fontsize=9, color=panel.colours["ink"])
    text.set_bbox({"facecolor": panel.colours["paper"], "alpha": 0.7, "linewidth": 0, "pad": 1.5})


def _draw_row(panel: _Panel, one: Answer, base: float, edges: Floats, colour: str) -> None:
    ink, paper = panel.colours["ink"], panel.colours["paper"]
    counts = np.histogram(panel.values(one), bins=edges)[0].astype(np.float64)
    top = float(counts.max())
    heights = base + (counts / top * _HEIGHT if top > 0.0 else counts)
    panel.axes.stairs(heights, edges, baseline=base, fill=True, color=colour, alpha=0.45, linewidth=0)
    panel.axes.axhline(base, color=panel.colours["faint"], linewidth=0.6, zorder=0)
    spread, line = panel.spread(one), base - _BELOW
    p10, p50, p90, p99, mean = (
        value / panel.unit for value in (spread.p10, spread.p50, spread.p90, spread.p99, spread.mean)
    )
    panel.axes.plot([p10, p99], [line, line], color=colour, linewidth=1.4, solid_capstyle="butt")
    panel.axes.plot([p10, p90], [line, line], color=colour, linewidth=6.0, solid_capstyle="butt", alpha=0.75)
    panel.axes.plot([p50, p50], [line - 0.09, line + 0.09], color=ink, linewidth=1.8)
    panel.axes.plot([mean], [line], marker="o", markersize=5.5, markerfacecolor=paper, markeredgecolor=ink)


def _decorate(axes: Axes, colours: dict[str, str]) -> None:
    axes.set_facecolor(colours["paper"])
    axes.xaxis.label.set(color=colours["ink"], fontsize=10)
    axes.tick_params(colors=colours["ink"], labelsize=10, which="both")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=colours["faint"], linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colours["faint"])
