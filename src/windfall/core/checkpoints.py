"""The life of a checkpoint: shards are handed over and uploaded; the checkpoint is committed, then kept or deleted.

One checkpoint at a time holds the uplink, and at most one complete checkpoint waits for it.  The upload starts once every
rank has handed over or moved on, because ranks may write into one folder.  Every rank's shard is needed: a rank without
one must have agreed to the request that the others saved for (then it has nothing to add), or the checkpoint is abandoned.

Which committed checkpoints may be deleted (thesis, section 5.2): insurance, emergency and stop saves with newer ones.

Pure: the result follows from the live checkpoints alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from windfall.core.lifecycle import CHECKPOINT, CheckpointState, WorkerStage, transition
from windfall.core.worker_state import TrackedCheckpoint, TrackedShard, WorkerTurn
from windfall.events import (
    AbandonCheckpoint,
    CheckpointCommitted,
    CommitCheckpoint,
    CommitFailed,
    DeleteCheckpoints,
    ShardFailed,
    ShardUploaded,
    UploadShard,
)
from windfall.policies.checkpointing import rules
from windfall.results import ResultStored, StoreResult
from windfall.structs import replace
from windfall.terms import CheckpointRef, Failure, Instant, SaveKind, Step

INTACT_MIN = 2
"""How many intact checkpoints always stay: the newest may turn out to be damaged."""
GRACE_S = 60.0
"""How long a superseded checkpoint stays [s]: a contender may be restoring it, and deletes cannot be fenced."""

_PERIODIC: Final = SaveKind.PERIODIC


def is_due_anyway(step: Step, own: Sequence[Step]) -> bool:
    """Return whether the user's own evenly spaced saves include this step: then it stays, although it was requested.

    A script that receives a request at a step where it saves anyway hands over only once.

    Args:
        step: of the save.
        own: steps of the user's own saves, in ascending order.
    """
    if len(own) < 2 or step <= own[-1]:
        return step in own
    return (step - own[-1]) % (own[-1] - own[-2]) == 0


def superseded(
    checkpoints: tuple[CheckpointRef, ...], *, keep: int | None = None, damaged: frozenset[str] = frozenset()
) -> tuple[CheckpointRef, ...]:
    """Return the checkpoints that may be deleted.

    The two newest intact checkpoints stay, whatever their kind.  Of the others, periodic ones stay (or their `keep`
    newest); insurance, emergency and stop saves are deleted.

    Args:
        checkpoints: the live checkpoints, in commit order.
        keep: how many periodic checkpoints to keep; None for all.
        damaged: ids of checkpoints known to be damaged: they never count as intact; damaged periodic ones stay for the
            user to inspect.

    Returns:
        The superseded checkpoints, in commit order.
    """
    intact = (
        [checkpoint for checkpoint in checkpoints if checkpoint.checkpoint_id not in damaged]
        if damaged
        else checkpoints
    )
    if len(intact) < INTACT_MIN or len(checkpoints) == INTACT_MIN:
        return ()
    periodic = [checkpoint for checkpoint in intact if checkpoint.kind is _PERIODIC]
    if not periodic and not damaged:
        return checkpoints[:-INTACT_MIN]
    kept = {checkpoint.checkpoint_id for checkpoint in intact[-INTACT_MIN:]}
    if periodic:
        count = len(periodic) if keep is None else min(keep, len(periodic))
        kept |= {checkpoint.checkpoint_id for checkpoint in periodic[len(periodic) - count :]}
    gone = [checkpoint for checkpoint in checkpoints if checkpoint.checkpoint_id not in kept]
    return tuple(
        [
            checkpoint
            for checkpoint in gone
            if checkpoint.kind is not _PERIODIC or checkpoint.checkpoint_id not in damaged
        ]
    )


UPLOAD_TRIES = 3
"""Uploads of a shard before its checkpoint is abandoned; each includes the store's own retries."""
COMMIT_TRIES = 5
BACKOFF_S = 1.0
"""First pause before a retry [s]; doubles with each."""


_HANDED_OVER: Final = CheckpointState.HANDED_OVER
_UPLOADING: Final = CheckpointState.UPLOADING
_UPLOADED: Final = CheckpointState.UPLOADED
_COMMITTING: Final = CheckpointState.COMMITTING
_COMMITTED: Final = CheckpointState.COMMITTED


