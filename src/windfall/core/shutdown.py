"""The end of a machine's work: notices, stops, the script's own exit, the fence.

Each of them ends in `finish`: the script is killed, the run released, the notice acknowledged (only if nothing is left to
save), and the agent exits; nothing is committed after that.
"""

from __future__ import annotations

from typing import Final

from windfall.core import checkpoints, handovers, save_requests
from windfall.core.lifecycle import WORKER, WorkerStage, transition
from windfall.core.worker_state import WorkerShutdown, WorkerTurn
from windfall.errors import EXIT_DONE, EXIT_FAILED, EXIT_RETRY, EXIT_STOPPED
from windfall.events import (
    AcknowledgeNotice,
    Command,
    ComparedValue,
    Decision,
    ExitAgent,
    FenceLost,
    KillScript,
    LogMessage,
    NoticeReceived,
    PeerLost,
    ReleaseRun,
    RunStopRequested,
    ScriptExited,
    ShowNotice,
    StartScript,
)
from windfall.policies.checkpointing import rules
from windfall.policies.checkpointing.decision import VERSION, SaveChoice
from windfall.structs import replace
from windfall.terms import Cause, Instant, Notice, NoticeLevel, Outcome, SaveKind, Seconds
from windfall.units import times_text

STOP_PATIENCE_S = 600.0
"""How long a script may take for its last save after a stop request [s]."""
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
"""Pause before a failed script is restarted [s]: starts at the first and doubles up to the second."""
DIED_OF_SIGTERM = 128 + 15
_RUNNING: Final = WorkerStage.RUNNING

# -------------------------------------------------------------------------------------------------------------- notices


def noticed(turn: WorkerTurn, fact: NoticeReceived) -> None:
    """Handle a notice about this machine's end."""
    notice = fact.notice
    if notice.level is NoticeLevel.GONE and notice.deadline is None:
        notice = replace(notice, deadline=turn.now)
    if notice in turn.state.notices:
        return
    others = tuple(
        known for known in turn.state.notices if (known.source, known.notice_id) != (notice.source, notice.notice_id)
    )
    if notice.level is NoticeLevel.HINT:
        _hinted(turn, notice)
    elif notice.level is NoticeLevel.WITHDRAWN:
        turn.change(notices=others)
        turn.emit(ShowNotice(others[0] if others else notice))
        _withdrawn(turn)
    else:
        turn.change(notices=(*others, notice))
        turn.emit(ShowNotice(notice))
        _set_leave(turn)
        if turn.state.shutdown is None:
            left_s = turn.remaining_s()
            turn.change(
                shutdown=WorkerShutdown(stop=False, notice_s=None if left_s is None else Seconds(max(left_s, 0.0)))
            )
        _forgive(turn)


def _hinted(turn: WorkerTurn, notice: Notice) -> None:
    known = f"hint {notice.source} {notice.notice_id}"
    if known not in turn.state.logged:
        turn.change(logged=turn.state.logged | {known}, hinted=True)
        if not turn.state.notices:
            turn.emit(ShowNotice(notice))


def _forgive(turn: WorkerTurn) -> None:
    """Forgive a script that has just died of SIGTERM: the announced end caused it, so it is not a failure."""
    state = turn.state
    if state.stage is WorkerStage.DRAINING and state.exit_status == DIED_OF_SIGTERM and state.retry_at is not None:
        turn.change(failures=state.failures - 1, retry_at=None)


def _set_leave(turn: WorkerTurn) -> None:
    remaining_s = turn.remaining_s()
    if remaining_s is None:
        turn.change(leave_at=None)
        return
    leave_at = Instant(turn.now + max(remaining_s - rules.release_margin_s(remaining_s), 0.0))
    turn.change(leave_at=leave_at)
    turn.set_timer("deadline", leave_at - turn.now)


