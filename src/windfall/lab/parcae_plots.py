"""Pictures of Parcae's trace: machines and forecasts of them, shapes over time, and what each policy trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windfall.lab import parcae_published as paper
from windfall.lab.parcae_policies import played
from windfall.lab.parcae_tables import kept_model
from windfall.lab.published_rows import PublishedRow
from windfall.models import count_forecasts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN: Final = (
    (paper.CHECKPOINTS, "restart from a checkpoint", "published"),
    (paper.MIGRATING, "fastest shape, migration", "other"),
    (paper.PERSISTING, "liveput, now and last value", "ours"),
    (paper.TRUTH, "liveput, the truth is known", "exact"),
)
_WIDTH: Final = 0.2


def forecasts(data: str | None, axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw the machines of each minute, and what was forecast for it 12 minutes before."""
    assert data is not None, "a row of this figure was computed from the tables"
    del rows
    counts = kept_model(Path(data), paper.DRAWN).counts
    hours = [number / 60.0 for number in range(len(counts))]
    ends = range(paper.HISTORY + paper.AHEAD - 1, len(counts))
    guarded = [
        count_forecasts.guarded_arima(
            counts[end - paper.AHEAD - paper.HISTORY + 1 : end - paper.AHEAD + 1],
            paper.AHEAD,
            count_forecasts.Damping(),
            least=paper.LEAST,
            most=paper.MOST,
        )[0][-1]
        for end in ends
    ]
    last = [counts[end - paper.AHEAD] for end in ends]
    axes.fill_between(hours, counts, step="post", color=colours["faint"], alpha=0.6, linewidth=0, label="machines")
    for values, colour, name in (
        (guarded, "published", "Parcae's ARIMA, 12 minutes before"),
        (last, "ours", "last value, 12 minutes before"),
    ):
        axes.step([hours[end] for end in ends], values, where="post", color=colours[colour], linewidth=1.1, label=name)
    _hours(axes, hours[-1])


def shapes(data: str | None, axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw machines, those that the planned shape uses, and its stages and pipelines."""
    assert data is not None, "a row of this figure was computed from the tables"
    del rows
    counts, run = kept_model(Path(data), paper.DRAWN).counts, played(Path(data), paper.DRAWN, paper.PERSISTING)
    hours = [number / 60.0 for number in range(len(counts))]
    axes.fill_between(hours, counts, step="post", color=colours["faint"], alpha=0.6, linewidth=0, label="machines")
    for values, colour, name in (
        ([shape.machines for shape in run.shapes], "ours", "machines of the shape"),
        ([shape.stages for shape in run.shapes], "exact", "stages"),
        ([shape.pipelines for shape in run.shapes], "published", "pipelines"),
    ):
        axes.step(hours, values, where="post", color=colours[colour], linewidth=1.3, label=name)
    _hours(axes, hours[-1])


def samples(axes: Axes, rows: Sequence[PublishedRow], colours: dict[str, str]) -> None:
    """Draw for each model what policies train, of the fastest shapes with free changes [%]; printed totals as lines."""
    found = {str(row.x): row for row in rows}
    names = list(dict.fromkeys(key.partition("|")[0] for key in found))
    for place, name in enumerate(names):
        whole = paper.SAMPLES[name][paper.IDEAL]
        for number, (policy, words, colour) in enumerate(_SHOWN):
            row = found.get(f"{name}|{policy}")
            if row is None:
                continue
            x, high = place + (number - (len(_SHOWN) - 1) / 2.0) * _WIDTH, 100.0 * (row.ours or 0.0) / whole
            axes.bar(x, high, _WIDTH * 0.92, color=colours[colour], label=words if place == 0 else None)
            axes.annotate(f"{high:.1f}", (x, high), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7,
                          color=colours["ink"])  # fmt: skip
            if row.published is not None:
                axes.hlines(
                    100.0 * row.published / whole,
                    x - _WIDTH * 0.46,
                    x + _WIDTH * 0.46,
                    color=colours["ink"],
                    linewidth=1.2,
                    label="published" if (place, number) == (0, 0) else "_",
                )
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0.0, 108.0)


def _hours(axes: Axes, last: float) -> None:
    axes.set_xlim(0.0, last)
    axes.set_ylim(0.0, paper.MOST + 1.0)
    axes.set_xlabel("time on the trace [h]")
