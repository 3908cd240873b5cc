"""Save schedules beside the job loop's turns: when they are asked for, how they arrive, what cannot stop the job."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tests.control.house import PACE, House
from windfall import codec
from windfall.bags import Bag
from windfall.control.job_loop import JobLoop, JobLoopPorts
from windfall.core import driver
from windfall.core.replay import explain, replay
from windfall.errors import StoreUnreachable
from windfall.events import ScheduleAssigned
from windfall.extras import install
from windfall.fleet import AgeWeighed, Lifetime, ScheduleComputed
from windfall.jobs import RuntimeSpec, Work
from windfall.policies import checkpointing
from windfall.policies.checkpointing import live_schedules
from windfall.policies.checkpointing.schedule_table import ScheduleRequest, default_schedule
from windfall.policies.layout import bag_rules
from windfall.policies.replacement.age_requests import AgeRequest
from windfall.simulation.virtual_time import Timeline, VirtualClock
from windfall.structs import replace
from windfall.terms import RunOptions, SaveCosts, SaveTable, Seconds, Step, Term, Unit, WallTime
from windfall.wiring_control import Schedules

COSTS = SaveCosts(Seconds(2.0), 1000, Seconds(5.0), Seconds(0.5))


@dataclass
class Maker:
    """Makes a table of one save, and says why when `reason` is set; `fault` is raised instead."""

    reason: str = ""
    fault: Exception | None = None
    requests: list[ScheduleRequest] = field(default_factory=list)

    def make_schedule(self, request: ScheduleRequest) -> ScheduleComputed | None:
        self.requests.append(request)
        if self.fault is not None:
            raise self.fault
        if request.before is not None and not self.reason:
            return None
        table = SaveTable((100.0,), 500.0, 60.0, "it rests on 501 losses")
        made = default_schedule(request, "")
        return replace(
            made, schedule=ScheduleAssigned(table, request.from_step, request.term), trusted=True, reason=self.reason
        )


class Scheduled(House):
    """A house whose job saves by schedule; `held` calls are carried out when the test says so."""

    def __init__(self, maker: Maker) -> None:
        super().__init__(options=RunOptions("optimal"))
        self.maker = maker
        self.hold = self.full = False
        self.held: list[Callable[[], None]] = []

    def ports(self) -> JobLoopPorts:
        return dataclasses.replace(super().ports(), schedule=self.maker.make_schedule, in_background=self._aside)

    def _aside(self, call: Callable[[], None]) -> None:
        if self.full:
            raise RuntimeError("can't start new thread")
        if self.hold:
            self.held.append(call)
        else:
            call()

    def begins(self) -> tuple[JobLoop, str]:
        """A machine trains, and has measured a save."""
        job_loop = self.job_loop()
        name = self.trains(job_loop)
        self.measures(name)
        return job_loop, name

    def measures(self, name: str, step: int = 30, term: Term = Term(1)) -> None:  # noqa: B008 - a number
        logged = {"term": term, "step": Step(step), "saved_step": Step(20), "step_s": Seconds(1.0)}
        self.speaks(name, costs=COSTS, **logged)


def test_a_machine_gets_its_schedule_soon_after_its_first_save() -> None:
    """Within the interval of the run's polls, not of the estimates': through a fact, a decision, and its directive."""
    house = Scheduled(Maker())
    job_loop, name = house.begins()
    house.turns(job_loop, 4.0 * PACE.run_s)

    assert house.voices.directives[name].schedule == ScheduleAssigned(
        SaveTable((100.0,), 500.0, 60.0, "it rests on 501 losses"), 20, Term(1)
    )
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    assert replay(rows) == []
    assert sum("schedule for" in line for line in explain(rows)) == 1
    assert (house.maker.requests[0].machine_id, house.maker.requests[0].costs) == (name, COSTS)


def test_a_schedule_is_reviewed_as_often_as_the_estimates() -> None:
    """A change is explained with its reason; nothing is logged where nothing has changed."""
    house = Scheduled(Maker())
    job_loop, name = house.begins()
    house.turns(job_loop, 5.0)
    asked = len(house.maker.requests)
    for _ in range(20):
        house.measures(name)
        house.turns(job_loop, 3.0)
    again = len(house.maker.requests) - asked
    assert 1 <= again <= 2
    house.maker.reason = "stall is 2 s, planned with 9 s"
    for _ in range(25):
        house.measures(name)
        house.turns(job_loop, 3.0)
    text = "\n".join(explain(codec.row_from_line(line) for line in house.journal.lines))
    assert f"new schedule for {name}: stall is 2 s, planned with 9 s" in text


def test_the_job_loop_does_not_wait_for_a_schedule() -> None:
    """It turns as ever while one is made, asks for no second one meanwhile, and takes it when it comes."""
    house = Scheduled(Maker())
    house.hold = True
    job_loop, name = house.begins()
    for _ in range(10):
        house.measures(name)
        house.turns(job_loop, 3.0)
    assert (len(house.held), house.voices.directives[name].schedule) == (1, None)

    house.held[0]()
    house.turns(job_loop, 2.0)
    assert house.voices.directives[name].schedule is not None


def test_a_failure_to_build_a_schedule_is_logged_once_and_retried() -> None:
    """The job goes on, by the default rule, and has its schedule when the failure is over."""
    for fault in (StoreUnreachable("the database does not answer"), ZeroDivisionError("nobody foresaw it")):
        house = Scheduled(Maker(fault=fault))
        job_loop, name = house.begins()
        for _ in range(5):
            house.measures(name)
            house.turns(job_loop, 3.0)
        assert len(house.maker.requests) > 1
        assert len([message for message in house.logged if str(fault) in message]) == 1
        assert driver.phase(job_loop.state) == "running"
        house.maker.fault = None
        house.measures(name)
        house.turns(job_loop, 3.0)
        assert house.voices.directives[name].schedule is not None


def test_what_keeps_failing_is_tried_less_and_less_often() -> None:
    """A fit costs seconds of the controller: it is not begun every few seconds for ever."""
    house = Scheduled(Maker(fault=ZeroDivisionError("nobody foresaw it")))
    job_loop, name = house.begins()
    for _ in range(40):
        house.measures(name)
        house.turns(job_loop, 3.0)
    assert 2 <= len(house.maker.requests) <= 3.0 * 40 / PACE.estimates_s + 6


def test_a_process_that_can_have_no_more_threads_still_conducts_the_job() -> None:
    """Its turns go on, and the schedule follows when there is room."""
    house = Scheduled(Maker())
    job_loop, name = house.begins()
    house.full = True
    house.turns(job_loop, 5.0)
    assert len([message for message in house.logged if "can't start new thread" in message]) == 1
    house.full = False
    for _ in range(4):
        house.measures(name)
        house.turns(job_loop, 3.0)
    assert house.voices.directives[name].schedule is not None


def test_a_machine_that_took_the_run_again_is_looked_at_at_once() -> None:
    """What it had was made for its last holding: it is not left without a schedule until the beliefs are looked at."""
    house = Scheduled(Maker(reason="the run was taken up again at step 20"))
    job_loop, name = house.begins()
    house.turns(job_loop, 4.0 * PACE.run_s)
    assert house.voices.directives[name].schedule.term == 1
    house.measures(name, term=Term(2))
    house.turns(job_loop, 4.0 * PACE.run_s)
    assert house.voices.directives[name].schedule.term == 2


def test_a_controller_that_restarts_knows_the_schedules() -> None:
    """It tells them at its first word, and makes none anew without a reason."""
    house = Scheduled(Maker())
    job_loop, name = house.begins()
    house.turns(job_loop, 5.0)
    told = house.voices.directives[name].schedule

    again = house.job_loop()
    again.turn()
    assert house.voices.directives[name].schedule == told
    house.measures(name)
    house.turns(again, 5.0)
    assert house.maker.requests[-1].before is not None


WISH = ScheduleRequest(
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
    started = WallTime(1e6)
    return [
        Lifetime(f"x{number}", "sim", "m4", "a", started, WallTime(started + 600.0 * (number + 1)), True, False)
        for number in range(count)
    ]


def test_a_controller_without_the_packages_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install, and how machines save until then."""
    monkeypatch.setitem(sys.modules, "windfall.policies.checkpointing.live_schedules", None)
    monkeypatch.delattr(checkpointing, "live_schedules", raising=False)
    schedules = Schedules(lambda: lives(40), VirtualClock(Timeline()))

    made = schedules.make_schedule(WISH)
    assert made is not None
    assert not made.trusted
    assert install("lab") in made.schedule.table.explanation
    assert made.schedule.table.explanation.endswith("the default rule decides")
    assert schedules.make_schedule(replace(WISH, before=made)) is None


