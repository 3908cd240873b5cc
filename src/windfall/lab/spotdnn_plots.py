"""spotDNN's Figures 6 and 7 from rows: iterations by loss; time and cost by strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windfall.lab import spotdnn_published as paper
from windfall.lab.published_rows import FigureSeries, PublishedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 0.2
_COLOURS = ("prep", "other", "exact", "ours")


def iterations(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw Figure 6: predicted iterations, published and computed."""
    for load, colour in (("ResNet-110", "ours"), ("EsperBERTo", "exact")):
        found = [(float(str(row.x).split("|")[1]), row) for row in rows if str(row.x).startswith(load)]
        losses = [loss for loss, _ in found]
        axes.plot(
            losses,
            [row.ours or 0.0 for _, row in found],
            color=colours[colour],
            linewidth=2.0,
            label=f"{load}, computed",
        )
        axes.plot(losses, [row.published or 0.0 for _, row in found], color=colours["published"], linestyle="none", marker="D",
                  markersize=7, fillstyle="none", label="published" if load == "ResNet-110" else None)  # fmt: skip
    axes.invert_xaxis()
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("loss")
    axes.set_ylabel("iterations")


def strategies(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw Figure 7a: for each goal the time of each strategy, computed and published, and its cost."""
    times = {str(row.x): row for row in rows if row.series is FigureSeries.RUN_TIME}
    costs = {str(row.x): row for row in rows if row.series is FigureSeries.COST}
    for number, (arm, colour) in enumerate(zip(paper.ARMS, _COLOURS, strict=True)):
        for place, (loss, _) in enumerate(paper.RESNET_GOALS):
            key = f"{arm}|{loss:g}"
            x = place + (number - (len(paper.ARMS) - 1) / 2.0) * _WIDTH
            axes.bar(x, times[key].ours or 0.0, _WIDTH * 0.92, color=colours[colour], label=arm if place == 0 else None)
            axes.plot([x], [times[key].published or 0.0], color=colours["published"], marker="D", markersize=6,
                      linestyle="none", fillstyle="none", label="published" if place + number == 0 else None)  # fmt: skip
            axes.annotate(f"{costs[key].ours or 0.0:.2f} $", (x, 0.0), xytext=(0, 4), textcoords="offset points", ha="center",
                          fontsize=8, rotation=90, color=colours["paper"])  # fmt: skip
    for place, (_, time_s) in enumerate(paper.RESNET_GOALS):
        axes.plot([place - 0.45, place + 0.45], [time_s, time_s], color=colours["ink"], linewidth=1.2, linestyle="--",
                  label="objective" if place == 0 else None)  # fmt: skip
    axes.set_xticks(range(len(paper.RESNET_GOALS)), [f"loss {loss:g}" for loss, _ in paper.RESNET_GOALS])
    axes.set_ylabel("time [s]")
