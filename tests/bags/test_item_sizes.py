"""Items that may run on fewer processors than they want: trials, the choice after a preemption, and where they run."""

from __future__ import annotations

import pytest

from tests.bags.played_bag import FLEET, PlayedBag, bag
from windfall.bags import (
    Bag,
    GrantedItem,
    ItemEnd,
    ItemGrant,
    ItemLease,
    ItemOutcome,
    ItemRecoveryAction,
    ItemState,
    RunnerRoom,
)
from windfall.core import item_commands
from windfall.core.item_commands import ItemTry
from windfall.core.item_runner import GrantRead, ItemEnded, ItemRunner, RunnerIdentity, StartItem
from windfall.fleet import FleetFacts, MachineFacts
from windfall.policies.layout import bag_rules
from windfall.policies.planning.item_sizes import SizeTrials, size_to_try
from windfall.terms import Instant, Seconds, WallTime

AGAIN, LAST, DISCARD, SMALLER = ItemRecoveryAction
TIMES_S = {None: 600.0, 2.0: 720.0, 1.0: 1500.0}
"""How long an item takes on all four processors, on two and on one."""
LEFT_S = 8_200.0
"""Until the deadline, when the third choice is made [s]."""


def sized_bag(items: int = 40, finish: float = 0.9, **more: object) -> Bag:
    return bag(items, finish, cores=4.0, smaller=(2.0, 1.0), **more)


def ends(played: PlayedBag, runner: str, item: int | None = None, end: ItemEnd = ItemEnd.DONE) -> None:
    """Let an item of a runner end, its first one if none is named, after the time that it takes."""
    found = played.table.leases(runner)[0].item if item is None else item
    played.end(runner, found, end, TIMES_S[played.table.sized.cpus(found)])


def tried(played: PlayedBag) -> list[tuple[int, float]]:
    return [(one.item, one.cpus) for record in played.log for one in record.trials]


def measured(spare_cpus: float = 0.0, **more: object) -> PlayedBag:
    """A bag on four machines whose times are measured on four, two and one processor."""
    played = PlayedBag(sized_bag(**more), spare_cpus=spare_cpus)
    for runner in ("a", "b", "c", "d"):
        played.join(runner)
    while sum(one.timed for one in played.table.sized.times()) < 4:
        end_next(played)
    return played


def end_next(played: PlayedBag) -> None:
    """Let an item on fewer processors end, or the first of machine a."""
    held = [(runner, one.item) for runner in played.table.runners for one in played.table.leases(runner)]
    runner, item = next((one for one in held if one[1] in played.table.sized), held[0])
    ends(played, runner, item)


def wait_for(played: PlayedBag, runner: str, item: int) -> None:
    """Let a runner's items end until it has this one."""
    while item not in [one.item for one in played.table.leases(runner)]:
        ends(played, runner)


def test_later_items_are_timed_on_fewer_processors() -> None:
    """Two run on all that they want; then two on two, two on one, and all others on what they want again."""
    played = measured()
    while played.table.queued:
        ends(played, "a")

    assert [cpus for _, cpus in tried(played)] == [2.0, 2.0, 1.0, 1.0]
    assert [(one.cpus, one.timed, one.timed_s) for one in played.table.sized.times()] == [
        (2.0, 2, 1440.0), (1.0, 2, 3000.0),
    ]  # fmt: skip
    # Not a mean of all sizes.
    assert played.table.timed_s / played.table.timed == 600.0
    assert played.table.keep() == played.folded().keep()


def test_in_a_run_of_which_nine_tenths_must_finish_replenish_smaller_and_discard_each_win() -> None:
    """Before the times are known, replenish; then smaller is cheaper; near the deadline it is too late; at the end, discard."""
    played = PlayedBag(sized_bag())
    for runner in ("a", "b", "c", "d"):
        played.join(runner)
    ends(played, "a")
    played.lose("b", {2: 100.0})
    while sum(one.timed for one in played.table.sized.times()) < 4:
        end_next(played)
    first, _ = (one.item for one in played.table.leases("c"))
    played.lose("c", {first: 100.0})
    wait_for(played, "a", first)
    ends(played, "a", first)
    third, _ = (one.item for one in played.table.leases("d"))
    played.fleet = FleetFacts(FLEET, Seconds(LEFT_S))
    played.lose("d", {third: 100.0})
    played.fleet = FleetFacts(FLEET)
    played.join("e")
    while played.table.counts.done < 35:
        ends(played, "a")
    last = played.table.leases("e")[0].item
    played.lose("e", {last: 100.0})

    made = played.recoveries()
    assert [one.item for one in made] == [2, first, third, last]
    assert [one.action for one in made] == [AGAIN, SMALLER, AGAIN, DISCARD]
    assert made[1].cpus == 2.0
    assert made[2].reason.endswith("restart smaller would be cheaper, but too late")
    explained = played.explained()
    for line in (
        f"item {first}: restart smaller on 2 CPUs, the least expected cost, 0.0134 USD",
        "expected cost, restart smaller, on 2 CPUs = 0.0134 USD",
        "expected cost, replenish and restart = 0.02086 USD",
        f"item {last}: discard, the least expected cost, 0 USD",
    ):
        assert line in explained, explained


def test_a_smaller_restart_runs_at_once_beside_items_that_leave_two_processors_free() -> None:
    """It takes no slot of another item, and the costs count no wait for it."""
    played = measured(spare_cpus=2.0)
    (item, _) = (one.item for one in played.table.leases("b"))
    played.lose("b", {item: 100.0})
    (made,) = played.recoveries()

    assert (made.action, made.cpus) == (SMALLER, 2.0)
    assert "at once on 2 of 4" in next(one.reason for one in made.costs if "2 CPUs" in one.action)
    where = next(runner for runner in "acd" if item in [one.item for one in played.table.leases(runner)])
    assert len(played.table.leases(where)) == 3


