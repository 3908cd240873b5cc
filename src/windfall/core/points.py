"""The way of a checkpoint: parts handed over, uploaded, committed, kept or deleted.

One point at a time holds the uplink, at most one whole point waits for it; the upload begins once every rank has handed
over or gone on, because ranks may write into one folder.  Every rank's part is needed: a rank without one must have
answered the request that the others saved for (then it has nothing to add), or the point is abandoned.
"""

from __future__ import annotations

from typing import Final

from windfall.core import retention
from windfall.core.lifecycle import POINT, PointState, Stage, move
from windfall.core.state import Part, Point, Turn
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
from windfall.policies.saving import rules
from windfall.records import renewed
from windfall.results import ResultStored, StoreResult
from windfall.terms import CheckpointRef, Failure, Instant, SaveKind, Step

UPLOAD_TRIES = 3
"""Uploads of a part before its point is abandoned; the store's own retries are inside each."""
COMMIT_TRIES = 5
BACKOFF_S = 1.0
"""First pause before another try [s]; it doubles with each."""


_HANDED_OVER: Final = PointState.HANDED_OVER
_UPLOADING: Final = PointState.UPLOADING
_UPLOADED: Final = PointState.UPLOADED
_COMMITTING: Final = PointState.COMMITTING
_COMMITTED: Final = PointState.COMMITTED


def settle(turn: Turn) -> None:
    """Judge the points whose last rank has spoken, and give the uplink to the next one."""
    if not turn.state.checkpoints and not turn.state.results:
        return
    incomplete = [point for point in turn.state.checkpoints if not point.whole and not point.unclear]
    for point in incomplete:
        heard = [part.rank for part in point.parts]
        missing = [
            status.rank for status in turn.state.ranks if status.rank not in heard and status.rank not in point.absent
        ]
        if not missing:
            _judge(turn, point)
        elif _hopeless(turn, point, set(missing)):
            abandon(turn, point, f"not every rank was asked in time to save at step {point.step}")
    _forward(turn)


def _hopeless(turn: Turn, point: Point, missing: set[int]) -> bool:
    """Return whether a rank is past the step of a request that was taken back, and never said yes to it."""
    if point.request == 0 or (turn.state.request is not None and turn.state.request.number == point.request):
        return False
    request = turn.state.request_of(point.request)
    silent = missing - set(() if request is None else request.answered)
    return any(status.rank in silent and status.step > point.step for status in turn.state.ranks)


def _judge(turn: Turn, point: Point) -> None:
    if point.absent and not _agreed(turn, point):
        missing = ", ".join(str(rank) for rank in point.absent)
        abandon(turn, point, f"rank {missing} did not save at step {point.step}")
        return
    if len(turn.state.checkpoints) == 1 and not turn.state.results:
        _begin(turn, point)
        return
    waiting = [one for one in turn.state.checkpoints if one.whole and not one.active]
    turn.set_point(renewed(point, whole=True))
    for other in waiting:
        if other.step == point.step:
            continue  # nothing is let go for its step
        if other.own and not point.own and point.kind is SaveKind.INSURANCE:
            abandon(turn, renewed(point, whole=True), "the user's own save of about the same time waits already")
            return
        abandon(turn, other, f"the save at step {point.step} replaces it")


def _agreed(turn: Turn, point: Point) -> bool:
    """Return whether the ranks without a part were asked the same, said yes, and so have none to give."""
    for number in {part.request for part in point.parts} - {0}:
        request = turn.state.request_of(number)
        if request is None or (request.exact and request.step != point.step):
            return False
        if not set(point.absent) <= set(request.answered):
            return False
    return True


