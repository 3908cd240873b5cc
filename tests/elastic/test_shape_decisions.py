"""Layouts of an elastic training that a storm meets too seldom."""

from __future__ import annotations

from windfall.core.shape_decisions import ShapeChoice, ShapeFacts, ShapeMoment, first_layout, next_shape_layout
from windfall.models.shapes import Shape
from windfall.shape_layout import STORE, ShapeReport


def _stopped(machine: str, held: tuple[tuple[int, int, int], ...], *, trained: int = 0) -> ShapeReport:
    return ShapeReport(machine, False, 1.0, False, 1, 1, "here", 4, 0, 1, True, held, trained, steps=9)


def _two_stages(moment: ShapeMoment) -> ShapeChoice:
    del moment
    return ShapeChoice(Shape(1, 2), "as wanted")


def test_a_checkpoint_is_never_mixed_with_what_machines_hold() -> None:
    """A checkpoint may be of steps that were taken back and trained again: if it is needed, all of it is."""
    facts = ShapeFacts({"a": _stopped("a", ((0, 2, 5),)), "b": _stopped("b", ())}, frozenset(), 5)

    layout = next_shape_layout(first_layout(0), facts, _two_stages)

    assert layout is not None
    assert layout.step == 5
    assert {move.source for move in layout.moves} == {STORE}
    assert sum(move.end - move.first for move in layout.moves) == 4


def test_machines_that_have_all_of_a_step_need_no_checkpoint() -> None:
    """The same step of machines alone comes without the store."""
    facts = ShapeFacts({"a": _stopped("a", ((0, 3, 5),)), "b": _stopped("b", ((3, 4, 5),))}, frozenset(), 5)

    layout = next_shape_layout(first_layout(0), facts, _two_stages)

    assert layout is not None
    assert [(move.source, move.target) for move in layout.moves] == []


def test_the_end_is_when_the_last_step_is_stored() -> None:
    """Nothing is planned after it."""
    facts = ShapeFacts({"a": _stopped("a", ((0, 4, 9),), trained=9)}, frozenset(), 9)

    layout = next_shape_layout(first_layout(0), facts, _two_stages)

    assert layout is not None
    assert layout.over
    assert next_shape_layout(layout, facts, _two_stages) is None
