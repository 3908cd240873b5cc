"""Asking the script for saves: publish, agree, renew, withdraw.

Agreement of several ranks: the request names a step beyond every rank's; a look after the publication must still see
every rank below it, otherwise it is withdrawn and a later step proposed, with twice the margin.  Over several machines
the look is put together from those of all (`agent.peers_assembly`): none comes while a machine has not looked again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from windfall.core import points
from windfall.core.lifecycle import Stage
from windfall.core.state import REQUESTS_KEPT, Plan, Request, Turn, WorkerState, standings
from windfall.events import PublishSave, RanksObserved, RankStatus, SaveAnswered, WithdrawSave
from windfall.policies.saving import rules
from windfall.policies.saving.decide import Choice, SavingView, decide, rests_on
from windfall.records import renewed
from windfall.terms import Instant, SaveKind, Step

_RUNNING: Final = Stage.RUNNING  # a member is looked up ten times as fast as a name than in its enumeration
_INSURANCE: Final = SaveKind.INSURANCE


def earliest_step(turn: Turn) -> int:
    """Return the first step at which all ranks can still be asked to save."""
    state = turn.state
    if len(state.ranks) <= 1:
        return state.step + 1
    step_s, since_s = state.costs.step_mean_s or 0.0, turn.now - state.observed_at
    return rules.agreed_step(state.step, since_s, step_s, state.link_s, state.misses)


def choose(turn: Turn, remaining_s: float | None = None) -> Choice:
    """Ask the policy."""
    state = turn.state
    view = SavingView(
        policy=state.first.policy,
        life_s=turn.now - state.began_at,
        ranks=() if remaining_s is None else standings(state, turn.now),
        earliest_step=earliest_step(turn),
        anchor_step=state.anchor_step,
        base_step=state.base_step,
        held=state.held,
        remaining_s=remaining_s,
        table=state.table,
        table_step=state.table_step,
    )
    return decide(turn.now, view, state.beliefs)


def publish(turn: Turn, choice: Choice, kind: SaveKind) -> Request:
    """Publish a request; the pending one is replaced."""
    assert choice.save_at is not None, "a request has a step"
    state = turn.state
    exact = len(state.ranks) > 1
    request = Request(state.requests + 1, Step(choice.save_at), kind, exact, sure=not exact)
    if state.request is not None:
        _retire(turn, renewed(state.request, withdrawn=True))
    turn.change(request=request, requests=request.number)
    turn.decisions.append(choice.decision)
    turn.commands.append(PublishSave(request.number, request.step, kind, exact))
    return request


def withdraw(turn: Turn) -> None:
    """Take the pending request back."""
    request = turn.state.request
    if request is not None:
        _retire(turn, renewed(request, withdrawn=True))
        turn.order(WithdrawSave(request.number))


def _retire(turn: Turn, request: Request) -> None:
    turn.change(request=None, past=(*turn.state.past, request)[-REQUESTS_KEPT:])


def answered(turn: Turn, fact: SaveAnswered) -> None:
    """A rank said yes."""
    state = turn.state
    request = state.request
    if request is not None and request.number == fact.request:
        request = _with_answer(request, fact.rank)
    past = state.past
    if fact.request in [one.number for one in past]:
        past = tuple([_with_answer(one, fact.rank) if one.number == fact.request else one for one in past])
    turn.change(request=request, past=past, misses=0)


def _with_answer(request: Request, rank: int) -> Request:
    return request if rank in request.answered else renewed(request, answered=(*request.answered, rank))


def observed(turn: Turn, fact: RanksObserved) -> None:
    """A look at all pages.  A rank's step never shrinks: an older look that arrives later changes nothing."""
    before = turn.state.ranks
    ranks = (
        fact.ranks if len(fact.ranks) == 1 == len(before) and _goes_on(before[0], fact.ranks[0]) else _joint(turn, fact)
    )
    joined = len(ranks) > len(before)
    turn.change(ranks=ranks, observed_at=Instant(turn.now - fact.age_s), link_s=fact.link_s)
    request = turn.state.request
    if request is None:
        return
    if joined and (request.exact or len(ranks) > 1):
        withdraw(turn)
        return
    _check_agreement(turn, request)


def _goes_on(before: RankStatus, after: RankStatus) -> bool:
    return before.rank == after.rank and before.step <= after.step


