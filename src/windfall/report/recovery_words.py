"""Decisions on items of a bag that were preempted, or stopped by their metric, as `windfall explain` shows decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windfall.bags import ItemRecovery, StoppedLease
from windfall.events import ComparedValue, Decision, Row
from windfall.terms import Instant, Term, WallTime
from windfall.units import cpus_text

POLICY, STOP_POLICY, VERSION = "item-recovery", "item-stop", 1


def decision_of(recovery: ItemRecovery) -> Decision:
    """Return a decision on an item, with the numbers of all actions."""
    numbers = [ComparedValue("it had run", recovery.ran_s, "s")]
    numbers += [ComparedValue("of its work is saved", recovery.saved_s, "s")] if recovery.saved_s else []
    numbers += [] if recovery.item_s is None else [ComparedValue("an item takes", recovery.item_s, "s")]
    for one in recovery.costs:
        if one.possible and one.cost is not None:
            numbers.append(ComparedValue(f"expected cost, {one.action}", one.cost, recovery.unit))
        if one.possible and one.done_s is not None:
            numbers.append(ComparedValue(f"expected time, {one.action}", one.done_s, "s"))
    where = "" if recovery.cpus is None else f" on {cpus_text(recovery.cpus)}"
    choice = f"item {recovery.item}: {recovery.action}{where}, {recovery.reason}"
    return Decision(
        POLICY, VERSION, choice, tuple(numbers), tuple(f"{one.action}: {one.reason}" for one in recovery.costs)
    )


def decision_rows(made: Iterable[tuple[WallTime, ItemRecovery | StoppedLease | str]]) -> Iterator[Row]:
    """Yield decisions as rows of a journal; a text is why the bag's rule cannot be asked."""
    for place, (at, one) in enumerate(made, 1):
        if isinstance(one, ItemRecovery):
            decision = decision_of(one)
        else:
            choice = one if isinstance(one, str) else f"item {one.lease.item}: stop, {one.reason}"
            decision = Decision(STOP_POLICY, VERSION, choice, (), ())
        yield Row(Term(1), place, Instant(at), at, (), (decision,))
