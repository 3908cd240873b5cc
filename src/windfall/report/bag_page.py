"""What `windfall ps BAG` shows, and what the end of `windfall run` says of a bag: as lines for 80 columns, and as data."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windfall.bags import ItemState
from windfall.report.bag_log import BagLog
from windfall.report.bill import usd
from windfall.structs import Struct
from windfall.terms import WallTime
from windfall.units import count_text, duration_text

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
    for item in range(log.bag.items) if log.table.failures else ():
        if log.table.state(item) is not ItemState.FAILED or (found := log.outcome(item)) is None:
            continue
        outcome = found[1]
        alike = (outcome.end, outcome.exit_code, _NUMBER.sub("#", outcome.problem))
        counted[alike] += 1
        first.setdefault(alike, (item, outcome.problem or outcome.end.value))
    return tuple(FailureGroup(first[alike][1], count, first[alike][0]) for alike, count in counted.most_common())


def as_json(log: BagLog, now: WallTime, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return a bag as data; units are in the names.

    Args:
        log: read up to now.
        now: by the wall clock.
        details: of the job's view; empty if the controller was not asked.
    """
    counts, rate = log.table.counts, log.rate_per_s(now)
    cost = _cost_usd(details)
    return {
        "items": log.bag.items,
        **{state.value: getattr(counts, state.value) for state in ItemState},
        "must_finish": log.bag.must_finish,
        "closed": log.table.closed,
        "reason": log.table.reason,
        "items_per_hour": None if rate is None else rate * 3600.0,
        "left_s": log.left_s(now),
        "mean_run_s": log.run_s / log.own_done if log.own_done and log.run_s else None,
        "cost_usd": cost,
        "usd_per_item": cost / log.own_done if cost is not None and log.own_done else None,
        "by_machine": log.by_machine,
        "failures": [{"problem": one.problem, "items": one.count, "item": one.item} for one in failures(log)],
    }


def _cost_usd(details: Mapping[str, Any]) -> float | None:
    cost: float | None = details.get("money", {}).get("due_usd")
    return cost


def cost_text(log: BagLog, details: Mapping[str, Any]) -> str:
    """Return what a bag cost: `0.0123 USD so far, 0.0009 USD for each item done`; empty if that is unknown."""
    cost, done = _cost_usd(details), log.own_done
    if cost is None:
        return ""
    each = f", {usd(cost / done)} USD for each item done" if done else ""
    return f"{usd(cost)} USD{'' if log.table.closed else ' so far'}{each}"


def progress_text(log: BagLog, now: WallTime) -> str:
    """Return one line: `812 of 10,000 items done (8 %), 3 failed, 1,240 items/h, 7 h 24 min left`."""
    counts, bag = log.table.counts, log.bag
    words = [f"{counts.done:,} of {bag.items:,} items done ({100 * counts.done // bag.items} %)"]
    words += [f"{counts.failed:,} failed"] if counts.failed else []
    words += [f"{counts.discarded:,} not needed"] if counts.discarded else []
    if not log.table.closed:
        rate, left = log.rate_per_s(now), log.left_s(now)
        words += [f"{rate * 3600.0:,.0f} items/h"] if rate else []
        words += [f"{' '.join(duration_text(left).split()[:4])} left"] if left is not None else []
    return ", ".join(words)


def lines(log: BagLog, now: WallTime, name: str, details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a bag's items.

    Args:
        log: read up to now.
        now: by the wall clock.
        name: of the bag, as a user types it.
        details: of the job's view; empty if the controller was not asked.
    """
    counts, bag, rate, left = log.table.counts, log.bag, log.rate_per_s(now), log.left_s(now)
    states = [(getattr(counts, state.value), state.value) for state in ItemState]
    shown = ", ".join(f"{count:,} {state}" for count, state in states if count)
    yield from _labelled("items", f"{bag.items:,}: {shown}{f'; {log.table.reason}' if log.table.reason else ''}")
    if bag.must_finish < bag.items:
        yield from _labelled("finish", f"over once {bag.must_finish:,} are done")
    if rate:
        over = "over all the time" if log.table.closed else "over the last minutes"
        rest = f"; {duration_text(left)} left at this rate" if left is not None else ""
        yield from _labelled("rate", f"{rate * 3600.0:,.0f} items/h {over}{rest}")
    if log.own_done and log.run_s:
        yield from _labelled("run time", f"{log.run_s / log.own_done:.3g} s for each item done, on average")
    if cost := cost_text(log, details):
        yield from _labelled("cost", cost)
    yield from _machines(log, details)
    groups = failures(log)
    for group in groups[:GROUPS_MAX]:
        many = count_text(group.count, "item", "items")
        yield from _labelled("failed", f"{many}, such as {group.item}: {group.problem}")
    if len(groups) > GROUPS_MAX:
        yield from _labelled("", f"{count_text(len(groups) - GROUPS_MAX, 'other problem', 'other problems')}")
    yield from _advice(log, name, groups)


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
    words += [(f"retry-failed {name}", "what failed again")] if failed is not None else []
    words += [(f"results {name} -o results.csv", "all results")] if log.table.counts.done else []
    width = max((len(command) for command, _ in words), default=0)
    yield from (f"  windfall {command:<{width}}  {what}" for command, what in words)


def _labelled(label: str, text: str) -> Iterator[str]:
    wrapped = textwrap.wrap(text, WIDTH - _LABEL, break_on_hyphens=False) or [""]
    for place, line in enumerate(wrapped):
        yield f"{label if place == 0 else '':<{_LABEL}}{line}"
