"""Parts that move between machines: one at a time, and whoever asks the wrong machine is sent to the right one."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.tiers.in_step import InStep
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.runtimes.tier_counts import TierCounts
from windfall.runtimes.tier_messages import ReadRows, RefusalReason, Refused
from windfall.runtimes.tier_worker import TierWorker
from windfall.structs import replace
from windfall.tier_layout import ServerLayout, TierMachine

READ = ReadRows(0, 1, 0, 1, np.arange(3))
TRANSIENT = ("t1", "t2", "t3", "t4")


def asks(worker: TierWorker) -> str:
    """Return which machine a worker asks for part 0."""
    (push,) = worker.turns()
    worker.read(push, [np.arange(3)] * 2)
    return next(target for target, question in worker.questions() if question.part == 0)


def worker_of_version(version: int) -> TierWorker:
    """Return a worker with one data partition that has seen this version of a layout in which r1 serves."""
    layout = replace(InStep(["r1"], data=1).layout, version=version)
    worker = TierWorker("r1", layout, 100, TierCounts())
    worker.loaded(0)
    return worker


def sent_to(machine: str, version: int) -> Refused:
    """Return the answer that another machine serves, by this version of the layout."""
    return Refused(RefusalReason.MOVED, machine, version)


def test_a_machine_that_serves_a_part_no_more_says_which_one_does() -> None:
    """At once, by the newest layout: a question held there would wait for nothing."""
    world = InStep(["r1"])
    world.turn(10)
    world.add(*TRANSIENT)
    world.turn(40)
    assert "r1" not in {place.active for place in world.layout.parts}

    answer = world.members["r1"].server.answer(READ, "t4")

    assert isinstance(answer, Refused)
    assert (answer.reason, answer.serves) == (RefusalReason.MOVED, world.layout.parts[0].active)
    assert answer.version == world.layout.version


def test_a_machine_that_is_to_serve_a_part_sends_none_away() -> None:
    """It has it soon."""
    world = InStep(["r1"])
    world.members["r1"].server._parts.clear()

    answer = world.members["r1"].server.answer(READ, "t4")

    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.LATER


def test_a_worker_goes_where_it_is_sent_and_back_only_by_a_newer_layout() -> None:
    """An answer from before the move, which came late, changes nothing."""
    worker = worker_of_version(5)
    assert asks(worker) == "r1"

    worker.take(READ, sent_to("t1", 6))
    assert asks(worker) == "t1"
    worker.take(READ, sent_to("r1", 4))
    assert asks(worker) == "t1"
    worker.take(READ, sent_to("t2", 7))
    assert asks(worker) == "t2"


def test_a_machine_gives_and_takes_one_part_at_a_time() -> None:
    """In no layout two, when four machines come and when they leave; in the end all have moved."""
    world = InStep(["r1", "r2"], parts=4)
    world.turn(10)
    world.add(*TRANSIENT)
    world.turn(60)
    served = {place.active for place in world.layout.parts}
    for name in TRANSIENT:
        world.machines[name] = replace(world.machines[name], leaving=True)
    world.turn(60)

    assert served == {"t1", "t2"}
    assert {place.active for place in world.layout.parts} == {"r1", "r2"}
    assert max(most_moves_of_a_machine(layout) for layout in world.layouts) == 1


def test_parts_stay_with_their_backups_until_the_data_has_arrived() -> None:
    """When machines come: the clock in which the others still compute everything need not bear that too.

    When they leave all goes at once, as they have little time.
    """
    world = InStep(["r1", "r2"], parts=4)
    world.turn(10)
    world.add(*TRANSIENT)
    world.turn(60)
    came = list(world.layouts)
    for name in TRANSIENT:
        world.machines[name] = replace(world.machines[name], leaving=True)
    world.turn(60)

    assert any(parts_move(layout) for layout in came)
    assert not any(parts_move(layout) and data_moves(layout) for layout in came)
    assert any(parts_move(layout) and data_moves(layout) for layout in world.layouts[len(came) :])


def parts_move(layout: ServerLayout) -> bool:
    """Whether any part is on its way."""
    return any(place.next_active for place in layout.parts)


def data_moves(layout: ServerLayout) -> bool:
    """Whether any data partition is."""
    return any(place.next_holder for place in layout.data)


def most_moves_of_a_machine(layout: ServerLayout) -> int:
    """Return how many parts a machine gives away at once, or takes, at most."""
    moves = [place for place in layout.parts if place.next_active is not None]
    gives, takes = Counter(place.active for place in moves), Counter(place.next_active for place in moves)
    return max([0, *gives.values(), *takes.values()])


def test_a_reliable_machine_serves_what_it_backs_up() -> None:
    """A part that returns to it is there already, but for its newest changes."""
    backups = ("r2", "r2", "r1", "r1")
    now = TierPlacement(("t1",) * 4, backups, ("t1",) * 4)

    placed = place_tiers([TierMachine("r1", True), TierMachine("r2", True)], now, StageRatios())

    assert placed.servers == placed.backups == backups
