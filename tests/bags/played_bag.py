"""A bag whose runners report by hand: the dispatcher's decisions, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windfall.bags import (
    Bag,
    ItemEnd,
    ItemLease,
    ItemOutcome,
    ItemRecord,
    ItemRecovery,
    RunnerReport,
    Value,
)
from windfall.core import item_decisions, replay
from windfall.core.item_decisions import DispatcherView
from windfall.core.item_table import ItemTable
from windfall.fleet import FleetFacts, MachineFacts
from windfall.report import recovery_words
from windfall.terms import Instant, Seconds, WallTime

ITEM_S = 600.0
FLEET = {name: MachineFacts(0.24, Seconds(7200.0), Seconds(120.0)) for name in ("m-a", "m-b", "m-c", "m-d")}


class PlayedBag:
    """A bag whose runners report by hand: two items at once on each of some machines, and some processors to spare."""

    def __init__(
        self, bag: Bag, weights: Sequence[float] = (), left_s: float | None = None, spare_cpus: float = 0.0
    ) -> None:
        self.spare_cpus = spare_cpus
        self.table = ItemTable(bag, range(bag.items), weights)
        self.fleet = FleetFacts(FLEET, None if left_s is None else Seconds(left_s))
        self.reports: dict[str, RunnerReport] = {}
        self.ran_s: dict[ItemLease, Seconds] = {}
        self.gone: set[str] = set()
        self.log: list[ItemRecord] = []

    def join(self, runner: str) -> None:
        """Let a runner with two slots join and get its items."""
        self.reports[runner] = RunnerReport(runner, f"m-{runner}", 1, 2, 2, 0, spare_cpus=self.spare_cpus)
        self.turn()

    def end(self, runner: str, item: int, end: ItemEnd = ItemEnd.DONE, run_s: float = ITEM_S, **values: Value) -> None:
        """Let an item end."""
        outcome = ItemOutcome(self.table.lease(item), end, int(end is not ItemEnd.DONE), WallTime(0.0), Seconds(run_s),
                              values=values, cpus=self.table.sized.cpus(item))  # fmt: skip
        self.reports[runner] = RunnerReport(
            runner, f"m-{runner}", self.reports[runner].sequence + 1, 2, 2, self.table.number,
            self.table.leases(runner), (outcome,), spare_cpus=self.spare_cpus - self._on_fewer(runner, item),
        )  # fmt: skip
        self.turn()

    def _on_fewer(self, runner: str, ends: int) -> float:
        """Processors of a machine on which items of fewer run, without one that ends."""
        held = (one.item for one in self.table.leases(runner))
        return sum(self.table.sized.cpus(item) or 0.0 for item in held if item != ends)

    def lose(self, runner: str, ran_s: Mapping[int, float], saved_s: Mapping[int, float] | None = None) -> None:
        """Take a machine away, after its items had run for so long."""
        self.ran_s = {self.table.lease(item): Seconds(run_s) for item, run_s in ran_s.items()}
        self.gone.add(f"m-{runner}")
        self.turn({item: Seconds(work_s) for item, work_s in (saved_s or {}).items()})
        self.ran_s = {}

    def turn(self, saved_s: Mapping[int, Seconds] | None = None) -> None:
        """Let the dispatcher decide until nothing changes."""
        while True:
            view = DispatcherView(Instant(0.0), WallTime(0.0), self.reports, {}, self.gone, ran_s=self.ran_s,
                                  saved_s=saved_s or {}, fleet=self.fleet)  # fmt: skip
            record = item_decisions.decide(self.table, view, "nonce")
            if record is None:
                return
            self.table.apply(record)
            self.log.append(record)

    def recoveries(self) -> list[ItemRecovery]:
        return [one for record in self.log for one in record.recovered]

    def explained(self) -> str:
        """What `windfall explain` prints."""
        made = [(record.at, one) for record in self.log for one in record.recovered]
        return "\n".join(replay.explain(recovery_words.decision_rows(made)))

    def folded(self) -> ItemTable:
        """The table that the log alone makes."""
        table = ItemTable(self.table.bag, range(self.table.bag.items))
        for record in self.log:
            table.apply(record)
        return table


def bag(items: int = 20, finish: float = 0.9, **more: object) -> Bag:
    return Bag(items, ("x",), ("rows",), 1000, finish, shuffled=False, **more)  # type: ignore[arg-type]
