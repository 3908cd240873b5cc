"""Words of what an elastic training is doing, for people and programs; nothing is decided by them."""

from __future__ import annotations

from windfall.structs import Tagged
from windfall.terms import WallTime

VERSION = 1


class ShapeMachineStatus(Tagged, frozen=True):
    """One machine.

    Attributes:
        name: of the machine.
        reliable: it cannot be preempted.
        leaving: its end is announced, or it is to be released.
        pipeline, stage: what it trains; None for a spare, the backup, and while nothing is trained.
        stopped: it waits for a layout.
        step_s: mean time of its newest steps [s].
    """

    name: str
    reliable: bool
    leaving: bool
    pipeline: int | None
    stage: int | None
    stopped: bool
    step_s: float


class ShapePoint(Tagged, frozen=True):
    """Training at a moment in which its shape or its machines changed.

    Attributes:
        at: when.
        pipelines, stages: the shape from then on; both 0 while nothing is trained.
        machines: those that may train.
        step: the newest that is trained.
        redone: steps that were trained and taken back until then.
    """

    at: WallTime
    pipelines: int
    stages: int
    machines: int
    step: int
    redone: int


class ShapeStatus(Tagged, frozen=True):
    """The whole.

    Attributes:
        at: when it was written.
        layout, coordinator, term: numbers of the newest layout.
        pipelines, stages: the shape; both 0 while nothing is trained.
        cut: first layer of each stage, and the number of layers.
        step: the newest that is trained.
        steps: with which training ends; 0 while not known.
        steps_per_s: over the last while [1/s].
        redone: steps that were trained and taken back.
        checkpoint: newest step that is whole in the store.
        backup: machine that keeps the state of every stage; None for none.
        lost: machines that went without a word.
        because: why all is as it is.
        over: the state after the last step is in the store.
        machines: those that are there.
    """

    at: WallTime
    layout: int
    coordinator: int
    term: int
    pipelines: int
    stages: int
    cut: tuple[int, ...]
    step: int
    steps: int
    steps_per_s: float
    redone: int
    checkpoint: int
    backup: str | None
    lost: int
    because: str
    over: bool
    machines: tuple[ShapeMachineStatus, ...]

    @property
    def point(self) -> ShapePoint:
        """The moment as a point of the training's history."""
        machines = sum(not one.reliable for one in self.machines)
        return ShapePoint(self.at, self.pipelines, self.stages, machines, self.step, self.redone)


class ShapeFailure(Tagged, frozen=True):
    """A failure of the user's script.

    Attributes:
        machine: on which it ran.
        message: what it raised.
    """

    machine: str
    message: str