def _forward(turn: Turn) -> None:
    waiting, active = turn.state.queued, turn.state.active
    if active is not None:
        if waiting is None or waiting.kind is not SaveKind.EMERGENCY or not _must_yield(turn, active, waiting):
            return
        abandon(turn, active, f"the emergency save at step {waiting.step} needs the uplink")
        if active.result:
            _put_back(turn, active)
        _begin(turn, waiting)
        return
    result = turn.state.results[0] if turn.state.results else None
    if waiting is not None and (result is None or turn.state.notices or waiting.number < result.number):
        _begin(turn, waiting)
    elif result is not None:
        # In the order of the hand-overs: who goes on from a checkpoint does not make again what came before it.
        _begin(turn, result)


def _put_back(turn: Turn, result: Point) -> None:
    """Let a result that gave way wait again, under another id: what was uploaded of it is deleted."""
    number = turn.state.made + 1
    again = renewed(
        result,
        checkpoint_id=f"{result.step:08d}-{turn.state.first.term}-r{number}",
        state=_HANDED_OVER,
        parts=tuple([renewed(part, shard=None, tries=0) for part in result.parts]),
        begun_at=None,
        tries=0,
    )
    turn.change(results=(again, *turn.state.results), made=number)


def _begin(turn: Turn, waiting: Point) -> None:
    """Give the uplink to a point that is whole now."""
    state = move(POINT, waiting.state, _UPLOADING)
    point = renewed(waiting, whole=True, state=state, begun_at=turn.now)
    turn.set_point(point)
    turn.order(*uploads(point))


def _must_yield(turn: Turn, active: Point, waiting: Point) -> bool:
    remaining_s = turn.remaining_s()
    if remaining_s is None or active.state is not _UPLOADING:
        return False
    costs = turn.state.costs
    commit_s = costs.commits.p95 or 0.0
    spent_s = 0.0 if active.begun_at is None else turn.now - active.begun_at
    rest_s = max(costs.upload_p95_s(active.size_bytes) - spent_s, 0.0)
    return rules.must_yield(rest_s, costs.upload_p95_s(waiting.size_bytes), commit_s, remaining_s)


def uploads(point: Point) -> tuple[UploadShard, ...]:
    """Return the commands for the parts that are not in the store yet."""
    return tuple(
        [
            UploadShard(point.checkpoint_id, part.rank, part.path, point.kind, part.identity)
            for part in point.owners
            if part.shard is None
        ]
    )


def uploaded(turn: Turn, fact: ShardUploaded) -> None:
    """A part is in the store; with the last one the point is committed."""
    point = _active(turn, fact.checkpoint_id)
    if point is None or point.state is not _UPLOADING:
        return
    parts = [
        renewed(part, shard=fact.shard, size_bytes=fact.size_bytes) if part.rank == fact.rank else part
        for part in point.parts
    ]
    point = renewed(point, parts=tuple(parts))
    owners = point.owners
    if None in [part.shard for part in owners]:
        turn.set_point(point)
        return
    if point.begun_at is not None and not point.result:
        alone = len(owners) == 1
        took_s = fact.duration_s if alone else max(turn.now - point.begun_at, fact.duration_s)
        turn.change(costs=turn.state.costs.add_upload(point.size_bytes, took_s))
    stored = move(POINT, point.state, _UPLOADED)
    point = renewed(point, state=move(POINT, stored, _COMMITTING))
    turn.set_point(point)
    turn.order(commit(turn, point))


def commit(turn: Turn, point: Point) -> CommitCheckpoint | StoreResult:
    """Return the command that commits a point."""
    owners = point.owners
    shards = [part.shard for part in owners if part.shard is not None]
    assert len(shards) == len(owners), "every part is in the store before the commit"
    generation = turn.state.first.generation
    if point.result:
        return StoreResult(point.checkpoint_id, point.result, point.step, generation, shards[0])
    kind = SaveKind.PERIODIC if point.own else point.kind
    return CommitCheckpoint(point.checkpoint_id, point.step, kind, generation, tuple(shards))


