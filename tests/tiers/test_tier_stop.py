"""Training that is asked to stop rests at a clock that is stored, and the next coordinator continues from there."""

from __future__ import annotations

import pytest

from tests.tiers.in_step import ROWS, InStep
from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import taken_by_next_coordinator
from windfall.runtimes.tier_member import TierMember
from windfall.tier_layout import StoredClock

DATA, CLOCKS = 4, 60


def stopped(save_every: int = 1000) -> InStep:
    """Machines that were asked to stop in the middle, and have."""
    world = InStep(["r1", "t1", "t2"], data=DATA, clocks=CLOCKS, save_every=save_every)
    world.turn(30)
    assert 0 < world.coordinator.committed().clock < CLOCKS
    world.coordinator.stop()
    world.turn(10)
    return world


@pytest.mark.parametrize("save_every", [1000, 1, 7])
def test_training_ends_with_a_clock_that_is_stored(save_every: int) -> None:
    """It was committed when the request came, or later; every part is in the store, with each clock in it once."""
    world = stopped(save_every)
    committed, checkpoint = world.coordinator.committed(), world.layout.checkpoint

    assert committed.over
    assert 0 < checkpoint.clock < CLOCKS
    for part in range(2):
        assert world.store[part, checkpoint].tolist() == [[DATA * checkpoint.clock]] * ROWS


def test_without_a_request_training_does_not_end_before_its_last_clock() -> None:
    """The same machines, as long."""
    world = InStep(["r1", "t1", "t2"], data=DATA, clocks=CLOCKS)
    world.turn(40)

    assert not world.coordinator.committed().over


def test_training_that_has_not_begun_rests_at_once() -> None:
    """The first values need no checkpoint."""
    world = InStep(["r1", "t1"], clocks=CLOCKS)
    world.coordinator.stop()

    assert world.coordinator.committed().over
    assert world.layout.checkpoint == StoredClock()


def test_the_next_coordinator_continues_to_the_last_clock() -> None:
    """On other machines, from the checkpoint: no clock is missing, and none counts twice."""
    before = stopped()
    checkpoint = before.layout.checkpoint
    layout = taken_by_next_coordinator(before.layout)
    world = InStep(["r2", "t3", "t4"], data=DATA, clocks=CLOCKS)
    world.layouts, world.store = [layout], before.store
    world.coordinator = TierCoordinator(layout, world.ratios, 1000, CLOCKS)
    world.members = {name: TierMember(one, layout, world.settings) for name, one in world.machines.items()}
    world.turn(200)

    assert world.coordinator.committed().over
    assert world.layout.checkpoint.clock == CLOCKS
    assert set(world.loads) == {checkpoint}
    assert world.values() == {float(DATA * CLOCKS)}
