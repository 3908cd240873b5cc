"""What real machines measure of themselves while they train, and the shape that a real coordinator chooses by it."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.elastic import elastic_script
from tests.elastic.scripted_fleet import WITHIN_S, ScriptedFleet, fleet
from windfall.core.shape_coordinator import ShapeCoordinator, ShapePatience
from windfall.core.shape_decisions import first_layout
from windfall.core.shape_meter import ShapeMeter
from windfall.core.shape_planner import ShapePlanner
from windfall.linux.clock import SystemClock
from windfall.models.measured_profile import measured_profile
from windfall.runtimes.shape_coordinator_loop import ShapeCoordinatorLoop, ShapeLoopPorts
from windfall.runtimes.shape_log import ShapeLog
from windfall.runtimes.shape_node import TcpBoard
from windfall.shape_measurements import MEASURED, MachineMeasurement
from windfall.storage.object_stores import open_store
from windfall.terms import Seconds

WIDE = elastic_script.WIDE
WAIT_S = 0.4
"""What a loop does between two steps [s]: long beside what a step takes on a busy computer."""


class BoardOf(TcpBoard):
    """The board of a fleet whose store is there already."""

    def __init__(self, machines: ScriptedFleet) -> None:
        self._store, self._names, self._posts, self._turns = machines.store, [], [], 0


def posted(machines: ScriptedFleet, name: str) -> MachineMeasurement:
    """What a machine has posted."""
    return msgspec.json.decode(machines.store.get(f"{MEASURED}{name}"), type=MachineMeasurement)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_machines_post_what_they_measure(tmp_path: Path) -> None:
    """Each its own layers: times above 0, bytes and parameters as they are; the last one also what it received."""
    with fleet(tmp_path / "run", elastic_script.train_wide, layers=5, steps=8) as machines:
        machines.start("a", "b")
        machines.begin(1, 2, ["a", "b"], cut=(0, 2, 5))
        machines.finish(["a", "b"], 8)
        first, last = posted(machines, "a"), posted(machines, "b")

    assert (first.first, len(first.layers), last.first, len(last.layers)) == (0, 2, 2, 3)
    assert (first.of, first.batch, first.micro_batch, first.pipelines, first.stages) == (5, 16, 2, 1, 2)
    for layer in (*first.layers, *last.layers[:2]):
        assert layer.forward_s > 0.0
        assert layer.backward_s > 0.0
        assert layer.sent_bytes == 2 * WIDE * 4
        assert layer.parameters == WIDE * WIDE + WIDE
    # A linear layer keeps its input for the gradient of its weights; its output is the next one's input.
    assert [layer.held_bytes for layer in last.layers[:2]] == [2 * (2 * WIDE * 4), 2 * WIDE * 4]
    # Adam: two numbers per parameter, and a count of steps for each tensor.
    assert first.state_numbers == 2 * 2 * (WIDE * WIDE + WIDE) + 4
    assert {2 * WIDE * 4, 1 << 18} <= {size for size, _ in last.transfers}
    assert all(seconds > 0.0 for _, seconds in last.transfers)
    assert 0.0 < sum(layer.forward_s + layer.backward_s for layer in first.layers) * 8 < 2 * first.step_s


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_wrapped_script_posts_what_a_sample_takes(tmp_path: Path) -> None:
    """Its model is one layer; what its loop does between two steps is in the time of a step, and not in that of a sample."""
    with fleet(tmp_path / "run", elastic_script.train_wrapped, 1, steps=8, wait_s=WAIT_S) as machines:
        machines.start("a", "b")
        machines.begin(2, 1, ["a", "b"])
        machines.finish(["a", "b"], 8)
        found = posted(machines, "a")

    assert (found.of, found.first, found.batch, found.micro_batch) == (1, 0, 16, 1)
    (layer,) = found.layers
    assert layer.parameters == 4 * 16 + 16 + 16 + 16 + 16 + 1
    assert found.state_numbers == layer.parameters  # momentum
    assert 0.0 < layer.forward_s * 8 + layer.update_s < WAIT_S <= found.step_s
    measured = ShapeMeter(first_layout(0))
    measured.take([found])
    assert measured.found is not None
    profile = measured_profile(measured.found)
    assert profile is not None
    assert 0.9 * WAIT_S < profile.pipeline.beside_s < found.step_s


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_coordinator_chooses_by_what_its_machines_measure(tmp_path: Path) -> None:
    """Taken to be equal, layers train 2x1; updates that take longer than all else are shared by 1x2, and measured so."""
    with fleet(tmp_path / "run", elastic_script.train_wide, layers=5, steps=100_000, update_s=0.1) as machines:
        machines.start("a", "b")
        clock, log = SystemClock(), ShapeLog(open_store(str(tmp_path / "run" / "store")))
        planner = ShapePlanner(2, (), None, clock.now())
        layout = first_layout(0)
        assert log.write_layout(layout)
        coordinator = ShapeCoordinator(layout, planner.choose, ShapePatience(lost_after_s=60.0), clock.now())
        loop = ShapeCoordinatorLoop(coordinator, planner, ShapeLoopPorts(BoardOf(machines), log, lambda: 0, clock))
        shapes, end_s = [(0, 0)], time.monotonic() + WITHIN_S
        while shapes[-1] != (1, 2) and time.monotonic() < end_s:
            loop.turn()
            if shapes[-1] != (now := (loop.layout.pipelines, loop.layout.stages)):
                shapes.append(now)
            clock.sleep(Seconds(0.01))

        # The first machine may train alone for a moment.
        assert [shape for shape in shapes if shape != (1, 1)] == [(0, 0), (2, 1), (1, 2)]
        assert loop.layout.because.startswith("2 machines: 1x2 trains ")
