"""P50 and P90 of a plan's cost and finish: exact where the exact distribution applies, else from trials.

The exact distribution (`models.exact.finish_time`) is for one machine with memoryless losses, no notice, and a fixed
interval between saves.  It takes the delay of a loss as uniform; here the delay is an allocation, a preparation, and the
upload that a checkpoint needs before it counts, so the uniform gets their mean and variance.  It neglects a loss during the
preparation, and that no upload follows the first save yet; both are of the order

    (A + P + d) (P + d) / M^2,    A allocation, P preparation, d upload, M mean time to a loss

and it is used where that is below `NEGLECTED_MAX` and the start of the run, which has a range too, is a small part of the
run.  The length of a step, which is drawn once, is summed over at the middles of `_NODES` equal parts of its range: a run
without any loss is a jump of the distribution, which quadrature rules of higher order handle badly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from windfall.errors import Infeasible
from windfall.jobs import Objective
from windfall.models import preemption_rates
from windfall.models.costs import Costs
from windfall.models.exact.finish_time import Distribution, FixedIntervalRun, finish
from windfall.policies.checkpointing import decision, rules
from windfall.simulation.outcomes import Trials
from windfall.simulation.scenario import MemorylessLifetimes, Scenario
from windfall.structs import Struct, replace
from windfall.terms import Instant, Phase

TRIALS = 10_000
"""How many trials give a plan's odds: the P90 is then known to about a hundredth of the spread."""
NEGLECTED_MAX = 1e-3
_START_SHARE = 0.01
_NODES = 33
_CELLS = 1 << 12

_FREE = Distribution(0.0, 1.0, 1.0, np.zeros(1))

RunTrials = Callable[[Scenario, int, int], Trials]


class Odds(Struct, frozen=True):
    """The spread of cost and finish.

    Attributes:
        cost_usd, finish_s: (P50, P90).
        in_time, in_budget: odds that deadline and budget are met; None where there is none.
        trials: how many they rest on; 0: calculated exactly.
    """

    cost_usd: tuple[float, float]
    finish_s: tuple[float, float]
    in_time: float | None
    in_budget: float | None
    trials: int


def odds(
    scenario: Scenario, objective: Objective, run_trials: RunTrials, *, trials: int = TRIALS, seed: int = 0
) -> Odds:
    """Return the odds of a scenario.

    Args:
        scenario: one job.
        objective: its deadline and budget.
        run_trials: (scenario, trials, seed) -> outcomes: the kernel; not called where the exact distribution applies.
        trials: how many to run.
        seed: of the draws.
    """
    if (run := fixed(scenario)) is not None:
        try:
            return _exact(scenario, run, objective)
        except Infeasible:  # more losses than it counts: use trials
            pass
    outcomes = run_trials(scenario, trials, seed)
    cost_usd = outcomes.billed_s * (scenario.price_usd_per_hour / 3600.0)
    deadline_s, budget_usd = objective.deadline_s, objective.budget_usd
    return Odds(
        cost_usd=_pair(np.quantile(cost_usd, (0.5, 0.9))),
        finish_s=_pair(np.quantile(outcomes.finish_s, (0.5, 0.9))),
        in_time=None if deadline_s is None else float(np.mean(outcomes.finish_s <= deadline_s)),
        in_budget=None if budget_usd is None else float(np.mean(cost_usd <= budget_usd)),
        trials=trials,
    )


