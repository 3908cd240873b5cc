"""How a job ends: it is done, it fails by itself too often, a user or a limit stops it; and how it goes on again."""

from __future__ import annotations

from dataclasses import replace

from windfall.core import ledger, machines
from windfall.core.fleet_state import ACTIVE, NO_TIME, Closing, FleetTurn
from windfall.core.lifecycle import OrderState
from windfall.errors import EXIT_BUDGET, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from windfall.fleet import (
    RUN_DONE,
    TERMINAL,
    Doing,
    Event,
    JobPhase,
    NotifyUser,
    ResumeWanted,
    RunObserved,
    SettleJob,
    StopRun,
    StopWanted,
)
from windfall.policies import limits
from windfall.terms import Instant, Outcome, Step

NOW_S = 15.0
"""How long a stop without a save waits for the run's release [s]."""
_LET_GO = frozenset({Outcome.WAITING, Outcome.DONE, Outcome.FAILED})


# ---------------------------------------------------------------------------------------------------------------- facts


def run_observed(turn: FleetTurn, fact: RunObserved) -> None:
    """The run's log says something new; progress forgives the failures of machines."""
    before = turn.state.run
    if before is None or fact.saved_step > before.saved_step or fact.term > before.term:
        machines.alive_by_run(turn, fact.holder)
    if fact.saved_step > (Step(0) if before is None else before.saved_step):
        turn.change(machine_failures=0, barren=0, calm_until=NO_TIME)
    closing = turn.state.closing
    if closing is not None and fact.holder is None and fact.outcome in _LET_GO:
        turn.change(closing=replace(closing, let_go=True))
    turn.change(run=fact)


def stop_wanted(turn: FleetTurn, fact: StopWanted) -> None:
    """A user wants the job to stop."""
    state = turn.state
    if state.phase in TERMINAL:
        turn.tell(f"the job is {state.phase}: there is nothing to stop")
    elif state.closing is None:
        _close(turn, Closing(JobPhase.STOPPED, EXIT_STOPPED, f"stopped by {fact.user}", turn.now), now=fact.now)
    elif fact.now and state.closing.saves_until is not None:
        until = min(state.closing.saves_until, Instant(turn.now + NOW_S))
        turn.change(closing=replace(state.closing, saves_until=until, now=True, resume=False))
        turn.order(StopRun(True, f"stopped at once by {fact.user}"))
    elif state.closing.resume:
        turn.change(closing=replace(state.closing, resume=False))


def resume_wanted(turn: FleetTurn, fact: ResumeWanted) -> None:
    """A user wants a stopped or failed job to go on; what it failed of before is forgiven."""
    state = turn.state
    if state.closing is not None and state.closing.final is not JobPhase.DONE:
        turn.change(closing=replace(state.closing, resume=True))
    elif state.phase in {JobPhase.STOPPED, JobPhase.FAILED}:
        turn.tell(f"{fact.user} lets the job go on")
        _begin_again(turn)
    else:
        turn.tell(f"the job is {state.phase}: there is nothing to resume")


def _begin_again(turn: FleetTurn) -> None:
    run = turn.state.run
    turn.enter(JobPhase.BUYING)
    turn.change(
        closing=None,
        ended=None,
        machine_failures=0,
        stillborn=0,
        barren=0,
        calm_until=NO_TIME,
        forgiven=(-1, 0) if run is None else (run.term, run.failures),
    )
    turn.blocks.clear()


# ------------------------------------------------------------------------------------------------------------- deciding


def consider(turn: FleetTurn) -> None:
    """Decide whether the job shall end, and bring an end that was decided forward."""
    if turn.state.phase in ACTIVE or turn.state.closing is not None:
        _consider_run(turn)
    if turn.state.phase in ACTIVE:
        _consider_failures(turn)
        if turn.state.closing is None:
            _consider_limits(turn)
    if turn.state.closing is not None:
        _advance(turn)


