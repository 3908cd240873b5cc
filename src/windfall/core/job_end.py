"""The end of a job: it is done, it fails too often, or a user or a limit stops it; and how it resumes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.core import gangs, ledger, machines
from windfall.core.fleet_state import ACTIVE, NO_TIME, FleetTurn, JobEnd
from windfall.core.lifecycle import OrderState
from windfall.errors import EXIT_BUDGET, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from windfall.fleet import (
    RUN_DONE,
    TERMINAL,
    Event,
    JobPhase,
    JobResumeRequested,
    JobStopRequested,
    MachineStatus,
    NotifyUser,
    ProgressObserved,
    SettleJob,
    StopRun,
)
from windfall.market import Offer
from windfall.policies.deadlines import limits
from windfall.structs import replace
from windfall.terms import Instant, Outcome, Unit
from windfall.units import times_text, usd_text

NOW_S = 15.0
"""How long a stop without a save waits for the run's release [s]."""
_RELEASED = frozenset({Outcome.WAITING, Outcome.DONE, Outcome.FAILED})


# ---------------------------------------------------------------------------------------------------------------- facts


def progress_observed(turn: FleetTurn, fact: ProgressObserved) -> None:
    """Record what is new; work that became safe resets the count of machine failures."""
    before, progress = turn.state.progress, fact.progress
    safer = progress.safe.amount > turn.state.safe_amount
    if before is None or safer or fact.term > before.term:
        for machine_id in progress.holders:
            machines.alive_by_progress(turn, machine_id)
    if safer:
        turn.change(machine_failures=0, losses_without_progress=0, buying_paused_until=NO_TIME)
    pending_end = turn.state.pending_end
    if pending_end is not None and not progress.holders and progress.outcome in _RELEASED:
        turn.change(pending_end=replace(pending_end, run_released=True))
    turn.change(progress=fact)


def stop_requested(turn: FleetTurn, fact: JobStopRequested) -> None:
    """Stop the job at a user's request."""
    state = turn.state
    if state.phase in TERMINAL:
        turn.log(f"the job is {state.phase}: there is nothing to stop")
    elif state.pending_end is None:
        _start_end(turn, JobEnd(JobPhase.STOPPED, EXIT_STOPPED, f"stopped by {fact.user}", turn.now), now=fact.now)
    elif fact.now and state.pending_end.saves_until is not None:
        until = min(state.pending_end.saves_until, Instant(turn.now + NOW_S))
        turn.change(pending_end=replace(state.pending_end, saves_until=until, now=True, resume=False))
        turn.emit(StopRun(True, f"stopped immediately by {fact.user}"))
    elif state.pending_end.resume:
        turn.change(pending_end=replace(state.pending_end, resume=False))


def resume_requested(turn: FleetTurn, fact: JobResumeRequested) -> None:
    """Resume a stopped or failed job, or one with more to do, at a user's request; earlier failures no longer count."""
    state = turn.state
    if state.pending_end is not None and (fact.more or state.pending_end.final is not JobPhase.DONE):
        turn.change(pending_end=replace(state.pending_end, resume=True))
    elif state.phase in {JobPhase.STOPPED, JobPhase.FAILED} or (fact.more and state.phase is JobPhase.DONE):
        turn.log(f"{fact.user} resumed the job")
        _restart(turn)
    else:
        turn.log(f"the job is {state.phase}: there is nothing to resume")


def _restart(turn: FleetTurn) -> None:
    observed = turn.state.progress
    if observed is not None and observed.progress.outcome is Outcome.DONE:
        # It is about the run before it was given more to do.
        turn.change(progress=None)
    turn.enter(JobPhase.BUYING)
    turn.change(
        pending_end=None,
        ended=None,
        resumed=True,
        machine_failures=0,
        failed_to_start=0,
        losses_without_progress=0,
        buying_paused_until=NO_TIME,
        forgiven=(-1, 0) if observed is None else (observed.term, observed.progress.failures),
    )
    turn.blocks.clear()


# ------------------------------------------------------------------------------------------------------------ decisions


