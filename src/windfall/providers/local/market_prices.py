"""Spot prices of the local market: by place and time, and how they were in force while its file was changed.

The prices of a configuration are a function of it alone, so that a restart does not change them.  What was in effect is
never rewritten: each configuration holds from the moment when the market read it, and earlier ones keep their times.
"""

from __future__ import annotations

import bisect
import math
import random
from functools import lru_cache

from windfall.market import PriceChange
from windfall.providers.local.market_config import MarketConfig
from windfall.structs import Struct
from windfall.terms import Seconds, WallTime

_MEMORY = 3
"""Number of draws whose mean is a generated price."""
_DRAWS_KEPT = 1 << 14


def spot_usd_per_hour(config: MarketConfig, machine_type: str, zone: str, open_s: Seconds) -> float:
    """Return the spot price, constant between the points of its series.

    A generated price is the mean of the newest three draws between `low` and `high`, so that it moves smoothly.

    Args:
        config: of the market.
        machine_type: one that it sells.
        zone: one that it has.
        open_s: how long the market has existed [s].
    """
    prices = config.prices
    at_s = open_s * prices.pace
    if points := prices.points.get(f"{machine_type}/{zone}"):
        return points[max(0, bisect.bisect_right(points, at_s, key=lambda point: point[0]) - 1)][1]
    return _generated(config, machine_type, zone, int(at_s // prices.step))


def _generated(config: MarketConfig, machine_type: str, zone: str, step: int) -> float:
    place, prices = f"{config.prices.seed}/{machine_type}/{zone}", config.prices
    draws = [_draw(f"{place}/{number}", prices.low, prices.high) for number in range(step - _MEMORY + 1, step + 1)]
    return round(config.types[machine_type].on_demand * sum(draws) / len(draws), 6)


@lru_cache(_DRAWS_KEPT)
def _draw(seed: str, low: float, high: float) -> float:
    return random.Random(seed).uniform(low, high)  # noqa: S311 - a price, not a secret


def _moves(
    config: MarketConfig, machine_type: str, zone: str, since_s: float, until_s: float
) -> list[tuple[float, float]]:
    """Return when a price may change after `since_s` and until `until_s` [s of the market], and to what [USD/h]."""
    prices = config.prices
    if points := prices.points.get(f"{machine_type}/{zone}"):
        first = bisect.bisect_right(points, since_s, key=lambda point: point[0] / prices.pace)
        moves = ((moment / prices.pace, price) for moment, price in points[first:])
        return [(at_s, price) for at_s, price in moves if at_s <= until_s]
    step_s = prices.step / prices.pace
    steps = range(math.floor(since_s / step_s) + 1, math.floor(until_s / step_s) + 1)
    return [(step * step_s, _generated(config, machine_type, zone, step)) for step in steps]


class PricesInForce(Struct, frozen=True):
    """What a market's prices followed from, over time.

    Attributes:
        opened_at: time 0 of every series.
        configs: (since when, what the file said), oldest first; the first one holds before its time too.
    """

    opened_at: WallTime
    configs: tuple[tuple[WallTime, MarketConfig], ...]

    def changes(self, machine_type: str, zone: str, since: WallTime, until: WallTime) -> tuple[PriceChange, ...]:
        """Return the price in effect at `since`, and its changes until `until`; a type that was removed keeps its price."""
        found: list[PriceChange] = []
        ends = [config_since for config_since, _ in self.configs[1:]] + [WallTime(math.inf)]
        for number, ((config_since, config), end) in enumerate(zip(self.configs, ends, strict=True)):
            start = since if number == 0 else max(since, config_since)
            if start > until or end <= since:
                continue
            if machine_type not in config.types or zone not in config.zones:
                continue
            start_s, until_s = max(start - self.opened_at, 0.0), min(until, end) - self.opened_at
            first = (start, spot_usd_per_hour(config, machine_type, zone, Seconds(start_s)))
            moves = _moves(config, machine_type, zone, start_s, until_s)
            for at, price in (first, *((self.opened_at + at_s, price) for at_s, price in moves)):
                if at < end and (not found or price != found[-1].usd_per_hour):
                    found.append(PriceChange(WallTime(at), price))
        return tuple(found)
