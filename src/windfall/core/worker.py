"""The worker's reducer: facts of one machine in, decisions and commands out.

`react` is a pure function: it reads no clock and does nothing.  Facts that happened together come as one batch; each is
applied first, and what follows from all of them is decided once, in this order: checkpoints that can advance, the shutdown
in force, the next insurance save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from windfall.core import checkpoints, handovers, save_requests, shutdown
from windfall.core.lifecycle import WORKER, CheckpointState, WorkerStage, transition
from windfall.core.node_agent_state import RunStatus
from windfall.core.worker_state import WorkerState, WorkerTurn
from windfall.events import (
    AgentResumed,
    CheckpointCommitted,
    CheckpointRestored,
    Command,
    CommitFailed,
    Decision,
    EstimatesChanged,
    ExitAgent,
    Fact,
    FenceLost,
    NoticeReceived,
    PeerLost,
    PhaseMeasured,
    PublishSave,
    RankAdvanced,
    RanksObserved,
    RunStopRequested,
    SaveAnswered,
    ScheduleAssigned,
    ScriptExited,
    ScriptStarted,
    SetTimer,
    ShardFailed,
    ShardHandedOver,
    ShardUploaded,
    ShowNotice,
    StartScript,
    StepsMeasured,
    TimerFired,
    WorkerStarted,
)
from windfall.models.costs import Costs
from windfall.models.preemption_rates import PreemptionHistory, preemption_pattern
from windfall.policies.checkpointing.decision import parse_policy
from windfall.results import MessageRefused, ResultStored
from windfall.structs import replace
from windfall.terms import Bytes, Instant, Phase, SaveCosts, Seconds

SDK_INACTIVE_AFTER_S = 60.0
"""How long after its start a script without a page is reported as not calling Windfall [s]."""
REFUSALS_LOGGED_MAX = 20
"""How many different refused messages are logged."""
_NEW: Final = WorkerStage.NEW
_ENDED: Final = WorkerStage.ENDED


def initial_state() -> WorkerState:
    """Return the state before the first fact."""
    return WorkerState()


def react(
    state: WorkerState, now: Instant, facts: tuple[Fact, ...]
) -> tuple[WorkerState, tuple[Decision, ...], tuple[Command, ...]]:
    """Apply a batch of facts.

    Args:
        state: as the last call returned it.
        now: the instant of the batch; never before the last one's.
        facts: what happened, oldest first.

    Returns:
        The new state, the decisions taken, the commands to execute in this order.

    Raises:
        IllegalTransition: a transition that the tables do not allow; the given state is unchanged.
    """
    turn = WorkerTurn(state, now, [], [])
    for fact in facts:
        kind = type(fact)
        if kind in _HANDLERS and _matters(turn.state.stage, kind):
            _HANDLERS[kind](turn, fact)
    stage = turn.state.stage
    if stage is not _NEW and stage is not _ENDED:
        checkpoints.settle(turn)
        shutdown.consider(turn)
        save_requests.plan(turn)
    commands = tuple(turn.commands)
    _assert_invariants(state, turn.state, facts, commands)
    return turn.state, tuple(turn.decisions), commands


def counts(state: WorkerState) -> dict[str, int]:
    """Return how often the script was started (`attempts`) and failed on its own (`failures`) in this run."""
    return {"attempts": state.attempt, "failures": state.failures}


def run_status(state: WorkerState) -> RunStatus:
    """Return the status of the run on this machine, for the node agent that started it."""
    step_s = state.costs.step_mean_s
    return RunStatus(
        state.first.term,
        state.step,
        state.committed_step,
        state.attempt,
        training=state.script,
        step_s=None if step_s is None else Seconds(step_s),
        costs=save_costs(state),
        sdk_inactive="sdk_inactive" in state.logged and not (state.ranks or state.live or state.step),
    )


def save_costs(state: WorkerState) -> SaveCosts | None:
    """Return the measured costs of saves, for the run's next machine; None until one save was measured completely."""
    costs = state.costs
    if not costs.measured or costs.state_bytes is None:
        return None
    return SaveCosts(
        Seconds(costs.stall_s),
        Bytes(costs.state_bytes),
        # The slow saves of the window: a mean would hide that the uplink has just slowed down.
        Seconds(costs.upload_p95_s(costs.state_bytes)),
        Seconds(costs.commits.p95 or 0.0),
    )


