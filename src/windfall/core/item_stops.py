"""Early stopping of items: the rule of `Bag.stop_item`, applied to what runners report of the metric of items that run.

A verdict is made once for a lease, and is a part of the bag's log before a runner learns of it.  One that comes too late for a
lease that is lost is a reason not to run the item again (`hopeless`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from windfall.bags import Bag, ItemLease, MetricCurve, RunnerReport, StopItem, StoppedLease
from windfall.core.item_table import ItemTable
from windfall.policies.planning import early_stopping
from windfall.policies.planning.early_stopping import MedianRule, MetricReport, StopRule, StopVerdict, ThresholdRule
from windfall.terms import Seconds


def rule_of(stop: StopItem) -> StopRule | None:
    """Return the rule that the dispatcher judges by; None for a function of the user, which runners ask."""
    if stop.call is not None:
        return None
    if stop.median is not None:
        return MedianRule(stop.median == "min", stop.from_progress, stop.done_min)
    bound = stop.below if stop.above is None else stop.above
    assert bound is not None
    return ThresholdRule(bound, stop.above is not None, stop.from_progress)


def compares(bag: Bag) -> bool:
    """Whether items are compared with those that are done, whose curves are then kept."""
    return bag.stop_item is not None and bag.stop_item.median is not None


def curves_in(report: RunnerReport) -> Mapping[ItemLease, MetricCurve]:
    """Return the curves in a report."""
    return dict(zip(report.holds, report.curves, strict=False))


def verdicts(
    table: ItemTable, present: Sequence[RunnerReport], judged: Mapping[str, int], over: Collection[int]
) -> Iterator[StoppedLease]:
    """Yield the items that are stopped from now on.

    Args:
        table: before the record.
        present: the newest reports of the runners that work.
        judged: the report of each runner that was judged already.
        over: items whose leases end with this record.
    """
    if table.bag.stop_item is None:
        return
    fresh = [report for report in present if report.sequence > judged.get(report.runner, 0)]
    rule = rule_of(table.bag.stop_item)
    # A thousand values, which only a look at curves needs.
    needed = isinstance(rule, MedianRule) and any(report.curves for report in fresh)
    done = [_reports(curve) for curve in table.curves] if needed else []
    for report in fresh:
        found = {one.lease: one.reason for one in report.stops}
        for lease, curve in curves_in(report).items() if rule is not None else ():
            verdict = _judge(table, rule, lease.item, curve, done) if curve and rule is not None else None
            if verdict is not None and verdict.stop:
                found[lease] = f"{table.bag.stop_item.metric}: {verdict.reason}"
        for lease, reason in found.items():
            item = lease.item
            if table.holds(report.runner, lease) and item not in over and item not in table.verdicts:
                yield StoppedLease(lease, reason)


def hopeless(table: ItemTable, lease: ItemLease, curve: MetricCurve, saved_s: Seconds) -> str:
    """Return why an item that was preempted would be stopped again; empty if it would not.

    Args:
        table: before the record.
        lease: that ended.
        curve: what it had reported.
        saved_s: of its work [s]; what it has reported by then it does not report again.
    """
    if table.bag.stop_item is None:
        return ""
    known, rule = table.verdicts.get(lease.item, ""), rule_of(table.bag.stop_item)
    if known or rule is None or not curve:
        return known
    done = [_reports(one) for one in table.curves]
    if saved_s:
        verdict = _judge(table, rule, lease.item, curve, done)
    else:
        verdict = early_stopping.worth_restarting(rule, _reports(curve, _whole_s(table, lease.item)), done)
    return f"{table.bag.stop_item.metric}: {verdict.reason}" if verdict.stop else ""


def _judge(
    table: ItemTable, rule: StopRule, item: int, curve: MetricCurve, done: Sequence[Sequence[MetricReport]]
) -> StopVerdict:
    """Judge an item that runs: by its newest value; by a bound, each one, since several may have come at once."""
    reports = _reports(curve, _whole_s(table, item))
    if isinstance(rule, ThresholdRule):
        return early_stopping.worth_restarting(rule, reports, done)
    return early_stopping.judge(rule, reports, done)


def _whole_s(table: ItemTable, item: int) -> float | None:
    """Return how long an item takes by which progress is known [s]; 1 if curves have it; None if none has been timed."""
    if table.bag.stop_item is not None and table.bag.stop_item.steps is not None:
        return 1.0
    if (cpus := table.sized.cpus(item)) is not None:
        return table.sized.mean_s(cpus)
    return table.timed_s / table.timed if table.timed and table.timed_s > 0.0 else None


def _reports(curve: MetricCurve, whole_s: float | None = 1.0) -> list[MetricReport]:
    """Return a curve as reports; before any item was timed, all are of the start of a run."""
    return [MetricReport(0.0 if whole_s is None else min(at / whole_s, 1.0), value) for at, value in curve]