def consider(turn: FleetTurn) -> None:
    """Decide whether the job ends, and advance an end that was decided."""
    if turn.state.phase in ACTIVE or turn.state.pending_end is not None:
        _consider_progress(turn)
    if turn.state.phase in ACTIVE:
        _consider_failures(turn)
        if turn.state.pending_end is None:
            _consider_limits(turn)
    if turn.state.pending_end is not None:
        _advance(turn)


def _consider_progress(turn: FleetTurn) -> None:
    observed, pending_end = turn.state.progress, turn.state.pending_end
    if observed is None:
        return
    progress = observed.progress
    if progress.outcome is Outcome.DONE:
        if pending_end is None or pending_end.final is not JobPhase.DONE:
            _start_end(turn, JobEnd(JobPhase.DONE, EXIT_DONE, _done(turn), turn.now), now=None)
        return
    if pending_end is not None:
        return
    term, forgiven = turn.state.forgiven
    if progress.outcome is Outcome.FAILED and observed.term > term:
        is_bag = progress.done.unit is Unit.ITEM
        fail(turn, "the bag failed" if is_bag else f"the script failed {times_text(progress.failures)}")
        return
    failures = progress.failures - (forgiven if progress.failures >= forgiven else 0)
    decision = limits.crash_loop(failures, turn.job.options.failures_max, "the script")
    if decision is not None:
        turn.decisions.append(decision)
        last = f"; the last: {progress.failure}" if progress.failure else ""
        fail(turn, f"the script failed {times_text(failures)}{last}")
    elif _stopped_outside(turn, observed):
        _start_end(turn, JobEnd(JobPhase.STOPPED, EXIT_STOPPED, "the run was stopped from outside", turn.now), now=None)


def _done(turn: FleetTurn) -> str:
    """Return the message for a run that is done; it mentions a script that never called Windfall."""
    sdk_inactive = not turn.state.safe_amount and any(
        unit.report is not None and unit.report.sdk_inactive for unit in turn.units.values()
    )
    silent = "; its script never called Windfall: nothing was saved on the way" if sdk_inactive else ""
    return f"{RUN_DONE}{_against_goal(turn)}{silent}"


def _against_goal(turn: FleetTurn) -> str:
    """Return how a run that is done ended, beside the training loss that it was for; nothing if it had none."""
    goal, observed = turn.job.objective.loss, turn.state.progress
    if goal is None or observed is None:
        return ""
    progress = observed.progress
    work = f"{progress.done.amount:g} {progress.done.unit.value}s"
    if progress.loss is None:
        return f": after {work}; its training loss is not known"
    if progress.loss <= goal:
        return f": its training loss of {goal:g} is reached, {progress.loss:.6g} after {work}"
    return (
        f": at its end after {work}, with a training loss of {progress.loss:.6g}, above the {goal:g} of its objective"
    )


def _stopped_outside(turn: FleetTurn, observed: ProgressObserved) -> bool:
    """Return whether an agent exited cleanly although the run is not done: a user stopped it through its store."""
    if observed.progress.outcome is not Outcome.WAITING or observed.progress.holders:
        return False
    # Members of a generation exit as their leader does; only the leader's node agent knows whether it requested that.
    generation = turn.state.generation
    heads = turn.units if generation is None else generation.machine_ids[:1]
    return any(
        report is not None
        and report.status is MachineStatus.WAITING
        and report.exit_code in {EXIT_DONE, EXIT_STOPPED}
        and report.term is not None
        and observed.term >= report.term
        for report in (turn.units[name].report for name in heads if name in turn.units)
    )


def _consider_failures(turn: FleetTurn) -> None:
    state, slots = turn.state, max(len(turn.slots), 1)
    decision = limits.crash_loop(state.machine_failures, turn.job.options.failures_max, "machines")
    if decision is not None:
        turn.decisions.append(decision)
        fail(turn, f"{state.machine_failures} machines could not do the job; the last: {state.failure}")
        return
    decision = limits.crash_loop(
        state.failed_to_start, limits.failed_to_start_max(slots), "machines before their first report"
    )
    if decision is not None:
        turn.decisions.append(decision)
        fail(turn, f"{state.failed_to_start} machines in a row ended before their agent reported")

    decision = limits.no_progress(state.losses_without_progress, turn.job.recovery.unproductive_machines_max * slots)
    if decision is not None:
        turn.decisions.append(decision)
        fail(
            turn,
            f"no progress: {state.losses_without_progress} machines in a row ended without a single step of the script; see "
            "what it waits for (`windfall logs`), or raise job_recovery.max_losses_without_progress",
        )


