"""The worker's reducer: facts of one machine in, decisions and commands out.

`react` is a pure function: it reads no clock and does nothing.  Facts that happened together come as one batch; each is
taken in first, and what follows from all of them is decided once, in this order: points that can go on, the end that is
in force, the next insurance save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from windfall.core import asking, ending, handing, points
from windfall.core.keeping_facts import Standing
from windfall.core.lifecycle import WORKER, PointState, Stage, move
from windfall.core.state import Turn, WorkerState
from windfall.events import (
    AgentResumed,
    BeliefsChanged,
    CheckpointCommitted,
    CheckpointRestored,
    Command,
    CommitFailed,
    Decision,
    ExitAgent,
    Fact,
    FenceLost,
    NoticeReceived,
    PeerLost,
    PhaseMeasured,
    PublishSave,
    RankMovedOn,
    RanksObserved,
    SaveAnswered,
    SaveTableGiven,
    ScriptExited,
    ScriptStarted,
    ShardFailed,
    ShardHandedOver,
    ShardUploaded,
    ShowNotice,
    StartScript,
    StepsMeasured,
    StopAsked,
    WakeAt,
    Woke,
    WorkerBegan,
)
from windfall.models.costs import Costs
from windfall.models.losses import Losses, habit
from windfall.policies.saving.decide import parse_policy
from windfall.records import renewed
from windfall.results import MessageRefused, ResultStored
from windfall.terms import Bytes, Instant, Phase, SaveCosts, Seconds

MUTE_AFTER_S = 60.0
"""A script of which no page was seen for so long is said not to call Windfall."""
REFUSALS_TOLD = 20
"""So many different messages that could not be followed are told of."""
_NEW: Final = Stage.NEW
_ENDED: Final = Stage.ENDED


def begin() -> WorkerState:
    """Return the state before the first fact."""
    return WorkerState()


def react(
    state: WorkerState, now: Instant, facts: tuple[Fact, ...]
) -> tuple[WorkerState, tuple[Decision, ...], tuple[Command, ...]]:
    """Take in a batch of facts.

    Args:
        state: as the last call returned it.
        now: the instant of the batch; never before the last one's.
        facts: what happened, oldest first.

    Returns:
        The new state, the decisions taken, the commands to carry out in this order.

    Raises:
        IllegalMove: a state was asked to become one that it cannot become; the given state is unchanged.
    """
    turn = Turn(state, now, [], [])
    for fact in facts:
        kind = type(fact)
        if kind in _HANDLERS and _matters(turn.state.stage, kind):
            _HANDLERS[kind](turn, fact)
    stage = turn.state.stage
    if stage is not _NEW and stage is not _ENDED:
        points.settle(turn)
        ending.consider(turn)
        asking.plan(turn)
    commands = tuple(turn.commands)
    _assert_invariants(state, turn.state, facts, commands)
    return turn.state, tuple(turn.decisions), commands


def counts(state: WorkerState) -> dict[str, int]:
    """Return how often the script was started (`attempts`) and failed by itself (`failures`) in this run."""
    return {"attempts": state.attempt, "failures": state.failures}


def standing(state: WorkerState) -> Standing:
    """Return where the run stands on this machine, for the keeper that started it."""
    step_s = state.costs.step_mean_s
    return Standing(
        state.first.term,
        state.step,
        state.committed_step,
        state.attempt,
        training=state.script,
        step_s=None if step_s is None else Seconds(step_s),
        costs=save_costs(state),
        mute="mute" in state.told and not (state.ranks or state.live or state.step),
    )


def save_costs(state: WorkerState) -> SaveCosts | None:
    """Return what saves cost by now, for the run's next machine; None as long as none was measured whole."""
    costs = state.costs
    if not costs.measured or costs.state_bytes is None:
        return None
    return SaveCosts(
        Seconds(costs.stall_s),
        Bytes(costs.state_bytes),
        # The slow ones of the window: a single mean would hide that the uplink has just slowed down.
        Seconds(costs.upload_p95_s(costs.state_bytes)),
        Seconds(costs.commits.p95 or 0.0),
    )


def _matters(stage: Stage, kind: type[Fact]) -> bool:
    """After the end only a restart of the agent matters; before the beginning only the beginning."""
    if stage is _ENDED:
        return kind is AgentResumed
    return (stage is _NEW) == (kind is WorkerBegan)


