"""How a machine's work ends: notices, stops, the script's own end, the fence.

Each way ends in one `finish`: the script is killed, the run released, the notice acknowledged (only if nothing is left to
be saved), the agent exits; nothing is committed after that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from windfall.core import asking, handing, points
from windfall.core.lifecycle import WORKER, Stage, move
from windfall.core.state import Ending, Turn
from windfall.errors import EXIT_AGAIN, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from windfall.events import (
    AcknowledgeNotice,
    Because,
    Command,
    Decision,
    ExitAgent,
    FenceLost,
    KillScript,
    NoticeReceived,
    PeerLost,
    ReleaseRun,
    ScriptExited,
    ShowNotice,
    StartScript,
    StopAsked,
    Tell,
)
from windfall.policies.saving import rules
from windfall.policies.saving.decide import VERSION, Choice
from windfall.terms import Cause, Instant, Notice, NoticeLevel, Outcome, SaveKind, Seconds

STOP_PATIENCE_S = 600.0
"""A script that was asked to save and stop gets so long."""
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
"""Pause before a script that failed is started again: doubles from the first to the second."""
DIED_OF_SIGTERM = 128 + 15
_RUNNING: Final = Stage.RUNNING

# -------------------------------------------------------------------------------------------------------------- notices


def noticed(turn: Turn, fact: NoticeReceived) -> None:
    """A message about this machine's end."""
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
        turn.order(ShowNotice(others[0] if others else notice))
        _withdrawn(turn)
    else:
        turn.change(notices=(*others, notice))
        turn.order(ShowNotice(notice))
        _set_leave(turn)
        if turn.state.ending is None:
            left_s = turn.remaining_s()
            turn.change(ending=Ending(stop=False, notice_s=None if left_s is None else Seconds(max(left_s, 0.0))))
        _forgive(turn)


def _hinted(turn: Turn, notice: Notice) -> None:
    known = f"hint {notice.source} {notice.notice_id}"
    if known not in turn.state.told:
        turn.change(told=turn.state.told | {known}, hinted=True)
        if not turn.state.notices:
            turn.order(ShowNotice(notice))


def _forgive(turn: Turn) -> None:
    """A script that has just died of SIGTERM died of what this notice announces: that is no failure of its own."""
    state = turn.state
    if state.stage is Stage.DRAINING and state.exit_status == DIED_OF_SIGTERM and state.retry_at is not None:
        turn.change(failures=state.failures - 1, retry_at=None)


def _set_leave(turn: Turn) -> None:
    remaining_s = turn.remaining_s()
    if remaining_s is None:
        turn.change(leave_at=None)
        return
    leave_at = Instant(turn.now + max(remaining_s - rules.leave_margin_s(remaining_s), 0.0))
    turn.change(leave_at=leave_at)
    turn.wake("deadline", leave_at - turn.now)


def _withdrawn(turn: Turn) -> None:
    state = turn.state
    _set_leave(turn)
    if state.notices or state.ending is None or state.ending.stop:
        return
    turn.tell("the end of this machine was called off: the run goes on")
    request = state.request
    if request is not None and request.number == state.ending.request and not request.answered:
        asking.withdraw(turn)
    turn.change(ending=None)
    if turn.state.stage is Stage.SAVING:
        turn.change(stage=move(WORKER, Stage.SAVING, Stage.RUNNING))


# ---------------------------------------------------------------------------------------------------------------- stops


def stop_asked(turn: Turn, fact: StopAsked) -> None:
    """The user wants the run to stop."""
    if fact.now:
        turn.change(ending=Ending(stop=True))
        finish(turn, Outcome.WAITING, Cause.STOPPED, code=EXIT_STOPPED, sentence=_stopped(turn))
        return
    ending = turn.state.ending or Ending(stop=True)
    if not ending.stop or turn.state.ending is None:
        turn.wake("stop", STOP_PATIENCE_S)
    turn.change(ending=replace(ending, stop=True))


def out_of_patience(turn: Turn) -> None:
    """The script did not save in time after a stop was asked for."""
    if turn.state.ending is not None and turn.state.ending.stop:
        turn.tell(f"the script did not save within {STOP_PATIENCE_S:g} s: stopping without")
        finish(turn, Outcome.WAITING, Cause.STOPPED, code=EXIT_STOPPED, sentence=_stopped(turn))


