"""Asking the script for saves: publish, agree, renew, withdraw.

Agreement of several ranks: the request names a step beyond every rank's; a look after the publication must still see
every rank below it, otherwise it is withdrawn and a later step proposed, with twice the margin.  Over several machines
the look is put together from those of all (`agent.peers_assembly`): none comes while a machine has not looked again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from windfall.core import points
from windfall.core.lifecycle import Stage
from windfall.core.state import REQUESTS_KEPT, Request, Turn, standings
from windfall.events import PublishSave, RanksObserved, SaveAnswered, WithdrawSave
from windfall.policies.saving.decide import Choice, SavingView, decide
from windfall.terms import Instant, SaveKind, Step

MARGIN_STEPS = 2
MARGIN_S = 0.05
"""A request to several ranks lies at least so far ahead, and as much farther as the way to other machines takes."""
MISSES_MAX = 10
"""The margin doubles with each failed agreement, up to so many times."""
RENEW_SHARE = 0.1
"""A planned save is moved when it moves by more than this share of its distance from the last save."""


def earliest_step(turn: Turn) -> Step:
    """Return the first step at which all ranks can still be asked to save."""
    state = turn.state
    if len(state.ranks) <= 1:
        return Step(state.step + 1)
    step_s = state.costs.step_mean_s
    moved, margin = 0, MARGIN_STEPS
    if step_s is not None and step_s > 0.0:
        moved = math.ceil(max(turn.now - state.observed_at, 0.0) / step_s)
        margin = max(margin, math.ceil((MARGIN_S + state.link_s) / step_s))
    return Step(state.step + moved + margin * 2 ** min(state.misses, MISSES_MAX))


def choose(turn: Turn, remaining_s: float | None = None) -> Choice:
    """Ask the policy."""
    state = turn.state
    view = SavingView(
        policy=state.first.policy,
        life_s=turn.now - state.began_at,
        ranks=standings(state, turn.now),
        earliest_step=earliest_step(turn),
        anchor_step=state.anchor_step,
        base_step=state.base_step,
        held=state.held,
        remaining_s=remaining_s,
    )
    return decide(turn.now, view, state.beliefs)


def publish(turn: Turn, choice: Choice, kind: SaveKind) -> Request:
    """Publish a request; the pending one is replaced."""
    assert choice.save_at is not None, "a request has a step"
    state = turn.state
    exact = len(state.ranks) > 1
    request = Request(state.requests + 1, Step(choice.save_at), kind, exact, sure=not exact)
    if state.request is not None:
        _retire(turn, replace(state.request, withdrawn=True))
    turn.change(request=request, requests=request.number)
    turn.decisions.append(choice.decision)
    turn.order(PublishSave(request.number, request.step, kind, exact))
    return request


def withdraw(turn: Turn) -> None:
    """Take the pending request back."""
    request = turn.state.request
    if request is not None:
        _retire(turn, replace(request, withdrawn=True))
        turn.order(WithdrawSave(request.number))


def _retire(turn: Turn, request: Request) -> None:
    turn.change(request=None, past=(*turn.state.past, request)[-REQUESTS_KEPT:])


def answered(turn: Turn, fact: SaveAnswered) -> None:
    """A rank said yes."""

    def with_answer(request: Request) -> Request:
        if request.number != fact.request or fact.rank in request.answered:
            return request
        return replace(request, answered=(*request.answered, fact.rank))

    state = turn.state
    turn.change(
        request=None if state.request is None else with_answer(state.request),
        past=tuple(with_answer(request) for request in state.past),
        misses=0,
    )


def observed(turn: Turn, fact: RanksObserved) -> None:
    """A look at all pages.  A rank's step never shrinks: an older look that arrives later changes nothing."""
    known = {status.rank: status for status in turn.state.ranks}
    for status in fact.ranks:
        if status.rank not in known or known[status.rank].step <= status.step:
            known[status.rank] = status
    joined = set(known) - {status.rank for status in turn.state.ranks}
    ranks = tuple(known[rank] for rank in sorted(known))
    turn.change(ranks=ranks, observed_at=Instant(turn.now - fact.age_s), link_s=fact.link_s)
    request = turn.state.request
    if request is None:
        return
    if joined and (request.exact or len(ranks) > 1):
        withdraw(turn)
        return
    _check_agreement(turn, request)


