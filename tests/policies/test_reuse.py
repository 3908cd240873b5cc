"""Reuse or retire: conditional and from the job's start, with the published rule beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.papers.reference import published
from windfall.errors import Misuse
from windfall.models.exact.makespan import MakespanWorld, tabulate
from windfall.policies.checkpointing.optimal_schedule import optimal
from windfall.policies.replacement import reuse

SCALE, END, FIRST, SECOND = 0.4137, 24.0, 0.9, 0.76
HOUR = 3_600.0


def cdf(age_h: float) -> float:
    """SciSpot's equation 1 with the constants of its code."""
    return SCALE * (1.0 - math.exp(-age_h / FIRST) + math.exp((age_h - END) / SECOND))


def partial_mean(age_h: float) -> float:
    """An antiderivative of t f(t)."""
    late = SCALE * (age_h - SECOND) * math.exp((age_h - END) / SECOND)
    return late - SCALE * (age_h + FIRST) * math.exp(-age_h / FIRST)


def bathtub(allocate_s: float = 120.0, prepare_s: float = 0.0) -> MakespanWorld:
    def log_survival(ages_s: np.ndarray) -> np.ndarray:
        alive = np.array([1.0 - cdf(age_s / HOUR) + cdf(0.0) for age_s in ages_s])
        with np.errstate(divide="ignore"):
            return np.log(np.clip(alive, 0.0, 1.0))

    return MakespanWorld(tabulate(log_survival, until_s=26 * HOUR, cell_s=120.0), 60.0, None, allocate_s, prepare_s)


def memoryless() -> MakespanWorld:
    lifetimes = tabulate(lambda age_s: -age_s / 10_800.0, until_s=200_000.0, cell_s=600.0)
    return MakespanWorld(lifetimes, 60.0, allocate_s=136.5, prepare_s=160.0)


def drawn_s(world: MakespanWorld, job_s: float, age_s: float, trials: int, seed: int) -> tuple[float, float]:
    """Mean and standard error of the time to finish, by drawing lives from the table."""
    chance = np.random.default_rng(seed)
    ages_s = world.lifetimes.cell_s * np.arange(len(world.lifetimes.survival))

    def ends_s(from_s: float, count: int) -> np.ndarray:
        begun = world.lifetimes.at(np.array([from_s]))[0][0]
        return np.interp(-chance.uniform(size=count) * begun, -world.lifetimes.survival, ages_s)

    times, running, now_s = np.zeros(trials), np.arange(trials), age_s
    while len(running):
        end_s = ends_s(now_s, len(running))
        times[running] += np.minimum(end_s - now_s, job_s)
        running, now_s = running[end_s - now_s < job_s], 0.0
        times[running] += world.allocate_s
    return float(times.mean()), float(times.std() / math.sqrt(trials))


@pytest.mark.parametrize("age_h", [0.0, 2.0, 8.0, 20.0])
def test_the_expectations_are_those_of_drawn_machines(age_h: float) -> None:
    """A 6 h job begun at four ages: within four standard errors of 40,000 drawn jobs."""
    world = bathtub()
    mean_s, error_s = drawn_s(world, 6.0 * HOUR, age_h * HOUR, 40_000, seed=3)

    assert reuse.decide(world, 6.0 * HOUR, age_h * HOUR).reuse_s == pytest.approx(mean_s, abs=4.0 * error_s + 20.0)


def test_a_bathtub_keeps_machines_past_infancy_and_lets_old_ones_go() -> None:
    """A 6 h job is kept from a few minutes of age on, until what is left of the day is too short."""
    world = bathtub()
    ((begin_s, end_s),) = reuse.reused_ages_s(world, 6.0 * HOUR, 24.0 * HOUR)

    assert begin_s == 0.0
    assert 15.0 * HOUR < end_s < 18.5 * HOUR
    assert reuse.decide(world, 6.0 * HOUR, 6.0 * HOUR).reuse
    assert not reuse.decide(world, 6.0 * HOUR, 20.0 * HOUR).reuse
    assert reuse.longest_reused_s(world, end_s, 24.0 * HOUR) == pytest.approx(6.0 * HOUR, rel=1e-3)


def test_without_memory_age_does_not_matter_and_a_machine_at_hand_is_kept() -> None:
    """A memoryless machine is as good as new, and it is there already: reuse saves exactly the gap."""
    world = memoryless()
    found = [reuse.decide(world, 7_200.0, age_s) for age_s in (0.0, 50_000.0)]

    assert all(one.reuse for one in found)
    assert found[0].reuse_s == pytest.approx(found[1].reuse_s, rel=1e-9)
    assert found[0].fresh_s - found[0].reuse_s == pytest.approx(world.gap_s, rel=1e-9)
    assert reuse.longest_reused_s(world, 50_000.0, 72_000.0) == 72_000.0


