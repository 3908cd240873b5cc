"""What `make bench` says about a pair of measurements."""

from __future__ import annotations

import pytest
from benchmarks.harness import Benchmark, judge, measure


def pair(target: float, *, at_most: bool) -> Benchmark:
    return Benchmark("a pair", lambda: 1.0, lambda: 1.0, target, at_most, "s")


@pytest.mark.parametrize(
    ("target", "at_most", "ours", "verdict"),
    [(1.3, True, 1.2, "ok"), (1.3, True, 1.4, "MISS"), (0.7, False, 0.8, "ok"), (0.7, False, 0.6, "MISS")],
)
def test_the_median_of_paired_ratios_is_held_against_the_target(
    target: float, at_most: bool, ours: float, verdict: str
) -> None:
    """A disturbance that hits both sides of a pair alike, or one pair alone, changes no verdict."""
    pairs = [(ours * pace, pace) for pace in (1.0, 1.05, 0.95, 1.0, 1.02)] + [(9.0, 1.0)]
    assert judge(pair(target, at_most=at_most), pairs).verdict == verdict


def test_a_yardstick_that_spreads_measures_nothing() -> None:
    """Quartiles of the yardstick further apart than 15 % of its median: not comparable, whatever the ratio."""
    pairs = [(1.0, 1.0), (1.0, 1.3), (1.0, 0.8), (1.0, 1.0), (1.0, 1.4)]
    assert judge(pair(1.3, at_most=True), pairs).verdict == "not comparable"


def test_the_first_pair_is_thrown_away_and_the_turns_change() -> None:
    """Warming up counts for nothing, and neither side always goes first."""
    order: list[str] = []
    benchmark = Benchmark(
        "a pair", lambda: order.append("o") or 1.0, lambda: order.append("y") or 1.0, 1.3, True, "s", 3
    )
    assert measure(benchmark).rounds == 3
    assert "".join(order) == "yo" + "oy" + "yo" + "oy"
