"""Which offers a job may take, and which it takes first."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.policies.offers import HOUR, JOB, LARGE, MEASURED, ON_DEMAND, SPOT, rate
from windfall.jobs import BuyingLimits, Minimize, Objective, Resources, Use
from windfall.market import Offer, OfferKey, Quota
from windfall.policies.acquisition import ranking
from windfall.policies.acquisition.ranking import OfferChoice, OfferMarket, choose, rank, without_excluded
from windfall.structs import replace
from windfall.terms import Instant, Reliability, RunOptions, Seconds


def first(*offers: Offer, **wanted: object) -> Offer:
    return rank(replace(JOB, **wanted), offers, ()).ranked[0].offer  # type: ignore[arg-type]


def reason(offer: Offer, **wanted: object) -> str:
    ranking = rank(replace(JOB, **wanted), [offer], ())  # type: ignore[arg-type]
    assert not ranking.ranked
    return ranking.refused[0][1]


@pytest.mark.parametrize(
    ("want", "words"),
    [
        (Resources(provider="google"), "its provider is aws, not google"),
        (Resources(zone="b"), "its zone is a, not b"),
        (Resources(machine_type="huge"), "its machine type is small, not huge"),
        (Resources(cpus_min=8), "it has 4 CPUs, and the job needs 8"),
        (Resources(memory_gib_min=32), "it has 16 GiB of memory, and the job needs 32 GiB"),
        (Resources(accelerator="A100", accelerators=8), "it has no accelerators, and the job needs A100:8"),
    ],
)
def test_an_offer_without_what_is_wanted_is_refused_in_a_sentence(want: Resources, words: str) -> None:
    """The sentence says what the offer has and what was wanted."""
    assert reason(SPOT, resources=(want,)) == words


def test_accelerators_are_of_this_kind_and_just_so_many() -> None:
    """`A100:1` is not done by a machine of eight, as in SkyPilot; upper and lower case are one."""
    one, eight = (replace(SPOT, zone=str(count), accelerator="A100", accelerators=count) for count in (1, 8))
    ranking = rank(replace(JOB, resources=(Resources(accelerator="a100", accelerators=1),)), [one, eight, SPOT], ())
    assert [row.offer for row in ranking.ranked] == [one]
    assert [words for _, words in ranking.refused] == [
        "it has A100:8, and the job needs a100:1",
        "it has no accelerators, and the job needs a100:1",
    ]


def test_any_of_is_a_set_of_which_the_cheapest_is_bought() -> None:
    """The first want is preferred only where it costs the same."""
    resources = (Resources(machine_type="large"), Resources(machine_type="small"))
    assert first(SPOT, LARGE, resources=resources) is SPOT
    level = replace(LARGE, price_usd_per_hour=1.0)
    assert first(SPOT, level, resources=resources) is level
    assert first(SPOT, level, resources=resources[::-1]) is SPOT


def test_use_says_whether_spot_or_on_demand_may_be_bought() -> None:
    """Neither is bought in the place of the other without leave."""
    assert "uses spot machines only" in reason(ON_DEMAND, use=Use.SPOT)
    assert "uses on-demand machines only" in reason(SPOT, use=Use.ON_DEMAND)
    ranking = rank(replace(JOB, use=Use.AUTO), [ON_DEMAND, LARGE, SPOT], ())
    assert [row.offer for row in ranking.ranked] == [SPOT, LARGE, ON_DEMAND]


def test_auto_buys_on_demand_where_spot_would_cost_more_for_the_work_that_stays() -> None:
    """At a third of the price, but lost every two minutes, spot is the dearer one."""
    offers = [ON_DEMAND, SPOT]
    auto = replace(JOB, use=Use.AUTO)
    assert rank(auto, offers, (rate(6.0),), (MEASURED,)).ranked[0].offer is SPOT
    assert rank(auto, offers, (rate(1 / 30),), (MEASURED,)).ranked[0].offer is ON_DEMAND


def test_auto_stays_with_spot_when_time_is_minimized() -> None:
    """On-demand is always the quicker; it is bought where spot cannot be had."""
    quick = replace(JOB, use=Use.AUTO, objective=Objective(minimize=Minimize.TIME))
    assert rank(quick, [ON_DEMAND, SPOT], (rate(6.0),), (MEASURED,)).ranked[0].offer is SPOT


def test_no_offer_above_max_price_is_taken() -> None:
    """The sentence has both prices; an offer at the limit is taken."""
    assert reason(SPOT, max_price_usd_per_hour=0.9) == "it costs 1 USD/h, and max_price is 0.9 USD/h"
    assert first(SPOT, max_price_usd_per_hour=1.0) is SPOT


def test_a_cheap_zone_that_loses_its_machines_every_few_minutes_is_the_dearer_one() -> None:
    """What counts is the price of work that stays: 0.9 USD/h with a loss every 5 minutes against 1 USD/h, 6 h."""
    shaky = replace(SPOT, zone="b", price_usd_per_hour=0.9)
    rates = (rate(6.0), rate(5 / 60, "b"))
    assert rank(JOB, [shaky, SPOT], rates, (MEASURED,)).ranked[0].offer is SPOT
    assert rank(JOB, [shaky, SPOT], (rate(6.0), rate(6.0, "b")), (MEASURED,)).ranked[0].offer is shaky


def test_a_faster_machine_may_cost_more() -> None:
    """Twice the speed at one and a half the price is cheaper per work; without a measurement it is not known."""
    twice = replace(MEASURED, machine_type="large", work_per_s=2.0)
    assert rank(JOB, [SPOT, LARGE], (), (MEASURED, twice)).ranked[0].offer is LARGE
    assert rank(JOB, [SPOT, LARGE], (), (MEASURED,)).ranked[0].offer is SPOT


def test_who_minimizes_time_gets_the_faster_machine_at_any_price() -> None:
    """Twice the speed at four times the price: cheaper is the slow one, quicker the fast one."""
    offers = [SPOT, replace(LARGE, price_usd_per_hour=4.0)]
    measured = (MEASURED, replace(MEASURED, machine_type="large", work_per_s=2.0))
    quick = replace(JOB, objective=Objective(minimize=Minimize.TIME))
    assert rank(JOB, offers, (), measured).ranked[0].offer is offers[0]
    assert rank(quick, offers, (), measured).ranked[0].offer is offers[1]


def test_the_cost_of_kept_work_counts_saves_restarts_and_redone_work() -> None:
    """Per hour of work on-demand costs its price and one start; spot its price and what losses add."""
    ranking = rank(replace(JOB, use=Use.AUTO), [SPOT, ON_DEMAND], (rate(1.0),), (MEASURED,))
    spot, reliable = ranking.ranked
    assert reliable.usd_per_work_hour == pytest.approx(3.0, rel=0.03)
    assert 1.05 < spot.usd_per_work_hour < 1.2
    numbers = {number.name: number.value for number in spot.rationale}
    assert numbers["expected preemptions"] == pytest.approx(11.0, rel=0.1)
    assert numbers["work"] == 36_000.0


def test_work_that_nobody_told_is_assumed_and_so_is_what_follows_from_it() -> None:
    """The day for which offers are compared looks like no number of the user's."""
    told, untold = (
        {number.name for number in rank(job, [SPOT], (rate(1.0),), (MEASURED,)).ranked[0].rationale}
        for job in (JOB, replace(JOB, work=None))
    )
    guessed = {"work", "expected preemptions", "redo", "allocation and preparation"}
    assert guessed <= told
    assert {f"{name}, assumed" for name in guessed} <= untold
    assert not guessed & untold