def _withdrawn(turn: WorkerTurn) -> None:
    state = turn.state
    _set_leave(turn)
    if state.notices or state.shutdown is None or state.shutdown.stop:
        return
    turn.log("the preemption notice was withdrawn: the run continues")
    request = state.request
    if request is not None and request.number == state.shutdown.request and not request.answered:
        save_requests.withdraw(turn)
    turn.change(shutdown=None)
    if turn.state.stage is WorkerStage.SAVING:
        turn.change(stage=transition(WORKER, WorkerStage.SAVING, WorkerStage.RUNNING))


# ---------------------------------------------------------------------------------------------------------------- stops


def stop_asked(turn: WorkerTurn, fact: RunStopRequested) -> None:
    """Handle a user's request to stop the run."""
    if fact.now:
        turn.change(shutdown=WorkerShutdown(stop=True))
        finish(turn, Outcome.WAITING, Cause.STOPPED, code=EXIT_STOPPED, message=_stopped(turn))
        return
    shutdown = turn.state.shutdown or WorkerShutdown(stop=True)
    if not shutdown.stop or turn.state.shutdown is None:
        turn.set_timer("stop", STOP_PATIENCE_S)
    turn.change(shutdown=replace(shutdown, stop=True))


def stop_timed_out(turn: WorkerTurn) -> None:
    """Stop without a save: the script did not save in time after a stop request."""
    if turn.state.shutdown is not None and turn.state.shutdown.stop:
        turn.log(f"the script did not save within {STOP_PATIENCE_S:g} s: stopping without a save")
        finish(turn, Outcome.WAITING, Cause.STOPPED, code=EXIT_STOPPED, message=_stopped(turn))


def _stopped(turn: WorkerTurn) -> str:
    return f"stopped; {_stored_so_far(turn)}{_advice(turn, '; run the same command again to resume')}"


def _advice(turn: WorkerTurn, to_a_user: str, within_a_job: str = "") -> str:
    """Return the next step for a user of `windfall exec`, or within a job, whose next machine is bought automatically."""
    return within_a_job if turn.state.first.managed else to_a_user


def _stored_so_far(turn: WorkerTurn) -> str:
    state = turn.state
    return f"step {state.committed_step} is stored" if state.live else "nothing is stored yet"


# ------------------------------------------------------------------------------------------------------- the last save


def consider(turn: WorkerTurn) -> None:
    """Advance the shutdown in force as far as the facts allow."""
    state = turn.state
    shutdown, stage = state.shutdown, state.stage
    if stage is _RUNNING and shutdown is None:
        return
    if stage is WorkerStage.NEW or stage is WorkerStage.ENDED:
        return
    if stage is WorkerStage.DRAINING:
        _consider_drained(turn)
        return
    if shutdown is None:
        return
    if not shutdown.stop:
        handovers.settle_unclear(turn)
    if state.stage is WorkerStage.RESTORING or _must_leave(turn) or (shutdown.saved and not _has_pending_saves(turn)):
        _finish_shutdown(turn)
    elif not shutdown.saved:
        _ask_last_save(turn, shutdown)


def _has_pending_saves(turn: WorkerTurn) -> bool:
    """Return whether results or the script's own saves can still be stored."""
    state = turn.state
    return bool(state.results) or any(checkpoint.by_user and checkpoint.complete for checkpoint in state.checkpoints)


def _must_leave(turn: WorkerTurn) -> bool:
    """Return whether the announced end is too near for anything more to be saved."""
    state = turn.state
    remaining_s = turn.remaining_s()
    if state.leave_at is None or remaining_s is None or turn.now < state.leave_at:
        return False
    checkpoint = state.active or state.queued
    if checkpoint is None:
        return True
    spent_s = 0.0 if checkpoint.upload_started_at is None else turn.now - checkpoint.upload_started_at
    costs = state.costs
    rest_s = costs.upload_p95_s(checkpoint.size_bytes) + (costs.commits.p95 or 0.0) - spent_s
    margin_s = turn.now + remaining_s - state.leave_at
    if rules.releases_now(costs.measured, rest_s, remaining_s, margin_s):
        return True
    turn.set_timer("deadline", rules.release_recheck_s(remaining_s, margin_s))
    return False


