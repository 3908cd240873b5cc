"""What ranks hand over: parts that open a checkpoint or join the one of their step, and results.

Every rank's part of a checkpoint is needed.  Another path at a step that has one already may be that step's newest
checkpoint, or what the script made: it is unclear until the script goes on, or ends.
"""

from __future__ import annotations

from typing import Final

from windfall.core import points, retention
from windfall.core.lifecycle import POINT, PointState, move
from windfall.core.state import Part, Point, Turn
from windfall.events import RankMovedOn, ShardHandedOver
from windfall.records import renewed
from windfall.terms import SaveKind, Step

OPEN_MAX = 4
"""Points of which parts are missing; the oldest is abandoned when there are more."""
_HANDED_OVER: Final = PointState.HANDED_OVER
_ASKED: Final = PointState.ASKED


def handed_over(turn: Turn, fact: ShardHandedOver) -> None:
    """A rank's part lies on the local disk: it opens a point, or joins the one of its step; or it is a result."""
    source = fact.source or fact.path
    part = Part(fact.rank, fact.path, fact.request, fact.size_bytes, fact.identity, source=source)
    if fact.result:
        _open(turn, fact, part)
        return
    if _grown(turn, fact):
        return
    turn.change(costs=turn.state.costs.add_stall(fact.stall_s))
    _clear(turn, fact.rank, Step(fact.step - 1))
    before = next((known for known in turn.state.handed if known[0] == fact.rank), None)
    others = tuple([known for known in turn.state.handed if known[0] != fact.rank])
    turn.change(handed=(*others, (fact.rank, fact.step, source)))
    for point in turn.state.checkpoints:
        if point.step != fact.step or point.state is not _HANDED_OVER or point.whole or fact.rank in point.absent:
            continue
        if all(known.rank != fact.rank for known in point.parts):
            _join(turn, point, part, own=_own(turn, fact))
            return
    again = before is not None and before[1] == fact.step and before[2] != source
    unclear = again and fact.request == 0
    _open(turn, fact, part, unclear=unclear)
    if unclear:
        turn.tell(
            f"rank {fact.rank} handed over another path at step {fact.step}: it is kept here, and stored as a checkpoint of "
            "its own when the step has ended, or as a result if the script ends first; call wf.step() between saves, put "
            "what belongs together into one folder, and hand over what is a result with wf.save_result(path)",
            once="two paths",
        )


def _grown(turn: Turn, fact: ShardHandedOver) -> bool:
    """Take in that a folder which waits for other ranks has grown, or that its rank names it again."""
    for point in turn.state.checkpoints:
        if point.step != fact.step or point.state is not _HANDED_OVER or point.whole:
            continue
        if any((part.rank, part.path) == (fact.rank, fact.path) for part in point.parts):
            turn.set_point(renewed(point, parts=_as_now(point.parts, fact.path, fact.identity, fact.size_bytes)))
            return True
    return False


def _as_now(parts: tuple[Part, ...], path: str, identity: str, size_bytes: int) -> tuple[Part, ...]:
    """Return the parts, those that lie at a path as they are now."""
    return tuple(
        [renewed(part, identity=identity, size_bytes=size_bytes) if part.path == path else part for part in parts]
    )


def _open(turn: Turn, fact: ShardHandedOver, part: Part, *, unclear: bool = False) -> None:
    state = turn.state
    number = state.made + 1
    origin = f"p{number}" if fact.request == 0 else f"{fact.request}.{number}"
    point = Point(
        checkpoint_id=f"{fact.step:08d}-{state.first.term}-{f'r{number}' if fact.result else origin}",
        step=fact.step,
        kind=SaveKind.RESULT if fact.result else _kind(turn, fact.request),
        request=fact.request,
        state=move(POINT, _ASKED, _HANDED_OVER),
        parts=(part,),
        absent=tuple([rank for rank, step in state.moved if step >= fact.step and rank != fact.rank])
        if state.moved
        else (),
        whole=bool(fact.result),
        number=number,
        result=fact.result,
        unclear=unclear,
        own=_own(turn, fact),
    )
    turn.change(made=number)
    if fact.result:
        _queue(turn, point)
        return
    turn.change(checkpoints=(*state.checkpoints, point))
    if len(turn.state.checkpoints) <= OPEN_MAX:
        return
    incomplete = [one for one in turn.state.checkpoints if not (one.whole or one.active or one.unclear)]
    if len(incomplete) > OPEN_MAX:
        points.abandon(turn, incomplete[0], "parts of other ranks never came")