def _consider_limits(turn: FleetTurn) -> None:
    job = turn.job
    if job.max_duration_s is not None:
        save_s = job.checkpointing.save_timeout_s
        decision = limits.duration_reached(turn.now, turn.state.submitted_at, job.max_duration_s, save_s)
        if decision is not None:
            turn.decisions.append(decision)
            message = f"stopped at max_duration ({job.max_duration_s:g} s)"
            _start_end(turn, JobEnd(JobPhase.STOPPED, EXIT_BUDGET, message, turn.now), now=False)
            return
        turn.later.append(limits.last_save_at(turn.state.submitted_at, job.max_duration_s, save_s))
    _watch_deadline(turn)
    over_budget(turn, ())


def _watch_deadline(turn: FleetTurn) -> None:
    """Notify the user once that the deadline has passed; a deadline is a goal, not a limit."""
    deadline_s = turn.job.objective.deadline_s
    if deadline_s is None or turn.state.deadline_notified:
        return
    at = Instant(turn.state.submitted_at + deadline_s)
    if turn.now < at:
        turn.later.append(at)
        return
    turn.change(deadline_notified=True)
    message = f"the deadline ({deadline_s:g} s after submission) has passed and the run is not done: it continues"
    turn.log(message)
    turn.emit(NotifyUser(Event.LATE, message))


def over_budget(turn: FleetTurn, more: Sequence[tuple[Offer, int]]) -> bool:
    """Stop the job if its cost so far and the cost of its end reach the budget; return whether it stops.

    Args:
        turn: the current turn.
        more: offers and how many machines of each are to be bought now.
    """
    job = turn.job
    budget = job.objective.budget_usd
    if budget is None:
        return False
    due = ledger.totals(turn.state.ledger, turn.wall_time()).due_usd
    more_usd_per_hour = sum(offer.price_usd_per_hour * count for offer, count in more)
    rate = sum(unit.machine.price_now_usd_per_hour for unit in turn.units.values()) + more_usd_per_hour
    reserve = limits.reserve_usd(rate, job.checkpointing.save_timeout_s) + _units_ahead_usd(turn, more)
    decision = limits.over_budget(budget, due, reserve)
    if decision is None:
        left = limits.budget_left_usd(budget, due, reserve)
        if rate > 0.0:
            turn.later.append(limits.budget_at(turn.now, left, rate))
        return False
    turn.decisions.append(decision)
    message = (
        f"stopped at the budget: {usd_text(due)} of {usd_text(budget)} spent, {usd_text(reserve)} reserved for the last "
        "save"
    )
    turn.emit(NotifyUser(Event.OVER_BUDGET, message))
    _start_end(turn, JobEnd(JobPhase.STOPPED, EXIT_BUDGET, message, turn.now), now=False)
    return True


def _units_ahead_usd(turn: FleetTurn, more: Sequence[tuple[Offer, int]]) -> float:
    """Return what the end of the job costs beyond its seconds where machines are charged in advance [USD].

    A machine that starts, or is still there when its next hour does, costs that hour at once.
    """
    end_s = limits.reserve_s(turn.job.checkpointing.save_timeout_s)
    now, open_accounts, total = turn.wall_time(), turn.state.ledger.open, 0.0
    for machine_id, unit in turn.units.items():
        account = open_accounts.get(machine_id) or (
            None if unit.offer is None else ledger.unstarted_account(unit.offer)
        )
        if account is not None and account.by_units:
            total += account.ahead_usd(now, end_s) - unit.machine.price_now_usd_per_hour * end_s / ledger.HOUR_S
            next_s = account.next_hour_in_s(now, end_s)
            if math.isfinite(next_s):
                turn.later.append(Instant(turn.now + next_s))
    ordered = ((entry.order.offer, entry.waiting, 0.0) for entry in turn.orders.values())
    bought = ((offer, count, offer.price_usd_per_hour) for offer, count in more)
    for offer, count, counted_usd_per_hour in (*ordered, *bought):
        if (account := ledger.unstarted_account(offer)).by_units:
            total += count * (account.ahead_usd(now, end_s) - counted_usd_per_hour * end_s / ledger.HOUR_S)
    return total


