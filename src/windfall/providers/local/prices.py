"""The spot price of a place at a moment: a function of the configuration alone, so that every restart agrees on it."""

from __future__ import annotations

import bisect
import random

from windfall.providers.local.config import Config
from windfall.terms import Seconds

_MEMORY = 3
"""Over how many steps a generated price remembers where it was."""


def spot_usd_per_hour(config: Config, machine_type: str, zone: str, open_s: Seconds) -> float:
    """Return the spot price, constant between the points of its series.

    A generated price is the mean of the newest three draws between `low` and `high`: it moves, but not at random.

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
    step = int(at_s // prices.step)
    draws = [
        random.Random(f"{prices.seed}/{machine_type}/{zone}/{number}").uniform(prices.low, prices.high)  # noqa: S311
        for number in range(step - _MEMORY + 1, step + 1)
    ]
    return round(config.types[machine_type].on_demand * sum(draws) / len(draws), 6)
