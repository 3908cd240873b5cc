"""When machines are bought, and when not."""

from __future__ import annotations

import pytest

from tests.core.fleet_story import FIRM, LARGE, LARGE_B, START, Fleet
from windfall import fleet
from windfall.core import driver
from windfall.core.lifecycle import MachineState
from windfall.core.replay import replay
from windfall.events import TimerFired
from windfall.fleet import DesiredState, JobPhase, MachineStatus
from windfall.jobs import Use
from windfall.market import MachineEndCause, MachineLifecycle, Quota, Refusal
from windfall.structs import replace
from windfall.terms import NoticeLevel, Outcome


def test_a_job_buys_trains_and_is_done() -> None:
    """Submit, order, machine, training, done: released, settled with exit code 0, and the journal replays alike."""
    job = Fleet()
    (order,) = job.orders
    assert (order.token, order.offer, order.count_max) == ("j-1", LARGE, 1)

    job.trains()
    assert job.phase is JobPhase.RUNNING
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.RUN

    job.run(Outcome.DONE, step=100)
    assert job.released == ["m1"]
    assert job.phase is JobPhase.STOPPING

    job.ends("m1", cause=MachineEndCause.RELEASED, after=5.0)
    (settled,) = job.of(fleet.SettleJob)
    assert (settled.phase, settled.exit_code) == (JobPhase.DONE, 0)
    assert [command.event for command in job.of(fleet.NotifyUser)] == [fleet.Event.DONE]
    assert driver.summary(job.state, job.now).exit_code == 0
    assert driver.summary(job.state, job.now).finish_s == job.now - 5.0 - START, "the release is not part of it"
    assert replay(job.rows) == []


def test_a_notice_buys_the_successor_before_the_old_machine_is_gone() -> None:
    """Announced by the machine itself: ordered at once, and the old one's end then changes nothing."""
    job = Fleet().trains()

    job.says("m1", left=120.0)
    (order,) = job.orders
    (decision,) = job.decided
    assert decision.policy == "replacement"
    assert {item.name: item.value for item in decision.rationale}["notice left"] == 120.0

    job.answers(order).runs("m2", after=20.0).says("m2", MachineStatus.WAITING)
    assert job.orders == []
    assert [machine.role for machine in driver.summary(job.state, job.now).slots[0].machines] == [
        "incumbent",
        "successor",
    ]

    job.ends("m1", after=80.0)
    assert job.orders == []
    assert job.of(fleet.DeclareGone) == [fleet.DeclareGone("m1")]
    assert job.state.slots["node-0"].incumbent == "m2"


def test_a_machine_that_vanishes_is_replaced_once_it_is_gone() -> None:
    """Without notice, a replacement is bought once the listing says that it is gone, and the user is notified."""
    job = Fleet().trains()
    job.ends("m1", after=500.0)
    assert [order.token for order in job.orders] == ["j-2"]
    assert [command.event for command in job.of(fleet.NotifyUser)] == [fleet.Event.PREEMPTED]
    assert job.state.preemptions == 1


def test_a_hint_never_buys() -> None:
    """Elevated risk is not an end."""
    job = Fleet().trains().says("m1", level=NoticeLevel.HINT)
    assert job.orders == []
    assert job.passes(3600.0).orders == []


def test_the_providers_word_alone_never_buys() -> None:
    """`preemption_at` in the listing, not acknowledged by the machine, does not buy."""
    job = Fleet().trains()
    job.lists("m1", preemption_at=job.now + 60.0)
    assert job.orders == []
    assert job.passes(50.0).orders == []


def test_announced_twice_buys_once() -> None:
    """A notice that is repeated, moved or reported on another channel is one end."""
    job = Fleet().trains().says("m1", left=120.0)
    assert len(job.orders) == 1
    job.says("m1", left=110.0)
    assert job.orders == []
    job.says("m1", left=60.0)
    assert job.orders == []
    assert job.passes(30.0).orders == []