def fail(turn: FleetTurn, message: str) -> None:
    """Fail the job: save, release its machines, tell the user."""
    turn.emit(NotifyUser(Event.FAILED, message))
    _start_end(turn, JobEnd(JobPhase.FAILED, EXIT_FAILED, message, turn.now), now=None)


def _start_end(turn: FleetTurn, pending_end: JobEnd, *, now: bool | None) -> None:
    """Start the end of the job.

    Args:
        turn: the current turn.
        pending_end: how it ends.
        now: whether to stop the run without a save; None if the run need not be stopped.
    """
    if now is not None:
        pending_end = replace(pending_end, saves_until=_saves_until(turn, now=now), now=now)
        turn.emit(StopRun(now, pending_end.message))
    before = turn.state.pending_end
    if before is not None:
        pending_end = replace(pending_end, resume=before.resume and pending_end.final is not JobPhase.DONE)
    turn.enter(JobPhase.STOPPING)
    turn.change(pending_end=pending_end, refused=(), retry_at=None)
    if now is False and pending_end.saves_until is not None and not _run_released(turn, pending_end):
        wait_s = pending_end.saves_until - turn.now
        stop_now = f"`windfall stop {turn.job.job_id} --now`"
        turn.log(f"the script has up to {wait_s:.0f} s for its last save; {stop_now} ends it without one")
    for token in list(turn.orders):
        machines.cancel(turn, token)
    for slot in turn.slots.values():
        if slot.awaits is not None:
            turn.set_slot(slot, awaits=None)
    turn.forget_awaiting()


def _saves_until(turn: FleetTurn, *, now: bool) -> Instant:
    """Return until when to wait for the run's release; never beyond `max_duration`, which is a hard limit."""
    job = turn.job
    until = turn.now + (NOW_S if now else job.checkpointing.save_timeout_s + limits.SAVE_MARGIN_S)
    if job.max_duration_s is not None:
        until = min(until, max(turn.state.submitted_at + job.max_duration_s, turn.now))
    return Instant(until)


# -------------------------------------------------------------------------------------------------------------- the end


def _advance(turn: FleetTurn) -> None:
    pending_end = turn.state.pending_end
    assert pending_end is not None, "an end was decided"
    saving = (
        pending_end.saves_until is not None
        and turn.now < pending_end.saves_until
        and not _run_released(turn, pending_end)
    )
    for unit in list(turn.units.values()):
        # A release of one machine would end its gang.
        if not (saving and gangs.works(turn, unit)):
            turn.release(unit, RUN_DONE if pending_end.final is JobPhase.DONE else pending_end.message)
    if saving and pending_end.saves_until is not None:
        turn.later.append(pending_end.saves_until)
    pending = any(entry.outcome_unknown or entry.state is not OrderState.CANCELLED for entry in turn.orders.values())
    if not turn.units and not pending:
        _end(turn, pending_end)


def _run_released(turn: FleetTurn, pending_end: JobEnd) -> bool:
    """Return whether no machine holds the lease, by the run's log since the stop or because no machine trains."""
    return pending_end.run_released or not any(unit.status is MachineStatus.TRAINING for unit in turn.units.values())


def _end(turn: FleetTurn, pending_end: JobEnd) -> None:
    turn.enter(pending_end.final)
    turn.change(pending_end=None, ended=pending_end)
    if pending_end.resume:
        _restart(turn)
        return
    turn.emit(SettleJob(pending_end.final, pending_end.exit_code, pending_end.message))
    if pending_end.final is JobPhase.DONE:
        turn.emit(NotifyUser(Event.DONE, pending_end.message))
