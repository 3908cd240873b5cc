"""What a storm's bag promises of items that it discards before it is over, and of a metric that ends it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from tests.support.checks import demand
from windfall.bags import Bag, ItemEnd, ItemRecord, ItemRecoveryAction, ItemState, StopWhen
from windfall.core.item_table import ItemTable


class StopWitness:
    """Follows a bag's log."""

    def __init__(self, bag: Bag, tally: Counter[str]) -> None:
        self.bag, self.tally = bag, tally
        self.values: list[float] = []

    def recorded(self, record: ItemRecord, table: ItemTable) -> None:
        """Check a record that the table has not taken in."""
        lost = {one.lease.item for one in record.ended if one.end in (ItemEnd.LOST, ItemEnd.RETURNED)}
        for one in record.recovered:
            self.tally[f"preempted: {one.action}"] += 1
            demand(one.item in lost, f"only what was preempted is decided on: {one.item}")
            spared = self.bag.finish < 1.0 or not table.weight(one.item)
            again = one.action in (ItemRecoveryAction.AGAIN, ItemRecoveryAction.SMALLER)
            demand(again or spared, f"what must be done is not put off: {one.item}")
        for item in record.revived:
            self.tally["revived"] += 1
            demand(table.state(item) is ItemState.DISCARDED, f"only what was discarded is revived: {item}")
        for _, outcome in (*record.carried, *record.outcomes):
            if outcome.end is ItemEnd.DONE and outcome.lease.item != self.bag.reduce_item and outcome.values:
                self.values.append(float(outcome.values["y"]))
        rule = self.bag.stop_when
        met = rule is not None and _is_over(rule, self.values)
        demand(met or not record.converged, f"a bag ends early by its rule alone: {self.values}")
        over = record.converged or record.closed or record.reducing or table.reducing or record.carried
        demand(over or not met, f"a bag ends with the item that meets its rule: {self.values}")
        self.tally["ended by its metric"] += bool(record.converged)

    def applied(self, table: ItemTable) -> None:
        """Check the table after a record: nothing stays discarded without which too few can be done."""
        if table.closed or table.reducing or self.bag.grows:
            return
        given_up = (ItemState.FAILED, ItemState.DISCARDED)
        items = range(self.bag.items)
        reach = math.fsum(table.weight(item) for item in items if table.state(item) not in given_up)
        needed = self.bag.finish * math.fsum(map(table.weight, items))
        demand(reach >= needed - 1e-6 or not table.dropped, f"what is needed waits again: {reach:g} of {needed:g}")


def _is_over(rule: StopWhen, values: Sequence[float]) -> bool:
    """Whether a rule is met, worked out from all values."""
    if len(values) < rule.items_min:
        return False
    if rule.above is not None or rule.below is not None:
        return any(
            (rule.above is not None and one > rule.above) or (rule.below is not None and one < rule.below)
            for one in values
        )
    if rule.no_gain is not None:
        best = min if rule.goal == "min" else max
        return len(values) > rule.no_gain and best(values[: -rule.no_gain]) == best(values)
    assert rule.standard_error is not None
    return len(values) > 1 and statistics.stdev(values) / math.sqrt(len(values)) <= rule.standard_error * (1 + 1e-9)
