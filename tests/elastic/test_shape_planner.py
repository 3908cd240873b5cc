"""Which shapes a model can have, and which of them a coordinator trains in."""

from __future__ import annotations

import pytest

from windfall.core.shape_decisions import ShapeMoment
from windfall.core.shape_planner import ShapePlanner, possible_shapes
from windfall.errors import Infeasible
from windfall.models.shapes import IDLE, Shape

LAYERS, MICRO_BATCHES = 6, 8


def moment(ready: int, shape: Shape = IDLE) -> ShapeMoment:
    """So many machines that can train, after a shape."""
    return ShapeMoment(shape, shape.machines, ready, 0, LAYERS, MICRO_BATCHES)


def test_a_model_has_shapes_by_its_layers_and_micro_batches() -> None:
    """No stage without a layer, no pipeline without a micro-batch, and none that the job does not allow."""
    found = possible_shapes(3, 2, 8, ())

    assert set(found) == {Shape(1, 1), Shape(2, 1), Shape(1, 2), Shape(2, 2)}
    assert possible_shapes(3, 2, 8, (Shape(2, 2), Shape(4, 1))) == (Shape(2, 2),)


def test_all_machines_train_side_by_side_while_nothing_is_known_of_layers() -> None:
    """Equal layers, sent in no time: pipelines of one stage lose nothing to bubbles."""
    planner = ShapePlanner(8, (), None, 0.0)

    assert planner.choose(moment(4)).shape == Shape(4, 1)
    assert planner.choose(moment(3, Shape(4, 1))).shape == Shape(3, 1)


def test_machines_beyond_the_largest_number_are_spares() -> None:
    """A fleet may have more for a moment."""
    assert ShapePlanner(2, (), None, 0.0).choose(moment(5)).shape == Shape(2, 1)


def test_fewer_machines_than_any_shape_needs_wait() -> None:
    """And the reason says how many it needs."""
    choice = ShapePlanner(4, (Shape(1, 3),), None, 0.0).choose(moment(2))

    assert choice.shape == IDLE
    assert choice.because == "2 machines are too few: the smallest shape needs 3"


def test_nothing_is_trained_once_it_is_to_rest() -> None:
    """Whatever machines there are."""
    planner = ShapePlanner(4, (), None, 0.0)
    planner.resting = True

    assert planner.choose(moment(3)).shape == IDLE


def test_shapes_that_no_model_can_have_are_refused() -> None:
    """Three stages of three layers cannot be cut: the sentence says why."""
    with pytest.raises(Infeasible, match=r"none of the shapes 1x6 can be had with 6 layers and 8 micro-batches"):
        ShapePlanner(8, (Shape(1, 6),), None, 0.0).choose(moment(6))
