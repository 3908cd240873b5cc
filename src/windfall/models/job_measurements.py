"""Measurements of finished jobs, reused when planning similar ones: speed, start-up times, and the cost of saves.

A view of the job's journal (machines) and of the run's (steps, saves).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from windfall.events import Row, StepsMeasured
from windfall.fleet import MachineReported, MachinesObserved, MachineStatus, PlaceOrder
from windfall.jobs import Job, Measurement
from windfall.market import Machine
from windfall.structs import replace
from windfall.terms import SaveCosts, Seconds, Term, Unit

_READY = (MachineStatus.WAITING, MachineStatus.TRAINING)


@dataclass(slots=True)
class ObservedKind:
    """What was observed on one kind of machine."""

    steps: int = 0
    steps_s: float = 0.0
    allocate_s: list[float] = field(default_factory=list)
    boot_s: list[float] = field(default_factory=list)
    first_step_s: list[float] = field(default_factory=list)


def measure(
    job: Job,
    job_rows: Iterable[Row],
    run_rows: Sequence[Row],
    holders: Mapping[Term, str],
    costs: SaveCosts | None,
) -> tuple[Measurement, ...]:
    """Return one row for each kind of machine on which the job completed steps.

    Args:
        job: a job that is done.
        job_rows: the job's journal, from the controller.
        run_rows: the run's journal, all terms.
        holders: the machine that held each term.
        costs: costs of saves, from the run's newest log record.
    """
    observed = starts_of(job_rows)
    machines, ready, kinds = observed.machines, observed.ready, observed.kinds
    total = max((fact.step for row in run_rows for fact in row.facts if isinstance(fact, StepsMeasured)), default=0)
    held_until = -math.inf
    started: set[str] = set()
    for term, acquired_at, ended_at, first_at, count, spent_s in _terms(run_rows):
        free_at, held_until = held_until, ended_at
        machine = machines.get(holders.get(term, ""))
        if machine is None:
            continue
        kind = kinds[machine.provider, machine.machine_type]
        kind.steps += count
        kind.steps_s += spent_s
        ready_at = ready.get(machine.machine_id, math.inf)
        if first_at is not None and machine.machine_id not in started and free_at <= ready_at:
            # No other machine held the run: the time since this one was ready is agent start, restore, script start.
            kind.first_step_s.append(first_at - min(ready_at, acquired_at))
        started.add(machine.machine_id)
    unit, per_step = Unit.STEP, 1.0
    if job.work is not None and job.work.unit is not Unit.STEP and total:
        unit, per_step = job.work.unit, job.work.amount / total
    return tuple(
        _row(name, kind, unit, per_step, costs)
        for name, kind in sorted(kinds.items())
        if kind.steps and kind.steps_s > 0.0
    )


def merge(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Merge the measurements of several runs into one row per kind of machine and unit; every run weighs the same.

    Speeds are averaged as times per unit of work, since times add up.
    """
    groups: dict[tuple[str, str, Unit], list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[row.provider, row.machine_type, row.unit].append(row)
    return tuple(_folded(group) for _, group in sorted(groups.items()))


def _folded(rows: Sequence[Measurement]) -> Measurement:
    first = rows[0]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return math.fsum(known) / len(known) if known else None

    size = mean(row.size_bytes for row in rows)
    return replace(
        first,
        work_per_s=len(rows) / math.fsum(1.0 / row.work_per_s for row in rows),
        prepare_s=_seconds(mean(row.prepare_s for row in rows)) or Seconds(0.0),
        allocate_s=_seconds(mean(row.allocate_s for row in rows)) or Seconds(0.0),
        runs=sum(row.runs for row in rows),
        stall_s=_seconds(mean(row.stall_s for row in rows)),
        size_bytes=None if size is None else round(size),
        upload_s=_seconds(mean(row.upload_s for row in rows)),
        commit_s=_seconds(mean(row.commit_s for row in rows)),
        boot_s=_seconds(mean(row.boot_s for row in rows)),
        item_s=_seconds(mean(row.item_s for row in rows)),
    )


def _seconds(value: float | None) -> Seconds | None:
    return None if value is None else Seconds(value)


@dataclass(slots=True)
class ObservedStarts:
    """A job's machines by id, when each reported ready, and how long each kind took to start and be ready."""

    machines: dict[str, Machine]
    ready: dict[str, float]
    kinds: dict[tuple[str, str], ObservedKind]


def starts_of(rows: Iterable[Row]) -> ObservedStarts:
    """Return the machines of a job's journal, and their starts."""
    ordered: dict[str, float] = {}
    machines: dict[str, Machine] = {}
    ready: dict[str, float] = {}
    kinds: dict[tuple[str, str], ObservedKind] = defaultdict(ObservedKind)
    for row in rows:
        for command in row.commands:
            if isinstance(command, PlaceOrder):
                ordered.setdefault(command.order.token, row.at)
        for fact in row.facts:
            if isinstance(fact, MachinesObserved):
                for machine in fact.machines:
                    known = machines.get(machine.machine_id)
                    if machine.started is not None and (known is None or known.started is None):
                        kind = kinds[machine.provider, machine.machine_type]
                        kind.allocate_s.append(max(machine.started - ordered.get(machine.token, machine.started), 0.0))
                    machines[machine.machine_id] = machine
            elif isinstance(fact, MachineReported) and fact.report.status in _READY:
                name = fact.report.machine_id
                there = machines.get(name)
                if there is not None and there.started is not None and name not in ready:
                    ready[name] = row.wall_time
                    kinds[there.provider, there.machine_type].boot_s.append(max(row.at - there.started, 0.0))
    return ObservedStarts(machines, ready, kinds)


def _terms(rows: Sequence[Row]) -> Iterable[tuple[Term, float, float, float | None, int, float]]:
    """Yield (term, acquired at, last row at, first step complete at, steps, time of the steps) of each term of the run.

    The restore and the script's start come before the first step; a second start after a failure does not count.
    """
    by_term: dict[Term, list[Row]] = defaultdict(list)
    for row in rows:
        by_term[row.term].append(row)
    for term, own in sorted(by_term.items()):
        began_at, first_at, count, spent_s = own[0].wall_time, None, 0, 0.0
        for row in own:
            for fact in row.facts:
                if not isinstance(fact, StepsMeasured):
                    continue
                if first_at is None:
                    # The window ends with its last step; its first step ended `count - 1` steps earlier.
                    first_at = row.wall_time - (fact.count - 1) * fact.mean_s
                count += fact.count
                spent_s += fact.count * fact.mean_s
        yield term, began_at, own[-1].wall_time, first_at, count, spent_s


def _row(
    name: tuple[str, str], kind: ObservedKind, unit: Unit, per_step: float, costs: SaveCosts | None
) -> Measurement:
    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values) if values else 0.0

    boot_s = mean(kind.boot_s)
    return Measurement(
        provider=name[0],
        machine_type=name[1],
        unit=unit,
        work_per_s=kind.steps / kind.steps_s * per_step,
        prepare_s=Seconds(boot_s + mean(kind.first_step_s)),
        allocate_s=Seconds(mean(kind.allocate_s)),
        runs=1,
        stall_s=None if costs is None else costs.stall_s,
        size_bytes=None if costs is None else costs.size_bytes,
        upload_s=None if costs is None else costs.upload_s,
        commit_s=None if costs is None else costs.commit_s,
        boot_s=Seconds(boot_s) if kind.boot_s else None,
    )
