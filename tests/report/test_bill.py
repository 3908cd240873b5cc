"""The bill of a job: its sums are the ledger's, each machine says what it cost and how it ended."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.report import story
from tests.report.market_story import BEGIN, gone, heard, journal, machine, opening, row, seen
from windfall.core import driver, ledger
from windfall.events import Row
from windfall.fleet import ChargesObserved, MachineStatus, PlaceOrder, PreemptionRequested, ReleaseMachine
from windfall.market import Charge, MachineEndCause
from windfall.report import bill as bill_module
from windfall.report import machine_timeline
from windfall.report.bill import MachineOutcome, as_json, bill
from windfall.structs import replace
from windfall.terms import Seconds, Usd, WallTime


def charge(name: str, usd: float, started: float, ended: float) -> Charge:
    return Charge(f"c-{name}", name, Usd(usd), WallTime(BEGIN + started), WallTime(BEGIN + ended), True, "gpt-1")


def story_rows() -> list[Row]:
    """One machine from 2 s to 102 s, taken by a rehearsal and billed; its successor since 92 s, not billed yet."""
    first = journal((0, opening()))
    token = next(command.order.token for command in first[0].commands if isinstance(command, PlaceOrder))
    taken = gone("m-1", token, MachineEndCause.PREEMPTED, 2, 102)
    early = [
        (0.0, opening()),
        (2.0, (seen(machine("m-1", token, started=WallTime(BEGIN + 2))),)),
        (5.0, (heard("m-1", MachineStatus.TRAINING),)),
        (
            90.0,
            (PreemptionRequested("m-1", Seconds(12.0), "ada"), heard("m-1", MachineStatus.TRAINING, preemption_at=102)),
        ),
    ]
    orders = [command for one in journal(*early) for command in one.commands if isinstance(command, PlaceOrder)]
    late = [
        (92.0, (seen(machine("m-2", orders[-1].order.token, started=WallTime(BEGIN + 92))),)),
        (103.0, (seen(taken),)),
        (104.0, (ChargesObserved((charge("m-1", 0.1, 2, 102),), "local", "1"),)),
    ]
    assert len(orders) == 2, "the announced end buys the second machine"
    return journal(*early, *late)


def test_the_numbers_are_those_one_finds_by_hand() -> None:
    """A tenth of a cent a second: 100 s billed, 20 s estimated, twice that on demand."""
    made = bill(story_rows(), WallTime(BEGIN + 112))

    assert made is not None
    assert made.sums.settled_usd == pytest.approx(0.1)
    assert made.sums.estimated_usd == pytest.approx(0.12)
    assert made.sums.due_usd == pytest.approx(0.12)
    assert made.sums.baseline_usd == pytest.approx(0.24)
    assert made.sums.hours == pytest.approx(120 / 3600)
    assert made.savings_percent == pytest.approx(50.0)
    assert [one.text for one in made.machines] == ["preempted (injected, 12 s of notice)", "running"]
    assert [one.settled_usd for one in made.machines] == [pytest.approx(0.1), None]


def test_a_machine_that_its_successor_replaced_counts_as_preempted() -> None:
    """It was released before its announced end: the outcome is found in the driver's state, not in a sentence."""
    story_so_far = [(one.at - BEGIN, one.facts) for one in story_rows()[:5]]
    token = next(
        fact.machines[0].token for _, facts in story_so_far for fact in facts if isinstance(fact, type(seen()))
    )
    rows = journal(
        *story_so_far,
        (100.0, (heard("m-2", MachineStatus.WAITING),)),
        (102.5, (heard("m-2", MachineStatus.TRAINING),)),
        (103.0, (seen(gone("m-1", token, MachineEndCause.RELEASED, 2, 103)),)),
    )
    made = bill(rows, WallTime(BEGIN + 110))

    assert [command.machine_id for one in rows for command in one.commands if isinstance(command, ReleaseMachine)] == [
        "m-1"
    ]
    assert made is not None
    assert [(one.outcome, one.detail, one.lost) for one in made.machines] == [
        (MachineOutcome.PREEMPTED, "injected, replaced in time", True),
        (MachineOutcome.RUNNING, "", False),
    ]


@pytest.mark.parametrize(
    ("cause", "outcome", "text"),
    [
        (MachineEndCause.EXPIRED, MachineOutcome.EXPIRED, "time limit"),
        (MachineEndCause.CANCELLED, MachineOutcome.CANCELLED, "cancelled past Windfall"),
    ],
)
def test_an_end_that_is_no_preemption_has_its_own_name(
    cause: MachineEndCause, outcome: MachineOutcome, text: str
) -> None:
    """A cluster's admin who reads "preempted" looks for a preemption in Slurm, and finds none."""
    token = story_rows()[1].facts[0].machines[0].token  # type: ignore[attr-defined]
    up = machine("m-1", token, started=WallTime(BEGIN + 2))
    rows = journal(
        (0.0, opening()),
        (2.0, (seen(up),)),
        (5.0, (heard("m-1", MachineStatus.TRAINING),)),
        (102.0, (seen(gone("m-1", token, cause, 2, 102)),)),
    )
    made = bill(rows, WallTime(BEGIN + 110))

    assert made is not None
    assert (made.machines[0].outcome, made.machines[0].text, made.machines[0].lost) == (outcome, text, True)
    assert machine_of(rows, 3, "m-1") == (False, 0)


