"""The figures of SciSpot's evaluation from rows: savings, Figure 3, the arms of the bag, its time by preemptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windfall.lab import scispot_arms as arms
from windfall.lab import scispot_published as paper
from windfall.lab.published_rows import FigureSeries, PublishedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SERIES = (
    (FigureSeries.PUBLISHED_RULE, "other", "equation 3, assumed mean times"),
    (FigureSeries.AS_PUBLISHED, "ours", "exact, lifetimes as published"),
    (FigureSeries.CENSORED, "exact", "exact, lifetimes with censoring"),
)
_APPS = (("nanoconfinement", "ours"), ("shapes", "exact"), ("lulesh", "prep"))
_WIDTH = 0.26


def savings(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw how much cheaper a job is on the printed type than on demand there, by what is computed again."""
    _bars(axes, rows, colours, printed="bars of the cost figure")
    axes.axhline(paper.CHEAPER, color=colours["published"], linewidth=1.2, linestyle="--", label="claimed, 5 times")
    axes.set_ylabel("cheaper than on demand [times]")


def untuned(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw savings over every stated untuned type on demand."""
    _bars(axes, rows, colours, printed=None)
    places = list(dict.fromkeys(str(row.x) for row in rows))
    axes.set_xticks(
        range(len(places)), [place.replace("nanoconfinement", "nano").replace("|", "\n") for place in places]
    )
    axes.axhline(paper.CHEAPER, color=colours["published"], linewidth=1.2, linestyle="--", label="claimed, 5 times")
    axes.set_xlabel("application, CPUs of the untuned type")
    axes.set_ylabel("cheaper than on demand [times]")


def costs(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw Figure 3: the cost of a nanoconfinement job of 64 cores by machine type."""
    _bars(axes, rows, colours, printed="published")
    axes.set_xlabel("CPUs of a machine")
    axes.set_ylabel("USD")


def bag_costs(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw the cost of a job under each arm, for both kinds of lifetimes, with the printed bars."""
    height = {arm: len(arms.ARMS) - 1 - place for place, arm in enumerate(arms.ARMS)}
    seen: set[str] = set()
    for row in rows:
        app, _, arm = str(row.x).partition("|")
        number = next(place for place, (name, _) in enumerate(_APPS) if name == app)
        y = height[arm] + 0.25 * (1 - number)
        full = row.series is FigureSeries.AS_PUBLISHED
        name = f"{app}, {'as published' if full else 'censored'}"
        axes.plot([row.ours or 0.0], [y], color=colours[_APPS[number][1]], marker="o", markersize=7, linestyle="none",
                  fillstyle="full" if full else "none", label=None if name in seen else name)  # fmt: skip
        seen.add(name)
        if row.published is not None:
            axes.plot([row.published], [y], color=colours["published"], marker="|", markersize=11, markeredgewidth=2.5,
                      linestyle="none", label=None if "published" in seen else "published bar")  # fmt: skip
            seen.add("published")
    axes.set_yticks(list(height.values()), list(height))
    axes.set_xscale("log")
    ticks = (0.05, 0.1, 0.2, 0.3, 0.5)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", color=colours["faint"], linewidth=0.5, alpha=0.6)
    axes.set_xlabel("USD for a job that counts")


def by_preemptions(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw the bag's time by preemptions: the printed runs, and the means of simulated bags with as many."""
    axes.plot(*zip(*paper.BAG_S, strict=True), color=colours["published"], marker="D", markersize=7, fillstyle="none",
              linestyle="none", label="published, one run each")  # fmt: skip
    for series, colour, name in _SERIES[1:]:
        found = sorted((float(row.x or 0.0), row.ours) for row in rows if row.series is series and row.ours is not None)
        if found:
            axes.plot(*zip(*found, strict=True), color=colours[colour], marker="o", markersize=5, linewidth=1.5,
                      label=f"simulated, {name.removeprefix('exact, ')}")  # fmt: skip
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("preemptions")
    axes.set_ylabel("time of the bag [s]")


def _bars(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str], printed: str | None) -> None:
    """Draw a group of bars for each place: one for each series, and the published value."""
    places = list(dict.fromkeys(str(row.x) for row in rows))
    for number, (series, colour, name) in enumerate(_SERIES):
        for place, row in ((places.index(str(row.x)), row) for row in rows if row.series is series):
            x = place + (number - 1) * _WIDTH
            axes.bar(x, row.ours or 0.0, _WIDTH * 0.92, color=colours[colour], label=name if place == 0 else None)
            if printed and row.published is not None:
                first = place == 0 and number == 0
                axes.plot([x], [row.published], color=colours["published"], marker="D", markersize=6, linestyle="none",
                          fillstyle="none", label=printed if first else None)  # fmt: skip
    axes.set_xticks(range(len(places)), places)
