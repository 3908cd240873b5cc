"""Hand-overs of ranks: shards, which open a checkpoint or join the one of their step, and results.

Every rank's shard of a checkpoint is needed.  A second path at the same step may be that step's newest checkpoint or a
result of the script: it stays unclear until the script continues or ends.
"""

from __future__ import annotations

from typing import Final

from windfall.core import checkpoints
from windfall.core.lifecycle import CHECKPOINT, CheckpointState, transition
from windfall.core.worker_state import TrackedCheckpoint, TrackedShard, WorkerTurn
from windfall.events import RankAdvanced, ShardHandedOver
from windfall.structs import replace
from windfall.terms import SaveKind, Step

OPEN_MAX = 4
"""How many checkpoints may lack shards; beyond that, the oldest is abandoned."""
_HANDED_OVER: Final = CheckpointState.HANDED_OVER
_ASKED: Final = CheckpointState.ASKED


def handed_over(turn: WorkerTurn, fact: ShardHandedOver) -> None:
    """Add a shard on the local disk to a new checkpoint or to the one of its step; or open a result."""
    source = fact.source or fact.path
    shard = TrackedShard(fact.rank, fact.path, fact.request, fact.size_bytes, fact.identity, source=source)
    if fact.result:
        _open(turn, fact, shard)
        return
    if _updated(turn, fact):
        return
    turn.change(costs=turn.state.costs.add_stall(fact.stall_s))
    _resolve_unclear(turn, fact.rank, Step(fact.step - 1))
    before = next((known for known in turn.state.last_handovers if known[0] == fact.rank), None)
    others = tuple([known for known in turn.state.last_handovers if known[0] != fact.rank])
    turn.change(last_handovers=(*others, (fact.rank, fact.step, source)))
    for checkpoint in turn.state.checkpoints:
        if (
            checkpoint.step != fact.step
            or checkpoint.state is not _HANDED_OVER
            or checkpoint.complete
            or fact.rank in checkpoint.absent
        ):
            continue
        if all(known.rank != fact.rank for known in checkpoint.shards):
            _join(turn, checkpoint, shard, by_user=_is_by_user(turn, fact))
            return
    again = before is not None and before[1] == fact.step and before[2] != source
    unclear = again and fact.request == 0
    _open(turn, fact, shard, unclear=unclear)
    if unclear:
        turn.log(
            f"rank {fact.rank} handed over another path at step {fact.step}: it becomes a separate checkpoint when the step "
            "ends, or a result if the script ends first; call wf.step() between saves, put files that belong together into "
            "one folder, and save results with wf.save_result(path)",
            once="two paths",
        )


def _updated(turn: WorkerTurn, fact: ShardHandedOver) -> bool:
    """Update a waiting shard whose folder has grown or was handed over again; return whether there is one."""
    for checkpoint in turn.state.checkpoints:
        if checkpoint.step != fact.step or checkpoint.state is not _HANDED_OVER or checkpoint.complete:
            continue
        if any((shard.rank, shard.path) == (fact.rank, fact.path) for shard in checkpoint.shards):
            turn.set_checkpoint(
                replace(checkpoint, shards=_refreshed(checkpoint.shards, fact.path, fact.identity, fact.size_bytes))
            )
            return True
    return False


def _refreshed(shards: tuple[TrackedShard, ...], path: str, identity: str, size_bytes: int) -> tuple[TrackedShard, ...]:
    """Return the shards with the current size and identity of those at a path."""
    return tuple(
        [replace(shard, identity=identity, size_bytes=size_bytes) if shard.path == path else shard for shard in shards]
    )


def _open(turn: WorkerTurn, fact: ShardHandedOver, shard: TrackedShard, *, unclear: bool = False) -> None:
    state = turn.state
    number = state.checkpoint_count + 1
    origin = f"p{number}" if fact.request == 0 else f"{fact.request}.{number}"
    checkpoint = TrackedCheckpoint(
        checkpoint_id=f"{fact.step:08d}-{state.first.term}-{f'r{number}' if fact.result else origin}",
        step=fact.step,
        kind=SaveKind.RESULT if fact.result else _kind(turn, fact.request),
        request=fact.request,
        state=transition(CHECKPOINT, _ASKED, _HANDED_OVER),
        shards=(shard,),
        absent=tuple([rank for rank, step in state.moved if step >= fact.step and rank != fact.rank])
        if state.moved
        else (),
        complete=bool(fact.result),
        number=number,
        result=fact.result,
        unclear=unclear,
        by_user=_is_by_user(turn, fact),
    )
    turn.change(checkpoint_count=number)
    if fact.result:
        _queue(turn, checkpoint)
        return
    turn.change(checkpoints=(*state.checkpoints, checkpoint))
    if len(turn.state.checkpoints) <= OPEN_MAX:
        return
    incomplete = [one for one in turn.state.checkpoints if not (one.complete or one.active or one.unclear)]
    if len(incomplete) > OPEN_MAX:
        checkpoints.abandon(turn, incomplete[0], "shards of other ranks never arrived")


