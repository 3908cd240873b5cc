"""Machines are released by age only where a new one is expected to do the rest of the work sooner."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.core.fleet_story import START, Fleet
from windfall.core import driver
from windfall.events import ScheduleAssigned
from windfall.fleet import Basis, DesiredState, DrainMachine, MachineStatus, ReleaseMachine, ScheduleComputed, Slot
from windfall.jobs import Job, Resources
from windfall.market import Offer, Quota
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetMachine
from windfall.policies.replacement.retirement import REASON, by_age
from windfall.policies.replacement.successor import ReplacementTime
from windfall.terms import Instant, JobProgress, Reliability, SaveTable, Seconds, Step, Term

ESTIMATES = FleetEstimates((), (), ReplacementTime(Seconds(60.0), Seconds(60.0)))
NOW = Instant(90_000.0)
NEEDS = (Slot("node-0", "node"),)
KEY = ("sim", "m4", "a", Reliability.TRANSIENT)


@dataclass
class View:
    """`FleetView` of some machines."""

    found: tuple[FleetMachine, ...]
    now: Instant = NOW
    job: Job = field(default_factory=lambda: Job("j", "j", "ada", "file:///r", ("train",), (Resources(),)))
    needs: tuple[Slot, ...] = NEEDS
    offers: tuple[Offer, ...] = ()
    progress: JobProgress | None = None
    submitted: Instant = NOW
    quotas: tuple[Quota, ...] = ()

    def machines(self) -> tuple[FleetMachine, ...]:
        return self.found

    def spent_usd(self) -> float:
        return 0.0


def machine(reuse_s: float, fresh_s: float, name: str = "m1", ends_at: float | None = None) -> FleetMachine:
    """A ready machine with a schedule."""
    end = None if ends_at is None else Instant(ends_at)
    return FleetMachine(name, "node-0", KEY, 1.0, Instant(18_000.0), end, True, reuse_s, fresh_s)


def test_a_machine_that_holds_up_the_work_is_released_with_the_numbers() -> None:
    """The decision says what was compared; the machine may work on until its work would be done."""
    target = by_age(View((machine(9000.0, 6000.0),)), ESTIMATES)

    (drain,) = target.releases
    assert (drain.machine_id, drain.deadline, drain.reason) == ("m1", 99_000.0, REASON)
    assert target.needs is NEEDS
    assert target.decision is not None
    assert [one.value for one in target.decision.rationale] == [9000.0, 6000.0, 72_000.0]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ((machine(6000.0, 9000.0),), "it is the better one"),
        ((machine(6000.0, 5980.0),), "the gain is within the error of an estimate"),
        ((machine(0.0, 0.0),), "it has no trusted schedule"),
        ((machine(9000.0, 6000.0, ends_at=95_000.0),), "it leaves already"),
        ((machine(9000.0, 6000.0), machine(9000.0, 6000.0, "m2", 95_000.0)), "one at a time"),
    ],
)
def test_otherwise_it_stays(found: tuple[FleetMachine, ...], why: str) -> None:
    """Nothing is released."""
    target = by_age(View(found), ESTIMATES)
    assert (target.releases, target.decision) == ((), None), why


def test_of_several_the_one_that_gains_most_goes_first() -> None:
    """By the share of the time that a new machine saves."""
    target = by_age(View((machine(7000.0, 6000.0), machine(9000.0, 6000.0, "m2"))), ESTIMATES)
    assert [drain.machine_id for drain in target.releases] == ["m2"]


def schedule(reuse_s: float, fresh_s: float) -> ScheduleComputed:
    """The schedule of m1, trusted."""
    table = SaveTable((600.0,), 7200.0, 600.0, "based on 120 losses")
    basis = Basis(2.0, 5.0, 60.0, 3600.0, 1.0, reuse_s, fresh_s)
    assigned = ScheduleAssigned(table, Step(0), Term(1))
    return ScheduleComputed("m1", Term(1), assigned, basis, Seconds(72_000.0), Seconds(7200.0), trusted=True)


def test_the_driver_replaces_the_machine_before_it_lets_it_go() -> None:
    """From the schedule that shows it to the release: successor, drain, release; it counts as no preemption."""
    job = Fleet(fleet="by-age").trains()
    job.happens(schedule(3600.0, 7200.0))
    assert job.orders == []
    job.happens(schedule(9000.0, 6000.0))
    assert [order.count_max for order in job.orders] == [1]
    assert [decision.policy for decision in job.decided] == ["optimal", "by-age", "replacement"]
    (order,) = job.orders
    job.answers(order).runs("m2", after=20.0)
    job.says("m2", MachineStatus.WAITING)
    assert [command.machine_id for command in job.of(DrainMachine)] == ["m1"]
    assert driver.directives(job.state, Term(1))["m1"].desired_state is DesiredState.DRAIN
    job.says("m1", MachineStatus.WAITING)
    assert [(one.machine_id, one.reason) for one in job.of(ReleaseMachine)] == [("m1", REASON)]
    assert (job.state.preemptions, job.now >= START) == (0, True)
