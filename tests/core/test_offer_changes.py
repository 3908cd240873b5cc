"""Offers as differences: what is journaled is small, and the driver ends with the offers that are for sale."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.policies.offers import SPOT
from windfall import codec, events, fleet
from windfall.core import driver, offer_changes
from windfall.core.fleet_state import FleetState
from windfall.fleet import OffersChanged, OffersObserved
from windfall.jobs import Job, Resources
from windfall.market import Offer, Quota, Refusal
from windfall.structs import replace
from windfall.terms import Reliability

JOB = Job("j", "job", "ada", "file:///r", ("train",), (Resources(),))


def offer(
    machine_type: str, zone: str, usd: float, reliability: Reliability = Reliability.TRANSIENT, **more: Any
) -> Offer:
    """An offer of the provider `p`."""
    place = {"provider": "p", "machine_type": machine_type, "zone": zone, "reliability": reliability}
    return replace(SPOT, **place, price_usd_per_hour=usd, **more)


SMALL, LARGE = offer("small", "a", 1.0), offer("large", "a", 4.0)
ERROR = ("far", Refusal.NO_CAPACITY, "does not answer")
OFFERS = st.lists(
    st.builds(
        offer,
        st.sampled_from(("small", "large")),
        st.sampled_from("abc"),
        st.sampled_from((1.0, 2.0, 3.5)),
        st.sampled_from(Reliability),
        cpus=st.sampled_from((1.0, 8.0)),
        quoted_at=st.floats(0.0, 9.0),
    ),
    max_size=8,
    unique_by=lambda one: one.key,
)
SEEN = st.builds(
    OffersObserved,
    OFFERS.map(tuple),
    st.sampled_from(((), (Quota("small", None, 8, 0),), (Quota("small", "a", 8, 3),))),
    st.sampled_from(((), (ERROR,))),
)


def react(state: FleetState, now: float, *facts: events.Fact) -> FleetState:
    return driver.react(state, now, facts)[0]


def began(*seen: OffersObserved) -> FleetState:
    """A driver that has seen these, whole, one after the other."""
    state = react(driver.initial_state(), 1.0, fleet.JobSubmitted(JOB, "o"))
    for number, one in enumerate(seen):
        state = react(state, 2.0 + number, one)
    return state


def known(state: FleetState) -> tuple[object, ...]:
    """What a driver knows of the market, in no order and whenever it was queried."""
    offers = {one.key: replace(one, quoted_at=0.0) for one in state.offers}
    assert len(offers) == len(state.offers)
    return offers, state.quotas, state.provider_errors


@given(st.lists(SEEN, min_size=2, max_size=6))
def test_differences_lead_to_the_offers_that_are_for_sale(seen: list[OffersObserved]) -> None:
    """After every observation the driver knows what it would know from all of it, and a second look shows no difference."""
    state = began(seen[0])
    for number, now in enumerate(seen[1:]):
        fact = offer_changes.difference(state, now)
        if fact is not None:
            assert isinstance(fact, OffersChanged)
            state = react(state, 10.0 + number, fact)
        assert known(state) == known(began(now))
        assert offer_changes.difference(state, now) is None


def test_only_what_differs_is_in_the_fact() -> None:
    """A price is a row of its own; a new or changed offer is whole; nothing else is repeated."""
    state = began(OffersObserved((SMALL, LARGE, offer("old", "a", 9.0)), (), (ERROR,)))
    bigger = replace(LARGE, memory_gib=64.0)
    seen = OffersObserved((replace(SMALL, price_usd_per_hour=1.5, quoted_at=7.0), bigger), (), (ERROR,))

    assert offer_changes.difference(state, seen) == OffersChanged(
        offers=(bigger,), prices=((*SMALL.key, 1.5),), removed=(("p", "old", "a", Reliability.TRANSIENT),)
    )


def test_another_time_of_the_query_is_no_difference() -> None:
    """A market that does not move leaves nothing in the journal, also in another order."""
    state = began(OffersObserved((SMALL, LARGE)))

    assert offer_changes.difference(state, OffersObserved((replace(LARGE, quoted_at=99.0), SMALL))) is None


def test_offers_that_cannot_be_told_apart_are_observed_whole() -> None:
    """Two offers with one identity: a difference could not say which of them changed."""
    state = began(OffersObserved((SMALL, LARGE)))
    seen = OffersObserved((SMALL, replace(SMALL, cpus=4.0)))

    assert offer_changes.difference(state, seen) == seen
    assert offer_changes.difference(react(state, 5.0, seen), seen) is None


def test_the_fact_survives_the_journal() -> None:
    """Each of its fields, and its default values, come back from a row."""
    for fact in (OffersChanged(), OffersChanged((LARGE,), ((*SMALL.key, 2.0),), (LARGE.key,), (), (ERROR,))):
        assert codec.decode(codec.encode(fact), events.Fact) == fact


def test_a_change_unblocks_what_all_offers_would() -> None:
    """A raised quota in a difference makes the driver buy again, as in a whole observation."""
    full, raised = (Quota("small", "a", 1, 1),), (Quota("small", "a", 2, 1),)
    state = began(OffersObserved((SMALL,), full))
    block = driver.react(state, 3.0, (fleet.ListingCompleted("p"),))
    token = next(command.order.token for command in block[2] if isinstance(command, fleet.PlaceOrder))
    refused = react(block[0], 4.0, fleet.OrderAnswered(token, (), Refusal.QUOTA, "full"))
    assert refused.blocks

    fact = offer_changes.difference(refused, OffersObserved((SMALL,), raised))
    assert fact == OffersChanged(quotas=raised)
    assert not react(refused, 5.0, fact).blocks


def test_an_offer_keeps_its_place() -> None:
    """What is new comes last, what is gone leaves no hole, and a changed price takes the time of its row."""
    state = began(OffersObserved((SMALL, LARGE)))
    more: tuple[Offer, ...] = (offer("new", "b", 2.0),)
    after = react(state, 50.0, OffersChanged(more, ((*LARGE.key, 5.0),), (SMALL.key,)))

    assert after.offers == (replace(LARGE, price_usd_per_hour=5.0, quoted_at=50.0), *more)