def settle(turn: WorkerTurn) -> None:
    """Complete or abandon the checkpoints that all ranks have dealt with, and start the next upload."""
    if not turn.state.checkpoints and not turn.state.results:
        return
    incomplete = [
        checkpoint for checkpoint in turn.state.checkpoints if not checkpoint.complete and not checkpoint.unclear
    ]
    for checkpoint in incomplete:
        present = [shard.rank for shard in checkpoint.shards]
        missing = [
            status.rank
            for status in turn.state.ranks
            if status.rank not in present and status.rank not in checkpoint.absent
        ]
        if not missing:
            _complete(turn, checkpoint)
        elif _cannot_complete(turn, checkpoint, set(missing)):
            abandon(turn, checkpoint, f"not all ranks received the request to save at step {checkpoint.step} in time")
    _start_next(turn)


def _cannot_complete(turn: WorkerTurn, checkpoint: TrackedCheckpoint, missing: set[int]) -> bool:
    """Return whether a rank is past the step of a withdrawn request and never agreed to it."""
    if checkpoint.request == 0 or (turn.state.request is not None and turn.state.request.number == checkpoint.request):
        return False
    request = turn.state.request_of(checkpoint.request)
    silent = missing - set(() if request is None else request.answered)
    return any(status.rank in silent and status.step > checkpoint.step for status in turn.state.ranks)


def _complete(turn: WorkerTurn, checkpoint: TrackedCheckpoint) -> None:
    if checkpoint.absent and not _absent_agreed(turn, checkpoint):
        missing = ", ".join(str(rank) for rank in checkpoint.absent)
        abandon(turn, checkpoint, f"rank {missing} did not save at step {checkpoint.step}")
        return
    if len(turn.state.checkpoints) == 1 and not turn.state.results:
        _start_upload(turn, checkpoint)
        return
    waiting = [one for one in turn.state.checkpoints if one.complete and not one.active]
    turn.set_checkpoint(replace(checkpoint, complete=True))
    for other in waiting:
        if other.step == checkpoint.step:
            continue  # both checkpoints of a step stay
        if other.by_user and not checkpoint.by_user and checkpoint.kind is SaveKind.INSURANCE:
            abandon(
                turn,
                replace(checkpoint, complete=True),
                "the user's own save from about the same time is already queued",
            )
            return
        abandon(turn, other, f"the save at step {checkpoint.step} replaces it")


def _absent_agreed(turn: WorkerTurn, checkpoint: TrackedCheckpoint) -> bool:
    """Return whether the ranks without a shard agreed to the same request, and so have nothing to add."""
    for number in {shard.request for shard in checkpoint.shards} - {0}:
        request = turn.state.request_of(number)
        if request is None or (request.exact and request.step != checkpoint.step):
            return False
        if not set(checkpoint.absent) <= set(request.answered):
            return False
    return True


def _start_next(turn: WorkerTurn) -> None:
    waiting, active = turn.state.queued, turn.state.active
    if active is not None:
        if waiting is None or waiting.kind is not SaveKind.EMERGENCY or not _must_yield(turn, active, waiting):
            return
        abandon(turn, active, f"the emergency save at step {waiting.step} needs the uplink")
        if active.result:
            _requeue(turn, active)
        _start_upload(turn, waiting)
        return
    result = turn.state.results[0] if turn.state.results else None
    if waiting is not None and (result is None or turn.state.notices or waiting.number < result.number):
        _start_upload(turn, waiting)
    elif result is not None:
        # In hand-over order: a script that resumes from a checkpoint does not repeat earlier results.
        _start_upload(turn, result)


def _requeue(turn: WorkerTurn, result: TrackedCheckpoint) -> None:
    """Queue a displaced result again, under a new id: its partial upload is deleted."""
    number = turn.state.checkpoint_count + 1
    again = replace(
        result,
        checkpoint_id=f"{result.step:08d}-{turn.state.first.term}-r{number}",
        state=_HANDED_OVER,
        shards=tuple([replace(shard, stored=None, tries=0) for shard in result.shards]),
        upload_started_at=None,
        tries=0,
    )
    turn.change(results=(again, *turn.state.results), checkpoint_count=number)


