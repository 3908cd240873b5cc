"""The node agent's reducer: facts in, actions out (`core.node_agent_state`, `core.node_agent_reducer`).

How facts change the node agent's state; `core.node_agent_reducer` decides what follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windfall.core.node_agent_state import (
    ANSWER_S,
    ESTIMATE_CHANGE_MIN,
    FINAL_REPORT_S,
    IDLE_S,
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    PREFER_DIRECT_S,
    QUICK_S,
    STRIDE_S_MAX,
    TRIES_MAX,
    Answered,
    ChannelState,
    EndMachine,
    ExecEnded,
    JobDataRead,
    JobDataUnavailable,
    Join,
    Joined,
    KillExec,
    MachineShutdown,
    MailboxFailed,
    MailboxRead,
    NodeAgentAction,
    NodeAgentFact,
    NodeAgentState,
    NotAnswered,
    Noticed,
    NotifyExec,
    NotPrepared,
    Prepare,
    Prepared,
    ReadJobData,
    RunningExec,
    RunStatusRead,
    SendReport,
    StartExec,
    StopExec,
    StopRequested,
    SyncMailbox,
    report,
)
from windfall.errors import EXIT_DONE, EXIT_FAILED, EXIT_MISUSE, EXIT_RETRY, EXIT_STOPPED
from windfall.events import AssignmentChanged, EstimatesChanged, ScheduleAssigned
from windfall.fleet import DesiredState, Directive, Report
from windfall.jobs import DEAD_MAN_S, SAVE_TIMEOUT_S
from windfall.structs import replace
from windfall.terms import Instant, Notice, NoticeLevel, Outcome, Seconds


def absorb(state: NodeAgentState, now: Instant, fact: NodeAgentFact) -> NodeAgentState:
    """Return the state after a fact; `core.node_agent_reducer.react` decides what follows from it."""
    match fact:
        case Joined() | Answered() | NotAnswered() | MailboxRead() | MailboxFailed():
            state = _absorb_contact(state, now, fact)
        case Noticed(notice):
            state = _notice(state, now, notice)
        case ExecEnded():
            state = _ended(state, now, fact)
        case RunStatusRead(run_status):
            if state.running is not None and run_status is not None:
                state = replace(state, running=replace(state.running, run_status=run_status))
        case StopRequested():
            reason = "stop requested on this machine"
            state = replace(state, shutdown=state.shutdown or MachineShutdown(reason, save=True, since=now))
        case _:
            state = _prepare(state, now, fact)
    return state


def _prepare(
    state: NodeAgentState, now: Instant, fact: JobDataRead | JobDataUnavailable | Prepared | NotPrepared
) -> NodeAgentState:
    match fact:
        case JobDataRead(job_limits):
            return replace(state, job_limits=state.job_limits or job_limits, reading_job_data=False, problem="")
        case JobDataUnavailable(message):
            return replace(state, reading_job_data=False, problem="" if state.job_limits is not None else message)
        case Prepared():
            return replace(state, ready=True, preparing=False, problem="")
        case NotPrepared(message, final):
            tries = state.prepare_failures + 1
            at = Instant(now + _pause_s(tries))
            failed = message if final else state.failed
            return replace(
                state, preparing=False, prepare_failures=tries, prepare_at=at, failed=failed, problem=message
            )


def _absorb_contact(
    state: NodeAgentState, now: Instant, fact: Joined | Answered | NotAnswered | MailboxRead | MailboxFailed
) -> NodeAgentState:
    pace = state.identity.pace
    match fact:
        case Joined():
            direct = ChannelState(now)
            return replace(state, joined=True, silence_s=0.0, direct=direct)
        case Answered(directive):
            direct = _rescheduled(state.direct, now, pace.direct_s)
            state = replace(state, direct=direct, directive_checked=state.directive_checked or not state.direct.again)
            if directive is not None and directive.controller_term < state.controller:
                return state
            state = replace(state, silence_s=0.0, answered_at=now)
            return state if directive is None else _accept_directive(state, directive)
        case NotAnswered():
            failures = state.direct.failures + 1
            wait_s = min(pace.direct_s * 2.0 ** min(failures, 8), 5.0)
            direct = replace(_rescheduled(state.direct, now, wait_s), failures=failures)
            mailbox = replace(state.mailbox, due=Instant(min(state.mailbox.due, now + pace.mailbox_alone_s)))
            problem = state.problem or (fact.message if state.job_limits is None else "")
            return replace(state, direct=direct, mailbox=mailbox, problem=problem)
        case MailboxRead():
            return _read_mailbox(state, now, fact)
        case MailboxFailed():
            failures = state.mailbox.failures + 1
            wait_s = min(pace.mailbox_alone_s * 2.0 ** min(failures - 1, 8), 10.0)
            # No channel has anything newer: the last directive still applies.
            directive_checked = state.directive_checked or (_mailbox_only(state) and not state.mailbox.again)
            mailbox = replace(_rescheduled(state.mailbox, now, wait_s), failures=failures)
            return replace(state, directive_checked=directive_checked, mailbox=mailbox)


def _read_mailbox(state: NodeAgentState, now: Instant, fact: MailboxRead) -> NodeAgentState:
    alone = _mailbox_only(state)
    wait_s = state.identity.pace.mailbox_alone_s if alone else state.identity.pace.mailbox_s
    directive_checked = state.directive_checked or (alone and not state.mailbox.again)
    state = replace(state, mailbox=_rescheduled(state.mailbox, now, wait_s), directive_checked=directive_checked)
    if fact.heartbeat is not None and fact.heartbeat[0] >= state.controller and fact.heartbeat != state.heartbeat:
        # The first heartbeat may be of any age; only a second one proves that the controller is alive.
        silence_s = state.silence_s if state.heartbeat is None else 0.0
        state = replace(state, heartbeat=fact.heartbeat, controller=fact.heartbeat[0], silence_s=silence_s)
    directive = fact.directive
    if directive is None or directive.controller_term < state.controller:
        return state
    if directive != state.mailbox_directive:
        state = replace(state, mailbox_directive=directive, silence_s=0.0)
    recently = state.answered_at is not None and now < state.answered_at + PREFER_DIRECT_S
    return (
        state if recently and directive.desired_state is not DesiredState.STOP else _accept_directive(state, directive)
    )


def _accept_directive(state: NodeAgentState, directive: Directive) -> NodeAgentState:
    """Accept a directive of this or a newer controller as the newest, unless it is of an older generation."""
    known = state.directive
    if (
        known is not None
        and directive.controller_term == known.controller_term
        and 0 < directive.generation < known.generation
    ):
        return state
    resumed = False
    if known is not None and directive.desired_state is DesiredState.RUN:
        resumed = known.desired_state is not DesiredState.RUN or directive.generation > known.generation
    stopped = state.stopped and not resumed
    return replace(state, directive=directive, controller=directive.controller_term, stopped=stopped)


def _mailbox_only(state: NodeAgentState) -> bool:
    return not (state.identity.direct and state.joined and state.direct.failures == 0)


def _rescheduled(channel: ChannelState, now: Instant, wait_s: float) -> ChannelState:
    return ChannelState(now if channel.again else Instant(now + wait_s))


def _notice(state: NodeAgentState, now: Instant, notice: Notice) -> NodeAgentState:
    others = tuple(old for old in state.notices if (old.source, old.notice_id) != (notice.source, notice.notice_id))
    if notice.level is NoticeLevel.WITHDRAWN:
        return replace(state, notices=others, withdrawn=len(others) < len(state.notices) or state.withdrawn)
    if notice.level is NoticeLevel.GONE:
        notice = replace(notice, level=NoticeLevel.ANNOUNCED, deadline=now)
    return replace(state, notices=(*others, notice))


def _ended(state: NodeAgentState, now: Instant, fact: ExecEnded) -> NodeAgentState:
    """Record the exit of `exec`; the end of the run is final, the end of this machine is not."""
    run = state.running
    assert run is not None, "only an exec that runs can end"
    released = None if run.run_status is None else run.run_status.released
    code = fact.code
    stopped_here = run.asked_at is not None and not (code == EXIT_DONE and released is not Outcome.WAITING)
    # Where several machines train, another node agent may have stopped this generation for the next one.
    stopped_there = run.generation > 0 and code in {EXIT_DONE, EXIT_STOPPED} and released is not Outcome.DONE
    if stopped_here or stopped_there:
        code = EXIT_RETRY  # not a failure, and not a request to stop the run
    state = replace(state, running=None, exit_code=code, last=run.run_status, directive_checked=False)
    state = replace(state, direct=state.direct.with_news(now), mailbox=state.mailbox.with_news(now))
    if code == EXIT_MISUSE:
        return replace(state, done=True, failed=fact.message or "the job's process refused to start")
    failed = code == EXIT_FAILED and released is Outcome.FAILED
    if code in {EXIT_DONE, EXIT_STOPPED} or failed:
        stopped = code == EXIT_STOPPED or (code == EXIT_DONE and released is Outcome.WAITING)
        return replace(state, done=not stopped, stopped=stopped, problem=fact.message if failed else "")
    trained = run.run_status is not None and run.run_status.attempt > 0
    quick_exits = 0 if trained and now - run.since > QUICK_S else state.quick_exits + 1
    pause_s = _pause_s(quick_exits) if quick_exits > 1 else 0.0
    state = replace(state, quick_exits=quick_exits, restart_at=Instant(now + pause_s), problem="")
    if code == EXIT_RETRY or run.asked_at is not None:
        return replace(state, bad_exits=0)
    return _count_bad_exit(state, run, fact)


def _count_bad_exit(state: NodeAgentState, run: RunningExec, fact: ExecEnded) -> NodeAgentState:
    """Count an exit that does not end a run; not if the store does not answer this node agent either."""
    saved = state.bad_exits_step if run.run_status is None else max(run.run_status.saved_step, state.bad_exits_step)
    bad_exits = 1 if saved > state.bad_exits_step else state.bad_exits + 1
    what = f"the job's process exited with exit code {fact.code}" + (f": {fact.message}" if fact.message else "")
    state = replace(state, bad_exits_step=saved, problem=what)
    if state.mailbox.failures:
        return state
    failed = f"{what} ({bad_exits} times in a row)" if bad_exits >= TRIES_MAX else None
    return replace(state, bad_exits=bad_exits, failed=failed, done=failed is not None)


def _pause_s(tries: int) -> float:
    return min(PAUSE_S_MIN * 2.0 ** min(max(tries - 1, 0), 16), PAUSE_S_MAX)


@dataclass(slots=True)
class _Turn:
    """One turn: the state so far and the actions to take."""

    state: NodeAgentState
    now: Instant
    actions: list[NodeAgentAction] = field(default_factory=list)

    def change(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]


def react(
    state: NodeAgentState, now: Instant, facts: tuple[NodeAgentFact, ...]
) -> tuple[NodeAgentState, tuple[NodeAgentAction, ...]]:
    """Apply facts and return the actions to take, in order; without facts, the actions due now."""
    if state.over:
        return state, ()
    silence_s = state.silence_s + min(max(now - state.last_turn_at, 0.0), STRIDE_S_MAX)
    state = replace(state, last_turn_at=now, silence_s=silence_s)
    for fact in facts:
        state = absorb(state, now, fact)
    turn = _Turn(state, now)
    _consider_shutdown(turn)
    if turn.state.shutdown is None:
        _start_preparation(turn)
        _end_unwanted_exec(turn)
        _start(turn)
        _notify_agent(turn)
    _send_reports(turn)
    if turn.state.shutdown is not None:
        _shut_down(turn, turn.state.shutdown)
    return turn.state, tuple(turn.actions)


def pause_s(state: NodeAgentState, now: Instant) -> float:
    """Return how long until the next turn is due [s]."""
    dues = [channel.due for channel in _channels(state) if not channel.busy]
    return max(0.0, min([state.identity.pace.poll_s, *(due - now for due in dues)]))


def _channels(state: NodeAgentState) -> tuple[ChannelState, ...]:
    return (state.direct, state.mailbox) if state.identity.direct else (state.mailbox,)


# ------------------------------------------------------------------------------------------------------------ shutdown


def _consider_shutdown(turn: _Turn) -> None:
    state = turn.state
    limit_s = _silence_s_max(state)
    if state.directive is not None and state.directive.desired_state is DesiredState.STOP:
        if state.shutdown is None or state.shutdown.save:
            reason = "the controller no longer needs this machine"
            turn.change(shutdown=MachineShutdown(reason, save=False, since=turn.now))
    elif state.shutdown is None and state.silence_s > limit_s:
        reason = f"no contact with the controller for {limit_s:g} s: the machine saves and shuts down"
        turn.change(shutdown=MachineShutdown(reason, save=True, since=turn.now))
    elif state.shutdown is None and state.spent:
        turn.change(shutdown=MachineShutdown("preempted, with nothing left to do", save=True, since=turn.now))


def _silence_s_max(state: NodeAgentState) -> Seconds:
    """Return how long this machine runs without contact with its controller [s]; shorter if it has nothing to run."""
    limit_s = state.job_limits.dead_man_s if state.job_limits is not None else DEAD_MAN_S
    directive = state.directive
    run_requested = (
        directive is not None
        and directive.desired_state is DesiredState.RUN
        and not (state.done or state.stopped or state.failed)
    )
    busy = state.running is not None or state.preparing or run_requested
    return limit_s if busy else min(limit_s, IDLE_S)


def _shut_down(turn: _Turn, shutdown: MachineShutdown) -> None:
    state = turn.state
    if state.running is not None:
        _end(turn, state.running, now=not shutdown.save)
        return
    # A machine with a directive to leave needs no final report; all others leave theirs in the mailbox.
    if shutdown.save and state.mailbox.busy and turn.now < shutdown.since + _save_timeout_s(state) + FINAL_REPORT_S:
        return
    turn.change(over=True)
    turn.actions.append(EndMachine(shutdown.reason))


def _end(turn: _Turn, run: RunningExec, *, now: bool) -> None:
    """Ask the exec to exit and kill it if it does not; it gets time for a save only if it holds the lease."""
    if run.asked_at is None or (now and not run.now):
        run = replace(run, asked_at=turn.now, now=now)
        turn.actions.append(StopExec(now))
    has_lease = run.run_status is not None
    patience_s = _save_timeout_s(turn.state) if has_lease and not run.now else ANSWER_S
    assert run.asked_at is not None
    if turn.now >= run.asked_at + patience_s and not run.killed:
        run = replace(run, killed=True)
        turn.actions.append(KillExec())
    turn.change(running=run)


def _save_timeout_s(state: NodeAgentState) -> Seconds:
    return state.job_limits.save_timeout_s if state.job_limits is not None else SAVE_TIMEOUT_S


# -------------------------------------------------------------------------------------------------- preparation and exec


def _start_preparation(turn: _Turn) -> None:
    state = turn.state
    if state.job_limits is None:
        # The direct answer includes the secrets; the store is read only if the direct channel fails.
        from_store = not state.identity.direct or state.direct.failures > 0
        if from_store and not state.reading_job_data and _mailbox_is_due(state, turn.now):
            turn.change(reading_job_data=True)
            turn.actions.append(ReadJobData())
    elif not (state.ready or state.preparing) and state.failed is None and turn.now >= state.prepare_at:
        turn.change(preparing=True)
        turn.actions.append(Prepare())


def _mailbox_is_due(state: NodeAgentState, now: Instant) -> bool:
    return not state.mailbox.busy and now >= state.mailbox.due


def _end_unwanted_exec(turn: _Turn) -> None:
    run, directive = turn.state.running, turn.state.directive
    if run is None:
        return
    desired_state = None if directive is None else directive.desired_state
    has_lease = run.run_status is not None
    unneeded = not has_lease and (turn.state.announced(turn.now) or desired_state in {None, DesiredState.WAIT})
    drained = desired_state is DesiredState.DRAIN
    outdated = directive is not None and desired_state is DesiredState.RUN and directive.generation > run.generation
    if unneeded or drained or outdated or run.asked_at is not None:
        _end(turn, run, now=False)


def _start(turn: _Turn) -> None:
    state, directive = turn.state, turn.state.directive
    if directive is None or directive.desired_state is not DesiredState.RUN or not _may_start(state, turn.now):
        return
    rank = _rank(state.identity.machine_id, directive)
    if rank is None:
        return
    # A stale "done" exit code next to a waiting run would look as if a user had just stopped it.
    exit_code = None if state.exit_code == EXIT_DONE else state.exit_code
    notified = replace(directive, restart_s=None, schedule=None, notice_s=None)
    turn.change(running=RunningExec(turn.now, directive.generation, notified=notified), exit_code=exit_code, last=None)
    turn.actions.append(
        StartExec(directive.generation, rank, directive.peers, directive.mttp_s, directive.role, directive.assignment)
    )


def _notify_agent(turn: _Turn) -> None:
    """Pass the controller's loss estimates and save schedule on to the running agent."""
    run, directive = turn.state.running, turn.state.directive
    if run is None or directive is None or run.notified is None or not _differs(run.notified, directive):
        return
    facts: list[EstimatesChanged | ScheduleAssigned | AssignmentChanged] = []
    if (directive.mttp_s, directive.restart_s, directive.notice_s) != (None, None, None):
        facts.append(EstimatesChanged(directive.mttp_s, directive.restart_s, notice_s=directive.notice_s))
    if directive.schedule is not None:
        facts.append(directive.schedule)
    if directive.assignment:
        facts.append(AssignmentChanged(directive.role, directive.assignment))
    turn.change(running=replace(run, notified=directive))
    turn.actions.append(NotifyExec(tuple(facts)))


