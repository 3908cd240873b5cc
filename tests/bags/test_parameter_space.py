"""The points of a parameter space: lists, steps, and samples of ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.models import parameter_space
from windfall.models.parameter_space import ListedParameter, RangedParameter, RangeKind, Sampling


def test_linspace_has_both_ends_and_equal_distances() -> None:
    """As numpy's, rounded so that 0.1 x 3 is 0.3."""
    assert parameter_space.linspace(0.8, 2.0, 7) == (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
    assert parameter_space.linspace(5.0, 9.0, 1) == (5.0,)


def test_logspace_has_equal_ratios() -> None:
    """A decade each."""
    assert parameter_space.logspace(0.001, 1.0, 4) == (0.001, 0.01, 0.1, 1.0)


def test_steps_leave_out_the_stop_as_python_s_range() -> None:
    """Also where the step is not exact in binary, and downwards."""
    assert parameter_space.steps(0.0, 0.3, 0.1) == (0.0, 0.1, 0.2)
    assert parameter_space.steps(0, 10, 3) == tuple(range(0, 10, 3))
    assert parameter_space.steps(5, 0, -2) == tuple(range(5, 0, -2))


def test_all_combinations_run_with_the_same_samples() -> None:
    """The last listed parameter changes fastest, and the samples do not differ between combinations."""
    listed = [ListedParameter("a", (1, 2)), ListedParameter("b", ("x", "y"))]
    ranged = [RangedParameter("r", RangeKind.UNIFORM, 0.0, 1.0)]

    points = list(parameter_space.points(listed, ranged, samples=3, sampling=Sampling.RANDOM, seed=7))

    assert [point[:2] for point in points[::3]] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert len({tuple(point[2] for point in points[start : start + 3]) for start in range(0, 12, 3)}) == 1


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [(RangeKind.UNIFORM, -1.0, 3.0), (RangeKind.LOG_UNIFORM, 0.001, 10.0)],
)
def test_a_latin_hypercube_has_one_sample_in_each_part(kind: RangeKind, low: float, high: float) -> None:
    """McKay, Beckman and Conover: of n samples, each of n equal parts of each range has one."""
    ranged = [RangedParameter(name, kind, low, high) for name in "ab"]

    found = parameter_space.sample(ranged, 16, Sampling.LATIN_HYPERCUBE, np.random.default_rng(3))

    for place in range(2):
        values = [row[place] for row in found]
        if kind is RangeKind.LOG_UNIFORM:
            shares = [math.log(value / low) / math.log(high / low) for value in values]
        else:
            shares = [(value - low) / (high - low) for value in values]
        assert sorted(int(share * 16) for share in shares) == list(range(16))


def test_whole_numbers_have_both_ends() -> None:
    """Each of 1, 2, 3 about as often, and nothing else."""
    ranged = [RangedParameter("n", RangeKind.INTEGERS, 1, 3)]

    found = [row[0] for row in parameter_space.sample(ranged, 300, Sampling.LATIN_HYPERCUBE, np.random.default_rng(1))]

    assert {value: found.count(value) for value in set(found)} == {1: 100, 2: 100, 3: 100}
    assert all(isinstance(value, int) for value in found)
