"""Training that is for a loss ends where it is reached, with a checkpoint of that clock, whatever is lost on the way."""

from __future__ import annotations

import pytest

from tests.tiers.in_step import ROWS, InStep
from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import taken_by_next_coordinator, training_loss
from windfall.core.tier_summary import tier_status
from windfall.tier_layout import ServerLayout
from windfall.tier_status import LossReached

DATA, CLOCKS, GOAL = 4, 60, 0.06
FIRST_BELOW = 17
"""The loss of a clock is 1 / clock: this is the first one that is not above the goal."""


def world_of(loss: float | None = GOAL, save_every: int = 1000) -> InStep:
    """A reliable machine and two that are not."""
    return InStep(["r1", "t1", "t2"], data=DATA, clocks=CLOCKS, save_every=save_every, loss=loss)


def until_reached(world: InStep) -> LossReached:
    """Train until the end is in the log."""
    for _ in range(300):
        if world.layout.reached is not None:
            return world.layout.reached
        world.turn()
    raise AssertionError("the loss is never reached")


def until_over(world: InStep) -> None:
    """Train until training is over."""
    for _ in range(300):
        if world.coordinator.committed().over:
            return
        world.turn()
    raise AssertionError("training never ends")


def next_coordinator(world: InStep, layout: ServerLayout) -> None:
    """Another coordinator takes over."""
    world.layouts.append(taken_by_next_coordinator(layout))
    world.coordinator = TierCoordinator(world.layout, world.ratios, 1000, CLOCKS, GOAL)


def stored(world: InStep) -> None:
    """Every part is in the store, with each clock until the end in it once."""
    checkpoint = world.layout.checkpoint
    for part in range(2):
        assert world.store[part, checkpoint].tolist() == [[DATA * checkpoint.clock]] * ROWS


@pytest.mark.parametrize("save_every", [1000, 1, 7])
def test_training_ends_where_its_loss_is_reached(save_every: int) -> None:
    """Not much later, before its last clock, and with a checkpoint of that clock."""
    world = world_of(save_every=save_every)
    until_over(world)

    reached = world.layout.reached
    assert reached is not None
    assert reached.loss <= GOAL
    assert FIRST_BELOW - 1 <= reached.clock <= world.layout.checkpoint.clock <= FIRST_BELOW + 2
    assert world.layout.is_done(CLOCKS)
    stored(world)
    assert "a training loss of" in next(one.because for one in world.layouts if one.reached is not None)


def test_a_loss_that_is_not_reached_ends_nothing() -> None:
    """Training ends with its last clock."""
    world = world_of(1e-6)
    until_over(world)

    assert world.layout.reached is None
    assert world.layout.checkpoint.clock == CLOCKS
    stored(world)


def test_without_a_goal_no_loss_ends_training() -> None:
    """However small it is."""
    world = world_of(None)
    until_over(world)

    assert (world.layout.reached, world.layout.checkpoint.clock) == (None, CLOCKS)


def test_a_data_partition_that_says_no_loss_hides_it() -> None:
    """The mean is of a whole pass, or there is none."""
    world = world_of()
    world.silent = {3}
    world.turn(60)

    assert training_loss(world.layout, world.coordinator.reports) is None
    assert world.layout.reached is None


def test_the_next_coordinator_keeps_the_end() -> None:
    """It was in the log; nothing more is trained than servers had taken when the first one died."""
    world = world_of()
    reached = until_reached(world)
    assert not world.coordinator.committed().over
    next_coordinator(world, world.layout)
    until_over(world)

    assert world.layout.reached == reached
    assert reached.clock <= world.layout.checkpoint.clock <= reached.clock + 3
    stored(world)


def test_a_coordinator_that_starts_after_the_end_says_so() -> None:
    """Without a report: the last checkpoint and the end are in the log."""
    world = world_of()
    until_over(world)
    next_coordinator(world, world.layout)

    assert world.coordinator.committed().over


def test_a_server_that_is_lost_does_not_take_the_end_back() -> None:
    """All go back to a clock that is not before it."""
    world = world_of()
    reached = until_reached(world)
    world.lose(next(place.active for place in world.layout.parts if place.active.startswith("t")))
    until_over(world)

    assert world.layout.term == 1
    assert world.layout.reached == reached
    assert world.layout.checkpoint.clock >= reached.clock
    stored(world)


def test_a_return_to_a_checkpoint_takes_the_end_back() -> None:
    """What had reached the loss is lost: it is trained again, until it is reached again."""
    world = world_of(save_every=5)
    reached = until_reached(world)
    assert world.layout.checkpoint.clock < reached.clock
    world.lose("r1")
    world.add("r2")
    world.turn()
    assert world.layout.restores == 1
    assert world.layout.reached is None
    until_over(world)

    assert world.layout.reached is not None
    assert world.layout.checkpoint.clock >= FIRST_BELOW - 1
    stored(world)


def test_the_status_says_what_training_is_for_and_where_it_reached_it() -> None:
    """For `ps` and for the driver."""
    world = world_of()
    until_over(world)
    found = tier_status(world.coordinator, list(world.machines.values()), None, 0.0, 1.0)  # type: ignore[arg-type]

    assert (found.goal, found.reached) == (GOAL, world.layout.reached)