def part_failed(turn: Turn, fact: ShardFailed) -> None:
    """A part could not be uploaded: try again if the files are still the same, a bounded number of times."""
    point = _active(turn, fact.checkpoint_id)
    if point is None or point.state is not _UPLOADING:
        return
    if fact.failure is Failure.FULL:
        _make_room(turn)
    failed = [part for part in point.parts if part.rank == fact.rank]
    tries = 1 + max((part.tries for part in failed), default=0)
    if fact.failure is Failure.OVERWRITTEN:
        turn.tell(
            f"{_called(point)} was changed by the script before it was stored: save into a new file or "
            "folder each time",
            once="overwritten",
        )
        _give_up(turn, point, fact.reason)
    elif tries >= UPLOAD_TRIES or fact.failure is Failure.REFUSED or _in_vain(turn, fact):
        # What is refused as it is will be refused again, and the next save must not take its place in silence.
        reason = _as_named(fact.reason, failed)
        turn.tell(f"{_called(point)} could not be stored: {reason}")
        _floor(turn, point)
        _give_up(turn, point, reason, away=fact.failure is Failure.AWAY)
    else:
        parts = tuple(renewed(part, tries=tries) if part.rank == fact.rank else part for part in point.parts)
        turn.set_point(renewed(point, parts=parts, begun_at=None))
        turn.wake(f"upload {point.checkpoint_id}", _backoff_s(turn, tries))


def _as_named(reason: str, parts: list[Part]) -> str:
    """Return a reason with the paths as the script named them, not those of the links that hold what it handed over."""
    for part in parts:
        if part.source:
            reason = reason.replace(part.path, part.source)
    return reason


def commit_failed(turn: Turn, fact: CommitFailed) -> None:
    """A commit did not happen: try again a bounded number of times."""
    point = _active(turn, fact.checkpoint_id)
    if point is None or point.state is not _COMMITTING:
        return
    tries = point.tries + 1
    if tries >= COMMIT_TRIES or _in_vain(turn, fact):
        turn.tell(f"{_called(point)} could not be committed: {fact.reason}")
        _floor(turn, point)
        _give_up(turn, point, fact.reason, away=fact.failure is Failure.AWAY)
        return
    turn.set_point(renewed(point, tries=tries))
    turn.wake(f"commit {point.checkpoint_id}", _backoff_s(turn, tries))


def _in_vain(turn: Turn, fact: ShardFailed | CommitFailed) -> bool:
    """Return whether the script is done and the store was waited for already, as long as anybody waits for one."""
    return fact.failure is Failure.AWAY and turn.state.exit_status == 0 and turn.state.stage is Stage.DRAINING


def _called(point: Point) -> str:
    return f"the result {point.result}" if point.result else f"the save at step {point.step}"


def _floor(turn: Turn, point: Point) -> None:
    if not point.result:
        turn.change(floor_step=max(turn.state.floor_step, point.step))


def _backoff_s(turn: Turn, tries: int) -> float:
    urgent = turn.remaining_s() is not None
    return float((0.1 if urgent else BACKOFF_S) * 2 ** (tries - 1))


def try_again(turn: Turn, why: str) -> None:
    """The pause before another upload or commit is over."""
    action, _, checkpoint_id = why.partition(" ")
    point = _active(turn, checkpoint_id)
    if point is None:
        return
    if action == "upload" and point.state is _UPLOADING:
        turn.order(*uploads(point))
    elif action == "commit" and point.state is _COMMITTING:
        turn.order(commit(turn, point))


def committed(turn: Turn, fact: CheckpointCommitted) -> None:
    """A record names the point: it is what a restart restores."""
    point = _active(turn, fact.checkpoint.checkpoint_id)
    if fact.checkpoint.checkpoint_id in [live.checkpoint_id for live in turn.state.live]:
        return
    if point is not None:
        move(POINT, point.state, _COMMITTED)
    turn.change(
        checkpoints=tuple([other for other in turn.state.checkpoints if other is not point]),
        live=(*turn.state.live, fact.checkpoint),
        committed_step=fact.checkpoint.step,
        costs=turn.state.costs.add_commit(fact.duration_s),
    )
    retire(turn)


