"""From rows of the queue and of the accounts to machines: pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from windfall.market import Machine, MachineEndCause, MachineLifecycle, Refusal
from windfall.providers.slurm import slurm_states
from windfall.providers.slurm.machine_names import job_of, machine_name
from windfall.providers.slurm.slurm_records import RELEASED, TAKEN, KnownMachine
from windfall.providers.slurm.slurm_site import NAME
from windfall.providers.slurm.slurm_tables import AccountRow, JobRow
from windfall.structs import replace
from windfall.terms import WallTime


def _names_of(row: JobRow) -> tuple[str, ...]:
    job = f"{row.number}" if row.task is None else f"{row.number}_{row.task}"
    ranks = range(row.tag.gang) if row.tag is not None and row.tag.gang > 1 else (None,)
    return tuple(machine_name(job, rank) for rank in ranks)


def names(machines: Iterable[KnownMachine]) -> tuple[str, ...]:
    """Return the machines' names in the order of their numbers."""
    return tuple(sorted((one.machine.machine_id for one in machines), key=lambda name: (len(name), name)))


def names_of_rows(rows: Iterable[JobRow]) -> tuple[str, ...]:
    """Return the names of all machines of jobs."""
    return tuple(name for row in rows for name in _names_of(row))


def seen_in(row: JobRow, known: Mapping[str, KnownMachine], now: WallTime) -> tuple[KnownMachine, ...]:
    """Return the machines of a job as they are now.

    Args:
        row: of the queue.
        known: machines as they were, by name, with what was asked of them: a job that was cancelled at a release was released.
        now: when the queue was read.
    """
    asked = {name: known[name].asked if name in known else "" for name in _names_of(row)}
    return tuple(KnownMachine(_machine(row, name, what), row.number, what, now) for name, what in asked.items())


def seen_in_all(
    rows: Iterable[JobRow], known: Mapping[str, KnownMachine], now: WallTime
) -> tuple[tuple[KnownMachine, ...], tuple[JobRow, ...]]:
    """Return the machines of jobs as they are now, and the jobs to cancel: no machine can or may come of them.

    Args:
        rows: of the queue, one job an order.
        known: machines as they were, by name.
        now: when the queue was read.
    """
    found: list[KnownMachine] = []
    unwanted = []
    for row in rows:
        hopeless, risen = is_hopeless(row), has_risen(row, known)
        for one in seen_in(row, known, now):
            before = known.get(one.machine.machine_id)
            if risen and before is not None and before.machine.started is not None:
                found.append(ended_by_rise(before, row, now))
            else:
                found.append(failed(one, now) if hopeless else one)
        if lives(row) and (hopeless or risen):
            unwanted.append(row)
    return tuple(found), tuple(unwanted)


def is_news(now: KnownMachine, before: KnownMachine | None) -> bool:
    """Return whether a machine has changed; what has ended never changes again."""
    return before is None or (before.machine.ended is None and before.machine != now.machine)


def _machine(row: JobRow, name: str, asked: str) -> Machine:
    assert row.tag is not None, "only Windfall's jobs are read"
    tag, lifecycle = row.tag, slurm_states.lifecycle_of(row.state)
    began = row.placed and lifecycle is not MachineLifecycle.PENDING
    gone = lifecycle is MachineLifecycle.GONE
    started = row.started if began else None
    ended = (row.ended or row.started or row.submitted) if gone else None
    if started is not None and ended is not None:
        ended = max(started, ended)
    limit_at = None if started is None or math.isinf(row.limit_s) else WallTime(started + row.limit_s)
    cause = None
    if gone:
        cause = _cause(
            row.state,
            asked,
            began=began,
            announced=row.preempted_at is not None,
            at_limit=_is_at_limit(ended, started, limit_at),
        )
    return Machine(
        machine_id=name,
        owner=tag.owner,
        job_id=tag.job_id,
        token=row.name,
        provider=NAME,
        machine_type=tag.machine_type,
        zone=row.partition,
        reliability=tag.reliability,
        price_usd_per_hour=tag.price_usd_per_hour,
        lifecycle=lifecycle,
        started=started,
        ended=ended,
        cause=cause,
        preemption_at=_announced(row, lifecycle, asked),
        allocation=f"{NAME}-{row.number}" if tag.gang else "",
        pending_reason=slurm_states.reason_text(row.reason) if lifecycle is MachineLifecycle.PENDING else "",
        limit_at=limit_at,
    )


