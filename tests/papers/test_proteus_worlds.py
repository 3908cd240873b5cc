"""The worlds in which Proteus is replayed: which types they have, what they know of later months, what arms see."""

from __future__ import annotations

import csv
import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tests.simulation.shared_data import DATA, needs_data
from windfall.errors import Misuse
from windfall.lab import proteus_worlds as worlds
from windfall.lab.proteus_worlds import CURRENT_IN_2016, SPRING, SUMMER, Span
from windfall.terms import Reliability

PRICES = DATA / "aws_spot_prices"


def test_types_are_chosen_by_the_rule() -> None:
    """At least 2 vCPUs, and at most twice c4's price per vCPU: no m3.medium, no d2."""
    found = {kind.machine_type for kind in CURRENT_IN_2016 if worlds.eligible(kind)}
    assert found == {"m3.large", "m4.xlarge", "m4.10xlarge", "r3.large", "g2.2xlarge"}


@needs_data
@pytest.mark.parametrize("dates", [SPRING, SUMMER], ids=["spring", "summer"])
def test_months_that_judge_are_not_read_to_learn(dates: worlds.WorldDates) -> None:
    """A world of the months to learn from ends with them; every zone has the type that stands in for c4 or cheaper ones."""
    world = worlds.read(PRICES, dates.name, Span.TRAIN)
    assert {zone for zone, _ in world.series} == set(dates.zones)
    assert max(times_s[-1] for times_s, _ in world.series.values()) < dates.train_s[1]
    assert min(times_s[0] for times_s, _ in world.series.values()) < dates.train_s[0] + 86_400.0


@needs_data
def test_a_market_has_the_prices_of_its_moment() -> None:
    """At a thousand moments after a start: the last row of the file before it, found by looking at each."""
    zone, machine_type = "us-east-1a", "r3.large"
    rows = []
    with gzip.open(PRICES / "2016_feb_apr.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if (row["availability_zone"], row["instance_type"]) == (zone, machine_type):
                at = datetime.fromisoformat(row["timestamp_utc"]).replace(tzinfo=UTC).timestamp()
                rows.append((at, float(row["price_usd_per_hour"])))
    rows.sort(key=lambda point: point[0])
    since_s = SPRING.train_s[0] + 5 * 86_400.0
    world = worlds.read(PRICES, "spring", Span.TRAIN)
    found = {one.machine_type: one for one in worlds.markets(world, zone, since_s, 200_000.0)}
    assert found["c4.xlarge"].reliability is Reliability.RELIABLE
    for after_s in np.random.default_rng(1).uniform(0.0, 200_000.0, 1000):
        expected = [usd for at, usd in rows if at <= since_s + after_s][-1]
        assert found[machine_type].prices.at(after_s) == expected


@needs_data
def test_odds_are_those_of_an_independent_count() -> None:
    """The reference figures of the data (2016 spring, whole file, good to 0.03): r3.large in 1a, m4.10xlarge in 1b."""
    world = worlds.read(PRICES, "spring", Span.TEST)
    deltas = np.array([0.0001, 0.01, 0.1])
    span_s = (SPRING.train_s[0], SPRING.test_s[1])
    for zone, machine_type, published in (
        ("us-east-1a", "r3.large", (0.32, 0.02, 0.01)),
        ("us-east-1b", "m4.10xlarge", (0.58, 0.47, 0.18)),
    ):
        table = worlds.odds(world, zone, deltas, span_s)
        row = next(row for key, row in table.rows.items() if key[1] == machine_type)
        assert table.evicted[row, :, -1] == pytest.approx(published, abs=0.035)


@needs_data
def test_shares_of_the_cheapest_type_add_up() -> None:
    """In spring more than one type is the cheapest per core at some time, in every zone."""
    world = worlds.read(PRICES, "spring", Span.TRAIN)
    for zone in SPRING.zones:
        shares = worlds.cheapest_share(world, zone, SPRING.train_s)
        assert sum(shares.values()) == pytest.approx(1.0)
        assert sum(share > 0.0 for share in shares.values()) > 1


def test_a_folder_without_prices_is_refused(tmp_path: Path) -> None:
    """And a file without the price in USD/h, and a world that does not exist."""
    with pytest.raises(Misuse, match="does not exist: pass the folder"):
        worlds.read(tmp_path, "spring", Span.TRAIN)
    with gzip.open(tmp_path / "2016_feb_apr.csv.gz", "wt") as file:
        file.write("timestamp_utc,availability_zone,instance_type,price_eur\n")
    with pytest.raises(Misuse, match="has no column price_usd_per_hour: prices are USD per hour"):
        worlds.read(tmp_path, "spring", Span.TRAIN)
    with pytest.raises(Misuse, match="there are spring and summer"):
        worlds.read(tmp_path, "winter", Span.TRAIN)
