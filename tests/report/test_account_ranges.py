"""What nobody wrote down is a range: the end of a machine that vanished, and every figure that depends on it."""

from __future__ import annotations

import pytest

from tests.report import story
from windfall import events
from windfall.report.account import Account, Lease, account
from windfall.report.interval_kinds import Kind
from windfall.report.step_counts import StepRange
from windfall.terms import Cause, LastProgress, Term, WallTime


def spent(made: Account) -> dict[str, float]:
    """Seconds by kind, kinds without time left out."""
    return {kind.value: seconds for kind, seconds in made.spent if seconds}


def one_machine(*levels: tuple[float, events.Fact | events.Command], cause: Cause | None = Cause.DONE) -> Account:
    """The account of a run on one machine that took it at 1000 and released it with its last row."""
    rows = story.rows(1, 0.0, *levels)
    released = None if cause is None else rows[-1].wall_time
    return account({Term(1): rows}, [Lease(Term(1), "one", WallTime(1000.0), released, cause)])


def vanished(reached: LastProgress | None, **more: WallTime) -> Account:
    """Ten seconds of steps of a second, a checkpoint at 5, then silence; the next machine begins at 1030 and goes to 20."""
    first = story.rows(
        1, 0.0, (1000.0, story.restored(0, 0.0)), (1000.0, story.started(1)), (1000.0, story.first_step()),
        (1010.0, story.steps(10, 10)),
    )  # fmt: skip
    second = story.rows(
        2, 0.0, (1030.0, story.restored(5, 0.0)), (1030.0, story.started(2)), (1045.0, story.steps(20, 15)),
        (1045.0, story.exited(0)),
    )  # fmt: skip
    leases = [
        Lease(Term(1), "one", WallTime(1000.0), reached=reached, **more),
        Lease(Term(2), "two", WallTime(1030.0), WallTime(1045.0), Cause.DONE),
    ]
    return account({Term(1): first, Term(2): second}, leases, commits=[story.checkpoint(5, 1006.0)])


@pytest.mark.trial("D1")
def test_what_a_vanished_machine_left_behind_makes_its_loss_exact() -> None:
    """Its page says that twelve steps were complete two seconds after its last row: seven of them were computed again."""
    made = vanished(story.left(1, 0, 12, 1012.5))

    assert [loss.steps for loss in made.losses] == [story.exactly(7)]
    assert (made.steps_redone, made.unknown) == (story.exactly(7), ())
    assert spent(made) == {"compute": 20.0, "redo": 7.0, "other": 0.5, "waiting": 17.5}
    assert made.machine_hours == story.exactly(27.5 / 3600)


@pytest.mark.trial("D1")
def test_where_the_end_is_not_known_every_figure_that_depends_on_it_is_a_range() -> None:
    """By its last heartbeat twelve steps were complete; it may have lived, and trained, for four seconds more."""
    made = vanished(story.beat(1, 0, 12, 1012.0, 4.0))

    assert made.losses[0].steps == StepRange(7, 7 + 5)
    assert made.steps_redone == StepRange(7, 7 + 5)
    assert spent(made) == {"compute": 20.0, "redo": 7.0, "unknown": 4.0, "waiting": 14.0}
    assert (made.compute_s, made.redo_s) == (StepRange(15.0, 24.0), StepRange(7.0, 16.0))
    assert made.goodput == StepRange(15.0 / 45.0, 24.0 / 45.0)
    assert made.machine_hours == StepRange(27.0 / 3600, 31.0 / 3600)
    assert made.unknown == ("term 1: no sign of life after the last row; the machine may have trained for 4.0 s",)


@pytest.mark.trial("D1")
def test_a_provider_s_word_of_the_end_narrows_the_range() -> None:
    """The machine was gone a second after its heartbeat, says who sold it; such a word may be a second too early."""
    made = vanished(story.beat(1, 0, 12, 1012.0, 4.0), gone_at=WallTime(1013.0))

    assert made.steps_redone == StepRange(7, 7 + 3)
    assert made.of(Kind.UNKNOWN) == 2.0
    assert vanished(story.beat(1, 0, 12, 1012.0, 4.0), gone_at=WallTime(1011.8)).steps_redone == StepRange(7, 7 + 1)


