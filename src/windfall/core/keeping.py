"""The keeper's reducer: facts in, actions out.  `core.keeping_facts` has the words, `core.keeping_absorb` takes facts in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from windfall.core.keeping_absorb import absorb
from windfall.core.keeping_facts import (
    ANSWER_S,
    BELIEFS_SHARE,
    IDLE_S,
    LAST_WORD_S,
    STRIDE_S_MAX,
    AskStore,
    EndMachine,
    Join,
    KeeperAction,
    KeeperFact,
    KeeperState,
    KillExec,
    Leaving,
    Line,
    Prepare,
    Running,
    Say,
    StartExec,
    StopExec,
    TellExec,
    UseBox,
    report,
)
from windfall.errors import EXIT_DONE
from windfall.events import BeliefsChanged, SaveTableGiven
from windfall.fleet import Direction, Directive, Report
from windfall.jobs import DEAD_MAN_S, SAVE_TIMEOUT_S
from windfall.terms import Instant, Seconds


@dataclass(slots=True)
class _Turn:
    """One reaction in the making."""

    state: KeeperState
    now: Instant
    actions: list[KeeperAction] = field(default_factory=list)

    def change(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]


def react(
    state: KeeperState, now: Instant, facts: tuple[KeeperFact, ...]
) -> tuple[KeeperState, tuple[KeeperAction, ...]]:
    """Take facts in and return what to do, in this order; without facts: what is due by now."""
    if state.over:
        return state, ()
    silence_s = state.silence_s + min(max(now - state.turned_at, 0.0), STRIDE_S_MAX)
    state = replace(state, turned_at=now, silence_s=silence_s)
    for fact in facts:
        state = absorb(state, now, fact)
    turn = _Turn(state, now)
    _consider_leaving(turn)
    if turn.state.leaving is None:
        _get_ready(turn)
        _end_what_is_unwanted(turn)
        _start(turn)
        _inform(turn)
    _speak(turn)
    if turn.state.leaving is not None:
        _leave(turn, turn.state.leaving)
    return turn.state, tuple(turn.actions)


def pause_s(state: KeeperState, now: Instant) -> float:
    """Return how long nothing is due [s]."""
    dues = [line.due for line in _lines(state) if not line.busy]
    return max(0.0, min([state.who.pace.look_s, *(due - now for due in dues)]))


def _lines(state: KeeperState) -> tuple[Line, ...]:
    return (state.direct, state.box) if state.who.direct else (state.box,)


# ------------------------------------------------------------------------------------------------------------- leaving


def _consider_leaving(turn: _Turn) -> None:
    state = turn.state
    limit_s = _unheard_s_max(state)
    if state.directive is not None and state.directive.direction is Direction.LEAVE:
        if state.leaving is None or state.leaving.save:
            why = "the controller needs this machine no longer"
            turn.change(leaving=Leaving(why, save=False, since=turn.now))
    elif state.leaving is None and state.silence_s > limit_s:
        why = f"nothing was heard of the controller for {limit_s:g} s: the machine saves and ends itself"
        turn.change(leaving=Leaving(why, save=True, since=turn.now))


def _unheard_s_max(state: KeeperState) -> Seconds:
    """Return after how long without its controller this machine ends [s]: sooner where it has nothing to go on with."""
    limit_s = state.brief.dead_man_s if state.brief is not None else DEAD_MAN_S
    told = state.directive
    wanted = told is not None and told.direction is Direction.RUN and not (state.done or state.stopped or state.failed)
    busy = state.running is not None or state.preparing or wanted
    return limit_s if busy else min(limit_s, IDLE_S)


def _leave(turn: _Turn, leaving: Leaving) -> None:
    state = turn.state
    if state.running is not None:
        _end(turn, state.running, now=not leaving.save)
        return
    # Nobody reads a direct report of a machine that was sent away; for all others the mailbox keeps the last word.
    if leaving.save and state.box.busy and turn.now < leaving.since + _save_timeout_s(state) + LAST_WORD_S:
        return
    turn.change(over=True)
    turn.actions.append(EndMachine(leaving.why))


def _end(turn: _Turn, run: Running, *, now: bool) -> None:
    """Ask the exec to end; kill it where it does not, with the time for a save only if it holds the run."""
    if run.asked_at is None or (now and not run.now):
        run = replace(run, asked_at=turn.now, now=now)
        turn.actions.append(StopExec(now))
    holds = run.standing is not None
    patience_s = _save_timeout_s(turn.state) if holds and not run.now else ANSWER_S
    assert run.asked_at is not None
    if turn.now >= run.asked_at + patience_s and not run.killed:
        run = replace(run, killed=True)
        turn.actions.append(KillExec())
    turn.change(running=run)


def _save_timeout_s(state: KeeperState) -> Seconds:
    return state.brief.save_timeout_s if state.brief is not None else SAVE_TIMEOUT_S


# ---------------------------------------------------------------------------------------------------- preparing, running


def _get_ready(turn: _Turn) -> None:
    state = turn.state
    if state.brief is None:
        # The direct answer brings the secrets too: the store is asked where that does not come.
        if (not state.who.direct or state.direct.failures) and not state.asking_store and _box_is_due(state, turn.now):
            turn.change(asking_store=True)
            turn.actions.append(AskStore())
    elif not (state.ready or state.preparing) and state.failed is None and turn.now >= state.prepare_at:
        turn.change(preparing=True)
        turn.actions.append(Prepare())


def _box_is_due(state: KeeperState, now: Instant) -> bool:
    return not state.box.busy and now >= state.box.due


def _end_what_is_unwanted(turn: _Turn) -> None:
    run, told = turn.state.running, turn.state.directive
    if run is None:
        return
    holds = run.standing is not None
    unwanted = not holds and (turn.state.announced(turn.now) or told is None or told.direction is Direction.WAIT)
    outdated = told is not None and told.direction is Direction.RUN and told.generation > run.generation
    if unwanted or outdated or run.asked_at is not None:
        _end(turn, run, now=False)


def _start(turn: _Turn) -> None:
    state, told = turn.state, turn.state.directive
    if told is None or told.direction is not Direction.RUN or not _may_start(state, turn.now):
        return
    rank = _rank(state.who.machine_id, told)
    if rank is None:
        return
    # An old "ended well" beside a run that waits would mean that somebody stopped it just now.
    exit_code = None if state.exit_code == EXIT_DONE else state.exit_code
    begun = replace(told, restart_s=None, schedule=None, notice_s=None)
    turn.change(running=Running(turn.now, told.generation, believed=begun), exit_code=exit_code, last=None)
    turn.actions.append(StartExec(told.generation, rank, told.peers, told.mttp_s))


def _inform(turn: _Turn) -> None:
    """Pass on what the controller believes of losses, and its schedule of saves, to the agent that runs."""
    run, told = turn.state.running, turn.state.directive
    if run is None or told is None or run.believed is None or not _differs(run.believed, told):
        return
    facts: list[BeliefsChanged | SaveTableGiven] = []
    if (told.mttp_s, told.restart_s, told.notice_s) != (None, None, None):
        facts.append(BeliefsChanged(told.mttp_s, told.restart_s, notice_s=told.notice_s))
    if told.schedule is not None:
        facts.append(told.schedule)
    turn.change(running=replace(run, believed=told))
    turn.actions.append(TellExec(tuple(facts)))


def _differs(known: Directive, told: Directive) -> bool:
    pairs = ((known.mttp_s, told.mttp_s), (known.restart_s, told.restart_s))
    moved = (new is not None and (old is None or abs(new - old) > BELIEFS_SHARE * max(old, 0.0)) for old, new in pairs)
    if told.notice_s is not None and told.notice_s != known.notice_s:
        return True
    return any(moved) or (told.schedule is not None and told.schedule != known.schedule)


def _may_start(state: KeeperState, now: Instant) -> bool:
    free = state.ready and state.running is None and not (state.done or state.stopped or state.failed)
    return free and state.heard and now >= state.again_at and not state.announced(now)


def _rank(machine_id: str, told: Directive) -> int | None:
    """Return this machine's place among the members; None if it is none of them."""
    if told.generation == 0:
        return 0
    members = [peer.machine_id for peer in told.peers]
    return members.index(machine_id) if machine_id in members else None


# ------------------------------------------------------------------------------------------------------------ speaking


def _speak(turn: _Turn) -> None:
    state, now = turn.state, turn.now
    news = report(state, now)
    said = (news.sentence, news.mute)
    substance = (news.doing, news.term, news.exit_code, news.level, state.deadline, news.generation, *said)
    if substance != state.said:
        turn.change(said=substance, direct=state.direct.urged(now), box=state.box.urged(now))
    if turn.state.who.direct and _due(turn.state.direct, now):
        turn.change(direct=_taken(turn.state.direct))
        turn.actions.append(Say(_next_report(turn)) if turn.state.joined else Join())
    if _due(turn.state.box, now):
        turn.change(box=_taken(turn.state.box))
        turn.actions.append(UseBox(_next_report(turn)))


def _due(line: Line, now: Instant) -> bool:
    return not line.busy and now >= line.due


def _taken(line: Line) -> Line:
    return replace(line, busy=True, again=False)


def _next_report(turn: _Turn) -> Report:
    turn.change(sequence=turn.state.sequence + 1)
    return report(turn.state, turn.now)