def _start_upload(turn: WorkerTurn, waiting: TrackedCheckpoint) -> None:
    """Give the uplink to a complete checkpoint or result."""
    state = transition(CHECKPOINT, waiting.state, _UPLOADING)
    checkpoint = replace(waiting, complete=True, state=state, upload_started_at=turn.now)
    turn.set_checkpoint(checkpoint)
    turn.emit(*uploads(checkpoint))


def _must_yield(turn: WorkerTurn, active: TrackedCheckpoint, waiting: TrackedCheckpoint) -> bool:
    remaining_s = turn.remaining_s()
    if remaining_s is None or active.state is not _UPLOADING:
        return False
    costs = turn.state.costs
    commit_s = costs.commits.p95 or 0.0
    spent_s = 0.0 if active.upload_started_at is None else turn.now - active.upload_started_at
    rest_s = max(costs.upload_p95_s(active.size_bytes) - spent_s, 0.0)
    return rules.must_yield(rest_s, costs.upload_p95_s(waiting.size_bytes), commit_s, remaining_s)


def uploads(checkpoint: TrackedCheckpoint) -> tuple[UploadShard, ...]:
    """Return the commands for the shards that are not in the store yet."""
    return tuple(
        [
            UploadShard(checkpoint.checkpoint_id, shard.rank, shard.path, checkpoint.kind, shard.identity)
            for shard in checkpoint.distinct_shards
            if shard.stored is None
        ]
    )


def uploaded(turn: WorkerTurn, fact: ShardUploaded) -> None:
    """Record that a shard is in the store, and commit the checkpoint with the last one."""
    checkpoint = _active(turn, fact.checkpoint_id)
    if checkpoint is None or checkpoint.state is not _UPLOADING:
        return
    shards = [
        replace(shard, stored=fact.shard, size_bytes=fact.size_bytes) if shard.rank == fact.rank else shard
        for shard in checkpoint.shards
    ]
    checkpoint = replace(checkpoint, shards=tuple(shards))
    distinct_shards = checkpoint.distinct_shards
    if None in [shard.stored for shard in distinct_shards]:
        turn.set_checkpoint(checkpoint)
        return
    if checkpoint.upload_started_at is not None and not checkpoint.result:
        alone = len(distinct_shards) == 1
        took_s = fact.duration_s if alone else max(turn.now - checkpoint.upload_started_at, fact.duration_s)
        turn.change(costs=turn.state.costs.add_upload(checkpoint.size_bytes, took_s))
    stored = transition(CHECKPOINT, checkpoint.state, _UPLOADED)
    checkpoint = replace(checkpoint, state=transition(CHECKPOINT, stored, _COMMITTING))
    turn.set_checkpoint(checkpoint)
    turn.emit(commit(turn, checkpoint))


def commit(turn: WorkerTurn, checkpoint: TrackedCheckpoint) -> CommitCheckpoint | StoreResult:
    """Return the command that commits a checkpoint or stores a result."""
    distinct_shards = checkpoint.distinct_shards
    shards = [shard.stored for shard in distinct_shards if shard.stored is not None]
    assert len(shards) == len(distinct_shards), "every shard is in the store before the commit"
    generation = turn.state.first.generation
    if checkpoint.result:
        return StoreResult(checkpoint.checkpoint_id, checkpoint.result, checkpoint.step, generation, shards[0])
    kind = SaveKind.PERIODIC if checkpoint.by_user else checkpoint.kind
    return CommitCheckpoint(checkpoint.checkpoint_id, checkpoint.step, kind, generation, tuple(shards))


