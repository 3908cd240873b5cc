"""The result of a simulation as a picture: one row per policy, finish time on the left, cost on the right.

Each row shows the distribution, scaled to the row, above a line with a thin band from P10 to P99, a thick band from P10
to P90, a tick at P50 and a ring at the mean.  Deadline and budget are dashed.  The axis fits the narrowest policies: one
that is far worse runs off the edge, with its mean and P99 as text, and does not squeeze the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from windfall.errors import Misuse
from windfall.extras import install
from windfall.jobs import Objective
from windfall.report.simulate_report import Floats, PolicyOutcome, shown, undefeated, unit_of
from windfall.simulation.outcomes import Spread
from windfall.structs import Struct

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, DOTS_PER_IN = 12.0, 100
_ROW_IN, _HEAD_IN = 0.85, 1.5
_BINS = 160
_SHOWN_SHARES = (0.0005, 0.995)
_WIDTHS_MAX, _WIDTH_SHARE = 8.0, 0.1
"""Largest extent of the axis: a multiple of the narrowest distribution's width, or a share of the axis' start."""
_HEIGHT = 0.62
_BELOW = 0.14
"""Heights within a row: of the distribution above its line, and of the bands below it."""

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


def draw(
    outcomes: Sequence[PolicyOutcome], objective: Objective, path: Path, *, title: str, dark: bool = False
) -> None:
    """Draw finish time and cost of each policy, in the format of the path's suffix.

    Args:
        outcomes: one per policy, drawn from the top down.
        objective: its deadline and budget are drawn if set.
        path: a `.png`, `.svg` or `.pdf`.
        title: what was simulated.
        dark: use a dark background.

    Raises:
        Misuse: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, needed here alone
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"the picture needs matplotlib: {install('plot')}") from error
    colours = _DARK if dark else _LIGHT
    size = (WIDTH_IN, _HEAD_IN + _ROW_IN * len(outcomes))
    figure = Figure(figsize=size, dpi=DOTS_PER_IN, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    unit_s, unit = unit_of(min(one.row.finish_s.p50 for one in outcomes))
    deadline = None if objective.deadline_s is None else objective.deadline_s / unit_s
    scaled = _Panel(
        left, outcomes, lambda one: one.finish_s / unit_s, lambda one: one.row.finish_s, unit_s, "deadline", colours
    )
    _draw_panel(scaled, undefeated(outcomes, lambda one: one.finish_s), deadline)
    left.set_xlabel(f"finish [{unit} after submission]")
    priced = _Panel(right, outcomes, lambda one: one.cost_usd, lambda one: one.row.cost_usd, 1.0, "budget", colours)
    _draw_panel(priced, undefeated(outcomes, lambda one: one.cost_usd), objective.budget_usd)
    right.set_xlabel("cost [USD]")
    left.set_yticks([-float(index) for index in range(len(outcomes))], [shown(one.row.policy) for one in outcomes])
    left.set_ylim(-len(outcomes) + 1 - 2.2 * _BELOW, _HEIGHT + 0.15)
    for axes in (left, right):
        _decorate(axes, colours)
    trials = outcomes[0].row.trials
    legend = "distribution, thick band P10 .. P90, thin band to P99, tick P50, ring mean; coloured: the best policies"
    words = f"{title}: {trials} trials of each policy\n{legend}"
    figure.suptitle(words, x=0.01, ha="left", fontsize=11, color=colours["ink"])
    figure.savefig(path, facecolor=colours["paper"])


class _Panel(Struct, frozen=True):
    """One side of the picture: the values of each policy in the panel's unit, and their spread in base units."""

    axes: Axes
    outcomes: Sequence[PolicyOutcome]
    values: Callable[[PolicyOutcome], Floats]
    spread: Callable[[PolicyOutcome], Spread]
    unit: float
    limit: str
    colours: dict[str, str]


def _draw_panel(panel: _Panel, best: set[str], limit: float | None) -> None:
    bounds = [np.quantile(panel.values(one), _SHOWN_SHARES) for one in panel.outcomes]
    low, high = min(float(pair[0]) for pair in bounds), max(float(pair[1]) for pair in bounds)
    narrow = min(float(pair[1]) for pair in bounds) - low
    high = min(high, low + max(_WIDTHS_MAX * narrow, _WIDTH_SHARE * abs(low), 1e-12))
    margin = max(high - low, 1e-9 * max(abs(high), 1.0), 1e-12) * 0.03
    edges = np.linspace(low - margin, high + margin, _BINS + 1)
    for index, one in enumerate(panel.outcomes):
        colour = panel.colours["best" if one.row.policy in best else "other"]
        _draw_row(panel, one, -float(index), edges, colour)
    shown_low, shown_high = float(edges[0]), float(edges[-1])
    if limit is not None and limit < shown_high + 0.5 * (shown_high - shown_low):
        shown_high, shown_low = max(shown_high, limit * 1.02), min(shown_low, limit * 0.98)
        panel.axes.axvline(limit, color=panel.colours["limit"], linestyle=(0, (4, 3)), linewidth=1.4)
        text = panel.axes.text(limit, 1.01, panel.limit, transform=panel.axes.get_xaxis_transform(), ha="center")
        text.set(color=panel.colours["limit"], fontsize=9)
    panel.axes.set_xlim(shown_low, shown_high)
    for index, one in enumerate(panel.outcomes):
        mean, p99 = panel.spread(one).mean / panel.unit, panel.spread(one).p99 / panel.unit
        if p99 > shown_high:
            _draw_beyond(panel, f"mean {mean:.3g}, P99 {p99:.3g} \u2192", shown_high, -float(index))


def _draw_beyond(panel: _Panel, words: str, edge: float, base: float) -> None:
    text = panel.axes.text(edge, base + 0.06, words, ha="right", va="bottom", fontsize=9, color=panel.colours["ink"])
    text.set_bbox({"facecolor": panel.colours["paper"], "alpha": 0.7, "linewidth": 0, "pad": 1.5})


def _draw_row(panel: _Panel, one: PolicyOutcome, base: float, edges: Floats, colour: str) -> None:
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
