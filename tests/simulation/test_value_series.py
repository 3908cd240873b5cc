"""Series in columns: a question is a bisection, and traces become them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.market_shop import Shopper
from tests.simulation.test_market import DAY_S, columns, pool
from windfall.errors import Misuse
from windfall.simulation import value_series
from windfall.simulation.market_evictions import TracedEnds
from windfall.simulation.value_series import ValueSeries

times = st.floats(-100.0, 200_000.0)


@given(points=columns(0.0, 9.0, 20), at_s=times, until_s=times)
def test_a_bisection_finds_what_a_scan_finds(
    points: tuple[tuple[float, float], ...], at_s: float, until_s: float
) -> None:
    """Value, next change, next fall and integral; the first value holds before its time too."""
    series = ValueSeries.of(points)
    scanned = [value for since, value in points if since <= at_s] or [points[0][1]]
    assert series.at(at_s) == scanned[-1]
    assert series.next_change_s(at_s) == min((since for since, _ in points if since > at_s), default=math.inf)
    falls = [later[0] for before, later in itertools.pairwise(points) if later[1] < before[1]]
    assert series.next_fall_s(at_s) == min((since for since in falls if since > at_s), default=math.inf)
    low, high = sorted((at_s, until_s))
    edges = [low, *(since for since, _ in points if low < since < high), high]
    area = sum((later - edge) * series.at(edge) for edge, later in itertools.pairwise(edges))
    assert series.integral(low, high) == pytest.approx(area, rel=1e-9, abs=1e-6)


def test_a_series_is_refused_that_goes_back_or_is_no_number() -> None:
    """At its creation, not at the first question."""
    for points in ([], [(5.0, 1.0), (2.0, 1.0)], [(0.0, -1.0)], [(0.0, math.nan)]):
        with pytest.raises(Misuse):
            ValueSeries.of(points)


def test_counts_of_a_trace_are_a_capacity(tmp_path: Path) -> None:
    """An hour with three machines, one with one, two again: what was bought goes when the trace says."""
    trace = tmp_path / "zone_hours_count.csv"
    trace.write_text("0,3\n1,3\n1,1\n2,1\n2,2\n3,2\n")
    capacity = value_series.capacity_of_trace(str(trace))
    assert [capacity.at(3600.0 * hours) for hours in (0.0, 0.5, 1.0, 1.5, 2.5)] == [3.0, 3.0, 1.0, 1.0, 2.0]
    shopper = Shopper((pool(capacity=capacity),), ((0.0, 0, 5, False, None),))
    shopper.run(DAY_S)
    assert len(shopper.started_s) == 3
    assert [at for at, _ in shopper.ends.values()] == [3600.0, 3600.0]


def test_named_machines_of_a_trace_are_a_capacity_and_ends(tmp_path: Path) -> None:
    """Two come, one goes after ten minutes: in the simulated market one of what runs goes then."""
    trace = tmp_path / "machines.csv"
    trace.write_text("0,add,n1\n0,add,n2\n600000,remove,n1\n1200000,add,n3\n")
    assert [value_series.capacity_of_trace(str(trace), unit="ms").at(at) for at in (0.0, 599.0, 600.0, 1200.0)] == [
        2,
        2,
        1,
        2,
    ]
    ends = TracedEnds(value_series.ends_of_trace(str(trace), unit="ms"))
    shopper = Shopper((pool(eviction=ends),), ((0.0, 0, 2, False, None),))
    shopper.run(DAY_S)
    assert [at for at, _ in shopper.ends.values()] == [600.0]


def test_prices_of_a_trace_are_the_market_s(tmp_path: Path) -> None:
    """From their times on; a trace without prices, or with several series, says what to name instead."""
    trace = tmp_path / "prices.csv"
    head = "timestamp_utc,availability_zone,instance_type,price_usd_per_hour\n"
    rows = "2016-05-06T00:00:00Z,us-east-1a,m4.xlarge,0.05\n2016-05-06T02:00:00Z,us-east-1a,m4.xlarge,0.08\n"
    trace.write_text(head + rows)
    prices = value_series.prices_of_trace(str(trace))
    assert [prices.at(at) for at in (0.0, 7199.0, 7200.0, 99_999.0)] == [0.05, 0.05, 0.08, 0.08]
    with pytest.raises(Misuse, match="has no counts or machines"):
        value_series.capacity_of_trace(str(trace))
    trace.write_text(head + rows + "2016-05-06T01:00:00Z,us-east-1b,m4.xlarge,0.05\n")
    with pytest.raises(Misuse, match="2 series of prices: choose one"):
        value_series.prices_of_trace(str(trace))