def shard_failed(turn: WorkerTurn, fact: ShardFailed) -> None:
    """Retry a failed upload a bounded number of times, if the files have not changed."""
    checkpoint = _active(turn, fact.checkpoint_id)
    if checkpoint is None or checkpoint.state is not _UPLOADING:
        return
    if fact.failure is Failure.FULL:
        _free_space(turn)
    failed = [shard for shard in checkpoint.shards if shard.rank == fact.rank]
    tries = 1 + max((shard.tries for shard in failed), default=0)
    if fact.failure is Failure.OVERWRITTEN:
        turn.log(
            f"{_label(checkpoint)} was changed by the script before it was stored: write each save to a new file or folder",
            once="overwritten",
        )
        _give_up(turn, checkpoint, fact.reason)
    elif tries >= UPLOAD_TRIES or fact.failure is Failure.REFUSED or _store_gone(turn, fact):
        # A refused upload is refused again, and the next save must not replace it silently.
        reason = _with_user_paths(fact.reason, failed)
        turn.log(f"{_label(checkpoint)} could not be stored: {reason}")
        _raise_floor(turn, checkpoint)
        _give_up(turn, checkpoint, reason, away=fact.failure is Failure.UNREACHABLE)
    else:
        shards = tuple(replace(shard, tries=tries) if shard.rank == fact.rank else shard for shard in checkpoint.shards)
        turn.set_checkpoint(replace(checkpoint, shards=shards, upload_started_at=None))
        turn.set_timer(f"upload {checkpoint.checkpoint_id}", _backoff_s(turn, tries))


def _with_user_paths(reason: str, shards: list[TrackedShard]) -> str:
    """Return a reason with the paths as the script named them, not those of the hard links that keep the files."""
    for shard in shards:
        if shard.source:
            reason = reason.replace(shard.path, shard.source)
    return reason


def commit_failed(turn: WorkerTurn, fact: CommitFailed) -> None:
    """Retry a failed commit a bounded number of times."""
    checkpoint = _active(turn, fact.checkpoint_id)
    if checkpoint is None or checkpoint.state is not _COMMITTING:
        return
    tries = checkpoint.tries + 1
    if tries >= COMMIT_TRIES or _store_gone(turn, fact):
        turn.log(f"{_label(checkpoint)} could not be committed: {fact.reason}")
        _raise_floor(turn, checkpoint)
        _give_up(turn, checkpoint, fact.reason, away=fact.failure is Failure.UNREACHABLE)
        return
    turn.set_checkpoint(replace(checkpoint, tries=tries))
    turn.set_timer(f"commit {checkpoint.checkpoint_id}", _backoff_s(turn, tries))


def _store_gone(turn: WorkerTurn, fact: ShardFailed | CommitFailed) -> bool:
    """Return whether the script is done and the store has been unreachable for the full waiting time."""
    return (
        fact.failure is Failure.UNREACHABLE and turn.state.exit_status == 0 and turn.state.stage is WorkerStage.DRAINING
    )


def _label(checkpoint: TrackedCheckpoint) -> str:
    return f"the result {checkpoint.result}" if checkpoint.result else f"the save at step {checkpoint.step}"


def _raise_floor(turn: WorkerTurn, checkpoint: TrackedCheckpoint) -> None:
    if not checkpoint.result:
        turn.change(floor_step=max(turn.state.floor_step, checkpoint.step))


def _backoff_s(turn: WorkerTurn, tries: int) -> float:
    urgent = turn.remaining_s() is not None
    return float((0.1 if urgent else BACKOFF_S) * 2 ** (tries - 1))


def retry(turn: WorkerTurn, reason: str) -> None:
    """Retry an upload or commit after its pause."""
    action, _, checkpoint_id = reason.partition(" ")
    checkpoint = _active(turn, checkpoint_id)
    if checkpoint is None:
        return
    if action == "upload" and checkpoint.state is _UPLOADING:
        turn.emit(*uploads(checkpoint))
    elif action == "commit" and checkpoint.state is _COMMITTING:
        turn.emit(commit(turn, checkpoint))


def committed(turn: WorkerTurn, fact: CheckpointCommitted) -> None:
    """Record a commit: a restart now restores this checkpoint."""
    checkpoint = _active(turn, fact.checkpoint.checkpoint_id)
    if fact.checkpoint.checkpoint_id in [live.checkpoint_id for live in turn.state.live]:
        return
    if checkpoint is not None:
        transition(CHECKPOINT, checkpoint.state, _COMMITTED)
    turn.change(
        checkpoints=tuple([other for other in turn.state.checkpoints if other is not checkpoint]),
        live=(*turn.state.live, fact.checkpoint),
        committed_step=fact.checkpoint.step,
        costs=turn.state.costs.add_commit(fact.duration_s),
    )
    expire_superseded(turn)