def test_a_world_in_which_no_work_is_ever_done_is_called_so() -> None:
    """A loss each half minute, on machines that need longer to get ready; not where a loss an hour is expected."""
    names = [
        [number.name for number in rank(replace(JOB, work=None), [SPOT], (rate(hours),)).ranked[0].rationale]
        for hours in (1 / 120, 1.0)
    ]
    assert [any("too many losses for progress" in name for name in found) for found in names] == [True, False]


def test_the_same_offers_in_any_order_give_the_same_ranking() -> None:
    """Ties are broken by name, so that a controller that restarts buys the same."""
    offers = [replace(SPOT, zone=zone, machine_type=kind) for zone, kind in itertools.product("abc", ("x", "y"))]
    offers += [replace(ON_DEMAND, zone=zone) for zone in "abc"]
    expected = rank(JOB, offers, ())
    rng = random.Random("orders 1")
    for _ in range(5):
        rng.shuffle(offers)
        assert rank(JOB, offers, ()) == expected


def test_offers_that_never_get_work_done_come_last_and_break_nothing() -> None:
    """A year of work without checkpoints has no finite cost; the ranking stays an order of plain numbers."""
    job = replace(JOB, options=RunOptions("never"), use=Use.AUTO)
    forever = replace(MEASURED, work_per_s=1e-3, stall_s=None)
    ranking = rank(job, [SPOT, ON_DEMAND], (rate(1.0),), (forever,))
    assert ranking.ranked[0].offer.reliability is Reliability.RELIABLE
    assert all(abs(number.value) < 1e12 for row in ranking.ranked for number in row.rationale)


def test_what_was_estimated_before_does_not_change_what_is_ranked() -> None:
    """After prices have moved, lives were pooled anew or the job differs, the ranking is that of a first look."""
    offers = [replace(SPOT, zone=zone, price_usd_per_hour=1.0 + 0.1 * place) for place, zone in enumerate("abc")]
    moved = [replace(offer, price_usd_per_hour=3.0 - offer.price_usd_per_hour) for offer in offers]
    measured = (MEASURED,)
    looks = [
        (job, some, rates, measured)
        for job in (JOB, replace(JOB, nodes=3), replace(JOB, work=None))
        for rates in ((rate(6.0),), (rate(1.0), rate(2.0, "b")))
        for some in (offers, moved)
    ]
    seen = [rank(*look) for look in looks]
    for look, found in zip(looks, seen, strict=True):
        ranking._estimator.cache_clear()
        assert rank(*look) == found
        assert [row.offer_estimate.offer for row in found.ranked] == [row.offer for row in found.ranked]
    assert len({str(found) for found in seen}) == len(looks), "no two of them are the same"


