"""The papers' figures from rows of published and computed numbers, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.errors import Misuse
from windfall.extras import install
from windfall.lab import deadlines_plots, parcae_plots, proteus_plots, scispot, scispot_plots, spotdnn_plots
from windfall.lab import scispot_published as paper
from windfall.lab.published_rows import FigureSeries, PaperFigure, PublishedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN, DOTS_PER_IN = 9.0, 4.8, 100
LINE = 80
"""Longest legend that fits on one line [characters]."""
Colours = dict[str, str]

# Okabe and Ito's colours, lighter on dark paper.
_LIGHT = {"paper": "#FFFFFF", "ink": "#1A1A1A", "faint": "#C4C4C4", "ours": "#0072B2", "published": "#D55E00",
          "exact": "#009E73", "recompute": "#D55E00", "save": "#009E73", "alloc": "#0072B2", "prep": "#CC79A7",
          "other": "#E69F00"}  # fmt: skip
_DARK = {"paper": "#14171A", "ink": "#E8E8E8", "faint": "#4A4F55", "ours": "#56B4E9", "published": "#F0883E",
         "exact": "#3FBF93", "recompute": "#F0883E", "save": "#3FBF93", "alloc": "#56B4E9", "prep": "#E39CC5",
         "other": "#F2B84B"}  # fmt: skip
_PARTS = (
    (FigureSeries.RECOMPUTE, "computed again"),
    (FigureSeries.SAVE, "saves"),
    (FigureSeries.ALLOCATE, "waiting for a machine"),
    (FigureSeries.PREPARE, "preparation"),
)
_TITLES = {
    PaperFigure.THESIS_6_1: "Figure 6.1: GPT-117M, longer than on demand [%]",
    PaperFigure.THESIS_6_2: "Figure 6.2: GPT-1.3B, longer than on demand [%]",
    PaperFigure.THESIS_6_3: "Figure 6.3: GPT-1.3B, adaptive, longer than on demand [%]",
    PaperFigure.SCISPOT_FAILURE: "SciSpot: probability that a 6 h job fails",
    PaperFigure.SCISPOT_INCREASE: "SciSpot: expected increase of a job's time, at most one loss [h]",
    PaperFigure.SCISPOT_FRONTIER: "SciSpot: longest job for which a machine is kept [h]",
    PaperFigure.SCISPOT_SAVINGS: "SciSpot: savings on the printed types, by what is computed again",
    PaperFigure.SCISPOT_UNTUNED: "SciSpot: savings over each untuned type on demand",
    PaperFigure.SCISPOT_COSTS: "Figure 3: nanoconfinement, cost of a job of 64 cores",
    PaperFigure.SCISPOT_ARMS: "SciSpot: bag of 100 jobs on 1,024 cores, cost of a job",
    PaperFigure.SCISPOT_PREEMPTIONS: "SciSpot: time of a bag of 32 jobs on 16 machines, by preemptions",
    PaperFigure.PROTEUS_1: "Figure 1: Proteus, cost and run time of jobs of 2 h [% of on demand]",
    PaperFigure.PROTEUS_8: "Figure 8: jobs of 2 h, cost, and in brackets the run time [% of on demand]",
    PaperFigure.PROTEUS_9: "Figure 9: jobs of 20 h, cost, and in brackets the run time [% of on demand]",
    PaperFigure.PROTEUS_10: "Figure 10: core-hours of jobs of 2 h [%]",
    PaperFigure.PROTEUS_11: "Figure 11: stage 1 on 64 machines, iteration longer than traditional [%]",
    PaperFigure.PROTEUS_12: "Figure 12: stage 2 on 64 machines, iteration longer than traditional [%]",
    PaperFigure.PROTEUS_13: "Figure 13: 1 reliable and 63 transient machines, iteration longer than traditional [%]",
    PaperFigure.PROTEUS_14: "Figure 14: 8 reliable and 8 transient machines, iteration longer [%]",
    PaperFigure.PROTEUS_15: "Figure 15: topics of documents on 8 to 64 machines, iteration longer than ideal [%]",
    PaperFigure.PROTEUS_16: "Figure 16: 60 machines are added to 4 [times as fast], and evicted [% longer]",
    PaperFigure.DEADLINES_HOURS: "Table 3: 48 h of work in 60 h, hours on demand and on spot",
    PaperFigure.DEADLINES_COST: "48 h of work in 60 h, cost on every series [% of on demand]",
    PaperFigure.SPOTDNN_6: "Figure 6: spotDNN, predicted iterations to a loss",
    PaperFigure.SPOTDNN_7: "Figure 7a: ResNet-110, time and cost by strategy",
    PaperFigure.PARCAE_FORECASTS: "Parcae's trace: machines, and what was forecast of them",
    PaperFigure.PARCAE_SHAPES: "Parcae's trace, GPT-2: the shape that liveput takes, planned with now and last value",
    PaperFigure.PARCAE_SAMPLES: "Parcae's trace: samples trained [% of the fastest shapes with free changes]",
}


def draw(rows: Sequence[PublishedRow], folder: Path, data: str | None = None) -> list[Path]:
    """Draw each figure that has rows, twice: `NAME.png` and `NAME-dark.png`, 900 x 480 pixels.

    Args:
        rows: of a replication.
        folder: an existing folder.
        data: folder with the data that the paper is replayed on, for pictures of them.

    Returns:
        The files written.

    Raises:
        Misuse: matplotlib is not installed.
    """
    figures: dict[PaperFigure, Callable[[Axes, Sequence[PublishedRow], Colours], None]] = {
        PaperFigure.THESIS_6_1: _bars,
        PaperFigure.THESIS_6_2: _bars,
        PaperFigure.THESIS_6_3: _curve,
        PaperFigure.SCISPOT_FAILURE: _failure,
        PaperFigure.SCISPOT_INCREASE: _increase,
        PaperFigure.SCISPOT_FRONTIER: _frontier,
        PaperFigure.SCISPOT_SAVINGS: scispot_plots.savings,
        PaperFigure.SCISPOT_UNTUNED: scispot_plots.untuned,
        PaperFigure.SCISPOT_COSTS: scispot_plots.costs,
        PaperFigure.SCISPOT_ARMS: scispot_plots.bag_costs,
        PaperFigure.SCISPOT_PREEMPTIONS: scispot_plots.by_preemptions,
        PaperFigure.PROTEUS_1: proteus_plots.whole,
        PaperFigure.PROTEUS_8: proteus_plots.bars,
        PaperFigure.PROTEUS_9: proteus_plots.bars,
        PaperFigure.PROTEUS_10: proteus_plots.core_hours,
        PaperFigure.PROTEUS_11: proteus_plots.tiers,
        PaperFigure.PROTEUS_12: proteus_plots.tiers,
        PaperFigure.PROTEUS_13: proteus_plots.tiers,
        PaperFigure.PROTEUS_14: proteus_plots.tiers,
        PaperFigure.PROTEUS_15: partial(proteus_plots.tiers, named="draws on {}"),
        PaperFigure.PROTEUS_16: proteus_plots.tiers,
        PaperFigure.DEADLINES_HOURS: deadlines_plots.hours,
        PaperFigure.DEADLINES_COST: deadlines_plots.costs,
        PaperFigure.SPOTDNN_6: spotdnn_plots.iterations,
        PaperFigure.SPOTDNN_7: spotdnn_plots.strategies,
        PaperFigure.PARCAE_FORECASTS: partial(parcae_plots.forecasts, data),
        PaperFigure.PARCAE_SHAPES: partial(parcae_plots.shapes, data),
        PaperFigure.PARCAE_SAMPLES: parcae_plots.samples,
    }
    written = []
    for figure, drawing in figures.items():
        found = [row for row in rows if row.figure is figure]
        if found:
            for dark in (False, True):
                path = folder / f"{figure.value}{'-dark' if dark else ''}.png"
                _draw(path, _TITLES[figure], found, drawing, _DARK if dark else _LIGHT)
                written.append(path)
    return written


def _draw(
    path: Path,
    title: str,
    rows: Sequence[PublishedRow],
    drawing: Callable[[Axes, Sequence[PublishedRow], Colours], None],
    colours: Colours,
) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, needed here alone
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"the pictures need matplotlib: {install('plot')}") from error
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_IN, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    drawing(axes, rows, colours)
    axes.set_title(title)
    axes.set_facecolor(colours["paper"])
    axes.title.set(fontsize=11, color=colours["ink"], ha="left", x=0.0)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=colours["ink"], fontsize=9)
    axes.tick_params(colors=colours["ink"], labelsize=9, which="both")
    axes.grid(axis="y", color=colours["faint"], linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colours["faint"])
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=len(names) if sum(map(len, names)) < LINE else (len(names) + 1) // 2,
        frameon=False,
        fontsize=9,
        labelcolor=colours["ink"],
    )
    figure.savefig(path, facecolor=colours["paper"])


# ----------------------------------------------------------------------------------------------------------- the thesis


def _bars(axes: Axes, rows: Sequence[PublishedRow], colours: Colours) -> None:
    """Draw overhead in four parts, with a pair of bars for each policy: published and computed."""
    policies = list(dict.fromkeys(str(row.x) for row in rows))
    found = {(row.x, row.series): row for row in rows}
    for place, policy in enumerate(policies):
        for shift, ours in ((-0.2, False), (0.2, True)):
            below = 0.0
            for part, name in _PARTS:
                row = found[policy, part]
                high = (row.ours if ours else row.published) or 0.0
                label = name if place == 0 and ours else None
                bar: dict[str, Any] = {"color": colours[part], "alpha": 1.0 if ours else 0.55, "label": label}
                axes.bar(place + shift, high, 0.36, bottom=below, edgecolor=colours["paper"], linewidth=0.8, **bar)
                below += high
            row = found[policy, FigureSeries.OVERHEAD]
            axes.annotate(
                f"{'ours' if ours else 'published'}\n{row.ours if ours else row.published:.2f} %",
                (place + shift, below),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=colours["ink"],
            )
    axes.set_xticks(range(len(policies)), [policy.replace("per", "every ") for policy in policies])
    axes.margins(y=0.14)
    axes.set_xlabel("policy: adaptive, or a save every N steps")


def _curve(axes: Axes, rows: Sequence[PublishedRow], colours: Colours) -> None:
    """Draw overhead over the mean time to preemption: closed form as a line, simulation as points."""
    exact = [(_x(row), row.ours or 0.0) for row in rows if row.series is FigureSeries.CLOSED_FORM]
    drawn = [(_x(row), row.ours or 0.0) for row in rows if row.series is FigureSeries.SIMULATION]
    printed = [(_x(row), row.published) for row in rows if row.published is not None][:1]
    axes.plot(*zip(*exact, strict=True), color=colours["ours"], linewidth=2.0, label="closed form")
    if drawn:
        axes.plot(
            *zip(*drawn, strict=True),
            color=colours["exact"],
            linestyle="none",
            marker="o",
            markersize=5,
            label="simulation",
        )
    for hours, value in printed:
        axes.plot(
            [hours],
            [value],
            color=colours["published"],
            linestyle="none",
            marker="D",
            markersize=8,
            fillstyle="none",
            label="published (Table 6.3)",
        )
    axes.set_ylim(bottom=0.0)
    axes.set_xticks([hours for hours, _ in exact])
    axes.set_xlabel("mean time to preemption [h]")


def _x(row: PublishedRow) -> float:
    assert row.x is not None, "a row of a curve has a place on it"
    return float(row.x)


# -------------------------------------------------------------------------------------------------------------- SciSpot


def _failure(axes: Axes, rows: Sequence[PublishedRow], colours: Colours) -> None:
    """Draw the probability that a 6 h job fails, by its machine's age: as published, and conditional on the age."""
    del rows
    ages_h = [age / 20.0 for age in range(24 * 20)]
    always, policy, exact = scispot.failure_curves(6.0, ages_h)
    axes.plot(ages_h, always, color=colours["published"], linewidth=1.5, label="published formula, any machine")
    axes.plot(
        ages_h, policy, color=colours["ours"], linewidth=2.2, linestyle=(0, (4, 1.5)), label="published formula, policy"
    )
    axes.plot(ages_h, exact, color=colours["exact"], linewidth=1.5, label="conditional on the age, any machine")
    axes.plot(
        range(len(paper.FAILURE_6H)),
        paper.FAILURE_6H,
        color=colours["ink"],
        linestyle="none",
        marker="o",
        markersize=4,
        label="published",
    )
    axes.set_xlim(0.0, 24.0)
    axes.set_ylim(0.0, 1.05)
    axes.set_xlabel("age of the machine at the job's start [h]")


