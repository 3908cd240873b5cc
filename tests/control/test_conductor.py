"""One job's loop: what it decides is durable before it is done, and no crash buys twice or forgets."""

from __future__ import annotations

import pytest

from tests.control.house import PACE, House, run_state
from windfall import codec
from windfall.core import driver
from windfall.errors import ControllerReplaced, Misuse
from windfall.fleet import Doing, Event, JobPhase, PlaceOrder, ReleaseMachine, ResumeWanted, StopWanted
from windfall.jobs import Objective
from windfall.market import Life
from windfall.terms import Outcome, Seconds, Usd


def test_a_job_is_bought_run_released_and_settled() -> None:
    """From the submission to a closed bill: one machine, given back once the run is done; then nothing is left to do."""
    house = House(bill_lag_s=5.0)
    conductor = house.conductor()
    house.trains(conductor)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(conductor, 30.0)

    assert driver.phase(conductor.state) is JobPhase.DONE
    assert (house.made, house.alive, house.told) == (1, (), [Event.DONE])
    assert conductor.ended
    assert conductor.summary().money.unsettled == 0


def test_the_wish_to_buy_is_durable_before_the_call() -> None:
    """A journal that cannot take the row lets nothing be bought."""
    house = House()
    conductor = house.conductor()
    house.faults.out = {"append"}
    with pytest.raises(Exception, match="append"):
        house.turns(conductor, 5.0)

    assert (house.made, house.bought) == (0, [])


@pytest.mark.parametrize("fault", ["unsent", "lost"])
@pytest.mark.parametrize("call", ["append", "order", "list", "release", "charges", "record_lives"])
def test_a_crash_at_any_call_buys_nothing_twice_and_forgets_nothing(call: str, fault: str) -> None:
    """Whichever call fails, done or not: one machine, given back, and the whole bill; what was drained is not missed."""
    for number in range(40):
        house = House()
        house.faults.plan[call] = [None] * number + [fault]
        conductor = house.works(20.0)
        (machine,) = house.alive
        house.speaks(machine.machine_id)
        house.run.state = run_state(Outcome.RUNNING, machine.machine_id)
        conductor = house.works(4.0)
        house.speaks(machine.machine_id)  # machines repeat themselves
        house.turns(conductor, 4.0)
        assert driver.phase(conductor.state) is JobPhase.RUNNING
        house.run.state = run_state(Outcome.DONE, None)
        conductor = house.works(200.0)

        assert (house.made, house.alive) == (1, ()), f"{call} number {number} {fault}"
        assert conductor.ended
        assert conductor.summary().money.unsettled == 0
        if house.faults.plan[call]:
            break  # there are not so many such calls in a job's life


def test_an_order_whose_answer_could_not_be_written_down_is_found_in_the_listing() -> None:
    """The database goes away between the call and its row: the machine is adopted, and the order is never asked anew."""
    house = House()
    conductor = house.conductor()
    while not house.made:
        house.faults.out = {"append"} if house.faults.calls["order"] else set()
        conductor.turn()
        if any(isinstance(command, PlaceOrder) for command in last_row(house).commands):
            break
        house.timeline.pass_time(0.5)
    assert house.made == 1
    house.journal.lines = house.journal.lines[: number_of_the_order(house)]  # what came behind it was never written

    again = house.conductor()
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
    conductor = house.conductor()
    house.trains(conductor)
    house.run.state = run_state(Outcome.DONE, None)
    house.faults.out = {"release"}
    while not any(isinstance(command, ReleaseMachine) for command in last_row(house).commands):
        conductor.turn()
        house.timeline.pass_time(0.5)
    assert house.alive

    house.faults.out = set()
    house.turns(house.conductor(), 5.0)
    assert house.alive == ()


def test_a_notification_that_was_decided_is_told_after_a_crash() -> None:
    """The last row may not have been carried out: better told twice than never."""
    house = House(capacity=0)
    house.turns(house.conductor(), 5.0)
    assert house.told == [Event.WAITING]
    rows = [codec.row_from_line(line) for line in house.journal.lines]
    told = next(row.sequence for row in rows if any(type(one).__name__ == "NotifyUser" for one in row.commands))
    house.journal.lines = house.journal.lines[:told]

    house.conductor()
    assert house.told == [Event.WAITING, Event.WAITING]


def test_that_nothing_can_be_had_is_told_once() -> None:
    """It is asked for again and again in vain, which is no news; it is news after a machine came and went."""
    house = House(capacity=0)
    conductor = house.conductor()
    house.turns(conductor, 600.0)
    assert house.faults.calls["order"] > 5
    assert house.told == [Event.WAITING]

    house.market.shelf.capacity.clear()
    house.turns(conductor, 400.0)
    (machine,) = house.alive
    house.market.shelf.capacity[("m4", "a", machine.reliability)] = 0
    house.market.take(machine.machine_id, None)
    house.turns(conductor, 200.0)
    assert house.told == [Event.WAITING, Event.PREEMPTED, Event.WAITING]


def test_the_bill_of_a_job_that_ended_is_asked_for_at_its_own_pace() -> None:
    """Hours until a cloud's last line are no reason to ask for it at every turn."""
    house = House(bill_lag_s=3000.0)
    conductor = house.conductor()
    house.trains(conductor)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(conductor, 20.0)
    assert driver.wants_bill(conductor.state)
    house.faults.calls.clear()
    house.turns(conductor, 1000.0)

    assert 1000.0 / PACE.settle_s - 2 <= house.faults.calls["charges"] <= 1000.0 / PACE.settle_s + 2
    assert not conductor.ended


