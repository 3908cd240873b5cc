"""The driver with `fleet: explore`: how many machines a bag has when they are lost, replaced and retired."""

from __future__ import annotations

import pytest

from tests.core.fleet_story import LARGE, LARGE_B, Fleet
from windfall.bags import Bag
from windfall.core import machine_ages
from windfall.fleet import AgeWeighed, CancelOrder, DrainMachine, MachineStatus, OffersObserved
from windfall.jobs import RuntimeSpec, Work
from windfall.market import MachineEndCause, Offer, Quota
from windfall.policies.layout import bag_rules
from windfall.report import bill
from windfall.report.bill import MachineOutcome
from windfall.structs import replace
from windfall.terms import Seconds, Unit, WallTime

HOUR = 3600.0


def bag_fleet(*offers: Offer, nodes: int = 2, items: int = 1000, known: bool = True) -> Fleet:
    """A bag on these offers."""
    bag = Bag(items, ("x",), ("rows",), 10_000)
    runtime = RuntimeSpec("bag", bag_rules.settings_of(bag))
    return Fleet(
        *offers, nodes=nodes, known=known, fleet="explore", runtime=runtime, work=Work(float(items), Unit.ITEM)
    )


def runs_items(job: Fleet, *names: str, item_s: float = 2.0) -> None:
    """Machines start and run items of this length."""
    job.runs(*names, after=20.0)
    for name in names:
        job.says(name, MachineStatus.TRAINING, step_s=Seconds(item_s))


def test_three_losses_in_quick_succession_never_bring_more_machines_than_the_bag_wants() -> None:
    """Two are taken, a third ends before it reports, so that its zone is not tried for a second and another one gets the order.

    The cheaper zone is back while that order is open, and while its machine starts: neither is given up for it.
    """
    job = bag_fleet(LARGE, LARGE_B, items=100)
    (pair,) = job.orders
    job.answers(pair)
    runs_items(job, "m1", "m2")
    job.ends("m1", after=5.0)
    (third,) = job.orders
    job.answers(third).runs("m3", after=20.0).ends("m3", cause=MachineEndCause.FAILED)
    (elsewhere,) = job.orders
    assert (elsewhere.offer.zone, elsewhere.count_max) == ("zone-b", 1)

    job.passes(10.0)
    assert (job.orders, job.of(CancelOrder)) == ([], [])
    job.answers(elsewhere).runs("m4", after=20.0).passes(10.0)
    assert (job.orders, job.released) == ([], [])
    job.says("m4", MachineStatus.TRAINING, step_s=Seconds(2.0))
    assert {unit.slot is None for unit in job.state.units.values()} == {False}
    assert len(job.state.units) == len(job.state.slots) == 2


def test_a_machine_of_another_type_is_ordered_once_the_old_one_is_gone() -> None:
    """Drained, released and confirmed by the market: then the order goes out, and not before."""
    small = replace(LARGE, machine_type="small", price_usd_per_hour=0.1)
    job = bag_fleet(small, LARGE, nodes=1)
    (first,) = job.orders
    job.answers(first)
    runs_items(job, "m1")

    assert first.offer.machine_type == "small"
    assert [command.machine_id for command in job.of(DrainMachine)] == ["m1"]
    assert job.orders == []
    job.says("m1", MachineStatus.WAITING, step_s=Seconds(2.0))
    assert (job.released, job.orders) == (["m1"], [])
    job.ends("m1", cause=MachineEndCause.RELEASED)
    (second,) = job.orders
    assert second.offer.machine_type == "large"


def test_a_machine_is_retired_by_its_age_once_its_successor_is_ready() -> None:
    """The next item is expected to be done earlier on a new one; until that is there the old one gets items."""
    job = bag_fleet(LARGE, nodes=1)
    job.answers(*job.orders)
    runs_items(job, "m1", item_s=HOUR)
    job.happens(AgeWeighed("m1", Seconds(22.0 * HOUR), Seconds(HOUR), 3606.0, 4038.0))
    assert job.orders == []

    job.happens(AgeWeighed("m1", Seconds(23.0 * HOUR), Seconds(HOUR), 6590.0, 4038.0))
    (order,) = job.orders
    assert [decision.choice for decision in job.decided if decision.policy == "explore"] == ["replace m1"]
    assert job.of(DrainMachine) == []
    job.answers(order)
    runs_items(job, "m2", item_s=HOUR)
    assert [command.machine_id for command in job.of(DrainMachine)] == ["m1"]
    job.says("m1", MachineStatus.WAITING)
    assert job.released == ["m1"]


def test_ages_are_weighed_for_machines_that_run_long_items() -> None:
    """With its kind, its age and the time of a start; not again before it is a quarter of an item older."""
    job = bag_fleet(LARGE, nodes=1)
    job.answers(*job.orders)
    runs_items(job, "m1", item_s=HOUR)
    reports = {name: unit.report for name, unit in job.state.units.items() if unit.report is not None}
    (asked,) = machine_ages.requests(job.state, reports, job.now + 600.0)

    assert (asked.machine_id, asked.machine_type, asked.zone) == ("m1", "large", "zone-a")
    assert (asked.age_s, asked.item_s, asked.allocate_s) == (pytest.approx(600.0), HOUR, pytest.approx(20.0))
    job.happens(AgeWeighed("m1", Seconds(600.0), Seconds(HOUR), 3606.0, 4038.0))
    assert machine_ages.requests(job.state, reports, job.now + 900.0) == ()
    assert machine_ages.requests(job.state, reports, job.now + 600.0 + 900.0) != ()


def test_an_order_shows_what_a_bag_has() -> None:
    """Its price, its start and its losses; no redo, saves or work of training, of which a bag has none."""
    job = bag_fleet(LARGE)

    (bought,) = [decision for decision in job.decided if decision.policy == "acquisition"]
    names = [number.name.removesuffix(", assumed") for number in bought.rationale]
    assert names == ["machines missing", "price", "allocation", "preparation", "mean time to preemption"]


def test_the_rest_of_a_bag_runs_though_one_type_has_no_quota() -> None:
    """The type that would be tried first is passed over, with nothing ordered there."""
    small = replace(LARGE, machine_type="small", price_usd_per_hour=0.1)
    job = bag_fleet(small, LARGE, LARGE_B, known=False)
    job.happens(OffersObserved(job.offers, (Quota("small", None, 0, 0),)), *job.listings())

    assert [(order.offer.machine_type, order.count_max) for order in job.orders] == [("large", 2)]


def test_the_bill_shows_a_machine_of_a_retired_slot_as_released() -> None:
    """It is no preemption: the fleet policy took another type in its place."""
    small = replace(LARGE, machine_type="small", price_usd_per_hour=0.1)
    job = bag_fleet(small, LARGE, nodes=1)
    job.answers(*job.orders)
    runs_items(job, "m1")
    job.says("m1", MachineStatus.WAITING).ends("m1", cause=MachineEndCause.RELEASED)

    found = bill.bill(job.rows, WallTime(job.now))
    assert found is not None
    (line,) = found.machines
    assert (line.outcome, line.detail) == (MachineOutcome.RELEASED, "the job no longer needs it")