def _stopped(turn: Turn) -> str:
    return f"stopped; {_stands(turn)}{_advice(turn, ', the same line goes on from there')}"


def _advice(turn: Turn, to_a_user: str, within_a_job: str = "") -> str:
    """Return what to do next: by whoever started this machine's line, or within a job, whose next machine is bought."""
    return within_a_job if turn.state.first.kept else to_a_user


def _stands(turn: Turn) -> str:
    state = turn.state
    return f"step {state.committed_step} is stored" if state.live else "nothing is stored yet"


# ------------------------------------------------------------------------------------------------------- the last save


def consider(turn: Turn) -> None:
    """Go on towards the end that is in force, as far as the facts allow."""
    state = turn.state
    ending, stage = state.ending, state.stage
    if stage is _RUNNING and ending is None:
        return
    if stage is Stage.NEW or stage is Stage.ENDED:
        return
    if stage is Stage.DRAINING:
        _consider_drained(turn)
        return
    if ending is None:
        return
    if not ending.stop:
        handing.settle_unclear(turn)
    if state.stage is Stage.STARTING or _must_leave(turn) or (ending.saved and not _waits(turn)):
        _finish_ending(turn)
    elif not ending.saved:
        _ask_last_save(turn, ending)


def _waits(turn: Turn) -> bool:
    """Return whether something that a script handed over by itself can still be stored."""
    state = turn.state
    return bool(state.results) or any(point.own and point.whole for point in state.checkpoints)


def _must_leave(turn: Turn) -> bool:
    """Return whether the announced end is so near that nothing more can be saved."""
    state = turn.state
    remaining_s = turn.remaining_s()
    if state.leave_at is None or remaining_s is None or turn.now < state.leave_at:
        return False
    point = state.active or state.queued
    if point is None:
        return True
    spent_s = 0.0 if point.begun_at is None else turn.now - point.begun_at
    costs = state.costs
    rest_s = costs.upload_p95_s(point.size_bytes) + (costs.commits.p95 or 0.0) - spent_s
    margin_s = turn.now + remaining_s - state.leave_at
    if rules.lets_go(costs.measured, rest_s, remaining_s, margin_s):
        return True
    turn.wake("deadline", rules.lets_go_next_s(remaining_s, margin_s))
    return False


def _ask_last_save(turn: Turn, ending: Ending) -> None:
    state = turn.state
    if ending.request is not None:
        pending = state.request is not None and state.request.number == ending.request
        if pending or any(point.request == ending.request for point in state.checkpoints):
            return
        ending = replace(ending, request=None)
        turn.change(ending=ending)
    if not state.ranks:
        if ending.stop and not state.results:
            _finish_ending(turn)
        elif not ending.stop:
            turn.tell("the script has not called Windfall yet, so that nothing can be saved", once="mute")
        return
    if ending.stop and state.live and state.committed_step >= state.step:
        handing.settle_unclear(turn)
        if not _waits(turn):
            _finish_ending(turn)
        return
    choice = _choose_last(turn)
    if choice.save_at is None:
        if not ending.refused:
            turn.decisions.append(choice.decision)
            turn.tell(f"this machine ends too soon for another save: {_stands(turn)}, later steps will be redone")
            turn.change(ending=replace(ending, refused=True))
        return
    _request_last(turn, replace(ending, refused=False), choice)


def _choose_last(turn: Turn) -> Choice:
    remaining_s = turn.remaining_s()
    if remaining_s is not None:
        return asking.choose(turn, remaining_s)
    step = asking.earliest_step(turn)
    because = (Because("step", float(turn.state.step), "step"),)
    decision = Decision("stop", VERSION, f"save at step {step}, then stop", because, ("stop without a save",))
    return Choice(step, SaveKind.STOP, decision)


def _request_last(turn: Turn, ending: Ending, choice: Choice) -> None:
    pending = turn.state.request
    assert choice.save_at is not None, "the caller has seen it"
    soon = pending is not None and pending.exact and pending.step <= choice.save_at
    if pending is not None and pending.sure and (pending.answered or soon):
        words = f"count the save at step {pending.step} that is already under way"
        turn.decisions.append(replace(choice.decision, choice=words, alternatives=(choice.decision.choice,)))
        number = pending.number
    else:
        number = asking.publish(turn, choice, choice.kind).number
    turn.change(ending=replace(ending, request=number))
    remaining_s = turn.remaining_s()
    if remaining_s is not None:
        turn.tell(
            f"this machine is taken in {remaining_s:.0f} s: saving at step {choice.save_at}", once=f"last {number}"
        )
    if turn.state.stage is Stage.RUNNING:
        turn.change(stage=move(WORKER, Stage.RUNNING, Stage.SAVING))