@pytest.mark.trial("D1")
def test_a_machine_that_vanished_before_it_told_of_its_script_may_have_trained() -> None:
    """Its only heartbeat came before its script began, and its next one was due in two seconds: time for three steps."""
    second = story.rows(
        2, 0.0, (1030.0, story.restored(0, 0.0)), (1030.0, story.started(1)), (1030.0, story.first_step()),
        (1050.0, story.steps(20, 20)), (1050.0, story.exited(0)),
    )  # fmt: skip
    leases = [
        Lease(Term(1), "one", WallTime(1000.0), reached=story.beat(0, 0, 0, 1000.0, 2.0)),
        Lease(Term(2), "two", WallTime(1030.0), WallTime(1050.0), Cause.DONE),
    ]
    made = account({Term(2): second}, leases)

    assert [loss.steps for loss in made.losses] == [StepRange(0, 3)]
    assert made.steps_redone == StepRange(0, 3)


@pytest.mark.trial("D1")
def test_steps_that_nobody_can_bound_have_no_upper_end() -> None:
    """No window was ever measured: how many steps fit into the silence nobody can say."""
    rows = story.rows(1, 0.0, (1000.0, story.restored(0, 0.0)), (1000.0, story.started(1)))
    made = account({Term(1): rows}, [Lease(Term(1), "one", WallTime(1000.0), reached=story.beat(1, 0, 3, 1001.0, 1.0))])

    assert [loss.steps for loss in made.losses] == [StepRange(3, None)]
    assert made.losses[0].steps.text() == "at least 3"


@pytest.mark.trial("D2")
def test_waiting_holds_no_training() -> None:
    """Whatever a machine may have done after its last sign of life is not called waiting."""
    made = vanished(story.beat(1, 0, 12, 1012.0, 4.0))

    waiting = [(interval.start, interval.end) for interval in made.intervals if interval.kind is Kind.WAITING]
    assert waiting == [(1016.0, 1030.0)]


@pytest.mark.trial("D1")
def test_a_start_of_the_script_whose_rows_are_missing_is_known_by_its_heartbeat() -> None:
    """The journal ends in the first start; the heartbeat tells of a second that went from step 5 to step 9."""
    made = vanished(story.beat(2, 5, 9, 1020.0, 0.0))

    assert [(loss.cause, loss.attempt) for loss in made.losses] == [(Cause.SCRIPT_FAILED, 1), (Cause.VANISHED, 2)]
    # Steps 6 to 9 by the second start, 6 to 10 by the third; the first may have done more, of which three nobody reached.
    assert made.steps_redone == StepRange(4 + 5, 4 + 5 + 10)


@pytest.mark.trial("D3")
def test_the_first_step_of_an_attempt_is_counted_though_no_window_has_it() -> None:
    """A step that ends with the first call has no beginning that anybody saw; nothing is left to go."""
    made = one_machine(
        (1000.0, story.began()),
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1010.0, story.steps(8, 7)),
        (1010.0, story.exited(1)),
        (1010.0, story.restored(0, 0.0)),
        (1010.0, story.started(2)),
        (1030.0, story.steps(12, 11)),
        (1030.0, story.exited(0)),
    )

    assert [(loss.steps, loss.redone) for loss in made.losses] == [(story.exactly(8), 8)]
    assert made.of(Kind.COMPUTE) + made.of(Kind.REDO) == 20.0


@pytest.mark.trial("B4")
def test_a_script_that_never_calls_windfall_trains_with_unknown_progress() -> None:
    """Its time is neither start nor nothing: goodput may be anything up to it."""
    made = one_machine(
        (1000.0, story.began()),
        (1000.0, story.restored(0, 0.0)),
        (1000.0, story.started(1)),
        (1100.0, story.exited(0)),
    )

    assert spent(made) == {"unseen": 100.0}
    assert made.goodput == StepRange(0.0, 1.0)
