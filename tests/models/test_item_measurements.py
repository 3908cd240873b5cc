"""What a bag shows of the machines on which its items ran."""

from __future__ import annotations

import pytest

from tests.core.fleet_story import Fleet
from windfall.bags import ItemEnd, ItemLease, ItemOutcome, ItemRecord
from windfall.fleet import MachineStatus
from windfall.models.item_measurements import measure_items
from windfall.terms import Seconds, WallTime


def record(started: list[float], run_s: float) -> ItemRecord:
    """The record of items that one runner has done, which started then."""
    outcomes = tuple(
        ("r1", ItemOutcome(ItemLease(item, 1), ItemEnd.DONE, 0, WallTime(at), Seconds(run_s)))
        for item, at in enumerate(started)
    )
    return ItemRecord(1, "nonce", WallTime(started[-1] + run_s), joined=(("r1", "m1"),), outcomes=outcomes)


def test_a_start_lasts_until_the_first_item_runs() -> None:
    """A machine that is ready after 10 s, whose setup takes 90 s more, and four items of a minute, one after the other."""
    job = Fleet()
    (order,) = job.orders
    job.answers(order).runs("m1", after=20.0).says("m1", MachineStatus.WAITING)
    started = float(job.machines["m1"].started or 0.0)
    (found,) = measure_items(job.rows, [record([started + 100.0 + 60.0 * item for item in range(4)], 60.0)])

    assert (found.prepare_s, found.item_s) == (pytest.approx(100.0), 60.0)
    assert found.work_per_s == pytest.approx(1.0 / 60.0)
    assert found.allocate_s == pytest.approx(20.0)


def test_clocks_that_differ_give_no_start_shorter_than_the_boot() -> None:
    """By the machine's clock its first item ran before it was there."""
    job = Fleet()
    (order,) = job.orders
    job.answers(order).runs("m1", after=20.0)
    started = float(job.machines["m1"].started or 0.0)
    job.happens(job.report("m1", MachineStatus.WAITING), after=10.0)
    (found,) = measure_items(job.rows, [record([started - 500.0, started - 400.0], 60.0)])

    assert found.prepare_s == found.boot_s == pytest.approx(10.0)
