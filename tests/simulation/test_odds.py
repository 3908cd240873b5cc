"""How sure a plan is: exactly where the exact distribution applies, by trials elsewhere, and the two agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.jobs import Objective
from windfall.simulation import kernels
from windfall.simulation.odds import fixed, odds
from windfall.simulation.outcomes import Trials
from windfall.simulation.scenario import (
    DurationRange,
    LifetimeQuantiles,
    MemorylessLifetimes,
    Scenario,
    WorkerEstimates,
)
from windfall.structs import replace
from windfall.terms import Seconds, Usd

MTTP_S = 7200.0
SCENARIO = Scenario(
    steps=10_000,
    step_s=DurationRange(1.9, 2.1),
    stall_s=DurationRange(2.0, 2.0),
    upload_s=DurationRange(4.0, 6.0),
    allocate_s=DurationRange(50.0, 70.0),
    prepare_s=DurationRange(30.0, 40.0),
    lifetimes=MemorylessLifetimes((MTTP_S,)),
    notice_s=0.0,
    announced_share=0.0,
    policy="young-daly",
    estimates=WorkerEstimates(MTTP_S, 1.0, 100.0),
    price_usd_per_hour=2.0,
)
OBJECTIVE = Objective(Seconds(21_500.0), Usd(12.0))


def play(scenario: Scenario, trials: int, seed: int) -> Trials:
    return kernels.simulate(scenario, trials=trials, seed=seed)


def never(*_: object) -> Trials:
    raise AssertionError("nothing needs to be played here")


def near(exact: float, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], share: float) -> bool:
    """Whether so many trials lie below as should, within 4 standard errors and a thousandth for what is left out."""
    found = float(np.mean(values <= exact))
    return abs(found - share) <= 4.0 * math.sqrt(share * (1.0 - share) / len(values)) + 1e-3 * 5.0


@pytest.mark.parametrize("policy", ["young-daly", "every:100steps", "every:300s", "thesis", "never", "adaptive"])
def test_the_exact_distribution_is_that_of_the_trials(policy: str) -> None:
    """P50 and P90 of finish and cost, and the odds of deadline and budget: calculated without a trial, and met by 6,000."""
    scenario = replace(SCENARIO, policy=policy)
    if policy == "never":
        scenario = replace(scenario, steps=1000)
    found = odds(scenario, OBJECTIVE, never)
    played = play(scenario, 6000, 1)
    cost_usd = played.billed_s * scenario.price_usd_per_hour / 3600.0

    assert found.trials == 0
    for exact, values in ((found.finish_s, played.finish_s), (found.cost_usd, cost_usd)):
        assert near(exact[0], values, 0.5), (policy, exact[0], np.quantile(values, 0.5))
        assert near(exact[1], values, 0.9), (policy, exact[1], np.quantile(values, 0.9))
    assert found.in_time == pytest.approx(float(np.mean(played.finish_s <= OBJECTIVE.deadline_s)), abs=0.02)
    assert found.in_budget == pytest.approx(float(np.mean(cost_usd <= OBJECTIVE.budget_usd)), abs=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"notice_s": 30.0, "announced_share": 0.5},
        {"machines": 2},
        {"policy": "optimal"},
        {"lifetimes": LifetimeQuantiles((0.0, 3600.0, math.inf))},
        {"lifetimes": MemorylessLifetimes((90.0, 300.0))},
        {"prepare_s": DurationRange(800.0, 900.0)},
        {"allocate_s": DurationRange(0.0, 2000.0)},
        {"upload_s": DurationRange(900.0, 900.0)},
    ],
    ids="-".join,
)
def test_elsewhere_trials_are_played(changes: dict[str, object]) -> None:
    """Notice, several machines, other lifetimes, a schedule, long or vague restarts: not what the formula is of."""
    assert fixed(SCENARIO) is not None
    assert fixed(replace(SCENARIO, **changes)) is None  # type: ignore[arg-type]


def test_what_is_played_is_counted() -> None:
    """With notice: quantiles and odds of the trials themselves; the same seed gives the same odds."""
    scenario = replace(SCENARIO, notice_s=30.0, announced_share=0.5)
    found = odds(scenario, OBJECTIVE, play, trials=2000, seed=5)
    finish_s = play(scenario, 2000, 5).finish_s

    assert found.trials == 2000
    assert found.finish_s == pytest.approx(tuple(np.quantile(finish_s, (0.5, 0.9))))
    assert found.in_time == float(np.mean(finish_s <= 21_500.0))
    assert found == odds(scenario, OBJECTIVE, play, trials=2000, seed=5)
    assert found != odds(scenario, OBJECTIVE, play, trials=2000, seed=6)
