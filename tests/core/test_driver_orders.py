"""Orders of unknown outcome, controllers that restart, and machines that come late."""

from __future__ import annotations

from tests.core.fleet_story import FIRM, LARGE, LARGE_B, Fleet
from windfall import fleet
from windfall.core import driver
from windfall.core.replay import replay
from windfall.events import SetTimer
from windfall.fleet import JobPhase, MachineStatus
from windfall.jobs import BuyingLimits, Injection, RuntimeSpec
from windfall.market import MachineEndCause, MachineLifecycle, Refusal
from windfall.models.injection import lifetime_s
from windfall.structs import replace
from windfall.terms import NoticeLevel, Outcome, Reliability


def test_an_unanswered_order_is_asked_again_never_doubled() -> None:
    """The listing shows nothing of it: the same order with the same token, after a pause that grows."""
    job = Fleet(LARGE, LARGE_B)
    (order,) = job.orders
    job.happens(fleet.OrderUnanswered(order.token, "timeout"))
    assert job.orders == []
    assert job.of(fleet.RequestListing) == [fleet.RequestListing("local")]
    assert driver.unanswered(job.state, "local") == (order.token,)
    assert driver.awaits_listing(job.state, "local")
    assert order.token in job.message
    assert job.passes(60.0).orders == []

    job.happens(fleet.ListingCompleted("local", (order.token,)))
    assert job.passes(1.0).orders == [order]
    job.happens(fleet.OrderUnanswered(order.token, "timeout")).happens(fleet.ListingCompleted("local", (order.token,)))
    assert job.passes(1.0).orders == []
    assert job.passes(1.5).orders == [order]


def test_an_unanswered_order_is_adopted_from_the_listing() -> None:
    """The answer was lost, the machine was not: it is ours, and nothing more is bought."""
    job = Fleet()
    (order,) = job.orders
    job.happens(fleet.OrderUnanswered(order.token, "timeout"))
    machine = job.machine(order, MachineLifecycle.RUNNING)
    job.happens(fleet.MachinesObserved((machine,)), fleet.ListingCompleted("local"))
    assert job.orders == []
    assert job.state.slots["node-0"].incumbent == "m1"
    assert job.state.orders == {}
    assert job.passes(60.0).orders == []


def test_half_of_an_unanswered_order_in_the_listing_asks_for_the_rest_with_the_same_token() -> None:
    """Whether more would come only the provider knows; the same token buys nothing twice."""
    job = Fleet(nodes=2)
    (order,) = job.orders
    job.happens(fleet.OrderUnanswered(order.token, "timeout"))
    machine = job.machine(order)
    job.happens(fleet.MachinesObserved((machine,)), fleet.ListingCompleted("local"), after=5.0)
    again = job.passes(2.0).orders
    assert again == [order]
    job.happens(fleet.OrderAnswered(order.token, ("m1",), Refusal.NO_CAPACITY))
    assert job.orders == []
    assert [(new.token, new.count_max) for new in job.passes(1.5).orders] == [("j-2", 1)]


def test_a_machine_that_came_and_went_between_two_listings_is_paid_and_replaced() -> None:
    """Its order's answer was lost, and it was taken before it was ever seen: the ledger has it, the slot is open again."""
    job = Fleet()
    (order,) = job.orders
    job.happens(fleet.OrderUnanswered(order.token, "timeout"))
    machine = job.machine(order, MachineLifecycle.GONE)
    job.lists("m1", started=job.now, ended=job.now + 3600.0, cause=MachineEndCause.PREEMPTED)
    assert machine.token == order.token
    assert driver.summary(job.state, job.now).money.estimated_usd == 0.36
    assert [new.token for new in job.orders] == ["j-2"]


def test_a_controller_buys_nothing_before_it_knows_what_runs() -> None:
    """After `ControllerStarted` the first purchase waits for `ListingCompleted`, whatever the offers say."""
    job = Fleet(known=False)
    job.happens(fleet.OffersObserved((LARGE,)))
    assert job.orders == []
    assert "before anything is bought" in job.message
    assert job.phase is JobPhase.BUYING
    assert len(job.happens(fleet.ListingCompleted("local")).orders) == 1

    job.trains()
    job.happens(fleet.ControllerStarted(2))
    assert job.of(fleet.RequestListing) == [fleet.RequestListing("local")]
    job.ends("m1", after=1.0)
    assert job.orders == []
    assert len(job.happens(fleet.ListingCompleted("local")).orders) == 1
    assert replay(job.rows) == []