def test_a_withdrawn_notice_cancels_the_order() -> None:
    """What is not needed any more is cancelled; its late machine is released."""
    job = Fleet().trains().says("m1", left=120.0)
    (order,) = job.orders
    job.says("m1", level=NoticeLevel.WITHDRAWN)
    assert job.of(fleet.CancelOrder) == [fleet.CancelOrder(order.token, "local")]

    job.answers(order)
    assert job.released == ["m2"]
    assert job.state.slots["node-0"].incumbent == "m1"
    assert job.state.slots["node-0"].awaits is None


def test_a_withdrawn_notice_releases_the_successor() -> None:
    """A successor that already runs is released."""
    job = Fleet().trains().says("m1", left=120.0)
    job.trains()
    job.says("m1", level=NoticeLevel.WITHDRAWN)
    assert job.released == ["m2"]
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.RUN
    assert driver.directives(job.state, 1)["m2"].desired_state is DesiredState.STOP


def test_sixty_lost_machines_are_one_decision_and_one_order() -> None:
    """A batch is handled once, however many machines are lost."""
    job = Fleet(nodes=200).trains()
    assert len(job.machines) == 200

    job.ends(*(f"m{n}" for n in range(1, 61)), after=1000.0)
    (order,) = job.orders
    assert order.count_max == 60
    assert len(job.decided) == 1
    assert [command.event for command in job.of(fleet.NotifyUser)] == [fleet.Event.PREEMPTED]

    job.trains()
    assert all(slot.incumbent is not None for slot in job.state.slots.values())
    assert job.orders == []


def test_sixty_notices_are_one_decision_and_one_order() -> None:
    """The same when they are announced."""
    job = Fleet(nodes=100).trains()
    job.happens(*(job.report(f"m{n}", left=120.0) for n in range(1, 61)))
    assert [order.count_max for order in job.orders] == [60]
    assert len(job.decided) == 1


def test_a_long_notice_is_not_paid_twice() -> None:
    """An hour's notice: the successor is bought when it is needed, not when the notice comes."""
    job = Fleet().trains().says("m1", left=3600.0)
    assert job.orders == []
    assert job.passes(3200.0).orders == []
    assert len(job.passes(110.0).orders) == 1


def test_silence_on_one_channel_does_nothing() -> None:
    """A machine that reports on any channel is alive; even silence on all channels does not mean that it is gone."""
    job = Fleet().trains()
    job.happens(fleet.MachineSilent("m1", 60.0))
    assert job.said == () or not (job.orders or job.released)
    job.says("m1")
    assert job.passes(3600.0).released == []
    assert job.orders == []


def test_a_zombie_is_released_before_anything_is_bought() -> None:
    """Silent on every channel and listed as running: released first, replaced once its provider says that it is gone."""
    job = Fleet().trains()
    job.happens(fleet.MachineSilent("m1", 60.0))
    job.passes(300.0)
    assert job.released == ["m1"]
    assert job.orders == []
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.STOP

    job.ends("m1", cause=MachineEndCause.RELEASED)
    assert len(job.orders) == 1


def test_progress_in_the_runs_log_is_a_sign_of_life() -> None:
    """Both channels are cut, but the holder keeps saving: it is left alone."""
    job = Fleet().trains().run(holder="m1", step=10)
    job.happens(fleet.MachineSilent("m1", 60.0))
    job.passes(200.0)
    job.run(holder="m1", step=20)
    assert job.passes(250.0).released == []


def test_missing_from_listings_does_nothing_while_it_reports() -> None:
    """A machine that reports is kept, even if its provider no longer lists it."""
    job = Fleet().trains()
    job.happens(fleet.MachinesMissing(("m1",)))
    assert job.orders == []
    assert job.state.slots["node-0"].incumbent == "m1"

    job.happens(fleet.MachineSilent("m1", 60.0), after=60.0)
    assert job.orders == []
    job.happens(fleet.MachinesMissing(("m1",)))
    assert len(job.orders) == 1


