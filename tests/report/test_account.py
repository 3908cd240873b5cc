"""The account: every moment has one kind, every loss its cause and price, and what is not known is named."""

from __future__ import annotations

import io
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.report import story
from windfall import events
from windfall.errors import LogDamaged
from windfall.report import account_tables
from windfall.report.account import SILENCE_S, Account, AttemptLoss, Lease, SaveCount, account, as_json
from windfall.report.interval_kinds import Kind
from windfall.terms import Cause, Instant, NoticeLevel, Phase, SaveKind, Seconds, Step, Term, WallTime


@pytest.fixture
def made() -> Account:
    """The account of the run that was preempted twice."""
    return story.preempted_twice()


def one_machine(*levels: tuple[float, events.Fact | events.Command], cause: Cause | None = Cause.DONE) -> Account:
    """The account of a run on one machine that took it at 1000 and released it with its last row."""
    rows = story.rows(1, 0.0, *levels)
    released = None if cause is None else rows[-1].wall_time
    return account({Term(1): rows}, [Lease(Term(1), "one", WallTime(1000.0), released, cause)])


def spent(made: Account) -> dict[str, float]:
    """Seconds by kind, kinds without time left out."""
    return {kind.value: seconds for kind, seconds in made.spent if seconds}


def test_every_second_of_the_run_has_one_kind(made: Account) -> None:
    """The hand-told run's 110 seconds are split as a reader of the story would split them."""
    assert spent(made) == {
        "compute": 50.0,
        "redo": 10.0,
        "save": 5.0,
        "restore": 3.5,
        "start": 7.5,
        "other": 2.0,
        "finish": 2.0,
        "waiting": 30.0,
    }


def test_the_kinds_add_up_to_the_time_between_first_and_last_sign_of_life(made: Account) -> None:
    """The sum over the kinds is the run's extent, exactly."""
    assert made.total_s == made.end - made.start == 110.0


def test_goodput_is_the_share_of_new_steps(made: Account) -> None:
    """Of 110 s, 50 s were spent on steps computed for the first time."""
    assert made.goodput == story.exactly(50.0 / 110.0)


def test_a_loss_has_a_cause_and_a_price(made: Account) -> None:
    """The announced loss cost no step; the silent one cost ten, and ten seconds to compute them again."""
    assert made.losses == (
        AttemptLoss(
            Term(1), 1, WallTime(1030.0), Cause.PREEMPTED_SAVED, story.exactly(0), redone=0, redo_s=Seconds(0.0)
        ),
        AttemptLoss(Term(2), 2, WallTime(1061.0), Cause.VANISHED, story.exactly(10), redone=10, redo_s=Seconds(10.0)),
    )


def test_steps_are_counted_once(made: Account) -> None:
    """Fifty steps are complete; ten of them were computed twice."""
    assert (made.steps, made.steps_redone) == (50, story.exactly(10))


def test_saves_are_listed_by_kind(made: Account) -> None:
    """Two insurance points and an emergency point were committed, of 1000 bytes each."""
    assert made.saves == (SaveCount(SaveKind.INSURANCE, 2, 2000), SaveCount(SaveKind.EMERGENCY, 1, 1000))


def test_uploads_behind_the_script_are_no_stall(made: Account) -> None:
    """Three seconds of upload are told apart and are part of no kind."""
    assert (made.upload_s, made.total_s) == (3.0, 110.0)


def test_machine_hours_leave_out_the_waiting(made: Account) -> None:
    """Machines were held for 30 + 21 + 29 seconds."""
    assert made.machine_s == 80.0
    assert made.machine_hours == story.exactly(80.0 / 3600)


def test_a_notice_keeps_its_deadline_on_the_wall_clock(made: Account) -> None:
    """The notice at 1022 promised 30 more seconds, on whatever clock its machine counts."""
    (seen,) = made.notices
    assert (seen.at, seen.deadline, seen.level) == (1022.0, 1052.0, NoticeLevel.ANNOUNCED)


