"""One job's loop: what it decides is durable before it is done, and no crash buys twice or forgets."""

from __future__ import annotations

import pytest

from tests.control.house import PACE, House, run_state
from windfall import codec
from windfall.core import driver
from windfall.errors import ControllerReplaced, Misuse
from windfall.fleet import (
    Event,
    JobPhase,
    JobResumeRequested,
    JobStopRequested,
    MachineStatus,
    PlaceOrder,
    ReleaseMachine,
)
from windfall.jobs import Objective
from windfall.market import MachineLifecycle
from windfall.terms import Outcome, Seconds, Usd


def test_a_job_is_bought_run_released_and_settled() -> None:
    """From the submission to a closed bill: one machine, given back once the run is done; then nothing is left to do."""
    house = House(bill_lag_s=5.0)
    job_loop = house.job_loop()
    house.trains(job_loop)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(job_loop, 30.0)

    assert driver.phase(job_loop.state) is JobPhase.DONE
    assert (house.made, house.alive, house.notified) == (1, (), [Event.DONE])
    assert job_loop.ended
    assert job_loop.summary().money.unsettled == 0


def test_an_order_is_durable_before_the_call() -> None:
    """A journal that cannot take the row lets nothing be bought."""
    house = House()
    job_loop = house.job_loop()
    house.faults.out = {"append"}
    with pytest.raises(Exception, match="append"):
        house.turns(job_loop, 5.0)

    assert (house.made, house.bought) == (0, [])


@pytest.mark.parametrize("fault", ["unsent", "lost"])
@pytest.mark.parametrize("call", ["append", "order", "list", "release", "charges", "record_lifetimes"])
def test_a_crash_at_any_call_buys_nothing_twice_and_forgets_nothing(call: str, fault: str) -> None:
    """Whichever call fails, done or not: one machine, given back, and the whole bill; what was drained is not missed."""
    for number in range(40):
        house = House()
        house.faults.plan[call] = [None] * number + [fault]
        job_loop = house.works(20.0)
        (machine,) = house.alive
        house.speaks(machine.machine_id)
        house.run.state = run_state(Outcome.RUNNING, machine.machine_id)
        job_loop = house.works(4.0)
        house.speaks(machine.machine_id)  # machines repeat themselves
        house.turns(job_loop, 4.0)
        assert driver.phase(job_loop.state) is JobPhase.RUNNING
        house.run.state = run_state(Outcome.DONE, None)
        job_loop = house.works(200.0)

        assert (house.made, house.alive) == (1, ()), f"{call} number {number} {fault}"
        assert job_loop.ended
        assert job_loop.summary().money.unsettled == 0
        if house.faults.plan[call]:
            break  # there are not so many such calls in a job's life


def test_an_order_whose_answer_could_not_be_written_down_is_found_in_the_listing() -> None:
    """The database goes away between the call and its row: the machine is adopted, and the order is never sent again."""
    house = House()
    job_loop = house.job_loop()
    while not house.made:
        house.faults.out = {"append"} if house.faults.calls["order"] else set()
        job_loop.turn()
        if any(isinstance(command, PlaceOrder) for command in last_row(house).commands):
            break
        house.timeline.pass_time(0.5)
    assert house.made == 1
    house.journal.lines = house.journal.lines[: number_of_the_order(house)]  # what came behind it was never written

    again = house.job_loop()
    house.turns(again, 20.0)

    assert house.made == 1
    assert list(driver.known_machines(again.state)) == [machine.machine_id for machine in house.alive]
    assert set(house.bought) == {"gpt-1-1"}


def number_of_the_order(house: House) -> int:
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    return next(row.sequence for row in rows if any(isinstance(one, PlaceOrder) for one in row.commands))


def last_row(house: House):  # type: ignore[no-untyped-def]
    return codec.row_from_line(house.journal.lines[-1])


