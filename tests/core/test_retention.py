"""Which committed points may go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.core.story import ref_to
from windfall.core.retention import superseded
from windfall.terms import CheckpointRef, SaveKind

KINDS = {"P": SaveKind.PERIODIC, "I": SaveKind.INSURANCE, "E": SaveKind.EMERGENCY, "S": SaveKind.STOP}


def points(pattern: str) -> tuple[CheckpointRef, ...]:
    """`PIE` is a periodic, an insurance, an emergency point, oldest first."""
    return tuple(ref_to(f"{number:08d}", number, KINDS[letter]) for number, letter in enumerate(pattern))


def steps(gone: tuple[CheckpointRef, ...]) -> list[int]:
    """Which of the pattern went."""
    return [point.step for point in gone]


def test_insurance_emergency_and_stop_points_go_but_for_the_two_newest() -> None:
    """And periodic ones stay."""
    assert steps(superseded(points("IESPII"))) == [0, 1, 2]


def test_of_the_periodic_ones_the_wanted_number_stays() -> None:
    """`keep` counts periodic points only."""
    assert steps(superseded(points("PPPPII"), keep=2)) == [0, 1]


def test_two_whole_points_stay_whatever_is_kept() -> None:
    """Also with `keep` 0, also if the newest is damaged."""
    assert steps(superseded(points("PPPP"), keep=0)) == [0, 1]
    assert steps(superseded(points("IIII"), damaged=frozenset({"00000003"}))) == [0, 3]


def test_a_single_whole_point_protects_everything() -> None:
    """Nothing is deleted while fewer than two are known to be whole."""
    assert superseded(points("II"), damaged=frozenset({"00000000"})) == ()


@given(st.text("PIES", max_size=12), st.none() | st.integers(0, 5), st.sets(st.integers(0, 11)))
def test_two_whole_points_always_stay(pattern: str, keep: int | None, bad: set[int]) -> None:
    """Over any history; and what stays after one pass stays after a second."""
    live = points(pattern)
    damaged = frozenset(f"{number:08d}" for number in bad)
    gone = superseded(live, keep=keep, damaged=damaged)
    left = tuple(point for point in live if point not in gone)
    whole = [point for point in live if point.checkpoint_id not in damaged]
    assert [point for point in left if point.checkpoint_id not in damaged][-2:] == whole[-2:]
    assert superseded(left, keep=keep, damaged=damaged) == ()