def _ask_last_save(turn: WorkerTurn, shutdown: WorkerShutdown) -> None:
    state = turn.state
    if shutdown.request is not None:
        pending = state.request is not None and state.request.number == shutdown.request
        if pending or any(checkpoint.request == shutdown.request for checkpoint in state.checkpoints):
            return
        shutdown = replace(shutdown, request=None)
        turn.change(shutdown=shutdown)
    if not state.ranks:
        if shutdown.stop and not state.results:
            _finish_shutdown(turn)
        elif not shutdown.stop:
            turn.log("the script has not called Windfall yet: nothing can be saved", once="sdk_inactive")
        return
    if shutdown.stop and state.live and state.committed_step >= state.step:
        handovers.settle_unclear(turn)
        if not _has_pending_saves(turn):
            _finish_shutdown(turn)
        return
    choice = _choose_last(turn)
    if choice.save_at is None:
        if not shutdown.refused:
            turn.decisions.append(choice.decision)
            turn.log(f"this machine ends too soon for another save: {_stored_so_far(turn)}, later steps will be redone")
            turn.change(shutdown=replace(shutdown, refused=True))
        return
    _request_last(turn, replace(shutdown, refused=False), choice)


def _choose_last(turn: WorkerTurn) -> SaveChoice:
    remaining_s = turn.remaining_s()
    if remaining_s is not None:
        return save_requests.choose(turn, remaining_s)
    step = save_requests.earliest_step(turn)
    rationale = (ComparedValue("newest step", float(turn.state.step), "step"),)
    decision = Decision("stop", VERSION, f"save at step {step}, then stop", rationale, ("stop without a save",))
    return SaveChoice(step, SaveKind.STOP, decision)


def _request_last(turn: WorkerTurn, shutdown: WorkerShutdown, choice: SaveChoice) -> None:
    pending = turn.state.request
    assert choice.save_at is not None, "the caller checks it"
    soon = pending is not None and pending.exact and pending.step <= choice.save_at
    if pending is not None and pending.sure and (pending.answered or soon):
        reuse = f"use the save at step {pending.step}, which is already in progress"
        turn.decisions.append(replace(choice.decision, choice=reuse, alternatives=(choice.decision.choice,)))
        number = pending.number
    else:
        number = save_requests.publish(turn, choice, choice.kind).number
    turn.change(shutdown=replace(shutdown, request=number))
    remaining_s = turn.remaining_s()
    if remaining_s is not None:
        turn.log(
            f"this machine will be preempted in {remaining_s:.0f} s: saving at step {choice.save_at}",
            once=f"last {number}",
        )
    if turn.state.stage is WorkerStage.RUNNING:
        turn.change(stage=transition(WORKER, WorkerStage.RUNNING, WorkerStage.SAVING))


def saved(turn: WorkerTurn, checkpoint_id: str) -> None:
    """Note whether a committed checkpoint is the last save; called while the state still tracks it."""
    shutdown = turn.state.shutdown
    if shutdown is None:
        return
    checkpoint = next(
        (checkpoint for checkpoint in turn.state.checkpoints if checkpoint.checkpoint_id == checkpoint_id), None
    )
    if checkpoint is None:
        return
    last = shutdown.request is not None and checkpoint.request == shutdown.request
    if last or checkpoint.kind in {SaveKind.EMERGENCY, SaveKind.STOP}:
        turn.change(shutdown=replace(shutdown, saved=True))


