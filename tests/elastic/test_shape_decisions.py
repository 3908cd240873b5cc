"""Layouts of an elastic training that a storm meets too seldom."""

from __future__ import annotations

from windfall.core.shape_decisions import (
    ShapeChoice,
    ShapeFacts,
    ShapeMoment,
    first_layout,
    is_at_rest,
    next_shape_layout,
    released,
)
from windfall.models.shapes import IDLE, Shape
from windfall.shape_layout import STORE, ShapeLayout, ShapeReport, StagePlace, StateMove
from windfall.structs import replace


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


def _idle(moment: ShapeMoment) -> ShapeChoice:
    del moment
    return ShapeChoice(IDLE, "too few machines")


def _trained(*, stop: bool) -> ShapeLayout:
    """Two stages of two layers, on a and b, in term 1, with a backup."""
    places = (StagePlace(0, 0, "a"), StagePlace(0, 1, "b"))
    return replace(
        first_layout(0), record=5, version=5, term=1, pipelines=1, stages=2, cut=(0, 2, 4), places=places, stop=stop, backup="r"
    )  # fmt: skip


def _reports(layout: ShapeLayout, *reports: ShapeReport) -> dict[str, ShapeReport]:
    return {one.machine: replace(one, layout=layout.version, term=layout.term, coordinator=1) for one in reports}


def test_a_shape_is_cut_anew_without_a_loss() -> None:
    """Only the layer that changes its stage moves, after a step that all have; the same cut again plans nothing."""
    now = _trained(stop=False)
    reports = _reports(
        now,
        replace(_stopped("a", ((0, 2, 8),), trained=8), stopped=False),
        replace(_stopped("b", ((2, 4, 8),), trained=8), stopped=False),
        replace(_stopped("r", ((0, 4, 7),), trained=7), stopped=False, reliable=True),
    )

    def cut_at(layer: int) -> ShapeLayout | None:
        choice = ShapeChoice(Shape(1, 2), "the last layer is heavy", cut=(0, layer, 4))
        return next_shape_layout(now, ShapeFacts(reports, frozenset(), 0), lambda moment: choice)

    layout = cut_at(3)
    assert layout is not None
    assert (layout.cut, layout.term, layout.step, layout.stop) == ((0, 3, 4), now.term, None, False)
    assert (layout.moves, layout.because) == ((StateMove(2, 3, "b", "a"),), "the last layer is heavy")
    assert cut_at(2) is None


def test_what_survives_a_loss_is_saved_while_all_wait() -> None:
    """Without the backup the last machine may go only once the store has the step; until then no other layout follows."""
    a = _stopped("a", ((0, 4, 7), (0, 4, 8)), trained=8)
    b, new = _stopped("b", ((2, 4, 6), (2, 4, 7)), trained=7), replace(_stopped("r2", ()), reliable=True)
    stopped = _trained(stop=True)
    gone = frozenset({"r"})

    waiting = next_shape_layout(stopped, ShapeFacts(_reports(stopped, a, b, new), gone, 0), _idle)

    assert waiting is not None
    assert (waiting.stages, waiting.stop, waiting.step, waiting.term, waiting.base) == (0, False, None, 2, 8)
    assert waiting.moves == (StateMove(0, 4, "a", STORE),)
    at = [replace(one, held=held, trained=8) for one, held in ((a, ((0, 4, 8),)), (b, ()), (new, ()))]
    leaving = ShapeFacts(_reports(waiting, replace(at[0], leaving=True), *at[1:]), gone, 0)
    assert next_shape_layout(waiting, leaving, _idle) is None
    assert not released(waiting, leaving)
    assert not is_at_rest(waiting, leaving)
    stored = replace(leaving, stored=8)
    assert next_shape_layout(waiting, stored, _idle) is None
    assert released(waiting, stored) == {"a"}
    assert is_at_rest(waiting, stored)


