"""A machine that waits in its provider's queue: it is waited for, and never ordered elsewhere unless the job allows both."""

from __future__ import annotations

from tests.core.fleet_story import LARGE, Fleet
from windfall import fleet
from windfall.jobs import Resources
from windfall.market import MachineEndCause, MachineLifecycle
from windfall.structs import replace
from windfall.terms import Seconds

DAY_S = 86_400.0
QUEUED = replace(LARGE, provider="queue", zone="low", price_usd_per_hour=0.0, startup_s=None)
"""An offer whose machines may wait for ever; it is the cheapest."""
BOUNDED = replace(QUEUED, promise_s=Seconds(7200.0))
"""The same where the installation gives up after two hours."""


def waiting(story: Fleet) -> Fleet:
    """The first machine is ordered from the queue, and is pending with the reason."""
    (order,) = story.orders
    assert order.offer.provider == "queue"
    return story.answers(order).lists("m1", pending_reason="Priority: other jobs come first")


def providers_of(story: Fleet, seconds: float) -> list[str]:
    """Who gets orders while time passes."""
    before = len(story.rows)
    story.passes(seconds)
    commands = [command for row in story.rows[before:] for command in row.commands]
    return [command.order.offer.provider for command in commands if isinstance(command, fleet.PlaceOrder)]


def test_a_queued_machine_is_waited_for() -> None:
    """A day in the queue: nothing is ordered beside it, although another provider sells what the job needs."""
    story = waiting(Fleet(QUEUED, LARGE))

    assert providers_of(story, DAY_S) == []
    assert story.state.units["m1"].machine.lifecycle is MachineLifecycle.PENDING


def test_a_job_that_names_two_providers_gets_the_second_when_the_first_is_given_up() -> None:
    """After the wait that the installation allows the queued machine is taken out, and the other one is ordered once."""
    story = waiting(Fleet(BOUNDED, LARGE, resources=(Resources(provider="queue"), Resources(provider="local"))))

    assert providers_of(story, 7100.0) == []
    assert providers_of(story, 200.0) == []
    assert "m1" in story.released
    story.ends("m1", cause=MachineEndCause.RELEASED)
    assert [order.offer.provider for order in story.orders] == ["local"]


def test_a_job_that_names_the_queue_alone_is_never_ordered_elsewhere() -> None:
    """What is given up there is ordered there again."""
    story = waiting(Fleet(BOUNDED, LARGE, resources=(Resources(provider="queue"),)))

    assert providers_of(story, 7300.0) == []
    story.ends("m1", cause=MachineEndCause.RELEASED)
    first = [order.offer.provider for order in story.orders]
    assert first + providers_of(story, 600.0) == ["queue"]
