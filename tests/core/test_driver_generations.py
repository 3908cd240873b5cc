"""Several machines that train together: who is in, and who stays."""

from __future__ import annotations

from tests.core.fleet_story import Fleet
from windfall import fleet
from windfall.core import driver
from windfall.fleet import DesiredState, MachineStatus, Peer


def up(nodes: int = 2) -> Fleet:
    """A job whose machines are all ready."""
    job = Fleet(nodes=nodes)
    job.answers(job.orders[0])
    job.runs(*job.machines, after=20.0)
    return job.happens(*(job.report(name, MachineStatus.WAITING) for name in job.machines))


def test_a_generation_forms_only_when_all_slots_are_ready() -> None:
    """No machine trains before the last one is ready; then all get the generation number and peers."""
    job = Fleet(nodes=2)
    job.answers(job.orders[0]).runs("m1", "m2", after=20.0).says("m1", MachineStatus.WAITING)
    assert job.of(fleet.FormGeneration) == []
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.WAIT

    job.says("m2", MachineStatus.WAITING)
    (formed,) = job.of(fleet.FormGeneration)
    assert (formed.generation.number, formed.generation.machine_ids) == (1, ("m1", "m2"))
    directive = driver.directives(job.state, 1)["m2"]
    assert (directive.desired_state, directive.generation) == (DesiredState.RUN, 1)
    assert directive.peers == (Peer("m1", "m1:1"), Peer("m2", "m2:1"))


def test_one_lost_machine_is_replaced_and_the_survivors_stay() -> None:
    """Only the lost slot is bought; the survivor waits; the next generation has both."""
    job = up().happens()
    job.happens(job.report("m1", generation=1), job.report("m2", generation=1))
    job.ends("m2", after=100.0)
    assert [order.count_max for order in job.orders] == [1]
    assert job.released == []
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.WAIT

    job.answers(job.orders[0]).runs("m3", after=20.0)
    job.says("m1", MachineStatus.WAITING, exit_code=75)
    assert job.of(fleet.FormGeneration) == []
    job.says("m3", MachineStatus.WAITING)
    (formed,) = job.of(fleet.FormGeneration)
    assert (formed.generation.number, formed.generation.machine_ids) == (2, ("m1", "m3"))


def test_an_announced_member_stays_until_it_releases_the_run() -> None:
    """Its successor joins when the old one no longer trains, not before."""
    job = up()
    job.happens(job.report("m1", generation=1), job.report("m2", generation=1))
    job.says("m2", left=120.0, generation=1)
    job.answers(job.orders[0]).runs("m3", after=20.0).says("m3", MachineStatus.WAITING)
    assert job.of(fleet.FormGeneration) == []
    assert driver.directives(job.state, 1)["m3"].desired_state is DesiredState.WAIT

    job.happens(
        job.report("m1", MachineStatus.WAITING, exit_code=75),
        job.report("m2", MachineStatus.WAITING, left=20.0, exit_code=75),
    )
    (formed,) = job.of(fleet.FormGeneration)
    assert formed.generation.machine_ids == ("m1", "m3")
    assert job.released == ["m2"]


def test_a_generation_that_came_apart_is_formed_again() -> None:
    """All members are there and wait: the same ones get the next number."""
    job = up()
    job.happens(job.report("m1", generation=1), job.report("m2", generation=1))
    job.happens(
        job.report("m1", MachineStatus.WAITING, exit_code=75), job.report("m2", MachineStatus.WAITING, exit_code=75)
    )
    (formed,) = job.of(fleet.FormGeneration)
    assert (formed.generation.number, formed.generation.machine_ids) == (2, ("m1", "m2"))


def test_a_machine_alone_needs_no_generation() -> None:
    """One node: the run's own log decides who holds it."""
    job = Fleet().trains()
    assert job.state.generation is None
    assert driver.directives(job.state, 1)["m1"].generation == 0