# ------------------------------------------------------------------------------------------------------------- handlers


def _worker_began(turn: Turn, fact: WorkerBegan) -> None:
    fact = replace(fact, policy=parse_policy(fact.policy))
    losses = Losses(
        provider=fact.provider,
        lives_s=fact.lives_s,
        preemptions=fact.preemptions,
        announced=fact.announced,
        notices_s=fact.notices_s,
        notice_given_s=fact.grace_s if habit(fact.provider).by_signal else None,
        mttp_given_s=fact.mttp_s,
        restart_given_s=fact.restart_s,
    )
    turn.change(
        began=fact,
        began_at=turn.now,
        losses=losses,
        failures=fact.failures,
        live=fact.checkpoints,
        committed_step=fact.checkpoints[-1].step if fact.checkpoints else 0,
        costs=_costs_before(fact.costs),
    )
    points.retire(turn)
    ending.start(turn, fact.attempt)


def _costs_before(known: SaveCosts | None) -> Costs:
    """Begin with what saves cost on an earlier machine; this one's own measurements soon outweigh it."""
    if known is None:
        return Costs()
    costs = Costs().add_stall(known.stall_s).add_upload(known.size_bytes, known.upload_s)
    return costs.add_commit(known.commit_s)


def _agent_resumed(turn: Turn, fact: AgentResumed) -> None:
    del fact
    state = turn.state
    if state.stage is Stage.ENDED:
        turn.order(*state.last_words)
        return
    if state.stage is Stage.STARTING:
        turn.order(StartScript(state.attempt))
    for notice in state.notices:
        turn.order(ShowNotice(notice))
    for point in (*state.checkpoints, *state.results):
        if point.state is PointState.UPLOADING:
            turn.set_point(renewed(point, begun_at=None))
            turn.order(*points.uploads(point))
        elif point.state is PointState.COMMITTING:
            turn.order(points.commit(turn, point))
    request = state.request
    if request is not None and not (request.exact and request.sure):
        # An agreed request stands in the pages already; publishing it anew would hide it for a moment from some ranks.
        turn.order(PublishSave(request.number, request.step, request.kind, request.exact))
    turn.order(*(WakeAt(at, why) for why, at in state.wakes))


def _point_restored(turn: Turn, fact: CheckpointRestored) -> None:
    ids = [point.checkpoint_id for point in turn.state.live]
    newer = ids[ids.index(fact.checkpoint_id) + 1 :] if fact.checkpoint_id in ids else ids
    for sentence in fact.skipped:
        turn.tell(sentence)
    costs = turn.state.costs
    if costs.state_bytes is None and fact.size_bytes > 0:
        costs = renewed(costs, state_bytes=fact.size_bytes)
    turn.change(
        base_step=fact.step, committed_step=fact.step, damaged=turn.state.damaged | frozenset(newer), costs=costs
    )


def _script_started(turn: Turn, fact: ScriptStarted) -> None:
    if turn.state.stage is not Stage.STARTING or fact.attempt != turn.state.attempt:
        return
    turn.change(stage=move(WORKER, Stage.STARTING, Stage.RUNNING), script=True)
    turn.wake("mute", MUTE_AFTER_S)


def _steps_measured(turn: Turn, fact: StepsMeasured) -> None:
    if fact.count > 0:
        turn.change(costs=turn.state.costs.add_steps(fact.count, fact.mean_s, fact.longest_s))


def _phase_measured(turn: Turn, fact: PhaseMeasured) -> None:
    if fact.phase is not Phase.STEP:  # that is work which no step counts: nothing of it repeats itself
        turn.change(costs=turn.state.costs.add_phase(fact.phase, fact.duration_s))


def _part_handed_over(turn: Turn, fact: ShardHandedOver) -> None:
    handing.handed_over(turn, fact)
    if not fact.result:
        asking.served(turn, fact.rank, fact.step, fact.request)


def _rank_moved_on(turn: Turn, fact: RankMovedOn) -> None:
    handing.moved_on(turn, fact)
    asking.served(turn, fact.rank, fact.step, None)


def _point_committed(turn: Turn, fact: CheckpointCommitted) -> None:
    ending.saved(turn, fact.checkpoint.checkpoint_id)
    points.committed(turn, fact)