def test_what_the_last_row_ordered_is_done_after_a_crash() -> None:
    """The controller dies between the row that gives a machine back and the call."""
    house = House()
    job_loop = house.job_loop()
    house.trains(job_loop)
    house.run.state = run_state(Outcome.DONE, None)
    house.faults.out = {"release"}
    while not any(isinstance(command, ReleaseMachine) for command in last_row(house).commands):
        job_loop.turn()
        house.timeline.pass_time(0.5)
    assert house.alive

    house.faults.out = set()
    house.turns(house.job_loop(), 5.0)
    assert house.alive == ()


def test_a_decided_notification_is_sent_after_a_crash() -> None:
    """The last row may not have been executed: two notifications are better than none."""
    house = House(capacity=0)
    house.turns(house.job_loop(), 5.0)
    assert house.notified == [Event.WAITING]
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    told = next(row.sequence for row in rows if any(type(one).__name__ == "NotifyUser" for one in row.commands))
    house.journal.lines = house.journal.lines[:told]

    house.job_loop()
    assert house.notified == [Event.WAITING, Event.WAITING]


def test_a_lack_of_offers_is_notified_once() -> None:
    """Repeated refusals are not news; a refusal after a machine came and went is."""
    house = House(capacity=0)
    job_loop = house.job_loop()
    house.turns(job_loop, 600.0)
    assert house.faults.calls["order"] > 5
    assert house.notified == [Event.WAITING]

    house.market.limits.capacity.clear()
    house.turns(job_loop, 400.0)
    (machine,) = house.alive
    house.market.limits.capacity[("m4", "a", machine.reliability)] = 0
    house.market.take(machine.machine_id, None)
    house.turns(job_loop, 200.0)
    assert house.notified == [Event.WAITING, Event.PREEMPTED, Event.WAITING]


def test_the_bill_of_a_job_that_ended_is_asked_for_at_its_own_pace() -> None:
    """Even if the last line takes hours, it is not polled at every turn."""
    house = House(bill_lag_s=3000.0)
    job_loop = house.job_loop()
    house.trains(job_loop)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(job_loop, 20.0)
    assert driver.needs_bill(job_loop.state)
    house.faults.calls.clear()
    house.turns(job_loop, 1000.0)

    assert 1000.0 / PACE.settle_s - 2 <= house.faults.calls["charges"] <= 1000.0 / PACE.settle_s + 2
    assert not job_loop.ended


def test_a_bill_that_never_comes_does_not_keep_a_job_open_for_ever() -> None:
    """A day plus twice the provider's stated lag later the rest is left unsettled, and shown so."""
    house = House(bill_lag_s=100.0)
    job_loop = house.job_loop()
    house.trains(job_loop)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(job_loop, 20.0)
    house.faults.out = {"charges"}
    house.turns(job_loop, 400.0)
    assert not job_loop.ended
    house.timeline.pass_time(86_400.0)
    job_loop.turn()

    assert job_loop.ended
    assert job_loop.summary().money.unsettled == 1


def test_a_job_does_not_end_before_its_cancelled_orders_reach_the_provider() -> None:
    """The order gets no answer, the job is stopped, the cancel is lost: it is repeated before the job ends."""
    house = House()
    job_loop = house.job_loop()
    house.faults.out = {"order", "cancel"}
    house.turns(job_loop, 5.0)
    job_loop.requests.put(JobStopRequested(False, "ada"))
    house.turns(job_loop, 20.0)
    assert driver.phase(job_loop.state) is JobPhase.STOPPED
    assert not job_loop.ended

    house.faults.out = set()
    house.turns(job_loop, 40.0)
    assert job_loop.ended
    assert "gpt-1-1" in house.market._cancelled


def test_a_stop_that_never_arrived_does_not_stop_a_resumed_job() -> None:
    """The store is unreachable while a job is stopped and resumed: the message must not reach the next machine."""
    house = House()
    job_loop = house.job_loop()
    house.trains(job_loop)
    house.faults.out = {"stop", "observe", "declare_gone"}
    job_loop.requests.put(JobStopRequested(True, "ada"))
    house.turns(job_loop, 40.0)
    assert house.alive == ()
    assert driver.phase(job_loop.state) is JobPhase.STOPPED
    job_loop.requests.put(JobResumeRequested("ada"))
    house.turns(job_loop, 2.0)
    house.faults.out = set()
    house.turns(job_loop, 60.0)

    assert house.run.stops == []
    assert len(house.alive) == 1