def test_lifetimes_are_refitted_when_a_twentieth_more_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit takes seconds: most requests need none."""
    rows = lives(40)
    fitted: list[int] = []

    def fit_provider(known: Sequence[Lifetime], now: WallTime, provider: str) -> live_schedules.ProviderFit:
        fitted.append(len(known))
        return live_schedules.ProviderFit(None, no_fit_reason="it is a test")

    monkeypatch.setattr(live_schedules, "fit_provider", fit_provider)
    schedules = Schedules(lambda: rows, VirtualClock(Timeline()))
    for count in (40, 41, 42, 43, 44, 46):
        rows[:] = lives(count)
        schedules.make_schedule(WISH)
    assert fitted == [40, 43, 46]


class Weighed(House):
    """A house whose bag gets the ages of its machines weighed."""

    def __init__(self, fresh_s: float) -> None:
        bag = Bag(1000, ("x",), ("rows",), 10_000)
        runtime = RuntimeSpec("bag", bag_rules.settings_of(bag))
        super().__init__(fleet="explore", runtime=runtime, work=Work(1000.0, Unit.ITEM))
        self.fresh_s = fresh_s
        self.asked: list[AgeRequest] = []

    def ports(self) -> JobLoopPorts:
        return dataclasses.replace(super().ports(), weigh=self.weigh, in_background=lambda call: call())

    def weigh(self, request: AgeRequest) -> AgeWeighed:
        self.asked.append(request)
        return AgeWeighed(request.machine_id, request.age_s, request.item_s, 6590.0, self.fresh_s)


@pytest.mark.parametrize(("fresh_s", "machines"), [(4038.0, 2), (7000.0, 1)])
def test_a_machine_that_runs_long_items_is_weighed_and_replaced_if_it_is_too_old(fresh_s: float, machines: int) -> None:
    """The answer is a fact of the journal, from which the same decision follows again; it is asked for once at first."""
    house = Weighed(fresh_s)
    job_loop = house.job_loop()
    house.turns(job_loop, 10.0)
    (machine,) = house.alive
    house.speaks(machine.machine_id, step_s=Seconds(3600.0))
    house.turns(job_loop, 30.0)

    assert [(one.machine_id, one.item_s) for one in house.asked] == [(machine.machine_id, 3600.0)]
    assert len(house.alive) == machines
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    assert sum(isinstance(fact, AgeWeighed) for row in rows for fact in row.facts) == 1
    assert replay(rows) == []