def _beliefs_changed(turn: Turn, fact: BeliefsChanged) -> None:
    losses = turn.state.losses
    turn.change(
        losses=replace(
            losses,
            mttp_given_s=losses.mttp_given_s if fact.mttp_s is None else fact.mttp_s,
            restart_given_s=losses.restart_given_s if fact.restart_s is None else fact.restart_s,
            share_given=losses.share_given if fact.unannounced_share is None else fact.unannounced_share,
            notice_given_s=losses.notice_given_s if fact.notice_s is None else fact.notice_s,
        )
    )


def _save_table_given(turn: Turn, fact: SaveTableGiven) -> None:
    """Take a schedule in; not one that was made for an earlier holding of the run, and came late or again."""
    if fact.term is None or fact.term == turn.state.first.term:
        turn.change(table=fact.table, table_step=fact.from_step)


def _woke(turn: Turn, fact: Woke) -> None:
    turn.change(wakes=tuple([wake for wake in turn.state.wakes if wake[0] != fact.why]))
    if fact.why == "mute" and not turn.state.ranks and turn.state.script:
        turn.tell(
            f"the script has not called Windfall in its first {MUTE_AFTER_S:g} s: as long as it does not, nothing is saved",
            once="mute",
        )
    elif fact.why == "retention":
        points.delete_due(turn)
    elif fact.why == "stop":
        ending.out_of_patience(turn)
    elif fact.why.startswith(("upload ", "commit ")):
        points.try_again(turn, fact.why)


def _message_refused(turn: Turn, fact: MessageRefused) -> None:
    """Say what was refused, not a hundred times."""
    refused = sum(told.startswith("refused ") for told in turn.state.told)
    if refused < REFUSALS_TOLD:
        turn.tell(f"rank {fact.rank} said what cannot be followed: {fact.reason}", once=f"refused {fact.reason}")


_HANDLERS: Mapping[type[Fact], Callable[[Turn, Any], None]] = MappingProxyType(
    {
        WorkerBegan: _worker_began,
        AgentResumed: _agent_resumed,
        CheckpointRestored: _point_restored,
        ScriptStarted: _script_started,
        RanksObserved: asking.observed,
        StepsMeasured: _steps_measured,
        PhaseMeasured: _phase_measured,
        NoticeReceived: ending.noticed,
        SaveAnswered: asking.answered,
        ShardHandedOver: _part_handed_over,
        RankMovedOn: _rank_moved_on,
        ShardUploaded: points.uploaded,
        ShardFailed: points.part_failed,
        CheckpointCommitted: _point_committed,
        ResultStored: points.result_stored,
        CommitFailed: points.commit_failed,
        MessageRefused: _message_refused,
        FenceLost: ending.fence_lost,
        ScriptExited: ending.script_exited,
        PeerLost: ending.peer_lost,
        StopAsked: ending.stop_asked,
        BeliefsChanged: _beliefs_changed,
        SaveTableGiven: _save_table_given,
        Woke: _woke,
    }
)


def _assert_invariants(
    before: WorkerState, after: WorkerState, facts: tuple[Fact, ...], commands: tuple[Command, ...]
) -> None:
    """What holds after every batch, whatever the facts."""
    assert len(after.__dict__) == len(before.__dict__), "only fields that are there were changed"
    assert after.requests >= before.requests, "numbers of requests grow"
    if len(after.checkpoints) > 1:
        assert sum(point.active for point in after.checkpoints) <= 1, "one point at a time holds the uplink"
        waiting = {point.step for point in after.checkpoints if point.whole and not point.active}
        assert len(waiting) <= 1, "what waits for it is of one step"
    if not commands or (len(commands) == 1 and before.stage is not _ENDED and type(commands[0]) is not PublishSave):
        return
    kinds = [type(command) for command in commands]
    assert ExitAgent not in kinds[:-1], "nothing comes after the exit"
    if PublishSave not in kinds and before.stage is not Stage.ENDED:
        return
    resumed = AgentResumed in [type(fact) for fact in facts]
    published = [command.request for command in commands if isinstance(command, PublishSave)]
    assert resumed or min(published, default=math.inf) > before.requests, "no number of a request is used twice"
    assert before.stage is not Stage.ENDED or resumed, "nothing is ordered after the end"
