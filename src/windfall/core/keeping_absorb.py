"""How a keeper takes facts in: what it hears, sees and is told changes its state; what follows is `core.keeping`'s."""

from __future__ import annotations

from dataclasses import replace

from windfall.core.keeping_facts import (
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    PREFER_DIRECT_S,
    QUICK_S,
    TRIES_MAX,
    Answered,
    BoxFailed,
    BoxRead,
    Briefed,
    ExecEnded,
    Joined,
    KeeperFact,
    KeeperState,
    Leaving,
    Line,
    NotAnswered,
    NotBriefed,
    Noticed,
    NotPrepared,
    Prepared,
    Running,
    Stood,
    StopWished,
)
from windfall.errors import EXIT_AGAIN, EXIT_DONE, EXIT_FAILED, EXIT_MISUSE, EXIT_STOPPED
from windfall.fleet import Direction, Directive
from windfall.terms import Instant, Notice, NoticeLevel, Outcome


def absorb(state: KeeperState, now: Instant, fact: KeeperFact) -> KeeperState:
    """Return the state that knows a fact; what follows from it is decided by `core.keeping.react`."""
    match fact:
        case Joined() | Answered() | NotAnswered() | BoxRead() | BoxFailed():
            state = _hear(state, now, fact)
        case Noticed(notice):
            state = _notice(state, now, notice)
        case ExecEnded():
            state = _ended(state, now, fact)
        case Stood(standing):
            if state.running is not None and standing is not None:
                state = replace(state, running=replace(state.running, standing=standing))
        case StopWished():
            why = "somebody at this machine asked it to stop"
            state = replace(state, leaving=state.leaving or Leaving(why, save=True, since=now))
        case _:
            state = _prepare(state, now, fact)
    return state


def _prepare(state: KeeperState, now: Instant, fact: Briefed | NotBriefed | Prepared | NotPrepared) -> KeeperState:
    match fact:
        case Briefed(brief):
            return replace(state, brief=state.brief or brief, asking_store=False, trouble="")
        case NotBriefed(sentence):
            return replace(state, asking_store=False, trouble="" if state.brief is not None else sentence)
        case Prepared():
            return replace(state, ready=True, preparing=False, trouble="")
        case NotPrepared(sentence, final):
            tries = state.prepare_tries + 1
            at = Instant(now + _pause_s(tries))
            failed = sentence if final else state.failed
            return replace(state, preparing=False, prepare_tries=tries, prepare_at=at, failed=failed, trouble=sentence)


def _hear(state: KeeperState, now: Instant, fact: Joined | Answered | NotAnswered | BoxRead | BoxFailed) -> KeeperState:
    pace = state.who.pace
    match fact:
        case Joined():
            direct = Line(now)
            return replace(state, joined=True, silence_s=0.0, direct=direct)
        case Answered(directive):
            direct = _rested(state.direct, now, pace.direct_s)
            state = replace(state, direct=direct, heard=state.heard or not state.direct.again)
            if directive is not None and directive.controller < state.controller:
                return state
            state = replace(state, silence_s=0.0, answered_at=now)
            return state if directive is None else _obey(state, directive)
        case NotAnswered():
            failures = state.direct.failures + 1
            wait_s = min(pace.direct_s * 2.0 ** min(failures, 8), 5.0)
            direct = replace(_rested(state.direct, now, wait_s), failures=failures)
            box = replace(state.box, due=Instant(min(state.box.due, now + pace.box_alone_s)))
            trouble = state.trouble or (fact.sentence if state.brief is None else "")
            return replace(state, direct=direct, box=box, trouble=trouble)
        case BoxRead():
            return _read_box(state, now, fact)
        case BoxFailed():
            failures = state.box.failures + 1
            wait_s = min(pace.box_alone_s * 2.0 ** min(failures - 1, 8), 10.0)
            # Nobody can say anything newer now: the last directive stands.
            heard = state.heard or (_alone(state) and not state.box.again)
            return replace(state, heard=heard, box=replace(_rested(state.box, now, wait_s), failures=failures))


