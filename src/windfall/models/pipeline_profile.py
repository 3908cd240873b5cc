"""How fast a shape trains, from a profile of the layers: the 1F1B schedule, where layers are cut, and what memory that takes.

A batch is divided over D pipelines into m micro-batches each (the last may be smaller, and is charged as a whole one).  Stage s
of P begins with P - 1 - s forward passes, then alternates forward and backward, so that it holds the activations of at most
P - s micro-batches.  A pass waits for the neighbour's, and for the time to send it.  After the last pass, replicas add up their
gradients in a ring, 2 (D - 1) / D of their bytes, and the slowest stage counts, as it does for the update.  What else a step
was measured to take is added.

    memory of a stage = parameters (1 + states + 1 gradient) 4 bytes + min(P - s, m) activations

**Cuts.**  Layers are cut so that the slowest stage is fastest (`stage_cuts`), unless the published even cut fits and gives a
step that is no slower.

Source: PipeDream-2BW and Megatron-LM for 1F1B; Parcae's profiler for its use (its memory rule has no gradients).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from windfall.errors import Misuse
from windfall.models.migrations import PARAMETER_BYTES, LinkTimes, even_cut
from windfall.models.shapes import Shape
from windfall.models.stage_cuts import CutLayers, balanced_cuts
from windfall.structs import Struct

BALANCED_MAX = 512
"""Layers of a model of which the best cut is looked for; those of a larger one are cut evenly."""

_SAME = 1e-9
"""Times that differ by less are sums of the same numbers in another order."""


class LayerProfile(Struct, frozen=True):
    """What one layer takes for one micro-batch.

    Attributes:
        forward_s, backward_s: the two passes [s].
        sent_bytes: output that the next layer reads; its gradient has the same size [bytes].
        held_bytes: activations kept until the backward pass [bytes].
        parameters: numbers that are trained.
        update_s: once a step: the optimiser, and what else takes longer with more parameters [s].
    """

    forward_s: float
    backward_s: float
    sent_bytes: float
    held_bytes: float
    parameters: float
    update_s: float = 0.0


class PipelineProfile(Struct, frozen=True):
    """A training that can be cut into stages.

    Attributes:
        layers: in order.
        batch: samples of a step.
        micro_batch: samples of a micro-batch.
        link: between two machines.
        memory_bytes: of one machine [bytes].
        states: optimiser's numbers per parameter.
        beside_s: what a step takes beside passes, sending and sums of gradients, in every shape [s].
    """

    layers: tuple[LayerProfile, ...]
    batch: int
    micro_batch: int
    link: LinkTimes
    memory_bytes: float
    states: int = 2
    beside_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            Misuse: there is no layer, a negative time or size, or a batch that micro-batches do not fill.
        """
        if not self.layers:
            raise Misuse("a profile without layers: write at least one")
        if self.micro_batch < 1 or self.batch < 1 or self.batch % self.micro_batch:
            raise Misuse(
                f"a batch of {self.batch} in micro-batches of {self.micro_batch}: write a batch that they divide evenly"
            )
        for place, layer in enumerate(self.layers):
            for name in layer.__struct_fields__:
                if not 0.0 <= getattr(layer, name) < math.inf:
                    raise Misuse(f"{name} of layer {place} is {getattr(layer, name)}: write a number, 0 or more")

    def micro_batches(self, shape: Shape) -> int:
        """Return m, of the fullest pipeline."""
        return math.ceil(self.batch // self.micro_batch / shape.pipelines)


@functools.lru_cache(maxsize=1024)
def cut_of(profile: PipelineProfile, stages: int) -> tuple[int, ...]:
    """Return where the layers are cut: the first layer of each stage, and the number of layers.

    Raises:
        Misuse: there are fewer layers than stages.
    """
    even = even_cut(len(profile.layers), stages)
    balanced = _balanced(profile, _rounded_up(stages)).get(stages, even)
    fits = fullest_stage_bytes(profile, Shape(1, stages), even) <= profile.memory_bytes
    even_s, balanced_s = (cut_step_s(profile, Shape(1, stages), cut) for cut in (even, balanced))
    return even if fits and even_s <= (1.0 + _SAME) * balanced_s else balanced


def _rounded_up(stages: int) -> int:
    """Return the next power of 2, so that few programmes find the cuts of all numbers of stages."""
    return 1 << (stages - 1).bit_length()


@functools.lru_cache(maxsize=16)
def _balanced(profile: PipelineProfile, stages_max: int) -> dict[int, tuple[int, ...]]:
    if len(profile.layers) > BALANCED_MAX:
        return {}
    count = profile.micro_batches(Shape(1, 1))
    layers = CutLayers(
        [layer.forward_s + layer.backward_s + layer.update_s / count for layer in profile.layers],
        [layer.parameters * (2 + profile.states) * PARAMETER_BYTES for layer in profile.layers],
        [layer.held_bytes for layer in profile.layers],
    )
    return balanced_cuts(layers, stages_max, count, profile.memory_bytes)


def state_bytes(profile: PipelineProfile) -> tuple[int, ...]:
    """Return what is sent when a layer moves, of each layer: its parameters and the optimiser's states; at least 1 [bytes]."""
    return tuple(max(round(layer.parameters * (1 + profile.states) * PARAMETER_BYTES), 1) for layer in profile.layers)


def needed_bytes(profile: PipelineProfile, shape: Shape) -> float:
    """Return the memory of the fullest stage [bytes]."""
    return fullest_stage_bytes(profile, shape, cut_of(profile, shape.stages))


def fullest_stage_bytes(profile: PipelineProfile, shape: Shape, cut: Sequence[int]) -> float:
    """Return the memory of the fullest stage, with layers cut in some way [bytes]."""
    fullest = 0.0
    for stage in range(shape.stages):
        layers = profile.layers[cut[stage] : cut[stage + 1]]
        states = sum(layer.parameters for layer in layers) * (2 + profile.states) * PARAMETER_BYTES
        held = min(shape.stages - stage, profile.micro_batches(shape)) * sum(layer.held_bytes for layer in layers)
        fullest = max(fullest, states + held)
    return fullest


def step_s(profile: PipelineProfile, shape: Shape) -> float:
    """Return how long a step takes [s].

    Example:
        4 equal stages with 1 s forward and 2 s backward and 8 micro-batches, sending in no time: (8 + 3) (1 + 2) = 33 s.
    """
    return cut_step_s(profile, shape, cut_of(profile, shape.stages))


def cut_step_s(profile: PipelineProfile, shape: Shape, cut: Sequence[int]) -> float:
    """Return how long a step takes, with layers cut in some way [s]."""
    stages = [profile.layers[low:high] for low, high in itertools.pairwise(cut)]
    forward, backward = (
        np.array([sum(getattr(layer, name) for layer in layers) for layers in stages])
        for name in ("forward_s", "backward_s")
    )
    send = np.array([profile.link.seconds(layers[-1].sent_bytes) for layers in stages[:-1]])
    reduced_bytes = max(sum(layer.parameters for layer in layers) for layers in stages) * PARAMETER_BYTES
    share = 2.0 * (shape.pipelines - 1) / shape.pipelines
    reduce_s = profile.link.seconds(share * reduced_bytes) if shape.pipelines > 1 else 0.0
    passes_s = float(_one_forward_one_backward(forward, backward, send, profile.micro_batches(shape)))
    update_s = max(sum(layer.update_s for layer in layers) for layers in stages)
    return passes_s + reduce_s + update_s + profile.beside_s


@njit(cache=True, nogil=True)
def _one_forward_one_backward(forward: Any, backward: Any, send: Any, count: int) -> float:
    """Return when the last backward pass of the first stage ends, if every stage begins each pass as soon as it can."""
    stages = len(forward)
    ahead, behind = np.full((stages, count), -1.0), np.full((stages, count), -1.0)
    free, done_ahead, done_behind = np.zeros(stages), np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    left = 2 * stages * count
    while left > 0:
        for s in range(stages):
            while done_behind[s] < count:
                if done_ahead[s] < min(done_behind[s] + stages - s, count):
                    i = done_ahead[s]
                    ready = 0.0
                    if s > 0:
                        if ahead[s - 1, i] < 0.0:
                            break
                        ready = ahead[s - 1, i] + send[s - 1]
                    free[s] = max(free[s], ready) + forward[s]
                    ahead[s, i] = free[s]
                    done_ahead[s] += 1
                else:
                    i = done_behind[s]
                    ready = 0.0
                    if s < stages - 1:
                        if behind[s + 1, i] < 0.0:
                            break
                        ready = behind[s + 1, i] + send[s]
                    free[s] = max(free[s], ready) + backward[s]
                    behind[s, i] = free[s]
                    done_behind[s] += 1
                left -= 1
    return float(free.max())