def test_a_promised_machine_may_be_listed_late() -> None:
    """Providers list new machines with a delay; no other machine is bought."""
    job = Fleet()
    job.answers(job.orders[0])
    job.happens(fleet.MachinesMissing(("m1",)), after=5.0)
    assert job.orders == []
    job.happens(fleet.MachinesMissing(("m1",)), after=200.0)
    assert len(job.orders) == 1


def test_an_orphan_is_released() -> None:
    """A machine of this job that no slot needs is released at once; a foreign one is not touched."""
    job = Fleet().trains()
    order = job.rows[0].commands[0]
    assert isinstance(order, fleet.PlaceOrder)
    stray = job.machine(order.order, MachineLifecycle.RUNNING)
    job.lists(stray.machine_id)
    assert job.released == [stray.machine_id]

    other = job.machine(order.order, MachineLifecycle.RUNNING)
    job.lists(other.machine_id, owner="someone")
    assert job.released == []


def test_a_report_that_comes_before_the_listing_counts() -> None:
    """A machine may report before any answer or listing names it."""
    job = Fleet()
    (order,) = job.orders
    job.happens(fleet.OrderUnanswered(order.token, "timeout"))
    machine = job.machine(order, MachineLifecycle.RUNNING)
    job.says(machine.machine_id)
    job.lists(machine.machine_id)
    assert job.state.units["m1"].state is MachineState.LIVE


def test_the_old_machine_is_released_when_its_end_has_passed() -> None:
    """The announced end passed, it still answers, and the successor is ready: it is released."""
    job = Fleet().trains().says("m1", left=60.0)
    job.trains().says("m2", MachineStatus.WAITING)
    assert job.released == []
    job.passes(60.0)
    assert job.released == ["m1"]
    assert job.state.slots["node-0"].incumbent == "m2"


def test_the_old_machine_is_released_when_the_successor_holds_the_run() -> None:
    """A machine that has handed over the run only costs money."""
    job = Fleet().trains().says("m1", left=200.0)
    job.trains().run(holder="m2", term=2)
    assert job.released == ["m1"]


def test_a_preempting_machine_that_released_the_run_does_not_take_it_again() -> None:
    """It waits, so its successor gets the run."""
    job = Fleet().trains().says("m1", left=60.0)
    job.trains()
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.RUN
    job.says("m2", MachineStatus.SETUP)
    job.says("m1", MachineStatus.WAITING, left=10.0, exit_code=75)
    assert driver.directives(job.state, 1)["m1"].desired_state is DesiredState.WAIT
    assert driver.directives(job.state, 1)["m2"].desired_state is DesiredState.RUN


def test_the_next_offer_is_asked_while_the_first_backs_off() -> None:
    """No capacity in one zone: the other zone is tried at once, the first one later."""
    job = Fleet(LARGE, LARGE_B)
    assert job.orders[0].offer == LARGE
    job.refuses(Refusal.NO_CAPACITY)
    assert [order.offer for order in job.orders] == [LARGE_B]
    job.refuses(Refusal.NO_CAPACITY)
    assert job.orders == []
    assert job.phase is JobPhase.WAITING
    assert [order.offer for order in job.passes(1.5).orders][:1] == [LARGE]


def test_a_wait_names_the_first_refusal_and_counts_the_others() -> None:
    """Three zones without capacity: one reason, and two more."""
    third = replace(LARGE, zone="zone-c", price_usd_per_hour=0.5)
    job = Fleet(LARGE, LARGE_B, third)
    for _ in range(3):
        job.refuses(Refusal.NO_CAPACITY)
    assert ", and 2 more; next try in 1 s" in job.message


