"""Save requests to the script: publish, agree, renew, withdraw.

Agreement of several ranks: the request names a step beyond every rank's step.  An observation after the publication must
still see every rank below it; otherwise the request is withdrawn and a later step proposed, with twice the margin.  With
several machines the observation is merged from those of all (`agent.merged_pages`); there is none until every machine has
read its pages again.
"""

from __future__ import annotations

from typing import Final

from windfall.core import checkpoints
from windfall.core.lifecycle import WorkerStage
from windfall.core.worker_state import REQUESTS_KEPT, SavePlan, SaveRequest, WorkerState, WorkerTurn, rank_progress
from windfall.events import PublishSave, RanksObserved, RankStatus, SaveAnswered, WithdrawSave
from windfall.policies.checkpointing import rules
from windfall.policies.checkpointing.decision import SaveChoice, SavingView, cost_inputs, decide
from windfall.structs import replace
from windfall.terms import Instant, SaveKind, Step

_RUNNING: Final = WorkerStage.RUNNING  # a module constant is looked up ten times as fast as an enumeration member
_INSURANCE: Final = SaveKind.INSURANCE


def earliest_step(turn: WorkerTurn) -> int:
    """Return the first step at which all ranks can still save on request."""
    state = turn.state
    if len(state.ranks) <= 1:
        return state.step + 1
    step_s, since_s = state.costs.step_mean_s or 0.0, turn.now - state.observed_at
    return rules.agreed_step(state.step, since_s, step_s, state.latency_s, state.misses)


def choose(turn: WorkerTurn, remaining_s: float | None = None) -> SaveChoice:
    """Return the policy's choice of the next save."""
    state = turn.state
    view = SavingView(
        policy=state.first.options.policy,
        running_s=turn.now - state.started_at,
        ranks=() if remaining_s is None else rank_progress(state, turn.now),
        earliest_step=earliest_step(turn),
        anchor_step=state.anchor_step,
        base_step=state.base_step,
        held=state.held,
        remaining_s=remaining_s,
        table=state.table,
        table_step=state.table_step,
    )
    return decide(turn.now, view, state.estimates)


def publish(turn: WorkerTurn, choice: SaveChoice, kind: SaveKind) -> SaveRequest:
    """Publish a request; it replaces the pending one."""
    assert choice.save_at is not None, "a request has a step"
    state = turn.state
    exact = len(state.ranks) > 1
    request = SaveRequest(state.requests + 1, Step(choice.save_at), kind, exact, sure=not exact)
    if state.request is not None:
        _archive(turn, replace(state.request, withdrawn=True))
    turn.change(request=request, requests=request.number)
    turn.decisions.append(choice.decision)
    turn.commands.append(PublishSave(request.number, request.step, kind, exact))
    return request


def withdraw(turn: WorkerTurn) -> None:
    """Withdraw the pending request."""
    request = turn.state.request
    if request is not None:
        _archive(turn, replace(request, withdrawn=True))
        turn.emit(WithdrawSave(request.number))


def _archive(turn: WorkerTurn, request: SaveRequest) -> None:
    turn.change(request=None, past=(*turn.state.past, request)[-REQUESTS_KEPT:])


def answered(turn: WorkerTurn, fact: SaveAnswered) -> None:
    """Record that a rank agreed to a request."""
    state = turn.state
    request = state.request
    if request is not None and request.number == fact.request:
        request = _with_answer(request, fact.rank)
    past = state.past
    if fact.request in [one.number for one in past]:
        past = tuple([_with_answer(one, fact.rank) if one.number == fact.request else one for one in past])
    turn.change(request=request, past=past, misses=0)


def _with_answer(request: SaveRequest, rank: int) -> SaveRequest:
    return request if rank in request.answered else replace(request, answered=(*request.answered, rank))


def observed(turn: WorkerTurn, fact: RanksObserved) -> None:
    """Record an observation of all pages; an older one that arrives late cannot lower a rank's step."""
    before = turn.state.ranks
    ranks = (
        fact.ranks
        if len(fact.ranks) == 1 == len(before) and _advanced(before[0], fact.ranks[0])
        else _merged(turn, fact)
    )
    joined = len(ranks) > len(before)
    turn.change(ranks=ranks, observed_at=Instant(turn.now - fact.age_s), latency_s=fact.latency_s)
    request = turn.state.request
    if request is None:
        return
    if joined and (request.exact or len(ranks) > 1):
        withdraw(turn)
        return
    _check_agreement(turn, request)


def _advanced(before: RankStatus, after: RankStatus) -> bool:
    return before.rank == after.rank and before.step <= after.step


def _merged(turn: WorkerTurn, fact: RanksObserved) -> tuple[RankStatus, ...]:
    """Return the newest known status of every rank after an observation."""
    known = {status.rank: status for status in turn.state.ranks}
    for status in fact.ranks:
        if status.rank not in known or _advanced(known[status.rank], status):
            known[status.rank] = status
    return tuple([known[rank] for rank in sorted(known)])