def test_another_providers_listing_does_not_open_this_one() -> None:
    """Each provider's truth is its own."""
    far = replace(LARGE, provider="far", price_usd_per_hour=0.9)
    job = Fleet(LARGE, far, known=False)
    job.happens(fleet.OffersObserved((LARGE, far)), fleet.ListingCompleted("far"))
    assert [order.offer.provider for order in job.orders] == ["far"]


def test_an_open_order_has_an_unknown_outcome_after_the_controller_died() -> None:
    """Its row is durable, its answer is not: a listing first, then the same token."""
    job = Fleet()
    (order,) = job.orders
    job.happens(fleet.ControllerStarted(2))
    assert job.orders == []
    assert driver.unanswered(job.state, "local") == (order.token,)
    assert job.happens(fleet.ListingCompleted("local", (order.token,))).orders == [order]


def test_a_new_controller_repeats_what_may_not_have_been_done() -> None:
    """Releases and cancellations of the last one are ordered again; timers too."""
    job = Fleet(max_duration_s=5000.0).trains().says("m1", left=120.0)
    job.trains().says("m2", MachineStatus.WAITING)
    job.passes(120.0)
    assert job.released == ["m1"]
    job.happens(fleet.ControllerStarted(2))
    assert job.released == ["m1"]
    assert job.of(SetTimer)


def test_a_late_machine_of_a_cancelled_order_is_released() -> None:
    """Cancelled by a stop, it comes anyway: it is released, and only then does the job end."""
    job = Fleet()
    (order,) = job.orders
    job.happens(fleet.JobStopRequested(False, "ada"))
    assert job.of(fleet.CancelOrder) == [fleet.CancelOrder(order.token, "local")]
    assert job.of(fleet.SettleJob) == []
    job.answers(order)
    assert job.released == ["m1"]
    job.ends("m1", cause=MachineEndCause.RELEASED)
    assert [command.phase for command in job.of(fleet.SettleJob)] == [JobPhase.STOPPED]

    late = job.machine(order, MachineLifecycle.RUNNING)
    job.lists(late.machine_id)
    assert job.released == [late.machine_id]


def test_a_cancelled_order_of_unknown_outcome_keeps_the_job_until_a_listing() -> None:
    """Stopped while the outcome of an order is unknown: the end waits for it."""
    job = Fleet()
    (order,) = job.orders
    job.happens(fleet.OrderUnanswered(order.token, "timeout")).happens(fleet.JobStopRequested(False, "ada"))
    assert job.phase is JobPhase.STOPPING
    assert driver.awaits_listing(job.state, "local")
    job.happens(fleet.ListingCompleted("local", (order.token,)))
    assert job.phase is JobPhase.STOPPED


def test_a_release_of_which_nothing_comes_is_ordered_again() -> None:
    """What costs is not forgotten."""
    job = Fleet().trains().run(Outcome.DONE)
    assert job.released == ["m1"]
    assert job.passes(300.0).released == ["m1", "m1"]


def test_machines_that_die_before_they_report_are_bought_more_slowly() -> None:
    """The offer is left alone for longer each time, and after twenty in a row the job gives up."""
    job = Fleet()
    for _ in range(20):
        (order,) = job.orders or [
            command.order for command in job.passes(301.0).said if isinstance(command, fleet.PlaceOrder)
        ]
        job.answers(order)
        name = f"m{job.made}"
        job.runs(name).ends(name, cause=MachineEndCause.FAILED, after=1.0)
    assert job.phase is JobPhase.FAILED
    assert "before their agent reported" in job.message
    assert [command.exit_code for command in job.of(fleet.SettleJob)] == [1]


def test_preempted_while_starting_is_no_failure() -> None:
    """The market takes young machines too: replaced without delay or bound."""
    job = Fleet()
    for _ in range(30):
        (order,) = job.orders
        job.answers(order)
        name = f"m{job.made}"
        job.runs(name).ends(name, after=1.0)
    assert len(job.orders) == 1
    assert job.state.preemptions == 30


def test_a_machine_that_never_reports_is_released() -> None:
    """It runs, costs, and says nothing for twenty minutes."""
    job = Fleet()
    job.answers(job.orders[0]).runs("m1")
    assert job.passes(1199.0).released == []
    assert job.passes(2.0).released == ["m1"]
    assert job.orders == []