def result_stored(turn: Turn, fact: ResultStored) -> None:
    """A record names the result."""
    point = _active(turn, fact.result.stored.checkpoint_id)
    if point is not None:
        move(POINT, point.state, _COMMITTED)
        turn.drop_point(point)
    turn.change(unstored_results=turn.state.unstored_results - {(fact.result.name, fact.result.rank)})


def abandon(turn: Turn, point: Point, why: str) -> None:
    """Give a point up."""
    move(POINT, point.state, PointState.ABANDONED)
    turn.drop_point(point)
    turn.order(AbandonCheckpoint(point.checkpoint_id, why))


def _give_up(turn: Turn, point: Point, why: str, *, away: bool = False) -> None:
    """Give up a point that the script made and the store does not have."""
    state = turn.state
    turn.change(unstored_away=away)
    if not point.result:
        turn.change(unstored_step=max(state.unstored_step, point.step))
    elif all(other is point or other.of_whom != point.of_whom for other in state.results):
        turn.change(unstored_results=state.unstored_results | {point.of_whom})
    abandon(turn, point, why)


def retire(turn: Turn) -> None:
    """Let superseded points go after a time of grace."""
    state = turn.state
    going = {point.checkpoint_id for point in _superseded(turn)}
    if not going:
        if state.doomed:
            turn.change(doomed=())
        return
    doomed = [entry for entry in state.doomed if entry[1] in going]
    fresh = going.difference([checkpoint_id for _, checkpoint_id in doomed])
    at = Instant(turn.now + retention.GRACE_S)
    doomed += [(at, point.checkpoint_id) for point in state.live if point.checkpoint_id in fresh]
    turn.change(doomed=tuple(doomed))
    if doomed:
        turn.wake("retention", min(doomed)[0] - turn.now)


def last_deletions(turn: Turn) -> tuple[DeleteCheckpoints, ...]:
    """Return what the end of the run deletes: superseded points, without a time of grace, for nobody restores any more."""
    going = _superseded(turn)
    return (DeleteCheckpoints(going),) if going else ()


def delete_due(turn: Turn) -> None:
    """Delete the superseded points whose time of grace is over; not while a restore may find newer ones damaged."""
    if turn.state.stage is Stage.STARTING:
        turn.wake("retention", retention.GRACE_S)
        return
    due = {checkpoint_id for at, checkpoint_id in turn.state.doomed if at <= turn.now}
    points = tuple([point for point in _superseded(turn) if point.checkpoint_id in due])
    live = turn.state.live
    if points:
        gone = {point.checkpoint_id for point in points}
        live = tuple([point for point in live if point.checkpoint_id not in gone])
        turn.order(DeleteCheckpoints(points))
    turn.change(live=live, doomed=tuple([entry for entry in turn.state.doomed if entry[1] not in due]))
    retire(turn)


def _make_room(turn: Turn) -> None:
    """Delete the superseded points without a time of grace: there is no room for a newer one."""
    going = _superseded(turn)
    if not going or turn.state.stage is Stage.STARTING:
        return
    live = tuple([point for point in turn.state.live if point not in going])
    turn.order(DeleteCheckpoints(going))
    turn.change(live=live, doomed=())
    turn.tell(f"the store is full: {len(going)} checkpoints that would go soon are deleted now")


def _superseded(turn: Turn) -> tuple[CheckpointRef, ...]:
    state = turn.state
    return retention.superseded(state.live, keep=state.first.keep, damaged=state.damaged)


def _active(turn: Turn, checkpoint_id: str) -> Point | None:
    state = turn.state
    for point in (*state.checkpoints, *state.results) if state.results else state.checkpoints:
        if point.checkpoint_id == checkpoint_id:
            return point
    return None


def newest_step(turn: Turn) -> Step:
    """Return the newest step that is committed or on its way to be."""
    return max((turn.state.committed_step, *(point.step for point in turn.state.checkpoints if point.whole)))
