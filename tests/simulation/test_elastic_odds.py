"""What an elastic training comes to on a series of machines, beside other ways to train."""

from __future__ import annotations

import numpy as np
import pytest

from windfall.errors import Misuse
from windfall.models.elastic_profile import ElasticTraining, profile_of, training_of
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape
from windfall.policies.shapes.shape_policy import ShapeSituation, decide
from windfall.simulation import elastic_odds as odds
from windfall.simulation.shape_replay import Moment, deciding, play_free
from windfall.simulation.value_series import ValueSeries

CALM = (6,) * 30
ROUGH = (8, 8, 7, 7, 8, 6, 5, 5, 8, 8, 3, 1, 0, 0, 4, 8, 8, 8, 7, 8) * 3


def training(*, start_s: float = 5.0) -> ElasticTraining:
    """Nine layers of 1e6 parameters, of which a machine holds five; 16 micro-batches; 1 GB/s."""
    layer = {"count": 9, "forward_s": 0.01, "backward_s": 0.02, "parameters": 1e6}
    block = {"batch": 64, "micro_batch": 4, "memory_bytes": 81e6, "link": {"bytes_per_s": 1e9}, "layers": [layer]}
    return training_of(
        profile_of({**block, "start_s": start_s, "build_s": 2.0, "rendezvous_s": 4.0, "groups_s": 1.0}), 8
    )


def by_name(counts: tuple[int, ...], terms: odds.ElasticTerms) -> dict[str, odds.ElasticArm]:
    return {arm.name: arm for arm in odds.arms(counts, training(), terms)}


def test_without_changes_all_ways_train_the_same_but_for_their_start() -> None:
    """Six machines that stay: every arm takes the fastest shape, changes once at most, and pays 3 machine-hours."""
    found = by_name(CALM, odds.ElasticTerms(usd_per_hour=0.5))
    rate = training().speeds.rate(training().speeds.best(6))

    assert found[odds.FREE].samples == pytest.approx(rate * 1800.0)
    for arm in found.values():
        assert 0.95 * rate * 1800.0 < arm.samples <= rate * 1800.0 + 1e-6
        assert (arm.machine_hours, arm.cost_usd, arm.changes, arm.idle_s) == (3.0, 1.5, 0, 0.0)


def test_changes_cost_a_restart_more_than_an_elastic_training() -> None:
    """While machines come and go: free changes, elastic, restart; a fixed shape waits for its machines."""
    found = by_name(ROUGH, odds.ElasticTerms())

    assert found[odds.FREE].samples > found[odds.FOLLOWING].samples > found[odds.RESTARTING].samples
    assert found[odds.FOLLOWING].samples > found[odds.FIXED].samples
    assert found[odds.FIXED].shape.machines > 0
    assert found[odds.FIXED].idle_s >= found[odds.FOLLOWING].idle_s >= 60.0 * sum(count < 2 for count in ROUGH)


def test_the_policy_is_the_one_of_live_trainings() -> None:
    """What the simulation chooses is what `decide` says, at every moment."""
    found = training()
    costs = BoundedCosts(found.times, found.speeds)
    choose = deciding(costs, 12)

    for shape in (IDLE, Shape(2, 2), Shape(1, 4)):
        for now in range(9):
            seen = Moment(3, shape, 8, now, 0.0, (8, 8, 8), 1)
            assert choose(seen) == decide(ShapeSituation(shape, 8, now), costs, look_ahead=12).shape


def test_a_training_that_ends_pays_until_then() -> None:
    """Half of what free changes train in half an hour ends after a quarter, with half of the cost; twice of it does not end."""
    whole = by_name(CALM, odds.ElasticTerms(usd_per_hour=2.0))[odds.FREE].samples
    half, twice = (
        by_name(CALM, odds.ElasticTerms(usd_per_hour=2.0, samples=share * whole))[odds.FREE] for share in (0.5, 2.0)
    )

    assert (half.finished, half.samples, half.time_s) == (True, pytest.approx(0.5 * whole), pytest.approx(900.0))
    assert half.cost_usd == pytest.approx(3.0)
    assert half.usd_per_million == pytest.approx(1e6 * 3.0 / (0.5 * whole))
    assert (twice.finished, twice.samples, twice.time_s) == (False, pytest.approx(whole), 1800.0)


def test_a_change_is_paid_before_samples_of_its_interval() -> None:
    """One sample ends right after the start of the first interval is paid, and not at its beginning."""
    arm = by_name(CALM, odds.ElasticTerms(samples=1.0))[odds.FIXED]

    assert 5.0 + 2.0 + 4.0 + 1.0 < arm.time_s < 60.0


def test_the_machine_that_keeps_states_is_paid_by_elastic_trainings_alone() -> None:
    """Half an hour of 1 USD/h more."""
    found = by_name(CALM, odds.ElasticTerms(usd_per_hour=0.5, reliable_usd_per_hour=1.0))

    assert found[odds.FOLLOWING].cost_usd == pytest.approx(2.0)
    assert found[odds.RESTARTING].cost_usd == pytest.approx(1.5)


def test_an_interval_has_the_fewest_machines_that_it_holds() -> None:
    """8 machines, for 10 s in the second minute 5, from 150 s on 9: 8, 5, 8; never more than the training may have."""
    series = ValueSeries.of(((0.0, 8.0), (70.0, 5.0), (80.0, 8.0), (150.0, 9.0), (180.0, 9.0)))

    assert odds.counted(series, 32, 60.0) == (8, 5, 8)
    assert odds.counted(series, 6, 60.0) == (6, 5, 6)


def test_drawn_machines_have_the_means_that_were_asked_for() -> None:
    """Of 100 machines with a mean of 1 h, replaced in 6 minutes, 10/11 are there on average; the seed says all."""
    drawn = odds.drawn_counts(100, 20_000, 7, mttp_s=3600.0, wait_s=360.0, interval_s=10.0)

    assert drawn == odds.drawn_counts(100, 20_000, 7, mttp_s=3600.0, wait_s=360.0, interval_s=10.0)
    assert drawn != odds.drawn_counts(100, 20_000, 8, mttp_s=3600.0, wait_s=360.0, interval_s=10.0)
    assert float(np.mean(drawn)) == pytest.approx(1000.0 / 11.0, rel=0.01)
    assert (drawn[0], min(drawn) >= 0, max(drawn)) == (100, True, 100)


def test_bad_series_are_refused() -> None:
    """No interval, no machine, no time."""
    with pytest.raises(Misuse, match="a series of machines without an interval"):
        odds.arms((), training(), odds.ElasticTerms())
    with pytest.raises(Misuse, match="1 machine or more"):
        odds.drawn_counts(0, 5, 0, mttp_s=1.0, wait_s=1.0, interval_s=1.0)
    with pytest.raises(Misuse, match="times above 0"):
        odds.drawn_counts(2, 5, 0, mttp_s=0.0, wait_s=1.0, interval_s=1.0)


def test_machines_that_fit_no_shape_train_nothing() -> None:
    """One machine, where a shape needs two: no sample, no change, all time idle, and the machine is paid."""
    for arm in by_name((1,) * 10, odds.ElasticTerms(usd_per_hour=6.0)).values():
        assert (arm.samples, arm.finished, arm.changes, arm.idle_s) == (0.0, False, 0, 600.0)
        assert arm.cost_usd == pytest.approx(1.0)
        assert arm.usd_per_million == float("inf")
    assert play_free((1,), training().speeds).samples == (0.0,)