def test_a_timer_outlives_the_controller() -> None:
    """A job's longest duration is kept although controllers come and go."""
    house = House(max_duration_s=Seconds(100.0))
    house.trains(house.job_loop())
    house.timeline.pass_time(60.0)
    again = house.job_loop()
    house.turns(again, 5.0)
    assert driver.phase(again.state) is JobPhase.RUNNING
    house.turns(again, 40.0)
    assert [stop[1] for stop in house.run.stops] == ["stopped at max_duration (100 s)"]


def test_a_missed_deadline_is_notified_once_and_stops_nothing() -> None:
    """It is an objective: the user is notified, and the job's status shows it."""
    house = House(objective=Objective(deadline_s=Seconds(50.0)))
    job_loop = house.job_loop()
    house.trains(job_loop)
    assert "deadline" not in job_loop.summary().message
    house.turns(job_loop, 40.0)
    house.speaks(house.alive[0].machine_id)
    again = house.job_loop()
    house.turns(again, 15.0)

    assert house.notified.count(Event.LATE) == 1
    assert again.summary().message == "1 machine training; its deadline has passed"
    assert again.summary().exit_code is None


def test_a_replaced_controller_does_nothing_more() -> None:
    """The journal says so at the next row: the turn raises, and nothing that the row ordered is done."""
    house = House()
    job_loop = house.job_loop()

    def replaced(line: str) -> None:
        raise ControllerReplaced("another one has it")

    house.journal.append = replaced  # type: ignore[method-assign]
    with pytest.raises(ControllerReplaced):
        house.turns(job_loop, 5.0)
    assert house.made == 0


def test_a_provider_with_an_invalid_file_does_not_block_the_others() -> None:
    """Its error is shown, and the other providers still sell."""

    class Broken:
        name = "local"

        def __getattr__(self, name: str) -> object:
            def call(*_: object) -> object:
                raise Misuse("market.yaml:3:1: no such key")

            return call

    house = House()
    house.providers["local"] = Broken()  # type: ignore[assignment]
    job_loop = house.job_loop()
    house.trains(job_loop)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(job_loop, 200.0)
    assert driver.phase(job_loop.state) is JobPhase.DONE
    assert job_loop.ended


def test_a_machine_without_reports_is_known_by_its_listing() -> None:
    """Machines are alive if the providers list them as running, with or without a report."""
    house = House()
    job_loop = house.job_loop()
    house.turns(job_loop, 1.0)
    assert job_loop.alive() == ()
    house.turns(job_loop, 9.0)
    (machine,) = house.alive
    assert machine.lifecycle is MachineLifecycle.RUNNING
    assert job_loop.alive() == (machine.machine_id,)
    house.speaks(machine.machine_id, MachineStatus.SETUP)
    job_loop.turn()
    assert set(house.voices.directives) == {machine.machine_id}


def test_a_job_whose_budget_is_spent_buys_nothing_when_resumed() -> None:
    """What its end would cost is counted before the purchase: it is stopped again, with the same message."""
    house = House(objective=Objective(budget_usd=Usd(0.076)))
    job_loop = house.job_loop()
    house.trains(job_loop)
    house.turns(job_loop, 120.0)
    house.run.state = run_state(Outcome.WAITING, None)
    house.turns(job_loop, 60.0)
    assert (driver.phase(job_loop.state), job_loop.summary().exit_code) == (JobPhase.STOPPED, 4)
    assert house.notified == [Event.OVER_BUDGET]

    job_loop.requests.put(JobResumeRequested("ada"))
    house.turns(job_loop, 60.0)
    assert (driver.phase(job_loop.state), job_loop.summary().exit_code) == (JobPhase.STOPPED, 4)
    assert job_loop.summary().message.startswith("stopped at the budget: 0.0")
    assert house.made == 1
    assert job_loop.summary().money.due_usd < 0.076
