"""The loop of the coordinator: who is there, who is lost and when, and who may write the next layout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from windfall.core.tier_coordinator import TierCoordinator
from windfall.core.tier_decisions import first_layout, taken_by_next_coordinator
from windfall.errors import Misuse, StoreUnreachable
from windfall.policies.layout.tiers import StageRatios, TierPlacement, place_tiers
from windfall.runtimes.tier_coordinator_loop import LostMachine, Superseded, TierCoordinatorLoop
from windfall.runtimes.tier_pace import USUAL, TierPace
from windfall.structs import replace
from windfall.terms import WallTime
from windfall.tier_layout import ServerLayout, TierMachine, TierReport
from windfall.tier_status import TierStatus

RELIABLE, FIRST, SECOND = TierMachine("r1", True), TierMachine("t1", False, 1.0), TierMachine("t2", False, 2.0)
THIRD = TierMachine("t3", False, 3.0)
MACHINES = {machine.name: machine for machine in (RELIABLE, FIRST, SECOND, THIRD)}


class Deciding:
    """A coordinator of one part and a few data partitions whose clock stands until the test moves it.

    Attributes:
        now_s: its clock.
        written: the layouts so far.
        refused: another coordinator has written the next one.
        successor: the next coordinator has started.
        outages: how many writes of the status fail from now on.
        statuses: that were written.
    """

    def __init__(
        self, machines: Sequence[TierMachine], clocks: int = 1000, pace: TierPace = USUAL, data: int = 2
    ) -> None:
        self.now_s, self.refused, self.outages = 0.0, False, 0
        self.successor = False
        self.statuses: list[TierStatus] = []
        first = first_layout(place_tiers(machines, TierPlacement(("",), ("",), ("",) * data), StageRatios()))
        self.written = [first]
        self.loop = TierCoordinatorLoop(
            TierCoordinator(first, StageRatios(), 100, clocks), self, lambda: self.now_s, lambda: "n", pace=pace
        )
        self.loop.start()
        self.numbers = 0
        self.leaving: set[str] = set()

    async def write(self, layout: ServerLayout) -> bool:
        """Keep a layout."""
        if not self.refused:
            self.written.append(layout)
        return not self.refused

    async def newest(self, since: ServerLayout) -> ServerLayout | None:
        """Return the newest layout; that of a successor, if there is one."""
        return taken_by_next_coordinator(since) if self.successor else since

    async def write_status(self, status: TierStatus) -> None:
        """Keep a status, if the store is there."""
        if self.outages:
            self.outages -= 1
            raise StoreUnreachable("no answer")
        self.statuses.append(status)

    def now(self) -> WallTime:
        """Return its clock."""
        return WallTime(self.now_s)

    def hear(self, *machines: str) -> None:
        """Let machines report."""
        for machine in machines:
            self.numbers += 1
            newest = self.written[-1]
            backups = {0: frozenset({newest.base})} if machine == "r1" else {}
            number, coordinator, term = self.numbers, newest.coordinator, newest.term
            about = replace(MACHINES[machine], leaving=machine in self.leaving)
            self.loop.hear(TierReport(about, number, coordinator, term, backups, {}, {}, frozenset(), {}, {}, {}, {}))

    def turn(self, at_s: float) -> ServerLayout:
        """Let the coordinator decide, and return the newest layout."""
        self.now_s = at_s
        asyncio.run(self.loop.turn())
        return self.written[-1]

    @property
    def names(self) -> set[str]:
        """Machines that are there."""
        return {machine.name for machine in self.loop.machines}


def test_a_transient_machine_is_lost_a_second_and_a_half_after_its_last_report() -> None:
    """Its data partition is fenced; until then nothing changes."""
    made = Deciding([RELIABLE, FIRST])
    made.hear("r1", "t1")

    assert made.turn(1.4).version == 1
    made.hear("r1")
    assert [place.fenced for place in made.turn(1.6).data].count(True) == 1
    assert made.names == {"r1"}


def test_a_reliable_machine_may_be_silent_for_longer() -> None:
    """For ten seconds: all would have to be restored from the store."""
    made = Deciding([RELIABLE])
    made.hear("r1")
    made.turn(9.9)
    assert made.names == {"r1"}

    made.turn(10.1)
    assert made.names == set()


def test_nothing_is_decided_before_each_machine_of_the_layout_has_reported_or_had_the_time_to() -> None:
    """A coordinator that has just started knows nothing of them; after a minute one is lost that is still silent."""
    made = Deciding([RELIABLE, FIRST])
    for at_s in range(59):
        made.now_s = float(at_s)
        made.hear("r1")
    assert made.turn(59.0).version == 1

    made.hear("r1")
    assert [place.fenced for place in made.turn(60.1).data].count(True) == 1
    with pytest.raises(LostMachine):
        made.hear("t1")


def test_a_machine_joins_with_its_first_report() -> None:
    """It gets a data partition, once no other has come for half a second, and loads it."""
    made = Deciding([RELIABLE])
    made.hear("r1")
    assert made.turn(1.0).version == 1

    made.hear("r1", "t1")
    assert made.turn(1.1).version == made.turn(1.5).version == 1
    made.hear("r1", "t1")
    assert {place.next_holder for place in made.turn(1.7).data} == {None, "t1"}


def test_machines_that_join_one_after_another_are_counted_together() -> None:
    """Nothing moves before half a second after the last, and then to both."""
    made = Deciding([RELIABLE, FIRST], data=4)
    made.hear("r1", "t1")
    made.turn(1.0)

    made.hear("r1", "t1", "t2")
    made.turn(1.1)
    made.hear("r1", "t1", "t2", "t3")
    assert made.turn(1.5).version == made.turn(1.9).version == 1
    made.hear("r1", "t1", "t2", "t3")
    assert {place.next_holder for place in made.turn(2.1).data} == {None, "t2", "t3"}


def test_a_loss_does_not_wait_for_machines_that_come() -> None:
    """One has just joined, another is lost: what that had goes on at once, with both counted."""
    made = Deciding([RELIABLE, FIRST])
    made.hear("r1", "t1")
    made.turn(1.0)

    made.hear("r1", "t2")
    made.turn(2.4)
    made.hear("r1", "t2")
    assert [place.fenced for place in made.turn(2.6).data].count(True) == 1


def test_a_machine_that_leaves_is_given_nothing() -> None:
    """What it has moves away."""
    made = Deciding([RELIABLE, FIRST, SECOND])
    made.hear("r1", "t1", "t2")
    (server,) = {place.active for place in made.written[0].parts}
    made.turn(0.3)
    made.leaving.add(server)
    made.hear("r1", "t1", "t2")
    made.turn(0.5)
    made.hear("r1", "t1", "t2")
    other = made.turn(1.1)

    assert {place.next_active for place in other.parts} == {"r1"}, "with one transient machine, the reliable one serves"
    assert server not in {place.next_holder for place in other.data}


def test_a_machine_that_was_taken_for_lost_is_told_so() -> None:
    """It must stop."""
    made = Deciding([RELIABLE, FIRST])
    made.loop.lose("t1")

    with pytest.raises(LostMachine, match="machine t1 was silent for too long: others do its work"):
        made.hear("t1")


def test_a_coordinator_that_another_one_has_followed_stops() -> None:
    """The record that it would write exists."""
    made = Deciding([RELIABLE, FIRST])
    made.hear("r1", "t1")
    made.loop.lose("t1")
    made.refused = True

    with pytest.raises(Superseded, match="another coordinator has written layout 2"):
        made.turn(1.0)


def test_a_coordinator_writes_the_status_also_when_training_is_over() -> None:
    """Though the store fails at first."""
    made = Deciding([RELIABLE], clocks=0)
    made.outages = 2
    asyncio.run(made.loop.run())

    assert [status.over for status in made.statuses] == [True]


def test_a_coordinator_to_which_a_machine_reports_that_obeys_another_one_stops() -> None:
    """It may have nothing to write to the log, by which it would know."""
    made = Deciding([RELIABLE])
    made.hear("r1")
    made.loop.hear(TierReport(RELIABLE, 2, 2, 0, {}, {}, {}, frozenset(), {}, {}, {}, {}))

    with pytest.raises(Superseded, match="another coordinator has started"):
        asyncio.run(made.loop.run())


def test_a_coordinator_that_hears_nothing_and_has_a_successor_does_not_write_over_its_status() -> None:
    """It looks into the log, and stops; without a successor it writes on."""

    async def silent(made: Deciding) -> None:
        running = asyncio.get_running_loop().create_task(made.loop.run())
        while len(made.statuses) < 3:
            await asyncio.sleep(0.001)
        made.successor = True
        with pytest.raises(Superseded, match="another coordinator has started"):
            await running

    made = Deciding([RELIABLE], pace=TierPace(status_s=0.01, decide_s=0.01))
    asyncio.run(asyncio.wait_for(silent(made), 30.0))
    # One may have been on its way.
    assert len(made.statuses) in {3, 4}


def test_limits_on_silence_are_settings() -> None:
    """A transient machine and a reliable one, with limits of their own."""
    pace = TierPace(lost_after_s=3.0, reliable_lost_after_s=4.0, start_within_s=5.0)
    made = Deciding([RELIABLE, FIRST, SECOND], pace=pace)
    made.hear("r1", "t1")

    seen = []
    for at_s in (2.9, 3.1, 4.1):
        made.turn(at_s)
        seen.append(made.names)
    assert seen == [{"r1", "t1"}, {"r1"}, set()]


def test_a_machine_that_has_yet_to_start_may_report_until_its_limit() -> None:
    """Just before it."""
    made = Deciding([RELIABLE, SECOND], pace=TierPace(start_within_s=5.0))
    made.turn(4.9)
    made.hear("t2")
    assert made.names == {"t2"}

    late = Deciding([RELIABLE, SECOND], pace=TierPace(start_within_s=5.0))
    late.turn(5.1)
    with pytest.raises(LostMachine):
        late.hear("t2")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"lost_after_s": 0.15},
            "lost_after_s is 0.15, and machines report every 0.1 s: one that is well .* 0.2 or more",
        ),
        ({"save_every": 0}, "save_every is 0: it must be above 0"),
        ({"held_s": -1.0}, "held_s is -1.0: it must be above 0"),
    ],
)
def test_times_that_cannot_work_are_refused(wrong: dict[str, Any], words: str) -> None:
    """Each is named."""
    with pytest.raises(Misuse, match=words):
        TierPace(**wrong)
