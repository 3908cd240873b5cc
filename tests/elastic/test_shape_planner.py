"""Which shapes a model can have, and which of them a coordinator trains in."""

from __future__ import annotations

import pytest

from windfall.core.shape_decisions import ShapeMoment
from windfall.core.shape_planner import ShapePlanner
from windfall.errors import Infeasible, Misuse
from windfall.models.elastic_profile import even_profile, profile_of
from windfall.models.shapes import IDLE, Shape

LAYERS, MICRO_BATCHES = 6, 8


def moment(ready: int, shape: Shape = IDLE) -> ShapeMoment:
    """So many machines that can train, after a shape."""
    return ShapeMoment(shape, shape.machines, ready, 0, LAYERS, MICRO_BATCHES)


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
    """Seven stages of six layers cannot be cut: the sentence says why."""
    with pytest.raises(Infeasible, match=r"1x7: 7 stages need at least 7 layers, and there are 6"):
        ShapePlanner(8, (Shape(1, 7),), None, 0.0).choose(moment(7))


def test_a_profile_says_which_shapes_fit() -> None:
    """A model that no machine can hold alone is cut into stages."""
    block = {
        "batch": 8, "micro_batch": 1, "memory_bytes": 1e6,
        "layers": [{"count": LAYERS, "forward_s": 0.01, "backward_s": 0.02, "parameters": 2e4}],
    }  # fmt: skip
    planner = ShapePlanner(4, (), None, 0.0, profile=profile_of(block))

    assert planner.choose(moment(3)).shape == Shape(1, 3)
    assert planner.choose(moment(4, Shape(1, 3))).shape == Shape(1, 4)
    assert planner.choose(moment(1, Shape(1, 4))).because == "1 machines are too few: the smallest shape needs 3"


def test_a_profile_of_another_model_is_refused() -> None:
    """Its numbers would be of other layers."""
    profile = even_profile(LAYERS + 1, MICRO_BATCHES, 1, 1.0)

    with pytest.raises(
        Misuse, match="the profile has 7 layers and 8 micro-batches, and the script's model has 6 layers"
    ):
        ShapePlanner(4, (), None, 0.0, profile=profile).choose(moment(3))
