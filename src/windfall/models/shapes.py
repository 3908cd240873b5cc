"""Shapes of a training: how many pipelines run side by side, how many stages each has, and how fast that is.

A shape of D pipelines with P stages uses D P machines.  Every stage has D replicas, one in each pipeline.  P = 1 is plain
data parallelism.  `IDLE` is no training: too few machines for the smallest shape.

Source: Parcae (NSDI 2024) for shapes; its throughputs were measured for a fixed global batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.structs import Struct

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Shape(NamedTuple):
    """Pipelines side by side, and stages of each."""

    pipelines: int
    stages: int

    @property
    def machines(self) -> int:
        """How many machines it uses."""
        return self.pipelines * self.stages

    def __str__(self) -> str:
        """Write it as `4x8`."""
        return f"{self.pipelines}x{self.stages}"


IDLE = Shape(0, 0)


class ShapeSpeeds(Struct, frozen=True):
    """The shapes that a training can have, and their throughput.

    Attributes:
        samples_per_s: throughput of each shape, above 0 [samples/s].
    """

    samples_per_s: Mapping[Shape, float]

    def __post_init__(self) -> None:
        """Check the table.

        Raises:
            Misuse: there is no shape, a shape without machines, or a throughput that is no positive number.
        """
        if not self.samples_per_s:
            raise Misuse("a table of shapes is empty: write the throughput of at least one shape")
        for shape, rate in self.samples_per_s.items():
            if shape.pipelines < 1 or shape.stages < 1:
                raise Misuse(f"shape {shape}: write at least one pipeline and one stage")
            if not 0.0 < rate < math.inf:
                raise Misuse(f"throughput of shape {shape} is {rate}: write samples per second, above 0")

    def rate(self, shape: Shape) -> float:
        """Return the throughput; 0 if the shape is not among those that can be had [samples/s]."""
        return self.samples_per_s.get(shape, 0.0)

    def fitting(self, machines: int) -> tuple[Shape, ...]:
        """Return the shapes that need no more machines, in order; there may be none."""
        return tuple(sorted(shape for shape in self.samples_per_s if shape.machines <= machines))

    def best(self, machines: int) -> Shape:
        """Return the fastest shape; `IDLE` if none fits.  Equally fast: the one with fewer pipelines."""
        fitting = self.fitting(machines)
        return max(fitting, key=lambda shape: (self.rate(shape), -shape.pipelines)) if fitting else IDLE


class ShapeGrid(Struct, frozen=True):
    """Shapes as arrays, for plans: `IDLE` first, then by stages and pipelines.

    Attributes:
        shapes: all of them.
        pipelines, stages, machines: of each shape.
        samples_per_s: of each shape; 0 for `IDLE`.
    """

    shapes: tuple[Shape, ...]
    pipelines: Integers
    stages: Integers
    machines: Integers
    samples_per_s: Floats

    def place(self, shape: Shape) -> int:
        """Return where a shape is.

        Raises:
            Misuse: it is not among them.
        """
        if shape not in self.shapes:
            raise Misuse(f"shape {shape} is not among the {len(self.shapes) - 1} that were profiled")
        return self.shapes.index(shape)

    def depths(self) -> tuple[NDArray[np.int64], ...]:
        """Return the places of the shapes of each number of stages, `IDLE` (none) first."""
        return tuple(np.flatnonzero(self.stages == stages) for stages in np.unique(self.stages))


def grid_of(speeds: ShapeSpeeds) -> ShapeGrid:
    """Return the shapes of a table as arrays."""
    shapes = (IDLE, *sorted(speeds.samples_per_s, key=lambda shape: (shape.stages, shape.pipelines)))
    pipelines, stages = np.array(shapes, np.int64).T
    rates = np.array([speeds.rate(shape) for shape in shapes])
    return ShapeGrid(shapes, pipelines, stages, pipelines * stages, rates)


def speeds_of(grid: ShapeGrid) -> ShapeSpeeds:
    """Return the throughput of the shapes of a grid."""
    return ShapeSpeeds(
        {shape: float(rate) for shape, rate in zip(grid.shapes, grid.samples_per_s, strict=True) if shape != IDLE}
    )


def all_shapes(machines: int, stages: Iterable[int]) -> tuple[Shape, ...]:
    """Return every shape of at most this many machines, with one of these numbers of stages."""
    return tuple(Shape(d, p) for p in stages for d in range(1, machines // p + 1))