def test_rows_that_never_arrived_are_time_unknown_not_guessed() -> None:
    """A missing spool segment is named with its rows and its length, and its time belongs to no other kind."""
    rows = story.rows(
        1,
        0.0,
        (1000.0, story.began()),
        (1001.0, story.restored(0, 1.0)),
        (1001.0, story.started(1)),
        (1002.0, story.first_step()),
        (1012.0, story.steps(10, 10)),
        (1022.0, story.steps(20, 10)),
        (1032.0, story.steps(30, 10)),
        (1042.0, story.steps(40, 10)),
        (1042.0, story.exited(0)),
    )
    del rows[5:7]

    made = account({Term(1): rows}, [Lease(Term(1), "one", WallTime(1000.0), WallTime(1042.0), Cause.DONE)])

    assert spent(made) == {"compute": 10.0, "restore": 1.0, "start": 1.0, "unknown": 30.0}
    assert made.unknown == ("term 1: rows 6 to 7 of the journal never arrived; 30.0 s are unknown",)


def test_a_term_without_any_row_is_unknown() -> None:
    """A machine that took the run and whose journal never arrived is not passed over in silence."""
    rows = story.rows(2, 0.0, (1050.0, story.began(2)), (1060.0, story.restored(0, 10.0)))
    leases = [
        Lease(Term(1), "one", WallTime(1000.0)),
        Lease(Term(2), "two", WallTime(1050.0), WallTime(1060.0), Cause.STOPPED),
    ]

    made = account({Term(2): rows}, leases)

    assert spent(made) == {"restore": 10.0, "unknown": SILENCE_S, "waiting": 50.0 - SILENCE_S}
    assert "term 1: no row of its journal arrived, so what its machine did is unknown" in made.unknown


def test_a_script_that_fails_is_a_loss_of_its_own() -> None:
    """A retry on the same machine shows the failure, the steps it cost, and the second computation of them."""
    made = one_machine(
        (1000.0, story.began()),
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1001.0, story.first_step()),
        (1009.0, story.steps(8, 8)),
        (1009.0, story.exited(1)),
        (1014.0, story.restored(0, 0.0)),
        (1014.0, story.started(2)),
        (1015.0, story.first_step()),
        (1025.0, story.steps(10, 10)),
        (1025.0, story.exited(0)),
    )

    assert made.losses == (
        AttemptLoss(Term(1), 1, WallTime(1009.0), Cause.SCRIPT_FAILED, story.exactly(8), redone=8, redo_s=Seconds(8.0)),
    )
    assert spent(made) == {"compute": 10.0, "redo": 8.0, "start": 7.0}


@pytest.mark.trial("D5")
def test_saves_that_were_given_up_and_tries_that_failed_are_told() -> None:
    """A full disk and a hand-over that another one replaced are no secret of the machine's own journal."""
    full = [events.ShardFailed("00000008-1-p2", 0, "the disk is full") for _ in range(2)]
    made = one_machine(
        (1000.0, story.began()),
        (1000.0, story.started(1)),
        (1008.0, full[0]),
        (1009.0, full[1]),
        (1009.0, events.AbandonCheckpoint("00000008-1-p2", "the disk is full")),
        (1010.0, events.AbandonCheckpoint("00000009-1-p3", "the save at step 10 replaces it")),
        (1011.0, events.AbandonCheckpoint("00000010-1-p4", "the save at step 11 replaces it")),
    )

    assert [(save.step, save.reason) for save in made.abandoned][:2] == [
        (8, "the disk is full"),
        (9, "the save at step 10 replaces it"),
    ]
    assert [(one.reason, one.count) for one in made.failures] == [("the disk is full", 2)]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(account_tables.render(made))
    shown = [line.split() for line in console.export_text().partition("Not stored")[2].splitlines()]
    assert ["save", "abandoned", "2", *["the", "save", "at", "a", "step", "replaces", "it"]] in shown
    assert ["attempt", "failed", "2", *["the", "disk", "is", "full"]] in shown


