"""The fifteen promises of a provider.

Each implementation keeps them in the way that its `Capabilities` state: what it never does, it does not have to show, and
the test skips with that word.
"""

from __future__ import annotations

import pytest

from tests.contracts.providers import DOUBLED, LOST, REAL_TIME, ZONE, World
from tests.contracts.trading import Markets, an_order, billed_usd, buy, listed, offer_of, settled_lines
from windfall.core import ledger
from windfall.core.ledger import Ledger
from windfall.errors import ProviderDenied, ProviderUnreachable
from windfall.market import (
    BillingBasis,
    BillingRule,
    BootSecret,
    BootSpec,
    Machine,
    MachineEndCause,
    MachineLifecycle,
    Refusal,
)
from windfall.structs import replace
from windfall.terms import Seconds, WallTime

CENT = 0.01
PENDING, RUNNING, GONE = MachineLifecycle.PENDING, MachineLifecycle.RUNNING, MachineLifecycle.GONE


def needs(world: World, word: str) -> None:
    """Skip if this provider never does such a thing."""
    if not getattr(world.provider.capabilities(), word):
        pytest.skip(f"{world.provider.name} declares: not {word}")


def looked(world: World, owner: str) -> dict[str, Machine]:
    """An owner's machines, once a listing must know what has happened until now."""
    lag_s = world.provider.capabilities().listing_lag_s
    if lag_s:
        world.pass_time(lag_s)
    return listed(world, owner)


def ended(world: World, owner: str, *names: str) -> dict[str, Machine]:
    """Wait until these machines are listed as gone; return the listing of that moment."""
    found: dict[str, Machine] = {}

    def gone() -> bool:
        found.clear()
        found.update(listed(world, owner))
        return all(name in found and found[name].lifecycle is GONE for name in names)

    world.wait_until(gone, f"{names} are listed as gone")
    return found


def test_1_an_answer_that_was_lost_is_found_by_listing_and_by_token(contracted: Markets, buyer: str) -> None:
    """The order was carried out, its answer was not received: a listing has the machine, the same token finds it."""
    world = contracted()
    with world.meeting(LOST) as line, pytest.raises(ProviderUnreachable):
        line.order(an_order(world, buyer), world.boot())

    (machine,) = looked(world, buyer).values()

    assert machine.token == f"{buyer}-1"
    assert world.provider.order(an_order(world, buyer), world.boot()).machine_ids == (machine.machine_id,)
    assert set(looked(world, buyer)) == {machine.machine_id}


def test_2_a_token_buys_once_however_it_arrives(contracted: Markets, buyer: str) -> None:
    """Twice, doubled by the line, and eight times at once: one machine, one answer."""
    world = contracted()
    order = an_order(world, buyer)
    with world.meeting(DOUBLED) as line:
        first = line.order(order, world.boot())

    answers = {first, *world.together([lambda: world.provider.order(order, world.boot())] * 8)}

    assert answers == {first}
    assert set(looked(world, buyer)) == set(first.machine_ids)
    assert len(first.machine_ids) == 1


def test_3_a_token_finds_its_machines_whatever_else_the_order_says(contracted: Markets, buyer: str) -> None:
    """After a restart the controller asks with another credential and another count: the same machines, no error."""
    world = contracted()
    first = world.provider.order(an_order(world, buyer, most=2), world.boot())

    again = world.reopened().order(
        an_order(world, buyer, least=1, most=1), replace(world.boot(), env=(("WINDFALL_CREDENTIAL", "another"),))
    )

    assert again.machine_ids == first.machine_ids
    assert set(looked(world, buyer)) == set(first.machine_ids)


