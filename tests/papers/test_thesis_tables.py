"""The thesis' Tables 6.2 and 6.3 by the closed form, and its slips."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.papers.reference import published
from windfall.errors import Infeasible
from windfall.lab.published_rows import PublishedRow, compared
from windfall.lab.thesis_closed_form import Inputs, totals
from windfall.lab.thesis_rows import overhead_pct, thesis_rows

INPUTS = "adaptive-checkpointing/derived_inputs.json"


@pytest.fixture(scope="module")
def rows() -> tuple[PublishedRow, ...]:
    """Every row, from the published numbers."""
    return thesis_rows(published("adaptive-checkpointing/tables.json"), published(INPUTS))


def of(rows: Sequence[PublishedRow], table: str, quantity: str) -> list[PublishedRow]:
    found = [row for row in rows if row.source == f"thesis, {table}" and row.quantity == quantity]
    assert found
    return found


@pytest.mark.parametrize("table", ["Table 6.2", "Table 6.3"])
@pytest.mark.parametrize("quantity", ["total", "cost"])
def test_totals_and_costs_are_within_half_a_percent(rows: tuple[PublishedRow, ...], table: str, quantity: str) -> None:
    """Five columns of both tables: within 0.5 %, and in fact within 0.13 %."""
    found = of(rows, table, quantity)

    assert len(found) == 5
    assert {row.verdict for row in found} == {"match"}
    assert max(abs(row.difference_pct or 0.0) for row in found) <= 0.13


def test_parts_are_as_near_as_is_known_to_be_possible(rows: tuple[PublishedRow, ...]) -> None:
    """Each part of each spot column has the error of the reference reproduction, within 0.02 points."""
    known = published("adaptive-checkpointing/reproduction.json")["closed_form_rows"]
    names = {"recompute": "recompute", "save": "save", "alloc": "alloc", "prep": "prep"}
    seen = 0
    for key, reference in known.items():
        table, column = key.split("/")
        for part, quantity in names.items():
            (row,) = (row for row in of(rows, f"Table {table}", quantity) if row.item == column)
            wanted = reference["err_pct"][part]
            if wanted is not None:
                assert row.difference_pct == pytest.approx(wanted, abs=0.02)
                seen += 1

    assert seen == 31


@pytest.mark.parametrize("emergency", [False, True])
def test_a_column_s_parts_are_its_total(emergency: bool) -> None:
    """Training, saves, waits for machines and their preparation: nothing is left over, nothing counted twice."""
    column = totals(Inputs(93_000, 4.6, 2.55, 13.0, 136.5, 160.0, 10_800.0, 51, emergency))
    assert (column.recompute_s == 0.0) is emergency
    assert column.compute_s + column.save_s + column.allocate_s + column.prepare_s == pytest.approx(column.total_s)


def test_what_differs_says_why(rows: tuple[PublishedRow, ...]) -> None:
    """Four parts are beyond what matches, two of a mean of 100 runs' own noise, one of a misprint, each with words."""
    differing = {
        (row.item, row.quantity) for row in rows if row.verdict == "differs" and row.method.startswith("closed")
    }

    assert differing == {("adaptive", "alloc"), ("adaptive", "prep"), ("per100", "comp"), ("per100", "recompute")}
    assert all(row.reason for row in rows if row.verdict != "match")


def test_the_misprinted_cell_is_shown_with_its_arithmetic(rows: tuple[PublishedRow, ...]) -> None:
    """Per-100 prints its total as computation; what the other rows leave is given, and ours is near it."""
    (row,) = (row for row in of(rows, "Table 6.2", "comp") if row.item == "per100")

    assert row.reason.endswith("488135 - 2549 - 6362 - 7363 = 471861")
    assert row.ours == pytest.approx(471_861.0, rel=1.2e-3)


def test_the_slips_are_rows(rows: tuple[PublishedRow, ...]) -> None:
    """Ten times the steps, a base that changes, 31 for 33 steps, a column's wrong head, two rounded prices."""
    slips = {(row.item, row.quantity): row for row in rows if row.method == "the thesis' own numbers"}

    assert slips["GPT-1.3B", "run length"].ours == pytest.approx(100_000.0, rel=1e-6)
    assert slips["GPT-1.3B, per 33", "overhead"].ours == pytest.approx(12.30, abs=0.005)
    assert (slips["text below it", "interval"].published, slips["text below it", "interval"].ours) == (31.0, 33.0)
    assert slips["on_demand", "interval"].ours == pytest.approx(1_000.0, rel=1e-3)
    assert slips["spot", "price"].ours == pytest.approx(2.3048, rel=1e-3)
    assert slips["on demand", "price"].ours == pytest.approx(6.205, rel=1e-4)
    assert {row.verdict for row in slips.values()} == {"differs"}


def test_the_intervals_are_the_published_ones(rows: tuple[PublishedRow, ...]) -> None:
    """51 and 33 steps; the garbled reading of the formula is quoted beside them."""
    assert [row.ours for row in rows if row.item == "insurance save"] == [51.0, 33.0]
    assert [row.method.split()[-1] for row in rows if row.item == "insurance save"] == ["5447", "3561"]


def test_table_6_1_cannot_be_rebuilt(rows: tuple[PublishedRow, ...]) -> None:
    """Its six cells are said to be out of reach, with what the known inputs would give."""
    found = [row for row in rows if row.source == "thesis, Table 6.1"]

    assert {(row.verdict, row.ours) for row in found} == {("cannot", None)}
    assert any("13.1 h" in row.reason for row in found)


def test_the_figures_fall_with_the_time_between_losses() -> None:
    """Overhead over MTTP 1 to 12 h: it falls, and the adaptive policy is never above any fixed interval drawn."""
    inputs = published(INPUTS)
    for model, columns in (("gpt117m", ("per10", "per51", "per100")), ("gpt1_3b", ("per10", "per33", "per100"))):
        adaptive = [overhead_pct(inputs, model, "adaptive", hours * 3_600.0) for hours in range(1, 13)]
        assert adaptive == sorted(adaptive, reverse=True)
        for column in columns:
            fixed = [overhead_pct(inputs, model, column, hours * 3_600.0) for hours in range(1, 13)]
            assert all(ours <= theirs * 1.01 for ours, theirs in zip(adaptive, fixed, strict=True))


def test_a_loss_dearer_than_the_time_between_losses_is_refused() -> None:
    """Restarts of an hour, a loss each half hour: no such run ends."""
    with pytest.raises(Infeasible, match="each loss costs"):
        totals(Inputs(1_000, 1.0, 1.0, 1.0, 3_600.0, 0.0, 1_800.0, 10))


def test_a_row_of_noughts_matches_and_one_of_nothing_published_has_no_difference() -> None:
    """0 against 0 is a match; something against 0 differs without a percentage."""
    rows = [
        compared("s", "i", "q", unit="s", published=0.0, ours=ours, tolerance_pct=1.0, method="m", reason="r")
        for ours in (0.0, 1.0)
    ]

    assert [(row.verdict, row.difference_pct) for row in rows] == [("match", 0.0), ("differs", None)]