@pytest.mark.parametrize(
    ("levels", "cause", "lost"),
    [
        ((1021.0, story.notice(NoticeLevel.HINT)), Cause.VANISHED, 10),
        ((1021.0, story.notice(NoticeLevel.WITHDRAWN)), Cause.VANISHED, 10),
        ((1021.0, story.notice(NoticeLevel.ANNOUNCED, 1030.0)), Cause.PREEMPTED_UNSAVED, 10),
    ],
)
def test_without_a_last_word_the_notices_tell_the_cause(
    levels: tuple[float, events.Fact], cause: Cause, lost: int
) -> None:
    """A machine that ends without a release was preempted if an end was announced, and vanished if not."""
    made = one_machine(
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1000.0, story.first_step()),
        (1010.0, story.steps(10, 10)),
        (1010.0, story.committed(story.checkpoint(10, 1010.0))),
        (1020.0, story.steps(20, 10)),
        levels,
        cause=None,
    )

    assert [(loss.cause, loss.steps.low) for loss in made.losses] == [(cause, lost)]


def test_an_announced_end_whose_newest_step_is_committed_counts_as_saved() -> None:
    """The release may never arrive; a commit at the last step is enough to know that nothing was lost."""
    made = one_machine(
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1000.0, story.first_step()),
        (1005.0, story.notice(NoticeLevel.ANNOUNCED, 1030.0)),
        (1010.0, story.steps(10, 10)),
        (1011.0, story.committed(story.checkpoint(10, 1011.0, kind=SaveKind.EMERGENCY))),
        cause=None,
    )

    assert [(loss.cause, loss.steps.low) for loss in made.losses] == [(Cause.PREEMPTED_SAVED, 0)]


@pytest.mark.parametrize(("calls", "cause"), [(False, Cause.PREEMPTED_UNSAVED), (True, Cause.PREEMPTED_SAVED)])
def test_a_script_that_never_called_windfall_has_saved_nothing_with_it(*, calls: bool, cause: Cause) -> None:
    """Its machine had nothing to save and said so; what the script had done is not known, and that is said too."""
    joined = events.RanksObserved((events.RankStatus(0, Step(0), Phase.START, Instant(0.0)),))
    made = one_machine(
        (1000.0, story.began()),
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        *([(1001.0, joined)] if calls else []),
        (1010.0, story.notice(NoticeLevel.ANNOUNCED, 1030.0)),
        (1012.0, story.exited(143)),
        cause=Cause.PREEMPTED_SAVED,
    )

    assert [loss.cause for loss in made.losses] == [cause]
    assert any("the script never called Windfall" in gap for gap in made.unknown) is not calls


def test_a_heartbeat_after_the_last_row_tells_what_was_done_until_then() -> None:
    """Its heart beat for five seconds more than its journal tells, at step fourteen by then."""
    rows = story.rows(
        1, 0.0, (1000.0, story.restored(0, 0.0)), (1000.0, story.started(1)), (1010.0, story.steps(10, 10))
    )
    next_rows = story.rows(2, 0.0, (1020.0, story.restored(0, 0.0)))
    leases = [
        Lease(Term(1), "one", WallTime(1000.0), reached=story.beat(1, 0, 14, 1015.0, 0.0)),
        Lease(Term(2), "two", WallTime(1020.0)),
    ]

    made = account({Term(1): rows, Term(2): next_rows}, leases, alive=Term(2))

    assert spent(made) == {"compute": 14.0, "waiting": 5.0, "other": 1.0}
    assert [loss.steps for loss in made.losses] == [story.exactly(14)]


def test_a_live_holder_is_no_loss() -> None:
    """While a machine is known to live, its term has not ended."""
    rows = story.rows(1, 0.0, (1000.0, story.began()), (1001.0, story.restored(0, 1.0)))

    made = account({Term(1): rows}, [Lease(Term(1), "one", WallTime(1000.0))], alive=Term(1))

    assert (made.losses, made.unknown) == ((), ())


def test_steps_lost_twice_are_charged_to_the_loss_that_made_them_necessary_again() -> None:
    """Steps 6 to 8 are redone because of the second loss, 9 and 10 still because of the first."""
    levels: list[list[tuple[float, events.Fact]]] = [
        [(1000.0, story.restored(0, 0.0)), (1000.0, story.started(1)), (1010.0, story.steps(10, 10))],
        [(1010.0, story.restored(5, 0.0)), (1010.0, story.started(2)), (1013.0, story.steps(8, 3))],
        [(1013.0, story.restored(5, 0.0)), (1013.0, story.started(3)), (1023.0, story.steps(15, 10))],
    ]
    journal = {Term(n): story.rows(n, 0.0, *facts) for n, facts in enumerate(levels, 1)}
    leases = [Lease(term, "m", rows[0].wall_time, gone_at=rows[-1].wall_time) for term, rows in journal.items()]

    made = account(journal, leases, alive=Term(3))

    assert [(loss.steps.low, loss.redone, loss.redo_s) for loss in made.losses] == [(5, 5, 5.0), (3, 3, 3.0)]
    assert spent(made) == {"compute": 15.0, "redo": 8.0}