def test_a_machine_replaced_before_its_time_limit_was_not_preempted() -> None:
    """Its successor took over in time, because the limit was known; the pool of lifetimes counts no preemption either."""
    token = story_rows()[1].facts[0].machines[0].token  # type: ignore[attr-defined]
    limited = machine("m-1", token, started=WallTime(BEGIN + 2), limit_at=WallTime(BEGIN + 102))
    early = [
        (0.0, opening()),
        (2.0, (seen(limited),)),
        (5.0, (heard("m-1", MachineStatus.TRAINING),)),
        (70.0, (heard("m-1", MachineStatus.TRAINING, preemption_at=102),)),
    ]
    orders = [command for one in journal(*early) for command in one.commands if isinstance(command, PlaceOrder)]
    ended = replace(gone("m-1", token, MachineEndCause.RELEASED, 2, 103), limit_at=limited.limit_at)
    rows = journal(
        *early,
        (72.0, (seen(machine("m-2", orders[-1].order.token, started=WallTime(BEGIN + 72))),)),
        (100.0, (heard("m-2", MachineStatus.WAITING),)),
        (102.5, (heard("m-2", MachineStatus.TRAINING),)),
        (103.0, (seen(ended),)),
    )
    made = bill(rows, WallTime(BEGIN + 110))

    assert made is not None
    assert [one.text for one in made.machines] == ["time limit (replaced in time)", "running"]
    assert machine_of(rows, len(rows) - 1, "m-1") == (False, 0)


def machine_of(rows: list[Row], number: int, name: str) -> tuple[bool, int]:
    """Whether a machine that ended in a row counts as preempted in the pool of lifetimes, and all preemptions so far."""
    state = driver.initial_state()
    for one in rows[:number]:
        state, _, _ = driver.react(state, one.at, one.facts)
    after, _, _ = driver.react(state, rows[number].at, rows[number].facts)
    (life,) = (one for one in driver.lifetimes(state, after, rows[number].facts) if one.machine_id == name)
    return life.preempted, after.preemptions


def test_the_machines_add_up_to_the_ledgers_sums() -> None:
    """The table and the totals are one and the same account, running or not."""
    rows = story_rows()
    state = driver.initial_state()
    for one in rows:
        state, _, _ = driver.react(state, one.at, one.facts)
    for second in (105, 112, 5000):
        now = WallTime(BEGIN + second)
        made = bill(rows, now)

        assert made is not None
        assert made.sums == ledger.totals(state.ledger, now)
        assert sum(one.estimated_usd for one in made.machines) == pytest.approx(made.sums.estimated_usd)
        assert sum(one.settled_usd or 0 for one in made.machines) == pytest.approx(made.sums.settled_usd)


def test_a_charge_that_nobody_can_explain_is_shown() -> None:
    """A line for a machine that the job never had is no part of its machines' cost, and is named."""
    stranger = ChargesObserved((charge("m-9", 5.0, 0, 10),), "local", "2")
    made = bill([*story_rows(), *journal_tail(stranger)], WallTime(BEGIN + 112))

    assert made is not None
    assert made.sums.unexplained_usd == pytest.approx(5.0)
    assert any("machines that this job never had" in line for line in bill_module.sums(made, None))
    assert len(made.machines) == 2


def test_a_bill_that_differs_is_disputed() -> None:
    """Half a dollar for ten cents' worth is marked, in the table and in the sums."""
    wrong = ChargesObserved((charge("m-1", 0.5, 2, 102),), "local", "2")
    made = bill([*story_rows(), *journal_tail(wrong)], WallTime(BEGIN + 112))

    assert made is not None
    assert [one.disputed for one in made.machines] == [True, False]
    assert any(
        "disputed  1 machine, billed 0.4000 USD off the estimate" in line for line in bill_module.sums(made, None)
    )


def journal_tail(fact: ChargesObserved) -> list[Row]:
    return [row(105, fact)]


def test_nothing_is_billed_before_the_first_row() -> None:
    """A job without a journal has no bill."""
    assert bill([], WallTime(BEGIN)) is None


def test_the_bill_fits_a_terminal() -> None:
    """Tables and lives keep to 80 columns, and name every machine."""
    made = bill(story_rows(), WallTime(BEGIN + 112))
    assert made is not None
    console = Console(width=80, record=True, file=io.StringIO(), highlight=False)

    console.print(bill_module.render(made, story.preempted_twice(), ""))
    shown = f"{console.export_text()}\n{machine_timeline.text(made, None)}"

    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert shown.count("m-1") == shown.count("m-2") == 2
    assert "saved 50 %" in shown


def test_lives_show_when_each_machine_was_paid_for() -> None:
    """One row a machine over one line of time; a cross where it was taken."""
    made = bill(story_rows(), WallTime(BEGIN + 112))
    assert made is not None

    first, second, *_ = machine_timeline.text(made, None, columns=117).splitlines()

    assert first == "m-1 |" + " " * 2 + ":" * 100 + "x"
    assert second == "m-2 |" + " " * 92 + ":" * 20


def test_the_json_names_units() -> None:
    """Every number of the bill says in its name what it is of."""
    made = bill(story_rows(), WallTime(BEGIN + 112))
    assert made is not None
    told = as_json(made)

    assert told["machines"][0]["settled_usd"] == pytest.approx(0.1)
    assert told["money"]["baseline_usd"] == pytest.approx(0.24)
    assert (told["machines"][0]["outcome"], told["machines"][0]["detail"]) == ("preempted", "injected, 12 s of notice")