def _queue(turn: Turn, result: Point) -> None:
    """Let a result wait for the uplink; an older one of its name and rank need not be stored any more."""
    for other in turn.state.results:
        if other.of_whom == result.of_whom and not other.active:
            points.abandon(turn, other, "a newer result of its name was handed over")
    turn.change(results=(*turn.state.results, result))


def _clear(turn: Turn, rank: int, step: Step) -> None:
    """A rank is past a step: what it handed over there beside another path is the step's newest checkpoint."""
    for point in turn.state.checkpoints:
        if point.unclear and point.step <= step and any(part.rank == rank for part in point.parts):
            turn.set_point(renewed(point, unclear=False))


def _join(turn: Turn, point: Point, part: Part, *, own: bool) -> None:
    kind = _kind(turn, part.request) if part.request else point.kind
    parts, request = _as_now(point.parts, part.path, part.identity, part.size_bytes), max(point.request, part.request)
    turn.set_point(renewed(point, parts=(*parts, part), kind=kind, request=request, own=point.own or own))


def _own(turn: Turn, fact: ShardHandedOver) -> bool:
    """Say whether a hand-over is the user's own: not asked for, or due by the schedule of those that were not."""
    if fact.own or fact.request == 0:
        return True
    of_points = {point.step for point in turn.state.checkpoints if point.own}
    steps = of_points.union([point.step for point in turn.state.live if point.kind is SaveKind.PERIODIC])
    return retention.is_due_anyway(fact.step, sorted(steps))


def _kind(turn: Turn, number: int) -> SaveKind:
    if number == 0:
        return SaveKind.PERIODIC
    request = turn.state.request_of(number)
    return SaveKind.INSURANCE if request is None else request.kind


def moved_on(turn: Turn, fact: RankMovedOn) -> None:
    """A rank has no (further) part at a step, nor at earlier ones; it may say so before others hand over theirs."""
    newest = dict(turn.state.moved)
    newest[fact.rank] = fact.step
    turn.change(moved=tuple(sorted(newest.items())))
    _clear(turn, fact.rank, fact.step)
    for point in turn.state.checkpoints:
        if point.whole or point.step > fact.step or fact.rank in point.absent:
            continue
        if all(part.rank != fact.rank for part in point.parts):
            turn.set_point(renewed(point, absent=(*point.absent, fact.rank)))


def script_gone(turn: Turn, *, in_order: bool) -> None:
    """No rank will hand over anything more: after an orderly end the missing ranks simply have no part."""
    settle_unclear(turn)
    for point in turn.state.checkpoints:
        if point.whole:
            continue
        if not in_order:
            points.abandon(turn, point, "the script died before every rank had handed over")
            continue
        ranks = {status.rank for status in turn.state.ranks} - {part.rank for part in point.parts}
        turn.set_point(renewed(point, absent=tuple(sorted(ranks))))


def settle_unclear(turn: Turn) -> None:
    """Nobody waits any longer to see what was handed over beside another path: it is stored as a result."""
    unclear = [point for point in turn.state.checkpoints if point.unclear]
    taken = {result.of_whom for result in turn.state.results}
    names = {point.number: [_name(part, taken) for part in point.owners] for point in reversed(unclear)}
    for point in unclear:
        _become_results(turn, point, names[point.number])


def _name(part: Part, taken: set[tuple[str, int]]) -> str:
    """Return the last of a path's names; with those before it where a newer path has that one."""
    *above, name = part.source.strip("/").split("/")
    while (name, part.rank) in taken:
        name = f"{above.pop()}-{name}" if above else f"{name}-again"
    taken.add((name, part.rank))
    return name


def _become_results(turn: Turn, point: Point, names: list[str]) -> None:
    """The script ended behind what it had handed over beside another path: that is what it made."""
    turn.drop_point(point)
    for part, name in zip(point.owners, names, strict=True):
        number = turn.state.made + 1
        turn.change(made=number)
        result = renewed(
            point,
            checkpoint_id=f"{point.step:08d}-{turn.state.first.term}-r{number}",
            kind=SaveKind.RESULT,
            parts=(part,),
            whole=True,
            number=number,
            result=name,
            unclear=False,
        )
        _queue(turn, result)
        turn.tell(
            f"{name} was handed over behind the last checkpoint: it is stored as a result, which "
            f"`windfall get RUN --result {name}` brings back; wf.save_result(path) says so at once"
        )
