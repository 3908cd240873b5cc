"""What every provider promises of a machine's end and of its bill, tried on each implementation."""

from __future__ import annotations

import pytest

from tests.contracts.providers import OTHER_ZONE, World
from tests.contracts.trading import (
    Markets,
    an_order,
    assert_billed_to_the_cent,
    await_end,
    billed_usd,
    buy,
    listed,
    lived,
    offer_of,
    settled_lines,
)
from tests.support.world import LATE_S
from windfall.market import Answer, Charge, MachineEndCause, MachineLifecycle, Refusal
from windfall.structs import replace
from windfall.terms import Seconds

CENT = 0.01
JOB = "job-1"


# --------------------------------------------------------------------------------------------------------------- the end


def test_a_released_machine_is_really_gone(world: World, owner: str) -> None:
    """Released twice, it ends once; the listing says so for a while, and nothing of it runs."""
    first, second = buy(world, owner, 2)

    world.provider.release(first)
    world.provider.release(first)
    world.wait_until(lambda: listed(world, owner)[first].lifecycle is MachineLifecycle.GONE, "it is gone")
    gone = listed(world, owner)[first]
    world.provider.release(first)

    assert gone.cause is MachineEndCause.RELEASED
    assert gone.started is not None
    assert gone.ended is not None
    assert gone.ended > gone.started
    assert listed(world, owner)[first] == gone
    assert (world.lives(first), world.lives(second)) == (False, True)


def test_a_machine_that_was_promised_can_be_released(opened: Markets, owner: str) -> None:
    """Released before it starts, it never runs and costs nothing."""
    world = opened(delay_s=1.0)
    (machine_id,) = world.provider.order(an_order(world, owner), world.boot()).machine_ids

    world.provider.release(machine_id)
    (gone,) = await_end(world, owner).values()

    assert gone.started is None
    assert world.provider.charges(owner, "").charges == ()


def test_a_machine_that_breaks_is_listed_as_gone(world: World, owner: str) -> None:
    """A machine that dies without notice is gone in the listing, failed, with nothing of it left, and no longer billed."""
    (machine_id,) = buy(world, owner)

    world.breaks(machine_id)
    (gone,) = await_end(world, owner).values()
    world.wait_until(lambda: not world.lives(machine_id), "nothing of it runs")

    assert gone.cause is MachineEndCause.FAILED
    settled_lines(world, owner, 1)
    assert_billed_to_the_cent(world, owner)


def test_a_machine_whose_process_ends_stops_itself(world: World, owner: str) -> None:
    """When its process has ended, the machine is gone, and billed until then."""
    world.provider.order(an_order(world, owner), world.boot(lasts_s=0.5))
    (gone,) = await_end(world, owner).values()

    assert gone.cause is MachineEndCause.STOPPED
    assert gone.started is not None
    assert gone.ended is not None
    assert 0.4 < gone.ended - gone.started < 3.0
    settled_lines(world, owner, 1)
    assert_billed_to_the_cent(world, owner)


def test_unknown_names_are_no_errors(world: World) -> None:
    """Releasing, preempting or cancelling an unknown name does nothing."""
    world.provider.release("m-nobody")
    world.provider.preempt("m-nobody", None)
    world.provider.preempt("m-nobody", Seconds(3.0))
    world.provider.cancel("token-of-nobody")


def test_a_preemption_with_notice_is_announced_to_the_machine(world: World, owner: str) -> None:
    """The machine reads its deadline, the listing says when, it lives until then and is gone after it."""
    (machine_id,) = buy(world, owner)
    assert world.notice_left_s(machine_id) is None

    world.provider.preempt(machine_id, Seconds(3.0))
    world.wait_until(lambda: world.notice_left_s(machine_id) is not None, "the machine is told")
    left_s, announced = world.notice_left_s(machine_id), listed(world, owner)[machine_id]
    (gone,) = await_end(world, owner).values()

    assert left_s is not None
    assert 0.5 < left_s <= 3.0
    assert announced.lifecycle is MachineLifecycle.RUNNING
    assert announced.preemption_at is not None
    assert gone.cause is MachineEndCause.PREEMPTED
    assert gone.ended is not None
    assert announced.preemption_at - 0.05 <= gone.ended <= announced.preemption_at + LATE_S
    assert not world.lives(machine_id)


def test_a_preemption_without_notice_is_at_once(world: World, owner: str) -> None:
    """Without notice the machine is gone, with everything that ran on it."""
    (machine_id,) = buy(world, owner)

    world.provider.preempt(machine_id, None)
    (gone,) = await_end(world, owner).values()

    assert gone.cause is MachineEndCause.PREEMPTED
    assert not world.lives(machine_id)


