"""What a fleet policy wants: slots open and retire, machines are drained, gangs stand and fall together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.fleet_story import FIRM, LARGE, LARGE_B, START, Fleet
from windfall.core import driver
from windfall.events import SetTimer
from windfall.fleet import (
    CancelOrder,
    DesiredState,
    DrainMachine,
    JobPhase,
    JobStopRequested,
    MachinesObserved,
    MachineStatus,
    OffersObserved,
    OrderUnanswered,
    ReleaseMachine,
    Slot,
)
from windfall.jobs import Checkpointing, Objective
from windfall.market import MachineEndCause, Quota, Refusal
from windfall.policies.acquisition import fleet_policy_list
from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetTarget, FleetView, MachineDrain
from windfall.policies.layout import runtime_list
from windfall.policies.layout.membership import ALONE
from windfall.policies.layout.runtime_list import RuntimeRules
from windfall.structs import replace
from windfall.terms import Instant, NoticeLevel, Reliability, Seconds, Term, Usd

WORKERS = RuntimeRules(
    "toy", "a toy", ("worker", "server"), lambda _: (Slot("w-0", "worker"),), lambda _: ALONE, live="", program=""
)
W0, W1 = Slot("w-0", "worker"), Slot("w-1", "worker")
PAIR = (Slot("g-0", "worker", gang="g"), Slot("g-1", "worker", gang="g"))


class Wanted:
    """A fleet policy whose answer a test sets."""

    def __init__(self) -> None:
        self.target: object = FleetTarget((W0,))

    def __call__(self, view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        if isinstance(self.target, Exception):
            raise self.target
        return self.target  # type: ignore[return-value]


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Wanted:
    """The policy, in place of every other; machines of the toy runtime work each by itself."""
    policy = Wanted()
    monkeypatch.setattr(fleet_policy_list, "policy", lambda _: policy)
    monkeypatch.setattr(runtime_list, "rules", lambda _: WORKERS)
    return policy


def desired(job: Fleet, machine_id: str) -> DesiredState:
    """What a machine is told."""
    return driver.directives(job.state, Term(1))[machine_id].desired_state


def test_a_new_slot_is_bought_for_and_the_others_stay(wanted: Wanted) -> None:
    """The policy asks for one machine more: one order, for one machine."""
    job = Fleet().trains()
    wanted.target = FleetTarget((W0, W1))
    job.happens()
    assert [order.count_max for order in job.orders] == [1]
    assert list(job.state.slots) == ["w-0", "w-1"]
    job.trains()
    assert job.state.slots["w-1"].incumbent == "m2"
    assert job.released == []


def test_a_policy_is_reminded_of_what_it_handed_back(wanted: Wanted) -> None:
    """The numbers of its last target that had some; None keeps them, and more than a few, or no numbers, end the job."""
    job = Fleet().trains()
    wanted.target = FleetTarget((W0,), memory={"since": 4.0})
    job.happens()
    wanted.target = FleetTarget((W0,))
    job.happens()
    assert dict(job.state.policy_memory) == {"since": 4.0}
    wanted.target = FleetTarget((W0,), memory={f"{n}": 1.0 for n in range(17)})
    job.happens()
    assert job.state.phase is JobPhase.STOPPING
    assert job.state.pending_end is not None
    assert "at most 16 numbers" in job.state.pending_end.message


def test_a_retired_slot_drains_its_machine_and_is_forgotten(wanted: Wanted) -> None:
    """It is told to save, released once it does not train any more, and bought for never again."""
    wanted.target = FleetTarget((W0, W1))
    job = Fleet().trains()
    wanted.target = FleetTarget((W0,))
    job.happens()
    (drained,) = job.of(DrainMachine)
    assert (drained.machine_id, desired(job, "m2")) == ("m2", DesiredState.DRAIN)
    assert job.released == []
    job.says("m2", MachineStatus.WAITING)
    assert job.released == ["m2"]
    assert list(job.state.slots) == ["w-0"]
    job.ends("m2", cause=MachineEndCause.RELEASED).passes(1000.0)
    assert (job.orders, job.state.preemptions) == ([], 0)


def test_a_drained_machine_that_does_not_answer_is_released_at_its_deadline(wanted: Wanted) -> None:
    """The deadline of a retired slot's machine is the time of a last save."""
    wanted.target = FleetTarget((W0, W1))
    job = Fleet(checkpointing=Checkpointing(save_timeout_s=Seconds(50.0))).trains()
    wanted.target = FleetTarget((W0,))
    job.happens()
    assert job.passes(49.0).released == []
    assert job.passes(2.0).released == ["m2"]


