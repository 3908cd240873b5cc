"""Which committed checkpoints may be deleted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.core.story import ref_to
from windfall.core.checkpoints import superseded
from windfall.terms import CheckpointRef, SaveKind

KINDS = {"P": SaveKind.PERIODIC, "I": SaveKind.INSURANCE, "E": SaveKind.EMERGENCY, "S": SaveKind.STOP}


def checkpoints(pattern: str) -> tuple[CheckpointRef, ...]:
    """`PIE` is a periodic, an insurance, an emergency checkpoint, oldest first."""
    return tuple(ref_to(f"{number:08d}", number, KINDS[letter]) for number, letter in enumerate(pattern))


def steps(gone: tuple[CheckpointRef, ...]) -> list[int]:
    """Which of the pattern went."""
    return [checkpoint.step for checkpoint in gone]


def test_insurance_emergency_and_stop_saves_go_except_the_two_newest() -> None:
    """And periodic ones stay."""
    assert steps(superseded(checkpoints("IESPII"))) == [0, 1, 2]


def test_the_requested_number_of_periodic_ones_stays() -> None:
    """`keep` counts periodic checkpoints only."""
    assert steps(superseded(checkpoints("PPPPII"), keep=2)) == [0, 1]


def test_two_intact_checkpoints_stay_whatever_is_kept() -> None:
    """Also with `keep` 0, also if the newest is damaged."""
    assert steps(superseded(checkpoints("PPPP"), keep=0)) == [0, 1]
    assert steps(superseded(checkpoints("IIII"), damaged=frozenset({"00000003"}))) == [0, 3]


def test_a_single_intact_checkpoint_protects_everything() -> None:
    """Nothing is deleted while fewer than two are known to be whole."""
    assert superseded(checkpoints("II"), damaged=frozenset({"00000000"})) == ()


@given(st.text("PIES", max_size=12), st.none() | st.integers(0, 5), st.sets(st.integers(0, 11)))
def test_two_intact_checkpoints_always_stay(pattern: str, keep: int | None, bad: set[int]) -> None:
    """Over any history; and what stays after one pass stays after a second."""
    live = checkpoints(pattern)
    damaged = frozenset(f"{number:08d}" for number in bad)
    gone = superseded(live, keep=keep, damaged=damaged)
    left = tuple(checkpoint for checkpoint in live if checkpoint not in gone)
    whole = [checkpoint for checkpoint in live if checkpoint.checkpoint_id not in damaged]
    assert [checkpoint for checkpoint in left if checkpoint.checkpoint_id not in damaged][-2:] == whole[-2:]
    assert superseded(left, keep=keep, damaged=damaged) == ()