def saved(turn: Turn, checkpoint_id: str) -> None:
    """A point was committed (and is still known by its id in the state before): is it the last save?"""
    ending = turn.state.ending
    if ending is None:
        return
    point = next((point for point in turn.state.checkpoints if point.checkpoint_id == checkpoint_id), None)
    if point is None:
        return
    last = ending.request is not None and point.request == ending.request
    if last or point.kind in {SaveKind.EMERGENCY, SaveKind.STOP}:
        turn.change(ending=replace(ending, saved=True))


def _finish_ending(turn: Turn) -> None:
    state = turn.state
    assert state.ending is not None, "an end is in force"
    acknowledge = state.notices if state.ending.saved else ()
    nothing_lost = state.ending.saved or state.committed_step >= state.step
    if state.ending.stop:
        finish(
            turn, Outcome.WAITING, Cause.STOPPED, code=EXIT_STOPPED, sentence=_stopped(turn), acknowledge=acknowledge
        )
        return
    cause = Cause.PREEMPTED_SAVED if nothing_lost else Cause.PREEMPTED_UNSAVED
    lost = "" if nothing_lost else ", later steps will be redone"
    sentence = (
        f"this machine is being taken: {_stands(turn)}{lost}{_advice(turn, '; start the same line again to go on')}"
    )
    finish(turn, Outcome.WAITING, cause, code=EXIT_AGAIN, sentence=sentence, acknowledge=acknowledge)


# ------------------------------------------------------------------------------------------------------ the script ends


def script_exited(turn: Turn, fact: ScriptExited) -> None:
    """The script's process ended by itself."""
    state = turn.state
    if state.stage not in {Stage.STARTING, Stage.RUNNING, Stage.SAVING}:
        return
    # What was handed over in this very batch is whole before the script is gone.
    points.settle(turn)
    turn.change(script=False, exit_status=fact.status, request=None, stage=move(WORKER, state.stage, Stage.DRAINING))
    handing.script_gone(turn, in_order=fact.status == 0)
    if fact.status == 0 or state.ending is not None:
        return
    if fact.status in state.first.retry_codes:
        turn.change(retry_at=Instant(turn.now + RETRY_FIRST_S))
        turn.wake("retry", RETRY_FIRST_S)
        turn.tell(f"the script ended with status {fact.status}, which asks for another start: it is started again")
        return
    failures = state.failures + 1
    turn.change(failures=failures)
    if failures < state.first.failures_max:
        pause_s = min(RETRY_FIRST_S * 2 ** (failures - 1), RETRY_MAX_S)
        turn.change(retry_at=Instant(turn.now + pause_s))
        turn.wake("retry", pause_s)
        left = state.first.failures_max - failures
        turn.tell(
            f"the script ended with status {fact.status}: starting it again in {pause_s:g} s "
            f"({left} more {'failure' if left == 1 else 'failures'} and the run has failed)"
        )


def _consider_drained(turn: Turn) -> None:
    state = turn.state
    if (state.checkpoints or state.results) and not (state.ending is not None and _must_leave(turn)):
        return
    if state.exit_status == 0 and not _told_by_signal(turn):
        _finish_done(turn)
    elif state.ending is not None:
        _finish_ending(turn)
    elif state.retry_at is None:
        sentence = f"the script failed {state.failures} times, the last time with status {state.exit_status}"
        finish(
            turn,
            Outcome.FAILED,
            Cause.SCRIPT_FAILED,
            code=EXIT_FAILED,
            sentence=f"{sentence}: {_stands(turn)}; mend it and {_advice(turn, 'start the same line again', 'run it again')}",
            status=state.exit_status,
        )
    elif turn.now >= state.retry_at:
        start(turn, state.attempt + 1)