def _differs(known: Directive, directive: Directive) -> bool:
    pairs = ((known.mttp_s, directive.mttp_s), (known.restart_s, directive.restart_s))
    changed = (
        new is not None and (old is None or abs(new - old) > ESTIMATE_CHANGE_MIN * max(old, 0.0)) for old, new in pairs
    )
    if directive.notice_s is not None and directive.notice_s != known.notice_s:
        return True
    if directive.assignment != known.assignment:
        return True
    return any(changed) or (directive.schedule is not None and directive.schedule != known.schedule)


def _may_start(state: NodeAgentState, now: Instant) -> bool:
    free = state.ready and state.running is None and not (state.done or state.stopped or state.failed)
    return free and state.directive_checked and now >= state.restart_at and not state.announced(now)


def _rank(machine_id: str, directive: Directive) -> int | None:
    """Return this machine's rank among the members; None if it is not a member."""
    if directive.generation == 0:
        return 0
    members = [peer.machine_id for peer in directive.peers]
    return members.index(machine_id) if machine_id in members else None


# ------------------------------------------------------------------------------------------------------------- reports


def _send_reports(turn: _Turn) -> None:
    state, now = turn.state, turn.now
    newest = report(state, now)
    text = (newest.message, newest.sdk_inactive)
    substance = (newest.status, newest.term, newest.exit_code, newest.level, state.deadline, newest.generation, *text)
    if substance != state.last_reported:
        turn.change(last_reported=substance, direct=state.direct.with_news(now), mailbox=state.mailbox.with_news(now))
    if turn.state.identity.direct and _due(turn.state.direct, now):
        turn.change(direct=_marked_busy(turn.state.direct))
        turn.actions.append(SendReport(_next_report(turn)) if turn.state.joined else Join())
    if _due(turn.state.mailbox, now):
        turn.change(mailbox=_marked_busy(turn.state.mailbox))
        turn.actions.append(SyncMailbox(_next_report(turn)))


def _due(channel: ChannelState, now: Instant) -> bool:
    return not channel.busy and now >= channel.due


def _marked_busy(channel: ChannelState) -> ChannelState:
    return replace(channel, busy=True, again=False)


def _next_report(turn: _Turn) -> Report:
    turn.change(sequence=turn.state.sequence + 1)
    return report(turn.state, turn.now)
