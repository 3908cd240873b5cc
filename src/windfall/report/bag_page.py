"""What `windfall ps BAG` shows, and what the end of `windfall run` says of a bag: as lines for 80 columns, and as data."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windfall.bags import ItemRecoveryAction, ItemState
from windfall.report.bag_log import BagLog
from windfall.report.bag_types import TriedType
from windfall.report.bill import usd
from windfall.structs import Struct
from windfall.terms import WallTime
from windfall.units import count_text, cpus_text, duration_text

GROUPS_MAX = 8
"""How many groups of failures are shown."""
WIDTH = 80
_LABEL = 10
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class FailureGroup(Struct, frozen=True):
    """Items that failed alike: their problems differ in numbers alone.

    Attributes:
        item: the first of them.
        problem: of that item.
    """

    problem: str
    count: int
    item: int


def failures(log: BagLog) -> tuple[FailureGroup, ...]:
    """Return the failed items by their problem, the most frequent first."""
    first: dict[tuple[object, ...], tuple[int, str]] = {}
    counted: Counter[tuple[object, ...]] = Counter()
    for item in range(log.table.items) if log.table.failures else ():
        if log.table.state(item) is not ItemState.FAILED or (found := log.outcome(item)) is None:
            continue
        outcome = found[1]
        alike = (outcome.end, outcome.exit_code, _NUMBER.sub("#", outcome.problem))
        counted[alike] += 1
        first.setdefault(alike, (item, outcome.problem or outcome.end.value))
    return tuple(FailureGroup(first[alike][1], count, first[alike][0]) for alike, count in counted.most_common())


def as_json(log: BagLog, now: WallTime, details: Mapping[str, Any], types: Sequence[TriedType] = ()) -> dict[str, Any]:
    """Return a bag as data; units are in the names.

    Args:
        log: read up to now.
        now: by the wall clock.
        details: of the job's view; empty if the controller was not asked.
        types: what the controller knows of the machine types.
    """
    counts, rate = log.table.counts, log.rate_per_s(now)
    cost = _cost_usd(details)
    return {
        "items": log.table.items,
        **{state.value: getattr(counts, state.value) for state in ItemState},
        "must_finish": log.must_finish,
        "closed": log.table.closed,
        "reason": log.table.reason,
        "items_per_hour": None if rate is None else rate * 3600.0,
        "left_s": log.left_s(now),
        "mean_run_s": log.run_s / log.own_done if log.own_done and log.run_s else None,
        "cost_usd": cost,
        "usd_per_item": cost / log.own_done if cost is not None and log.own_done else None,
        "by_machine": log.by_machine,
        "types": [
            {
                "type": one.name,
                "machines": one.machines,
                "items": one.items,
                "mean_run_s": one.run_s / one.items if one.items else None,
                "cost_usd": one.usd,
                "usd_per_item": one.usd / one.items if one.items else None,
            }
            for one in types
        ],
        "without_files": log.without_files if log.bag.collect else None,
        "sizes": [{"cpus": cpus, "items": items, "mean_run_s": mean_s} for cpus, items, mean_s in _sizes(log)],
        "stopped": log.stopped if log.bag.stop_item is not None else None,
        "rule_problem": log.table.rule_problem or None,
        "preempted": {action.value: log.recovered[action] for action in ItemRecoveryAction},
        "without_metric": without_metric(log),
        "failures": [{"problem": one.problem, "items": one.count, "item": one.item} for one in failures(log)],
    }


def without_metric(log: BagLog) -> int:
    """Return how many items are done whose result is not the number that `stop_when` decides by."""
    return 0 if log.bag.stop_when is None else log.table.counts.done - len(log.table.metrics)


def _cost_usd(details: Mapping[str, Any]) -> float | None:
    cost: float | None = details.get("money", {}).get("due_usd")
    return cost


def cost_text(log: BagLog, details: Mapping[str, Any]) -> str:
    """Return what a bag cost: `0.0123 USD so far, 0.0009 USD for each item done`; empty if that is unknown."""
    cost, done = _cost_usd(details), log.own_done
    if cost is None:
        return ""
    each = f", {_small_usd(cost / done)} USD for each item done" if done else ""
    return f"{usd(cost)} USD{'' if log.table.closed else ' so far'}{each}"


def _small_usd(amount: float) -> str:
    """Write dollars with at least two digits that are not zero."""
    return f"{amount:.{1 - math.floor(math.log10(amount))}f}" if 0.0 < amount < 1e-4 else usd(amount)


def progress_text(log: BagLog, now: WallTime) -> str:
    """Return one line: `812 of 10,000 items done (8 %), 3 failed, 1,240 items/h, 7 h 24 min left`."""
    counts, items = log.table.counts, log.table.items
    words = [f"{counts.done:,} of {items:,} items done ({100 * counts.done // max(items, 1)} %)"]
    words += [f"{counts.failed:,} failed"] if counts.failed else []
    words += [f"{counts.discarded:,} not needed"] if counts.discarded else []
    if not log.table.closed:
        rate, left = log.rate_per_s(now), log.left_s(now)
        words += [f"{rate * 3600.0:,.0f} items/h"] if rate else []
        words += [f"{' '.join(duration_text(left).split()[:4])} left"] if left is not None else []
    why = f"; {log.table.reason}" if log.table.closed and not log.table.succeeded else ""
    return f"{', '.join(words)}{why}"


def lines(
    log: BagLog, now: WallTime, name: str, details: Mapping[str, Any], types: Sequence[TriedType] = ()
) -> Iterator[str]:
    """Yield the lines about a bag's items.

    Args:
        log: read up to now.
        now: by the wall clock.
        name: of the bag, as a user types it.
        details: of the job's view; empty if the controller was not asked.
        types: what the controller knows of the machine types.
    """
    counts, items, rate, left = log.table.counts, log.table.items, log.rate_per_s(now), log.left_s(now)
    states = [(getattr(counts, state.value), state.value) for state in ItemState]
    shown = ", ".join(f"{count:,} {state}" for count, state in states if count)
    yield from _labelled("items", f"{items:,}: {shown}{f'; {log.table.reason}' if log.table.reason else ''}")
    if log.must_finish < items:
        yield from _labelled("finish", f"over once {log.must_finish:,} are done")
    if rate:
        over = "over all the time" if log.table.closed else "over the last minutes"
        rest = f"; {duration_text(left)} left at this rate" if left is not None else ""
        yield from _labelled("rate", f"{rate * 3600.0:,.0f} items/h {over}{rest}")
    if log.own_done and log.run_s:
        each, together = f"{log.run_s / log.own_done:.3g} s", duration_text(log.run_s)
        yield from _labelled("run time", f"{each} for each item done, on average; {together} together")
    if cost := cost_text(log, details):
        yield from _labelled("cost", cost)
    elif not details:
        yield from _labelled("cost", f"the job's controller knows it: `windfall ps {name}` where that runs")
    yield from _machines(log, details)
    for place, one in enumerate(types):
        yield from _labelled("types" if place == 0 else "", _type_text(one))
    yield from _sizes_lines(log)
    if log.bag.collect and log.without_files and not log.bag.grows:
        patterns = ", ".join(log.bag.collect)
        yield from _labelled("files", f"{log.without_files:,} of the items that are done left no file {patterns}")
    if log.recovered:
        chosen = ", ".join(f"{log.recovered[one]:,} to {one}" for one in ItemRecoveryAction if log.recovered[one])
        yield from _labelled("preempted", f"{count_text(log.recovered.total(), 'item', 'items')}: {chosen}")
    if log.bag.stop_item is not None:
        yield from _stopped(log)
    if (count := without_metric(log)) and (rule := log.bag.stop_when) is not None:
        many = count_text(count, "item that is done has", "items that are done have")
        yield from _labelled("warning", f"{many} no number for {rule.metric}, by which stop_when decides")
    groups = failures(log)
    for group in groups[:GROUPS_MAX]:
        many = count_text(group.count, "item", "items")
        yield from _labelled("failed", f"{many}, such as {group.item}: {group.problem}")
    if len(groups) > GROUPS_MAX:
        yield from _labelled("", f"{count_text(len(groups) - GROUPS_MAX, 'other problem', 'other problems')}")
    yield from _advice(log, name, groups)


def _sizes(log: BagLog) -> tuple[tuple[float, int, float | None], ...]:
    """Return each number of processors, how many items were timed on it, and their mean [s]; none in a bag with one."""
    if not log.bag.smaller:
        return ()
    table, wanted = log.table, log.table.timed_s / log.table.timed if log.table.timed else None
    timed = {one.cpus: one.timed for one in table.sized.times()}
    others = ((cpus, timed.get(cpus, 0), table.sized.mean_s(cpus)) for cpus in log.bag.smaller)
    return ((log.bag.cores, table.timed, wanted), *others)


def _sizes_lines(log: BagLog) -> Iterator[str]:
    """Yield how long an item takes on each number of processors, once that is measured."""
    measured = [f"{mean_s:.3g} s on {cpus_text(cpus)}" for cpus, _, mean_s in _sizes(log) if mean_s is not None]
    if measured:
        yield from _labelled("sizes", f"an item takes {', '.join(measured)}")


def _stopped(log: BagLog) -> Iterator[str]:
    """Yield how many items were stopped before their end, and why no more of them can be."""
    rule = log.bag.stop_item
    assert rule is not None
    if log.stopped:
        yield from _labelled("stopped", f"{count_text(log.stopped, 'item', 'items')} stopped early, by {rule.metric}")
    if log.table.rule_problem:
        yield from _labelled("warning", log.table.rule_problem)


def _type_text(one: TriedType) -> str:
    machines = count_text(one.machines, "machine", "machines")
    if not one.items:
        return f"{one.name}: no item done, {_small_usd(one.usd)} USD, {machines}"
    each = f"{one.run_s / one.items:.2g} s and about {_small_usd(one.usd / one.items)} USD each"
    return f"{one.name}: {one.items:,} done, {each}, {machines}"


def _machines(log: BagLog, details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the machines that are there now, by type, and how many took part."""
    there: Counter[str] = Counter()
    for machine in (one for slot in details.get("slots", ()) for one in slot["machines"]):
        there[f"{machine['machine_type']} in {machine['zone']} ({machine['price_usd_per_hour']:.4g} USD/h)"] += 1
    took = len({one.machine_id for one in log.table.runners.values()})
    now = ", ".join(f"{count} x {kind}" for kind, count in there.most_common())
    if took or now:
        part = count_text(took, "machine has run items", "machines have run items")
        yield from _labelled("machines", f"{now}; {part}" if now else part)


def _advice(log: BagLog, name: str, groups: Sequence[FailureGroup]) -> Iterator[str]:
    yield ""
    yield from advice(log, name, groups[0].item if groups else None)


def advice(log: BagLog, name: str, failed: int | None) -> Iterator[str]:
    """Yield what to type next; `failed` is an item that failed, None for none."""
    words = [(f"logs {name}/{failed}", f"what item {failed} printed")] if failed is not None else []
    again = (failed is not None or log.table.reduce_failed) and not log.bag.grows
    words += [(f"retry-failed {name}", "what failed again")] if again else []
    words += [(f"results {name} -o results.csv", "all results")] if log.table.counts.done else []
    width = max((len(command) for command, _ in words), default=0)
    yield from (f"  windfall {command:<{width}}  {what}" for command, what in words)


def _labelled(label: str, text: str) -> Iterator[str]:
    wrapped = textwrap.wrap(text, WIDTH - _LABEL, break_on_hyphens=False) or [""]
    for place, line in enumerate(wrapped):
        yield f"{label if place == 0 else '':<{_LABEL}}{line}"
