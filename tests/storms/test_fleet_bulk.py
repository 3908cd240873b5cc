"""Hundreds of machines are one event, one decision, one order; a month of them leaves nothing behind."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.storms.fleet_calm import Calm
from windfall.fleet import PlaceOrder
from windfall.market import Ended

DAY_S = 86400.0


def test_sixty_machines_evicted_at_once_are_one_decision_and_one_order() -> None:
    """Of two hundred machines sixty go in one moment: one row, one decision, one order for sixty."""
    calm = Calm(200, turn_s=5.0)
    calm.run(60.0)
    assert len(calm.living) == 200
    before = calm.journal.count
    for machine_id in list(calm.living)[:60]:
        calm.provider.end(machine_id, Ended.PREEMPTED)

    calm.run(30.0)

    rows = calm.journal.last(calm.journal.count - before)
    orders = [command.order for row in rows for command in row.commands if isinstance(command, PlaceOrder)]
    assert [(order.count_min, order.count_max) for order in orders] == [(1, 60)]
    assert [len(row.decisions) for row in rows if row.decisions] == [1]
    assert len(calm.living) == 200


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_month_of_coming_and_going_leaves_memory_flat() -> None:
    """Twenty machines that live an hour each: after ten days controller and driver hold as much as after thirty."""
    calm = Calm(20, turn_s=120.0, life_s=3600.0, keep=1)
    held = []
    tracemalloc.start()
    for days in (10, 20):
        calm.run(days * DAY_S)
        snapshot = tracemalloc.take_snapshot()
        ours = [tracemalloc.Filter(True, f"*/windfall/{room}/*") for room in ("core", "control", "channels")]
        held.append(sum(entry.size for entry in snapshot.filter_traces(ours).statistics("filename")))
    tracemalloc.stop()
    print(f"{held[0]} bytes after ten days, {held[1]} after thirty; {calm.provider._count} machines")

    assert calm.provider._count > 10_000
    assert held[1] < 1.1 * held[0]
