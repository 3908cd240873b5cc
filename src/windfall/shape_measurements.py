"""Words of what an elastic training measures of itself: times of layers, steps, transfers and changes of shape.

Machines post what they measure (`MachineMeasurement`); the coordinator keeps medians of it (`ShapeMeasurements`), chooses
shapes by them, and stores them for the next one.  An unknown number is 0.
"""

from __future__ import annotations

from windfall.structs import Struct, Tagged

VERSION = 1
MEASURED = "measured/"
"""Begins the keys of the TCP store under which machines post."""


class LayerMeasurement(Tagged, frozen=True):
    """What one layer takes for one micro-batch, and once a step.

    Attributes:
        forward_s, backward_s: the two passes [s].
        update_s: once a step: the optimiser, and what else takes longer with more parameters [s].
        sent_bytes: output that the next layer reads [bytes].
        held_bytes: what is kept from the forward pass to the backward pass [bytes].
        parameters: numbers that are trained.
    """

    forward_s: float
    backward_s: float
    update_s: float
    sent_bytes: int
    held_bytes: int
    parameters: int


class MachineMeasurement(Struct, frozen=True):
    """What a machine that trains has measured in its layout.

    Attributes:
        machine: its name.
        layout: version of the layout.
        pipelines, stages: the shape.
        batch, micro_batch: samples of a step, and those that go through the layers at once.
        of: layers of the model.
        first: of its own layers.
        layers: its own.
        state_numbers: of the optimiser, for all of its layers.
        step_s: of a step [s].
        memory_bytes: of the machine [bytes].
        transfers: (bytes, seconds) of what it has received.
        step: the newest that it has finished.
        backup_bytes: that it has sent to the backup in its layout, until that step.
        state_bytes: of its own layers, optimiser included.
    """

    machine: str
    layout: int
    pipelines: int
    stages: int
    batch: int
    micro_batch: int
    of: int
    first: int
    layers: tuple[LayerMeasurement, ...]
    state_numbers: int
    step_s: float
    memory_bytes: float
    transfers: tuple[tuple[int, float], ...]
    step: int = 0
    backup_bytes: int = 0
    state_bytes: int = 0


class StepMeasurement(Tagged, frozen=True):
    """How long a step takes in a shape that was trained [s]."""

    pipelines: int
    stages: int
    step_s: float


class ChangeMeasurement(Tagged, frozen=True):
    """How long a change of shape took.

    Attributes:
        pipelines_before, stages_before: the shape until then; both 0 if nothing was trained.
        pipelines, stages: the shape from then on.
        seconds: in which no step was trained [s].
    """

    pipelines_before: int
    stages_before: int
    pipelines: int
    stages: int
    seconds: float


class ShapeMeasurements(Tagged, frozen=True):
    """The whole.

    Attributes:
        batch, micro_batch: samples of a step, and those that go through the layers at once.
        layers: of the model, in order; None for one that was not measured yet.
        states: optimiser's numbers per parameter.
        memory_bytes: of the smallest machine [bytes].
        latency_s: of a message [s].
        bytes_per_s: of the link between two machines.
        steps: of the shapes that were trained.
        changes: the newest ones, newest last.
    """

    batch: int
    micro_batch: int
    layers: tuple[LayerMeasurement | None, ...]
    states: int
    memory_bytes: float
    latency_s: float
    bytes_per_s: float
    steps: tuple[StepMeasurement, ...] = ()
    changes: tuple[ChangeMeasurement, ...] = ()
