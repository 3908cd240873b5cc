"""Save schedules for a job's machines: which machines need one, and the decision about each computed schedule.

Computing one takes seconds and packages that the driver does not have.  So it is computed outside of it
(`policies.checkpointing.live_schedules`), comes back as a fact, and is sent with the directives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from windfall.core.fleet_state import FleetState, FleetTurn, TrackedMachine
from windfall.core.needs import coupled
from windfall.events import ComparedValue, Decision
from windfall.fleet import MachineStatus, Report, ScheduleComputed
from windfall.models import lifetime_pool
from windfall.policies.checkpointing.schedule_table import POLICY, ScheduleRequest
from windfall.policies.replacement import successor
from windfall.structs import replace
from windfall.terms import Instant, Seconds, Unit

_VERSION = 1


def schedule_computed(turn: FleetTurn, fact: ScheduleComputed) -> None:
    """Record a computed schedule, or why there is none, as one decision."""
    if fact.machine_id not in turn.units:
        return
    kept = {name: old for name, old in turn.state.schedules.items() if name in turn.units}
    turn.change(schedules=MappingProxyType({**kept, fact.machine_id: fact}))
    turn.decisions.append(_decision(fact))


def _decision(fact: ScheduleComputed) -> Decision:
    table, basis = fact.schedule.table, fact.basis
    rationale = [
        ComparedValue("schedule start", fact.schedule.from_step, "step"),
        ComparedValue("machine age at start", fact.age_s, "s"),
        ComparedValue("stall", basis.stall_s, "s"),
        ComparedValue("time until committed", basis.durable_s, "s"),
        ComparedValue("restart", basis.restart_s, "s"),
        ComparedValue("step", basis.step_s, "s"),
    ]
    rule = f"saves every {table.interval_s:.0f} s, by the default rule"
    if not fact.trusted:
        dropped = f", previous one dropped ({fact.reason})" if fact.reason else ""
        choice = f"no schedule for {fact.machine_id}{dropped}: {table.explanation}"
        return Decision(POLICY, _VERSION, choice, tuple(rationale), ("a schedule for this machine",))
    rationale += [
        ComparedValue("expected remaining lifetime", basis.remaining_lifetime_s, "s"),
        ComparedValue("work planned", table.horizon_s, "s"),
    ]
    if table.saves_at_s:
        rationale.append(ComparedValue("first save after", table.saves_at_s[0], "s"))
    count = len(table.saves_at_s)
    saves = f"{count} save{'' if count == 1 else 's'}; {table.explanation}"
    choice = f"schedule for {fact.machine_id}: {saves}"
    if fact.reason:
        choice = f"new schedule for {fact.machine_id}: {fact.reason}; {saves}"
    return Decision(POLICY, _VERSION, choice, tuple(rationale), (rule,))


def requests(state: FleetState, reports: Mapping[str, Report], now: Instant) -> tuple[ScheduleRequest, ...]:
    """Return schedule requests for the machines that train with policy `optimal` and have known costs.

    Args:
        state: the driver's.
        reports: the newest of each machine; newer than the recorded facts, which do not include costs.
        now: on the journal clock.
    """
    if state.job is None or state.pending_end is not None or state.the_job.options.policy != POLICY:
        return ()
    found = [_schedule_request(state, unit, reports.get(machine_id), now) for machine_id, unit in state.units.items()]
    return tuple(request for request in found if request is not None)


def _schedule_request(
    state: FleetState, unit: TrackedMachine, report: Report | None, now: Instant
) -> ScheduleRequest | None:
    if not _stays(unit) or report is None or report.status is not MachineStatus.TRAINING or unit.running_at is None:
        return None
    term, step, saved = report.term, report.step, report.saved_step
    if term is None or step is None or saved is None or not report.step_s or report.costs is None:
        return None
    if coupled(state) > 1 and unit.machine_id not in state.holders:
        return None
    work_s = _work_left_s(state, unit, saved, report.step_s)
    if work_s is not None and work_s < report.step_s:
        return None
    machine, job = unit.machine, state.the_job
    restart = successor.expect(
        None if unit.offer is None else unit.offer.startup_s, state.allocations.mean, state.boots.mean
    )
    mttp_s, _ = lifetime_pool.mttp_and_restart(
        state.rates, machine.provider, machine.machine_type, machine.zone, coupled(state)
    )
    given = job.injection
    notice_s = (
        lifetime_pool.pattern_or_default(machine.provider).notice_s if unit.offer is None else unit.offer.notice_s
    )
    request = ScheduleRequest(
        machine_id=unit.machine_id,
        provider=machine.provider,
        machine_type=machine.machine_type,
        zone=machine.zone,
        machines=coupled(state),
        term=term,
        from_step=saved,
        age_s=Seconds(max(now - unit.running_at - (step - saved) * report.step_s, 0.0)),
        work_s=None if work_s is None else Seconds(work_s),
        step_s=report.step_s,
        costs=report.costs,
        allocate_s=restart.allocation_s,
        prepare_s=restart.boot_s,
        notice_s=Seconds(notice_s),
        mttp_s=mttp_s,
        before=state.schedules.get(unit.machine_id),
    )
    if given is None:
        return request
    mean_s = Seconds(math.fsum(given.mttp_s) / len(given.mttp_s) / coupled(state))
    return replace(request, mttp_s=mean_s, injected=True, notice_s=Seconds(given.notice_s or 0.0))


def _stays(unit: TrackedMachine) -> bool:
    """Return whether a machine stays and is in contact; an old report does not show the age at its last save."""
    return unit.slot is not None and unit.ends_at is None and unit.silent_since is None


def _work_left_s(state: FleetState, unit: TrackedMachine, saved: int, step_s: float) -> float | None:
    """Return the training time left after a step [s]; None if it is unknown."""
    work = state.the_job.work
    if work is None:
        return None
    if work.unit is Unit.STEP:
        return (work.amount - saved) * step_s
    kind = (unit.machine.provider, unit.machine.machine_type, work.unit)
    for row in state.measured:
        if (row.provider, row.machine_type, row.unit) == kind:
            return work.amount / row.work_per_s - saved * step_s
    return None