def test_a_bill_that_never_comes_does_not_keep_a_job_open_for_ever() -> None:
    """A day and twice the provider's own word later the rest is left unsettled, and shown so."""
    house = House(bill_lag_s=100.0)
    conductor = house.conductor()
    house.trains(conductor)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(conductor, 20.0)
    house.faults.out = {"charges"}
    house.turns(conductor, 400.0)
    assert not conductor.ended
    house.timeline.pass_time(86_400.0)
    conductor.turn()

    assert conductor.ended
    assert conductor.summary().money.unsettled == 1


def test_a_job_does_not_end_while_a_provider_has_not_heard_of_a_cancelled_order() -> None:
    """The order is answered by nobody, the job is stopped, the cancel is lost: it is repeated before all is left alone."""
    house = House()
    conductor = house.conductor()
    house.faults.out = {"order", "cancel"}
    house.turns(conductor, 5.0)
    conductor.wishes.put(StopWanted(False, "ada"))
    house.turns(conductor, 20.0)
    assert driver.phase(conductor.state) is JobPhase.STOPPED
    assert not conductor.ended

    house.faults.out = set()
    house.turns(conductor, 40.0)
    assert conductor.ended
    assert "gpt-1-1" in house.market._cancelled


def test_a_stop_that_never_arrived_does_not_stop_who_is_let_go_on() -> None:
    """The store is away while a job is stopped and resumed: the message must not reach the next machine."""
    house = House()
    conductor = house.conductor()
    house.trains(conductor)
    house.faults.out = {"stop", "observe", "declare_gone"}
    conductor.wishes.put(StopWanted(True, "ada"))
    house.turns(conductor, 40.0)
    assert house.alive == ()
    assert driver.phase(conductor.state) is JobPhase.STOPPED
    conductor.wishes.put(ResumeWanted("ada"))
    house.turns(conductor, 2.0)
    house.faults.out = set()
    house.turns(conductor, 60.0)

    assert house.run.stops == []
    assert len(house.alive) == 1


def test_a_wish_to_be_woken_outlives_the_controller() -> None:
    """A job's longest duration is kept although controllers come and go."""
    house = House(max_duration_s=Seconds(100.0))
    house.trains(house.conductor())
    house.timeline.pass_time(60.0)
    again = house.conductor()
    house.turns(again, 5.0)
    assert driver.phase(again.state) is JobPhase.RUNNING
    house.turns(again, 40.0)
    assert [stop[1] for stop in house.run.stops] == ["stopped at max_duration (100 s)"]


def test_a_deadline_that_passes_is_told_once_and_stops_nothing() -> None:
    """It is an objective: the user hears of it, wherever they are, and reads it beside what the job does."""
    house = House(objective=Objective(deadline_s=Seconds(50.0)))
    conductor = house.conductor()
    house.trains(conductor)
    assert "deadline" not in conductor.summary().sentence
    house.turns(conductor, 40.0)
    house.speaks(house.alive[0].machine_id)
    again = house.conductor()
    house.turns(again, 15.0)

    assert house.told.count(Event.LATE) == 1
    assert again.summary().sentence == "machines: 1 training; its deadline has passed"
    assert again.summary().exit_code is None


def test_a_controller_that_was_replaced_does_nothing_more() -> None:
    """The journal says so at the next row: the turn raises, and nothing that the row ordered is done."""
    house = House()
    conductor = house.conductor()

    def replaced(line: str) -> None:
        raise ControllerReplaced("another one has it")

    house.journal.append = replaced  # type: ignore[method-assign]
    with pytest.raises(ControllerReplaced):
        house.turns(conductor, 5.0)
    assert house.made == 0


def test_a_provider_whose_own_file_is_wrong_stands_in_nobodys_way() -> None:
    """What a provider says of its configuration is shown, and the others are bought from."""

    class Broken:
        name = "local"

        def __getattr__(self, name: str) -> object:
            def call(*_: object) -> object:
                raise Misuse("market.yaml:3:1: no such key")

            return call

    house = House()
    house.providers["local"] = Broken()  # type: ignore[assignment]
    conductor = house.conductor()
    house.trains(conductor)
    house.run.state = run_state(Outcome.DONE, None)
    house.turns(conductor, 200.0)
    assert driver.phase(conductor.state) is JobPhase.DONE
    assert conductor.ended


def test_a_machine_that_runs_and_never_speaks_is_known_by_its_listing() -> None:
    """What is alive is what the providers list as running, whether it spoke or not."""
    house = House()
    conductor = house.conductor()
    house.turns(conductor, 1.0)
    assert conductor.alive() == ()
    house.turns(conductor, 9.0)
    (machine,) = house.alive
    assert machine.life is Life.RUNNING
    assert conductor.alive() == (machine.machine_id,)
    house.speaks(machine.machine_id, Doing.SETUP)
    conductor.turn()
    assert set(house.voices.told) == {machine.machine_id}


def test_a_job_whose_budget_is_spent_buys_nothing_when_it_is_let_go_on() -> None:
    """What its end would cost is counted before the purchase: it is stopped again, with the same sentence."""
    house = House(objective=Objective(budget_usd=Usd(0.076)))
    conductor = house.conductor()
    house.trains(conductor)
    house.turns(conductor, 120.0)
    house.run.state = run_state(Outcome.WAITING, None)
    house.turns(conductor, 60.0)
    assert (driver.phase(conductor.state), conductor.summary().exit_code) == (JobPhase.STOPPED, 4)
    assert house.told == [Event.OVER_BUDGET]

    conductor.wishes.put(ResumeWanted("ada"))
    house.turns(conductor, 60.0)
    assert (driver.phase(conductor.state), conductor.summary().exit_code) == (JobPhase.STOPPED, 4)
    assert conductor.summary().sentence.startswith("stopped at the budget: 0.0")
    assert house.made == 1
    assert conductor.summary().money.due_usd < 0.076
