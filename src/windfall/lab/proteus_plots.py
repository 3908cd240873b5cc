"""The figures of Proteus' cost analysis from rows: bars by zone and arm, core-hours by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windfall.lab import proteus_arms as arms
from windfall.lab.published_rows import FigureSeries, PublishedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = (
    (arms.STANDARD_CHECKPOINT, "ours"),
    (arms.STANDARD_AGILEML, "exact"),
    (arms.BIDBRAIN_CHECKPOINT, "prep"),
    (arms.PROTEUS, "published"),
    (arms.OMNISCIENT, "other"),
)
"""The paper's three arms, the fourth of their kind, and what knowing all prices would give."""
_WIDTH = 0.17


def bars(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw Figures 8 and 9: for each zone the cost of the arms, with their run times."""
    found = {(str(row.x), row.series): row.ours or 0.0 for row in rows}
    zones = list(dict.fromkeys(str(row.x).partition("|")[0] for row in rows))
    for place, zone in enumerate(zones):
        for number, (arm, colour) in enumerate(_SHOWN):
            x = place + (number - (len(_SHOWN) - 1) / 2.0) * _WIDTH
            cost = found.get((f"{zone}|{arm}", FigureSeries.COST), 0.0)
            run = found.get((f"{zone}|{arm}", FigureSeries.RUN_TIME), 0.0)
            axes.bar(x, cost, _WIDTH * 0.92, color=colours[colour], label=arm if place == 0 else None)
            note = f"{cost:.0f}\n({run:.0f})"
            axes.annotate(
                note,
                (x, cost),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=colours["ink"],
            )
    axes.set_xticks(range(len(zones)), zones)
    axes.margins(y=0.18)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("world and zone")


def whole(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw Figure 1: cost and run time, ours by world and as printed."""
    for shift, series, colour in ((-0.2, FigureSeries.COST, "ours"), (0.2, FigureSeries.RUN_TIME, "exact")):
        of_series = [row for row in rows if row.series is series]
        heights = [*(row.ours or 0.0 for row in of_series), of_series[0].published or 0.0]
        places = [place + shift for place in range(len(heights))]
        axes.bar(places, heights, 0.36, color=colours[colour], label=str(series))
        for x, high in zip(places, heights, strict=True):
            axes.annotate(f"{high:.0f}", (x, high), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8,
                          color=colours["ink"])  # fmt: skip
    names = [f"ours, {row.x}" for row in rows if row.series is FigureSeries.COST]
    axes.set_xticks(range(len(names) + 1), [*names, "printed (MLR, 128 machines)"])
    axes.margins(y=0.12)


def core_hours(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw Figure 10: for each world and arm what its core-hours were, from 0 to 100 %."""
    items = list(dict.fromkeys(str(row.x) for row in rows))
    below = [0.0] * len(items)
    for series, colour in (
        (FigureSeries.ON_DEMAND, "ours"),
        (FigureSeries.PAID, "exact"),
        (FigureSeries.FREE, "other"),
    ):
        heights = [next(row.ours or 0.0 for row in rows if row.x == item and row.series is series) for item in items]
        axes.bar(range(len(items)), heights, 0.6, bottom=below, color=colours[colour], label=str(series))
        for x, high in enumerate(heights):
            if high > 4.0:
                axes.annotate(f"{high:.0f}", (x, below[x] + high / 2.0), ha="center", va="center", fontsize=8,
                              color=colours["paper"])  # fmt: skip
        below = [low + high for low, high in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(items)), [item.replace(", ", "\n").replace("+", "+\n") for item in items], fontsize=7)
    axes.set_xlabel("the paper: 32 % free")


def tiers(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str], named: str = "read as {}") -> None:
    """Draw Figures 11 to 16: for each shape a bar of each of two series, and a line where the text prints a number.

    Args:
        axes: to draw on.
        rows: of one figure.
        colours: of the bars and of what is written.
        named: how the legend names a series.
    """
    names = list(dict.fromkeys(str(row.x) for row in rows))
    printed_is_named = False
    both = dict.fromkeys(str(row.series) for row in rows)
    for shift, series, colour in zip((-0.2, 0.2), both, ("ours", "other"), strict=True):
        for row in (row for row in rows if row.series == series):
            x, high = names.index(str(row.x)) + shift, row.ours or 0.0
            axes.bar(
                x, high, 0.36, color=colours[colour], label=named.format(series) if str(row.x) == names[0] else None
            )
            written = f"{high:.3g}" if high < 1000.0 else f"{high:,.0f}"
            axes.annotate(written, (x, high), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8,
                          color=colours["ink"])  # fmt: skip
            if row.published is not None:
                label = "_" if printed_is_named else "printed"
                axes.hlines(row.published, x - 0.18, x + 0.18, color=colours["ink"], linewidth=2.0, label=label)
                printed_is_named = True
    axes.set_xticks(range(len(names)), names)
    axes.margins(y=0.12)