def test_the_injector_takes_each_machine_at_its_draw() -> None:
    """The n-th machine of a slot lives for the n-th draw, from its start."""
    injection = Injection((90.0, 300.0), 7, 30.0)
    job = Fleet(injection=injection)
    job.answers(job.orders[0]).runs("m1", after=20.0)
    started = job.now
    job.says("m1")
    first = lifetime_s(injection, 0, 1)
    assert job.passes(first - 1.0).of(fleet.PreemptMachine) == []
    assert job.passes(1.0).of(fleet.PreemptMachine) == [fleet.PreemptMachine("m1", "local", 30.0)]
    assert job.now == started + first
    assert job.passes(500.0).of(fleet.PreemptMachine) == []

    job.ends("m1", after=0.0)
    job.answers(job.orders[0]).runs("m2", after=20.0)
    second = job.now + lifetime_s(injection, 0, 2)
    assert job.state.units["m2"].preempt_at == second


def test_the_injector_spares_machines_that_cannot_be_preempted() -> None:
    """A rehearsal takes what the market could take: of an elastic training the node, and not the reliable machine."""
    elastic = RuntimeSpec("elastic", {"nodes": 1, "reliable": 1})
    job = Fleet(LARGE, FIRM, runtime=elastic, injection=Injection((90.0,), 7))
    for order in job.orders:
        job.answers(order)
    reliable = next(name for name, one in job.machines.items() if one.reliability is Reliability.RELIABLE)
    (node,) = set(job.machines) - {reliable}

    job.runs(reliable, node, after=20.0)

    assert job.state.units[node].preempt_at is not None
    assert job.state.units[reliable].preempt_at is None


def test_lives_taken_by_the_injector_are_censored_in_the_pool() -> None:
    """A rehearsal says nothing about the market."""
    job = Fleet(injection=Injection((90.0,), 7)).trains()
    before = job.state
    job.passes(1000.0)
    assert job.of(fleet.PreemptMachine)
    job.ends("m1")
    (life,) = driver.lifetimes(before, job.state, job.rows[-1].facts)
    assert (life.preempted, life.ended) == (False, job.now)

    plain = Fleet().trains()
    before = plain.state
    plain.ends("m1", after=50.0)
    (life,) = driver.lifetimes(before, plain.state, plain.rows[-1].facts)
    assert (life.preempted, life.announced) == (True, False)


def test_a_late_machine_of_a_cancelled_order_is_released_even_if_a_slot_is_open() -> None:
    """A cancelled machine is not adopted: its provider may end it at any moment."""
    job = Fleet().trains().says("m1", left=120.0)
    (order,) = job.orders
    job.says("m1", level=NoticeLevel.WITHDRAWN).answers(order, 0, Refusal.CANCELLED)
    job.ends("m1", after=10.0).refuses(Refusal.NO_CAPACITY)
    late = job.machine(order, MachineLifecycle.RUNNING)
    job.lists(late.machine_id)
    assert job.released == [late.machine_id]
    assert job.state.slots["node-0"].incumbent is None


def test_a_part_of_an_order_resets_the_back_off() -> None:
    """An offer that had some machines again is blocked for one second, not for the earlier, longer time."""
    job = Fleet(nodes=2)
    for _ in range(6):
        job.refuses(Refusal.NO_CAPACITY)
        while not job.orders:
            job.passes(1.0)
    job.answers(job.orders[0], 1, Refusal.NO_CAPACITY)
    assert job.state.retry_at == job.now + 1.0


def test_an_order_that_was_not_taken_is_asked_again_for_what_is_still_needed() -> None:
    """One of two announced ends was withdrawn meanwhile: the same token, one machine fewer."""
    job = Fleet(nodes=2).trains()
    job.happens(job.report("m1", left=60.0), job.report("m2", left=60.0))
    (order,) = job.orders
    assert order.count_max == 2
    job.happens(fleet.OrderUnanswered(order.token, "timeout"))
    job.says("m2", level=NoticeLevel.WITHDRAWN)
    job.happens(fleet.ListingCompleted("local", (order.token,)), after=5.0)
    assert [(new.token, new.count_max) for new in job.passes(2.0).orders] == [(order.token, 1)]


