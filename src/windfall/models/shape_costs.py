"""What every change of shape costs on average, as arrays for plans.

**Published costs** depend on both shapes in every respect, so they are a matrix.

**Bounded costs** are what Windfall plans with.  They charge no less than the published rules with every stage charged:
in a repartition the whole state moves once (a survivor may hold some of what its new stage needs), and where a stage is short,
the largest one moves.  So what another depth costs depends on the old shape only through whether machines are added, and a
plan needs pairs of equal depth alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from windfall.models.migration_costs import migration_cost
from windfall.models.migrations import MigrationTimes
from windfall.models.shapes import IDLE, Floats, Integers, ShapeGrid, ShapeSpeeds, grid_of
from windfall.models.survivors import within_losses


class ShapeCosts(Protocol):
    """Mean costs of changes of shape."""

    @property
    def grid(self) -> ShapeGrid:
        """The shapes."""

    def matrix(self, machines: int, lost: int) -> Floats:
        """Return the mean cost by (old shape, new shape), while `lost` of `machines` vanish; infinite where they do not fit."""

    def row(self, place: int, machines: int, lost: int) -> Floats:
        """Return the row of one old shape."""

    def again_s(self) -> Floats:
        """Return what each new shape costs on top, if a change before it is not finished."""


class ChargedCosts(ShapeCosts, Protocol):
    """Costs that a replay charges, one change at a time."""

    def one(self, place: int, machines: int, lost: int, new: int) -> float:
        """Return the mean cost of a change from one shape to another, by their places [s]."""


class PublishedCosts:
    """The published costs, computed when they are asked for, and kept."""

    def __init__(self, times: MigrationTimes, speeds: ShapeSpeeds) -> None:
        """Take the measured times and throughputs of a model."""
        self._times, self._grid = times, grid_of(speeds)
        self._rows: dict[tuple[int, int, int], Floats] = {}
        self._pairs: dict[tuple[int, int, int, int], float] = {}

    @property
    def grid(self) -> ShapeGrid:
        """The shapes."""
        return self._grid

    def one(self, place: int, machines: int, lost: int, new: int) -> float:
        """Return the mean cost of a change from one shape to another."""
        source = self._grid.shapes[place]
        key = (place, machines if lost else source.machines, lost, new)
        if key not in self._pairs:
            self._pairs[key] = migration_cost(self._times, source, machines, lost, self._grid.shapes[new]).mean_s
        return self._pairs[key]

    def row(self, place: int, machines: int, lost: int) -> Floats:
        """Return the mean cost of each new shape from one old one."""
        source = self._grid.shapes[place]
        # Without a loss the spares change nothing.
        key = (place, machines if lost else source.machines, lost)
        if key not in self._rows:
            self._rows[key] = np.array(
                [
                    migration_cost(self._times, source, machines, lost, target).mean_s
                    if target.machines <= machines - lost or not lost
                    else np.inf
                    for target in self._grid.shapes
                ]
            )
        return self._rows[key]

    def matrix(self, machines: int, lost: int) -> Floats:
        """Return all rows; those of shapes that do not fit are infinite."""
        size = len(self._grid.shapes)
        found = np.full((size, size), np.inf)
        for place in np.flatnonzero(self._grid.machines <= machines):
            found[place] = self.row(int(place), machines, lost)
        return found

    def again_s(self) -> Floats:
        """Return the restart of each shape, without machines added."""
        return _restarts(self._times, self._grid, adding=False)


class BoundedCosts:
    """Costs of which only pairs of equal depth depend on the old shape, beyond whether machines are added."""

    def __init__(self, times: MigrationTimes, speeds: ShapeSpeeds) -> None:
        """Take the measured times and throughputs of a model."""
        grid = self._grid = grid_of(speeds)
        depths = {stages: times.stage_parameters(stages) for stages in map(int, np.unique(grid.stages)) if stages}
        largest_s = {stages: max(times.state_s(held) for held in parameters) for stages, parameters in depths.items()}
        whole_s = times.state_s(sum(times.parameters))
        restarts = np.stack([_restarts(times, grid, adding=adding) for adding in (True, False)])
        broadcast_s = np.array([largest_s[shape.stages] if shape.pipelines > 1 else 0.0 for shape in grid.shapes])
        self._intra_s = np.array([0.0 if shape == IDLE else times.intra_s(shape) for shape in grid.shapes])
        self._inter_s = restarts + np.array([largest_s.get(shape.stages, 0.0) for shape in grid.shapes])
        self._change_s = restarts + whole_s + broadcast_s
        self._inter_s[:, 0] = self._change_s[:, 0] = 0.0
        self._again_s: Floats = restarts[1]
        blocks = grid.depths()
        old = self._old = np.concatenate([np.repeat(block, len(block)) for block in blocks])
        new = self._new = np.concatenate([np.tile(block, len(block)) for block in blocks])
        self._spare = grid.pipelines[old] - grid.pipelines[new]
        self._growth = grid.machines[new] - grid.machines[old]
        self._enough = np.where(self._spare >= 0, 1.0, 0.0)
        self._pairs_s = self._inter_s[:, new], self._intra_s[new]
        self._ordered = bool(((self._intra_s <= self._inter_s) & (self._inter_s <= self._change_s)).all())
        self._kept: dict[tuple[int, int], Floats] = {}

    @property
    def grid(self) -> ShapeGrid:
        """The shapes."""
        return self._grid

    @property
    def pairs(self) -> tuple[Integers, Integers]:
        """The places of old and new shape of each pair of equal depth, by old shape."""
        return self._old, self._new

    @property
    def ordered(self) -> bool:
        """Whether no pair of equal depth can cost more than a change of depth to the same shape does.

        The cost of a pair is between its intra-stage and its inter-stage cost, so these are compared.
        """
        return self._ordered

    @property
    def change_s(self) -> Floats:
        """What each new shape of another depth costs, by whether machines are added (0) or not (1)."""
        return np.asarray(self._change_s)

    def again_s(self) -> Floats:
        """Return the restart of each shape, without machines added."""
        return np.asarray(self._again_s)

    def kept_s(self, machines: int, lost: int) -> Floats:
        """Return the mean cost of each pair of equal depth."""
        key = (machines if lost else 0, lost)
        if key not in self._kept:
            enough, (inter_s, intra_s) = self._enough, self._pairs_s
            if lost:
                within = within_losses(self._grid.pipelines, self._grid.stages, machines, lost)
                counted = np.flatnonzero((self._spare >= 0) & (self._spare <= lost))
                enough = enough.copy()
                enough[counted] = within[self._old[counted], self._spare[counted]]
            longer_s = np.where(self._growth > -lost, inter_s[0], inter_s[1])
            found = longer_s - enough * (longer_s - intra_s)
            if not lost:
                found[self._old == self._new] = 0.0
            self._kept[key] = np.asarray(found)
        return self._kept[key]

    def matrix(self, machines: int, lost: int) -> Floats:
        """Return the cost of every pair."""
        sizes = self._grid.machines
        adding = sizes[None, :] > sizes[:, None] - lost
        found = np.where(adding, self._change_s[0], self._change_s[1])
        found[self._old, self._new] = self.kept_s(machines, lost)
        found[sizes > machines] = np.inf
        return np.asarray(found)

    def row(self, place: int, machines: int, lost: int) -> Floats:
        """Return the cost of each new shape from one old one."""
        sizes = self._grid.machines
        found = np.where(sizes > sizes[place] - lost, self._change_s[0], self._change_s[1])
        low, high = np.searchsorted(self._old, (place, place + 1))
        found[self._new[low:high]] = self.kept_s(machines, lost)[low:high]
        return np.asarray(found)


def _restarts(times: MigrationTimes, grid: ShapeGrid, *, adding: bool) -> Floats:
    return np.array([0.0 if shape == IDLE else times.restart_s(shape, adding=adding) for shape in grid.shapes])
