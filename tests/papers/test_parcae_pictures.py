"""Pictures of Parcae's trace show what was computed."""

from __future__ import annotations

import pytest

from tests.papers.reference import FOLDER
from windfall.lab import parcae_plots
from windfall.lab import parcae_published as paper
from windfall.lab.parcae_policies import played
from windfall.lab.parcae_tables import kept_model
from windfall.lab.published_rows import PaperFigure, compared

figures = pytest.importorskip("matplotlib.figure")
TABLES = FOLDER / "parcae"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="Parcae's measured tables are not beside this checkout")
COLOURS = dict.fromkeys(("ours", "exact", "published", "other", "ink", "faint", "paper"), "#000000")


def test_bars_are_shares_of_the_fastest_shapes_with_free_changes() -> None:
    """Of GPT-3 two policies were computed, one of them a tenth less than printed: two bars, with the shares of ours."""
    axes, whole = figures.Figure().subplots(), paper.SAMPLES["GPT-3"][paper.IDEAL]
    rows = [
        compared("", "", "", unit="", published=0.9 * whole, ours=share * whole, tolerance_pct=1.0, method="")
        .placed(PaperFigure.PARCAE_SAMPLES, x=f"GPT-3|{policy}")
        for policy, share in ((paper.CHECKPOINTS, 0.9), (paper.PERSISTING, 0.81))
    ]  # fmt: skip

    parcae_plots.samples(axes, rows, COLOURS)

    assert [bar.get_height() for bar in axes.patches] == pytest.approx([90.0, 81.0])
    assert [text.get_text() for text in axes.texts] == ["90.0", "81.0"]


@needs_tables
def test_forecasts_are_drawn_where_they_come_true() -> None:
    """The line of the last value is the trace, 12 minutes later; no forecast lies before the first one that can be made."""
    axes, counts = figures.Figure().subplots(), kept_model(TABLES, paper.DRAWN).counts

    parcae_plots.forecasts(str(TABLES), axes, (), COLOURS)

    guarded, last = axes.lines
    first = paper.HISTORY + paper.AHEAD - 1
    assert list(last.get_ydata()) == list(counts[first - paper.AHEAD : -paper.AHEAD])
    assert list(last.get_xdata()) == pytest.approx([minute / 60.0 for minute in range(first, len(counts))])
    assert len(guarded.get_ydata()) == len(last.get_ydata())
    assert list(guarded.get_ydata()) != list(last.get_ydata())


@needs_tables
def test_shapes_are_those_of_the_plan() -> None:
    """Machines, stages and pipelines of each minute; never more machines than there are."""
    axes, run = figures.Figure().subplots(), played(TABLES, paper.DRAWN, paper.PERSISTING)

    parcae_plots.shapes(str(TABLES), axes, (), COLOURS)

    machines, stages, pipelines = ([int(value) for value in line.get_ydata()] for line in axes.lines)
    assert [left * right for left, right in zip(stages, pipelines, strict=True)] == machines
    assert pipelines == [shape.pipelines for shape in run.shapes]
    assert all(used <= count for used, count in zip(machines, kept_model(TABLES, paper.DRAWN).counts, strict=True))
