"""What a machine that trains posts of what it has measured, for its coordinator and for `windfall ps --profile`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from windfall.runtimes.shape_member import ShapeMember
from windfall.runtimes.shape_states import LayerState
from windfall.runtimes.shape_watch import ShapeWatch
from windfall.shape_measurements import MEASURED, LayerMeasurement, MachineMeasurement
from windfall.structs import Struct

POST_AT, POST_EVERY = (3, 10), 50
"""Steps of a layout after which a machine posts what it has measured, and then between two posts."""


class MeasuredLayers(Struct, frozen=True):
    """What a machine has measured of its layers.

    Attributes:
        batch, micro_batch: samples of a step, and those that go through the layers at once.
        of: layers of the model.
        first: of its own layers.
        layers: its own.
    """

    batch: int
    micro_batch: int
    of: int
    first: int
    layers: tuple[LayerMeasurement, ...]


def is_due(trained: int) -> bool:
    """Return whether to post after a number of steps in a layout."""
    return trained in POST_AT or trained % POST_EVERY == 0


def post(
    watch: ShapeWatch, member: ShapeMember, measured: MeasuredLayers, states: Iterable[LayerState], device: Any
) -> None:
    """Post what a machine has measured.

    Args:
        watch: of the coordinator.
        member: that trains.
        measured: of its layers.
        states: of its layers.
        device: on which it trains.
    """
    assert member.layout is not None
    tensors = [item for state in states for item in state.tensors.items()]
    backup = member.backup
    found = MachineMeasurement(
        machine=member.machine,
        layout=member.layout.version,
        pipelines=member.layout.pipelines,
        stages=member.layout.stages,
        batch=measured.batch,
        micro_batch=measured.micro_batch,
        of=measured.of,
        first=measured.first,
        layers=measured.layers,
        state_numbers=sum(value.numel() for name, value in tensors if name.startswith("optimizer/")),
        step_s=member.step_s,
        memory_bytes=_memory_bytes(device) or watch.place.memory_bytes,
        transfers=member.transfers.pairs(),
        step=member.step,
        backup_bytes=backup.sent_bytes if backup is not None else 0,
        state_bytes=sum(value.numel() * value.element_size() for _, value in tensors),
    )
    watch.post(f"{MEASURED}{member.machine}", msgspec.json.encode(found))


def _memory_bytes(device: Any) -> float:
    """Return the memory of an accelerator; 0 for the processor's, which the machine's program knows [bytes]."""
    place = torch.device(device)
    return float(torch.cuda.get_device_properties(place).total_memory) if place.type == "cuda" else 0.0