def _consider_run(turn: FleetTurn) -> None:
    run, closing = turn.state.run, turn.state.closing
    if run is None:
        return
    if run.outcome is Outcome.DONE:
        if closing is None or closing.final is not JobPhase.DONE:
            _close(turn, Closing(JobPhase.DONE, EXIT_DONE, _done(turn, run), turn.now), now=None)
        return
    if closing is not None:
        return
    term, forgiven = turn.state.forgiven
    if run.outcome is Outcome.FAILED and run.term > term:
        _fail(turn, f"the run has failed: its script failed {run.failures} times by itself")
        return
    failures = run.failures - (forgiven if run.failures >= forgiven else 0)
    decision = limits.crash_loop(failures, turn.job.recovery.failures_max, "the script")
    if decision is not None:
        turn.decisions.append(decision)
        _fail(turn, f"the script failed {failures} times by itself")
    elif _stopped_outside(turn, run):
        _close(turn, Closing(JobPhase.STOPPED, EXIT_STOPPED, "the run was stopped from outside", turn.now), now=None)


def _done(turn: FleetTurn, run: RunObserved) -> str:
    """Say that the run is done, and what that hides: a script of which no step is known."""
    mute = not run.saved_step and any(unit.report is not None and unit.report.mute for unit in turn.units.values())
    return f"{RUN_DONE}{'; its script never called Windfall: nothing was saved on the way' if mute else ''}"


def _stopped_outside(turn: FleetTurn, run: RunObserved) -> bool:
    """Say whether a machine's agent ended well although the run is not done: somebody stopped it through its store."""
    if run.outcome is not Outcome.WAITING or run.holder is not None:
        return False
    # Members of a generation end as their leader does; only the leader's own keeper knows whether it asked for that.
    generation = turn.state.generation
    heads = turn.units if generation is None else generation.members[:1]
    return any(
        report is not None
        and report.doing is Doing.WAITING
        and report.exit_code in {EXIT_DONE, EXIT_STOPPED}
        and report.term is not None
        and run.term >= report.term
        for report in (turn.units[name].report for name in heads if name in turn.units)
    )


def _consider_failures(turn: FleetTurn) -> None:
    state = turn.state
    decision = limits.crash_loop(state.machine_failures, turn.job.recovery.failures_max, "machines")
    if decision is not None:
        turn.decisions.append(decision)
        _fail(turn, f"{state.machine_failures} machines could not do the job, the last: {state.failure}")
        return
    decision = limits.crash_loop(state.stillborn, limits.stillborn_max(turn.job.nodes), "machines before they spoke")
    if decision is not None:
        turn.decisions.append(decision)
        _fail(turn, f"{state.stillborn} machines in a row ended before their agent spoke")

    decision = limits.no_progress(state.barren, turn.job.recovery.barren_max * turn.job.nodes)
    if decision is not None:
        turn.decisions.append(decision)
        _fail(
            turn,
            f"no progress: {state.barren} machines in a row came and went without one step of the script; see what it "
            "waits for (`windfall logs`), or allow more by job_recovery.max_losses_without_progress",
        )


def _consider_limits(turn: FleetTurn) -> None:
    job = turn.job
    if job.max_duration_s is not None:
        save_s = job.checkpointing.save_timeout_s
        decision = limits.out_of_time(turn.now, turn.state.began_at, job.max_duration_s, save_s)
        if decision is not None:
            turn.decisions.append(decision)
            sentence = f"stopped at max_duration ({job.max_duration_s:g} s)"
            _close(turn, Closing(JobPhase.STOPPED, EXIT_BUDGET, sentence, turn.now), now=False)
            return
        turn.later.append(limits.save_begins_at(turn.state.began_at, job.max_duration_s, save_s))
    _watch_deadline(turn)
    over_budget(turn, 0.0)


def _watch_deadline(turn: FleetTurn) -> None:
    """Tell the user once that the deadline has passed: it is what was hoped for, not a limit."""
    deadline_s = turn.job.objective.deadline_s
    if deadline_s is None or turn.state.late:
        return
    at = Instant(turn.state.began_at + deadline_s)
    if turn.now < at:
        turn.later.append(at)
        return
    turn.change(late=True)
    sentence = f"the deadline ({deadline_s:g} s after the submission) has passed and the run is not done: it goes on"
    turn.tell(sentence)
    turn.order(NotifyUser(Event.LATE, sentence))


