"""The state of a run in its log: how each record follows from the previous one, and its encoding.

Pure functions.  Every record carries the whole state, so a reader needs only the newest record.  Values that can only
grow (number, term, counts) are asserted to grow.
"""

from __future__ import annotations

from collections.abc import Collection

from windfall import codec, stored_forms
from windfall.errors import Fenced, LogDamaged
from windfall.storage import store_checks
from windfall.structs import Struct, replace
from windfall.terms import (
    Bundle,
    Cause,
    CheckpointRef,
    Holder,
    LastProgress,
    Loss,
    Outcome,
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

VERSION = stored_forms.RECORD.version
"""Version of the records' format."""
LOSSES_MAX = 64
"""Number of losses kept in the state: enough for estimates, small enough for every record."""
INTACT_CHECKPOINTS_MIN = 2
"""Number of checkpoints always kept, so that one damaged checkpoint never loses the run (architecture, "the law of the
store")."""

_ANNOUNCED = (Cause.PREEMPTED_SAVED, Cause.PREEMPTED_UNSAVED)
_PREEMPTIONS = (*_ANNOUNCED, Cause.VANISHED)


class Claim(Struct, frozen=True):
    """A request to acquire a run.

    Attributes:
        lease_s: how long this holder's heartbeat may stay unchanged before another machine may acquire the run [s].
        command: the script's command line; empty to keep the run's command.
        bundle, code: None to keep the run's.
        generation: the generation that it leads; 0 for a machine that trains alone.
    """

    holder: Holder
    run_id: str
    lease_s: Seconds
    command: tuple[str, ...] = ()
    bundle: Bundle | None = None
    code: str | None = None
    generation: int = 0


def newest_step(state: RunState) -> Step:
    """Return the newest committed step, 0 without a checkpoint."""
    return max((checkpoint.step for checkpoint in state.checkpoints), default=Step(0))


def refuse_older(state: RunState, claim: Claim) -> None:
    """Reject a claim of a generation older than the newest that acquired the run: its machines have been replaced.

    A machine that trains alone has no generation; for it only holder and lease count.

    Raises:
        Fenced: a newer generation acquired the run.
    """
    if 0 < claim.generation < state.generation:
        raise Fenced(
            f"generation {state.generation} holds this run: generation {claim.generation}, which this machine "
            "belongs to, has ended"
        )


def acquired(
    previous: Record | None, claim: Claim, *, wall_time: WallTime, reached: LastProgress | None = None
) -> RunState:
    """Return the state after `claim` acquires the run by the record that follows `previous`.

    A holder that is still in `previous` has vanished: its lifetime and loss are added.  A failed run restarts with zero
    failures, because a user started it.

    Args:
        previous: the newest record; None for a new run.
        claim: the new holder's request.
        wall_time: the new holder's wall clock.
        reached: last progress of the vanished holder; None if it never wrote a heartbeat.
    """
    if previous is None:
        return RunState(
            claim.run_id, Term(1), Outcome.RUNNING, claim.holder, wall_time, claim.lease_s,
            attempts=1, command=claim.command, bundle=claim.bundle, code=claim.code, generation=claim.generation,
        )  # fmt: skip
    old = previous.state
    ended = old if old.holder is None else _vanished(old, wall_time=wall_time, reached=reached)
    return replace(
        ended,
        term=Term(previous.number + 1),
        outcome=Outcome.RUNNING,
        holder=claim.holder,
        holder_since=wall_time,
        lease_s=claim.lease_s,
        attempts=old.attempts + 1,
        failures=0 if old.outcome is Outcome.FAILED else old.failures,
        command=claim.command or old.command,
        bundle=claim.bundle or old.bundle,
        code=claim.code or old.code,
        generation=max(old.generation, claim.generation),
    )


def _vanished(old: RunState, *, wall_time: WallTime, reached: LastProgress | None) -> RunState:
    end = old.holder_since if reached is None else reached.wall_time
    return replace(
        old,
        lifetimes_s=_lived(old, end),
        preemptions=old.preemptions + 1,
        losses=_with_loss(old, Cause.VANISHED, wall_time, reached),
    )


def _lived(state: RunState, end: WallTime) -> Seconds:
    # If the wall clock was set back between the two readings, the lifetime is 0 rather than negative.
    return Seconds(state.lifetimes_s + max(0.0, end - state.holder_since))


def _with_loss(
    state: RunState,
    cause: Cause,
    wall_time: WallTime,
    reached: LastProgress | None = None,
    notice_s: Seconds | None = None,
) -> tuple[Loss, ...]:
    loss = Loss(cause, state.term, wall_time, newest_step(state), reached, notice_s)
    return (*state.losses, loss)[-LOSSES_MAX:]


def committed(
    state: RunState,
    ref: CheckpointRef,
    *,
    attempts: int | None = None,
    failures: int | None = None,
    costs: SaveCosts | None = None,
) -> RunState:
    """Return the state with `ref` as a live checkpoint; unchanged if it already is one (a repeated commit).

    Raises:
        Fenced: the term has ended.
    """
    if any(checkpoint.checkpoint_id == ref.checkpoint_id for checkpoint in state.checkpoints):
        return state
    _must_be_held(state)
    assert ref.term == state.term, "a holder commits only checkpoints of its own term"
    after = replace(state, checkpoints=(*state.checkpoints, ref), costs=costs or state.costs)
    return _counted(after, attempts, failures)


def with_result(state: RunState, result: Result) -> RunState:
    """Return the state with this result, replacing one with the same name and rank; unchanged if it has it.

    Raises:
        Fenced: the term has ended.
    """
    if any(known.stored.checkpoint_id == result.stored.checkpoint_id for known in state.results):
        return state
    _must_be_held(state)
    others = [other for other in state.results if (other.name, other.rank) != (result.name, result.rank)]
    return replace(state, results=(*others, result))


def dropped(state: RunState, checkpoint_ids: Collection[str]) -> RunState:
    """Return the state without these checkpoints; unchanged if none of them is live.

    Raises:
        Fenced: the term has ended.
        ValueError: fewer than two checkpoints would remain.
    """
    rest = tuple(checkpoint for checkpoint in state.checkpoints if checkpoint.checkpoint_id not in checkpoint_ids)
    if rest == state.checkpoints:
        return state
    _must_be_held(state)
    if len(rest) < INTACT_CHECKPOINTS_MIN:
        raise ValueError(
            f"{len(rest)} of {len(state.checkpoints)} checkpoints would remain, at least {INTACT_CHECKPOINTS_MIN} must"
        )
    return replace(state, checkpoints=rest)


def attempted(state: RunState, *, attempts: int, failures: int) -> RunState:
    """Return the state after the script was restarted, or failed, within the term."""
    if (attempts, failures) == (state.attempts, state.failures):
        return state
    _must_be_held(state)
    return _counted(state, attempts, failures)


def released(
    state: RunState,
    *,
    outcome: Outcome,
    cause: Cause,
    wall_time: WallTime,
    attempts: int | None = None,
    failures: int | None = None,
    costs: SaveCosts | None = None,
    notice_s: Seconds | None = None,
) -> RunState:
    """Return the state after the holder released the run; unchanged if it already did.

    Args:
        state: the newest state.
        outcome: the outcome of the run.
        cause: why the term ended; preemptions are counted, announced ones also separately (`VANISHED`: another
            machine of the generation).
        wall_time: the holder's wall clock.
        attempts: number of attempts; None if unchanged.
        failures: number of the script's own failures; None if unchanged.
        costs: current save costs; None if unknown.
        notice_s: time between the notice and the end [s]; None without a notice.
    """
    if state.holder is None:
        return state
    assert outcome is not Outcome.RUNNING, "a released run is not running"
    after = replace(
        state,
        outcome=outcome,
        holder=None,
        lifetimes_s=_lived(state, wall_time),
        preemptions=state.preemptions + (cause in _PREEMPTIONS),
        announced=state.announced + (cause in _ANNOUNCED),
        losses=_with_loss(state, cause, wall_time, notice_s=notice_s),
        costs=costs or state.costs,
    )
    return _counted(after, attempts, failures)


def _counted(state: RunState, attempts: int | None, failures: int | None) -> RunState:
    return replace(
        state,
        attempts=state.attempts if attempts is None else attempts,
        failures=state.failures if failures is None else failures,
    )


def _must_be_held(state: RunState) -> None:
    if state.holder is None:
        raise Fenced(f"term {state.term} has ended: this machine already released the run")


def next_record(head: Record | None, state: RunState, *, kind: RecordKind, nonce: str, wall_time: WallTime) -> Record:
    """Return the record that follows `head` with `state`."""
    record = Record(1 if head is None else head.number + 1, nonce, kind, wall_time, state)
    if kind is RecordKind.ACQUIRE:
        assert state.term == record.number, "the number of the acquire record is the term"
    else:
        assert head is not None, "the log starts with an acquire record"
        assert state.term == head.state.term, "only an acquire record starts a term"
    if head is not None:
        assert state.term >= head.state.term, "a term never decreases"
        assert state.attempts >= head.state.attempts, "the number of attempts never decreases"
        assert state.preemptions >= head.state.preemptions, "the number of preemptions never decreases"
        assert state.generation >= head.state.generation, "a generation never decreases"
    return record


def to_bytes(record: Record) -> bytes:
    """Write a record as JSON, version first."""
    return codec.encode_document(VERSION, "record", record)


def from_bytes(data: bytes, key: str) -> Record:
    """Read a record back.

    Args:
        data: the object's content.
        key: its key, for the error message.

    Raises:
        NewerFormat, OlderFormat: it was written by another version of Windfall.
        LogDamaged: it is not a record.
    """
    try:
        record: Record = codec.decode_stored(data, "record", Record, form=stored_forms.RECORD, what=key)
    except ValueError as error:
        raise LogDamaged(f"{key} is damaged ({error}): the run's log cannot be read past it") from error
    wrong = store_checks.wrong_with_record(record, int(key.rpartition("/")[2]))
    if wrong is not None:
        raise LogDamaged(f"{key} is not a valid record ({wrong}): the run's log cannot be read past it")
    return record
