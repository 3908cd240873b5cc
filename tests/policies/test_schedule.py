"""The optimal schedule: against rules in random worlds, in its limits, and at what it refuses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from windfall.errors import Infeasible, Misuse
from windfall.models.exact.makespan import MakespanWorld, SurvivalTable, every, expect, schedule_of, tabulate
from windfall.policies.checkpointing import rules
from windfall.policies.checkpointing.optimal_schedule import default_unit_s, optimal

WORLDS = 200
MTTP_S = 10_800.0


def law(stream: random.Random, mean_s: float) -> Callable[[np.ndarray], np.ndarray]:
    """A lifetime law of a random kind: memoryless, ageing, early deaths, or a bathtub with an end."""
    kind = stream.choice(("exponential", "weibull", "bathtub"))
    if kind == "exponential":
        return lambda age_s: -age_s / mean_s
    if kind == "weibull":
        shape = stream.uniform(0.5, 3.0)
        scale_s = mean_s / math.gamma(1.0 + 1.0 / shape)
        return lambda age_s: -((age_s / scale_s) ** shape)
    early, fast_s, wall_s = (
        stream.uniform(0.1, 0.5),
        mean_s * stream.uniform(0.05, 0.2),
        mean_s * stream.uniform(0.02, 0.1),
    )
    return lambda age_s: (
        np.log1p(-early * -np.expm1(-age_s / fast_s)) - np.exp(np.minimum((age_s - 1.5 * mean_s) / wall_s, 600.0))
    )


def random_world(stream: random.Random) -> tuple[MakespanWorld, int, float, float]:
    """A world, units of work, a unit [s] and an age [s]."""
    unit_s, units = stream.choice((30.0, 60.0, 300.0)), stream.randrange(20, 160)
    mean_s = units * unit_s * 10.0 ** stream.uniform(-0.7, 1.0)
    stall_s = unit_s * stream.choice((0.0, 0.1, 0.37, 1.0, 2.0, 3.3))
    age_s = stream.choice((0.0, 0.3, 0.9)) * mean_s
    unscaled = law(stream, mean_s)
    at_zero = float(unscaled(np.array([0.0]))[0])
    lifetimes = tabulate(
        lambda ages_s: unscaled(ages_s) - at_zero,
        until_s=age_s + 4.0 * units * unit_s + 9.0 * units * stall_s + 9e3,
        cell_s=unit_s,
    )
    world = MakespanWorld(
        lifetimes,
        stall_s,
        stall_s + unit_s * stream.choice((0.0, 0.0, 0.5, 2.0)),
        unit_s * stream.uniform(0.0, 3.0),
        unit_s * stream.choice((0.0, 0.0, 1.0, 2.5)),
        stream.choice((0.0, 0.0, 0.5, 0.9)),
        stream.random() < 0.5,
    )
    return world, units, unit_s, age_s


def rule_intervals(world: MakespanWorld, mean_s: float, unit_s: float) -> dict[str, int]:
    """The rules' intervals in whole units, told the true mean life and the share that redoes work."""
    mttl_s = mean_s / max(1.0 - world.covered_share, 1e-9)
    restart_s, stall_s = world.allocate_s + world.prepare_s, max(world.stall_s, 1e-3)
    taus_s = {
        "thesis": rules.thesis_interval_s(stall_s, mttl_s, restart_s),
        "young": rules.young_interval_s(stall_s, mttl_s),
        "daly": rules.daly_interval_s(stall_s, mttl_s, restart_s),
        "daly, higher order": rules.daly_higher_order_interval_s(stall_s, mttl_s),
    }
    return {name: max(math.floor(tau_s / unit_s), 1) for name, tau_s in taus_s.items()}


def gains(seed: int) -> dict[str, float]:
    """How much longer each rule takes than the optimal schedule, as a share, in one random world."""
    world, units, unit_s, age_s = random_world(random.Random(seed))
    best_s = optimal(world, units * unit_s, age_s=age_s, unit_s=unit_s).expected.expected_s
    found = {}
    for name, interval in rule_intervals(world, world.lifetimes.mean_left_s(), unit_s).items():
        rule = schedule_of(
            units,
            unit_s,
            age_s,
            partial(every, interval=min(interval, units)),
            everywhere=world.covered_share > 0.0,
        )
        try:
            found[name] = expect(world, rule).expected_s / best_s - 1.0
        except Infeasible:
            found[name] = math.inf
    return found


def test_no_rule_is_better_in_two_hundred_random_worlds() -> None:
    """By exact expectation the schedule is never worse than the thesis, Young or Daly, and gains are printed by rule."""
    found = [gains(seed) for seed in range(WORLDS)]

    print(
        f"\n{'rule':<20}{'least':>10}{'median':>10}{'mean':>10}{'most':>10}   longer than optimal [%], {WORLDS} worlds"
    )
    for name in found[0]:
        longer = sorted(100.0 * gain[name] for gain in found)
        finite = [value for value in longer if math.isfinite(value)]
        print(
            f"{name:<20}{longer[0]:>10.4f}{longer[WORLDS // 2]:>10.3f}{sum(finite) / len(finite):>10.3f}{longer[-1]:>10.1f}"
        )
    assert min(value for gain in found for value in gain.values()) >= -1e-6
    assert max(value for gain in found for value in gain.values()) > 0.01


def memoryless(until_s: float, cell_s: float = 60.0) -> SurvivalTable:
    return tabulate(lambda age_s: -age_s / MTTP_S, until_s=until_s, cell_s=cell_s)


