"""What is believed about losses and costs, and how it is learnt."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windfall.errors import Misuse
from windfall.models.costs import WINDOW_VALUES, Costs, Window
from windfall.models.preemption_rates import PRIOR_MTTP_S, PreemptionHistory, preemption_pattern, providers
from windfall.terms import Phase


def test_before_any_observation_the_thesis_mttp_holds() -> None:
    """Three hours."""
    assert PreemptionHistory("aws").mttp_s(0.0) == PRIOR_MTTP_S == 3 * 3600.0


def test_a_life_that_goes_on_counts_without_a_preemption() -> None:
    """Censored lives make a loss seem rarer; preemptions make it seem nearer."""
    assert PreemptionHistory("aws", lifetimes_s=5 * 3600.0, preemptions=2).mttp_s(3600.0) == pytest.approx(3 * 3600.0)
    assert PreemptionHistory("aws").mttp_s(7200.0) == pytest.approx(5 * 3600.0)


def test_the_learnt_mttp_approaches_the_true_one() -> None:
    """Four hundred exponential lives of 30 minutes' mean, within ten per cent."""
    rng = random.Random(4)
    lifetimes = [rng.expovariate(1 / 1800.0) for _ in range(400)]
    learnt = PreemptionHistory("aws", lifetimes_s=sum(lifetimes), preemptions=400).mttp_s(0.0)
    assert learnt == pytest.approx(1800.0, rel=0.1)


def test_the_share_without_notice_starts_from_the_providers_habit() -> None:
    """One in ten on the clouds, even odds where nobody knows, and counts move it."""
    assert PreemptionHistory("aws").unannounced_share() == pytest.approx(0.1)
    assert PreemptionHistory("local").unannounced_share() == pytest.approx(0.5)
    assert PreemptionHistory("local", preemptions=5, announced=5).unannounced_share() == pytest.approx(0.25)
    assert PreemptionHistory("local", share_given=0.0).unannounced_share() == 0.0


def test_every_loss_counts_where_the_notice_is_too_short() -> None:
    """An emergency save that cannot fit protects from nothing, whatever was promised; nor does one of unknown length."""
    losses = PreemptionHistory("aws", preemptions=4, announced=2, notices_s=(15.0, 100.0))
    assert [losses.covered(needs_s) for needs_s in (None, 10.0, 20.0, 120.0)] == [0.0, 2.0, 1.0, 0.0]
    assert PreemptionHistory("aws").prior_covered(119.0) == 4.5
    assert PreemptionHistory("aws").prior_covered(120.0) == PreemptionHistory("aws").prior_covered(None) == 0.0


@pytest.mark.trial("E1")
def test_what_came_and_what_was_given_count_for_more_than_a_habit() -> None:
    """Two minutes are the habit of aws; 15 s that were given, or that came, are what is believed."""
    given = PreemptionHistory("aws", notice_given_s=15.0)
    came = PreemptionHistory("aws", preemptions=1, announced=1, notices_s=(15.0,))
    for one in (given, came):
        assert one.notice_s == 15.0
        assert one.prior_covered(20.0) == 0.0
    assert given.prior_covered(10.0) == came.prior_covered(10.0) == 4.5


def test_an_unknown_provider_is_refused_by_name() -> None:
    """With the known ones."""
    assert {"aws", "google", "azure", "slurm", "kubernetes", "local"} == set(providers())
    with pytest.raises(Misuse, match=r"'acme'.*aws"):
        preemption_pattern("acme")


def test_a_window_forgets() -> None:
    """Estimates follow a run that changes."""
    window = Window()
    for value in [100.0] * WINDOW_VALUES + [1.0] * WINDOW_VALUES:
        window = window.add(value)
    assert (window.mean, window.p95) == (1.0, 1.0)


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=200))
def test_the_p95_is_a_value_that_at_most_a_twentieth_exceeds(values: list[float]) -> None:
    """Of the newest values."""
    window = Window()
    for value in values:
        window = window.add(value)
    p95 = window.p95
    assert p95 is not None
    assert p95 in window.values
    assert sum(value > p95 for value in window.values) <= 0.05 * len(window.values)


def test_latency_and_rate_are_told_apart_once_sizes_differ() -> None:
    """Uploads of different sizes on a line of 0.5 s + size / 10 MB/s."""
    costs = Costs()
    for size in (10**6, 10**7, 10**8):
        costs = costs.add_upload(size, 0.5 + size / 10**7)
    assert costs.upload_s(10**9) == pytest.approx(100.5)
    assert costs.upload_p95_s(10**9) == pytest.approx(100.5)


def test_equal_sizes_scale_in_proportion() -> None:
    """Nothing better is known."""
    costs = Costs().add_upload(10**8, 10.0).add_upload(10**8, 12.0)
    assert costs.upload_s(2 * 10**8) == pytest.approx(22.0)
    assert costs.upload_p95_s(10**8) == pytest.approx(12.0)


def test_an_uplink_that_slowed_down_is_foreseen_after_one_upload() -> None:
    """The 95th percentile covers the newest, slow one."""
    costs = Costs()
    for _ in range(10):
        costs = costs.add_upload(10**8, 1.0)
    assert costs.add_upload(10**8, 9.0).upload_p95_s(10**8) >= 9.0


def test_phases_are_measured_apart() -> None:
    """An evaluation says nothing about a compilation."""
    costs = Costs().add_phase(Phase.EVALUATION, 30.0)
    assert costs.phase_p95_s(Phase.EVALUATION) == 30.0
    assert costs.phase_p95_s(Phase.COMPILE) is None