def fixed(scenario: Scenario) -> FixedIntervalRun | None:
    """Return the run for the exact distribution, with a mean step; None where the distribution does not apply."""
    lifetimes = scenario.lifetimes
    silent = scenario.announced_share <= 0.0 or scenario.notice_s <= 0.0
    if (
        not isinstance(lifetimes, MemorylessLifetimes)
        or len(set(lifetimes.means_s)) > 1
        or not silent
        or scenario.machines > 1
    ):
        return None
    interval_s = _interval_s(scenario)
    if interval_s is None:
        return None
    mttp_s, step_s = lifetimes.means_s[0], scenario.step_s.mean_s
    ranges = (scenario.allocate_s, scenario.prepare_s, scenario.upload_s)
    allocate_s, prepare_s, upload_s = (length.mean_s for length in ranges)
    lag_s = upload_s if math.isfinite(interval_s) else 0.0
    half_s = math.hypot(*((length.high_s - length.low_s) / 2.0 for length in ranges))
    work_s = scenario.steps * step_s
    neglected = (allocate_s + prepare_s + lag_s) * (prepare_s + lag_s) / mttp_s**2
    if neglected > NEGLECTED_MAX or half_s > _START_SHARE * work_s or upload_s > interval_s:
        return None
    mean_s = allocate_s + prepare_s + lag_s
    half_s = min(half_s, mean_s)
    return FixedIntervalRun(
        work_s=work_s,
        interval_s=interval_s,
        stall_s=scenario.stall_s.mean_s,
        mttp_s=mttp_s,
        restart_s=mean_s - half_s,
        restart_most_s=mean_s + half_s,
        start_s=allocate_s + prepare_s,
    )


def _interval_s(scenario: Scenario) -> float | None:
    """Return the worker's training time between two saves once costs are known [s]; None: it varies."""
    if decision.saving_policy(scenario.policy).scheduled:
        return None
    step_s, estimates = scenario.step_s.mean_s, scenario.estimates
    costs = Costs().add_steps(1, step_s, step_s).add_stall(scenario.stall_s.mean_s)
    costs = costs.add_upload(1, scenario.upload_s.mean_s).add_commit(0.0)
    learnt = preemption_rates.PreemptionHistory(
        scenario.provider,
        mttp_given_s=estimates.mttp_s,
        restart_given_s=estimates.restart_s,
        share_given=estimates.unannounced_share,
        notice_given_s=estimates.notice_s,
    )
    view = decision.SavingView(scenario.policy, 0.0, (decision.RankProgress(0, Phase.BETWEEN, 0.0),), 0, 0)
    choice = decision.decide(Instant(0.0), view, decision.Estimates(learnt, costs))
    if choice.interval_s is not None:
        return rules.thesis_insurance_step(0, choice.interval_s, step_s) * step_s
    return math.inf if choice.save_at is None else choice.save_at * step_s


def _exact(scenario: Scenario, run: FixedIntervalRun, objective: Objective) -> Odds:
    """Sum over the length of a step."""
    step, mean_s = scenario.step_s, scenario.step_s.mean_s
    count = 1 if step.low_s == step.high_s else _NODES
    shares = [1.0 / count] * count
    prepare_s, price = scenario.prepare_s.mean_s, scenario.price_usd_per_hour
    lag_s = run.restart_mean_s - run.start_s
    finishes, costs = [], []
    for node in range(count):
        stretch = step.at((node + 0.5) / count) / mean_s
        interval_s = run.interval_s * (stretch if scenario.policy.endswith("steps") else 1.0)
        one = replace(run, work_s=run.work_s * stretch, interval_s=interval_s)
        finishes.append(finish(one, _CELLS))
        billed = replace(one, restart_s=prepare_s + lag_s, restart_most_s=None, start_s=prepare_s)
        costs.append(finish(billed, _CELLS).times(price / 3600.0) if price > 0.0 else _FREE)
    deadline_s, budget_usd = objective.deadline_s, objective.budget_usd
    return Odds(
        cost_usd=(_quantile(costs, shares, 0.5), _quantile(costs, shares, 0.9)),
        finish_s=(_quantile(finishes, shares, 0.5), _quantile(finishes, shares, 0.9)),
        in_time=None if deadline_s is None else _below(finishes, shares, deadline_s),
        in_budget=None if budget_usd is None else _below(costs, shares, budget_usd),
        trials=0,
    )


def _below(parts: Sequence[Distribution], shares: Sequence[float], value: float) -> float:
    return math.fsum(share * part.below(value) for part, share in zip(parts, shares, strict=True))


def _quantile(parts: Sequence[Distribution], shares: Sequence[float], odds_: float) -> float:
    """Return the quantile of a mixture, by bisection between its parts'."""
    found = [part.quantile(odds_) for part in parts]
    low, high = min(found), max(found)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _below(parts, shares, middle) < odds_ else (low, middle)
    return high


def _pair(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, float]:
    return float(values[0]), float(values[1])