def _queue(turn: WorkerTurn, result: TrackedCheckpoint) -> None:
    """Queue a result for the uplink; it replaces a waiting one with its name and rank."""
    for other in turn.state.results:
        if other.result_key == result.result_key and not other.active:
            checkpoints.abandon(turn, other, "a newer result with this name replaces it")
    turn.change(results=(*turn.state.results, result))


def _resolve_unclear(turn: WorkerTurn, rank: int, step: Step) -> None:
    """Resolve unclear hand-overs of a rank that is past their step: each is the newest checkpoint of its step."""
    for checkpoint in turn.state.checkpoints:
        if checkpoint.unclear and checkpoint.step <= step and any(shard.rank == rank for shard in checkpoint.shards):
            turn.set_checkpoint(replace(checkpoint, unclear=False))


def _join(turn: WorkerTurn, checkpoint: TrackedCheckpoint, shard: TrackedShard, *, by_user: bool) -> None:
    kind = _kind(turn, shard.request) if shard.request else checkpoint.kind
    shards, request = (
        _refreshed(checkpoint.shards, shard.path, shard.identity, shard.size_bytes),
        max(checkpoint.request, shard.request),
    )
    turn.set_checkpoint(
        replace(checkpoint, shards=(*shards, shard), kind=kind, request=request, by_user=checkpoint.by_user or by_user)
    )


def _is_by_user(turn: WorkerTurn, fact: ShardHandedOver) -> bool:
    """Return whether a hand-over is the user's own: not requested, or due by the schedule of the user's own saves."""
    if fact.unrequested or fact.request == 0:
        return True
    in_progress = {checkpoint.step for checkpoint in turn.state.checkpoints if checkpoint.by_user}
    steps = in_progress.union(
        [checkpoint.step for checkpoint in turn.state.live if checkpoint.kind is SaveKind.PERIODIC]
    )
    return checkpoints.is_due_anyway(fact.step, sorted(steps))


def _kind(turn: WorkerTurn, number: int) -> SaveKind:
    if number == 0:
        return SaveKind.PERIODIC
    request = turn.state.request_of(number)
    return SaveKind.INSURANCE if request is None else request.kind


def moved_on(turn: WorkerTurn, fact: RankAdvanced) -> None:
    """Record that a rank has no more shards up to a step; possibly before other ranks hand over theirs."""
    newest = dict(turn.state.moved)
    newest[fact.rank] = fact.step
    turn.change(moved=tuple(sorted(newest.items())))
    _resolve_unclear(turn, fact.rank, fact.step)
    for checkpoint in turn.state.checkpoints:
        if checkpoint.complete or checkpoint.step > fact.step or fact.rank in checkpoint.absent:
            continue
        if all(shard.rank != fact.rank for shard in checkpoint.shards):
            turn.set_checkpoint(replace(checkpoint, absent=(*checkpoint.absent, fact.rank)))


def script_ended(turn: WorkerTurn, *, in_order: bool) -> None:
    """Close open checkpoints when the script has ended; after an orderly end, missing ranks have no shard."""
    settle_unclear(turn)
    for checkpoint in turn.state.checkpoints:
        if checkpoint.complete:
            continue
        if not in_order:
            checkpoints.abandon(turn, checkpoint, "the script died before every rank handed over its shard")
            continue
        ranks = {status.rank for status in turn.state.ranks} - {shard.rank for shard in checkpoint.shards}
        turn.set_checkpoint(replace(checkpoint, absent=tuple(sorted(ranks))))


def settle_unclear(turn: WorkerTurn) -> None:
    """Store unclear hand-overs as results, since the script does not continue."""
    unclear = [checkpoint for checkpoint in turn.state.checkpoints if checkpoint.unclear]
    taken = {result.result_key for result in turn.state.results}
    names = {
        checkpoint.number: [_name(shard, taken) for shard in checkpoint.distinct_shards]
        for checkpoint in reversed(unclear)
    }
    for checkpoint in unclear:
        _become_results(turn, checkpoint, names[checkpoint.number])


def _name(shard: TrackedShard, taken: set[tuple[str, int]]) -> str:
    """Return the last component of a path, preceded by its parents where a newer path has the same name."""
    *above, name = shard.source.strip("/").split("/")
    while (name, shard.rank) in taken:
        name = f"{above.pop()}-{name}" if above else f"{name}-again"
    taken.add((name, shard.rank))
    return name


def _become_results(turn: WorkerTurn, checkpoint: TrackedCheckpoint, names: list[str]) -> None:
    """Turn an unclear hand-over into results: the script ended without another step."""
    turn.drop_checkpoint(checkpoint)
    for shard, name in zip(checkpoint.distinct_shards, names, strict=True):
        number = turn.state.checkpoint_count + 1
        turn.change(checkpoint_count=number)
        result = replace(
            checkpoint,
            checkpoint_id=f"{checkpoint.step:08d}-{turn.state.first.term}-r{number}",
            kind=SaveKind.RESULT,
            shards=(shard,),
            complete=True,
            number=number,
            result=name,
            unclear=False,
        )
        _queue(turn, result)
        turn.log(
            f"{name} was handed over after the last checkpoint and is stored as a result: download it with "
            f"`windfall get RUN --result {name}`; save results with wf.save_result(path)"
        )