def _matters(stage: WorkerStage, kind: type[Fact]) -> bool:
    """Return whether a fact counts: after the end only a restart of the agent does, before the start only the start."""
    if stage is _ENDED:
        return kind is AgentResumed
    return (stage is _NEW) == (kind is WorkerStarted)


# ------------------------------------------------------------------------------------------------------------- handlers


def _worker_began(turn: WorkerTurn, fact: WorkerStarted) -> None:
    options = replace(fact.options, policy=parse_policy(fact.options.policy))
    fact = replace(fact, options=options)
    losses = PreemptionHistory(
        provider=fact.provider,
        lifetimes_s=fact.lifetimes_s,
        preemptions=fact.preemptions,
        announced=fact.announced,
        notices_s=fact.notices_s,
        notice_given_s=options.grace_s if preemption_pattern(fact.provider).by_signal else None,
        mttp_given_s=options.mttp_s,
        restart_given_s=fact.restart_s,
    )
    turn.change(
        started=fact,
        started_at=turn.now,
        losses=losses,
        failures=fact.failures,
        live=fact.checkpoints,
        committed_step=fact.checkpoints[-1].step if fact.checkpoints else 0,
        costs=_costs_from(fact.costs),
    )
    checkpoints.expire_superseded(turn)
    shutdown.start(turn, fact.attempt)


def _costs_from(known: SaveCosts | None) -> Costs:
    """Start from the costs measured on an earlier machine; this machine's own measurements soon outweigh them."""
    if known is None:
        return Costs()
    costs = Costs().add_stall(known.stall_s).add_upload(known.size_bytes, known.upload_s)
    return costs.add_commit(known.commit_s)


def _agent_resumed(turn: WorkerTurn, fact: AgentResumed) -> None:
    del fact
    state = turn.state
    if state.stage is WorkerStage.ENDED:
        turn.emit(*state.final_commands)
        return
    if state.stage is WorkerStage.RESTORING:
        turn.emit(StartScript(state.attempt))
    for notice in state.notices:
        turn.emit(ShowNotice(notice))
    for checkpoint in (*state.checkpoints, *state.results):
        if checkpoint.state is CheckpointState.UPLOADING:
            turn.set_checkpoint(replace(checkpoint, upload_started_at=None))
            turn.emit(*checkpoints.uploads(checkpoint))
        elif checkpoint.state is CheckpointState.COMMITTING:
            turn.emit(checkpoints.commit(turn, checkpoint))
    request = state.request
    if request is not None and not (request.exact and request.sure):
        # An agreed request is in the pages already; publishing it again would briefly hide it from some ranks.
        turn.emit(PublishSave(request.number, request.step, request.kind, request.exact))
    turn.emit(*(SetTimer(at, reason) for reason, at in state.timers))


def _checkpoint_restored(turn: WorkerTurn, fact: CheckpointRestored) -> None:
    ids = [checkpoint.checkpoint_id for checkpoint in turn.state.live]
    newer = ids[ids.index(fact.checkpoint_id) + 1 :] if fact.checkpoint_id in ids else ids
    for message in fact.skipped:
        turn.log(message)
    costs = turn.state.costs
    if costs.state_bytes is None and fact.size_bytes > 0:
        costs = replace(costs, state_bytes=fact.size_bytes)
    turn.change(
        base_step=fact.step, committed_step=fact.step, damaged=turn.state.damaged | frozenset(newer), costs=costs
    )


def _script_started(turn: WorkerTurn, fact: ScriptStarted) -> None:
    if turn.state.stage is not WorkerStage.RESTORING or fact.attempt != turn.state.attempt:
        return
    turn.change(stage=transition(WORKER, WorkerStage.RESTORING, WorkerStage.RUNNING), script=True)
    turn.set_timer("sdk_inactive", SDK_INACTIVE_AFTER_S)


def _steps_measured(turn: WorkerTurn, fact: StepsMeasured) -> None:
    if fact.count > 0:
        turn.change(costs=turn.state.costs.add_steps(fact.count, fact.mean_s, fact.longest_s))


def _phase_measured(turn: WorkerTurn, fact: PhaseMeasured) -> None:
    if fact.phase is not Phase.STEP:  # that is work outside of steps, and does not repeat
        turn.change(costs=turn.state.costs.add_phase(fact.phase, fact.duration_s))


def _shard_handed_over(turn: WorkerTurn, fact: ShardHandedOver) -> None:
    handovers.handed_over(turn, fact)
    if not fact.result:
        save_requests.rank_done(turn, fact.rank, fact.step, fact.request)