def test_a_retired_slot_cancels_what_was_ordered_for_it(wanted: Wanted) -> None:
    """A machine that comes all the same is given back; a machine that only boots has nothing to hand over."""
    job = Fleet().trains()
    wanted.target = FleetTarget((W0, W1))
    job.happens()
    (order,) = job.orders
    wanted.target = FleetTarget((W0,))
    job.happens()
    assert [command.token for command in job.of(CancelOrder)] == [order.token]
    assert list(job.state.slots) == ["w-0"]
    assert job.answers(order).released == ["m2"]

    wanted.target = FleetTarget((W0, W1))
    job.happens()
    job.answers(*job.orders).runs("m3", after=5.0)
    wanted.target = FleetTarget((W0,))
    assert job.happens().released == ["m3"]


def test_a_machine_let_go_by_choice_is_replaced_first(wanted: Wanted) -> None:
    """Successor, then drain, then release; it counts as no preemption, and its life as one that was cut short."""
    job = Fleet().trains()
    wanted.target = FleetTarget((W0,), (MachineDrain("m1", Instant(job.now + 5000.0), "it is old"),))
    job.happens()
    assert [order.count_max for order in job.orders] == [1]
    assert desired(job, "m1") is DesiredState.RUN
    before = job.state
    (order,) = job.orders
    job.answers(order).runs("m2", after=20.0)
    assert job.of(DrainMachine) == []
    job.says("m2", MachineStatus.WAITING)
    assert [command.machine_id for command in job.of(DrainMachine)] == ["m1"]
    assert desired(job, "m1") is DesiredState.DRAIN
    job.says("m1", MachineStatus.WAITING)
    assert [(one.machine_id, one.reason) for one in job.of(ReleaseMachine)] == [("m1", "it is old")]
    assert (job.state.slots["w-0"].incumbent, job.state.preemptions) == ("m2", 0)
    job.ends("m1", cause=MachineEndCause.RELEASED, after=1.0)
    life = next(one for one in driver.lifetimes(before, job.state, job.rows[-1].facts) if one.machine_id == "m1")
    assert not life.preempted
    assert job.passes(1000.0).orders == []


def test_without_a_successor_the_last_save_still_gets_its_time(wanted: Wanted) -> None:
    """Nothing can be bought: the machine is drained when only the time of a save is left, and released at the deadline."""
    job = Fleet(checkpointing=Checkpointing(save_timeout_s=Seconds(100.0))).trains()
    wanted.target = FleetTarget((W0,), (MachineDrain("m1", Instant(job.now + 1000.0), "it is old"),))
    job.happens()
    job.refuses(Refusal.INVALID)
    assert desired(job.passes(899.0), "m1") is DesiredState.RUN
    assert desired(job.passes(2.0), "m1") is DesiredState.DRAIN
    assert job.passes(100.0).released == ["m1"]


def test_a_notice_during_a_drain_changes_only_the_end(wanted: Wanted) -> None:
    """The provider takes a machine that is being drained: no second successor, one release."""
    job = Fleet().trains()
    wanted.target = FleetTarget((W0,), (MachineDrain("m1", Instant(job.now + 5000.0), "it is old"),))
    job.happens()
    job.trains()
    assert desired(job, "m1") is DesiredState.DRAIN
    job.says("m1", left=30.0)
    assert (job.orders, job.released) == ([], [])
    job.says("m1", MachineStatus.WAITING, left=29.0)
    assert job.released == ["m1"]
    assert job.passes(500.0).orders == []


def test_a_gang_is_one_order_all_or_nothing(wanted: Wanted) -> None:
    """Two slots of a gang are two machines of one order, or none."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet()
    (order,) = job.orders
    assert (order.count_min, order.count_max, order.gang) == (2, 2, True)
    job.answers(order, 1, Refusal.NO_CAPACITY)
    assert job.released == ["m1"]


def test_a_gang_is_lost_together_and_bought_together(wanted: Wanted) -> None:
    """One machine is preempted: the other goes too, and both are ordered again once both are gone."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet().trains()
    job.ends("m1")
    assert job.released == ["m2"]
    assert job.orders == []
    job.ends("m2", cause=MachineEndCause.RELEASED)
    assert [(order.count_min, order.count_max, order.gang) for order in job.orders] == [(2, 2, True)]


