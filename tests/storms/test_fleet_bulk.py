"""Hundreds of machines are one event, one decision, one order; a month of them leaves nothing behind."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType

import pytest

from tests.storms.fleet_calm import Calm
from windfall.fleet import PlaceOrder
from windfall.market import MachineEndCause

DAY_S = 86400.0


def test_sixty_machines_evicted_at_once_are_one_decision_and_one_order() -> None:
    """Of two hundred machines sixty go in one moment: one row, one decision, one order for sixty."""
    calm = Calm(200, turn_s=5.0)
    calm.run(60.0)
    assert len(calm.lifetime_source) == 200
    before = calm.journal.count
    for machine_id in list(calm.lifetime_source)[:60]:
        calm.provider.end(machine_id, MachineEndCause.PREEMPTED)

    calm.run(30.0)

    rows = calm.journal.last(calm.journal.count - before)
    orders = [command.order for row in rows for command in row.commands if isinstance(command, PlaceOrder)]
    assert [(order.count_min, order.count_max) for order in orders] == [(1, 60)]
    assert [len(row.decisions) for row in rows if row.decisions] == [1]
    assert len(calm.lifetime_source) == 200


def held_bytes(*roots: object) -> int:
    """Return the size of everything that can be reached from here, code not counted."""
    seen: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
    return sum(sys.getsizeof(one) for one in seen.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_month_of_coming_and_going_leaves_memory_flat() -> None:
    """Twenty machines that live an hour each: after ten days conductor and driver hold as much as after thirty."""
    calm = Calm(20, turn_s=120.0, life_s=3600.0, keep=1)
    held = []
    for days in (10, 20):
        calm.run(days * DAY_S)
        job_loop = calm.job_loop
        parts = (
            job_loop.state,
            job_loop._timer_heap,
            job_loop._kept,
            job_loop._liveness._contacts,
            job_loop._executor._in_flight,
        )
        held.append(held_bytes(*parts, calm.direct._latest, job_loop._poller._seen))
    print(f"{held[0]} bytes after ten days, {held[1]} after thirty; {calm.provider._count} machines")

    assert calm.provider._count > 10_000
    # What is remembered of closed accounts breathes between one and two times its bound.
    assert held[1] < 2.0 * held[0]
