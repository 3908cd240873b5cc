"""A parameter server in tiers, from its first layout to its end: stages, machines that come, leave and are lost."""

from __future__ import annotations

import pytest

from tests.tiers.in_step import InStep
from windfall.policies.layout.tiers import StageRatios
from windfall.structs import replace

TRANSIENT = ("t1", "t2", "t3", "t4")


def test_training_on_one_machine_ends_with_the_sum_of_all_clocks() -> None:
    """Five clocks of four data partitions, each adding one."""
    world = InStep(["r1"], clocks=5)
    world.turn(60)

    assert world.values() == {20.0}
    assert not world.clocks()


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_slow_data_partition_makes_the_others_wait_at_exactly_the_bound(bound: int) -> None:
    """It never ends its first clock: the others compute `bound` clocks more than it has begun, and read nothing older."""
    world = InStep(["r1", "t1"], staleness=bound)
    world.slow = {0}
    world.turn(100)

    assert world.clocks() == {0: 1, 1: bound + 2, 2: bound + 2, 3: bound + 2}
    world.slow = set()
    world.turn(20)
    assert min(world.clocks().values()) > bound + 2, "and go on once it does"


def test_without_a_bound_no_data_partition_waits() -> None:
    """Asynchronous training."""
    world = InStep(["r1", "t1"], staleness=None)
    world.slow = {0}
    world.turn(100)

    assert min(clock for data, clock in world.clocks().items() if data != 0) > 20


def test_machines_that_join_serve_and_compute_without_a_roll_back() -> None:
    """Stage 1, then 2: half of the transient machines serve, all compute; each clock counts once."""
    world = InStep(["r1"], clocks=40)
    world.turn(10)
    world.add(*TRANSIENT)
    world.turn(40)

    assert {place.active for place in world.layout.parts} == {"t1", "t2"}
    assert {place.holder for place in world.layout.data} < {"r1", *TRANSIENT}
    assert world.layout.term == 0
    world.turn(200)
    assert world.values() == {160.0}


def test_in_stage_three_reliable_machines_only_back_up() -> None:
    """Above the ratio."""
    world = InStep(["r1"], ratios=StageRatios(1.0, 3.0))
    world.add(*TRANSIENT)
    world.turn(40)

    assert {place.holder for place in world.layout.data} == set(TRANSIENT)
    assert {place.backup for place in world.layout.parts} == {"r1"}


def test_all_transient_machines_leave_with_notice_and_no_clock_is_done_again() -> None:
    """Parts return to their backups' machine, data partitions too."""
    world = InStep(["r1"], clocks=40)
    world.add(*TRANSIENT)
    world.turn(40)
    for name in TRANSIENT:
        world.machines[name] = replace(world.machines[name], leaving=True)
    world.turn(40)

    named = {place.active for place in world.layout.parts} | {place.holder for place in world.layout.data}
    assert named == {"r1"}
    world.lose(*TRANSIENT)
    world.turn(200)
    assert world.layout.term == 0
    assert world.values() == {160.0}


def test_all_transient_machines_are_lost_and_training_continues_from_the_newest_common_clock() -> None:
    """Nothing is read from the store; the last clocks are done again, and count once."""
    world = InStep(["r1"], clocks=40)
    world.add(*TRANSIENT)
    world.turn(40)
    done = min(world.clocks().values()) - 1
    loads = list(world.loads)
    world.lose(*TRANSIENT)
    world.turn(200)

    assert world.layout.term == 1
    assert done - 3 <= world.layout.base <= done
    assert world.loads == loads
    assert world.values() == {160.0}


def test_a_lost_worker_makes_no_other_data_partition_compute_again() -> None:
    """Its data partitions continue elsewhere in the clock in which they were."""
    world = InStep(["r1"], parts=1, clocks=40)
    world.add(*TRANSIENT)
    world.turn(40)
    serving = {place.active for place in world.layout.parts}
    worker = next(place.holder for place in world.layout.data if place.holder not in serving | {"r1"})
    world.lose(worker)
    world.turn(200)

    assert world.layout.term == 0
    assert world.values() == {160.0}


def test_a_lost_reliable_machine_costs_the_clocks_since_the_checkpoint() -> None:
    """With another reliable machine, all is restored from the newest checkpoint that is whole."""
    world = InStep(["r1", "r2"], clocks=40, save_every=5)
    world.turn(60)
    checkpoint = world.layout.checkpoint
    world.lose("r2")
    world.turn(250)

    assert checkpoint.clock >= 5
    assert world.loads[-1] == checkpoint
    assert world.layout.restored == 1
    assert world.values() == {160.0}


def test_data_return_to_a_machine_that_has_them() -> None:
    """The reliable machine computed on all before; nothing is loaded again once the others are lost."""
    world = InStep(["r1"], ratios=StageRatios(1.0, 3.0))
    world.turn(5)
    world.add("t1", "t2", "t3", "t4")
    world.turn(40)
    world.lose("t1", "t2", "t3", "t4")
    world.turn(2)

    assert {place.holder for place in world.layout.data} == {"r1"}
    assert world.members["r1"].worker.to_load() == set()
