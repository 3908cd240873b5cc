"""The odds of an eviction by the price: what a plain walk through the history counts."""

from __future__ import annotations

import csv
import gzip
import math
import random
import statistics
from datetime import datetime

import numpy as np
import pytest

from tests.simulation.shared_data import DATA
from windfall.errors import Misuse
from windfall.models import price_evictions
from windfall.models.price_evictions import HORIZON_S, EvictionOdds

FEBRUARY = DATA / "aws_spot_prices" / "2016_feb_apr.csv.gz"


def history(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Prices that change every few minutes, and jump now and then."""
    rng = random.Random(seed)
    times, prices = [0.0], [0.1]
    while times[-1] < 40 * HORIZON_S:
        times.append(times[-1] + rng.expovariate(1 / 500.0))
        prices.append(round(max(0.01, 0.1 + rng.gauss(0.0, 0.01) + 0.5 * (rng.random() < 0.03)), 4))
    return np.array(times), np.array(prices)


def plain_wait_s(times: np.ndarray, prices: np.ndarray, moment_s: float, delta: float) -> float:
    """Return when a bid is exceeded, by a walk through the history."""
    place = int(np.searchsorted(times, moment_s, "right")) - 1
    bid = prices[place] + delta
    for at, price in zip(times[place + 1 :], prices[place + 1 :], strict=True):
        if at - moment_s > HORIZON_S:
            break
        if price > bid:
            return float(at - moment_s)
    return math.inf


@pytest.mark.parametrize("seed", range(3))
def test_the_odds_are_what_a_walk_through_the_history_counts(seed: int) -> None:
    """For each delta and time ahead: the share of moments, and the median of those that were evicted."""
    times, prices = history(seed)
    moments, deltas = np.arange(0.0, 38 * HORIZON_S, 700.0), np.array([0.0, 0.005, 0.02, 0.3, 0.6])
    found = price_evictions.learn(times, prices, moments, deltas)
    for row, delta in enumerate(deltas):
        waits_s = [plain_wait_s(times, prices, at, delta) for at in moments]
        for minutes in (0, 1, 7, 30, 60):
            soon = [wait for wait in waits_s if wait <= 60.0 * minutes]
            assert found.evicted[row, minutes] == len(soon) / len(moments)
            assert found.median_s[row, minutes] == (statistics.median(soon) if soon else 60.0 * minutes)


def test_between_known_deltas_and_minutes_the_odds_are_the_higher_ones() -> None:
    """A bid below the price is lost at once."""
    table = EvictionOdds(
        np.array([0.1, 0.2]), np.array([[0.0, 0.5], [0.0, 0.2]]), np.array([[0.0, 9.0], [0.0, 8.0]]), 10
    )
    evicted, median_s = table.within([-0.1, 0.1, 0.15, 0.2, 0.9], 30.0)
    assert evicted.tolist() == [1.0, 0.5, 0.5, 0.2, 0.2]
    assert median_s.tolist() == [0.0, 9.0, 9.0, 8.0, 8.0]
    assert table.within(0.2, 0.0)[0] == 0.0


def test_moments_whose_next_hour_is_unknown_are_left_out() -> None:
    """What follows the end of the history is not known."""
    times, prices = np.array([0.0, 5000.0]), np.array([1.0, 1.0])
    found = price_evictions.learn(times, prices, np.array([-10.0, 0.0, 1000.0, 2000.0]), np.array([0.0]))
    assert found.moments == 2


def test_a_history_that_is_too_short_and_deltas_that_fall_are_refused() -> None:
    """Each with a sentence."""
    with pytest.raises(Misuse, match="take a longer one"):
        price_evictions.learn(np.array([0.0, 60.0]), np.array([1.0, 2.0]), np.array([0.0]), np.array([0.0]))
    with pytest.raises(Misuse, match="bid deltas rise"):
        price_evictions.learn(np.array([0.0, 9e4]), np.array([1.0, 2.0]), np.array([0.0]), np.array([0.2, 0.1]))


@pytest.mark.skipif(not FEBRUARY.exists(), reason="the shared price histories are not here")
def test_in_2016_a_higher_bid_was_lost_less_often_and_low_ones_within_the_hour() -> None:
    """The shape that Proteus builds on, over every series of February to April 2016 that changes."""
    by_series: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with gzip.open(FEBRUARY, "rt") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["timestamp_utc"]).timestamp()
            key = (row["instance_type"], row["availability_zone"])
            by_series.setdefault(key, []).append((at, float(row["price_usd_per_hour"])))
    deltas = np.geomspace(1e-4, 0.4, 20)
    lowest = []
    for points in by_series.values():
        times, prices = np.array(sorted(dict(points).items())).T
        found = price_evictions.learn(times, prices, np.arange(times[0], times[-1], 3600.0), deltas)
        assert np.all(np.diff(found.evicted, axis=0) <= 0.0)
        assert np.all(np.diff(found.evicted, axis=1) >= 0.0)
        lowest.append(float(found.evicted[0, -1]))
    print([round(share, 2) for share in lowest])
    assert max(lowest) > 0.5