def test_a_released_successor_is_gone_before_another_is_bought() -> None:
    """Announced, withdrawn, announced again within seconds: a slot never has a third machine."""
    job = Fleet().trains().says("m1", left=60.0)
    job.answers(*job.orders)
    job.says("m1", level=NoticeLevel.WITHDRAWN)
    assert job.released == ["m2"]
    assert job.says("m1", left=60.0).orders == []
    assert len(job.lists("m2", lifecycle=MachineLifecycle.GONE, cause=MachineEndCause.RELEASED, after=3.0).orders) == 1


def test_a_successor_that_is_announced_itself_waits_for_the_machine_that_it_superseded() -> None:
    """The next one is bought once the first is really gone, which its release alone does not prove."""
    job = Fleet().trains().says("m1", left=200.0)
    job.trains().says("m2", MachineStatus.TRAINING, left=60.0).run(holder="m2", term=2)
    assert job.released == ["m1"]
    assert job.orders == []
    assert len(job.lists("m1", lifecycle=MachineLifecycle.GONE, cause=MachineEndCause.RELEASED, after=3.0).orders) == 1


def test_a_new_controller_does_not_count_silence_from_before_its_start() -> None:
    """Silence counts from the restart at the earliest, or from a machine's own start if it never reported."""
    job = Fleet(nodes=2)
    (order,) = job.orders
    job.answers(order).runs("m1", "m2", after=20.0).says("m1")
    job.happens(fleet.ControllerStarted(2), after=500.0)
    restarted = job.now
    silence = (fleet.MachineSilent("m1", 510.0), fleet.MachineSilent("m2", 510.0))
    job.happens(*silence, after=10.0)
    since = {name: job.state.units[name].silent_since for name in ("m1", "m2")}
    assert since == {"m1": restarted, "m2": job.now - 510.0}
    assert job.state.units["m2"].last_contact_at is None, "a machine that never reported has no contact"


TWO_A_POOL = BuyingLimits(pool_machines_max=2)


def placed(job: Fleet) -> list[tuple[str, int]]:
    """Zone and number of machines of each order of the last answer."""
    return [(order.offer.zone, order.count_max) for order in job.orders]


def test_machines_stand_in_as_many_pools_as_the_job_asks_for() -> None:
    """Three machines with `pool_max: 2`: two in the cheaper zone, one in the other, before and after losses."""
    job = Fleet(LARGE, LARGE_B, nodes=3, limits=TWO_A_POOL)
    assert placed(job) == [("zone-a", 2), ("zone-b", 1)]
    for order in job.orders:
        job.answers(order)
    names = list(job.machines)
    job.runs(*names, after=20.0).happens(*(job.report(name) for name in names), after=10.0)
    lost = next(name for name in names if job.machines[name].zone == "zone-b")
    assert placed(job.ends(lost)) == [("zone-b", 1)], "zone a is full"
    job.answers(job.orders[0])
    assert placed(job.ends(next(name for name in names if job.machines[name].zone == "zone-a"))) == [("zone-a", 1)]


def test_an_order_without_an_answer_takes_its_room_in_the_pool() -> None:
    """Its machines may exist; what is missing for another reason goes elsewhere or waits."""
    job = Fleet(LARGE, nodes=3, limits=TWO_A_POOL)
    assert placed(job) == [("zone-a", 2)]
    assert placed(job.happens(after=5.0)) == []
    (first,) = job.state.orders.values()
    job.answers(first.order)
    assert placed(job) == []
    assert job.state.refused == ("pool_max 2 is reached by the machines of large in zone-a",)


def test_a_machine_that_is_about_to_leave_makes_room_for_its_successor() -> None:
    """In a market of one pool a full pool could never replace a machine whose end is announced."""
    job = Fleet(LARGE, nodes=2, limits=TWO_A_POOL).trains()
    job.says("m1", left=20.0)
    assert placed(job) == [("zone-a", 1)]


def test_nothing_is_ordered_where_the_job_excludes_it() -> None:
    """Not even when the other zone has nothing: the job waits, with the reason."""
    job = Fleet(LARGE, LARGE_B, limits=BuyingLimits(zones_excluded=("zone-a",)))
    assert placed(job) == [("zone-b", 1)]
    assert placed(job.refuses(Refusal.QUOTA)) == []
    assert any("the job excludes the zone zone-a" in reason for reason in job.state.refused)