def over_budget(turn: FleetTurn, more_usd_per_hour: float) -> bool:
    """Stop the job if what it has cost, and its end will cost, reaches the budget; return whether it does.

    Args:
        turn: the present one.
        more_usd_per_hour: price of what would be bought now [USD/h].
    """
    job = turn.job
    budget = job.objective.budget_usd
    if budget is None:
        return False
    due = ledger.sums(turn.state.ledger, turn.wall()).due_usd
    rate = sum(unit.machine.price_usd_per_hour for unit in turn.units.values()) + more_usd_per_hour
    reserve = limits.reserve_usd(rate, job.checkpointing.save_timeout_s)
    decision = limits.over_budget(budget, due, reserve)
    if decision is None:
        left = limits.budget_left_usd(budget, due, reserve)
        if rate > 0.0:
            turn.later.append(limits.budget_at(turn.now, left, rate))
        return False
    turn.decisions.append(decision)
    sentence = f"stopped at the budget: {due:.2f} of {budget:.2f} USD are spent, {reserve:.2f} USD are kept for the end"
    turn.order(NotifyUser(Event.OVER_BUDGET, sentence))
    _close(turn, Closing(JobPhase.STOPPED, EXIT_BUDGET, sentence, turn.now), now=False)
    return True


def _fail(turn: FleetTurn, sentence: str) -> None:
    turn.order(NotifyUser(Event.FAILED, sentence))
    _close(turn, Closing(JobPhase.FAILED, EXIT_FAILED, sentence, turn.now), now=None)


def _close(turn: FleetTurn, closing: Closing, *, now: bool | None) -> None:
    """Begin the end.

    Args:
        turn: the present one.
        closing: what it will be.
        now: whether the run is stopped without a save; None: it need not be stopped.
    """
    if now is not None:
        closing = replace(closing, saves_until=_saves_until(turn, now=now), now=now)
        turn.order(StopRun(now, closing.sentence))
    before = turn.state.closing
    if before is not None:
        closing = replace(closing, resume=before.resume and closing.final is not JobPhase.DONE)
    turn.enter(JobPhase.STOPPING)
    turn.change(closing=closing, refused=(), retry_at=None)
    if now is False and closing.saves_until is not None and not _run_let_go(turn, closing):
        wait = f"{closing.saves_until - turn.now:.0f} s"
        end = f"`windfall stop {turn.job.job_id} --now` ends it without one"
        turn.tell(f"the script has {wait} at most for its last save; {end}")
    for token in list(turn.orders):
        machines.cancel(turn, token)
    for slot in turn.slots:
        if slot.awaits is not None:
            turn.set_slot(slot, awaits=None)
    turn.forget_awaiting()


def _saves_until(turn: FleetTurn, *, now: bool) -> Instant:
    """Until when the run's release is waited for: never beyond `max_duration`, which is hard."""
    job = turn.job
    until = turn.now + (NOW_S if now else job.checkpointing.save_timeout_s + limits.SAVE_ROOM_S)
    if job.max_duration_s is not None:
        until = min(until, max(turn.state.began_at + job.max_duration_s, turn.now))
    return Instant(until)


# -------------------------------------------------------------------------------------------------------------- the end


def _advance(turn: FleetTurn) -> None:
    closing = turn.state.closing
    assert closing is not None, "an end was decided"
    saving = closing.saves_until is not None and turn.now < closing.saves_until and not _run_let_go(turn, closing)
    for unit in list(turn.units.values()):
        if not (saving and unit.doing is Doing.TRAINING):
            turn.release(unit, closing.sentence)
    if saving and closing.saves_until is not None:
        turn.later.append(closing.saves_until)
    unsure = any(entry.unsure or entry.state is not OrderState.CANCELLED for entry in turn.orders.values())
    if not turn.units and not unsure:
        _end(turn, closing)


def _run_let_go(turn: FleetTurn, closing: Closing) -> bool:
    """Say whether nobody holds the run any more: by its log since the stop, or because no machine trains."""
    return closing.let_go or not any(unit.doing is Doing.TRAINING for unit in turn.units.values())


def _end(turn: FleetTurn, closing: Closing) -> None:
    turn.enter(closing.final)
    turn.change(closing=None, ended=closing)
    if closing.resume:
        _begin_again(turn)
        return
    turn.order(SettleJob(closing.final, closing.exit_code, closing.sentence))
    if closing.final is JobPhase.DONE:
        turn.order(NotifyUser(Event.DONE, closing.sentence))
