"""The local market's rules that need no process: its file, its prices, its meter."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.errors import Misuse
from windfall.market import MachineEndCause
from windfall.providers.local.market_config import Billing, MarketConfig, SpotPrices, load
from windfall.providers.local.market_database import MachineUsage, lines
from windfall.providers.local.market_prices import spot_usd_per_hour
from windfall.terms import Seconds, WallTime


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