def test_a_restart_that_fails_on_fewer_runs_again_on_all_and_is_not_counted() -> None:
    """It may need the memory, or the time, of the wanted number."""
    played = measured(retries_max=0)
    item = played.table.leases("b")[0].item
    played.lose("b", {item: 100.0})
    assert played.table.sized.cpus(item) == 2.0
    wait_for(played, "a", item)
    ends(played, "a", item, ItemEnd.FAILED)

    assert played.table.sized.cpus(item) is None
    wait_for(played, "a", item)
    ends(played, "a", item, ItemEnd.FAILED)
    assert played.table.state(item) is ItemState.FAILED


@pytest.mark.parametrize("bag_of", [lambda: sized_bag(finish=1.0, grows=True), lambda: bag(40)])
def test_nothing_is_tried_where_it_is_of_no_use(bag_of: object) -> None:
    """Not in a bag with one number, and not where each item was asked for by a client."""
    played = PlayedBag(bag_of())  # type: ignore[operator]
    played.join("a")
    while played.table.leases("a"):
        ends(played, "a")

    assert tried(played) == []


def test_nothing_is_tried_on_machines_that_are_never_lost() -> None:
    """A restart would never be on fewer."""
    played = PlayedBag(sized_bag())
    played.fleet = FleetFacts({"m-a": MachineFacts(0.24, Seconds(float("inf")))})
    played.join("a")
    while played.table.leases("a"):
        ends(played, "a")

    assert tried(played) == []


def test_trials_end_though_all_of_them_fail() -> None:
    """Six items are tried on a number, one after the other fails there, and the bag runs on what it wants."""
    known = {4.0: SizeTrials(9), 2.0: SizeTrials(tried=5), 1.0: SizeTrials(2, 2)}
    assert size_to_try((4.0, 2.0, 1.0), known, 10, 2) == 2.0
    assert size_to_try((4.0, 2.0, 1.0), known | {2.0: SizeTrials(tried=6)}, 10, 2) is None
    assert size_to_try((4.0, 2.0, 1.0), known, 2, 2) is None


class Machine:
    """A runner of ten processors, for items that want four and may run on two."""

    def __init__(self) -> None:
        self.bag = sized_bag()
        self.runner = ItemRunner(RunnerIdentity("r", "m", bag_rules.room_of(self.bag, 10.0, 64.0)), Instant(0.0))
        self.grants = 0

    def granted(self, *items: tuple[int, float | None]) -> list[int]:
        """Grant these and no others; return which start."""
        self.grants += 1
        given = tuple(GrantedItem(ItemLease(item, 1), (0.0,), cpus) for item, cpus in items)
        return self._started(GrantRead(ItemGrant("r", self.grants, 0, given)))

    def ended(self, item: int) -> list[int]:
        outcome = ItemOutcome(ItemLease(item, 1), ItemEnd.DONE, 0, WallTime(0.0), Seconds(1.0))
        return self._started(ItemEnded(outcome))

    def _started(self, fact: GrantRead | ItemEnded) -> list[int]:
        return [one.item.lease.item for one in self.runner.react(Instant(0.0), (fact,)) if isinstance(one, StartItem)]


def test_a_machine_runs_smaller_items_on_what_the_others_leave_free() -> None:
    """Of ten processors two items take eight; one of two goes ahead of a third that does not fit, a second one does not."""
    machine = Machine()

    assert machine.granted((0, None), (1, None), (2, None), (3, 2.0), (4, 2.0)) == [0, 1, 3]
    assert machine.ended(3) == [4]
    assert machine.ended(0) == [2]


def test_what_goes_ahead_on_spare_processors_never_keeps_the_next_item_waiting() -> None:
    """With one item of four and one of two running, four are free: the next is the one of four, not one of two behind it."""
    machine = Machine()
    machine.granted((0, None), (1, 2.0), (2, None), (3, 2.0), (4, 2.0))

    # 4 + 2 + 4 are all ten.
    assert machine.runner.running == 3
    assert machine.ended(1) == [3]
    assert machine.ended(2) == [4]


def test_memory_limits_smaller_items_too() -> None:
    """An item on fewer processors needs as much memory: a machine with memory for two runs no third one."""
    sized = sized_bag(memory_gib=4.0)

    assert bag_rules.room_of(sized, 10.0, 9.0) == RunnerRoom(2, 4.0, 0.0, 2)
    assert bag_rules.room_of(sized, 10.0, 64.0) == RunnerRoom(2, 4.0, 2.0, 10)
    assert bag_rules.room_of(bag(), 10.0, 64.0) == RunnerRoom(10)


def test_a_command_is_given_its_processors_and_ranks() -> None:
    """On two of four processors, eight ranks are four."""
    sized, this = sized_bag(ranks=8), ItemTry(cpus=2.0)

    assert item_commands.filled(["x -n {{ranks}} -t {{cpus}}"], sized, (0.0,), item=0, this=this) == ["x -n 4 -t 2"]
    assert item_commands.filled(["x -n {{ranks}} -t {{cpus}}"], sized, (0.0,), item=0) == ["x -n 8 -t 4"]
    own = item_commands.variables(sized, (0.0,), item=0, attempt=1, this=this)
    assert own["WINDFALL_CPUS"] == "2"