def _is_at_limit(ended: WallTime | None, started: WallTime | None, limit_at: WallTime | None) -> bool:
    """Return whether a machine ended when it had been told of its time limit: it saves and leaves before."""
    if ended is None or started is None or limit_at is None:
        return False
    return ended >= limit_at - slurm_states.lead_s(limit_at - started)


def _announced(row: JobRow, lifecycle: MachineLifecycle, asked: str) -> WallTime | None:
    """Return when a running machine is to end: by a preemption or its time limit, or by a rehearsal of one."""
    if lifecycle is not MachineLifecycle.RUNNING:
        return None
    known = row.preempted_at is not None or math.isfinite(row.limit_s) or row.state == "COMPLETING"
    ends = [row.ended] if known and row.ended is not None else []
    word, _, at = asked.partition(" ")
    if word == TAKEN and at:
        ends.append(WallTime(float(at)))
    return min(ends, default=None)


def _cause(state: str, asked: str, *, began: bool, announced: bool, at_limit: bool = False) -> MachineEndCause:
    """Return why a machine ended.

    Args:
        state: the job's last one.
        asked: what this provider asked of it.
        began: whether it ever ran.
        announced: whether its preemption had begun: what ends by itself within the grace was taken away all the same.
        at_limit: whether it had been told of its time limit: what ends by itself then was at its limit all the same.
    """
    found = slurm_states.ENDS[state]
    ours = {RELEASED: MachineEndCause.RELEASED, TAKEN: MachineEndCause.PREEMPTED}.get(asked.partition(" ")[0])
    # A machine that broke before what was asked of it arrived has broken.
    if ours is not None and found is not MachineEndCause.FAILED:
        return ours
    if announced and found is not MachineEndCause.FAILED:
        return MachineEndCause.PREEMPTED
    if at_limit and found is MachineEndCause.STOPPED:
        return MachineEndCause.EXPIRED
    return found if began or state != "CANCELLED" else MachineEndCause.FAILED


def oldest_of(rows: Sequence[JobRow]) -> tuple[tuple[JobRow, ...], tuple[JobRow, ...]]:
    """Return the rows of the oldest job, and those of younger ones that have not ended."""
    first = min((row.number for row in rows), default=0)
    younger = (row for row in rows if row.number != first)
    return tuple(row for row in rows if row.number == first), tuple(row for row in younger if lives(row))


def first_of_each_token(rows: Sequence[JobRow]) -> tuple[tuple[JobRow, ...], tuple[JobRow, ...]]:
    """Return the rows of the oldest job of each token, and of the younger ones that live and must not."""
    groups: dict[tuple[str, str], list[JobRow]] = defaultdict(list)
    for row in rows:
        if row.tag is not None:
            groups[row.tag.owner, row.name].append(row)
    pairs = [oldest_of(group) for group in groups.values()]
    kept = tuple(row for oldest, _ in pairs for row in oldest)
    return kept, tuple(row for _, younger in pairs for row in younger)


def is_hopeless(row: JobRow) -> bool:
    """Return whether a job is in the queue and can never start, or would start a machine that is gone."""
    if slurm_states.lifecycle_of(row.state) is not MachineLifecycle.PENDING:
        return False
    return row.restarts > 0 or slurm_states.refusal_of_reason(row.reason) is Refusal.INVALID


def of_other_orders(rows: Sequence[JobRow], known: Mapping[str, KnownMachine]) -> tuple[JobRow, ...]:
    """Return the jobs whose number had been another order's: a slurmctld that was killed gives what it forgot again.

    Args:
        rows: of the queue.
        known: machines as they were, by name.
    """
    return tuple(
        row for row in rows if any(known[name].machine.token != row.name for name in _names_of(row) if name in known)
    )


