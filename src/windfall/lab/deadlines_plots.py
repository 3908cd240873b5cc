"""The figures of jobs with deadlines from rows: hours on demand and on spot, and the cost on each series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windfall.lab.deadlines_series import GREEDY, OMNISCIENT, OURS, UNIFORM
from windfall.lab.published_rows import FigureSeries, PublishedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 0.21
_COSTS = ((GREEDY, "other"), (UNIFORM, "published"), (OURS, "ours"), (OMNISCIENT, "exact"))


def hours(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw Table 3: for each policy the printed hours, and those of each reading of the series."""
    ours = {(str(row.x), row.series): row.ours or 0.0 for row in rows}
    printed = {(str(row.x), row.series): row.published or 0.0 for row in rows}
    places = list(dict.fromkeys(str(row.x) for row in rows))
    policies = list(dict.fromkeys(place.partition("|")[0] for place in places))
    readings = list(dict.fromkeys(place.partition("|")[2] for place in places))
    for number, policy in enumerate(policies):
        bars = [("printed", printed, f"{policy}|{readings[0]}")]
        bars += [(reading, ours, f"{policy}|{reading}") for reading in readings]
        for place, (name, heights, key) in enumerate(bars):
            x, below = number + (place - (len(bars) - 1) / 2.0) * _WIDTH, 0.0
            for series, colour in ((FigureSeries.ON_DEMAND, "ours"), (FigureSeries.SPOT, "exact")):
                high = heights[key, series]
                label = str(series) if number == place == 0 else None
                axes.bar(x, high, _WIDTH * 0.9, bottom=below, color=colours[colour], label=label,
                         alpha=1.0 if name != "printed" else 0.5)  # fmt: skip
                if high > 4.0:
                    axes.annotate(f"{high:.1f}", (x, below + high / 2.0), ha="center", va="center", fontsize=7,
                                  color=colours["paper"])  # fmt: skip
                below += high
    axes.set_xticks(range(len(policies)), policies)
    axes.set_xlabel(f"from left to right: printed; {'; '.join(readings)}", fontsize=8)
    axes.set_ylim(bottom=0.0)


def costs(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw the cost of the policies on each series."""
    found = {str(row.x): row.ours or 0.0 for row in rows}
    names = list(dict.fromkeys(place.partition("|")[0] for place in found))
    names.sort(key=lambda name: found[f"{name}|{OMNISCIENT}"])
    for number, (policy, colour) in enumerate(_COSTS):
        shift = (number - (len(_COSTS) - 1) / 2.0) * _WIDTH
        heights = [found[f"{name}|{policy}"] for name in names]
        axes.bar(
            [place + shift for place in range(len(names))], heights, _WIDTH * 0.9, color=colours[colour], label=policy
        )
    axes.set_xticks(range(len(names)), [name.replace("_", "\n", 1) for name in names], fontsize=6, rotation=45)
    axes.set_ylim(bottom=0.0)
