"""An elastic training as a picture: its shapes over time beside the machines that there were, and how far it came."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windfall.report import attempt_timeline
from windfall.shape_status import ShapePoint
from windfall.units import count_text, duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS, _MACHINES, _TRAINING = "#1F4E79", "#D9D9D9", "#E69F00"
_LABEL_SHARE_MIN = 0.035
"""Of the width of the picture: a shape that was shorter gets no label."""


def draw(points: Sequence[ShapePoint], path: Path, *, title: str) -> None:
    """Draw a training, 1200 x 500 pixels, in the format of the path's suffix.

    Args:
        points: oldest first, at least one; the last one is the newest that is known.
        path: of the picture.
        title: of the picture.

    Raises:
        Misuse: matplotlib is not installed.
    """
    figure = attempt_timeline.new_figure()
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    span_s = points[-1].at - points[0].at or 1.0
    unit_s, unit = attempt_timeline.unit_of(span_s)
    at = [(point.at - points[0].at) / unit_s for point in points]
    above.plot(at, [point.step for point in points], color=_STEPS, linewidth=1.5)
    above.set_ylabel("step")
    machines, training = [point.machines for point in points], [point.pipelines * point.stages for point in points]
    below.fill_between(at, machines, step="post", color=_MACHINES, label="machines that may vanish")
    below.fill_between(at, training, step="post", color=_TRAINING, label="of which train, as pipelines x stages")
    _name_shapes(below, points, at)
    below.set_ylim(0, 1.35 * max(1, *machines, *training))
    below.set_xlim(0, at[-1] or 1.0)
    below.yaxis.get_major_locator().set_params(integer=True)
    below.set_ylabel("machines")
    below.set_xlabel(f"time since training began ({unit})")
    below.legend(loc="upper left", fontsize=8, frameon=False, ncols=2)
    last = points[-1]
    redone = f", {count_text(last.redone, 'step', 'steps')} trained again" if last.redone else ""
    above.set_title(f"{title}: step {last.step:,} after {duration_text(span_s)}{redone}", loc="left", fontsize=11)
    figure.savefig(path)


def _name_shapes(axes: Axes, points: Sequence[ShapePoint], at: Sequence[float]) -> None:
    """Write each shape once, in the middle of the time in which it was trained."""
    first = 0
    for place in range(1, len(points)):
        shape, last = (points[first].pipelines, points[first].stages), place == len(points) - 1
        if last or (points[place].pipelines, points[place].stages) != shape:
            if shape[1] and at[place] - at[first] >= _LABEL_SHARE_MIN * at[-1]:
                middle = (at[first] + at[place]) / 2.0
                name = f"{shape[0]}x{shape[1]}"
                axes.text(middle, 0.5 * shape[0] * shape[1], name, ha="center", va="center", fontsize=9)
            first = place
