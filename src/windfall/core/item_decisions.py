"""The dispatcher's decisions: what is done with items whose runners report, or are lost, and who gets the next ones.

Pure: a table and a view of the world go in, the next record of the log comes out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from windfall.bags import (
    AddedItems,
    ItemEnd,
    ItemLease,
    ItemLeases,
    ItemOutcome,
    ItemRecord,
    ItemRecovery,
    ItemState,
    LeaseEnd,
    MetricCurve,
    RunnerReport,
    SizedItem,
    StopWhen,
)
from windfall.core import item_stops
from windfall.core.item_table import CLIENT_LOST, ItemTable, number_of
from windfall.fleet import FleetFacts
from windfall.policies.planning import early_stopping, item_sizes
from windfall.policies.planning.early_stopping import BagStopRule, NoGainRule, PrecisionRule, ThresholdRule
from windfall.policies.planning.item_sizes import SizeTrials
from windfall.structs import Struct, replace
from windfall.terms import Instant, Seconds, WallTime

SILENT_S = 60.0
"""A runner whose report has not changed for so long is taken for lost [s]."""
_ROUNDING = 1.0 + 1e-9


class DispatcherView(Struct, frozen=True):
    """What a dispatcher sees beside its table.

    Attributes:
        reports: the newest report of each runner.
        changed_at: when each runner's report last changed, by the dispatcher's clock.
        gone: machines that the provider has taken back, or that were declared gone.
        stopping: nothing more is leased; what runners have, they finish or give back.
        requests: to run the failed items again, taken in or not.
        ran_s: how long leased items had run when their runner last reported, those that did [s].
        saved_s: of items that were preempted, how much of their work is saved, where some is [s].
        fleet: what machines cost and how they are lost; None if that is not known.
        curves: what leased items had reported of the metric of `Bag.stop_item`, those that did.
        judged: the report of each runner by which its items were judged already.
    """

    now: Instant
    wall_time: WallTime
    reports: Mapping[str, RunnerReport]
    changed_at: Mapping[str, Instant]
    gone: Collection[str] = ()
    stopping: bool = False
    requests: Collection[str] = ()
    ran_s: Mapping[ItemLease, Seconds] = msgspec.field(default_factory=dict)
    saved_s: Mapping[int, Seconds] = msgspec.field(default_factory=dict)
    fleet: FleetFacts | None = None
    curves: Mapping[ItemLease, MetricCurve] = msgspec.field(default_factory=dict)
    judged: Mapping[str, int] = msgspec.field(default_factory=dict)


def decide(table: ItemTable, view: DispatcherView, nonce: str) -> ItemRecord | None:
    """Return the next record; None if nothing changes.

    Args:
        table: not changed.
        view: what is known now.
        nonce: random.
    """
    empty = ItemRecord(table.number + 1, nonce, view.wall_time)
    if new := sorted(set(view.requests) - table.retried):
        # A record of its own: what else is due is decided with these items in the queue.
        return replace(empty, retried=tuple(new))
    if table.closed:
        return None
    lost = _lost(table, view)
    present = _present(table, view, lost)
    if (trial := _trial(table, view, present)) is not None:
        # A record of its own: who gets that item is decided with it in its line.
        return replace(empty, trials=(trial,))
    outcomes, seen = _outcomes(table, present)
    ended: list[LeaseEnd] = [*_lost_leases(table, lost, seen), *_given_back(table, present, seen)]
    left = tuple(sorted(lost | {report.runner for report in present if report.leaves}))
    record = replace(
        empty,
        joined=tuple((one.runner, one.machine_id) for one in present if one.runner not in table.runners),
        outcomes=tuple(outcomes),
        ended=tuple(ended),
        left=left,
    )
    converged = "" if table.reducing else _why_converged(table, outcomes)
    recovered, revived = _after_preemptions(table, view, outcomes, ended, present)
    reason = _why_reduced(outcomes, table.reducing) if table.reducing else _why_over(table, outcomes, revived)
    if converged and reason and table.is_enough(outcomes):
        converged = ""
    reason = converged or reason
    if reason:
        over = seen | {one.lease.item for one in ended}
        others = tuple(one for one in _discarded(table) if one.lease.item not in over)
        record = replace(record, ended=(*ended, *others), converged=converged)
        if table.bag.reduce is not None and not table.reducing and (table.is_enough(outcomes) or converged):
            record = replace(record, reducing=reason)
        else:
            record = replace(record, closed=True, reason=reason)
    else:
        over = seen | {one.lease.item for one in ended}
        stopped = tuple(item_stops.verdicts(table, present, view.judged, over))
        problem = "" if table.rule_problem else next((one.rule_problem for one in present if one.rule_problem), "")
        record = replace(record, recovered=recovered, revived=revived, stopped=stopped, rule_problem=problem)
        if not view.stopping:
            record = replace(record, leased=tuple(_leases(table, present, outcomes, ended)))
    return None if record == empty else record


def grow(
    table: ItemTable, asked: Sequence[AddedItems], wall_time: WallTime, nonce: str, *, client_lost: bool = False
) -> ItemRecord | None:
    """Return the record that takes in what a bag's client asks for, or that closes the bag without it; None for none.

    Args:
        table: of a bag that grows; not changed.
        asked: the client's next objects.
        wall_time: now.
        nonce: random.
        client_lost: the client was not heard of for too long.
    """
    record = ItemRecord(table.number + 1, nonce, wall_time)
    if table.closed or not (asked or client_lost):
        return None
    if not asked:
        return replace(record, ended=tuple(_discarded(table)), closed=True, reason=CLIENT_LOST)
    owners = {lease.item: runner for runner in table.runners for lease in table.leases(runner)}
    items = table.items + sum(len(one.rows) for one in asked)
    cancelled = sorted({item for one in asked for item in one.cancelled if 0 <= item < items})
    held = tuple(LeaseEnd(table.lease(item), ItemEnd.DISCARDED, owners[item]) for item in cancelled if item in owners)
    queued = tuple(item for item in cancelled if item >= table.items or table.state(item) is ItemState.QUEUED)
    added = tuple(len(one.rows) for one in asked)
    sealed = any(one.sealed for one in asked)
    return replace(record, added=added, cancelled=queued, ended=held, sealed=sealed)


def _recovers(table: ItemTable) -> bool:
    """Whether what was preempted need not run again: not where a client or user asked for each item, or for the last step."""
    return not (table.closed or table.reducing or table.bag.grows or table.rounds)


def _trial(table: ItemTable, view: DispatcherView, present: Sequence[RunnerReport]) -> SizedItem | None:
    """Return the item that runs next on fewer processors, to measure its time there; None where that brings nothing."""
    if not table.bag.smaller or view.stopping or not _recovers(table):
        return None
    known = table.sized.trials() | {table.bag.cores: SizeTrials(table.timed)}
    at_once = sum(report.slots for report in present if report.wants and not report.leaves)
    cpus = item_sizes.size_to_try(table.bag.sizes, known, table.queued, at_once, view.fleet)
    item = None if cpus is None else table.next_fresh()
    return None if cpus is None or item is None else SizedItem(item, cpus, trial=True)


def _after_preemptions(
    table: ItemTable,
    view: DispatcherView,
    outcomes: Sequence[tuple[str, ItemOutcome]],
    ended: Sequence[LeaseEnd],
    present: Sequence[RunnerReport],
) -> tuple[tuple[ItemRecovery, ...], tuple[int, ...]]:
    """Return the decisions on preempted items, and which that were discarded are needed after all."""
    cut = [] if view.stopping else [one for one in ended if one.lease in view.ran_s or one.lease.item in table.verdicts]
    if not _recovers(table) or not (cut or table.dropped):
        return (), ()
    from windfall.core import preempted_items  # noqa: PLC0415 - numpy, which those who only read a bag's log do without

    slots = {report.runner: report.slots for report in view.reports.values()}
    items = [
        preempted_items.PreemptedItem(
            one.lease,
            table.runners[one.runner].machine_id,
            slots[one.runner],
            view.ran_s.get(one.lease, Seconds(0.0)),
            saved_s := view.saved_s.get(one.lease.item, Seconds(0.0)),
            table.sized.cpus(one.lease.item),
            item_stops.hopeless(table, one.lease, view.curves.get(one.lease, ()), saved_s),
        )
        for one in cut
        if one.runner in slots
    ]
    left = sum(report.slots for report in present if report.wants and not report.leaves)
    spare_cpus = max((_spare_cpus(table, report) for report in present if not report.leaves), default=0.0)
    outlook = preempted_items.BagOutlook(
        [outcome for _, outcome in outcomes], [one.lease for one in ended], left, view.fleet, spare_cpus
    )
    recovered = preempted_items.recover(table, items, outlook)
    return recovered, preempted_items.revived(table, outlook, recovered)


def _lost(table: ItemTable, view: DispatcherView) -> set[str]:
    """Return the runners that are lost, of those that were not known to be."""
    lost = {runner for runner, kept in table.runners.items() if not kept.left and _is_lost(table, view, runner)}
    return lost | _followed(table, view)


def _present(table: ItemTable, view: DispatcherView, lost: Collection[str]) -> list[RunnerReport]:
    """Return the newest reports of the runners that work."""
    return [
        report
        for runner, report in sorted(view.reports.items())
        if runner not in lost and report.machine_id not in view.gone and _may_work(table, runner)
    ]


def _is_lost(table: ItemTable, view: DispatcherView, runner: str) -> bool:
    if table.runners[runner].machine_id in view.gone:
        return True
    return view.now - view.changed_at.get(runner, view.now) > SILENT_S


def _followed(table: ItemTable, view: DispatcherView) -> set[str]:
    """Return the runners whose program has ended: their machines, which run one at a time, have started another since."""
    # The table has runners in the order in which they joined.
    newest = {kept.machine_id: runner for runner, kept in table.runners.items() if kept.machine_id}
    for runner, report in view.reports.items():
        if runner not in table.runners and report.machine_id:
            newest[report.machine_id] = runner
    working = ((runner, kept) for runner, kept in table.runners.items() if not kept.left and kept.machine_id)
    return {runner for runner, kept in working if newest[kept.machine_id] != runner}


def _may_work(table: ItemTable, runner: str) -> bool:
    kept = table.runners.get(runner)
    return kept is None or not kept.left


def _outcomes(table: ItemTable, present: Sequence[RunnerReport]) -> tuple[list[tuple[str, ItemOutcome]], set[int]]:
    """Return the outcomes that count, and their items."""
    found: list[tuple[str, ItemOutcome]] = []
    items: set[int] = set()
    for report in present:
        for outcome in report.outcomes:
            if table.holds(report.runner, outcome.lease) and outcome.lease.item not in items:
                found.append((report.runner, outcome))
                items.add(outcome.lease.item)
    return found, items


def _lost_leases(table: ItemTable, lost: Collection[str], seen: Collection[int]) -> Iterator[LeaseEnd]:
    for runner in sorted(lost):
        yield from (LeaseEnd(lease, ItemEnd.LOST, runner) for lease in table.leases(runner) if lease.item not in seen)


def _given_back(table: ItemTable, present: Sequence[RunnerReport], seen: Collection[int]) -> Iterator[LeaseEnd]:
    """Yield what runners no longer have, though they have read the grant with it."""
    for report in present:
        held = set(report.holds)
        for lease in table.leases(report.runner):
            granted = table.leased_in(report.runner, lease.item) <= report.grant
            if lease.item not in seen and lease not in held and (granted or report.leaves):
                yield LeaseEnd(lease, ItemEnd.RETURNED, report.runner)


def _discarded(table: ItemTable) -> Iterator[LeaseEnd]:
    for runner in table.runners:
        yield from (LeaseEnd(lease, ItemEnd.DISCARDED, runner) for lease in table.leases(runner))


_TOO_FEW = "too many items failed"


def _why_over(table: ItemTable, outcomes: Sequence[tuple[str, ItemOutcome]], revived: Collection[int] = ()) -> str:
    """Return why the bag is over after these outcomes; empty if it is not, as when items are revived."""
    if revived or not table.sealed:
        return ""
    counts = table.counts
    done = counts.done + sum(one.end.is_done for _, one in outcomes)
    failed = counts.failed + sum(not one.end.is_done and table.fails_for_good(one) for _, one in outcomes)
    if table.bag.grows:
        return "all items have ended" if done + failed + counts.discarded == table.items else ""
    # Once it was opened again, the share that must finish does not end it: a user wants what had failed.
    is_enough = table.is_enough(outcomes)
    if (is_enough and not table.rounds) or done + failed + counts.discarded == table.bag.items:
        return ("all items are done" if done == table.bag.items else "enough items are done") if is_enough else _TOO_FEW
    return ""


def _why_converged(table: ItemTable, outcomes: Sequence[tuple[str, ItemOutcome]]) -> str:
    """Return why the bag needs no more items after these outcomes; empty if it does, or has no rule.

    Nothing changes without outcomes, but what an earlier run has done may suffice before the first runner is there.
    """
    rule = table.bag.stop_when
    if rule is None or table.rounds or (table.runners and not outcomes):
        return ""
    values = [number_of(one.values.get(rule.metric)) for _, one in outcomes if one.end.is_done]
    known = [*table.metrics, *(value for value in values if value is not None)]
    verdict = early_stopping.converged(_rule_of(rule), known, rule.items_min)
    return f"stop_when: {rule.metric}: {verdict.reason}" if verdict.stop else ""


def _rule_of(rule: StopWhen) -> BagStopRule:
    if rule.no_gain is not None:
        return NoGainRule(rule.no_gain, rule.goal == "min")
    if rule.standard_error is not None:
        return PrecisionRule(rule.standard_error)
    bound = rule.below if rule.above is None else rule.above
    assert bound is not None
    return ThresholdRule(bound, rule.above is not None)


def _why_reduced(outcomes: Sequence[tuple[str, ItemOutcome]], reason: str) -> str:
    """Return why the bag is over once the reduce step has ended; empty if it has not."""
    for _, outcome in outcomes:
        return reason if outcome.end is ItemEnd.DONE else f"the reduce step failed: {outcome.problem}"
    return ""


def _leases(
    table: ItemTable,
    present: Sequence[RunnerReport],
    outcomes: Sequence[tuple[str, ItemOutcome]],
    ended: Sequence[LeaseEnd],
) -> Iterator[ItemLeases]:
    """Yield what runners get: as many as each wants, but no runner more than its share of what is left.

    Before that, items that run on fewer processors go where some are spare: they take no other item's place.

    A runner that hoarded the last items would keep the others idle: of w waiting items it gets at most half of w times its
    share of all slots, and at least what its free slots need (guided self-scheduling: Polychronopoulos and Kuck, IEEE ToC
    C-36, 1987, with half of their share, because items do not all take the same time).
    """
    freed = {(runner, one.lease.item) for runner, one in outcomes} | {(one.runner, one.lease.item) for one in ended}
    held = {
        report.runner: sum((report.runner, lease.item) not in freed for lease in table.leases(report.runner))
        for report in present
    }
    requesting = [report for report in present if not report.leaves and report.wants > held[report.runner]]
    slots = sum(report.slots for report in present if not report.leaves)
    left = table.queued
    # Those of runners whose report this dispatcher has not read count too: another one may have let them join.
    leased = table.counts.leased - len(outcomes) - len(ended)
    room = left if table.bag.at_once_max is None else max(table.bag.at_once_max - leased, 0)
    placed = dict(_on_spare_cpus(table, present, room))
    if placed:
        left, room = left - len(placed), room - len(placed)
    waiting = (item for item in table.waiting() if item not in placed)
    for report in requesting:
        share = -(-left * report.slots // (2 * slots))
        most = max(share, report.slots - held[report.runner])
        count = min(report.wants - held[report.runner], most, left, room)
        if count > 0:
            left, room = left - count, room - count
            yield ItemLeases(report.runner, tuple(next(waiting) for _ in range(count)))
    for runner in sorted(set(placed.values())):
        yield ItemLeases(runner, tuple(item for item, where in placed.items() if where == runner))


def _on_spare_cpus(table: ItemTable, present: Sequence[RunnerReport], room: int) -> Iterator[tuple[int, str]]:
    """Yield each item that waits to run on fewer processors and has them somewhere, with its runner."""
    spare_cpus = {report.runner: _spare_cpus(table, report) for report in present if report.wants and not report.leaves}
    waiting = [one for one in table.sized if table.state(one.item) is ItemState.QUEUED]
    for one in waiting[: max(room, 0)]:
        for runner, cpus in spare_cpus.items():
            if one.cpus <= cpus * _ROUNDING:
                spare_cpus[runner] -= one.cpus
                yield one.item, runner
                break


def _spare_cpus(table: ItemTable, report: RunnerReport) -> float:
    """Return what a runner's spare processors are without those of items that it has got since its report."""
    got = (
        lease.item for lease in table.leases(report.runner) if table.leased_in(report.runner, lease.item) > report.grant
    )
    return report.spare_cpus - math.fsum(table.sized.cpus(item) or 0.0 for item in got)