def test_ranking_is_quick_enough_to_be_asked_with_every_loss() -> None:
    """A hundred offers are ranked with one look at each: the driver asks whenever a machine is lost."""
    offers = [replace(SPOT, zone=str(zone), startup_s=Seconds(HOUR)) for zone in range(100)]
    assert len(rank(JOB, offers, (rate(2.0),), (MEASURED,)).ranked) == 100


# ------------------------------------------------------------------------------------------- what a job's limits leave

IN_B = replace(SPOT, zone="b", price_usd_per_hour=1.1)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (BuyingLimits(zones_excluded=("c", "a")), "the job excludes the zone a"),
        (BuyingLimits(machine_types_excluded=("small",)), "the job excludes the machine type small"),
    ],
)
def test_what_a_job_excludes_is_refused_whatever_else_fits(limits: BuyingLimits, words: str) -> None:
    """Even the cheapest offer that its resources name."""
    assert reason(SPOT, limits=limits) == words
    assert reason(SPOT, limits=limits, resources=(Resources(zone="a", machine_type="small"),)) == words


def test_policies_that_rank_no_offers_see_none_that_is_excluded() -> None:
    """A job that excludes nothing costs them nothing: the tuple is the same."""
    offers = (SPOT, IN_B, LARGE)
    assert without_excluded(JOB, offers) is offers
    limited = replace(JOB, limits=BuyingLimits(("b",), ("large",)))
    assert without_excluded(limited, offers) == (SPOT,)


def chosen(
    needed: int, most: int | None, *, standing: dict[OfferKey, int] | None = None, whole: bool = False
) -> OfferChoice:
    """Choose among two zones, of which a is the cheaper."""
    limits = BuyingLimits(pool_machines_max=most)
    market = OfferMarket(rank(JOB, (SPOT, IN_B), ()), {}, (), (), lambda _: True, limits, standing or {})
    return choose(market, needed, Instant(0.0), whole=whole)


def orders(choice: OfferChoice) -> list[tuple[str, int]]:
    return [(ranked.offer.zone, count) for ranked, count in choice.orders]


def test_a_pool_holds_no_more_machines_than_allowed() -> None:
    """What does not fit in the best pool stands in the next, and what fits in none is not ordered, with the reason."""
    assert orders(chosen(3, None)) == [("a", 3)]
    assert orders(chosen(3, 2)) == [("a", 2), ("b", 1)]
    assert orders(chosen(3, 1)) == [("a", 1), ("b", 1)]
    assert chosen(3, 1).unmet == 1
    standing = {SPOT.key: 2, IN_B.key: 1}
    assert orders(chosen(2, 2, standing=standing)) == [("b", 1)]
    full = chosen(1, 2, standing={SPOT.key: 2, IN_B.key: 2})
    assert full.orders == ()
    assert full.reasons == (
        "pool_max 2 is reached by the machines of small in a",
        "pool_max 2 is reached by the machines of small in b",
    )


def test_spot_and_on_demand_are_two_pools() -> None:
    """They are lost for different reasons."""
    assert orders(chosen(1, 1, standing={ON_DEMAND.key: 1})) == [("a", 1)]


def test_machines_that_are_sold_together_need_a_pool_of_their_size() -> None:
    """A gang is one allocation; a pool in which others stand already may be too full for it."""
    assert orders(chosen(2, 2, whole=True)) == [("a", 2)]
    assert orders(chosen(2, 2, whole=True, standing={SPOT.key: 1})) == [("b", 2)]
    assert chosen(3, 2, whole=True).reasons[0] == "pool_max 2 is too small for 3 machines of small in a at once"


def test_the_lower_of_quota_and_pool_counts() -> None:
    """Neither lifts the other."""
    for most, limit, expected in ((1, 3, 1), (3, 1, 1)):
        market = OfferMarket(
            rank(JOB, (SPOT,), ()), {}, (Quota("small", "a", limit, 0),), (), lambda _: True,
            BuyingLimits(pool_machines_max=most),
        )  # fmt: skip
        assert orders(choose(market, 5, Instant(0.0))) == [("a", expected)]


def test_a_machine_of_ones_own_at_no_price_comes_first() -> None:
    """Owned capacity is an offer at 0 USD/h: nothing is divided by its price, and what others cost still counts."""
    owned = replace(SPOT, provider="rack", price_usd_per_hour=0.0, on_demand_usd_per_hour=0.0, notice_s=Seconds(0.0))
    for job in (JOB, replace(JOB, use=Use.AUTO), replace(JOB, work=None), replace(JOB, max_price_usd_per_hour=0.01)):
        rows = rank(job, (SPOT, ON_DEMAND, owned), (rate(6.0),), (MEASURED,)).ranked
        assert rows[0].offer is owned
        assert rows[0].usd_per_work_hour == 0.0
    assert rank(JOB, (SPOT, owned), (rate(6.0),), (MEASURED,)).ranked[1].usd_per_work_hour > 1.0