def test_a_step_is_saved_by_others_if_the_machine_that_saves_it_is_lost() -> None:
    """Before all wait the backup saves; it is lost, and the stages have another step in common than the one it had."""
    planned = next_shape_layout(
        _trained(stop=False),
        ShapeFacts(
            _reports(
                _trained(stop=False),
                replace(_stopped("a", ((0, 2, 8),), trained=8), stopped=False),
                replace(_stopped("b", ((2, 4, 8),), trained=8), stopped=False),
                replace(_stopped("r", ((0, 4, 7),), trained=7), stopped=False, reliable=True),
            ),
            frozenset(),
            0,
        ),
        _idle,
    )
    assert planned is not None
    assert (planned.moves, planned.left, planned.term) == ((StateMove(0, 4, "r", STORE),), ("a", "b"), 1)
    reports = _reports(
        planned,
        _stopped("a", ((0, 2, 8), (0, 2, 9)), trained=9),
        _stopped("b", ((2, 4, 8), (2, 4, 9)), trained=9),
        replace(_stopped("r", ((0, 4, 9),), trained=9), reliable=True),
    )
    assert next_shape_layout(planned, ShapeFacts(reports, frozenset(), 0), _idle) is None

    again = next_shape_layout(planned, ShapeFacts(reports, frozenset({"r"}), 0), _idle)

    assert again is not None
    assert (again.term, again.base, again.redone) == (2, 9, 0)
    assert again.moves == (StateMove(0, 2, "a", STORE), StateMove(2, 4, "b", STORE))
    behind = {**reports, "r": replace(reports["r"], held=((0, 4, 8),), trained=8)}
    other = next_shape_layout(planned, ShapeFacts(behind, frozenset(), 0), _idle)
    assert other is not None
    assert other.base == 9


def test_a_machine_that_saves_another_step_than_all_have_saves_it_again() -> None:
    """One finished a step that another one gave up: it saves that, and then the one that both have, after going back."""
    moves = (StateMove(0, 2, "a", STORE), StateMove(2, 4, "b", STORE))
    waiting = replace(_trained(stop=False), pipelines=0, stages=0, cut=(), places=(), backup=None, moves=moves)
    a, b = _stopped("a", ((0, 2, 8), (0, 2, 9)), trained=9), _stopped("b", ((2, 4, 7), (2, 4, 8)), trained=8)

    again = next_shape_layout(waiting, ShapeFacts(_reports(waiting, a, b), frozenset(), 0), _idle)

    assert again is not None
    assert (again.term, again.base, again.redone, again.moves) == (2, 8, 1, moves)


def test_a_notice_too_short_for_a_migration_drops_the_pipeline_of_the_machine_that_leaves() -> None:
    """Of 2x2 the whole pipeline stays where it is, and nothing is sent: 3x1 would take 10 s, and 3 are left."""
    cut, names = (0, 3, 4), ("a", "b", "c", "d")
    places = tuple(StagePlace(number // 2, number % 2, name) for number, name in enumerate(names))
    layout = replace(first_layout(0), version=2, term=1, pipelines=2, stages=2, cut=cut, places=places)
    reports = {
        name: replace(_stopped(name, ((0, 4, 5),), trained=5), stopped=False, layout=2, term=1, leaving=name == "d")
        for name in names
    }
    choice = ShapeChoice(Shape(3, 1), "faster", 10.0, Shape(1, 2), 1.0)
    moments: list[ShapeMoment] = []

    def choose(moment: ShapeMoment) -> ShapeChoice:
        moments.append(moment)
        return choice

    dropped = next_shape_layout(layout, ShapeFacts(reports, frozenset(), 0, left_s={"d": 3.0}), choose)
    migrated = next_shape_layout(layout, ShapeFacts(reports, frozenset(), 0, left_s={"d": 11.0}), choose)

    assert dropped is not None
    assert migrated is not None
    assert moments[0].whole == 1
    assert (dropped.pipelines, dropped.stages, dropped.step, dropped.stop, dropped.moves) == (1, 2, None, False, ())
    assert {place.machine for place in dropped.places} < {"a", "b", "c"}
    assert dropped.because == "d to leave in 3.0 s, and a change to 3x1 takes 10.0 s: 1x2 drops their pipelines"
    assert (migrated.pipelines, migrated.stages, migrated.because) == (3, 1, "faster")
