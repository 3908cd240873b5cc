"""Which machine trains which stage, and what state is sent, so that the fewest bytes move.

**Places.**  An assignment problem: a machine at a stage costs the bytes of the stage's layers that it does not hold.  Of
equally cheap assignments one that leaves most machines where they are, so that connections stay too.

**Moves.**  Each layer that a machine lacks is sent to it once: by the machine that has sent least until then, of those that
train and stay; by one that leaves, by the backup or from the store only if no better one has it.

Source: H. W. Kuhn, "The Hungarian method for the assignment problem", 1955; Parcae (NSDI 2024) for the three migrations.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from windfall.errors import Misuse
from windfall.shape_layout import STORE, StagePlace, StateMove
from windfall.structs import Struct

_ELSEWHERE, _SAME_STAGE = 2, 1
"""What it costs to be at another stage, or at the same one of another pipeline, beside any byte that moves."""


class Sources(Struct, frozen=True):
    """Who has which layers of the step that all go to.

    Attributes:
        held: layers of each machine.
        last: machines that send only what no other one has.
        stored: the state is in the store too.
        leaving: machines that send only what not even one of those has: they may be gone before they have sent it.
    """

    held: Mapping[str, frozenset[int]]
    last: frozenset[str] = frozenset()
    stored: bool = False
    leaving: frozenset[str] = frozenset()


class StageGrid(Struct, frozen=True):
    """The places of a shape.

    Attributes:
        cut: first layer of each stage, and the number of layers.
        pipelines: how many.
        weights: bytes of the state of each layer; none: all are equal.
    """

    cut: tuple[int, ...]
    pipelines: int
    weights: tuple[int, ...] = ()


def place_stages(
    grid: StageGrid, machines: Sequence[str], held: Mapping[str, Collection[int]], before: Sequence[StagePlace] = ()
) -> tuple[StagePlace, ...]:
    """Return the machine of each stage of each pipeline.

    Args:
        grid: the places.
        machines: those that can train; at least as many as there are places.
        held: layers that each machine has.
        before: where machines were.

    Raises:
        Misuse: there are too few machines.
    """
    cut, pipelines, stages = grid.cut, grid.pipelines, len(grid.cut) - 1
    if len(machines) < pipelines * stages:
        raise Misuse(f"{len(machines)} machines for shape {pipelines}x{stages}: it needs {pipelines * stages}")
    sizes = np.array(grid.weights or [1] * cut[-1], np.float64)
    has = np.zeros((len(machines), cut[-1]))
    for row, machine in enumerate(machines):
        has[row, [layer for layer in held.get(machine, ()) if layer < cut[-1]]] = 1.0
    lacked = np.stack([(1.0 - has[:, low:high]) @ sizes[low:high] for low, high in itertools.pairwise(cut)], 1)
    moved = np.tile(lacked, pipelines)
    kept = np.full(moved.shape, float(_ELSEWHERE))
    rows = {machine: row for row, machine in enumerate(machines)}
    for place in before:
        if place.machine in rows and place.stage < stages:
            kept[rows[place.machine], place.stage :: stages] = _SAME_STAGE
            if place.pipeline < pipelines:
                kept[rows[place.machine], place.pipeline * stages + place.stage] = 0.0
    # No number of places kept outweighs a byte.
    found_rows, columns = linear_sum_assignment(moved * (_ELSEWHERE * len(machines) + 1) + kept)
    at = {int(column): machines[int(row)] for row, column in zip(found_rows, columns, strict=True)}
    return tuple(
        StagePlace(pipeline, stage, at[pipeline * stages + stage])
        for pipeline in range(pipelines)
        for stage in range(stages)
    )


def moves_to(
    targets: Mapping[str, Collection[int]], sources: Sources, weights: Sequence[int] = ()
) -> tuple[StateMove, ...]:
    """Return what is sent, so that each target has all of its layers.

    Args:
        targets: layers that each one needs.
        sources: who has which.
        weights: bytes of the state of each layer; none: all are equal.

    Raises:
        Misuse: a layer can be had nowhere.
    """
    sent: dict[str, int] = dict.fromkeys([*sorted(sources.held), STORE], 0)
    moves: list[StateMove] = []
    for target, layers in targets.items():
        for layer in sorted(set(layers) - sources.held.get(target, frozenset())):
            last = moves[-1] if moves and moves[-1].target == target and moves[-1].end == layer else None
            source = _source(layer, target, sources, sent, last.source if last else None)
            sent[source] += weights[layer] if weights else 1
            if last is not None and last.source == source:
                moves[-1] = StateMove(last.first, layer + 1, source, target)
            else:
                moves.append(StateMove(layer, layer + 1, source, target))
    return tuple(moves)


def _source(layer: int, target: str, sources: Sources, sent: Mapping[str, int], last: str | None) -> str:
    """Return who sends a layer: the one that sent the layer before, if none is better by kind."""
    having = [machine for machine in sources.held if layer in sources.held[machine] and machine != target]
    staying = [machine for machine in having if machine not in sources.last | sources.leaving]
    lasting = [machine for machine in having if machine not in sources.leaving]
    if not having:
        if not sources.stored:
            raise Misuse(f"layer {layer} is needed at {target}, and neither a machine nor the store has it")
        return STORE
    among = staying or lasting or having
    return last if last in among else min(among, key=lambda machine: (sent[machine], machine))
