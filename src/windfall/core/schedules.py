"""The schedules of saves that a job's machines are given: for whom one is wanted, and what was made of the wish.

Making one takes seconds and packages that the driver does not have.  So it is made beside it
(`policies.saving.schedules_live`), comes back as a fact, and the directives carry it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from windfall.core.fleet_state import FleetState, FleetTurn, Unit
from windfall.events import Because, Decision
from windfall.fleet import Doing, Report, ScheduleMade
from windfall.models import pool
from windfall.policies import replacement
from windfall.policies.saving.replanning import POLICY, ScheduleWish
from windfall.terms import Instant, Seconds
from windfall.terms import Unit as WorkUnit

_VERSION = 1


def made(turn: FleetTurn, fact: ScheduleMade) -> None:
    """A schedule came, or the reason why there is none: what is to be done with it is one decision."""
    if fact.machine_id not in turn.units:
        return
    kept = {name: old for name, old in turn.state.schedules.items() if name in turn.units}
    turn.change(schedules=MappingProxyType({**kept, fact.machine_id: fact}))
    turn.decisions.append(_decision(fact))


def _decision(fact: ScheduleMade) -> Decision:
    table, basis = fact.given.table, fact.basis
    because = [
        Because("schedule begins", fact.given.from_step, "step"),
        Because("machine's age there", fact.age_s, "s"),
        Because("stall", basis.stall_s, "s"),
        Because("time to durable", basis.durable_s, "s"),
        Because("restart", basis.restart_s, "s"),
        Because("step", basis.step_s, "s"),
    ]
    rule = f"saves every {table.interval_s:.0f} s, as the default rule has it"
    if not fact.trusted:
        again = f" any more ({fact.why})" if fact.why else ""
        choice = f"no schedule for {fact.machine_id}{again}: {table.says}"
        return Decision(POLICY, _VERSION, choice, tuple(because), ("a schedule for this machine",))
    because += [
        Because("rest of the machine's life", basis.life_left_s, "s"),
        Because("work planned", table.known_s, "s"),
    ]
    if table.saves_at_s:
        because.append(Because("first save after", table.saves_at_s[0], "s"))
    count = len(table.saves_at_s)
    saves = f"{count} save{'' if count == 1 else 's'}; {table.says}"
    choice = f"schedule for {fact.machine_id}: {saves}"
    if fact.why:
        choice = f"schedule for {fact.machine_id} made anew: {fact.why}; {saves}"
    return Decision(POLICY, _VERSION, choice, tuple(because), (rule,))


def wishes(state: FleetState, reports: Mapping[str, Report], now: Instant) -> tuple[ScheduleWish, ...]:
    """Return the machines that train by policy `optimal` and whose costs are known, as they stand.

    Args:
        state: the driver's.
        reports: the newest of each machine; newer than those that became facts, because costs are no facts.
        now: on the journal clock.
    """
    if state.job is None or state.closing is not None or state.the_job.checkpointing.policy != POLICY:
        return ()
    found = [_wish(state, unit, reports.get(machine_id), now) for machine_id, unit in state.units.items()]
    return tuple(wish for wish in found if wish is not None)


def _wish(state: FleetState, unit: Unit, report: Report | None, now: Instant) -> ScheduleWish | None:
    if not _stays(unit) or report is None or report.doing is not Doing.TRAINING or unit.running_at is None:
        return None
    term, step, saved = report.term, report.step, report.saved_step
    if term is None or step is None or saved is None or not report.step_s or report.costs is None:
        return None
    if len(state.slots) > 1 and (state.run is None or state.run.holder != unit.machine_id):
        return None
    work_s = _work_left_s(state, unit, saved, report.step_s)
    if work_s is not None and work_s < report.step_s:
        return None
    machine, job = unit.machine, state.the_job
    restart = replacement.expect(
        None if unit.offer is None else unit.offer.startup_s, state.allocations.mean, state.boots.mean
    )
    mttp_s, _ = pool.told(state.rates, machine.provider, machine.machine_type, machine.zone, len(state.slots))
    given = job.injection
    notice_s = pool.habit_of(machine.provider).notice_s if unit.offer is None else unit.offer.notice_s
    wish = ScheduleWish(
        machine_id=unit.machine_id,
        provider=machine.provider,
        machine_type=machine.machine_type,
        zone=machine.zone,
        machines=len(state.slots),
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
        return wish
    mean_s = Seconds(math.fsum(given.mttp_s) / len(given.mttp_s) / len(state.slots))
    return replace(wish, mttp_s=mean_s, injected=True, notice_s=Seconds(given.notice_s or 0.0))


def _stays(unit: Unit) -> bool:
    """Say whether a machine goes on, and is heard: the age at its last save cannot be told from an old report."""
    return unit.slot is not None and unit.ends_at is None and unit.silent_since is None


def _work_left_s(state: FleetState, unit: Unit, saved: int, step_s: float) -> float | None:
    """Return the training time that is left from a step on [s]; None if nobody knows."""
    work = state.the_job.work
    if work is None:
        return None
    if work.unit is WorkUnit.STEP:
        return (work.amount - saved) * step_s
    kind = (unit.machine.provider, unit.machine.machine_type, work.unit)
    for row in state.measured:
        if (row.provider, row.machine_type, row.unit) == kind:
            return work.amount / row.work_per_s - saved * step_s
    return None