def _finish_shutdown(turn: WorkerTurn) -> None:
    state = turn.state
    assert state.shutdown is not None, "an end is in force"
    acknowledge = state.notices if state.shutdown.saved else ()
    nothing_lost = state.shutdown.saved or state.committed_step >= state.step
    if state.shutdown.stop:
        finish(turn, Outcome.WAITING, Cause.STOPPED, code=EXIT_STOPPED, message=_stopped(turn), acknowledge=acknowledge)
        return
    cause = Cause.PREEMPTED_SAVED if nothing_lost else Cause.PREEMPTED_UNSAVED
    redone = "later" if state.committed_step else "all"
    lost = "" if nothing_lost else f", {redone} steps will be redone"
    message = (
        f"this machine is being preempted: {_stored_so_far(turn)}{lost}"
        f"{_advice(turn, '; run the same command again to resume')}"
    )
    finish(turn, Outcome.WAITING, cause, code=EXIT_RETRY, message=message, acknowledge=acknowledge)


# ------------------------------------------------------------------------------------------------------ the script ends


def script_exited(turn: WorkerTurn, fact: ScriptExited) -> None:
    """Handle the exit of the script's process."""
    state = turn.state
    if state.stage not in {WorkerStage.RESTORING, WorkerStage.RUNNING, WorkerStage.SAVING}:
        return
    # Hand-overs of this batch are completed before the script counts as ended.
    checkpoints.settle(turn)
    turn.change(
        script=False, exit_status=fact.status, request=None, stage=transition(WORKER, state.stage, WorkerStage.DRAINING)
    )
    handovers.script_ended(turn, in_order=fact.status == 0)
    if fact.status == 0 or state.shutdown is not None:
        return
    if fact.status in state.first.options.retry_codes:
        turn.change(retry_at=Instant(turn.now + RETRY_FIRST_S))
        turn.set_timer("retry", RETRY_FIRST_S)
        turn.log(f"the script exited with exit code {fact.status}, one of the retry codes: restarting it")
        return
    failures = state.failures + 1
    turn.change(failures=failures)
    if failures < state.first.options.failures_max:
        pause_s = min(RETRY_FIRST_S * 2 ** (failures - 1), RETRY_MAX_S)
        turn.change(retry_at=Instant(turn.now + pause_s))
        turn.set_timer("retry", pause_s)
        left = state.first.options.failures_max - failures
        turn.log(
            f"the script exited with exit code {fact.status}: restarting it in {pause_s:g} s "
            f"(the run fails after {left} more {'failure' if left == 1 else 'failures'})"
        )


def _consider_drained(turn: WorkerTurn) -> None:
    state = turn.state
    if (state.checkpoints or state.results) and not (state.shutdown is not None and _must_leave(turn)):
        return
    if state.exit_status == 0 and not _notified_by_signal(turn):
        _finish_done(turn)
    elif state.shutdown is not None:
        _finish_shutdown(turn)
    elif state.retry_at is None:
        last = "last with" if state.failures > 1 else "with"
        message = f"the script failed {times_text(state.failures)}, {last} exit code {state.exit_status}"
        advice = _advice(turn, "run the same command again", "run the job again")
        finish(
            turn,
            Outcome.FAILED,
            Cause.SCRIPT_FAILED,
            code=EXIT_FAILED,
            message=f"{message}: {_stored_so_far(turn)}; fix the script and {advice}",
            status=state.exit_status,
        )
    elif turn.now >= state.retry_at:
        start(turn, state.attempt + 1)


def _finish_done(turn: WorkerTurn) -> None:
    state = turn.state
    # An unreachable store is not a failure: the same command retrains what is missing and stores it.
    missing = EXIT_RETRY if state.unstored_away else EXIT_FAILED
    if state.unstored_results:
        names = ", ".join(sorted({name for name, _ in state.unstored_results}))
        message = (
            f"the script is done, but its result {names} could not be stored: fix the error logged above and "
            + _advice(turn, "run the same command again", "resume the job")
        )
        finish(turn, Outcome.WAITING, Cause.STOPPED, code=missing, message=message, status=0)
        return
    if state.unstored_step <= state.committed_step:
        finish(turn, Outcome.DONE, Cause.DONE, code=EXIT_DONE, message="the script is done", status=0)
        return
    message = (
        f"the script is done, but its save at step {state.unstored_step} could not be stored ({_stored_so_far(turn)}): "
        "fix the error logged above and " + _advice(turn, "run the same command again", "resume the job")
    )
    finish(turn, Outcome.WAITING, Cause.STOPPED, code=missing, message=message, status=0)


