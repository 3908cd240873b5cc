"""Where layers are cut into stages: so that the slowest stage is as fast as it can be, and every stage fits in memory.

Stage s of P keeps the activations of at most P - s micro-batches, so that what fits depends on how many stages follow it, and
one programme, from the last layer backwards, finds the cuts of every number of stages:

    best(k, i) = min over j > i of max(work of layers i to j - 1, best(k - 1, j)),   best(0, all layers) = 0

for the last k stages, which begin at layer i, over those j for which layers i to j - 1 fit.

Source: the partitioning of PipeDream (SOSP 2019, section 3.1), without replicas: a shape's pipelines are cut alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windfall.models.shapes import Floats
from windfall.structs import Struct


class CutLayers(Struct, frozen=True):
    """What each layer takes, in order.

    Attributes:
        work_s: both passes of a micro-batch, and the layer's share of what a step takes beside them [s].
        state_bytes: kept all the time [bytes].
        held_bytes: activations of a micro-batch [bytes].
    """

    work_s: Sequence[float]
    state_bytes: Sequence[float]
    held_bytes: Sequence[float]


def balanced_cuts(
    layers: CutLayers, stages_max: int, micro_batches: int, memory_bytes: float
) -> dict[int, tuple[int, ...]]:
    """Return the cut for each number of stages up to a number: where stages begin, and the number of layers.

    Of cuts whose slowest stages take equally long it is the one with the fewest layers in the first stages; a number of stages
    is missing if no cut with it fits.

    Args:
        layers: of the model.
        stages_max: the most stages.
        micro_batches: of a step, in one pipeline.
        memory_bytes: of a machine [bytes].

    Example:
        Layers of 4, 1, 1, 1 and 1 s in 2 stages are cut at 0, 1, 5.
    """
    count = len(layers.work_s)
    work, states, held = (_between(values) for values in (layers.work_s, layers.state_bytes, layers.held_bytes))
    work[np.tril_indices(count + 1)] = np.inf  # a stage has at least one layer
    best = np.full(count + 1, np.inf)
    best[count] = 0.0
    ends: list[list[int]] = []
    found: dict[int, tuple[int, ...]] = {}
    for following in range(1, min(stages_max, count) + 1):
        fits = states + min(following, micro_batches) * held <= memory_bytes
        slowest = np.where(fits, np.maximum(work, best), np.inf)
        ends.append(slowest.argmin(axis=1).tolist())
        best = slowest.min(axis=1)
        if np.isfinite(best[0]):
            found[following] = _followed(ends)
    return found


def _between(values: Sequence[float]) -> Floats:
    """Return the sum of the values from i to j - 1, by (i, j)."""
    until: Floats = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return np.subtract.outer(until, until).T


def _followed(ends: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the cut that the choices for the last 1, 2, ... stages come to."""
    cut = [0]
    for choice in reversed(ends):
        cut.append(choice[cut[-1]])
    return tuple(cut)