def _check_agreement(turn: WorkerTurn, request: SaveRequest) -> None:
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
        turn.change(request=replace(request, sure=True))
    elif not request.sure:
        turn.change(misses=turn.state.misses + 1, hinted=turn.state.hinted or request.hinted)
        withdraw(turn)
    elif set(silent) & set(request.passed):
        _warn_unasked(turn, silent)
        withdraw(turn)
        turn.change(floor_step=max(turn.state.floor_step, request.step))
        for checkpoint in turn.state.checkpoints:
            if checkpoint.request == request.number and not checkpoint.complete:
                checkpoints.abandon(turn, checkpoint, f"rank {silent[0]} went past step {request.step} without saving")
    else:
        turn.change(request=replace(request, passed=silent))


def _check_late(turn: WorkerTurn, request: SaveRequest, silent: tuple[int, ...]) -> None:
    """Warn of ranks that finished two more steps without an answer; a late request may find a rank past its step."""
    if silent and request.late_at is None:
        turn.change(request=replace(request, late_at=turn.state.step))
    elif silent and request.late_at is not None and turn.state.step > request.late_at + 1:
        _warn_unasked(turn, silent)


def _warn_unasked(turn: WorkerTurn, silent: tuple[int, ...]) -> None:
    ranks = "rank " + ", ".join(str(rank) for rank in silent)
    turn.log(
        f"{ranks} finishes steps without asking whether to save: call wf.check_save() (or wf.step()) after each step on "
        "every rank, otherwise only the script's own saves are stored",
        once="never asks",
    )


def rank_done(turn: WorkerTurn, rank: int, step: Step, number: int | None) -> None:
    """Record that a rank is done with the pending request: it handed over, or agreed and moved on without a shard.

    Args:
        turn: the current turn.
        rank: the rank.
        step: the step at which it did so.
        number: the request that its shard answers; None for a rank that moved on.
    """
    request = turn.state.request
    if request is None:
        return
    if number is None:
        if rank not in request.answered or step < request.step:
            return
    elif number != request.number:
        return
    request = replace(
        request,
        answered=request.answered if rank in request.answered else (*request.answered, rank),
        done_ranks=tuple(sorted({*request.done_ranks, rank})) if request.done_ranks else (rank,),
        handed_over=request.handed_over or number is not None,
    )
    for status in turn.state.ranks:
        if status.rank not in request.done_ranks:
            turn.change(request=request)
            return
    _archive(turn, request)
    if not request.handed_over:
        turn.emit(WithdrawSave(request.number))
        turn.change(floor_step=max(turn.state.floor_step, request.step))
        turn.log(
            f"the script agreed to save at step {request.step} but handed nothing over: call wf.backup(path) once the "
            "files are written",
            once="hands nothing over",
        )


def plan(turn: WorkerTurn) -> None:
    """Publish, move or withdraw the request for the next insurance save."""
    state = turn.state
    pending = state.request
    if not _plannable(state, pending) or (pending is not None and _still_valid(turn, pending)):
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
        turn.change(plan=_new_plan(turn, pending.number, choice.save_at))
        return
    if pending is not None and not _renewable(turn, pending):
        return
    request = publish(turn, choice, _INSURANCE)
    if state.hinted:
        request = replace(request, hinted=True)
    held = (state.anchor_step, choice.save_at)
    turn.change(request=request, held=held, hinted=False, plan=_new_plan(turn, request.number, choice.save_at))


def _plannable(state: WorkerState, pending: SaveRequest | None) -> bool:
    """Return whether the next insurance save may be planned: not while a save is in progress or the uplink is busy."""
    if state.stage is not _RUNNING or not state.ranks or state.notices:
        return False
    if pending is not None and (pending.answered or pending.hinted or pending.kind is not _INSURANCE):
        return False
    if not state.checkpoints:
        return True
    return state.queued is None and (
        pending is not None or False not in [checkpoint.complete for checkpoint in state.checkpoints]
    )


def _new_plan(turn: WorkerTurn, request: int, step: int) -> SavePlan | None:
    """Return the inputs of a plan; None if it changes with time alone."""
    state = turn.state
    if state.losses.mttp_given_s is None or state.hinted or step <= earliest_step(turn):
        return None
    numbers = cost_inputs(state.first.options.policy, state.estimates)
    return SavePlan(
        request, step, state.anchor_step, state.losses, state.costs, (state.table, state.table_step), numbers
    )


def _still_valid(turn: WorkerTurn, pending: SaveRequest) -> bool:
    """Return whether the policy would choose the pending request's step again."""
    state, plan = turn.state, turn.state.plan
    if plan is None or plan.request != pending.number or state.hinted:
        return False
    if state.losses is not plan.losses or state.anchor_step != plan.anchor_step or earliest_step(turn) > plan.step:
        return False
    if state.table is not plan.table[0] or state.table_step != plan.table[1]:
        return False
    if not plan.numbers or state.costs is plan.costs:
        return True
    return cost_inputs(state.first.options.policy, state.estimates) == plan.numbers


def _renewable(turn: WorkerTurn, pending: SaveRequest) -> bool:
    """Return whether the pending request can still be withdrawn."""
    if pending.exact:
        return pending.step > earliest_step(turn)
    return turn.state.step < pending.step