def _rank_moved_on(turn: WorkerTurn, fact: RankAdvanced) -> None:
    handovers.moved_on(turn, fact)
    save_requests.rank_done(turn, fact.rank, fact.step, None)


def _checkpoint_committed(turn: WorkerTurn, fact: CheckpointCommitted) -> None:
    shutdown.saved(turn, fact.checkpoint.checkpoint_id)
    checkpoints.committed(turn, fact)


def _estimates_changed(turn: WorkerTurn, fact: EstimatesChanged) -> None:
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


def _save_table_given(turn: WorkerTurn, fact: ScheduleAssigned) -> None:
    """Accept a save schedule, unless it was made for an earlier term and came late or again."""
    if fact.term is None or fact.term == turn.state.first.term:
        turn.change(table=fact.table, table_step=fact.from_step)


def _woke(turn: WorkerTurn, fact: TimerFired) -> None:
    turn.change(timers=tuple([wake for wake in turn.state.timers if wake[0] != fact.name]))
    if fact.name == "sdk_inactive" and not turn.state.ranks and turn.state.script:
        turn.log(
            f"the script has not called Windfall in its first {SDK_INACTIVE_AFTER_S:g} s: nothing is saved until it does",
            once="sdk_inactive",
        )
    elif fact.name == "retention":
        checkpoints.delete_due(turn)
    elif fact.name == "stop":
        shutdown.stop_timed_out(turn)
    elif fact.name.startswith(("upload ", "commit ")):
        checkpoints.retry(turn, fact.name)


def _message_refused(turn: WorkerTurn, fact: MessageRefused) -> None:
    """Log a refused message, each reason once and only the first few."""
    refused = sum(logged.startswith("refused ") for logged in turn.state.logged)
    if refused < REFUSALS_LOGGED_MAX:
        turn.log(f"refused a message from rank {fact.rank}: {fact.reason}", once=f"refused {fact.reason}")


_HANDLERS: Mapping[type[Fact], Callable[[WorkerTurn, Any], None]] = MappingProxyType(
    {
        WorkerStarted: _worker_began,
        AgentResumed: _agent_resumed,
        CheckpointRestored: _checkpoint_restored,
        ScriptStarted: _script_started,
        RanksObserved: save_requests.observed,
        StepsMeasured: _steps_measured,
        PhaseMeasured: _phase_measured,
        NoticeReceived: shutdown.noticed,
        SaveAnswered: save_requests.answered,
        ShardHandedOver: _shard_handed_over,
        RankAdvanced: _rank_moved_on,
        ShardUploaded: checkpoints.uploaded,
        ShardFailed: checkpoints.shard_failed,
        CheckpointCommitted: _checkpoint_committed,
        ResultStored: checkpoints.result_stored,
        CommitFailed: checkpoints.commit_failed,
        MessageRefused: _message_refused,
        FenceLost: shutdown.fence_lost,
        ScriptExited: shutdown.script_exited,
        PeerLost: shutdown.peer_lost,
        RunStopRequested: shutdown.stop_asked,
        EstimatesChanged: _estimates_changed,
        ScheduleAssigned: _save_table_given,
        TimerFired: _woke,
    }
)


def _assert_invariants(
    before: WorkerState, after: WorkerState, facts: tuple[Fact, ...], commands: tuple[Command, ...]
) -> None:
    """Check what must hold after every batch, whatever the facts."""
    assert after.requests >= before.requests, "numbers of requests grow"
    if len(after.checkpoints) > 1:
        assert sum(checkpoint.active for checkpoint in after.checkpoints) <= 1, (
            "one checkpoint at a time holds the uplink"
        )
        waiting = {checkpoint.step for checkpoint in after.checkpoints if checkpoint.complete and not checkpoint.active}
        assert len(waiting) <= 1, "checkpoints that wait for it belong to one step"
    if not commands or (len(commands) == 1 and before.stage is not _ENDED and type(commands[0]) is not PublishSave):
        return
    kinds = [type(command) for command in commands]
    assert ExitAgent not in kinds[:-1], "no command follows the exit"
    if PublishSave not in kinds and before.stage is not WorkerStage.ENDED:
        return
    resumed = AgentResumed in [type(fact) for fact in facts]
    published = [command.request for command in commands if isinstance(command, PublishSave)]
    assert resumed or min(published, default=math.inf) > before.requests, "no request number is used twice"
    assert before.stage is not WorkerStage.ENDED or resumed, "no command is issued after the end"