def test_a_price_above_the_bid_evicts_with_notice(opened: Markets, owner: str) -> None:
    """When the price passes a bid the machine is warned, then preempted; one with a higher bid keeps running."""
    world = opened(prices=((0.0, 3600.0), (3.0, 7200.0)), notice_s=0.5)
    modest = world.provider.order(an_order(world, owner, 1, bid=5000.0), world.boot()).machine_ids[0]
    generous = world.provider.order(an_order(world, owner, 2, bid=8000.0), world.boot()).machine_ids[0]
    world.wait_until(lambda: listed(world, owner)[modest].preemption_at is not None, "the eviction is announced")
    world.wait_until(lambda: listed(world, owner)[modest].lifecycle is MachineLifecycle.GONE, "it is evicted")

    machines = listed(world, owner)
    assert machines[modest].cause is MachineEndCause.PREEMPTED
    assert (machines[generous].lifecycle, machines[generous].preemption_at) == (MachineLifecycle.RUNNING, None)
    assert machines[generous].price_usd_per_hour == 3600.0
    assert offer_of(world).price_usd_per_hour == 7200.0


def test_zones_are_markets_of_their_own(opened: Markets, owner: str) -> None:
    """What is sold out in one zone is available in the other."""
    world = opened(capacity=2)
    full = world.provider.order(an_order(world, owner, 1, most=3), world.boot())
    elsewhere = replace(an_order(world, owner, 2), offer=offer_of(world, OTHER_ZONE))

    answer = world.provider.order(elsewhere, world.boot())

    assert full.refusal is Refusal.NO_CAPACITY
    assert (len(answer.machine_ids), answer.refusal) == (1, None)


# -------------------------------------------------------------------------------------------------------------- the bill


def test_the_bill_is_the_truth_to_the_cent(world: World, owner: str) -> None:
    """Three machines with three ends cost what the meter says: each line tagged, settled, and of that machine's time."""
    released, taken, broken = buy(world, owner, 3)
    world.pass_time(0.5)
    world.provider.release(released)
    world.provider.preempt(taken, None)
    world.breaks(broken)
    machines = await_end(world, owner)

    lines = settled_lines(world, owner, 3)

    assert {charge.machine_id for charge in lines.values()} == {released, taken, broken}
    assert all((line.started, line.ended) == lived(machines[line.machine_id]) for line in lines.values())
    assert billed_usd(world, owner) > 3 * 0.2
    assert_billed_to_the_cent(world, owner)


def test_the_bill_can_be_read_piece_by_piece(world: World, owner: str) -> None:
    """From its own cursor a reader gets each change once, an old cursor gives the same again, and the sums agree."""
    first, second = buy(world, owner, 2)
    seen: dict[str, Charge] = {}
    cursors = [""]

    def read() -> bool:
        bill = world.provider.charges(owner, cursors[-1])
        seen.update({charge.charge_id: charge for charge in bill.charges})
        cursors.append(bill.cursor)
        return len(seen) == 2 and all(charge.settled for charge in seen.values())

    read()
    world.provider.release(first)
    world.wait_until(lambda: listed(world, owner)[first].lifecycle is MachineLifecycle.GONE, "the first is gone")
    read()
    world.provider.release(second)
    world.wait_until(read, "both lines are settled")

    assert world.provider.charges(owner, cursors[-1]).charges == ()
    whole = {charge.charge_id: charge for charge in world.provider.charges(owner, "").charges}
    assert whole == seen
    assert world.provider.charges(owner, cursors[0]) == world.provider.charges(owner, cursors[0])


def test_an_open_line_becomes_a_settled_one(opened: Markets, owner: str) -> None:
    """Charges are settled no sooner than the bill's lag after the machine's end, under the same id."""
    world = opened(lag_s=1.0)
    (machine_id,) = buy(world, owner)
    world.provider.release(machine_id)
    await_end(world, owner)

    early = {charge.charge_id: charge.settled for charge in world.provider.charges(owner, "").charges}
    late = settled_lines(world, owner, 1)

    assert world.provider.capabilities().bill_lag_s == 1.0
    assert set(early.values()) <= {False}
    assert set(early) <= set(late)


def test_the_hour_of_an_eviction_is_free_where_it_is_promised(opened: Markets, owner: str) -> None:
    """With refunds, a machine preempted in its first hour costs nothing in sum; a released one is paid."""
    world = opened(refund=True)
    taken, returned = buy(world, owner, 2)
    world.provider.preempt(taken, None)
    world.provider.release(returned)
    await_end(world, owner)

    lines = settled_lines(world, owner, 3).values()

    def cost(machine_id: str) -> float:
        return sum(line.amount_usd for line in lines if line.machine_id == machine_id)

    assert offer_of(world).refund is world.provider.capabilities().refunds is True
    assert cost(taken) == pytest.approx(0.0, abs=1e-6)
    assert min(line.amount_usd for line in lines) < 0.0 < cost(returned)
    assert billed_usd(world, owner) == pytest.approx(world.metered_usd(owner), abs=CENT)


def test_answers_name_their_order(world: World, owner: str) -> None:
    """Every answer carries the token it is for."""
    answers: list[Answer] = [world.provider.order(an_order(world, owner, number), world.boot()) for number in (1, 2)]

    assert [answer.token for answer in answers] == [f"{owner}-1", f"{owner}-2"]
    assert len({machine_id for answer in answers for machine_id in answer.machine_ids}) == 2
