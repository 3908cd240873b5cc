"""The local market's rules that need no process: its file, its prices, its meter."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from windfall.errors import Misuse
from windfall.market import Answer, BillingBasis, BillingRule, MachineEndCause, Order, PriceChange
from windfall.providers.local.market_config import Billing, MarketConfig, SpotPrices, load
from windfall.providers.local.market_database import MachineUsage, MarketDatabase, lines
from windfall.providers.local.market_engine import offers_of
from windfall.providers.local.market_prices import PricesInForce, spot_usd_per_hour
from windfall.terms import Reliability, Seconds, WallTime


def cost(lasted_s: float, billing: Billing, cause: MachineEndCause = MachineEndCause.RELEASED) -> list[float]:
    """What the meter asks for a stay at a dollar an hour."""
    stay = MachineUsage("m", 1.0, WallTime(1000.0), WallTime(1000.0 + lasted_s), cause)
    return [line.amount_usd for line in lines(stay, billing, settled=True)]


@pytest.mark.parametrize(
    ("lasted_s", "by", "amount"),
    [
        (1800.0, "second", 0.5),
        (36.0, "second", 0.01),
        (0.0, "second", 0.0),
        (1.0, "hour", 1.0),
        (3600.0, "hour", 1.0),
        (3601.0, "hour", 2.0),
    ],
)
def test_time_is_money(lasted_s: float, by: str, amount: float) -> None:
    """By second, what was used; by hour, every started hour."""
    assert cost(lasted_s, Billing(by=by)) == [pytest.approx(amount)]


@pytest.mark.parametrize(
    ("lasted_s", "by", "paid"),
    [(1800.0, "second", 0.0), (5400.0, "second", 1.0), (5400.0, "hour", 1.0), (600.0, "hour", 0.0)],
)
def test_the_hour_in_which_a_machine_is_taken_is_free(lasted_s: float, by: str, paid: float) -> None:
    """With refunds, whole hours before the last one are paid; without a preemption there is no refund."""
    billing = Billing(by=by, refund=True)

    assert sum(cost(lasted_s, billing, MachineEndCause.PREEMPTED)) == pytest.approx(paid)
    assert len(cost(lasted_s, billing, MachineEndCause.RELEASED)) == 1
    assert cost(lasted_s, billing, MachineEndCause.PREEMPTED)[1] < 0


def test_an_hour_can_be_short_for_rehearsals() -> None:
    """Eleven seconds at ten-second hours are two of them."""
    assert cost(11.0, Billing(by="hour", hour=10.0)) == [pytest.approx(20.0 / 3600.0)]


START = 1000.0
MOVES = tuple(PriceChange(WallTime(START + at_s), usd) for at_s, usd in ((0.0, 2.0), (1800.0, 6.0), (4000.0, 1.0)))
"""2 USD/h for half an hour, 6 for 2,200 s, then 1."""


@pytest.mark.parametrize(
    ("words", "lasted_s", "use", "refund"),
    [
        ({"price": "in-effect"}, 5400.0, 1.0 + 6.0 * 2200 / 3600 + 1400 / 3600, -(6.0 * 400 + 1400) / 3600),
        ({"price": "in-effect", "minimum": 7200.0}, 1800.0, 1.0 + 6.0 * 2200 / 3600 + 3200 / 3600, None),
        ({"price": "in-effect", "minimum": 1800.0, "hour": 600.0}, 900.0, 1.0, -2.0 * 1200 / 3600),
        ({"by": "hour"}, 5400.0, 2.0 + 6.0, -6.0),
        ({"by": "hour"}, 7201.0, 2.0 + 6.0 + 1.0, -1.0),
        ({"by": "hour"}, 3600.0, 2.0, 0.0),
        ({"by": "hour", "minimum": 7200.0}, 60.0, 2.0 + 6.0, -8.0),
        ({"by": "hour", "hour": 900.0}, 2000.0, (2.0 + 2.0 + 6.0) / 4, -6.0 / 4),
        ({"minimum": 60.0}, 6.0, 1 / 60, -1 / 60),
        ({}, 5400.0, 1.5, -0.5),
    ],
)
def test_each_unit_is_charged_at_the_price_that_its_rule_names(
    words: dict[str, object], lasted_s: float, use: float, refund: float | None
) -> None:
    """Seconds at the purchase's or the present price, hours at that of their start; the hour of a preemption comes back."""
    billing = Billing(**words, refund=True)  # type: ignore[arg-type]
    changes = MOVES if billing.floats else ()
    stay = MachineUsage(
        "m", 1.0, WallTime(START), WallTime(START + lasted_s), MachineEndCause.PREEMPTED, changes=changes
    )
    found = lines(stay, billing, settled=True)

    assert found[0].amount_usd == pytest.approx(use, abs=1e-8)
    assert found[1].amount_usd == pytest.approx(-use if refund is None else refund, abs=1e-8)
    assert found[1].started == START + (lasted_s // billing.hour) * billing.hour


def test_no_hour_of_a_machine_that_cannot_be_preempted_is_free() -> None:
    """Its offer promises no refund; a rehearsal may take it all the same."""
    ended = WallTime(START + 60.0)
    stay = MachineUsage("m", 1.0, WallTime(START), ended, MachineEndCause.PREEMPTED, Reliability.RELIABLE)

    assert len(lines(stay, Billing(refund=True), settled=True)) == 1


@pytest.mark.parametrize(
    ("words", "spot", "on_demand"),
    [
        ({}, BillingBasis.PURCHASE, BillingBasis.PURCHASE),
        ({"price": "purchase"}, BillingBasis.PURCHASE, BillingBasis.PURCHASE),
        ({"price": "in-effect"}, BillingBasis.IN_EFFECT, BillingBasis.PURCHASE),
        ({"by": "hour"}, BillingBasis.STARTED_HOUR, BillingBasis.STARTED_HOUR),
        ({"by": "hour", "price": "in-effect"}, BillingBasis.STARTED_HOUR, BillingBasis.STARTED_HOUR),
    ],
)
def test_an_offer_says_how_it_is_billed(words: dict[str, object], spot: BillingBasis, on_demand: BillingBasis) -> None:
    """Basis, minimum and hour of the file; the price of a machine on demand does not move."""
    config = MarketConfig(billing=Billing(**words, minimum=60.0, hour=600.0))  # type: ignore[arg-type]
    bases = {Reliability.TRANSIENT: spot, Reliability.RELIABLE: on_demand}

    for offer in offers_of(config, WallTime(0.0), WallTime(50.0)):
        assert offer.billing == BillingRule(bases[offer.reliability], 60.0, 600.0)


@pytest.mark.parametrize("pace", [1.0, 7.0])
def test_what_was_in_effect_is_what_was_offered_then(pace: float) -> None:
    """Generated and given prices: the changes of any span say at each moment what an order would have paid."""
    points = {"small/zone-b": [(0.0, 0.03), (700.0, 0.05), (1500.0, 0.02), (9000.0, 0.04)]}
    config = MarketConfig(prices=SpotPrices(points=points, pace=pace))
    prices = PricesInForce(WallTime(500.0), ((WallTime(500.0), config),))
    for zone in config.zones:
        changes = prices.changes("small", zone, WallTime(800.0), WallTime(2500.0))
        assert changes[0].since == 800.0
        assert len(changes) > 1
        for moment in range(801, 2500, 7):
            (*_, newest) = (change for change in changes if change.since <= moment)
            now_usd = spot_usd_per_hour(config, "small", zone, Seconds(moment - 500.0))
            assert newest.usd_per_hour == now_usd


def test_an_edited_file_does_not_rewrite_the_past() -> None:
    """Each configuration holds from when it was read on; a type that is no longer sold keeps its last price."""

    def config(*points: tuple[float, float]) -> MarketConfig:
        return MarketConfig(prices=SpotPrices(points={"small/zone-a": list(points)}))

    gone = MarketConfig(types={"other": MarketConfig().types["small"]})
    prices = PricesInForce(
        WallTime(0.0),
        (
            (WallTime(0.0), config((0.0, 1.0), (50.0, 2.0), (150.0, 3.0))),
            (WallTime(100.0), config((0.0, 7.0), (120.0, 8.0), (210.0, 9.0))),
            (WallTime(200.0), gone),
            (WallTime(300.0), config((0.0, 5.0))),
        ),
    )

    def told(since: float, until: float) -> list[tuple[float, float]]:
        found = prices.changes("small", "zone-a", WallTime(since), WallTime(until))
        return [(change.since, change.usd_per_hour) for change in found]

    assert told(10.0, 400.0) == [(10.0, 1.0), (50.0, 2.0), (100.0, 7.0), (120.0, 8.0), (300.0, 5.0)]
    assert told(110.0, 130.0) == [(110.0, 7.0), (120.0, 8.0)]
    assert told(100.0, 119.0) == [(100.0, 7.0)]
    assert told(310.0, 400.0) == [(310.0, 5.0)]


def test_spot_is_sixty_to_ninety_per_cent_cheaper() -> None:
    """The embedded market's prices move within those bounds, hold for a step, and are the same for every caller."""
    config = MarketConfig()
    places = [(kind, zone) for kind in config.types for zone in config.zones]
    for kind, zone in places:
        series = [spot_usd_per_hour(config, kind, zone, Seconds(300.0 * step)) for step in range(200)]
        assert all(0.1 <= price / config.types[kind].on_demand <= 0.4 for price in series)
        assert len(set(series)) > 100
        assert spot_usd_per_hour(config, kind, zone, Seconds(299.0)) == series[0]
        assert spot_usd_per_hour(MarketConfig(), kind, zone, Seconds(600.0)) == series[2]
    assert len({spot_usd_per_hour(config, kind, zone, Seconds(0.0)) for kind, zone in places}) == len(places)


def test_given_prices_are_followed_at_their_pace() -> None:
    """A point holds until the next one; at pace 60 an hour of the series passes in a minute."""
    points = {"small/zone-a": [(0.0, 0.03), (3600.0, 0.05)]}
    real, quick = (MarketConfig(prices=SpotPrices(points=points, pace=pace)) for pace in (1.0, 60.0))

    def price(config: MarketConfig, at_s: float) -> float:
        return spot_usd_per_hour(config, "small", "zone-a", Seconds(at_s))

    assert [price(real, at_s) for at_s in (0.0, 3599.9, 3600.0, 1e9)] == [0.03, 0.03, 0.05, 0.05]
    assert [price(quick, at_s) for at_s in (0.0, 59.9, 60.0)] == [0.03, 0.03, 0.05]


def test_without_a_file_the_market_has_its_defaults(tmp_path: Path) -> None:
    """No file, or an empty one, is the embedded market: three types in two zones."""
    assert load(tmp_path) == MarketConfig()
    (tmp_path / "market.yaml").write_text("# nothing yet\n")
    assert load(tmp_path) == MarketConfig()
    assert (list(MarketConfig().types), MarketConfig().zones) == (["small", "medium", "large"], ["zone-a", "zone-b"])


def test_the_nearest_limit_counts(tmp_path: Path) -> None:
    """A limit for the place comes before one for the type, which comes before the default."""
    (tmp_path / "market.yaml").write_text("quota: {default: 7, small: 3, small/zone-b: 0}\n")
    config = load(tmp_path)

    assert [config.quota_of(*place) for place in (("small", "zone-b"), ("small", "zone-a"), ("large", "zone-a"))] == [
        0,
        3,
        7,
    ]


def test_the_page_shows_a_file_that_works(tmp_path: Path) -> None:
    """The example of the documentation can be loaded."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "local-market.md").read_text("utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "market.yaml").write_text(example)

    assert load(tmp_path) != MarketConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capacty: 5", "unknown key 'capacty'; did you mean 'capacity'?"),
        ("types: {tiny: {cost: 1}}", "types.tiny.on_demand: field required, not {'cost': 1}"),
        ("types: {tiny: {on_demand: 1, sped: 1}}", "unknown key 'types.tiny.sped'; did you mean 'speed'?"),
        ("types: {tiny: {on_demand: -1}}", "types.tiny.on_demand: input should be greater than 0, not -1"),
        ("types: {tiny: {on_demand: 1, speed: 2}}", "types.tiny.speed: input should be less than or equal to 1, not 2"),
        ("types: {tiny: {on_demand: 1, uplink: fast}}", "types.tiny.uplink: 'fast' is not a transfer rate"),
        ("notice: soon", "notice: 'soon' is not a duration"),
        ("prices: {low: 0.5}", "prices: low (0.5) is above high (0.4)"),
        ("prices: {points: {small/zone-a: [[1m, 0.1]]}}", "the points of small/zone-a must start at 0"),
        ("prices: {points: {small/zone-c: [[0, 0.1]]}}", "prices.points: unknown 'small/zone-c'; did you mean"),
        ("quota: {smal: 1}", "quota: unknown 'smal'; did you mean 'small'?"),
        ("billing: {by: minute}", "billing.by: input should be 'second' or 'hour', not 'minute'"),
        ("billing: {price: spot}", "billing.price: input should be 'purchase' or 'in-effect', not 'spot'"),
        ("billing: {by: hour, price: purchase}", "billing: by: hour charges the price at the start of each hour"),
        ("billing: {minimum: -1}", "billing.minimum: input should be greater than or equal to 0, not -1"),
        ("- a list", "the file must be a mapping of keys to values, not a list"),
        ("types: {", "market.yaml:1:9: not YAML"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """Unknown keys, wrong values and places that do not exist are named, with what would be right."""
    (tmp_path / "market.yaml").write_text(text)

    with pytest.raises(Misuse) as caught:
        load(tmp_path)

    assert str(caught.value).startswith(str(tmp_path / "market.yaml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_listing_repeats_itself_until_the_price_moves(tmp_path: Path) -> None:
    """Hours after the start it shows the newest hour of changes, and at two moments between changes the same."""
    offer = offers_of(MarketConfig(), WallTime(0.0), WallTime(0.0))[0]
    config = MarketConfig(billing=Billing(price="in-effect"))
    with contextlib.closing(MarketDatabase(tmp_path)) as database:
        database.opened_at(WallTime(0.0))
        database.enforce_prices(config, WallTime(0.0))
        order = Order("t", "me", "job", offer, 1, 1)
        database.record(Answer("t", ("m",)), order, offer.price_usd_per_hour, config.billing, WallTime(1.0))
        database.started("m", WallTime(1.0), None)
        seen = [database.listed("me", WallTime(0.0), WallTime(now))[0].price_changes for now in (299.0, 9001.0, 9200.0)]

    assert seen[0] == ()
    assert seen[1] == seen[2]
    assert [change.since for change in seen[1]] == [300.0 * step for step in range(19, 31)]