def test_4_a_token_is_remembered_as_long_as_stated(contracted: Markets, buyer: str) -> None:
    """For that long it buys nothing more, although its machine is gone and no longer listed."""
    world = contracted(keeps_s=0.5)
    declared = world.provider.capabilities()
    (machine_id,) = buy(world, buyer)
    bought_at = looked(world, buyer)[machine_id].started
    assert bought_at is not None
    world.provider.release(machine_id)
    ended(world, buyer, machine_id)
    if declared.token_memory_s is None:
        # Only where time costs nothing can a test wait for longer than the listing keeps what ended.
        world.pass_time(min(declared.keeps_ended_s * 1.5, 1.0 if contracted.kind in REAL_TIME else 1e5))

    answer = world.provider.order(an_order(world, buyer), world.boot())

    assert answer.machine_ids == (machine_id,)
    assert not [machine for machine in looked(world, buyer).values() if machine.lifecycle is not GONE]
    assert not world.remains(buyer)


def test_5_a_listing_lags_no_longer_than_stated(contracted: Markets, buyer: str) -> None:
    """What an answer named is listed after that time, and then never missing until it is gone."""
    world = contracted()
    named = set(world.provider.order(an_order(world, buyer, most=3), world.boot()).machine_ids)

    first = looked(world, buyer)

    assert set(first) == named
    for _ in range(20):
        world.pass_time(0.05)
        assert set(listed(world, buyer)) == named


def test_6_a_listing_is_whole_or_it_is_none(contracted: Markets, buyer: str) -> None:
    """If a part cannot be read, the call raises: a short listing would be taken for the truth."""
    world = contracted()
    names = buy(world, buyer, 5)

    with world.half_listing() as line, pytest.raises(ProviderUnreachable):
        line.list(buyer)

    assert set(listed(world, buyer)) == set(names)


def test_7_what_ended_is_listed_with_its_cause(contracted: Markets, buyer: str) -> None:
    """Released, preempted or broken: gone, with the cause and the times, for as long as stated."""
    world = contracted()
    released, taken, broken = buy(world, buyer, 3)
    world.pass_time(0.5)
    world.provider.release(released)
    world.provider.preempt(taken, None)
    world.breaks(broken)

    gone = ended(world, buyer, released, taken, broken)

    causes = {name: gone[name].cause for name in (released, taken, broken)}
    assert causes == {
        released: MachineEndCause.RELEASED, taken: MachineEndCause.PREEMPTED, broken: MachineEndCause.FAILED
    }  # fmt: skip
    assert all(one.started is not None and one.ended is not None and one.started < one.ended for one in gone.values())
    world.pass_time(min(world.provider.capabilities().keeps_ended_s * 0.5, 0.5))
    assert {name: listed(world, buyer)[name].cause for name in causes} == causes


@pytest.mark.parametrize("refusal", list(Refusal))
def test_8_refusals_are_told_apart(contracted: Markets, buyer: str, refusal: Refusal) -> None:
    """Waiting helps against one of them only: quota, capacity, price, nonsense, credentials and cancellation differ."""
    world = contracted(
        quota=1 if refusal is Refusal.QUOTA else 100, capacity=1 if refusal is Refusal.NO_CAPACITY else 100
    )
    order = an_order(world, buyer, least=2, most=2)
    if refusal is Refusal.CREDENTIALS:
        with world.denied(), pytest.raises(ProviderDenied):
            world.provider.order(order, world.boot())
        assert looked(world, buyer) == {}
        return
    if refusal in {Refusal.QUOTA, Refusal.NO_CAPACITY} and world.provider.capabilities().queues:
        pytest.skip(f"{world.provider.name} declares: queues")
    if refusal is Refusal.PRICE:
        needs(world, "bids")
        order = replace(order, bid_usd_per_hour=1.0)
    if refusal is Refusal.INVALID:
        order = replace(order, offer=replace(order.offer, machine_type="colossal"))
    if refusal is Refusal.CANCELLED:
        world.provider.cancel(order.token)

    answer = world.provider.order(order, world.boot())

    assert (answer.machine_ids, answer.refusal) == ((), refusal)
    assert answer.message
    assert looked(world, buyer) == {}


