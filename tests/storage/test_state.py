"""The state that each record carries: it only ever moves forward, and survives being written down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.make import claim
from windfall.errors import Fenced
from windfall.storage import run_state
from windfall.structs import replace
from windfall.terms import (
    Bundle,
    Cause,
    CheckpointRef,
    LastProgress,
    Outcome,
    Record,
    RecordKind,
    RunState,
    SaveKind,
    Seconds,
    Step,
    Term,
    WallTime,
)
from windfall.wire.run_layout import manifest_key

WORDS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


def first(**named: object) -> Record:
    acquired = run_state.acquired(None, claim("a", **named), wall_time=WallTime(1000.0))
    return run_state.next_record(None, acquired, kind=RecordKind.ACQUIRE, nonce="a", wall_time=WallTime(1000.0))


def ref(step: int, term: int = 1) -> CheckpointRef:
    name = f"{step}-{term}-x"
    key = manifest_key(name)
    return CheckpointRef(name, Step(step), SaveKind.PERIODIC, Term(term), 1, 10, key, "d", WallTime(0))


def ended(outcome: Outcome, cause: Cause, wall_time: float = 1060.0, **counts: int) -> Record:
    head = first()
    after = run_state.released(head.state, outcome=outcome, cause=cause, wall_time=WallTime(wall_time), **counts)
    return run_state.next_record(head, after, kind=RecordKind.RELEASE, nonce="r", wall_time=WallTime(wall_time))


def take_again(head: Record, *, seen_at: float | None = None, **named: object) -> RunState:
    seen = None if seen_at is None else LastProgress(1, Step(0), Step(7), WallTime(seen_at), Seconds(1.0))
    return run_state.acquired(head, claim("b", "two", **named), wall_time=WallTime(5000.0), reached=seen)


def test_a_new_run_begins_with_its_first_attempt() -> None:
    """The first record is the first term and the first start."""
    now = first(bundle=Bundle("d", "k", 1)).state
    assert (now.term, now.attempts, now.outcome, now.command) == (1, 1, Outcome.RUNNING, ("train",))


@pytest.mark.parametrize(
    ("cause", "preemptions", "announced"),
    [
        (Cause.PREEMPTED_SAVED, 1, 1),
        (Cause.PREEMPTED_UNSAVED, 1, 1),
        (Cause.STOPPED, 0, 0),
        (Cause.SCRIPT_FAILED, 0, 0),
    ],
)
def test_a_release_counts_its_cause(cause: Cause, preemptions: int, announced: int) -> None:
    """Only a machine that was taken counts as a preemption; every release counts its life."""
    now = ended(Outcome.WAITING, cause).state
    assert (now.preemptions, now.announced, now.lifetimes_s) == (preemptions, announced, 60.0)
    assert [loss.cause for loss in now.losses] == [cause]


def test_a_machine_that_vanished_is_counted_by_its_successor() -> None:
    """Its life lasted until its last heartbeat; it was lost without a notice."""
    now = take_again(first(), seen_at=1500.0)
    assert (now.lifetimes_s, now.preemptions, now.announced) == (500.0, 1, 0)
    assert [loss.cause for loss in now.losses] == [Cause.VANISHED]


@pytest.mark.trial("D1")
def test_the_record_of_a_vanished_term_says_how_far_it_had_come() -> None:
    """Whoever makes the account later finds the last step that was seen in the log itself."""
    (loss,) = take_again(first(), seen_at=1500.0).losses
    assert loss.reached is not None
    assert (loss.reached.step, loss.reached.wall_time) == (7, 1500.0)


def test_a_clock_that_was_set_back_takes_no_life_away() -> None:
    """A heartbeat from before the take, by the wall clock, adds nothing."""
    assert take_again(first(), seen_at=10.0).lifetimes_s == 0.0


def test_the_run_keeps_its_command_and_code() -> None:
    """`windfall exec URL` alone goes on with what the run has; a new command or bundle replaces it."""
    bundle = Bundle("d", "k", 1)
    head = first(bundle=bundle, code="c")
    kept = take_again(head, command=())
    assert (kept.command, kept.bundle, kept.code) == (("train",), bundle, "c")
    new = take_again(head, command=("other",), bundle=Bundle("e", "k", 1))
    assert (new.command, new.bundle) == (("other",), Bundle("e", "k", 1))


def test_a_person_who_starts_a_failed_run_again_gets_new_tries() -> None:
    """Failures count against the bound only until the run was given up."""
    assert take_again(ended(Outcome.FAILED, Cause.SCRIPT_FAILED, failures=3)).failures == 0
    assert take_again(ended(Outcome.WAITING, Cause.PREEMPTED_SAVED, failures=2)).failures == 2


def test_losses_are_bounded() -> None:
    """A record does not grow with the number of lost machines."""
    head = first()
    for _ in range(100):
        head = run_state.next_record(head, take_again(head), kind=RecordKind.ACQUIRE, nonce="b", wall_time=WallTime(0))
    assert len(head.state.losses) == run_state.LOSSES_MAX
    assert head.state.preemptions == 100


def test_points_come_and_go() -> None:
    """A commit adds, a drop removes, at least two stay, and repeating either changes nothing."""
    now = first().state
    for step in (1, 2, 3):
        now = run_state.committed(now, ref(step), attempts=step)
    assert run_state.committed(now, ref(3)) is now
    assert (run_state.newest_step(now), now.attempts) == (3, 3)
    less = run_state.dropped(now, {"1-1-x"})
    assert [checkpoint.step for checkpoint in less.checkpoints] == [2, 3]
    assert run_state.dropped(less, {"1-1-x"}) is less
    with pytest.raises(ValueError, match="1 of 2 checkpoints would remain, at least 2 must"):
        run_state.dropped(less, {"2-1-x"})


def test_nothing_follows_a_release_but_a_take() -> None:
    """A holder that let go can commit, drop and start nothing more."""
    now = ended(Outcome.WAITING, Cause.STOPPED).state
    for act in (
        lambda: run_state.committed(now, ref(1)),
        lambda: run_state.attempted(now, attempts=2, failures=0),
        lambda: run_state.dropped(replace(now, checkpoints=(ref(1), ref(2), ref(3))), {"1-1-x"}),
    ):
        with pytest.raises(Fenced, match="term 1 has ended"):
            act()


@pytest.mark.parametrize(
    "change", [{"term": Term(7)}, {"attempts": 0}, {"preemptions": -1}], ids=lambda change: next(iter(change))
)
def test_what_only_grows_cannot_fall(change: dict[str, int]) -> None:
    """A record that would take the run back in any count is a mistake of ours, caught before it is written."""
    head = first()
    with pytest.raises(AssertionError, match=r"never decreases|only an acquire record"):
        run_state.next_record(head, replace(head.state, **change), kind=RecordKind.COMMIT, nonce="n", wall_time=0.0)


@given(
    steps=st.lists(st.integers(0, 10**12), max_size=5, unique=True),
    command=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=4
    ),
    wall_time=st.floats(0, 1e11),
)
def test_a_record_survives_being_written(steps: list[int], command: list[str], wall_time: float) -> None:
    """What is read back equals what was written, whatever the command line contains."""
    head = first(command=tuple(command))
    now = replace(head.state, checkpoints=tuple(ref(step) for step in steps))
    record = Record(1, "n", RecordKind.ACQUIRE, WallTime(wall_time), now)
    assert run_state.from_bytes(run_state.to_bytes(record), "log/00000001") == record