def _notified_by_signal(turn: WorkerTurn) -> bool:
    """Return whether the script itself may have received the notice: many scripts exit with 0 on SIGTERM.

    If it had really finished, it finishes at once when restarted; if it were wrongly counted as done, it would never finish.
    """
    return any(notice.source == "signal" for notice in turn.state.notices)


def start(turn: WorkerTurn, attempt: int) -> None:
    """Restore the newest checkpoint and start the script."""
    turn.change(
        stage=transition(WORKER, turn.state.stage, WorkerStage.RESTORING),
        attempt=attempt,
        exit_status=None,
        retry_at=None,
        ranks=(),
        moved=(),
        request=None,
        misses=0,
        held=None,
        last_handovers=(),
        floor_step=0,
    )
    turn.emit(StartScript(attempt))


# ----------------------------------------------------------------------------------------------------------- the end


def fence_lost(turn: WorkerTurn, fact: FenceLost) -> None:
    """End the term because another machine took over the run: nothing more is committed here."""
    holder = fact.holder or "another machine"
    _end(
        turn,
        (
            KillScript("another machine took over the run"),
            ExitAgent(EXIT_RETRY, f"{holder} took over the run; this machine stops and stores nothing more"),
        ),
    )


def peer_lost(turn: WorkerTurn, fact: PeerLost) -> None:
    """End the term because another machine of the generation is gone: the others release the run for the next one."""
    if turn.state.shutdown is not None:
        turn.log(fact.message)
        _finish_shutdown(turn)
        return
    message = f"{fact.message}: {_stored_so_far(turn)}; the run continues when all its machines are back"
    finish(turn, Outcome.WAITING, Cause.VANISHED, code=EXIT_RETRY, message=message)


def finish(
    turn: WorkerTurn,
    outcome: Outcome,
    cause: Cause,
    *,
    code: int,
    message: str,
    status: int | None = None,
    acknowledge: tuple[Notice, ...] = (),
) -> None:
    """End the term: kill the script, release the run, acknowledge notices, exit."""
    if steps := sorted({checkpoint.step for checkpoint in turn.state.checkpoints if checkpoint.by_user}):
        turn.log(f"not stored before the end: the script's own save at step {', '.join(map(str, steps))}")
    kill: tuple[Command, ...] = (KillScript(message),) if turn.state.script else ()
    over = outcome in (Outcome.DONE, Outcome.FAILED) and not turn.state.notices
    tidy: tuple[Command, ...] = checkpoints.final_deletions(turn) if over else ()
    acknowledgements = tuple(AcknowledgeNotice(notice) for notice in acknowledge)
    preempted = cause is Cause.PREEMPTED_SAVED or cause is Cause.PREEMPTED_UNSAVED
    notice_s = turn.state.shutdown.notice_s if preempted and turn.state.shutdown is not None else None
    release = ReleaseRun(outcome, cause, status, notice_s)
    _end(turn, (*kill, *tidy, release, *acknowledgements, ExitAgent(code, message)))


def _end(turn: WorkerTurn, commands: tuple[Command, ...]) -> None:
    if turn.state.results:
        names = ", ".join(sorted({result.result for result in turn.state.results}))
        commands = (LogMessage(f"not stored before the end: the result {names}; hand it over again"), *commands)
    turn.change(
        stage=transition(WORKER, turn.state.stage, WorkerStage.ENDED),
        checkpoints=(),
        results=(),
        request=None,
        final_commands=commands,
    )
    turn.emit(*commands)
