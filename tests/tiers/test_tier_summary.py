"""What a parameter server in tiers says of itself, and that it counts what happened."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.tiers.in_step import InStep
from tests.tiers.in_threads import DATA, ThreadCluster, played
from tests.tiers.least_squares import LeastSquares
from windfall.core.tier_summary import ClockRate, summed, tier_status
from windfall.runtimes.tier_program import Table, TurnGivenUp
from windfall.structs import replace
from windfall.terms import WallTime
from windfall.tier_status import TierCounters, TierMachineStatus, TierStatus

NOW = WallTime(7.0)


def status_of(world: InStep, before: TierStatus | None = None) -> TierStatus:
    """Return the status of machines in step."""
    return tier_status(world.coordinator, list(world.machines.values()), before, NOW, 2.5)


def by_name(status: TierStatus) -> dict[str, TierMachineStatus]:
    """Return its machines."""
    return {machine.name: machine for machine in status.machines}


def test_a_status_says_who_serves_backs_up_and_computes_what_in_which_stage() -> None:
    """Of the newest layout; what is given to it is in it."""
    world = InStep(["r1", "t1", "t2"], clocks=40)
    world.turn(30)
    status = status_of(world)

    assert (status.at, status.stage, status.layout) == (7.0, 2, world.layout.version)
    assert (status.coordinator, status.clocks, status.clocks_per_s) == (1, 40, 2.5)
    assert status.clock == world.coordinator.committed().clock > 0
    assert (status.rollbacks, status.restores, status.clocks_redone, status.lost, status.left) == (0, 0, 0, 0, 0)
    for name, machine in by_name(status).items():
        assert machine.serves == ((0, 1) if name == "t1" else ())
        assert machine.backs_up == ((0, 1) if name == "r1" else ())
        assert machine.data == tuple(data for data, place in enumerate(world.layout.data) if place.holder == name)
        assert (machine.reliable, machine.leaving) == (name == "r1", False)


def test_without_a_loss_every_turn_counts_once_and_reads_miss_no_more_than_the_bound() -> None:
    """Four data partitions, 20 clocks."""
    for bound in (0, 2):
        world = InStep(["r1", "t1", "t2"], staleness=bound, clocks=20)
        world.slow = {0}
        world.turn(20)
        world.slow = set()
        world.turn(100)
        total = summed(machine.counters for machine in status_of(world).machines)

        assert status_of(world).over
        assert (total.turns, total.reads, total.redone, total.given_up) == (80, 80, 0, 0)
        assert total.staleness_max == bound
        assert total.staleness_mean <= bound


def test_a_roll_back_is_counted_with_the_clocks_that_are_done_again() -> None:
    """Both servers are lost: all turns after the common clock are done again, those of the lost workers too."""
    world = InStep(["r1", "t1", "t2", "t3", "t4"], clocks=40)
    world.turn(60)
    before = status_of(world)
    newest = max(max(member.worker.done().values(), default=0) for member in world.members.values())
    done = {
        data: max(member.worker.done().get(data, 0) for member in world.members.values()) for data in range(4)
    }  # fmt: skip
    survivors = {name: member.counts.now.turns for name, member in world.members.items()}
    world.lose("t1", "t2")
    world.turn(1)
    base = world.layout.base
    world.turn(200)
    after = status_of(world, before)

    assert (after.rollbacks, after.restores, after.lost, after.left, after.over) == (1, 0, 2, 0, True)
    assert after.clocks_redone == newest - base > 0
    assert by_name(after).keys() == {"r1", "t3", "t4"}
    again = sum(clock - base for clock in done.values())
    redone = sum(machine.counters.redone for machine in after.machines)
    # What was pushed and not yet sealed everywhere is done again too: at most a turn of each data partition.
    assert again <= redone <= again + 4
    assert after.gone.turns == survivors["t1"] + survivors["t2"]
    assert sum(machine.counters.turns for machine in after.machines) + after.gone.turns == 160 + again


def test_a_restore_is_counted_apart_from_a_roll_back() -> None:
    """A machine with backups is lost: all clocks since the checkpoint are done again."""
    world = InStep(["r1", "r2", "t1"], clocks=40, save_every=4)
    world.turn(60)
    newest = max(max(member.worker.done().values(), default=0) for member in world.members.values())
    world.lose("r2")
    world.turn(1)
    status = status_of(world)

    assert (status.rollbacks, status.restores) == (0, 1)
    assert status.clocks_redone == newest - world.layout.base > 0


def test_what_vanished_counts_as_lost_and_what_went_with_notice_as_left() -> None:
    """Each once, and what they had counted stays."""
    world = InStep(["r1", "t1", "t2", "t3"], clocks=40)
    world.turn(30)
    first = status_of(world)
    world.machines["t1"] = replace(world.machines["t1"], leaving=True)
    second = status_of(world, first)
    world.lose("t1", "t2")
    third = status_of(world, second)
    fourth = status_of(world, third)

    assert [(one.lost, one.left) for one in (first, second, third, fourth)] == [(0, 0), (0, 0), (1, 1), (1, 1)]
    counters = by_name(first)
    assert fourth.gone == third.gone == summed([counters["t1"].counters, counters["t2"].counters])


def test_the_next_coordinator_counts_on_from_the_last_status() -> None:
    """It has heard no reports yet."""
    world = InStep(["r1", "t1"], clocks=40)
    world.turn(30)
    before = status_of(world)
    world.coordinator._reports.clear()

    assert by_name(status_of(world, before))["t1"].counters == by_name(before)["t1"].counters != TierCounters()


def test_without_a_reliable_machine_there_is_no_stage() -> None:
    """All waits for one."""
    world = InStep(["r1", "t1"], clocks=40)
    assert tier_status(world.coordinator, [world.machines["t1"]], None, NOW, 0.0).stage is None


def test_the_rate_of_clocks_is_that_of_its_window() -> None:
    """It forgets what is before, falls to 0 when nothing is committed any more, and begins again when all went back."""
    rate = ClockRate(10.0)

    assert rate.at(0.0, 5) == 0.0
    assert rate.at(2.0, 9) == 2.0
    assert rate.at(10.0, 25) == 2.0
    assert rate.at(12.0, 39) == 3.0
    assert rate.at(20.0, 39) == 1.4
    assert rate.at(40.0, 39) == 0.0
    assert rate.at(41.0, 10) == 0.0
    assert rate.at(42.0, 13) == 3.0


class Logged(LeastSquares):
    """It notes by itself which turns were computed, and on which machine.

    Attributes:
        computed: (machine, data partition, clock) of each turn, in the order in which they ended.
        given_up: turns whose reads were given up.
    """

    def __init__(self, data: int, seconds: float = 0.0) -> None:
        super().__init__(data, seconds=seconds)
        self.computed: list[tuple[str, int, int]] = []
        self.given_up = 0

    def load(self, data: int) -> Any:
        """Return the data with their number."""
        return data, super().load(data)

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Compute, and note it."""
        data, equations = loaded
        machine = threading.current_thread().name.removeprefix("windfall-compute-").split("_")[0]
        try:
            super().compute(equations, clock, table)
        except TurnGivenUp:
            self.given_up += 1
            raise
        self.computed.append((machine, data, clock))


