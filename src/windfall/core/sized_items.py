"""The items of a bag that run on fewer processors than they want, and how long items take there: a part of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windfall.bags import ItemOutcome, SizedItem, SizeTimes
from windfall.policies.planning.item_sizes import SizeTrials
from windfall.structs import replace


class SizedItems:
    """Which items wait, or run, on fewer processors; changed by the table alone."""

    def __init__(self) -> None:
        self._items: dict[int, SizedItem] = {}
        self._times: dict[float, SizeTimes] = {}

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[SizedItem]:
        """Yield them in the order in which they were added."""
        return iter(self._items.values())

    def cpus(self, item: int) -> float | None:
        """Return on how many processors an item runs; None for those that it wants."""
        found = self._items.get(item)
        return None if found is None else found.cpus

    def times(self) -> tuple[SizeTimes, ...]:
        """Return what was measured, the largest number of processors first."""
        return tuple(self._times[cpus] for cpus in sorted(self._times, reverse=True))

    def mean_s(self, cpus: float) -> float | None:
        """Return how long an item takes on a number of processors [s]; None if that is not measured."""
        one = self._times.get(cpus)
        return one.timed_s / one.timed if one is not None and one.timed else None

    def trials(self) -> dict[float, SizeTrials]:
        """Return what the policy knows of each smaller number of processors."""
        trying = [one.cpus for one in self._items.values() if one.trial]
        return {
            cpus: SizeTrials(one.timed, one.tried, trying.count(cpus))
            for cpus, one in self._times.items()
        }  # fmt: skip

    def add(self, one: SizedItem) -> None:
        """Let an item run on fewer processors."""
        self._items[one.item] = one
        known = self._times.get(one.cpus, SizeTimes(one.cpus))
        self._times[one.cpus] = replace(known, tried=known.tried + one.trial)

    def remove(self, item: int) -> None:
        """Let an item run on those that it wants, if it runs again."""
        self._items.pop(item, None)

    def measure(self, outcome: ItemOutcome) -> None:
        """Take in how long an item took on fewer processors; one that had an earlier try may have continued from a save."""
        if outcome.cpus is not None and outcome.lease.number == 1:
            known = self._times.get(outcome.cpus, SizeTimes(outcome.cpus))
            self._times[outcome.cpus] = replace(
                known, timed=known.timed + 1, timed_s=known.timed_s + outcome.run_s
            )  # fmt: skip

    def restore(self, items: Iterable[SizedItem], times: Iterable[SizeTimes]) -> None:
        """Be as when `tuple(self)` and `times()` returned these."""
        self._items = {one.item: one for one in items}
        self._times = {one.cpus: one for one in times}
