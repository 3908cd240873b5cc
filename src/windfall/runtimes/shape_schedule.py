"""The order in which a stage computes its micro-batches: one forward, one backward (1F1B).

A stage that is w stages from the last one computes w micro-batches forward before its first one backward; it never keeps the
activations of more than w + 1.
"""

from __future__ import annotations

from typing import NamedTuple


class Computation(NamedTuple):
    """A micro-batch, forward or backward."""

    forward: bool
    place: int
    """Among those of the pipeline, from 0."""


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> tuple[Computation, ...]:
    """Return what a stage computes, in order."""
    ahead = min(stages - 1 - stage, micro_batches)
    order = [Computation(forward=True, place=place) for place in range(ahead)]
    for place in range(ahead, micro_batches):
        order += [Computation(forward=True, place=place), Computation(forward=False, place=place - ahead)]
    order += [Computation(forward=False, place=place) for place in range(micro_batches - ahead, micro_batches)]
    return tuple(order)