def test_a_notice_to_one_of_a_gang_buys_successors_for_all(wanted: Wanted) -> None:
    """They end together, so they are replaced together, by one order."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet().trains()
    job.says("m2", left=30.0)
    assert [(order.count_min, order.count_max) for order in job.orders] == [(2, 2)]


def leaving_pair(wanted: Wanted) -> Fleet:
    """A gang of two that trains, and has successors that are ready."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet().trains()
    wanted.target = FleetTarget(PAIR, (MachineDrain("m1", Instant(job.now + 5000.0), "it is old"),))
    job.happens()
    assert [(order.count_min, order.count_max, order.gang) for order in job.orders] == [(2, 2, True)]
    (order,) = job.orders
    job.answers(order).runs("m3", "m4", after=20.0)
    return job


def test_a_gang_is_let_go_by_choice_as_one(wanted: Wanted) -> None:
    """The policy names one of two: both get successors, are drained once both are ready, and go when both are idle."""
    job = leaving_pair(wanted)
    job.says("m3", MachineStatus.WAITING)
    assert job.of(DrainMachine) == []
    job.says("m4", MachineStatus.WAITING)
    assert [command.machine_id for command in job.of(DrainMachine)] == ["m1", "m2"]
    assert job.says("m1", MachineStatus.WAITING).released == []
    assert job.says("m2", MachineStatus.WAITING).released == ["m1", "m2"]
    assert [slot.incumbent for slot in job.state.slots.values()] == ["m3", "m4"]
    assert job.passes(100.0).orders == []


def test_a_retired_gang_goes_when_all_of_it_has_handed_over(wanted: Wanted) -> None:
    """The release of one would end the other, which still saves."""
    wanted.target = FleetTarget((W0, *PAIR))
    job = Fleet()
    for order in job.orders:
        job.answers(order)
    job.runs("m1", "m2", "m3", after=20.0)
    job.happens(*(job.report(name) for name in ("m1", "m2", "m3")))
    wanted.target = FleetTarget((W0,))
    job.happens()
    assert [command.machine_id for command in job.of(DrainMachine)] == ["m2", "m3"]
    assert job.says("m3", MachineStatus.WAITING).released == []
    assert sorted(job.says("m2", MachineStatus.WAITING).released) == ["m2", "m3"]


def test_a_stopped_job_keeps_a_gang_whole_while_one_of_its_machines_works(wanted: Wanted) -> None:
    """The other one is idle, as one that only lends its cores to the first: its release would end the first."""
    wanted.target = FleetTarget((W0, *PAIR))
    job = Fleet()
    for order in job.orders:
        job.answers(order)
    job.runs("m1", "m2", "m3", after=20.0)
    job.happens(*(job.report(name) for name in ("m1", "m2")))
    job.says("m1", MachineStatus.WAITING).says("m3", MachineStatus.WAITING)
    assert job.happens(JobStopRequested(False, "ada")).released == ["m1"]
    assert sorted(job.says("m2", MachineStatus.WAITING).released) == ["m2", "m3"]


def test_a_retired_gang_waits_for_its_work_though_one_machine_has_not_reported(wanted: Wanted) -> None:
    """A machine that only boots has nothing to hand over, but the other one of its gang has."""
    wanted.target = FleetTarget((W0, *PAIR))
    job = Fleet()
    for order in job.orders:
        job.answers(order)
    job.runs("m1", "m2", "m3", after=20.0)
    job.says("m2")
    wanted.target = FleetTarget((W0,))
    assert job.happens().released == []
    assert sorted(job.says("m2", MachineStatus.WAITING).released) == ["m2", "m3"]


