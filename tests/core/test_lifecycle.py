"""The legal moves of worker and point."""

from __future__ import annotations

import pytest

from windfall.core.lifecycle import (
    JOB,
    MACHINE,
    ORDER,
    POINT,
    WORKER,
    IllegalMove,
    MachineState,
    OrderState,
    PointState,
    Stage,
    mermaid,
    move,
)
from windfall.fleet import JobPhase


def test_every_state_is_in_its_table_and_can_be_reached() -> None:
    """No dead words."""
    assert set(WORKER) == set(Stage)
    assert set(POINT) == set(PointState)
    assert set().union(*WORKER.values()) == set(Stage) - {Stage.NEW}
    assert set().union(*POINT.values()) == set(PointState) - {PointState.ASKED}
    assert set(JOB) == set(JobPhase) == set().union(*JOB.values())
    assert set(MACHINE) == set(MachineState)
    assert set().union(*MACHINE.values()) == set(MachineState) - {MachineState.PROMISED}
    assert set(ORDER) == set(OrderState) == set().union(*ORDER.values())


def test_an_illegal_move_raises_and_names_the_legal_ones() -> None:
    """An ended worker stays ended; a committed point stays committed."""
    with pytest.raises(IllegalMove, match="ended cannot become running: only nothing"):
        move(WORKER, Stage.ENDED, Stage.RUNNING)
    with pytest.raises(IllegalMove, match="handed over cannot become committed: only abandoned, uploading"):
        move(POINT, PointState.HANDED_OVER, PointState.COMMITTED)


def test_the_diagram_draws_every_move() -> None:
    """One arrow a move, one from the start, one to each end."""
    drawing = mermaid(POINT)
    assert drawing.startswith("stateDiagram-v2\n")
    assert "    HANDED_OVER --> UPLOADING\n" in drawing
    assert drawing.count("-->") == sum(len(after) for after in POINT.values()) + 1 + 2
