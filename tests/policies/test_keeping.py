"""Which offer is asked next, how long a refused one is left alone, and what is said meanwhile."""

from __future__ import annotations

import math

import pytest

from tests.policies.offers import JOB, SPOT
from windfall.market import Offer, Quota, Refusal
from windfall.policies.acquisition.ranking import OfferBlock, OfferMarket, Ranking, block_after, choose, pause_s, rank
from windfall.structs import replace

NEAR, FAR = SPOT, replace(SPOT, zone="b", price_usd_per_hour=1.1)


def market(*offers: Offer, blocks: dict[Offer, OfferBlock] | None = None, **more: object) -> OfferMarket:
    ranking: Ranking = rank(JOB, offers, ())
    keyed = {offer.key: block for offer, block in (blocks or {}).items()}
    defaults: dict[str, object] = {"quotas": (), "provider_errors": (), "usable": lambda provider: True}
    return OfferMarket(ranking, keyed, **{**defaults, **more})  # type: ignore[arg-type]


def asked(market: OfferMarket, needed: int = 1, now: float = 0.0) -> list[tuple[str, int]]:
    return [(ranked.offer.zone, count) for ranked, count in choose(market, needed, now).orders]


def test_the_pause_doubles_up_to_its_cap() -> None:
    """1 s, 2 s, 4 s ... 300 s."""
    assert [pause_s(tries) for tries in (1, 2, 3, 9, 10, 1000)] == [1.0, 2.0, 4.0, 256.0, 300.0, 300.0]


def test_another_kind_of_refusal_begins_anew() -> None:
    """Back-off is about one reason."""
    first = block_after(None, Refusal.NO_CAPACITY, "", 0.0)
    second = block_after(first, Refusal.NO_CAPACITY, "", 1.0)
    assert (second.refusals, second.until) == (2, 3.0)
    assert block_after(second, Refusal.PRICE, "", 3.0).refusals == 1


@pytest.mark.parametrize(
    ("refusal", "until"),
    [(Refusal.QUOTA, 300.0), (Refusal.CREDENTIALS, 300.0), (Refusal.INVALID, math.inf), (Refusal.PRICE, 1.0)],
)
def test_only_what_waiting_mends_is_tried_soon(refusal: Refusal, until: float) -> None:
    """People mend quotas and credentials; nobody mends an invalid order."""
    assert block_after(None, refusal, "", 0.0).until == until


def test_the_best_offer_is_asked_for_everything() -> None:
    """One offer, one order."""
    assert asked(market(NEAR, FAR), 60) == [("a", 60)]


def test_a_blocked_offer_is_passed_over_until_its_time() -> None:
    """Meanwhile the next one is asked."""
    blocks = {NEAR: OfferBlock(Refusal.NO_CAPACITY, "", 1, 5.0)}
    assert asked(market(NEAR, FAR, blocks=blocks)) == [("b", 1)]
    assert asked(market(NEAR, FAR, blocks=blocks), now=5.0) == [("a", 1)]


def test_a_known_quota_bounds_an_order_and_the_rest_goes_elsewhere() -> None:
    """Three here, the other seven there."""
    quotas = (Quota("small", "a", 3, 0),)
    assert asked(market(NEAR, FAR, quotas=quotas), 10) == [("a", 3), ("b", 7)]


def test_nothing_left_says_why_and_when() -> None:
    """The reasons in the order of preference, and the earliest next try."""
    blocks = {NEAR: OfferBlock(Refusal.NO_CAPACITY, "sold out", 3, 9.0), FAR: OfferBlock(Refusal.PRICE, "", 1, 4.0)}
    choice = choose(market(NEAR, FAR, blocks=blocks), 2, 0.0)
    assert (choice.orders, choice.unmet, choice.retry_at) == ((), 2, 4.0)
    assert choice.reasons == ("no capacity for small in a (sold out)", "the price of small in b is above the limit")


def test_wrong_credentials_spoil_a_provider_not_an_offer() -> None:
    """Refused once, all its offers are left alone."""
    blocks = {NEAR: OfferBlock(Refusal.CREDENTIALS, "bad key", 1, 300.0)}
    choice = choose(market(NEAR, FAR, blocks=blocks), 1, 0.0)
    assert choice.orders == ()
    assert choice.reasons == ("aws does not accept the credentials: bad key",)


def test_nothing_is_asked_of_a_provider_whose_machines_are_not_known() -> None:
    """It is no reason to tell the user that nothing can be had."""
    choice = choose(market(NEAR, usable=lambda provider: False), 1, 0.0)
    assert (choice.orders, choice.reasons) == ((), ())


def test_an_offer_that_does_not_fit_is_named() -> None:
    """Nothing for sale fits: each offer says why."""
    dear = replace(JOB, max_price_usd_per_hour=0.5)
    ranking = rank(dear, (NEAR,), ())
    choice = choose(OfferMarket(ranking, {}, (), (), lambda provider: True), 1, 0.0)
    assert choice.reasons == ("small in a: it costs 1 USD/h, and max_price is 0.5 USD/h",)
