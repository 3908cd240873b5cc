"""What is left of a shape: exact probabilities, against every set of lost machines."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from windfall.errors import Misuse
from windfall.models.shapes import Shape
from windfall.models.survivors import pipelines_left, replicas_left, within_losses

CASES = [
    (Shape(2, 3), 6, 2),
    (Shape(3, 2), 6, 2),
    (Shape(3, 3), 11, 4),
    (Shape(1, 5), 7, 3),
    (Shape(4, 2), 8, 8),
    (Shape(2, 2), 9, 0),
]


@pytest.mark.parametrize(("shape", "machines", "lost"), CASES)
def test_distributions_are_those_of_all_sets(shape: Shape, machines: int, lost: int) -> None:
    """Least replicas of any stage, and pipelines that lose nothing, by counting each set of lost machines."""
    replicas: Counter[int] = Counter()
    whole: Counter[int] = Counter()
    for gone in itertools.combinations(range(machines), lost):
        hit = [machine for machine in gone if machine < shape.machines]
        least = min(shape.pipelines - sum(m % shape.stages == stage for m in hit) for stage in range(shape.stages))
        replicas[least] += 1
        whole[shape.pipelines - len({m // shape.stages for m in hit})] += 1
    total = replicas.total()

    assert replicas_left(shape, machines, lost) == pytest.approx(
        [
            sum(count for least, count in replicas.items() if least >= kept) / total
            for kept in range(shape.pipelines + 1)
        ]
    )
    assert pipelines_left(shape, machines, lost) == pytest.approx(
        [whole[number] / total for number in range(shape.pipelines + 1)]
    )


def test_parcaes_example() -> None:
    """Two of six vanish: liveput 20 = 40 % x 50 of 2 x 3, and 36 = 20 % x 60 + 80 % x 30 of 3 x 2."""
    assert pipelines_left(Shape(2, 3), 6, 2) @ (0.0, 50.0, 100.0) == pytest.approx(20.0)
    assert pipelines_left(Shape(3, 2), 6, 2) @ (0.0, 30.0, 60.0, 90.0) == pytest.approx(36.0)


def test_all_shapes_at_once_are_each_one_alone() -> None:
    """The table by shape and losses has what each shape has alone; a shape without machines loses none."""
    shapes = [Shape(0, 0), Shape(2, 3), Shape(5, 1), Shape(1, 6), Shape(2, 2)]
    pipelines, stages = np.array(shapes).T

    found = within_losses(pipelines, stages, 9, 4)

    assert (found[0] == 1.0).all()
    for row, shape in zip(found[1:], shapes[1:], strict=True):
        alone = replicas_left(shape, 9, 4)
        for losses in range(min(4, shape.pipelines) + 1):
            assert row[losses] == pytest.approx(alone[shape.pipelines - losses])


def test_large_fleets_keep_their_digits() -> None:
    """Of 512 machines in 8 x 64, 16 vanish: the probabilities of each number of whole pipelines add up to 1."""
    found = pipelines_left(Shape(8, 64), 512, 16)

    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert (found >= 0.0).all()


def test_what_cannot_be_is_refused() -> None:
    """More lost than there are, a shape that is too large, more machines than numbers can count."""
    with pytest.raises(Misuse, match="7 of 6 machines vanish"):
        replicas_left(Shape(2, 3), 6, 7)
    with pytest.raises(Misuse, match="shape 2x3 used 6"):
        pipelines_left(Shape(2, 3), 5, 1)
    with pytest.raises(Misuse, match="at most 1000"):
        replicas_left(Shape(2, 3), 2_000, 1)
