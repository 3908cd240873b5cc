"""Expected makespans of given schedules, and the tables of lives they rest on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.errors import Infeasible, Misuse
from windfall.models.exact.makespan import MakespanWorld, Schedule, SurvivalTable, every, expect, schedule_of, tabulate
from windfall.models.expected_runtime import unsaved_s

MTTP_S = 10_800.0


def memoryless(until_s: float = 400_000.0, cell_s: float = 97.0) -> SurvivalTable:
    return tabulate(lambda age_s: -age_s / MTTP_S, until_s=until_s, cell_s=cell_s)


def weibull(shape: float, scale_s: float, until_s: float, cell_s: float = 10.0) -> SurvivalTable:
    return tabulate(lambda age_s: -((age_s / scale_s) ** shape), until_s=until_s, cell_s=cell_s)


def drawn(world: MakespanWorld, schedule: Schedule, inverse, trials: int, seed: int) -> tuple[float, float]:
    """Mean and standard error of makespans by drawing lives: unit by unit, independent of the exact code."""
    chance = np.random.default_rng(seed)
    unit_s, times = schedule.unit_s, np.empty(trials)
    for trial in range(trials):
        now_s, age_s, left, intervals = 0.0, schedule.age_s, schedule.units, list(schedule.first)
        end_s = inverse(chance.uniform(), age_s)
        safe, pending = left, []
        while True:
            interval = intervals.pop(0)
            last = not intervals
            worked_s = age_s + interval * unit_s
            done_s = worked_s + (world.final_s if last else world.stall_s)
            if end_s >= done_s:
                now_s += done_s - age_s
                age_s, left = done_s, left - interval
                if last:
                    break
                pending.append((age_s + world.lag_s, left))
                continue
            now_s += end_s - age_s
            for durable_s, units in pending:
                safe = units if durable_s <= end_s else safe
            if chance.uniform() < world.covered_share:
                units = min(int((end_s - age_s) / unit_s), interval)
                half = units < interval and chance.uniform() < 0.5
                safe = left - units - half
            if safe == 0:
                break
            while True:
                now_s += world.allocate_s
                end_s, age_s = inverse(chance.uniform(), 0.0), world.prepare_s
                now_s += min(end_s, world.prepare_s)
                if end_s >= world.prepare_s:
                    break
            left, pending, intervals = safe, [], list(schedule.fresh(safe))
        times[trial] = now_s
    return float(times.mean()), float(times.std() / math.sqrt(trials))


def test_a_memoryless_run_is_dalys_closed_form() -> None:
    """Twelve segments and a rest, from any age, are (M + R) (e^(w/M) - 1) each."""
    world = MakespanWorld(memoryless(), 37.0, allocate_s=210.0)
    wanted_s = 12 * unsaved_s(900.0 + 37.0, MTTP_S, 210.0) + unsaved_s(450.0, MTTP_S, 210.0)

    for age_s in (0.0, 12_345.6):
        found = expect(world, schedule_of(250, 45.0, age_s, lambda left: every(left, 20)))
        assert found.expected_s == pytest.approx(wanted_s, rel=1e-9)


def test_a_late_commit_is_the_closed_form_of_a_longer_restart() -> None:
    """A point that counts d after its save costs (M + R) e^(d/M) in the place of M + R, but for the last segment."""
    world = MakespanWorld(memoryless(), 30.0, durable_s=130.0, allocate_s=200.0)
    found = expect(world, schedule_of(40, 60.0, 0.0, lambda left: every(left, 20)))
    late_s = (MTTP_S + 200.0) * math.exp(100.0 / MTTP_S)
    wanted_s = late_s * math.expm1(1_230.0 / MTTP_S) + (MTTP_S + 200.0) * math.expm1(1_200.0 / MTTP_S)

    assert found.expected_s == pytest.approx(wanted_s, rel=1e-9)


def test_preparation_can_be_lost_too() -> None:
    """From ordering a machine on: (A + P lost now and then) before the first unit, as the memoryless gap has it."""
    world = MakespanWorld(memoryless(), 0.0, allocate_s=120.0, prepare_s=300.0)
    gap_s = (120.0 + MTTP_S * (1.0 - math.exp(-300.0 / MTTP_S))) / math.exp(-300.0 / MTTP_S)
    found = expect(world, schedule_of(10, 60.0, 300.0, lambda left: every(left, 10)))

    assert world.gap_s == pytest.approx(gap_s, rel=1e-12)
    assert found.from_nothing_s == pytest.approx(gap_s + unsaved_s(600.0, MTTP_S, gap_s), rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "age_s", "covered", "durable_s", "at_end"),
    [
        (0.6, 0.0, 0.0, 25.0, True),
        (1.8, 5_000.0, 0.0, 400.0, False),
        (0.7, 600.0, 0.5, 300.0, False),
        (2.5, 0.0, 1.0, 30.0, True),
    ],
)
def test_the_expectation_is_that_of_drawn_runs(
    shape: float, age_s: float, covered: float, durable_s: float, at_end: bool
) -> None:
    """Ageing either way, covered losses, late commits, preparation: within four standard errors of 6,000 drawn runs."""
    scale_s = 9_000.0
    world = MakespanWorld(weibull(shape, scale_s, 60_000.0), 25.0, durable_s, 90.0, 150.0, covered, at_end)
    schedule = schedule_of(60, 120.0, age_s, lambda left: every(left, 9), everywhere=covered > 0.0)

    def inverse(odds: float, from_s: float) -> float:
        return scale_s * ((from_s / scale_s) ** shape - math.log(odds)) ** (1.0 / shape)

    mean_s, error_s = drawn(world, schedule, inverse, 6_000, seed=11)

    assert expect(world, schedule).expected_s == pytest.approx(mean_s, abs=4.0 * error_s)


def test_a_table_is_its_law() -> None:
    """Between its ages a table of a memoryless law has no error; of an ageing one the second order of its cell."""
    lifetimes, ages_s = memoryless(20_000.0, 500.0), np.array([0.0, 1.0, 777.7, 12_345.0])
    survival, integral_s = lifetimes.at(ages_s)
    coarse, fine = (weibull(2.0, 9_000.0, 20_000.0, cell).at(np.array([8_123.0]))[1][0] for cell in (200.0, 2.0))

    assert survival == pytest.approx(np.exp(-ages_s / MTTP_S), rel=1e-12)
    assert integral_s == pytest.approx(-MTTP_S * np.expm1(-ages_s / MTTP_S), rel=1e-12)
    assert coarse == pytest.approx(fine, rel=1e-4)


def test_lives_that_end_end() -> None:
    """Beyond the last age of a law that ends nothing lives, and the mean life stays finite."""
    lifetimes = SurvivalTable.of(3_600.0, np.array([1.0, 0.5, 0.25, 0.0]))
    survival, integral_s = lifetimes.at(np.array([9_000.0, 1e6]))

    assert survival.tolist() == [0.125, 0.0]
    assert integral_s[1] == lifetimes.mean_left_s() == lifetimes.integral_s[-1]
    assert lifetimes.mean_left_s(11_000.0) == 0.0


@pytest.mark.parametrize(
    "values",
    [[1.0], [0.9, 0.5], [1.0, 0.5, 0.6], [1.0, math.nan], [1.0, -0.1]],
    ids=["short", "start", "rise", "nan", "below"],
)
def test_what_is_no_survival_is_refused(values: list[float]) -> None:
    """A row that does not begin with one, rises, falls below nought or misses numbers is named."""
    with pytest.raises(Misuse, match="survival table"):
        SurvivalTable.of(60.0, np.array(values))


def test_ages_beyond_the_data_are_refused() -> None:
    """A run that could outlast the table says what is known and what was asked."""
    world = MakespanWorld(memoryless(until_s=3_600.0), 10.0)

    with pytest.raises(Misuse, match="the lifetime table ends at"):
        expect(world, schedule_of(10, 600.0, 0.0, lambda left: every(left, 2)))


def test_no_progress_is_refused() -> None:
    """Segments longer than every life are infeasible, not infinite."""
    world = MakespanWorld(SurvivalTable.of(60.0, np.array([1.0, 0.9, 0.0])), 10.0)

    with pytest.raises(Infeasible, match="progress"):
        expect(world, schedule_of(10, 600.0, 0.0, lambda left: every(left, 1)))


@pytest.mark.parametrize(
    "bad", [{"stall_s": -1.0}, {"stall_s": 10.0, "durable_s": 5.0}, {"stall_s": 1.0, "covered_share": 1.2}]
)
def test_costs_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    """A negative stall, a commit before its stall ends, and a share above one are named."""
    with pytest.raises(Misuse):
        MakespanWorld(memoryless(), **bad)