def _read_box(state: KeeperState, now: Instant, fact: BoxRead) -> KeeperState:
    alone = _alone(state)
    wait_s = state.who.pace.box_alone_s if alone else state.who.pace.box_s
    heard = state.heard or (alone and not state.box.again)
    state = replace(state, box=_rested(state.box, now, wait_s), heard=heard)
    if fact.beat is not None and fact.beat[0] >= state.controller and fact.beat != state.beat:
        # The first one may be of any age; it takes a second one to know that somebody writes them.
        silence_s = state.silence_s if state.beat is None else 0.0
        state = replace(state, beat=fact.beat, controller=fact.beat[0], silence_s=silence_s)
    told = fact.directive
    if told is None or told.controller < state.controller:
        return state
    if told != state.boxed:
        state = replace(state, boxed=told, silence_s=0.0)
    lately = state.answered_at is not None and now < state.answered_at + PREFER_DIRECT_S
    return state if lately and told.direction is not Direction.LEAVE else _obey(state, told)


def _obey(state: KeeperState, told: Directive) -> KeeperState:
    """Take a directive of this or a newer controller as the newest, unless it is older by its generation."""
    known = state.directive
    if known is not None and told.controller == known.controller and 0 < told.generation < known.generation:
        return state
    again = False
    if known is not None and told.direction is Direction.RUN:
        again = known.direction is not Direction.RUN or told.generation > known.generation
    stopped = state.stopped and not again
    return replace(state, directive=told, controller=told.controller, stopped=stopped)


def _alone(state: KeeperState) -> bool:
    return not (state.who.direct and state.joined and state.direct.failures == 0)


def _rested(line: Line, now: Instant, wait_s: float) -> Line:
    return Line(now if line.again else Instant(now + wait_s))


def _notice(state: KeeperState, now: Instant, notice: Notice) -> KeeperState:
    others = tuple(old for old in state.notices if (old.source, old.notice_id) != (notice.source, notice.notice_id))
    if notice.level is NoticeLevel.WITHDRAWN:
        return replace(state, notices=others, withdrawn=len(others) < len(state.notices) or state.withdrawn)
    if notice.level is NoticeLevel.GONE:
        notice = replace(notice, level=NoticeLevel.ANNOUNCED, deadline=now)
    return replace(state, notices=(*others, notice))


def _ended(state: KeeperState, now: Instant, fact: ExecEnded) -> KeeperState:
    """Tell the ends of a run from those of a machine: only the former are final."""
    run = state.running
    assert run is not None, "only an exec that runs can end"
    released = None if run.standing is None else run.standing.released
    code = fact.code
    stopped_here = run.asked_at is not None and not (code == EXIT_DONE and released is not Outcome.WAITING)
    # Where several machines train, another one's keeper may have stopped this generation for the next one.
    stopped_there = run.generation > 0 and code in {EXIT_DONE, EXIT_STOPPED} and released is not Outcome.DONE
    if stopped_here or stopped_there:
        code = EXIT_AGAIN  # that is nobody's failure, and nobody's wish to stop the run
    state = replace(state, running=None, exit_code=code, last=run.standing, heard=False)
    state = replace(state, direct=state.direct.urged(now), box=state.box.urged(now))
    if code == EXIT_MISUSE:
        return replace(state, done=True, failed=fact.sentence or "windfall exec refused to start")
    failed = code == EXIT_FAILED and released is Outcome.FAILED
    if code in {EXIT_DONE, EXIT_STOPPED} or failed:
        stopped = code == EXIT_STOPPED or (code == EXIT_DONE and released is Outcome.WAITING)
        return replace(state, done=not stopped, stopped=stopped, trouble=fact.sentence if failed else "")
    trained = run.standing is not None and run.standing.attempt > 0
    quick = 0 if trained and now - run.since > QUICK_S else state.quick + 1
    pause_s = _pause_s(quick) if quick > 1 else 0.0
    state = replace(state, quick=quick, again_at=Instant(now + pause_s), trouble="")
    if code == EXIT_AGAIN or run.asked_at is not None:
        return replace(state, odd=0)
    return _odd(state, run, fact)


def _odd(state: KeeperState, run: Running, fact: ExecEnded) -> KeeperState:
    """Count an end that is no run's; a store that does not answer this keeper either is to blame for none."""
    saved = state.odd_step if run.standing is None else max(run.standing.saved_step, state.odd_step)
    odd = 1 if saved > state.odd_step else state.odd + 1
    what = f"windfall exec ended with {fact.code}" + (f": {fact.sentence}" if fact.sentence else "")
    state = replace(state, odd_step=saved, trouble=what)
    if state.box.failures:
        return state
    failed = f"{what} ({odd} times in a row)" if odd >= TRIES_MAX else None
    return replace(state, odd=odd, failed=failed, done=failed is not None)


def _pause_s(tries: int) -> float:
    return min(PAUSE_S_MIN * 2.0 ** min(max(tries - 1, 0), 16), PAUSE_S_MAX)