def test_a_machine_lost_before_it_restored_costs_no_steps_and_takes_no_blame() -> None:
    """The steps are charged to the machine that computed and lost them, not to the one that never began."""
    levels: list[list[tuple[float, events.Fact]]] = [
        [(1000.0, story.restored(0, 0.0)), (1000.0, story.started(1)), (1010.0, story.steps(10, 10))],
        [(1010.0, story.began(2))],
        [(1020.0, story.restored(4, 0.0)), (1020.0, story.started(2)), (1030.0, story.steps(14, 10))],
    ]
    journal = {Term(n): story.rows(n, 0.0, *facts) for n, facts in enumerate(levels, 1)}
    leases = [Lease(term, "m", rows[0].wall_time, gone_at=rows[-1].wall_time) for term, rows in journal.items()]

    made = account(journal, leases, commits=[story.checkpoint(4, 1004.0)], alive=Term(3))

    assert [(loss.steps.low, loss.redone) for loss in made.losses] == [(6, 6), (0, 0)]


def test_steps_seen_after_the_last_window_are_work_not_a_hole() -> None:
    """A look at the ranks says that three more steps were complete when the machine vanished."""
    seen = events.RanksObserved((events.RankStatus(0, Step(13), Phase.STEP, story.Instant(1012.0)),))
    made = one_machine(
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1010.0, story.steps(10, 10)),
        (1013.5, seen),
        cause=None,
    )

    assert spent(made) == {"compute": 13.0, "other": 0.5, "unknown": SILENCE_S}
    assert made.losses[0].steps.low == 13


def test_standing_still_until_the_last_save_is_stored_belongs_to_the_save() -> None:
    """Between the last hand-over and the release nothing is computed: that is what the emergency save cost."""
    last_save = events.UploadShard("10-1-a", 0, "ckpt", SaveKind.EMERGENCY)
    levels = story.rows(
        1,
        0.0,
        (1000.0, story.began(1)),
        (1001.0, story.restored(0, 1.0)),
        (1001.0, story.started(1)),
        (1002.0, story.first_step()),
        (1012.0, story.steps(10, 10)),
        (1013.0, story.handed_over(10, 1.0)),
        (1013.0, last_save),
        (1018.0, story.committed(story.checkpoint(10, 1018.0, kind=SaveKind.EMERGENCY))),
        (1018.0, story.release(Cause.PREEMPTED_SAVED)),
    )
    made = account({Term(1): levels}, [])
    assert (made.of(Kind.COMPUTE), made.of(Kind.SAVE), made.of(Kind.OTHER)) == (10.0, 1.0 + 5.0, 0.0)


def test_what_follows_the_release_is_the_end_not_a_hole() -> None:
    """A script that is ended with its machine writes no more rows; the time until the release record is `finish`."""
    rows = story.rows(
        1,
        0.0,
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1010.0, story.steps(10, 10)),
        (1010.0, story.release(Cause.STOPPED)),
    )

    made = account({Term(1): rows}, [Lease(Term(1), "one", WallTime(1000.0), WallTime(1012.0), Cause.STOPPED)])

    assert (spent(made), made.losses, made.unknown) == ({"compute": 10.0, "finish": 2.0}, (), ())


def test_the_stall_of_several_ranks_counts_once() -> None:
    """Four ranks that save at the same time hold the script up for two seconds, not eight."""
    made = one_machine(
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1010.0, story.steps(10, 10)),
        *[(1012.0, story.handed_over(10, 2.0, rank)) for rank in range(4)],
        (1012.0, story.exited(0)),
    )

    assert spent(made) == {"compute": 10.0, "save": 2.0}