def result_stored(turn: WorkerTurn, fact: ResultStored) -> None:
    """Record that a result is stored."""
    checkpoint = _active(turn, fact.result.stored.checkpoint_id)
    if checkpoint is not None:
        transition(CHECKPOINT, checkpoint.state, _COMMITTED)
        turn.drop_checkpoint(checkpoint)
    turn.change(unstored_results=turn.state.unstored_results - {(fact.result.name, fact.result.rank)})


def abandon(turn: WorkerTurn, checkpoint: TrackedCheckpoint, reason: str) -> None:
    """Abandon a checkpoint or result."""
    transition(CHECKPOINT, checkpoint.state, CheckpointState.ABANDONED)
    turn.drop_checkpoint(checkpoint)
    turn.emit(AbandonCheckpoint(checkpoint.checkpoint_id, reason))


def _give_up(turn: WorkerTurn, checkpoint: TrackedCheckpoint, reason: str, *, away: bool = False) -> None:
    """Give up a checkpoint or result that could not be stored."""
    state = turn.state
    turn.change(unstored_away=away)
    if not checkpoint.result:
        turn.change(unstored_step=max(state.unstored_step, checkpoint.step))
    elif all(other is checkpoint or other.result_key != checkpoint.result_key for other in state.results):
        turn.change(unstored_results=state.unstored_results | {checkpoint.result_key})
    abandon(turn, checkpoint, reason)


def expire_superseded(turn: WorkerTurn) -> None:
    """Schedule superseded checkpoints for deletion after a grace period."""
    state = turn.state
    superseded = {checkpoint.checkpoint_id for checkpoint in _superseded(turn)}
    if not superseded:
        if state.expiring:
            turn.change(expiring=())
        return
    expiring = [entry for entry in state.expiring if entry[1] in superseded]
    fresh = superseded.difference([checkpoint_id for _, checkpoint_id in expiring])
    at = Instant(turn.now + GRACE_S)
    expiring += [(at, checkpoint.checkpoint_id) for checkpoint in state.live if checkpoint.checkpoint_id in fresh]
    turn.change(expiring=tuple(expiring))
    if expiring:
        turn.set_timer("retention", min(expiring)[0] - turn.now)


def final_deletions(turn: WorkerTurn) -> tuple[DeleteCheckpoints, ...]:
    """Return the deletions at the end of the run: superseded checkpoints, without grace, since nothing restores them now."""
    superseded = _superseded(turn)
    return (DeleteCheckpoints(superseded),) if superseded else ()


def delete_due(turn: WorkerTurn) -> None:
    """Delete superseded checkpoints after their grace period; not while a restore may find newer ones damaged."""
    if turn.state.stage is WorkerStage.RESTORING:
        turn.set_timer("retention", GRACE_S)
        return
    due = {checkpoint_id for at, checkpoint_id in turn.state.expiring if at <= turn.now}
    checkpoints = tuple([checkpoint for checkpoint in _superseded(turn) if checkpoint.checkpoint_id in due])
    live = turn.state.live
    if checkpoints:
        gone = {checkpoint.checkpoint_id for checkpoint in checkpoints}
        live = tuple([checkpoint for checkpoint in live if checkpoint.checkpoint_id not in gone])
        turn.emit(DeleteCheckpoints(checkpoints))
    turn.change(live=live, expiring=tuple([entry for entry in turn.state.expiring if entry[1] not in due]))
    expire_superseded(turn)


def _free_space(turn: WorkerTurn) -> None:
    """Delete superseded checkpoints at once: there is no space for a newer one."""
    superseded = _superseded(turn)
    if not superseded or turn.state.stage is WorkerStage.RESTORING:
        return
    live = tuple([checkpoint for checkpoint in turn.state.live if checkpoint not in superseded])
    turn.emit(DeleteCheckpoints(superseded))
    turn.change(live=live, expiring=())
    turn.log(f"the store is full: deleting {len(superseded)} superseded checkpoints early")


def _superseded(turn: WorkerTurn) -> tuple[CheckpointRef, ...]:
    state = turn.state
    return superseded(state.live, keep=state.first.options.keep, damaged=state.damaged)


def _active(turn: WorkerTurn, checkpoint_id: str) -> TrackedCheckpoint | None:
    state = turn.state
    for checkpoint in (*state.checkpoints, *state.results) if state.results else state.checkpoints:
        if checkpoint.checkpoint_id == checkpoint_id:
            return checkpoint
    return None
