"""What `run` prints about machines: each event once, as a sentence, however often the journal has it."""

from __future__ import annotations

import pytest

from tests.report.market_story import BEGIN, OFFER, gone, heard, journal, machine, opening, row, seen
from tests.support.progress import observed
from windfall.fleet import (
    ControllerStarted,
    MachineSilent,
    MachineStatus,
    OrderAnswered,
    PlaceOrder,
    PreemptMachine,
    ReleaseMachine,
)
from windfall.market import MachineEndCause, MachineLifecycle, Order, Refusal
from windfall.report.event_log import EventLog
from windfall.terms import Outcome, Seconds, Term, WallTime


def told(*rows: object) -> list[str]:
    """All sentences of some rows."""
    happenings = EventLog()
    return [message for one in rows for message in happenings.of(one)]  # type: ignore[arg-type]


def test_a_notice_is_told_once_and_again_only_if_the_end_moves() -> None:
    """A countdown is no news; another end is."""
    rows = [
        row(t, heard("m-1", MachineStatus.TRAINING, preemption_at=end))
        for t, end in ((0, 30), (1, 30.4), (9, 31), (10, 60))
    ]

    assert told(*rows) == ["m-1 will be preempted in 30 s", "m-1 will be preempted in 50 s"]


def test_a_rehearsal_is_told_by_who_ordered_it() -> None:
    """The injector says so; that the machine then hears of its end is not told again."""
    rows = (
        row(0, commands=(PreemptMachine("m-1", "local", Seconds(8.0)),)),
        row(1, heard("m-1", MachineStatus.TRAINING, preemption_at=8)),
        row(9, seen(gone("m-1", "t", MachineEndCause.PREEMPTED, 0, 8))),
    )

    assert told(*rows) == ["injecting a preemption of m-1, 8 s of notice", "m-1 preempted"]


def test_a_machine_that_is_given_back_is_told_with_the_reason_and_not_again_when_it_is_gone() -> None:
    """Its end is what was ordered."""
    rows = (
        row(0, commands=(ReleaseMachine("m-1", "local", "the run is done"),)),
        row(1, seen(gone("m-1", "t", MachineEndCause.RELEASED, 0, 1))),
    )

    assert told(*rows) == ["releasing m-1: the run is done"]


def test_what_happens_to_many_machines_at_once_is_one_sentence() -> None:
    """Sixty machines are counted, three are named."""
    up = {"started": WallTime(BEGIN)}
    many = row(0, seen(*(machine(f"m-{number}", "t", **up) for number in range(60))))
    few = row(1, seen(*(machine(f"n-{number}", "t", **up) for number in range(3))))

    assert told(many, few) == [
        "60 machines, small in zone-a, are up, 3.6 USD/h",
        "n-0, n-1, n-2, small in zone-a, are up, 3.6 USD/h",
    ]


def test_a_step_is_stored_once_and_a_new_holder_is_named() -> None:
    """A look at the run that shows nothing new tells nothing."""
    looks = [
        observed(Outcome.RUNNING, 1, "m-1", 0, 0),
        observed(Outcome.RUNNING, 1, "m-1", 40, 0),
        observed(Outcome.WAITING, 1, None, 40, 0),
        observed(Outcome.RUNNING, 5, "m-2", 40, 0),
    ]

    assert told(*(row(number, look) for number, look in enumerate(looks))) == [
        "m-1 holds the run",
        "step 40 is stored",
        "m-2 holds the run, from step 40",
    ]


def test_a_refusal_is_told_until_it_changes() -> None:
    """The same refusal of the next attempt is no news."""
    full = OrderAnswered("t-1", (), Refusal.NO_CAPACITY, "no small left in zone-a")
    quota = OrderAnswered("t-3", (), Refusal.QUOTA, "quota 0 for small in zone-a")

    assert told(row(0, full), row(5, full), row(9, quota)) == [
        "order refused: no-capacity: no small left in zone-a",
        "order refused: quota: quota 0 for small in zone-a",
    ]


def test_an_order_says_what_it_costs() -> None:
    """Type, place, kind and price, and how many if it is more than one."""
    order = Order("gpt-1-1", "owner", "gpt-1", OFFER, 1, 4)

    assert told(row(0, commands=(PlaceOrder(order),))) == ["ordering 4 x small in zone-a (local, spot), 3.6 USD/h"]


def test_another_controller_is_told_but_the_first_is_not() -> None:
    """That a controller begins is news only if there was one before, and machines that it found running."""
    first, second = row(0, ControllerStarted(Term(1))), row(9, ControllerStarted(Term(2)))
    up = row(1, seen(machine("m-1", "t", started=WallTime(BEGIN))))
    end = row(5, seen(gone("m-1", "t", MachineEndCause.RELEASED, 0, 5)))

    assert told(first, up, second)[1:] == ["another controller took over; the machines kept running"]
    assert told(first, second) == []
    assert told(first, up, end, second)[1:] == []


def test_a_machine_that_cannot_do_the_job_is_told_once() -> None:
    """The driver's own sentence is printed, whatever its words; the report behind it adds no second one."""
    first = journal((0.0, opening()))
    token = next(command.order.token for command in first[0].commands if isinstance(command, PlaceOrder))
    rows = journal(
        (0.0, opening()),
        (2.0, (seen(machine("m-1", token, started=WallTime(BEGIN + 2))),)),
        (5.0, (heard("m-1", MachineStatus.FAILED, message="no GPU"),)),
        (6.0, (heard("m-1", MachineStatus.FAILED, message="no GPU"),)),
    )

    assert sum("no GPU" in sentence for sentence in told(*rows)) == 1


def test_a_pending_machine_is_not_up() -> None:
    """Only a machine that runs is told as running."""
    assert told(row(0, seen(machine("m-1", "t", MachineLifecycle.PENDING)))) == []


def test_why_a_machine_waits_is_told_once_for_each_reason() -> None:
    """A queue goes from one reason to another and back; that nobody hears from a machine in it is no news."""
    reasons = ("Resources: no fitting node is free", "Priority: other jobs come first")
    waits = [
        row(number, seen(machine("m-1", "t", MachineLifecycle.PENDING, pending_reason=reasons[number % 2])))
        for number in range(6)
    ]
    silent = row(7, MachineSilent("m-1", Seconds(600.0)))
    up = row(8, seen(machine("m-1", "t", started=WallTime(BEGIN + 8))))

    assert told(*waits, silent, up) == [
        f"m-1 is queued ({reasons[0]})",
        f"m-1 is queued ({reasons[1]})",
        "m-1, small in zone-a, is up, 3.6 USD/h",
    ]


@pytest.mark.parametrize(
    ("cause", "says"),
    [(MachineEndCause.EXPIRED, "m-1 at its time limit"), (MachineEndCause.CANCELLED, "m-1 cancelled past Windfall")],
)
def test_an_end_that_is_no_preemption_is_not_called_one(cause: MachineEndCause, says: str) -> None:
    """A time limit is known beforehand, and a person who cancels is no market."""
    up = row(0, seen(machine("m-1", "t", started=WallTime(BEGIN))))

    assert told(up, row(9, seen(gone("m-1", "t", cause, 0, 8))))[1:] == [says]