def test_clocks_that_disagree_are_named_and_the_time_is_counted_once() -> None:
    """When a successor's clock says that it began before its predecessor ended, the overlap is cut and named."""
    journal = {
        Term(1): story.rows(1, 0.0, (1000.0, story.restored(0, 0.0)), (1020.0, story.exited(143))),
        Term(2): story.rows(2, 0.0, (1018.0, story.restored(0, 0.0)), (1030.0, story.exited(0))),
    }

    made = account(journal, [], alive=Term(2))

    assert made.total_s == 30.0
    assert made.machine_s == 32.0
    assert "overlap by 2.0 s" in made.unknown[-1]


def test_a_commit_that_only_the_log_knows_is_counted() -> None:
    """The machine died with the row of its last commit; the record in the log is enough."""
    rows = story.rows(1, 0.0, (1000.0, story.restored(0, 0.0)))
    ref = story.checkpoint(10, 1010.0)

    made = account({Term(1): rows}, [], commits=[ref])

    assert made.commits == (ref,)


def test_a_run_that_nobody_took_has_no_account() -> None:
    """Without any term there is nothing to account for, and the user is told so."""
    with pytest.raises(ValueError, match="no term yet"):
        account({}, [])


def test_a_journal_that_goes_back_in_time_is_damaged() -> None:
    """No machine's clock does that: somebody changed a row, and the sentence names it."""
    rows = story.rows(1, 0.0, (0.0, story.began()), (5.0, story.started(1)), (4.0, story.first_step()))
    with pytest.raises(LogDamaged, match="term 1 goes back in time at row 3"):
        account({Term(1): rows}, [])


def test_the_json_carries_the_same_numbers_with_units_in_the_names(made: Account) -> None:
    """What a program reads is what the table shows."""
    read = json.loads(json.dumps(as_json(made)))

    assert read["spent"]["compute_s"] == 50.0
    assert read["total_s"] == 110.0
    assert read["losses"][1]["cause"] == "vanished"
    assert read["saves"][0] == {"kind": "insurance", "count": 2, "size_bytes": 2000}


@st.composite
def journals(draw: st.DrawFn) -> tuple[list[events.Row], ...]:
    """Journals of one to four terms with windows, stalls and looks in any order, some rows missing."""
    now, made = 1000.0, []
    for term in range(1, draw(st.integers(1, 4)) + 1):
        levels: list[tuple[float, events.Fact]] = [(now, story.began(term))]
        step = draw(st.integers(0, 20))
        now += draw(st.floats(0, 5))
        levels += [(now, story.restored(step, draw(st.floats(0, 8)))), (now, story.started(term))]
        for _ in range(draw(st.integers(0, 8))):
            now += draw(st.floats(0, 20))
            what, length = draw(st.integers(0, 3)), draw(st.floats(0, 30))
            count = draw(st.integers(1, 9))
            step += count if what == 0 else 0
            levels.append(
                (
                    now,
                    (
                        story.steps(step, count, length / 9),
                        story.handed_over(step, length),
                        events.PhaseMeasured(0, Phase.EVALUATION, Seconds(length)),
                        story.exited(0),
                    )[what],
                )
            )
        rows = story.rows(term, draw(st.floats(-1e4, 1e4)), *levels)
        lost = draw(st.integers(0, len(rows)))
        made.append([row for row in rows if row.sequence != lost])
        now += draw(st.floats(-3, 50))
    return tuple(made)


@settings(max_examples=200)
@given(journals())
def test_no_moment_is_counted_twice_or_not_at_all(levels: tuple[list[events.Row], ...]) -> None:
    """Whatever the journals say, the spells lie end to end from the run's begin to its end."""
    made = account({rows[0].term: rows for rows in levels if rows}, [])

    assert all(older.end == newer.start for older, newer in itertools.pairwise(made.intervals))
    assert all(interval.duration_s > 0 for interval in made.intervals)
    assert made.total_s == pytest.approx(made.end - made.start, abs=1e-6)
    assert made.of(Kind.REDO) == pytest.approx(sum(loss.redo_s for loss in made.losses), abs=1e-6)
    assert all(end.low <= (end.high or end.low) for end in (made.compute_s, made.redo_s, made.machine_hours))