def test_a_memoryless_world_gives_equal_intervals_near_dalys() -> None:
    """Without ageing the intervals differ by a unit at most and are Daly's higher-order ones; age does not matter."""
    world = MakespanWorld(memoryless(200_000.0), 60.0, allocate_s=300.0, saves_at_end=True)
    found = optimal(world, 36_000.0, unit_s=60.0)
    later = optimal(world, 36_000.0, unit_s=60.0, age_s=7_200.0)
    daly = rules.daly_higher_order_interval_s(60.0, MTTP_S) / 60.0

    assert np.ptp(found.schedule.first) <= 2
    assert found.schedule.first.mean() == pytest.approx(daly, rel=0.03)
    assert later.expected.expected_s == pytest.approx(found.expected.expected_s, rel=1e-9)


def test_what_it_expects_is_what_a_search_finds() -> None:
    """On a small run the best of all schedules, found by trying every one, is the one returned."""
    lifetimes = tabulate(lambda age_s: -((age_s / 3_000.0) ** 0.6), until_s=40_000.0, cell_s=60.0)
    world, units, unit_s = MakespanWorld(lifetimes, 120.0, 180.0, 90.0), 9, 120.0

    def splits(left: int) -> list[tuple[int, ...]]:
        return [(left,)] + [(first, *rest) for first in range(1, left) for rest in splits(left - first)]

    chosen: dict[int, tuple[int, ...]] = {}
    for left in range(1, units + 1):
        tried = [
            (
                expect(
                    world, schedule_of(left, unit_s, 0.0, lambda j, own=own, n=left: own if j == n else chosen[j])
                ).expected_s,
                own,
            )
            for own in splits(left)
        ]
        chosen[left] = min(tried)[1]

    found = optimal(world, units * unit_s, unit_s=unit_s)

    assert tuple(found.schedule.first) == chosen[units]
    assert found.expected.expected_s == pytest.approx(min(tried)[0], rel=1e-12)


def test_cover_makes_saves_rarer_and_full_cover_makes_them_needless() -> None:
    """The larger the share that an emergency save covers, the fewer saves; with all covered there is none."""
    counts = []
    for share in (0.0, 0.5, 0.9, 1.0):
        world = MakespanWorld(memoryless(200_000.0), 60.0, allocate_s=300.0, covered_share=share)
        counts.append(len(optimal(world, 36_000.0, unit_s=120.0).saves_at_s))

    assert all(fewer < more for more, fewer in pairwise(counts))
    assert counts[-1] == 0


def test_early_deaths_make_the_first_intervals_short() -> None:
    """Where machines die young the intervals grow with age, and a machine past its infancy saves less often."""
    lifetimes = tabulate(lambda age_s: -((age_s / 20_000.0) ** 0.4), until_s=200_000.0, cell_s=60.0)
    world = MakespanWorld(lifetimes, 60.0, allocate_s=120.0)
    young, old = (optimal(world, 14_400.0, unit_s=60.0, age_s=age_s) for age_s in (0.0, 36_000.0))
    grown = young.schedule.first[:-1]

    assert all(earlier <= later for earlier, later in pairwise(grown[: len(grown) // 2]))
    assert young.schedule.first[0] < 0.5 * old.schedule.first[0]
    assert old.expected.expected_s < young.expected.expected_s


def test_the_usual_unit_is_fine_enough() -> None:
    """The unit chosen for 100 h is within a per mille of a quarter of it, and is none below a stall."""
    assert default_unit_s(360_000.0, 60.0) == 300.0
    assert default_unit_s(36_000.0, 60.0) == 60.0
    world = MakespanWorld(memoryless(500_000.0, 75.0), 60.0, allocate_s=120.0, saves_at_end=True)
    usual, finer = (optimal(world, 180_000.0, unit_s=unit_s).expected.expected_s for unit_s in (300.0, 150.0))

    assert 0.0 <= usual / finer - 1.0 < 1e-3


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"work_s": 0.0}, Misuse, "cannot be planned"),
        ({"work_s": 3_600.0, "unit_s": -1.0}, Misuse, "cannot be planned"),
        ({"work_s": 3_600.0, "unit_s": 0.01}, Misuse, "too many to plan"),
        ({"work_s": 1e6}, Misuse, "the lifetime table ends at"),
    ],
)
def test_what_cannot_be_planned_is_refused(given: dict[str, float], error: type[Exception], words: str) -> None:
    """No work, no unit, too fine a unit, and ages beyond the table are each one sentence."""
    with pytest.raises(error, match=words):
        optimal(MakespanWorld(memoryless(40_000.0), 60.0), **given)


def test_lives_known_a_little_beyond_the_work_are_enough() -> None:
    """Ages that only a run with many saves would reach count as the oldest that is known."""
    short, long = (
        optimal(MakespanWorld(memoryless(until_s, 60.0), 60.0), 3_600.0, unit_s=60.0) for until_s in (4_000.0, 40_000.0)
    )
    assert short.schedule.first.tolist() == long.schedule.first.tolist()


def test_lives_too_short_for_any_progress_are_refused() -> None:
    """A unit and its save that outlast every machine: infeasible."""
    lifetimes = SurvivalTable.of(10.0, np.array([1.0, 0.9, 0.5, 0.0]))

    with pytest.raises(Infeasible, match="long enough"):
        optimal(MakespanWorld(lifetimes, 60.0), 3_600.0, unit_s=60.0)
