"""Shapes from counts alone."""

from __future__ import annotations

import pytest

from windfall.models.shapes import IDLE, Shape, ShapeSpeeds, all_shapes
from windfall.policies.shapes.shape_choices import adapted, fixed_depth

SPEEDS = ShapeSpeeds({shape: float(shape.machines) for shape in all_shapes(32, (2, 4, 8))})


def test_a_fixed_depth_has_as_many_whole_pipelines_as_fit() -> None:
    """30 machines are 7 pipelines of 4 stages; 3 are none."""
    assert fixed_depth(SPEEDS, 4, 30) == Shape(7, 4)
    assert fixed_depth(SPEEDS, 4, 3) == IDLE


@pytest.mark.parametrize(
    ("machines", "shape"),
    [
        (20, Shape(5, 4)),  # as expected
        (23, Shape(5, 4)),  # not one pipeline more
        (28, Shape(7, 4)),  # two pipelines more
        (17, Shape(4, 4)),  # one less
        (4, Shape(1, 4)),
        (3, Shape(1, 2)),  # not one whole pipeline: fewer stages
        (1, IDLE),
    ],
)
def test_a_plan_that_meets_another_count_keeps_its_depth(machines: int, shape: Shape) -> None:
    """More machines add pipelines, fewer drop them; only without a whole pipeline there are fewer stages."""
    assert adapted(SPEEDS, Shape(5, 4), 20, machines) == shape


def test_what_a_plan_left_idle_stays_idle() -> None:
    """A plan of 4x4 for 18 machines leaves 2 spares; 4 more machines are one more pipeline, 1 more is none."""
    assert adapted(SPEEDS, Shape(4, 4), 18, 22) == Shape(5, 4)
    assert adapted(SPEEDS, Shape(4, 4), 18, 19) == Shape(4, 4)
    assert adapted(SPEEDS, Shape(4, 4), 18, 16) == Shape(4, 4)
