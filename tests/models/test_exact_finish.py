"""The exact distribution of finish time and cost of a fixed interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.errors import Infeasible, Misuse
from windfall.models.exact.finish_time import FixedIntervalRun, cost, deviation_s, finish, mean_s

ANCHOR = FixedIntervalRun(450_000.0, 250.0, 13.0, 10_800.0, restart_s=80.0, restart_most_s=120.0, saves_at_end=True)
RUNS = [
    ANCHOR,
    FixedIntervalRun(86_400.0, 600.0, 20.0, 10_800.0, restart_s=300.0, start_s=136.5),
    FixedIntervalRun(3_600.0, 600.0, 5.0, 100.0),
    FixedIntervalRun(1_000.0, math.inf, 0.0, 200.0, restart_s=10.0),
    FixedIntervalRun(1e5, 1e3, 10.0, 1e9, restart_s=30.0),
    FixedIntervalRun(1e6, 1_000.0, 1.0, 2_000.0, restart_s=5_000.0),
    FixedIntervalRun(40_000.0, math.inf, 13.0, 10_800.0, restart_s=100.0, restart_most_s=900.0),
]


def drawn(run: FixedIntervalRun, trials: int, seed: int) -> np.ndarray:
    """Finish times by drawing every life: independent of the exact code, segment by segment."""
    chance = np.random.default_rng(seed)
    times = np.full(trials, run.start_s)
    most_s = run.restart_s if run.restart_most_s is None else run.restart_most_s
    for count, length_s in run.segments:
        for _ in range(count):
            trying = np.arange(trials)
            while len(trying):
                lifetimes_s = chance.exponential(run.mttp_s, len(trying))
                lost = lifetimes_s < length_s
                restarts_s = chance.uniform(run.restart_s, most_s, len(trying))
                times[trying] += np.where(lost, lifetimes_s + restarts_s, length_s)
                trying = trying[lost]
    return times


@pytest.mark.parametrize("run", RUNS, ids=range(len(RUNS)))
def test_the_mean_is_the_closed_form(run: FixedIntervalRun) -> None:
    """Whatever the run, the distribution's mean is Daly's closed form within a millionth, and its odds sum to one."""
    found = finish(run)

    assert found.mean() == pytest.approx(mean_s(run), rel=1e-6)
    assert found.atom + float(found.masses.sum()) == pytest.approx(1.0, abs=1e-9)
    assert found.masses.min() > -1e-8


def test_the_anchor_is_the_known_number() -> None:
    """W 450 000 s, 250 + 13 s, MTTP 3 h, restart 80 to 120 s: 483 648.30 s, known from four other engines."""
    assert finish(ANCHOR).mean() == pytest.approx(483_648.30, abs=0.01)


@pytest.mark.parametrize("run", [RUNS[0], RUNS[1], RUNS[2], RUNS[5]], ids=["anchor", "day", "short", "storm"])
def test_the_spread_is_the_closed_form(run: FixedIntervalRun) -> None:
    """The standard deviation agrees with its own closed form within a per mille."""
    assert finish(run).deviation() == pytest.approx(deviation_s(run), rel=1e-3)


@pytest.mark.parametrize("run", [RUNS[1], RUNS[3], RUNS[6]], ids=["day", "unsaved", "unsaved day"])
def test_quantiles_are_those_of_drawn_runs(run: FixedIntervalRun) -> None:
    """P10 to P99 lie where 40,000 independently drawn runs put them: within four standard errors in odds."""
    times = drawn(run, 40_000, seed=5)
    found = finish(run)

    for odds in (0.1, 0.5, 0.9, 0.99):
        error = math.sqrt(odds * (1.0 - odds) / len(times))
        value = found.quantile(odds)
        if value > run.least_s:
            assert np.mean(times <= value) == pytest.approx(odds, abs=4.0 * error + 2e-5)
            assert found.below(value) == pytest.approx(odds, abs=1e-9)


def test_a_run_that_loses_nothing_is_certain() -> None:
    """The odds of the bare time are those of no loss, and a machine that stays gives one time only."""
    run = FixedIntervalRun(3_600.0, 600.0, 6.0, 36_000.0, restart_s=60.0)
    found = finish(run)
    sure = finish(FixedIntervalRun(3_600.0, 600.0, 6.0, math.inf))

    assert found.below(run.least_s) == pytest.approx(math.exp(-3_630.0 / 36_000.0), abs=1e-4)
    assert found.quantile(0.5) == run.least_s == 3_630.0
    assert found.below(run.least_s - 1.0) == 0.0
    assert (sure.mean(), sure.quantile(0.999), sure.deviation()) == (3_630.0, 3_630.0, 0.0)


def test_the_cost_is_price_times_what_is_billed() -> None:
    """Cost follows the time at the price of an hour; a wait that is not billed leaves it."""
    run = RUNS[1]
    whole, billed = cost(run, 2.5), cost(run, 2.5, billed_restart_s=120.0)

    assert whole.mean() == pytest.approx(mean_s(run) * 2.5 / 3_600.0, rel=1e-6)
    assert whole.quantile(0.9) == pytest.approx(finish(run).quantile(0.9) * 2.5 / 3_600.0, rel=1e-12)
    assert billed.mean() == pytest.approx(
        mean_s(FixedIntervalRun(86_400.0, 600.0, 20.0, 10_800.0, 120.0, start_s=136.5)) / 1_440.0
    )


def test_a_run_that_never_ends_is_refused() -> None:
    """Ten days unsaved with a loss an hour: a sentence, not a number."""
    with pytest.raises(Infeasible, match="save more often"):
        finish(FixedIntervalRun(864_000.0, math.inf, 0.0, 3_600.0))


@pytest.mark.parametrize(
    "made",
    [
        lambda: FixedIntervalRun(-1.0, 600.0, 5.0, 100.0),
        lambda: FixedIntervalRun(1.0, 0.0, 5.0, 100.0),
        lambda: FixedIntervalRun(1.0, 600.0, math.nan, 100.0),
        lambda: FixedIntervalRun(1.0, 600.0, 5.0, 100.0, 20.0, 10.0),
        lambda: finish(RUNS[3]).quantile(1.0),
        lambda: finish(RUNS[3]).quantile(0.0),
        lambda: finish(RUNS[3]).quantile(-0.5),
    ],
)
def test_what_is_no_run_is_refused(made) -> None:
    """Negative, zero or missing lengths, a range upside down, and odds of one are named."""
    with pytest.raises(Misuse):
        made()


def test_work_of_whole_intervals_but_for_rounding_has_no_save_at_its_end() -> None:
    """0.3 s is three intervals of 0.1 s, although 0.3 / 0.1 is a little less, and 0.7 / 0.1 a little more than seven."""
    for intervals in range(1, 200):
        run = FixedIntervalRun(work_s=intervals * 0.1 * (1.0 + 2.0**-52), interval_s=0.1, stall_s=0.01, mttp_s=1.0)

        assert sum(count for count, _ in run.segments) == intervals
        assert intervals % 20 or math.isfinite(finish(run).mean())