def test_failure_odds_are_conditional_on_the_age_reached() -> None:
    """1 - S(s + T) / S(s): for the 6 h job half of the fresh machine's at most once infancy is over."""
    world = bathtub()

    assert reuse.failure_probability(world, 6.0 * HOUR, 0.0) == pytest.approx(0.41317, abs=1e-4)
    assert reuse.failure_probability(world, 6.0 * HOUR, 8.0 * HOUR) < 0.005
    alive = 1.0 - cdf(16.0) + cdf(0.0)
    assert reuse.failure_probability(world, 6.0 * HOUR, 16.0 * HOUR) == pytest.approx(
        (cdf(22.0) - cdf(16.0)) / alive, rel=1e-3
    )
    assert reuse.failure_probability(world, 6.0 * HOUR, 23.0 * HOUR) == 1.0


def test_a_saved_job_is_compared_by_its_schedules() -> None:
    """With saves a machine is kept longer: what it loses is a segment, not the job."""
    world = bathtub()
    kept = {}
    for age_h in (6.0, 17.0, 23.5):
        best = optimal(world, 6.0 * HOUR, age_s=age_h * HOUR, unit_s=120.0).expected
        kept[age_h] = reuse.compare(
            world, 6.0 * HOUR, age_h * HOUR, reuse_s=best.expected_s, fresh_s=best.from_nothing_s
        ).reuse

    assert kept == {6.0: True, 17.0: True, 23.5: False}


def test_the_published_failure_probability_halves() -> None:
    """Averaged over ages 0 to 23 h the 6 h job fails with 0.257 if always reused and 0.135 under the policy."""
    reference = published("scispot/scheduling_outputs.json")
    end_h, ages_h = 24.3, range(25)
    always = [reuse.published_failure(cdf, 6.0, float(age), end_h) for age in ages_h]
    policy = [reuse.published_failure_by_policy(cdf, 6.0, float(age), end_h) for age in ages_h]

    for age, (wanted_always, wanted_policy) in reference["six_hour_job_failure_probability_by_start_h"].items():
        assert (always[int(age)], policy[int(age)]) == pytest.approx((wanted_always, wanted_policy), abs=1e-5)
    assert sum(always[:24]) / 24 == pytest.approx(0.257, abs=6e-4)
    assert sum(policy[:24]) / 24 == pytest.approx(0.135, abs=6e-4)


def test_the_published_transition_points() -> None:
    """The longest job for which the published rule keeps a machine, at 16 ages, within 0.02 h."""
    reference = published("scispot/scheduling_outputs.json")["transition_job_length_h_by_vm_age"]
    for age, (wanted, _) in reference.items():
        assert reuse.published_longest(partial_mean, float(age), 24.0) == pytest.approx(wanted, abs=0.02)


def test_counting_right_keeps_machines_for_longer_jobs() -> None:
    """The published rule charges a loss the machine's age: counted from the job's start, every transition point is later."""
    world, rows = bathtub(allocate_s=0.0), []
    for age_h in (1.0, 4.0, 10.0, 16.0, 18.0, 20.0):
        ours_h = reuse.longest_reused_s(world, age_h * HOUR, 24.0 * HOUR) / HOUR
        rows.append((age_h, ours_h, reuse.published_longest(partial_mean, age_h, 24.0)))

    print("\nlongest job kept [h]: age, ours, published")
    for row in rows:
        print("".join(f"{value:8.2f}" for value in row))
    assert all(ours_h > published_h for _, ours_h, published_h in rows)


def test_the_figure_and_the_rule_of_the_paper_differ() -> None:
    """At 16 h the figure keeps a machine for the 6 h job that the printed rule retires."""
    assert reuse.published_failure_by_policy(cdf, 6.0, 16.0, 24.3) == pytest.approx(cdf(22.0) - cdf(16.0))
    assert not reuse.published_reuse(partial_mean, 6.0, 16.0)


@pytest.mark.parametrize(("job_s", "age_s"), [(0.0, 0.0), (-5.0, 0.0), (60.0, -1.0)])
def test_what_is_no_job_is_refused(job_s: float, age_s: float) -> None:
    """A job of no length, or a machine of negative age, is named."""
    with pytest.raises(Misuse):
        reuse.decide(memoryless(), job_s, age_s)
