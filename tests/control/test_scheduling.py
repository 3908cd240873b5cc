"""Schedules of saves beside the conductor's turns: when they are asked for, how they arrive, what cannot stop the job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.control.house import PACE, House
from windfall import codec
from windfall.control.conductor import Conductor, ConductorPorts
from windfall.core import driver
from windfall.core.replay import explain, replay
from windfall.errors import StoreUnreachable
from windfall.events import SaveTableGiven
from windfall.extras import install
from windfall.fleet import Lifetime, ScheduleMade
from windfall.jobs import Checkpointing
from windfall.policies import saving
from windfall.policies.saving import schedules_live
from windfall.policies.saving.replanning import ScheduleWish, by_default
from windfall.simulation.clock import Timeline, VirtualClock
from windfall.terms import SaveCosts, SaveTable, Seconds, Step, Term, WallTime
from windfall.wiring_control import Schedules

COSTS = SaveCosts(Seconds(2.0), 1000, Seconds(5.0), Seconds(0.5))


@dataclass
class Maker:
    """Makes a table of one save, and says why when `why` is set; `fault` is raised instead."""

    why: str = ""
    fault: Exception | None = None
    wishes: list[ScheduleWish] = field(default_factory=list)

    def make(self, wish: ScheduleWish) -> ScheduleMade | None:
        self.wishes.append(wish)
        if self.fault is not None:
            raise self.fault
        if wish.before is not None and not self.why:
            return None
        table = SaveTable((100.0,), 500.0, 60.0, "it rests on 501 losses")
        made = by_default(wish, "")
        return replace(made, given=SaveTableGiven(table, wish.from_step, wish.term), trusted=True, why=self.why)


class Scheduled(House):
    """A house whose job saves by schedule; `held` calls are carried out when the test says so."""

    def __init__(self, maker: Maker) -> None:
        super().__init__(checkpointing=Checkpointing(policy="optimal"))
        self.maker = maker
        self.hold = self.full = False
        self.held: list[Callable[[], None]] = []

    def ports(self) -> ConductorPorts:
        return replace(super().ports(), schedule=self.maker.make, aside=self._aside)

    def _aside(self, call: Callable[[], None]) -> None:
        if self.full:
            raise RuntimeError("can't start new thread")
        if self.hold:
            self.held.append(call)
        else:
            call()

    def begins(self) -> tuple[Conductor, str]:
        """A machine trains, and has measured a save."""
        conductor = self.conductor()
        name = self.trains(conductor)
        self.measures(name)
        return conductor, name

    def measures(self, name: str, step: int = 30, term: Term = Term(1)) -> None:  # noqa: B008 - a number
        said = {"term": term, "step": Step(step), "saved_step": Step(20), "step_s": Seconds(1.0)}
        self.speaks(name, costs=COSTS, **said)


def test_a_machine_gets_its_schedule_soon_after_its_first_save() -> None:
    """Within the pace of the run's looks, not of the beliefs': through a fact, a decision, and its directive."""
    house = Scheduled(Maker())
    conductor, name = house.begins()
    house.turns(conductor, 4.0 * PACE.run_s)

    assert house.voices.told[name].schedule == SaveTableGiven(
        SaveTable((100.0,), 500.0, 60.0, "it rests on 501 losses"), 20, Term(1)
    )
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    assert replay(rows) == []
    assert sum("schedule for" in line for line in explain(rows)) == 1
    assert (house.maker.wishes[0].machine_id, house.maker.wishes[0].costs) == (name, COSTS)


def test_a_schedule_is_looked_at_again_as_often_as_the_beliefs() -> None:
    """What comes of it is told with its reason; nothing where nothing has changed."""
    house = Scheduled(Maker())
    conductor, name = house.begins()
    house.turns(conductor, 5.0)
    asked = len(house.maker.wishes)
    for _ in range(20):
        house.measures(name)
        house.turns(conductor, 3.0)
    again = len(house.maker.wishes) - asked
    assert 1 <= again <= 2
    house.maker.why = "stall is 2 s, planned with 9 s"
    for _ in range(25):
        house.measures(name)
        house.turns(conductor, 3.0)
    text = "\n".join(explain(codec.row_from_line(line) for line in house.journal.lines))
    assert "made anew: stall is 2 s, planned with 9 s" in text


def test_the_conductor_does_not_wait_for_a_schedule() -> None:
    """It turns as ever while one is made, asks for no second one meanwhile, and takes it when it comes."""
    house = Scheduled(Maker())
    house.hold = True
    conductor, name = house.begins()
    for _ in range(10):
        house.measures(name)
        house.turns(conductor, 3.0)
    assert (len(house.held), house.voices.told[name].schedule) == (1, None)

    house.held[0]()
    house.turns(conductor, 2.0)
    assert house.voices.told[name].schedule is not None


def test_what_fails_while_a_schedule_is_made_is_said_once_and_tried_again() -> None:
    """The job goes on, by the default rule, and has its schedule when the failure is over."""
    for fault in (StoreUnreachable("the database does not answer"), ZeroDivisionError("nobody foresaw it")):
        house = Scheduled(Maker(fault=fault))
        conductor, name = house.begins()
        for _ in range(5):
            house.measures(name)
            house.turns(conductor, 3.0)
        assert len(house.maker.wishes) > 1
        assert len([sentence for sentence in house.said if str(fault) in sentence]) == 1
        assert driver.phase(conductor.state) == "running"
        house.maker.fault = None
        house.measures(name)
        house.turns(conductor, 3.0)
        assert house.voices.told[name].schedule is not None


def test_what_keeps_failing_is_tried_less_and_less_often() -> None:
    """A fit costs seconds of the controller: it is not begun every few seconds for ever."""
    house = Scheduled(Maker(fault=ZeroDivisionError("nobody foresaw it")))
    conductor, name = house.begins()
    for _ in range(40):
        house.measures(name)
        house.turns(conductor, 3.0)
    assert 2 <= len(house.maker.wishes) <= 3.0 * 40 / PACE.beliefs_s + 6


def test_a_process_that_can_have_no_more_threads_still_conducts_the_job() -> None:
    """Its turns go on, and the schedule follows when there is room."""
    house = Scheduled(Maker())
    conductor, name = house.begins()
    house.full = True
    house.turns(conductor, 5.0)
    assert len([sentence for sentence in house.said if "can't start new thread" in sentence]) == 1
    house.full = False
    for _ in range(4):
        house.measures(name)
        house.turns(conductor, 3.0)
    assert house.voices.told[name].schedule is not None


def test_a_machine_that_took_the_run_again_is_looked_at_at_once() -> None:
    """What it had was made for its last holding: it is not left without a schedule until the beliefs are looked at."""
    house = Scheduled(Maker(why="the run was taken up again at step 20"))
    conductor, name = house.begins()
    house.turns(conductor, 4.0 * PACE.run_s)
    assert house.voices.told[name].schedule.term == 1
    house.measures(name, term=Term(2))
    house.turns(conductor, 4.0 * PACE.run_s)
    assert house.voices.told[name].schedule.term == 2


def test_a_controller_that_restarts_knows_the_schedules() -> None:
    """It tells them at its first word, and makes none anew without a reason."""
    house = Scheduled(Maker())
    conductor, name = house.begins()
    house.turns(conductor, 5.0)
    told = house.voices.told[name].schedule

    again = house.conductor()
    again.turn()
    assert house.voices.told[name].schedule == told
    house.measures(name)
    house.turns(again, 5.0)
    assert house.maker.wishes[-1].before is not None


WISH = ScheduleWish(
    machine_id="m-1",
    provider="sim",
    machine_type="m4",
    zone="a",
    machines=1,
    term=Term(1),
    from_step=Step(20),
    age_s=Seconds(60.0),
    work_s=Seconds(3_600.0),
    step_s=Seconds(1.0),
    costs=COSTS,
    allocate_s=Seconds(60.0),
    prepare_s=Seconds(60.0),
    notice_s=Seconds(30.0),
)


def lives(count: int) -> list[Lifetime]:
    began = WallTime(1e6)
    return [
        Lifetime(f"x{number}", "sim", "m4", "a", began, WallTime(began + 600.0 * (number + 1)), True, False)
        for number in range(count)
    ]


def test_a_controller_without_the_packages_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install, and by what machines save until then."""
    monkeypatch.setitem(sys.modules, "windfall.policies.saving.schedules_live", None)
    monkeypatch.delattr(saving, "schedules_live", raising=False)
    schedules = Schedules(lambda: lives(40), VirtualClock(Timeline()))

    made = schedules.make(WISH)
    assert made is not None
    assert not made.trusted
    assert install("lab") in made.given.table.says
    assert made.given.table.says.endswith("the default rule decides")
    assert schedules.make(replace(WISH, before=made)) is None


def test_lives_are_fitted_anew_when_a_twentieth_more_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit takes seconds: most looks need none."""
    rows = lives(40)
    fitted: list[int] = []

    def know(known: Sequence[Lifetime], now: WallTime, provider: str) -> schedules_live.Known:
        fitted.append(len(known))
        return schedules_live.Known(None, why_not="it is a test")

    monkeypatch.setattr(schedules_live, "know", know)
    schedules = Schedules(lambda: rows, VirtualClock(Timeline()))
    for count in (40, 41, 42, 43, 44, 46):
        rows[:] = lives(count)
        schedules.make(WISH)
    assert fitted == [40, 43, 46]