def test_a_gang_with_a_notice_hands_over_as_one(wanted: Wanted) -> None:
    """One of two says that it ends: once both successors are ready, the other is drained, and both go when they are idle."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet().trains()
    job.says("m1", left=200.0)
    (order,) = job.orders
    job.answers(order).runs("m3", "m4", after=20.0)
    job.says("m1", MachineStatus.WAITING, left=180.0)
    assert job.says("m3", MachineStatus.WAITING).released == []
    job.says("m4", MachineStatus.WAITING)
    assert ([command.machine_id for command in job.of(DrainMachine)], job.released) == (["m2"], [])
    assert job.says("m2", MachineStatus.WAITING).released == ["m1", "m2"]
    assert job.state.preemptions == 2


def test_a_notice_withdrawn_from_a_gang_withdraws_the_successors_of_all(wanted: Wanted) -> None:
    """The order for two is cancelled whole, or both of its machines are given back."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet().trains()
    job.says("m1", left=300.0)
    (order,) = job.orders
    job.says("m1", level=NoticeLevel.WITHDRAWN)
    assert [command.token for command in job.of(CancelOrder)] == [order.token]
    job.says("m1", left=300.0)
    (order,) = job.orders
    job.answers(order)
    assert job.says("m1", level=NoticeLevel.WITHDRAWN).released == ["m3", "m4"]


def test_a_notice_withdrawn_from_a_machine_that_goes_by_choice_keeps_its_successor(wanted: Wanted) -> None:
    """It leaves all the same."""
    job = Fleet().trains()
    wanted.target = FleetTarget((W0,), (MachineDrain("m1", Instant(job.now + 5000.0), "it is old"),))
    (order,) = job.happens().orders
    job.answers(order).runs("m2", after=20.0)
    job.says("m1", left=300.0)
    assert job.says("m1", level=NoticeLevel.WITHDRAWN).released == []
    job.says("m2", MachineStatus.WAITING)
    assert desired(job, "m1") is DesiredState.DRAIN


def test_a_gang_of_which_a_machine_was_gone_before_it_was_listed_is_given_back(wanted: Wanted) -> None:
    """The first listing shows one of two, already gone: the other is of no use."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet()
    (order,) = job.orders
    job.happens(OrderUnanswered(order.token, "no answer"))
    first, second = job.machine(order), job.machine(order)
    job.happens(MachinesObserved((second,)))
    job.machines[first.machine_id] = first
    job.ends(first.machine_id, cause=MachineEndCause.FAILED)
    assert job.released == [second.machine_id]


def test_a_gang_that_no_offer_can_hold_is_named(wanted: Wanted) -> None:
    """The reason is a number against a number."""
    wanted.target = FleetTarget(PAIR)
    job = Fleet(known=False)
    job.happens(OffersObserved((LARGE,), (Quota("large", None, 1, 0),)), *job.listings())
    assert job.orders == []
    assert "too small for 2 machines at once" in job.message


def test_a_slot_gets_the_reliability_and_the_offers_it_wants(wanted: Wanted) -> None:
    """A reliable server beside spot workers, and a worker from the dearer zone."""
    wanted.target = FleetTarget(
        (W0, Slot("s-0", "server", Reliability.RELIABLE), Slot("w-1", "worker", wants=(LARGE_B.key,)))
    )
    job = Fleet(LARGE, LARGE_B, FIRM)
    assert [order.offer for order in job.orders] == [LARGE, FIRM, LARGE_B]


def test_all_kinds_of_a_turn_fall_under_one_budget(wanted: Wanted) -> None:
    """A worker alone and a server alone would fit, with the reserve for the end of each; both together do not."""
    needs = (W0, Slot("s-0", "server", Reliability.RELIABLE))
    reserve_h = (60.0 + 600.0) / 3600.0
    both = (LARGE.price_usd_per_hour + FIRM.price_usd_per_hour) * reserve_h
    wanted.target = FleetTarget(needs)
    assert len(Fleet(LARGE, FIRM, objective=Objective(budget_usd=Usd(1.01 * both))).orders) == 2
    assert Fleet(LARGE, FIRM, objective=Objective(budget_usd=Usd(0.99 * both))).phase is JobPhase.STOPPED


def test_a_bid_limits_the_price_of_new_orders(wanted: Wanted) -> None:
    """It is written on the slot, and on its order where the offer takes bids; the job's own limit holds too."""
    bids = LARGE.__class__(**{name: getattr(LARGE, name) for name in LARGE.__struct_fields__} | {"bid": True})
    wanted.target = FleetTarget((replace(W0, id="w-bid", bid_usd_per_hour=0.5),))
    assert [order.bid_usd_per_hour for order in Fleet(bids).orders] == [0.5]
    assert [order.bid_usd_per_hour for order in Fleet(bids, max_price_usd_per_hour=0.4).orders] == [0.4]