def test_9_a_promise_that_fails_costs_nothing_and_leaves_nothing(contracted: Markets, buyer: str) -> None:
    """A confirmed machine that never starts ends as failed, without a charge, and nothing of it is left."""
    world = contracted(delay_s=2.0)
    needs(world, "promises_fail")
    (machine_id,) = world.provider.order(an_order(world, buyer), world.boot()).machine_ids

    world.fails_promise(machine_id)
    (gone,) = ended(world, buyer, machine_id).values()

    assert (gone.started, gone.cause) == (None, MachineEndCause.FAILED)
    assert world.provider.charges(buyer, "").charges == ()
    assert world.remains(buyer) == []


def test_10_what_there_is_comes_with_the_refusal_of_the_rest(contracted: Markets, buyer: str) -> None:
    """Between least and most: two of five, and why not more."""
    world = contracted(capacity=2)
    if world.provider.capabilities().queues:
        pytest.skip(f"{world.provider.name} declares: queues")

    answer = world.provider.order(an_order(world, buyer, least=1, most=5), world.boot())

    assert (len(answer.machine_ids), answer.refusal) == (2, Refusal.NO_CAPACITY)
    assert set(looked(world, buyer)) == set(answer.machine_ids)


@pytest.mark.parametrize("basis", [BillingBasis.IN_EFFECT, BillingBasis.STARTED_HOUR])
def test_11_a_floating_price_is_billed_as_it_was_in_effect(
    contracted: Markets, buyer: str, basis: BillingBasis
) -> None:
    """Each second, or each started hour, at its price; the listings tell the ledger enough to agree to the cent."""
    pace = 0.3 if contracted.kind == "local" else 1.0  # its time is real
    points = ((0.0, 3600.0), (14.0, 7200.0), (19.0, 1800.0), (23.0, 5400.0))
    prices = tuple((pace * at_s, usd) for at_s, usd in points)
    world = contracted(prices=prices, billing=BillingRule(basis, hour_s=pace * 5.0))
    needs(world, "price_floats")
    (machine_id,) = buy(world, buyer)
    account, offer = Ledger(), offer_of(world)
    if offer.billing.basis is not basis:
        pytest.skip(f"{world.provider.name} sells by another rule: {offer.billing.basis}")
    for _ in range(10):
        world.pass_time(pace * 2.3)
        account = ledger.observe(account, [(one, offer) for one in listed(world, buyer).values()])
    world.provider.release(machine_id)
    (gone,) = ended(world, buyer, machine_id).values()
    account = ledger.observe(account, [(gone, offer)])
    account = ledger.charge_lines(account, settled_lines(world, buyer, 1).values())

    sums = ledger.totals(account, WallTime(9e9))

    assert sums.settled_usd == pytest.approx(world.metered_usd(buyer), abs=CENT)
    assert sums.estimated_usd == pytest.approx(sums.settled_usd, abs=CENT)
    assert gone.started is not None
    assert gone.ended is not None
    at_purchase = (gone.ended - gone.started) / 3600.0 * gone.price_usd_per_hour
    assert abs(at_purchase - sums.settled_usd) > 1.0, "the price moved"
    assert sums.disputed == 0


def test_12_an_end_is_announced_to_the_machine_and_in_the_listing(contracted: Markets, buyer: str) -> None:
    """The machine reads its deadline, the listing tells it where that is stated, and a withdrawn one disappears."""
    world = contracted()
    needs(world, "announces")
    (machine_id,) = buy(world, buyer)

    world.provider.preempt(machine_id, Seconds(12.0))
    world.wait_until(lambda: world.notice_left_s(machine_id) is not None, "the machine is told")
    left_s, shown = world.notice_left_s(machine_id), looked(world, buyer)[machine_id]

    assert left_s is not None
    assert 8.0 < left_s <= 12.0
    assert (shown.lifecycle, shown.preemption_at is not None) == (RUNNING, True)
    if world.withdraws(machine_id):
        assert looked(world, buyer)[machine_id].preemption_at is None
        assert world.notice_left_s(machine_id) is None


