"""A parameter server's training as a picture: how the loss fell, on which machines, in which stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windfall.report import attempt_timeline
from windfall.tier_status import TierPoint
from windfall.units import duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOSS, _RELIABLE, _TRANSIENT = "#1F4E79", "#7F7F7F", "#E69F00"
_STAGES = {1: "#FFFFFF", 2: "#EEF3F8", 3: "#DCE7F1"}
"""Background of each stage."""


def draw(points: Sequence[TierPoint], path: Path, *, title: str) -> None:
    """Draw training at its checkpoints, 1200 x 500 pixels, in the format of the path's suffix.

    Args:
        points: oldest first, at least one.
        path: of the picture.
        title: of the picture.

    Raises:
        Misuse: matplotlib is not installed.
    """
    figure = attempt_timeline.new_figure()
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    span_s = points[-1].at - points[0].at or 1.0
    unit_s, unit = attempt_timeline.unit_of(span_s)
    at = [(point.at - points[0].at) / unit_s for point in points]
    for axes in (above, below):
        _shade(axes, points, at)
    known = [(one, point.loss) for one, point in zip(at, points, strict=True) if point.loss is not None]
    above.plot([one for one, _ in known], [loss for _, loss in known], color=_LOSS, marker=".", linewidth=1.5)
    above.set_ylabel("loss" if known else "loss (the program says none)")
    reliable, transient = [point.reliable for point in points], [point.transient for point in points]
    below.stackplot(
        at, reliable, transient, colors=(_RELIABLE, _TRANSIENT), labels=("reliable", "transient"), step="post"
    )
    below.set_ylabel("machines")
    below.set_xlabel(f"time since the first checkpoint ({unit}); the darker the background, the later the stage")
    below.legend(loc="upper left", fontsize=8, frameon=False, ncols=2)
    above.set_title(f"{title}: clock {points[-1].clock:,} after {duration_text(span_s)}", loc="left", fontsize=11)
    figure.savefig(path)


def _shade(axes: Axes, points: Sequence[TierPoint], at: Sequence[float]) -> None:
    for point, left, right in zip(points, at, at[1:], strict=False):
        if point.stage is not None:
            axes.axvspan(left, right, color=_STAGES[point.stage], linewidth=0, zorder=0)