def _finish_done(turn: Turn) -> None:
    state = turn.state
    # A store that stayed away is nobody's failure: the same line trains what is missing again and stores it.
    missing = EXIT_AGAIN if state.unstored_away else EXIT_FAILED
    if state.unstored_results:
        names = ", ".join(sorted({name for name, _ in state.unstored_results}))
        sentence = (
            f"the script is done, but its result {names} could not be stored: mend what is said above and "
            + _advice(turn, "start the same line again", "resume the job")
        )
        finish(turn, Outcome.WAITING, Cause.STOPPED, code=missing, sentence=sentence, status=0)
        return
    if state.unstored_step <= state.committed_step:
        finish(turn, Outcome.DONE, Cause.DONE, code=EXIT_DONE, sentence="the script is done", status=0)
        return
    sentence = (
        f"the script is done, but its save at step {state.unstored_step} could not be stored ({_stands(turn)}): "
        "mend what is said above and " + _advice(turn, "start the same line again", "resume the job")
    )
    finish(turn, Outcome.WAITING, Cause.STOPPED, code=missing, sentence=sentence, status=0)


def _told_by_signal(turn: Turn) -> bool:
    """Return whether the script itself may have heard of the end: many scripts answer SIGTERM by exiting with 0.

    Started again, a script that had really finished finishes at once; one taken for finished would never be.
    """
    return any(notice.source == "signal" for notice in turn.state.notices)


def start(turn: Turn, attempt: int) -> None:
    """Restore the newest point and start the script."""
    turn.change(
        stage=move(WORKER, turn.state.stage, Stage.STARTING),
        attempt=attempt,
        exit_status=None,
        retry_at=None,
        ranks=(),
        moved=(),
        request=None,
        misses=0,
        held=None,
        handed=(),
        floor_step=0,
    )
    turn.order(StartScript(attempt))


# ----------------------------------------------------------------------------------------------------------- the end


def fence_lost(turn: Turn, fact: FenceLost) -> None:
    """Another machine has the run: nothing more is ever committed here."""
    holder = fact.holder or "another machine"
    _end(
        turn,
        (
            KillScript("another machine took the run"),
            ExitAgent(EXIT_AGAIN, f"{holder} has taken the run; this machine stops and stores nothing more"),
        ),
    )


def peer_lost(turn: Turn, fact: PeerLost) -> None:
    """Another machine of the generation is gone: without it no step can be taken, so that all let go for the next one."""
    if turn.state.ending is not None:
        turn.tell(fact.sentence)
        _finish_ending(turn)
        return
    sentence = f"{fact.sentence}: {_stands(turn)}; the run goes on when its machines are complete again"
    finish(turn, Outcome.WAITING, Cause.VANISHED, code=EXIT_AGAIN, sentence=sentence)


def finish(
    turn: Turn,
    outcome: Outcome,
    cause: Cause,
    *,
    code: int,
    sentence: str,
    status: int | None = None,
    acknowledge: tuple[Notice, ...] = (),
) -> None:
    """Say the last words: kill, release, acknowledge, exit."""
    if steps := sorted({point.step for point in turn.state.checkpoints if point.own}):
        turn.tell(f"not stored before the end: the script's own save at step {', '.join(map(str, steps))}")
    kill: tuple[Command, ...] = (KillScript(sentence),) if turn.state.script else ()
    over = outcome in (Outcome.DONE, Outcome.FAILED) and not turn.state.notices
    tidy: tuple[Command, ...] = points.last_deletions(turn) if over else ()
    acknowledgements = tuple(AcknowledgeNotice(notice) for notice in acknowledge)
    taken = cause is Cause.PREEMPTED_SAVED or cause is Cause.PREEMPTED_UNSAVED
    notice_s = turn.state.ending.notice_s if taken and turn.state.ending is not None else None
    release = ReleaseRun(outcome, cause, status, notice_s)
    _end(turn, (*kill, *tidy, release, *acknowledgements, ExitAgent(code, sentence)))


def _end(turn: Turn, words: tuple[Command, ...]) -> None:
    if turn.state.results:
        names = ", ".join(sorted({result.result for result in turn.state.results}))
        words = (Tell(f"not stored before the end: the result {names}; hand it over again"), *words)
    turn.change(
        stage=move(WORKER, turn.state.stage, Stage.ENDED), checkpoints=(), results=(), request=None, last_words=words
    )
    turn.order(*words)