def lives(row: JobRow) -> bool:
    """Return whether a job has not ended."""
    return slurm_states.lifecycle_of(row.state) is not MachineLifecycle.GONE


def has_risen(row: JobRow, known: Mapping[str, KnownMachine]) -> bool:
    """Return whether Slurm starts a job again whose machines ran before.

    A requeue counts as such.  So does the second start by a slurmctld that was killed before it had written the first one
    down: only the job's start moves.

    Args:
        row: of the queue.
        known: machines as they were, by name.
    """
    began = [known[name].machine.started for name in _names_of(row) if name in known]
    waits = slurm_states.lifecycle_of(row.state) is MachineLifecycle.PENDING
    return any(at is not None and (waits or (row.started is not None and row.started > at)) for at in began)


def ended_by_rise(known: KnownMachine, row: JobRow, now: WallTime) -> KnownMachine:
    """Return how a machine ended whose job starts again: what starts again is no machine.

    It is billed until the second start; where that has not come, until it was last seen, which is within its first stretch.

    Args:
        known: as it was last seen.
        row: its job, which `has_risen`.
        now: when the queue was read.
    """
    again = known.seen if slurm_states.lifecycle_of(row.state) is MachineLifecycle.PENDING else row.started
    assert known.machine.started is not None
    assert again is not None, "it has risen"
    ended = replace(
        known.machine,
        lifecycle=MachineLifecycle.GONE,
        ended=max(min(again, now), known.machine.started),
        cause=_cause("NODE_FAIL", known.asked, began=True, announced=False),
        preemption_at=None,
    )
    return replace(known, machine=ended)


def failed(known: KnownMachine, now: WallTime) -> KnownMachine:
    """Return a machine whose promise failed."""
    gone = replace(known.machine, lifecycle=MachineLifecycle.GONE, ended=now, cause=MachineEndCause.FAILED)
    return replace(known, machine=replace(gone, started=None, preemption_at=None))


def _row_of(known: KnownMachine, accounts: Iterable[AccountRow]) -> AccountRow | None:
    """Return the last stretch of a machine in the accounts, if they tell how it ended."""
    job, token = job_of(known.machine.machine_id), known.machine.token
    row = next((row for row in reversed([*accounts]) if (row.job, row.name) == (job, token)), None)
    ended = row is not None and row.state in slurm_states.ENDS and row.ended is not None
    return row if ended else None


def _is_preempted(machine: Machine) -> bool:
    """Return whether a machine's end was announced that is not its time limit."""
    ends_at, limit_at = machine.preemption_at, machine.limit_at
    return ends_at is not None and (limit_at is None or ends_at < limit_at)


def is_accounted(known: KnownMachine, accounts: Iterable[AccountRow]) -> bool:
    """Return whether the accounts tell how a machine ended."""
    return _row_of(known, accounts) is not None


def ended_unseen(known: KnownMachine, accounts: Iterable[AccountRow]) -> KnownMachine:
    """Return how a machine ended that is in no queue any more.

    Args:
        known: as it was last seen.
        accounts: their rows; of a job with several stretches the last counts.
    """
    machine = known.machine
    row = _row_of(known, accounts)
    if row is not None:
        began = row.started is not None
        started = row.started or machine.started
        cause = _cause(
            row.state,
            known.asked,
            began=began,
            announced=_is_preempted(machine),
            at_limit=_is_at_limit(row.ended, started, machine.limit_at),
        )
        ended = replace(machine, started=started, ended=row.ended, cause=cause)
    else:
        # Slurm no longer knows when: it was there at the last look, and no bill is longer than what was seen.
        ended = replace(
            machine,
            ended=max(known.seen, machine.started or known.seen),
            cause=_cause("FAILED", known.asked, began=True, announced=False),
        )
    return replace(known, machine=replace(ended, lifecycle=MachineLifecycle.GONE, preemption_at=None))