def test_a_policy_is_asked_again_when_it_wants(wanted: Wanted) -> None:
    """At its instant, though nothing happens."""
    wanted.target = FleetTarget((W0,), wake_at=Instant(START + 120.0))
    job = Fleet()
    assert [command.at for command in job.of(SetTimer)] == [START + 120.0]


def test_a_fleet_of_many_slots_bears_as_many_more_machines_that_do_not_start(wanted: Wanted) -> None:
    """Thirty slots whose machines all break before they report are one bad moment; twenty times that is a broken job."""
    wanted.target = FleetTarget(tuple(Slot(f"w-{number}", "worker") for number in range(30)))
    job = Fleet()
    (order,) = job.orders
    job.answers(order).runs(*(f"m{number}" for number in range(1, 31)), after=5.0)
    job.ends(*(f"m{number}" for number in range(1, 31)), cause=MachineEndCause.FAILED)
    assert (job.state.failed_to_start, job.phase) == (30, JobPhase.WAITING)


def test_without_any_slot_a_machine_that_does_not_start_stops_nothing(wanted: Wanted) -> None:
    """The policy wants nothing any more, and what was ordered breaks."""
    job = Fleet()
    (order,) = job.orders
    job.answers(order).runs("m1", after=5.0)
    wanted.target = FleetTarget(())
    assert job.happens().released == ["m1"]
    assert job.ends("m1", cause=MachineEndCause.FAILED).orders == []
    assert job.state.slots == {}


NONSENSE: dict[str, tuple[Callable[[], object], str]] = {
    "an exception": (lambda: ZeroDivisionError("division by zero"), "raised ZeroDivisionError: division by zero"),
    "another type": (lambda: 7, "returned int instead of a FleetTarget"),
    "no slots": (lambda: FleetTarget(("w-0",)), "returned needs that are no slots"),  # type: ignore[arg-type]
    "one slot twice": (lambda: FleetTarget((W0, W0)), "named the slot w-0 twice"),
    "a role that is none": (lambda: FleetTarget((Slot("x", "boss"),)), "the runtime has worker, server"),
    "another role": (lambda: FleetTarget((Slot("w-0", "server"),)), "changed the role or gang of slot w-0"),
    "no id": (lambda: FleetTarget((Slot("", "worker"),)), "a slot without an id"),
    "a bid of nothing": (lambda: FleetTarget((replace(W0, bid_usd_per_hour=0.0),)), "a bid is above zero"),
    "another bid": (lambda: FleetTarget((replace(W0, bid_usd_per_hour=0.3),)), "changed the bid of slot w-0"),
}


def test_a_retired_slot_is_not_named_again_while_its_machine_leaves(wanted: Wanted) -> None:
    """It would be neither bought for nor forgotten; once it is forgotten, its id is free."""
    wanted.target = FleetTarget((W0, W1))
    job = Fleet().trains()
    wanted.target = FleetTarget((W0,))
    job.happens()
    wanted.target = FleetTarget((W0, W1))
    assert "named the slot w-1 again, which it has retired" in job.happens().message


def test_a_gang_keeps_its_size(wanted: Wanted) -> None:
    """It is one allocation: a policy retires all of it or nothing."""
    wanted.target = FleetTarget((W0, *PAIR))
    job = Fleet()
    wanted.target = FleetTarget((W0, PAIR[0]))
    assert "changed gang g from 2 slots to 1" in job.happens().message


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_of_a_policy_ends_its_job_and_buys_nothing(wanted: Wanted, what: str) -> None:
    """The job fails with the policy's name and what was wrong."""
    make, words = NONSENSE[what]
    wanted.target = make()
    job = Fleet()
    assert job.orders == []
    assert job.phase is JobPhase.FAILED
    assert words in job.message
    assert "fixed" in job.message
    assert "nothing was bought" in job.message


def test_nonsense_in_the_middle_saves_the_run_first(wanted: Wanted) -> None:
    """Machines that train are stopped as at any failure; nothing more is bought."""
    job = Fleet().trains()
    wanted.target = 7
    job.happens()
    assert (job.phase, job.orders) == (JobPhase.STOPPING, [])
    job.ends("m1", cause=MachineEndCause.RELEASED)
    assert job.phase is JobPhase.FAILED
