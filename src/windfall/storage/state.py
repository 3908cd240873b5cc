"""The state of a run as its log carries it: how each record follows from the one before, and how it is written down.

Pure functions.  Every record carries the whole state, so that a reader needs the newest record alone.  What can only
grow (number, term, counts) is asserted to grow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from windfall import codec
from windfall.errors import Fenced, LogDamaged
from windfall.storage import checked
from windfall.terms import (
    Bundle,
    Cause,
    CheckpointRef,
    Holder,
    Loss,
    Outcome,
    Reached,
    Record,
    RecordKind,
    Result,
    RunState,
    SaveCosts,
    Seconds,
    Step,
    Term,
    WallTime,
)

VERSION = 2
"""Of the records' format."""
LOSSES_MAX = 64
"""How many ends of terms a state remembers: enough to learn habits from, small enough for every record."""
WHOLE_POINTS_MIN = 2
"""How many points always stay, so that one damaged point never costs the run (architecture, "the law of the store")."""

_ANNOUNCED = (Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED)
_PREEMPTIONS = (*_ANNOUNCED, Cause.VANISHED)


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants to take a run, and with what.

    Attributes:
        lease_s: how long this holder's heartbeat may stand still before others may take the run.
        command: the script's command line; empty to go on with the run's own.
        bundle, code: None to keep the run's own.
        generation: which one's leader it is; 0 for a machine that trains alone.
    """

    holder: Holder
    run_id: str
    lease_s: Seconds
    command: tuple[str, ...] = ()
    bundle: Bundle | None = None
    code: str | None = None
    generation: int = 0


def newest_step(state: RunState) -> Step:
    """Return the newest committed step, 0 without any point."""
    return max((point.step for point in state.checkpoints), default=Step(0))


def refuse_older(state: RunState, claim: Claim) -> None:
    """Refuse a claim of an older generation than the newest that took the run: its machines have been replaced.

    A machine that trains alone belongs to no generation, and is judged by holder and lease like any other.

    Raises:
        Fenced: there was a newer generation.
    """
    if 0 < claim.generation < state.generation:
        raise Fenced(
            f"generation {state.generation} of the machines has this run: generation {claim.generation}, which this "
            "machine was started for, is over"
        )


def taken(previous: Record | None, claim: Claim, *, wall: WallTime, reached: Reached | None = None) -> RunState:
    """Return the state after `claim` takes the run by the record that follows `previous`.

    A holder that is still written in `previous` has vanished: its life and its loss are added.  A run that had failed
    starts with no failures again, because a person started it.

    Args:
        previous: the newest record; None for a new run.
        claim: who takes it.
        wall: the taker's wall clock.
        reached: how far the vanished holder had come; None if it never had a heartbeat.
    """
    if previous is None:
        return RunState(
            claim.run_id, Term(1), Outcome.RUNNING, claim.holder, wall, claim.lease_s,
            attempts=1, command=claim.command, bundle=claim.bundle, code=claim.code, generation=claim.generation,
        )  # fmt: skip
    old = previous.state
    ended = old if old.holder is None else _vanished(old, wall=wall, reached=reached)
    return dataclasses.replace(
        ended,
        term=Term(previous.number + 1),
        outcome=Outcome.RUNNING,
        holder=claim.holder,
        holder_since=wall,
        lease_s=claim.lease_s,
        attempts=old.attempts + 1,
        failures=0 if old.outcome is Outcome.FAILED else old.failures,
        command=claim.command or old.command,
        bundle=claim.bundle or old.bundle,
        code=claim.code or old.code,
        generation=max(old.generation, claim.generation),
    )


def _vanished(old: RunState, *, wall: WallTime, reached: Reached | None) -> RunState:
    end = old.holder_since if reached is None else reached.wall
    return dataclasses.replace(
        old,
        lives_s=_lived(old, end),
        preemptions=old.preemptions + 1,
        losses=_with_loss(old, Cause.VANISHED, wall, reached),
    )


def _lived(state: RunState, end: WallTime) -> Seconds:
    # A wall clock that was set back between the two readings gives no life rather than a negative one.
    return Seconds(state.lives_s + max(0.0, end - state.holder_since))


def _with_loss(
    state: RunState,
    cause: Cause,
    wall: WallTime,
    reached: Reached | None = None,
    notice_s: Seconds | None = None,
) -> tuple[Loss, ...]:
    loss = Loss(cause, state.term, wall, newest_step(state), reached, notice_s)
    return (*state.losses, loss)[-LOSSES_MAX:]


def committed(
    state: RunState,
    ref: CheckpointRef,
    *,
    attempts: int | None = None,
    failures: int | None = None,
    costs: SaveCosts | None = None,
) -> RunState:
    """Return the state in which `ref` is live; the same state if it already is (a repeated commit).

    Raises:
        Fenced: the term is over.
    """
    if any(point.checkpoint_id == ref.checkpoint_id for point in state.checkpoints):
        return state
    _must_be_held(state)
    assert ref.term == state.term, "a holder commits points of its own term alone"
    after = dataclasses.replace(state, checkpoints=(*state.checkpoints, ref), costs=costs or state.costs)
    return _counted(after, attempts, failures)


def with_result(state: RunState, result: Result) -> RunState:
    """Return the state that has this result in the place of an earlier one of its name and rank; the same if it has it.

    Raises:
        Fenced: the term is over.
    """
    if any(known.stored.checkpoint_id == result.stored.checkpoint_id for known in state.results):
        return state
    _must_be_held(state)
    others = [other for other in state.results if (other.name, other.rank) != (result.name, result.rank)]
    return dataclasses.replace(state, results=(*others, result))


def dropped(state: RunState, checkpoint_ids: Collection[str]) -> RunState:
    """Return the state without these points; the same state if none of them is live.

    Raises:
        Fenced: the term is over.
        ValueError: fewer than two points would stay.
    """
    rest = tuple(point for point in state.checkpoints if point.checkpoint_id not in checkpoint_ids)
    if rest == state.checkpoints:
        return state
    _must_be_held(state)
    if len(rest) < WHOLE_POINTS_MIN:
        raise ValueError(f"{len(rest)} of {len(state.checkpoints)} points would stay; at least {WHOLE_POINTS_MIN} must")
    return dataclasses.replace(state, checkpoints=rest)


def attempted(state: RunState, *, attempts: int, failures: int) -> RunState:
    """Return the state after the script was started again, or failed, within the term."""
    if (attempts, failures) == (state.attempts, state.failures):
        return state
    _must_be_held(state)
    return _counted(state, attempts, failures)


def released(
    state: RunState,
    *,
    outcome: Outcome,
    cause: Cause,
    wall: WallTime,
    attempts: int | None = None,
    failures: int | None = None,
    costs: SaveCosts | None = None,
    notice_s: Seconds | None = None,
) -> RunState:
    """Return the state after the holder let go; the same state if it already has.

    Args:
        state: the newest state.
        outcome: what has become of the run.
        cause: why the term ended; preemptions are counted, those that were announced as such (`VANISHED`: another
            machine of the generation).
        wall: the holder's wall clock.
        attempts: starts of the script by now; None if unchanged.
        failures: its own failures by now; None if unchanged.
        costs: what saves cost by now; None if unknown.
        notice_s: how long before its end the machine heard of it; None if it did not.
    """
    if state.holder is None:
        return state
    assert outcome is not Outcome.RUNNING, "a run that was let go is not running"
    after = dataclasses.replace(
        state,
        outcome=outcome,
        holder=None,
        lives_s=_lived(state, wall),
        preemptions=state.preemptions + (cause in _PREEMPTIONS),
        announced=state.announced + (cause in _ANNOUNCED),
        losses=_with_loss(state, cause, wall, notice_s=notice_s),
        costs=costs or state.costs,
    )
    return _counted(after, attempts, failures)


def _counted(state: RunState, attempts: int | None, failures: int | None) -> RunState:
    return dataclasses.replace(
        state,
        attempts=state.attempts if attempts is None else attempts,
        failures=state.failures if failures is None else failures,
    )


def _must_be_held(state: RunState) -> None:
    if state.holder is None:
        raise Fenced(f"term {state.term} is over: this machine already let the run go")


def follow(head: Record | None, state: RunState, *, kind: RecordKind, nonce: str, wall: WallTime) -> Record:
    """Return the record that comes after `head` and carries `state`."""
    record = Record(1 if head is None else head.number + 1, nonce, kind, wall, state)
    if kind is RecordKind.TAKE:
        assert state.term == record.number, "the number of the taking record is the term"
    else:
        assert head is not None, "the log begins with a taking record"
        assert state.term == head.state.term, "only a taking record begins a term"
    if head is not None:
        assert state.term >= head.state.term, "a term never falls"
        assert state.attempts >= head.state.attempts, "the number of starts never falls"
        assert state.preemptions >= head.state.preemptions, "the number of losses never falls"
        assert state.generation >= head.state.generation, "a generation never falls"
    return record


def to_bytes(record: Record) -> bytes:
    """Write a record as JSON, version first."""
    return codec.sealed(VERSION, "record", record)


def from_bytes(data: bytes, key: str) -> Record:
    """Read a record back.

    Args:
        data: the object's content.
        key: where it was found, for the message.

    Raises:
        NewerFormat, OlderFormat: another Windfall wrote it.
        LogDamaged: it is not a record.
    """
    try:
        record: Record = codec.opened(data, "record", Record, version=VERSION, what=key)
    except ValueError as error:
        raise LogDamaged(f"{key} is damaged ({error}): the run's log cannot be read past it") from error
    wrong = checked.wrong_with_record(record, int(key.rpartition("/")[2]))
    if wrong is not None:
        raise LogDamaged(f"{key} is no record of ours ({wrong}): the run's log cannot be read past it")
    return record
