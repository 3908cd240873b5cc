"""Where looking ahead pays: what its rows say, and that the default loses nowhere it was judged."""

from __future__ import annotations

import functools

import pytest

from tests.models.migration_examples import example, speeds
from tests.papers.reference import FOLDER
from tests.simulation.shared_data import DATA, needs_data
from windfall.lab import parcae
from windfall.lab import parcae_look_ahead as looking
from windfall.lab.parcae_tables import read_model
from windfall.lab.published_rows import Options, PublishedRow
from windfall.models.shape_costs import BoundedCosts, PublishedCosts
from windfall.models.shapes import Shape
from windfall.policies.shapes.shape_policy import ShapeSituation, decide
from windfall.simulation import shape_replay

TABLES = FOLDER / "parcae"
needs_tables = pytest.mark.skipif(not TABLES.is_dir(), reason="Parcae's measured tables are not beside this checkout")


def quiet(words: str) -> None:
    del words


@functools.cache
def rows() -> tuple[PublishedRow, ...]:
    return parcae.PARTS["look-ahead"].rows(Options(0, folder=str(DATA.parent)), quiet)


def found(item: str) -> dict[str, float]:
    return {row.quantity: row.ours or 0.0 for row in rows() if row.item == item}


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_default_loses_nowhere_and_pays_on_parcaes_trace() -> None:
    """On other traces no interval of the default lies below 0, while those of 12 do; on Parcae's own it gains 1 % twice."""
    default, theirs = (found(f"all other traces, {look}") for look in (looking.FOLLOWING, "12 intervals"))
    followed = f"more samples, {looking.FOLLOWING}"

    assert default[looking.LOSES] == 0
    assert default[looking.WORST] > -0.05
    assert theirs[looking.LOSES] > 5
    assert theirs[looking.WORST] < -2.0
    assert found(f"{looking.P3}, GPT-2")[followed] > 1.0
    assert found(f"{looking.P3}, GPT-3")[followed] > 1.0


def test_a_summary_counts_intervals_on_one_side_of_nothing() -> None:
    """Above 0 it pays, below 0 it loses, and what is written as 0.00 % is neither."""
    summary = looking._summary(
        "12 intervals", [(1.0, 0.5, 2.0), (-1.0, -3.0, -0.1), (0.1, -0.1, 0.3), (0.004, 0.001, 0.004)]
    )

    assert [(row.quantity, row.ours) for row in summary] == [
        (looking.PAYS, 1.0),
        (looking.LOSES, 1.0),
        (looking.WORST, -1.0),
    ]


def test_a_policy_that_remembers_decides_as_one_that_does_not() -> None:
    """Asked again it decides the same; a look at this interval alone takes other shapes."""
    costs, charged = (
        BoundedCosts(example(every_stage=True), speeds(8)),
        PublishedCosts(example(every_stage=True), speeds(8)),
    )
    counts = (8, 8, 7, 8, 5, 5, 6, 8, 8, 2, 1, 0, 3, 8) * 3
    choose = shape_replay.deciding(costs, 3)
    kept = shape_replay.play(counts, charged, choose)

    def anew(seen: shape_replay.Moment) -> Shape:
        now = ShapeSituation(seen.shape, seen.before, seen.now, unpaid_s=seen.unpaid_s)
        return decide(now, costs, look_ahead=3).shape

    assert kept == shape_replay.play(counts, charged, anew)
    assert kept == shape_replay.play(counts, charged, choose)
    assert kept.shapes != shape_replay.play(counts, charged, shape_replay.deciding(costs, 1)).shapes


@needs_tables
def test_a_look_that_follows_counts_grows_where_nothing_changes() -> None:
    """A slow start is left at once where a change pays within the look: after many calm minutes, and not in a restless hour."""
    model = read_model(TABLES, "GPT-3", every_stage=True)
    costs, charged = BoundedCosts(model.times, model.speeds), PublishedCosts(model.times, model.speeds)
    calm = (*(12,) * 300, *(16,) * 12)
    restless = (*(12, 13) * 150, *(16,) * 12)
    ends = [
        shape_replay.play(counts, charged, shape_replay.deciding(costs, None)).shapes[-1] for counts in (calm, restless)
    ]

    assert ends == [Shape(1, 16), Shape(1, 12)]


@needs_tables
def test_without_other_traces_there_is_no_row() -> None:
    """A folder with the tables alone has nothing that Parcae's trace had no part in."""
    assert looking.look_ahead(Options(0, folder=str(TABLES)), quiet) == ()