def _check_agreement(turn: Turn, request: Request) -> None:
    silent = tuple(
        status.rank
        for status in turn.state.ranks
        if status.step >= request.step + request.sure and status.rank not in request.answered
    )
    if not request.exact:
        _check_late(turn, request, silent)
        return
    if not silent:
        turn.change(request=replace(request, sure=True))
    elif not request.sure:
        turn.change(misses=turn.state.misses + 1, hinted=turn.state.hinted or request.hinted)
        withdraw(turn)
    elif set(silent) & set(request.passed):
        _blame(turn, silent)
        withdraw(turn)
        turn.change(floor_step=max(turn.state.floor_step, request.step))
        for point in turn.state.points:
            if point.request == request.number and not point.whole:
                points.abandon(turn, point, f"rank {silent[0]} went past step {request.step} without saving")
    else:
        turn.change(request=replace(request, passed=silent))


def _check_late(turn: Turn, request: Request, silent: tuple[int, ...]) -> None:
    """A rank may be past the step when the request reaches it: it is silent once it finished two more steps since."""
    if silent and request.late_at is None:
        turn.change(request=replace(request, late_at=turn.state.step))
    elif silent and request.late_at is not None and turn.state.step > request.late_at + 1:
        _blame(turn, silent)


def _blame(turn: Turn, silent: tuple[int, ...]) -> None:
    who = "rank " + ", ".join(str(rank) for rank in silent)
    turn.tell(
        f"{who} finishes steps without asking whether to save: call wf.check_save() (or wf.step()) after each step on "
        "every rank, otherwise only the script's own saves are stored",
        once="never asks",
    )


def served(turn: Turn, rank: int, step: Step, number: int | None) -> None:
    """A rank has done with the pending request: it handed over for it, or said yes and went on without a part.

    Args:
        turn: the turn.
        rank: which rank.
        step: at which step.
        number: the request that it answered with a part; None for a rank that went on.
    """
    request = turn.state.request
    if request is None:
        return
    if number is None:
        if rank not in request.answered or step < request.step:
            return
    elif number != request.number:
        return
    answers = request.answered if rank in request.answered else (*request.answered, rank)
    request = replace(
        request,
        answered=answers,
        served=tuple(sorted({*request.served, rank})),
        handed=request.handed or number is not None,
    )
    turn.change(request=request)
    if not {status.rank for status in turn.state.ranks} <= set(request.served):
        return
    _retire(turn, request)
    if not request.handed:
        turn.order(WithdrawSave(request.number))
        turn.change(floor_step=max(turn.state.floor_step, request.step))
        turn.tell(
            f"the script was asked to save at step {request.step}, said yes, and handed nothing over: call "
            "wf.backup(path) once the files are written",
            once="hands nothing over",
        )


def plan(turn: Turn) -> None:
    """Publish, move or withdraw the next insurance save."""
    state = turn.state
    if state.stage is not Stage.RUNNING or not state.ranks or state.notices:
        return
    pending = state.request
    if pending is not None and (pending.answered or pending.hinted or pending.kind is not SaveKind.INSURANCE):
        return
    if state.queued is not None or (pending is None and any(not point.whole for point in state.points)):
        return  # the uplink is behind already, or the ranks are busy with a save
    choice = choose(turn)
    if state.hinted:
        choice = replace(choice, save_at=earliest_step(turn))
    if choice.save_at is None:
        if pending is not None:
            turn.decisions.append(choice.decision)
            withdraw(turn)
        return
    if pending is not None and not _moved(turn, pending, choice.save_at):
        return
    request = replace(publish(turn, choice, SaveKind.INSURANCE), hinted=state.hinted)
    turn.change(request=request, held=(turn.state.anchor_step, choice.save_at), hinted=False)


def _moved(turn: Turn, pending: Request, step: int) -> bool:
    """Return whether the plan has changed so much that the request is renewed, and still can be."""
    distance = max(pending.step - turn.state.anchor_step, 1)
    if abs(step - pending.step) <= max(1, RENEW_SHARE * distance):
        return False
    if pending.exact:
        return pending.step > earliest_step(turn)
    return turn.state.step < pending.step
