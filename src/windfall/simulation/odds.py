"""How sure a plan is: P50 and P90 of cost and finish, exactly where the exact distribution applies, else by trials.

The exact distribution (`models.exact.finish`) is of one machine under memoryless losses without notice, with a fixed
interval between saves.  What a loss costs there is uniform; here it is an allocation, a preparation, and the upload that a
point needs before it counts, of which the uniform has mean and variance.  What it leaves out, that a machine may be lost
while it prepares, and that its first save is not followed by an upload yet, is of the order

    (A + P + d) (P + d) / M^2,    A allocation, P preparation, d upload, M mean time to a loss

and it is used where that is below `NEGLECTED_MAX`, and the begin of the run, which has a range too, is a small part of it.
The length of a step, which is drawn once, is summed over at the middles of `_NODES` equal parts of its range: a run without
any loss is a jump of the distribution, which rules of higher order do not like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from windfall.errors import Infeasible
from windfall.jobs import Objective
from windfall.models import losses
from windfall.models.costs import Costs
from windfall.models.exact.finish import Distribution, Fixed, finish
from windfall.policies.saving import decide, rules
from windfall.simulation.outcomes import Trials
from windfall.simulation.scenario import Memoryless, Scenario
from windfall.terms import Instant, Phase

TRIALS = 10_000
"""How many trials a plan's odds rest on: the P90 is then known to about a hundredth of the spread."""
NEGLECTED_MAX = 1e-3
_START_SHARE = 0.01
_NODES = 33
_CELLS = 1 << 12

_FREE = Distribution(0.0, 1.0, 1.0, np.zeros(1))

Play = Callable[[Scenario, int, int], Trials]


@dataclass(frozen=True, slots=True)
class Odds:
    """How sure cost and finish are.

    Attributes:
        cost_usd, finish_s: (P50, P90).
        in_time, in_budget: odds that deadline and budget are kept; None where there is none.
        trials: how many they were counted in; 0: calculated.
    """

    cost_usd: tuple[float, float]
    finish_s: tuple[float, float]
    in_time: float | None
    in_budget: float | None
    trials: int


def odds(scenario: Scenario, objective: Objective, play: Play, *, trials: int = TRIALS, seed: int = 0) -> Odds:
    """Return the odds of a scenario.

    Args:
        scenario: one job.
        objective: its deadline and budget.
        play: (scenario, trials, seed): the kernel; not called where the exact distribution applies.
        trials: how many, where it is called.
        seed: of the draws.
    """
    if (run := fixed(scenario)) is not None:
        try:
            return _exact(scenario, run, objective)
        except Infeasible:  # more losses than it counts: the trials say what becomes of such a run
            pass
    played = play(scenario, trials, seed)
    cost_usd = played.billed_s * (scenario.price_usd_per_hour / 3600.0)
    deadline_s, budget_usd = objective.deadline_s, objective.budget_usd
    return Odds(
        cost_usd=_pair(np.quantile(cost_usd, (0.5, 0.9))),
        finish_s=_pair(np.quantile(played.finish_s, (0.5, 0.9))),
        in_time=None if deadline_s is None else float(np.mean(played.finish_s <= deadline_s)),
        in_budget=None if budget_usd is None else float(np.mean(cost_usd <= budget_usd)),
        trials=trials,
    )


def fixed(scenario: Scenario) -> Fixed | None:
    """Return the run of which the exact distribution is known, with a mean step; None where it does not apply."""
    lives = scenario.lives
    silent = scenario.announced_share <= 0.0 or scenario.notice_s <= 0.0
    if not isinstance(lives, Memoryless) or len(set(lives.means_s)) > 1 or not silent or scenario.machines > 1:
        return None
    interval_s = _interval_s(scenario)
    if interval_s is None:
        return None
    mttp_s, step_s = lives.means_s[0], scenario.step_s.mean_s
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
    return Fixed(
        work_s=work_s,
        interval_s=interval_s,
        stall_s=scenario.stall_s.mean_s,
        mttp_s=mttp_s,
        restart_s=mean_s - half_s,
        restart_most_s=mean_s + half_s,
        start_s=allocate_s + prepare_s,
    )


def _interval_s(scenario: Scenario) -> float | None:
    """Return the training between two saves, as the worker decides once it knows what they cost [s]; None: it varies."""
    if scenario.policy == "optimal":
        return None
    step_s, believed = scenario.step_s.mean_s, scenario.believed
    costs = Costs().add_steps(1, step_s, step_s).add_stall(scenario.stall_s.mean_s)
    costs = costs.add_upload(1, scenario.upload_s.mean_s).add_commit(0.0)
    learnt = losses.Losses(
        scenario.provider,
        mttp_given_s=believed.mttp_s,
        restart_given_s=believed.restart_s,
        share_given=believed.unannounced_share,
        notice_given_s=believed.notice_s,
    )
    view = decide.SavingView(scenario.policy, 0.0, (decide.Standing(0, Phase.BETWEEN, 0.0),), 0, 0)
    choice = decide.decide(Instant(0.0), view, decide.Beliefs(learnt, costs))
    if choice.interval_s is not None:
        return rules.thesis_insurance_step(0, choice.interval_s, step_s) * step_s
    return math.inf if choice.save_at is None else choice.save_at * step_s


def _exact(scenario: Scenario, run: Fixed, objective: Objective) -> Odds:
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