def _joint(turn: Turn, fact: RanksObserved) -> tuple[RankStatus, ...]:
    """Return what is known of every rank after a look."""
    known = {status.rank: status for status in turn.state.ranks}
    for status in fact.ranks:
        if status.rank not in known or _goes_on(known[status.rank], status):
            known[status.rank] = status
    return tuple([known[rank] for rank in sorted(known)])


def _check_agreement(turn: Turn, request: Request) -> None:
    since = request.step + request.sure
    if not request.exact and turn.state.step < since:
        return
    silent = tuple(
        [status.rank for status in turn.state.ranks if status.step >= since and status.rank not in request.answered]
    )
    if not request.exact:
        _check_late(turn, request, silent)
        return
    if not silent:
        turn.change(request=renewed(request, sure=True))
    elif not request.sure:
        turn.change(misses=turn.state.misses + 1, hinted=turn.state.hinted or request.hinted)
        withdraw(turn)
    elif set(silent) & set(request.passed):
        _blame(turn, silent)
        withdraw(turn)
        turn.change(floor_step=max(turn.state.floor_step, request.step))
        for point in turn.state.checkpoints:
            if point.request == request.number and not point.whole:
                points.abandon(turn, point, f"rank {silent[0]} went past step {request.step} without saving")
    else:
        turn.change(request=renewed(request, passed=silent))


def _check_late(turn: Turn, request: Request, silent: tuple[int, ...]) -> None:
    """A rank may be past the step when the request reaches it: it is silent once it finished two more steps since."""
    if silent and request.late_at is None:
        turn.change(request=renewed(request, late_at=turn.state.step))
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
    request = renewed(
        request,
        answered=request.answered if rank in request.answered else (*request.answered, rank),
        served=tuple(sorted({*request.served, rank})) if request.served else (rank,),
        handed=request.handed or number is not None,
    )
    for status in turn.state.ranks:
        if status.rank not in request.served:
            turn.change(request=request)
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
    pending = state.request
    if not _plannable(state, pending) or (pending is not None and _stands(turn, pending)):
        return
    choice = choose(turn)
    if state.hinted:
        choice = replace(choice, save_at=earliest_step(turn))
    if choice.save_at is None:
        if pending is not None:
            turn.decisions.append(choice.decision)
            withdraw(turn)
        return
    if pending is not None and not rules.worth_moving(choice.save_at, pending.step, state.anchor_step):
        turn.change(plan=_plan(turn, pending.number, choice.save_at))
        return
    if pending is not None and not _renewable(turn, pending):
        return
    request = publish(turn, choice, _INSURANCE)
    if state.hinted:
        request = renewed(request, hinted=True)
    held = (state.anchor_step, choice.save_at)
    turn.change(request=request, held=held, hinted=False, plan=_plan(turn, request.number, choice.save_at))


def _plannable(state: WorkerState, pending: Request | None) -> bool:
    """Return whether the next insurance save may be planned: not while the ranks are busy with one, or the uplink behind."""
    if state.stage is not _RUNNING or not state.ranks or state.notices:
        return False
    if pending is not None and (pending.answered or pending.hinted or pending.kind is not _INSURANCE):
        return False
    if not state.checkpoints:
        return True
    return state.queued is None and (pending is not None or False not in [point.whole for point in state.checkpoints])


def _plan(turn: Turn, request: int, step: int) -> Plan | None:
    """Return what a plan rests on; None if the mere passing of time changes it."""
    state = turn.state
    if state.losses.mttp_given_s is None or state.hinted or step <= earliest_step(turn):
        return None
    numbers = rests_on(state.first.policy, state.beliefs)
    return Plan(request, step, state.anchor_step, state.losses, state.costs, (state.table, state.table_step), numbers)


def _stands(turn: Turn, pending: Request) -> bool:
    """Return whether a policy that is asked again must choose the step that the pending request was found right for."""
    state, plan = turn.state, turn.state.plan
    if plan is None or plan.request != pending.number or state.hinted:
        return False
    if state.losses is not plan.losses or state.anchor_step != plan.anchor_step or earliest_step(turn) > plan.step:
        return False
    if state.table is not plan.table[0] or state.table_step != plan.table[1]:
        return False
    if not plan.numbers or state.costs is plan.costs:
        return True
    return rests_on(state.first.policy, state.beliefs) == plan.numbers


def _renewable(turn: Turn, pending: Request) -> bool:
    """Return whether the pending request can still be taken back."""
    if pending.exact:
        return pending.step > earliest_step(turn)
    return turn.state.step < pending.step
