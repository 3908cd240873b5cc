"""The legal transitions of workers and checkpoints."""

from __future__ import annotations

import pytest

from windfall.core.lifecycle import (
    CHECKPOINT,
    JOB,
    MACHINE,
    ORDER,
    WORKER,
    CheckpointState,
    IllegalTransition,
    MachineState,
    OrderState,
    WorkerStage,
    mermaid,
    transition,
)
from windfall.fleet import JobPhase


def test_every_state_is_in_its_table_and_can_be_reached() -> None:
    """No dead words."""
    assert set(WORKER) == set(WorkerStage)
    assert set(CHECKPOINT) == set(CheckpointState)
    assert set().union(*WORKER.values()) == set(WorkerStage) - {WorkerStage.NEW}
    assert set().union(*CHECKPOINT.values()) == set(CheckpointState) - {CheckpointState.ASKED}
    assert set(JOB) == set(JobPhase) == set().union(*JOB.values())
    assert set(MACHINE) == set(MachineState)
    assert set().union(*MACHINE.values()) == set(MachineState) - {MachineState.PROMISED}
    assert set(ORDER) == set(OrderState) == set().union(*ORDER.values())


def test_an_illegal_move_raises_and_names_the_legal_ones() -> None:
    """An ended worker stays ended; a committed checkpoint stays committed."""
    with pytest.raises(IllegalTransition, match="ended cannot become running: only nothing"):
        transition(WORKER, WorkerStage.ENDED, WorkerStage.RUNNING)
    with pytest.raises(IllegalTransition, match="handed over cannot become committed: only abandoned, uploading"):
        transition(CHECKPOINT, CheckpointState.HANDED_OVER, CheckpointState.COMMITTED)


def test_the_diagram_draws_every_move() -> None:
    """One arrow a move, one from the start, one to each end."""
    drawing = mermaid(CHECKPOINT)
    assert drawing.startswith("stateDiagram-v2\n")
    assert "    HANDED_OVER --> UPLOADING\n" in drawing
    assert drawing.count("-->") == sum(len(after) for after in CHECKPOINT.values()) + 1 + 2