def test_13_a_machine_that_is_called_gone_and_lives_ends_when_released(contracted: Markets, buyer: str) -> None:
    """It is billed until it was called gone, and releasing what is not listed any more still ends it."""
    world = contracted()
    needs(world, "false_deaths")
    (machine_id,) = buy(world, buyer)

    world.loses(machine_id)
    (gone,) = ended(world, buyer, machine_id).values()
    assert world.lives(machine_id)
    lines = settled_lines(world, buyer, 1)
    world.provider.release(machine_id)

    assert gone.cause is MachineEndCause.FAILED
    world.wait_until(lambda: not world.lives(machine_id), "it ends")
    assert settled_lines(world, buyer, 1) == lines


def test_14_a_machine_that_rises_again_is_another_machine(contracted: Markets, buyer: str) -> None:
    """Same order, another name, and a line of its own: never two stretches in one."""
    world = contracted()
    needs(world, "rises_again")
    (machine_id,) = buy(world, buyer)
    world.provider.preempt(machine_id, None)
    before = ended(world, buyer, machine_id)[machine_id]

    name = world.rises(machine_id)
    found = looked(world, buyer)

    assert name != machine_id
    assert (found[name].token, found[name].lifecycle) == (before.token, RUNNING)
    assert found[machine_id] == before
    assert found[name].started is not None
    assert before.ended is not None
    assert found[name].started > before.ended
    world.provider.release(name)
    lines = settled_lines(world, buyer, 2)
    assert {line.machine_id for line in lines.values()} == {machine_id, name}
    assert billed_usd(world, buyer) == pytest.approx(world.metered_usd(buyer), abs=CENT)


def test_15_a_machine_whose_process_ends_is_billed_until_then_and_leaves_nothing(
    contracted: Markets, buyer: str
) -> None:
    """Powered off from inside, and released twice after that: one line until its end, no process and no disk left."""
    world = contracted()
    (machine_id,) = world.provider.order(an_order(world, buyer), world.boot(lasts_s=0.5)).machine_ids
    gone = ended(world, buyer, machine_id)[machine_id]
    lines = settled_lines(world, buyer, 1)
    world.provider.release(machine_id)
    world.provider.release(machine_id)

    assert gone.cause is MachineEndCause.STOPPED
    assert gone.started is not None
    assert gone.ended is not None
    assert 0.4 < gone.ended - gone.started < 3.0
    assert [line.ended for line in lines.values()] == [gone.ended]
    assert billed_usd(world, buyer) == pytest.approx(world.metered_usd(buyer), abs=CENT)
    world.wait_until(lambda: world.remains(buyer) == [], "nothing of it is left")


def test_a_gang_is_sold_whole_carries_one_allocation_and_is_lost_together(contracted: Markets, buyer: str) -> None:
    """An order for exactly so many is all or nothing, also in its end."""
    world = contracted(capacity=3)
    needs(world, "gangs")
    refused = world.provider.order(replace(an_order(world, buyer, 1, least=4, most=4), gang=True), world.boot())
    # Where orders queue, more than there will ever be is refused, and for the rest one waits.
    never = Refusal.INVALID if world.provider.capabilities().queues else Refusal.NO_CAPACITY
    assert (refused.machine_ids, refused.refusal) == ((), never)
    gang = world.provider.order(
        replace(an_order(world, buyer, 2, least=3, most=3), gang=True), world.boot()
    ).machine_ids
    world.wait_until(lambda: [one.lifecycle for one in listed(world, buyer).values()] == [RUNNING] * 3, "all run")
    (allocation,) = {one.allocation for one in listed(world, buyer).values()}

    world.provider.preempt(gang[1], None)

    assert allocation
    assert {one.cause for one in ended(world, buyer, *gang).values()} == {MachineEndCause.PREEMPTED}


def test_a_boots_secret_is_in_nothing_that_a_provider_shows(contracted: Markets, buyer: str) -> None:
    """Neither offers, listing, bill nor answer has it."""
    world = contracted()
    secret = "hush-hush-7741"
    shown = BootSpec(world.boot().argv, secrets=(BootSecret("KEY", secret),), credential="KEY")
    answer = world.provider.order(an_order(world, buyer), shown)

    said = (answer, looked(world, buyer), world.provider.offers(), world.provider.charges(buyer, ""), shown)

    assert secret not in repr(said)
    assert offer_of(world, ZONE) is not None
