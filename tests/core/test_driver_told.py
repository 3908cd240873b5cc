"""What the job's log says of choices that its user would wonder about."""

from __future__ import annotations

from tests.core.fleet_story import LARGE, LARGE_B, Fleet
from windfall import events as ev
from windfall import fleet
from windfall.market import Refusal
from windfall.terms import Outcome


def test_it_is_logged_only_if_a_more_expensive_machine_replaces_a_better_one() -> None:
    """The best offer is taken without a word; the next best one with the reason why the best could not be had."""
    job = Fleet(LARGE, LARGE_B)
    assert [order.offer.zone for order in job.orders] == ["zone-a"]
    assert job.of(ev.LogMessage) == []
    job.refuses(Refusal.NO_CAPACITY, "none left")
    assert [order.offer.zone for order in job.orders] == ["zone-b"]
    (logged,) = job.of(ev.LogMessage)
    assert "zone-a" in logged.message


def test_a_run_that_is_over_was_not_stopped_from_outside() -> None:
    """A machine that waits with a good end ends its job only where the run waits too."""
    for outcome, stopped in ((Outcome.RUNNING, False), (Outcome.WAITING, True)):
        job = Fleet().trains().says("m1", fleet.MachineStatus.WAITING, exit_code=0, term=1)
        job.run(outcome)
        assert (job.phase is fleet.JobPhase.STOPPED or job.state.pending_end is not None) is stopped, outcome


def test_a_machine_in_its_providers_queue_says_why_it_waits() -> None:
    """In the job's message, which `windfall ps` prints; once it runs, the reason is gone."""
    job = Fleet(LARGE)
    (order,) = job.orders
    job.answers(order).lists("m1", pending_reason="Priority: other jobs come first")
    assert job.message == "1 machine queued (Priority: other jobs come first)"
    job.lists("m1", pending_reason="", after=5.0).runs("m1", after=5.0)
    assert job.message == "1 machine booting"
