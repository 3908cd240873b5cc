"""The injector's lives: exponential with the given means, the same for the same seed."""

from __future__ import annotations

import math
import statistics

import pytest

from windfall.jobs import Injection
from windfall.models.injection import lifetime_s, mean_mttp_s
from windfall.terms import Seconds


def injection(*mttp_s: float, seed: int = 7) -> Injection:
    return Injection(tuple(Seconds(mean_s) for mean_s in mttp_s), seed)


def erlang_below(total: float, count: int) -> float:
    """P(X_1 + ... + X_n < total) for n exponential values of mean 1: one less than n arrivals do not suffice."""
    logs = [arrivals * math.log(total) - total - math.lgamma(arrivals + 1) for arrivals in range(count)]
    return 1.0 - math.fsum(math.exp(log) for log in logs)


def quantile(share: float, count: int) -> float:
    """The total that `share` of all sums of `count` lives of mean 1 do not exceed."""
    low, high = 0.0, 4.0 * count
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if erlang_below(middle, count) < share else (low, middle)
    return low


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_of_400_lives_lies_in_its_exact_99_percent_interval(seed: int) -> None:
    """The sum of 400 exponential lives is gamma distributed: its mean stays where 99 % of such means are."""
    lifetimes = [lifetime_s(injection(90.0, seed=seed), slot, n) for slot in range(4) for n in range(1, 101)]
    assert quantile(0.005, 400) < sum(lifetimes) / 90.0 < quantile(0.995, 400)


def test_lives_are_exponential_and_not_only_of_the_right_mean() -> None:
    """The largest distance to 1 - exp(-x / MTTP) is below the 1 % bound of Kolmogorov and Smirnov."""
    lifetimes = sorted(lifetime_s(injection(90.0), 0, n) for n in range(1, 1001))
    distance = max(abs((place + 0.5) / 1000 + math.expm1(-x / 90.0)) for place, x in enumerate(lifetimes))
    assert distance < 1.63 / math.sqrt(1000)


def test_the_same_seed_gives_the_same_lives_and_another_seed_others() -> None:
    """A life depends on seed, slot and number alone: a controller that restarts draws it again."""
    first = [lifetime_s(injection(90.0), slot, n) for slot in range(3) for n in range(1, 20)]
    assert first == [lifetime_s(injection(90.0), slot, n) for slot in range(3) for n in range(1, 20)]
    assert len(set(first)) == len(first)
    assert first != [lifetime_s(injection(90.0, seed=8), slot, n) for slot in range(3) for n in range(1, 20)]
    # Written down once: an update of Windfall must not change rehearsals that people compare.
    assert lifetime_s(injection(90.0), 0, 1) == pytest.approx(107.76536146386468)


def test_the_list_of_mttps_is_used_one_machine_after_the_other_and_again() -> None:
    """Machines 1, 3, 5, ... of each slot live for the first mean, 2, 4, 6, ... for the second."""
    both = injection(90.0, 300.0)
    odd = statistics.fmean(lifetime_s(both, slot, n) for slot in range(20) for n in range(1, 100, 2))
    even = statistics.fmean(lifetime_s(both, slot, n) for slot in range(20) for n in range(2, 101, 2))
    assert odd == pytest.approx(90.0, rel=0.1)
    assert even == pytest.approx(300.0, rel=0.1)


def test_the_mean_time_between_preemptions_begins_with_the_first_mean_and_ends_with_the_lists() -> None:
    """A short run meets the first mean, a long one all of them; between, what simulated slots show."""
    both = injection(90.0, 300.0)
    assert mean_mttp_s(both, 0.5) == pytest.approx(90.0, rel=0.01)
    assert mean_mttp_s(both, 1e6) == pytest.approx(195.0, rel=0.02)
    assert mean_mttp_s(injection(90.0), 1e6) == 90.0
    counts = []
    for slot in range(4000):
        age, n = lifetime_s(both, slot, 1), 1
        while age < 200.0:
            n += 1
            age = Seconds(age + lifetime_s(both, slot, n))
        counts.append(n - 1)
    assert mean_mttp_s(both, 200.0) == pytest.approx(200.0 / statistics.fmean(counts), rel=0.04)
