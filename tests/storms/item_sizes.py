"""What a storm's bag promises of items that run on fewer processors than they want."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from tests.support.checks import demand
from windfall.bags import Bag, GrantedItem, ItemEnd, ItemLease, ItemRecord, ItemRecoveryAction, RunnerRoom
from windfall.core.item_table import ItemTable
from windfall.policies.planning.item_sizes import TRIES_MAX


class SizeWitness:
    """Follows a bag's log, and what its machines start."""

    def __init__(self, bag: Bag, tally: Counter[str]) -> None:
        self.bag, self.tally = bag, tally
        self.next: dict[int, float] = {}
        self.of_lease: dict[ItemLease, float | None] = {}
        self.tried: Counter[float] = Counter()
        self.times_s: dict[float, list[float]] = {}

    def recorded(self, record: ItemRecord, table: ItemTable) -> None:
        """Follow a record that the table has not taken in: first what it leases, then what waits after it."""
        for item in (item for leased in record.leased for item in leased.items):
            self.of_lease[ItemLease(item, table.lease(item).number + 1)] = self.next.get(item)
        for one in record.trials:
            self.tally["tried on fewer"] += 1
            demand(table.lease(one.item).number == 0, f"a trial is an item that has not run: {one.item}")
            self.tried[one.cpus] += 1
            demand(self.tried[one.cpus] <= TRIES_MAX, f"trials end: {self.tried}")
            self.next[one.item] = one.cpus
        for recovered in record.recovered:
            smaller = recovered.action is ItemRecoveryAction.SMALLER
            demand((recovered.cpus is not None) == smaller, f"only a smaller restart is on fewer: {recovered.item}")
            self.next.pop(recovered.item, None)
            if recovered.cpus is not None:
                self.next[recovered.item] = recovered.cpus
        for _, outcome in record.outcomes:
            demand(outcome.cpus == self.of_lease.get(outcome.lease), f"it ran as it was to: {outcome.lease}")
            self.next.pop(outcome.lease.item, None)
            if outcome.end is ItemEnd.DONE and outcome.cpus is not None and outcome.lease.number == 1:
                self.times_s.setdefault(outcome.cpus, []).append(outcome.run_s)
            self.tally[f"on fewer: {outcome.end}"] += outcome.cpus is not None
            failed = outcome.end is not ItemEnd.DONE and outcome.cpus is not None
            demand(not (failed and table.fails_for_good(outcome)), "what fails on fewer runs again on all")

    def applied(self, table: ItemTable) -> None:
        """Compare what the table says an item takes with the outcomes that this witness saw."""
        for cpus in self.bag.smaller:
            times_s, mean_s = self.times_s.get(cpus, []), table.sized.mean_s(cpus)
            demand((mean_s is None) == (not times_s), f"a time is known once an item was timed on {cpus:g}: {mean_s}")
            demand(
                mean_s is None or math.isclose(mean_s, math.fsum(times_s) / len(times_s)),
                f"an item takes the mean of those that were timed on {cpus:g}: {mean_s}, of {times_s}",
            )

    def begins(self, item: GrantedItem, others: Iterable[GrantedItem], room: RunnerRoom) -> None:
        """Check that an item is started as the log says, and that it fits."""
        demand(item.cpus == self.of_lease[item.lease], f"an item runs on as many processors as the log says: {item}")
        demand(item.cpus is None or item.cpus in self.bag.smaller, f"on a number that the bag allows: {item}")
        used = math.fsum(one.cpus or room.cores for one in (*others, item))
        demand(used <= room.slots * room.cores + room.spare_cpus, f"no more processors are used than there are: {used}")
        self.tally["beside a full machine"] += used > room.slots * room.cores
