"""The functions that read a live history read a simulated one, and report what happened."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.engine_world import NOTICE, estimates, scenario
from windfall import codec
from windfall.core import replay
from windfall.events import Row, StepsMeasured
from windfall.models.job_measurements import measure
from windfall.report import account_tables, attempt_timeline
from windfall.report.account import STAMP_S, Account, Lease, account
from windfall.report.bill import bill
from windfall.report.event_log import EventLog
from windfall.report.interval_kinds import Kind
from windfall.report.step_counts import StepRange as Figure
from windfall.simulation import engine
from windfall.simulation.scenario import DurationRange, MemorylessLifetimes, RecordedLifetimes
from windfall.simulation.virtual_time import WALL_START
from windfall.structs import replace
from windfall.terms import Cause, RecordKind, Term, WallTime

LOST = scenario((100.0,))
"""Lost at 110 s without a word: 14 steps are made again."""
SAVED = scenario((60.5,), notice_s=60.0, **NOTICE)
"""An emergency save at step 39."""
MANY = scenario(
    MemorylessLifetimes((90.0,)),
    notice_s=30.0,
    announced_share=0.5,
    policy="adaptive",
    stall_s=DurationRange(1.0, 3.0),
    estimates=estimates(mttp_s=90.0),
)


def _read(found: engine.History) -> Account:
    """Make the account as `windfall cost` does: rows by term, and the log of each."""
    rows: dict[Term, list[Row]] = {}
    for row in found.run_rows:
        rows.setdefault(row.term, []).append(row)
    # Every row arrives in a simulated store: a machine that vanishes does nothing after its last, whatever a stamp leaves open.
    gone = {term: WallTime(told[-1].wall_time - STAMP_S) for term, told in rows.items()}
    return account(rows, [replace(one, gone_at=gone.get(one.term)) for one in _leases(found)])


def _leases(found: engine.History) -> list[Lease]:
    leases: dict[Term, Lease] = {}
    for record in found.records:
        state = record.state
        if record.kind is RecordKind.ACQUIRE and state.holder is not None:
            leases[state.term] = Lease(state.term, state.holder.host, state.holder_since)
        else:
            acquired = leases[state.term]
            leases[state.term] = Lease(
                acquired.term, acquired.holder, acquired.acquired_at, record.wall_time, state.losses[-1].cause
            )
    return list(leases.values())


def test_the_account_counts_the_steps_that_were_made_again() -> None:
    """Fourteen of them, because the machine vanished; the new one finished the run."""
    made = _read(engine.history(LOST))
    assert (made.steps, made.steps_redone) == (100, Figure(14, 14))
    assert [(loss.cause, loss.steps.low, loss.redone) for loss in made.losses] == [(Cause.VANISHED, 14, 14)]
    assert [lease.holder for lease in made.leases] == ["local-1", "local-2"]
    assert [(saves.kind.value, saves.count) for saves in made.saves] == [("insurance", 4)]


def test_the_account_divides_the_time_as_the_trial_does() -> None:
    """Work and training that was lost, standstills, and the gap of 30 s between the machines."""
    found = engine.history(LOST)
    made, trial = _read(found), found.trial
    assert made.of(Kind.COMPUTE) + made.of(Kind.REDO) == pytest.approx(100.0 + trial.redo_s, abs=1e-6)
    assert made.of(Kind.REDO) == pytest.approx(14.0, abs=1e-6)
    assert made.of(Kind.SAVE) == pytest.approx(trial.save_s, abs=1e-6)
    assert made.of(Kind.WAITING) == pytest.approx(30.0, abs=1e-6)
    assert made.total_s == pytest.approx(trial.finish_s - 30.0, abs=1e-6)


def test_the_account_of_an_announced_loss_has_its_notice_and_no_step_made_again() -> None:
    """The emergency save is stored while the ranks stand still: that is time for saving."""
    found = engine.history(SAVED)
    made = _read(found)
    assert (made.steps_redone, made.of(Kind.SAVE)) == (Figure(0, 0), pytest.approx(found.trial.save_s, abs=1e-6))
    assert [loss.cause for loss in made.losses] == [Cause.PREEMPTED_SAVED]
    assert [(seen.level.value, seen.at - WALL_START, (seen.deadline or 0.0) - WALL_START) for seen in made.notices] == [
        ("announced", pytest.approx(70.5), pytest.approx(130.5))
    ]


def test_a_machine_that_has_nothing_left_to_store_lets_go_at_its_announced_end() -> None:
    """Four seconds of notice are too few: it trains on until it is gone, at 74.5 s, and says that its steps are lost."""
    found = engine.history(scenario((60.5,), notice_s=4.0, policy="never", **NOTICE))
    (lost,) = _read(found).losses
    assert (lost.cause, lost.steps.low, lost.at - WALL_START) == (Cause.PREEMPTED_UNSAVED, 44, 74.5)
    released = [record for record in found.records if record.kind is RecordKind.RELEASE]
    assert [record.wall_time - WALL_START for record in released] == [74.5, found.trial.finish_s]


def test_superseded_points_are_given_up_at_the_end_at_the_latest() -> None:
    """Of nineteen checkpoints the newest two are live when the run is done."""
    found = engine.history(scenario(steps=400))
    state = found.records[-1].state
    assert [checkpoint.step for checkpoint in state.checkpoints] == [360, 380]


@pytest.mark.parametrize("number", range(20))
def test_any_trial_s_account_agrees_with_its_sums(number: int) -> None:
    """Steps made again, time by kind, commits: whatever is lost, and when."""
    found = engine.history(MANY, seed=3, trial=number)
    made, trial = _read(found), found.trial
    assert made.steps == 100
    holding_s = sum(made.of(kind) for kind in (Kind.COMPUTE, Kind.REDO, Kind.SAVE, Kind.OTHER))
    assert holding_s == pytest.approx(100.0 + trial.redo_s + trial.save_s, abs=1e-5)
    cut_short_s = trial.save_s - made.of(Kind.SAVE)  # no row records a stall that a loss ended
    assert -1e-5 <= cut_short_s <= made.of(Kind.OTHER) + 1e-5
    begun_s = trial.redo_s - made.steps_redone.low  # at most one step of a second that each loss cut short
    assert -1e-6 <= begun_s <= trial.preemptions
    stored = sum(save.committed for save in trial.saves)
    assert stored <= len(made.commits) <= stored + 2  # what is on its way at the end arrives at once in the journal


def test_the_bill_is_what_the_trial_was_billed() -> None:
    """3.60 USD an hour: a tenth of a cent for each second of each machine."""
    found = engine.history(LOST)
    made = bill(found.job_rows, found.job_rows[-1].wall_time)
    assert made is not None
    assert made.sums.due_usd == pytest.approx(found.trial.billed_s * 0.001, abs=1e-5)
    assert [(one.machine.machine_id, round(one.hours * 3600.0), one.text) for one in made.machines] == [
        ("local-1", 100, "preempted (no notice)"),
        ("local-2", 62, "released: the run is done"),
    ]


def test_every_machine_s_bill_is_settled_at_the_end() -> None:
    """What was estimated, what the provider wrote, and no dispute."""
    found = engine.history(MANY, seed=3, trial=1)
    made = bill(found.job_rows, found.job_rows[-1].wall_time)
    assert made is not None
    assert made.phase.value == "done"
    for one in made.machines:
        assert one.settled_usd == pytest.approx(one.estimated_usd, abs=2e-6)
        assert not one.disputed


def test_the_happenings_tell_the_story_in_sentences() -> None:
    """Bought, up, trained, lost, replaced, done."""
    happenings, rows = EventLog(), engine.history(LOST).job_rows
    told = [message for row in rows for message in happenings.of(row)]
    assert told == [
        "ordering machine-0 in simulated (local, spot), 3.6 USD/h",
        "local-1, machine-0 in simulated, is up, 3.6 USD/h",
        "local-1 holds the run",
        "step 60 is stored",
        "local-1 preempted",
        "ordering machine-0 in simulated (local, spot), 3.6 USD/h",
        "local-2, machine-0 in simulated, is up, 3.6 USD/h",
        "local-2 holds the run, from step 60",
        "step 80 is stored",
        "releasing local-2: the run is done",
    ]


def test_the_decisions_are_explained_as_live_ones_are() -> None:
    """Why an emergency save was made, with the numbers compared; why a machine was bought."""
    found = engine.history(SAVED)
    saves, buys = "\n".join(replay.explain(found.run_rows)), "\n".join(replay.explain(found.job_rows))
    assert "emergency save at step 39" in saves
    assert "remaining = 60 s" in saves
    assert "order 1 machine-0 in simulated at 3.6 USD/h  (replacement, version 1)" in buys
    assert "notice left = 60 s" in buys


def test_both_journals_fed_back_decide_the_same() -> None:
    """What `windfall replay` checks of a live journal holds of a simulated one; three machines or one."""
    for job in (
        LOST,
        SAVED,
        MANY,
        scenario(RecordedLifetimes(((100.0,), (60.5,))), machines=3, notice_s=30.0, **NOTICE),
    ):
        found = engine.history(job)
        assert replay.replay(found.run_rows) == []
        assert replay.replay(found.job_rows) == []


def test_rows_survive_the_codec() -> None:
    """A journal written and read back is the same, with one sequence for each term."""
    found = engine.history(SAVED)
    for rows in (found.run_rows, found.job_rows):
        assert tuple(codec.row_from_line(codec.row_to_line(row)) for row in rows) == rows
        _check_sequences(rows)


def _check_sequences(rows: Sequence[Row]) -> None:
    expected: dict[Term, int] = {}
    for row in rows:
        expected[row.term] = expected.get(row.term, 0) + 1
        assert row.sequence == expected[row.term]
        assert row.wall_time >= WALL_START


def test_the_windows_of_steps_cover_every_step_of_every_machine() -> None:
    """One hundred steps that stay, and those that were made for nothing."""
    found = engine.history(MANY, seed=3, trial=2)
    windows = [fact for row in found.run_rows for fact in row.facts if isinstance(fact, StepsMeasured)]
    made = _read(found)
    assert sum(window.count for window in windows) == 100 + made.steps_redone.low
    assert {round(window.mean_s, 9) for window in windows} == {1.0}


def test_a_simulated_job_can_be_measured_like_a_live_one() -> None:
    """A second for a step, 10 s from the order to the start, 20 s to be ready: what went in comes out."""
    found = engine.history(LOST)
    made = bill(found.job_rows, WallTime(WALL_START))
    assert made is not None
    holders = {lease.term: lease.holder for lease in _leases(found)}
    (row,) = measure(made.job, found.job_rows, found.run_rows, holders, found.records[-1].state.costs)
    assert (row.work_per_s, row.allocate_s) == (pytest.approx(1.0), pytest.approx(10.0, abs=1e-5))
    assert (row.stall_s, row.upload_s, row.boot_s) == (2.0, 3.0, pytest.approx(20.0, abs=1e-5))


def test_timeline_and_tables_can_be_drawn() -> None:
    """As text, at 80 columns."""
    made = _read(engine.history(LOST))
    text = attempt_timeline.text(made, columns=80)
    assert "attempt 2" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert account_tables.summary(made)