def _increase(axes: Axes, rows: Sequence[PublishedRow], colours: Colours) -> None:
    """Draw the expected increase of a job's time by one loss, for bathtub and uniform lifetimes."""
    del rows
    jobs_h = [0.1 * place for place in range(1, 121)]
    axes.plot(
        jobs_h, [scispot.increase_h(job) for job in jobs_h], color=colours["ours"], linewidth=2.0, label="bathtub"
    )
    axes.plot(
        jobs_h,
        [scispot.uniform_increase_h(job) for job in jobs_h],
        color=colours["exact"],
        linewidth=1.5,
        label="uniform lifetimes over 24 h",
    )
    printed = [(job, value) for job, value in paper.INCREASE_H if job <= jobs_h[-1]]
    axes.plot(
        *zip(*printed, strict=True),
        color=colours["ink"],
        linestyle="none",
        marker="o",
        markersize=4,
        label="published formula",
    )
    axes.plot(
        [10.0],
        [paper.TEXT_INCREASE_H],
        color=colours["published"],
        linestyle="none",
        marker="D",
        markersize=8,
        fillstyle="none",
        label="the text",
    )
    axes.axvspan(
        *paper.CROSSOVER_H, color=colours["faint"], alpha=0.35, linewidth=0, label="crossover according to the text"
    )
    axes.set_xlim(0.0, jobs_h[-1])
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("length of the job [h]")


def _frontier(axes: Axes, rows: Sequence[PublishedRow], colours: Colours) -> None:
    """Draw the longest job for which a machine is kept, by its age: the published rule and the exact one."""
    kept: dict[FigureSeries | None, list[tuple[float, float]]] = {}
    for row in rows:
        kept.setdefault(row.series, []).append((_x(row), row.ours or 0.0))
    names = (
        (FigureSeries.PUBLISHED_RULE, "ours", "published rule"),
        (FigureSeries.EXACT, "exact", "exact rule"),
    )
    for series, colour, name in names:
        axes.plot(*zip(*kept[series], strict=True), color=colours[colour], linewidth=2.0, label=name)
    axes.plot(
        *zip(*paper.FRONTIER_H, strict=True),
        color=colours["ink"],
        linestyle="none",
        marker="o",
        markersize=4,
        label="published",
    )
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("age of the machine [h]")
