"""The yardstick of asynchronous training: all-reduce takes the steps that the parameter server takes with staleness 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiers.test_applications import Alone

pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[torch]'")

from benchmarks.allreduce import State, by_all_reduce, seconds_to

from windfall.apps import cnn

pytestmark = pytest.mark.real
SETTINGS: dict[str, object] = {"pictures": 64, "side": 8, "channels": 4, "batch": 8}


def test_all_reduce_takes_the_steps_of_staleness_0(tmp_path: Path) -> None:
    """Two real processes; after each step the loss is that of a table, but for rounding."""
    found = by_all_reduce(tmp_path, SETTINGS, [1.0, 1.0], 0.1)

    program = cnn.program(SETTINGS, 2)
    alone = Alone(program.first(np.arange(program.rows)))
    losses = []
    for clock in range(1, found[-1].clock + 1):
        for data in range(2):
            program.compute(program.load(data), clock, alone)
        alone.end_clock()
        losses.append(program.evaluate(alone.values))
    assert [one.clock for one in found] == list(range(1, len(losses) + 1))
    assert [one.loss for one in found[:20]] == pytest.approx(losses[:20], rel=1e-3)


def test_a_loss_is_reached_on_the_straight_line_between_two_states() -> None:
    """When the curve is first there; a loss that it does not come to, never."""
    states = [State(1.0, 1, 4.0), State(2.0, 2, 2.0), State(3.0, 3, 3.0), State(4.0, 4, 1.0)]

    assert seconds_to(3.0, states) == pytest.approx(1.5)
    assert seconds_to(1.5, states) == pytest.approx(3.75)
    assert seconds_to(0.5, states) == float("inf")
