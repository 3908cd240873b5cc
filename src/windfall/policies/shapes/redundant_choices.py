"""Pipelines of one depth whose stages can take over from each other: Bamboo's rule, on any profile.

Each machine also holds the layers of the stage after its own (the last one those of the first), and runs their forward pass for
each micro-batch.  So a lost machine stops nothing, unless its neighbour is lost with it.  That takes memory and time:

- A pipeline is half again as deep as the model needs, as in Bamboo's settings (48 machines in place of 32).
- A redundant forward pass is a third of the work of a stage.  It runs in the bubble of the pipeline, P - 1 of m + P - 1 parts
  of a step with m micro-batches; what does not fit makes the step longer:

      slower by   1 + max(m / 3 - (P - 1), 0) / (m + P - 1)

**What a change costs**, by counts: groups and start, as where replicas take a place, if no two neighbours are lost; otherwise,
and if machines are added, a restart and the state of the largest stage.  With fewer than 40 machines Bamboo continues with as
many whole pipelines as are left at each loss, as here; the half-speed steps until then are not charged.

Source: Bamboo (NSDI 2023), its public simulator (commit 80809293); its published step times are of other batches, and not used.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from windfall.models.migrations import MigrationTimes
from windfall.models.shapes import IDLE, Floats, Shape, ShapeGrid, ShapeSpeeds, grid_of
from windfall.models.survivors import neighbours_left

DEEPER: Final = 1.5
FORWARD_SHARE: Final = 1.0 / 3.0
"""Of the work of a stage."""


def redundant_speeds(speeds: ShapeSpeeds, micro_batches: int) -> ShapeSpeeds | None:
    """Return the throughput of the shapes with room for redundancy; None if there are none.

    Args:
        speeds: without redundancy.
        micro_batches: of a step, over all pipelines.
    """
    least = math.ceil(DEEPER * min(shape.stages for shape in speeds.samples_per_s))
    found = {
        shape: rate / slower(shape, micro_batches)
        for shape, rate in speeds.samples_per_s.items()
        if shape.stages >= max(least, 2)
    }
    return ShapeSpeeds(found) if found else None


def slower(shape: Shape, micro_batches: int) -> float:
    """Return by what factor redundancy makes a step longer.

    Example:
        64 micro-batches in 13 stages: 1 + (21.3 - 12) / 76 = 1.12.
    """
    count, bubble = math.ceil(micro_batches / shape.pipelines), shape.stages - 1
    return 1.0 + max(count * FORWARD_SHARE - bubble, 0.0) / (count + bubble)


class RedundantCosts:
    """Mean costs of changes between pipelines with redundancy."""

    def __init__(self, times: MigrationTimes, speeds: ShapeSpeeds) -> None:
        """Take the measured times, and the throughput with redundancy."""
        self._times, self._grid = times, grid_of(speeds)

    @property
    def grid(self) -> ShapeGrid:
        """The shapes."""
        return self._grid

    def row(self, place: int, machines: int, lost: int) -> Floats:
        """Return the mean cost of each new shape from one old one."""
        source = self._grid.shapes[place]
        covered = neighbours_left(source, machines, lost)
        return np.array([self._cost_s(source, lost, target, covered) for target in self._grid.shapes])

    def one(self, place: int, machines: int, lost: int, new: int) -> float:
        """Return the mean cost of a change from one shape to another."""
        return float(self.row(place, machines, lost)[new])

    def matrix(self, machines: int, lost: int) -> Floats:
        """Return all rows; those of shapes that do not fit are infinite."""
        size = len(self._grid.shapes)
        found = np.full((size, size), np.inf)
        for place in np.flatnonzero(self._grid.machines <= machines):
            found[place] = self.row(int(place), machines, lost)
        return found

    def again_s(self) -> Floats:
        """Return the restart of each shape, without machines added."""
        return np.array([self._restart_s(shape, adding=False) for shape in self._grid.shapes])

    def _cost_s(self, source: Shape, lost: int, target: Shape, covered: float) -> float:
        if target == IDLE or (source == target and lost == 0):
            return 0.0
        adding = target.machines > source.machines - lost
        longest_s = self._restart_s(target, adding=adding) + max(
            map(self._times.state_s, self._times.stage_parameters(target.stages))
        )
        if adding or source.stages != target.stages:
            return longest_s
        return covered * self._times.intra_s(target) + (1.0 - covered) * longest_s

    def _restart_s(self, shape: Shape, *, adding: bool) -> float:
        return 0.0 if shape == IDLE else self._times.restart_s(shape, adding=adding)
