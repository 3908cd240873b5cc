"""Lifetimes of all machines of the installation, pooled by zone, type and provider."""

from __future__ import annotations

import random
import statistics

import pytest

from windfall.fleet import Lifetime
from windfall.models.lifetime_pool import ANY, PooledEstimate, RestartSample, look_up, mttp_and_restart, pool
from windfall.models.preemption_rates import PRIOR_MTTP_S
from windfall.terms import Seconds, WallTime

HOUR = 3600.0


def life(hours: float, kind: str = "aws/small/a", *, preempted: bool = True, announced: bool = True) -> Lifetime:
    provider, machine_type, zone = kind.split("/")
    ended = WallTime(hours * HOUR)
    return Lifetime("m", provider, machine_type, zone, WallTime(0.0), ended, preempted, preempted and announced)


def running(hours_ago: float, now_hours: float, kind: str = "aws/small/a") -> Lifetime:
    provider, machine_type, zone = kind.split("/")
    started = WallTime((now_hours - hours_ago) * HOUR)
    return Lifetime("m", provider, machine_type, zone, started, None, preempted=False, announced=False)


def of(estimates: tuple[PooledEstimate, ...], kind: str) -> PooledEstimate:
    found = look_up([row.rate for row in estimates], *kind.split("/"))
    assert found is not None
    return next(row for row in estimates if row.rate == found)


def test_the_prior_counts_as_one_preemption_after_three_hours() -> None:
    """Two preemptions in 5 h: (3 + 5) / (1 + 2) h, for the zone and, with nothing else seen, for all above it."""
    estimates = pool([life(2.0), life(3.0)], WallTime(0.0))
    assert [row.mttp_s / HOUR for row in estimates] == pytest.approx([8 / 3] * 3)
    assert [(row.machine_type, row.zone) for row in estimates] == [(ANY, ANY), ("small", ANY), ("small", "a")]
    assert PRIOR_MTTP_S == 3 * HOUR


def test_machines_that_still_run_or_were_given_back_are_censored() -> None:
    """They count with their length and without a preemption; leaving them out would halve the estimate here."""
    rows = [life(2.0), life(3.0, preempted=False), running(4.0, 10.0)]
    belief = of(pool(rows, WallTime(10 * HOUR)), "aws/small/a")
    assert belief.mttp_s / HOUR == pytest.approx((3 + 2 + 3 + 4) / (1 + 1))
    assert (belief.lifetimes, belief.preemptions) == (3, 1)


def test_a_zone_begins_with_what_its_types_other_zones_showed() -> None:
    """One preemption after 1 h in a new zone: (2.667 + 1) / 2 h, not (3 + 1) / 2 h."""
    rows = [life(2.0), life(3.0), life(1.0, "aws/small/b")]
    assert of(pool(rows, WallTime(0.0)), "aws/small/b").mttp_s / HOUR == pytest.approx((8 / 3 + 1) / 2)


def test_a_kind_that_was_never_bought_takes_what_is_known_above_it() -> None:
    """A new zone has its type's estimate, a new type its provider's, a new provider none."""
    estimates = pool([life(2.0), life(9.0, "aws/large/a")], WallTime(0.0))
    assert of(estimates, "aws/small/new").machine_type == "small"
    assert of(estimates, "aws/new/new").machine_type == ANY
    assert look_up([row.rate for row in estimates], "google", "small", "a") is None


def test_many_lives_speak_for_themselves() -> None:
    """After 400 lives per zone each zone's own mean is found, whatever the other zone and the prior say."""
    rng = random.Random("lives 2")
    means = {"aws/small/a": 0.5, "aws/small/b": 12.0}
    rows = [life(rng.expovariate(1 / hours), kind) for kind, hours in means.items() for _ in range(400)]
    for kind, hours in means.items():
        own = statistics.fmean(row.ended or 0.0 for row in rows if row.zone == kind[-1]) / HOUR
        found = of(pool(rows, WallTime(0.0)), kind).mttp_s / HOUR
        assert found == pytest.approx(own, rel=0.07)
        assert found == pytest.approx(hours, rel=0.15)


def test_the_estimate_is_right_in_the_mean_although_most_lives_are_cut_off() -> None:
    """Lives of 6 h in the mean of which only the first 2 h are ever seen still give 6 h."""
    rng = random.Random("cut 4")
    rows = []
    for _ in range(3000):
        hours = rng.expovariate(1 / 6.0)
        rows.append(life(min(hours, 2.0), preempted=hours < 2.0))
    assert of(pool(rows, WallTime(0.0)), "aws/small/a").mttp_s / HOUR == pytest.approx(6.0, rel=0.08)


def test_the_share_without_notice_is_pooled_likewise() -> None:
    """The provider's prior weighs five losses: aws 0.1; five silent ones of five make it (0.5 + 5) / 10."""
    estimates = pool([life(1.0, announced=False)] * 5, WallTime(0.0))
    assert of(estimates, "aws/small/a").silent_share == pytest.approx(0.55)
    assert of(pool([life(1.0, "cloudy/small/a")], WallTime(0.0)), "cloudy/small/a").silent_share < 0.5


def test_the_restart_time_is_unknown_until_it_was_measured() -> None:
    """Without a measurement None; with some their mean, which a sparse zone shares with its type."""
    kind = ("aws", "small", "a")
    assert of(pool([life(1.0)], WallTime(0.0)), "aws/small/a").restart_s is None
    measured = [RestartSample(*kind, Seconds(100.0)), RestartSample(*kind, Seconds(200.0))]
    elsewhere = RestartSample("aws", "small", "b", Seconds(300.0))
    estimates = pool([life(1.0)], WallTime(0.0), [*measured, elsewhere])
    assert of(estimates, "aws/small/b").restart_s == pytest.approx((150.0 + 300.0) / 2)
    assert of(estimates, "aws/small/a").restart_s == pytest.approx((300.0 + 100.0 + 200.0) / 3)
    assert of(estimates, "aws/large/a").restart_s == pytest.approx(200.0)


def test_machines_that_train_together_are_told_of_the_loss_of_any() -> None:
    """Four machines of 8 h each: one of them is lost every 2 h; who is not known is told nothing."""
    rates = [("aws", "small", "a", Seconds(8 * HOUR), Seconds(90.0))]
    assert mttp_and_restart(rates, "aws", "small", "a", 4) == (2 * HOUR, 90.0)
    assert mttp_and_restart(rates, "aws", "small", "b", 4) == (None, None)
