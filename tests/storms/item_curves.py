"""What a storm's items report of a metric while they run, and what their bag promises of those that it stops for it.

Nothing here asks the product's rules: an item is good or bad from the start, and its values never come near the other kind's.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping

from tests.storms.item_scene import BagScene
from tests.support.checks import demand
from windfall.bags import ItemEnd, ItemLease, ItemOutcome, ItemRecord, ItemState, MetricCurve
from windfall.core.item_runner import CurvesRead, RuleAnswered, RunnerFact
from windfall.core.item_table import CURVES_KEPT, ItemTable
from windfall.structs import replace

HEARD_S = 30.0
"""Where nothing goes wrong, an item is stopped by then: a grant that was overwritten is written again meanwhile [s]."""
LOOK_S = 1.0
CALL_S = 3.0
FALL = 10.0
"""An item's value falls by this from its start to its end."""
PROBLEM = "it raised ValueError"


class CurveWitness:
    """Lets items report, and follows the log."""

    def __init__(self, scene: BagScene, tally: Counter[str]) -> None:
        self.scene, self.tally, self.bag = scene, tally, scene.bag
        self.levels = scene.levels
        self.verdicts: dict[ItemLease, float] = {}
        self.done: list[int] = []
        self.stopped: set[int] = set()
        self.looked: dict[str, float] = {}

    def value(self, item: int, share: float) -> float:
        """The value of an item at a share of its run."""
        return self.levels[item] + FALL * (1.0 - share)

    def curve(self, item: int, run_s: float, *, shares: bool = False) -> MetricCurve:
        """What an item has reported after a time."""
        whole_s = self.scene.run_s[item]
        times = [run_s * place / 5 for place in range(1, 6)]
        return tuple((at / whole_s if shares else at, self.value(item, at / whole_s)) for at in times)

    def facts(self, name: str, running: Mapping[ItemLease, float], now: float) -> list[RunnerFact]:
        """What a runner reads, or what the function answers, of its items; `running` has when they end."""
        rule = self.bag.stop_item
        if rule is None or now < self.looked.get(name, -math.inf) + LOOK_S:
            return []
        self.looked[name] = now
        ran = {
            lease: self.scene.run_s[lease.item] - ends_at + now
            for lease, ends_at in running.items()
            if ends_at > now and lease.item != self.bag.reduce_item
        }
        if rule.call is None:
            return [CurvesRead({lease: self.curve(lease.item, run_s) for lease, run_s in ran.items() if run_s > 0.0})]
        found: list[RunnerFact] = [
            RuleAnswered(lease, "no hope") for lease, run_s in ran.items() if run_s > CALL_S and self.is_bad(lease.item)
        ]
        return [*found, RuleAnswered(None, PROBLEM)] if ran else found

    def is_bad(self, item: int) -> bool:
        """Whether an item is of the kind that is stopped."""
        return self.levels[item] > 2 * FALL

    def outcome(self, outcome: ItemOutcome) -> ItemOutcome:
        """An outcome with what it says of the metric."""
        rule, item = self.bag.stop_item, outcome.lease.item
        if rule is None or rule.median is None or outcome.end is not ItemEnd.DONE or item == self.bag.reduce_item:
            return outcome
        return replace(outcome, curve=self.curve(item, self.scene.run_s[item], shares=True))

    # --------------------------------------------------------------------------------------------------------- promises

    def killed(self, lease: ItemLease, end: ItemEnd) -> None:
        """A runner stops an item only by a verdict that is in the log, on this very lease."""
        demand(end is not ItemEnd.STOPPED or lease in self.verdicts, f"stopped by what is in the log alone: {lease}")
        self.tally["killed by its metric"] += end is ItemEnd.STOPPED

    def ended(self, lease: ItemLease, end: ItemEnd, now: float) -> None:
        """Once nothing goes wrong, a verdict reaches the runner, and a bad item has one long before its end."""
        rule = self.bag.stop_item
        if rule is not None and rule.median is None and rule.from_progress == 0.0 and end is ItemEnd.DONE:
            fresh = now - self.scene.run_s[lease.item] > self.scene.calm_s if lease.item < self.bag.items else False
            missed = fresh and self.is_bad(lease.item) and lease not in self.verdicts
            demand(not missed, f"what is beyond the bound is to be stopped: {lease}")
        since = max(self.verdicts.get(lease, math.inf), self.scene.calm_s)
        demand(
            end is not ItemEnd.DONE or now < since + HEARD_S, f"what is to be stopped does not run to its end: {lease}"
        )

    def recorded(self, record: ItemRecord, table: ItemTable, now: float) -> None:
        """Check a record that the table has not taken in."""
        for _, outcome in record.outcomes:
            item = outcome.lease.item
            demand(outcome.end is not ItemEnd.STOPPED or outcome.lease in self.verdicts, "a verdict comes first")
            demand(
                not record.stopped or all(one.lease != outcome.lease for one in record.stopped), "not once it is over"
            )
            self.tally["stopped and done"] += outcome.end is ItemEnd.STOPPED
            self.stopped |= {item} if outcome.end is ItemEnd.STOPPED else set()
            self.tally["done though to be stopped"] += outcome.end is ItemEnd.DONE and outcome.lease in self.verdicts
            if outcome.end is ItemEnd.DONE and item != self.bag.reduce_item:
                self.done.append(item)
        for one in record.stopped:
            demand(table.is_newest(one.lease), f"only what runs is stopped: {one.lease}")
            demand(one.lease not in self.verdicts, f"a verdict is made once: {one.lease}")
            self._is_right(one.lease.item)
            self.verdicts[one.lease] = now
        for ended in record.ended:
            lost = ended.lease in self.verdicts and ended.end in (ItemEnd.LOST, ItemEnd.RETURNED)
            self.tally["lost though to be stopped"] += lost
        rule = self.bag.stop_item
        called = rule is not None and rule.call is not None
        demand(not record.rule_problem or (called and not table.rule_problem), "a problem of the rule is written once")

    def _is_right(self, item: int) -> None:
        """Hold a verdict against what the item is."""
        rule = self.bag.stop_item
        assert rule is not None
        if rule.median is None:
            demand(self.is_bad(item), f"only what is beyond the bound is stopped: {item}")
            return
        known = self.done[-CURVES_KEPT:]
        demand(len(known) >= rule.done_min, f"not before {rule.done_min} others are done: {len(known)}")
        # Its best so far is at most FALL above its level, and the mean of another is at least its level.
        typical = statistics.median(self.levels[other] for other in known)
        demand(self.levels[item] + FALL > typical, f"only what is worse than others is stopped: {item}")

    def applied(self, record: ItemRecord, table: ItemTable) -> None:
        """After a record: what was to be stopped and lost its machine is not run again, if the bag can do without it."""
        bag = self.bag
        if table.closed or table.reducing or bag.grows or record.revived:
            return
        whole = math.fsum(map(table.weight, range(bag.items)))
        spare = whole * (1.0 - bag.finish) - table.weight_in(ItemState.FAILED, ItemState.DISCARDED)
        for ended in record.ended:
            item = ended.lease.item
            if ended.lease not in self.verdicts or ended.end is ItemEnd.DISCARDED:
                continue
            waits = table.state(item) is ItemState.QUEUED and table.weight(item) <= spare - 1e-6
            demand(not waits, f"what is hopeless is not run again: {item}, {spare:g} to spare")
            self.tally["hopeless and discarded"] += table.state(item) is ItemState.DISCARDED