async def undisturbed(cluster: ThreadCluster) -> None:
    """Nothing happens."""
    del cluster


@pytest.mark.parametrize("staleness", [0, 2])
def test_what_machines_count_is_what_the_program_and_the_messages_say(staleness: int) -> None:
    """Turns by machine, seconds computed, and every byte of rows and values by who asked whom; the last status has it."""
    program = Logged(DATA, seconds=0.01)
    cluster = played(["r1", "t1", "t2"], program, undisturbed, clocks=30, staleness=staleness)
    last = cluster.statuses[-1]
    turns = Counter(machine for machine, _, _ in program.computed)

    assert (last.over, last.clock, last.stage, last.rollbacks) == (True, 30, 2, 0)
    assert sum(turns.values()) == 30 * DATA
    for machine in last.machines:
        counted = cluster.machines[machine.name].member.counts.now
        assert machine.counters.turns == counted.turns == turns[machine.name]
        assert (counted.redone, counted.given_up, counted.reads) == (0, 0, turns[machine.name])
        assert counted.staleness_max <= staleness
        assert counted.computed_s >= 0.01 * turns[machine.name]
        assert counted.computed_s < 0.1 * turns[machine.name]
        questions = {asked: size for (asker, asked), size in cluster.question_bytes.items() if asker == machine.name}
        answers = {asked: size for (asker, asked), size in cluster.answer_bytes.items() if asker == machine.name}
        assert counted.pushed_here_bytes == questions.pop(machine.name, 0)
        assert counted.pulled_here_bytes == answers.pop(machine.name, 0)
        assert (counted.pulled_bytes, counted.pushed_bytes) == (sum(answers.values()), sum(questions.values()))
    assert last.machines[0].counters.pulled_bytes > 0, "the reliable machine computes, and a transient one serves"


def test_after_a_loss_machines_count_the_turns_that_the_program_did_again() -> None:
    """All transient machines vanish long after the newest clock of the backups; the program's own log says what came twice."""
    program = Logged(DATA, seconds=0.02)

    async def story(cluster: ThreadCluster) -> None:
        reports = cluster.coordinator.coordinator.reports
        async with asyncio.timeout(30.0):
            while "t1" not in reports or min(reports["t1"].done.values(), default=0) < 25:
                await asyncio.sleep(0.01)
        cluster.lose("t1", "t2")

    cluster = played(["r1", "t1", "t2"], program, story, clocks=40, back_up_every=20)
    last, begun = cluster.statuses[-1], next(layout for layout in cluster.layouts if layout.term == 1)
    (machine,) = last.machines
    own = [(data, clock) for name, data, clock in program.computed if name == "r1"]
    all_times = Counter((data, clock) for _, data, clock in program.computed)

    assert machine.counters.turns + machine.counters.given_up >= len(own) >= machine.counters.turns
    assert (last.rollbacks, last.restores, last.lost, begun.base) == (1, 0, 2, 20)
    reported = [place.done_before - begun.base for place in begun.data]
    # What the lost machines had done and not yet reported, they alone knew.
    assert 5 <= sum(reported) <= machine.counters.redone <= sum(times - 1 for times in all_times.values())
    assert last.clocks_redone == max(reported) >= 5
    assert set(all_times) == {(data, clock) for data in range(DATA) for clock in range(1, 41)}
    assert np.array_equal(cluster.values(), program.alone(40))
