"""Shapes: which fit, which is fastest, and what is refused."""

from __future__ import annotations

import pytest

from windfall.errors import Misuse
from windfall.models.shapes import IDLE, Shape, ShapeSpeeds, all_shapes, grid_of

SPEEDS = ShapeSpeeds({Shape(2, 2): 10.0, Shape(1, 4): 10.0, Shape(1, 3): 12.0, Shape(4, 2): 20.0})


def test_the_fastest_shape_may_leave_machines_idle() -> None:
    """With four machines 1x3 is best, because tables are not monotone; with too few there is none."""
    assert SPEEDS.best(4) == Shape(1, 3)
    assert SPEEDS.best(9) == Shape(4, 2)
    assert SPEEDS.best(2) == IDLE
    assert (SPEEDS.rate(Shape(4, 2)), SPEEDS.rate(Shape(9, 9)), SPEEDS.rate(IDLE)) == (20.0, 0.0, 0.0)


def test_equally_fast_shapes_keep_their_order() -> None:
    """Of 2x2 and 1x4 with the same rate the one with fewer pipelines is taken."""
    assert ShapeSpeeds({Shape(2, 2): 10.0, Shape(1, 4): 10.0}).best(4) == Shape(1, 4)


def test_the_grid_has_each_shape_once_by_depth() -> None:
    """No shape first, then by stages and pipelines; places are found again."""
    grid = grid_of(SPEEDS)

    assert grid.shapes == (IDLE, Shape(2, 2), Shape(4, 2), Shape(1, 3), Shape(1, 4))
    assert [list(block) for block in grid.depths()] == [[0], [1, 2], [3], [4]]
    assert grid.place(Shape(1, 3)) == 3
    assert list(grid.samples_per_s) == [0.0, 10.0, 20.0, 12.0, 10.0]
    with pytest.raises(Misuse, match="shape 3x3 is not among the 4"):
        grid.place(Shape(3, 3))


def test_all_shapes_use_no_more_machines_than_there_are() -> None:
    """119 shapes of up to 32 machines, of any depth."""
    found = all_shapes(32, range(1, 33))

    assert len(set(found)) == len(found) == 119
    assert max(shape.machines for shape in found) == 32


def test_a_table_that_cannot_be_is_refused() -> None:
    """Empty, a shape without machines, a throughput of 0."""
    with pytest.raises(Misuse, match="is empty"):
        ShapeSpeeds({})
    with pytest.raises(Misuse, match="shape 0x3"):
        ShapeSpeeds({Shape(0, 3): 1.0})
    with pytest.raises(Misuse, match=r"throughput of shape 1x3 is 0\.0"):
        ShapeSpeeds({Shape(1, 3): 0.0})