def test_on_demand_is_the_fallback_of_auto() -> None:
    """Spot is unavailable: an on-demand machine is bought, where the job allows it."""
    job = Fleet(LARGE, FIRM, use=Use.AUTO).refuses(Refusal.NO_CAPACITY)
    assert [order.offer for order in job.orders] == [FIRM]
    spot_only = Fleet(LARGE, FIRM).refuses(Refusal.NO_CAPACITY)
    assert spot_only.orders == []


def test_back_off_grows_is_capped_and_resets() -> None:
    """1, 2, 4 ... s up to 5 min between two tries, and 1 s again after a success."""
    job = Fleet()
    pauses = []
    for _ in range(12):
        asked = job.now
        job.refuses(Refusal.NO_CAPACITY)
        while not job.orders:
            assert job.state.timer_at is not None
            job.now = job.state.timer_at
            job.happens(TimerFired(driver.TIMER))
        pauses.append(job.now - asked)
    assert pauses[:5] == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0])
    assert pauses[-1] == pytest.approx(300.0)

    job.trains().ends("m1", after=100.0)
    asked = job.now
    job.refuses(Refusal.NO_CAPACITY)
    assert job.state.retry_at == pytest.approx(asked + 1.0)


@pytest.mark.parametrize(
    ("refusal", "message", "retried_s"),
    [
        (Refusal.NO_CAPACITY, "waiting: no capacity for large in zone-a", 1.0),
        (Refusal.PRICE, "waiting: the price of large in zone-a is above the limit", 1.0),
        (Refusal.QUOTA, "waiting: no quota left for large in zone-a", 300.0),
        (Refusal.CREDENTIALS, "waiting: local does not accept the credentials", 300.0),
        (Refusal.INVALID, "waiting: local does not offer large in zone-a", None),
    ],
)
def test_refusals_are_distinguished(refusal: Refusal, message: str, retried_s: float | None) -> None:
    """Each names its reason; only what waiting can fix is retried."""
    job = Fleet().refuses(refusal, "its own words")
    assert job.message.startswith(message)
    assert "its own words" in job.message
    assert job.phase is JobPhase.WAITING
    assert [command.event for command in job.of(fleet.NotifyUser)] == [fleet.Event.WAITING]
    expected = None if retried_s is None else pytest.approx(job.now + retried_s)
    assert job.state.retry_at == expected


def test_quota_zero_is_said_without_asking() -> None:
    """The account's limit is known: nothing is ordered, and the message names it."""
    job = Fleet(known=False)
    job.happens(
        fleet.OffersObserved((LARGE,), quotas=(Quota("large", "zone-a", 0, 0),)), fleet.ListingCompleted("local")
    )
    assert job.orders == []
    assert job.message == "waiting: quota 0 for large in zone-a"
    job.happens(fleet.OffersObserved((LARGE,), quotas=(Quota("large", "zone-a", 1, 0),)))
    assert len(job.orders) == 1


def test_wrong_credentials_end_when_the_provider_answers_again() -> None:
    """Shown at once; buying resumes as soon as the provider accepts the credentials."""
    job = Fleet(known=False)
    job.happens(
        fleet.OffersObserved((), provider_errors=(("local", Refusal.CREDENTIALS, "bad key"),)),
        fleet.ListingCompleted("local"),
    )
    assert job.message == "waiting: local does not accept the credentials: bad key"
    assert len(job.happens(fleet.OffersObserved((LARGE,))).orders) == 1


def test_max_price_is_the_bid_and_the_bound() -> None:
    """An offer above it is not bought; one below is bought with it as the bid."""
    dear = Fleet(LARGE, max_price_usd_per_hour=0.3)
    assert dear.orders == []
    assert "max_price is 0.3 USD/h" in dear.message

    fine = Fleet(replace(LARGE, bid=True), max_price_usd_per_hour=0.5)
    assert fine.orders[0].bid_usd_per_hour == 0.5


def test_the_time_of_the_journal_starts_with_the_submission() -> None:
    """The first fact is the submission."""
    assert Fleet().state.submitted_at == START
