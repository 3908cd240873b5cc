"""The result of simulating a job: tables for a terminal of 80 columns, and data.

Policies are compared on the same draws: in each trial every policy meets the same machine lifetimes, start delays and
preparation times.  The difference of two policies then has a standard error of its own, usually far below that of
either.  The best policy is significantly better than the next if the difference exceeds the multiple of its standard
error that chance reaches in 5 % of cases, corrected for the number of comparisons (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from windfall.jobs import Minimize, Objective
from windfall.policies import policy_registry
from windfall.policies.acquisition.ranking import SLOWDOWN_MAX
from windfall.policies.policy_registry import EVERY, PolicyKind
from windfall.simulation.outcomes import PolicySummary, Spread, Trials
from windfall.simulation.scenario import LifetimeQuantiles
from windfall.simulation.scenario_from_job import BuiltScenario, Input
from windfall.structs import Struct, plain
from windfall.units import duration_text, share_text

Floats = NDArray[np.float64]
LEVEL = 0.05
"""Probability that chance alone makes one policy appear best."""
SELDOM = 1e-3
"""If saves take less than this share of the redone time, there are hardly any."""
_SHORT_S = 0.0005
_NAME_MAX = 20
_DECIMALS_MAX = 4
_CENT = 0.01


class PolicyOutcome(Struct, frozen=True):
    """The trials of one policy.

    Attributes:
        row: their summary.
        finish_s, cost_usd: one entry per trial.
    """

    row: PolicySummary
    finish_s: Floats
    cost_usd: Floats


class Best(Struct, frozen=True):
    """Which policy has the smallest mean of a quantity, and how far behind the next one is.

    Attributes:
        policy: the best policy.
        following: the next one; None if there is no other.
        difference: mean of (next - best) over trials.
        stderr: its standard error.
        sure: whether the difference is significant.
        same: whether both did the same in every trial.
    """

    policy: str
    following: str | None
    difference: float
    stderr: float
    sure: bool
    same: bool


def policy_outcome(row: PolicySummary, trials: Trials, price_usd_per_hour: float) -> PolicyOutcome:
    """Return the part of a policy's trials that is compared and drawn; all machines have one price [USD per hour]."""
    return PolicyOutcome(row, trials.finish_s, trials.billed_s * (price_usd_per_hour / 3600.0))


def best(outcomes: Sequence[PolicyOutcome], of: Callable[[PolicyOutcome], Floats]) -> Best:
    """Return the policy with the smallest mean, compared with the next one trial by trial."""
    ranked = sorted(outcomes, key=lambda one: float(of(one).mean()))
    first = ranked[0]
    if len(ranked) == 1:
        return Best(first.row.policy, None, 0.0, 0.0, sure=False, same=False)
    apart = of(ranked[1]) - of(first)
    stderr = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf
    difference, same = float(apart.mean()), not np.any(apart)
    often = statistics.NormalDist().inv_cdf(1.0 - LEVEL / 2.0 / (len(ranked) - 1))
    return Best(first.row.policy, ranked[1].row.policy, difference, stderr, difference > often * stderr, same)


def by_cost(outcomes: Sequence[PolicyOutcome]) -> Best:
    """Return the cheapest policy."""
    return best(outcomes, lambda one: one.cost_usd)


def by_finish(outcomes: Sequence[PolicyOutcome]) -> Best:
    """Return the fastest policy."""
    return best(outcomes, lambda one: one.finish_s)


def undefeated(outcomes: Sequence[PolicyOutcome], of: Callable[[PolicyOutcome], Floats]) -> set[str]:
    """Return the best policy and all that are not significantly worse, by the test of `best`."""
    first = best(outcomes, of).policy
    names = {first}
    one = next(each for each in outcomes if each.row.policy == first)
    for other in outcomes:
        # As many copies as there are policies, so that the same significance level applies to each.
        found = best([one, *(other for _ in range(len(outcomes) - 1))], of)
        if other is not one and not found.sure:
            names.add(other.row.policy)
    return names


def odds_met(one: PolicyOutcome, objective: Objective) -> tuple[float | None, float | None]:
    """Return the shares of trials that meet the deadline and the budget; None where none is set."""
    in_time = None if objective.deadline_s is None else float(np.mean(one.finish_s <= objective.deadline_s))
    within = None if objective.budget_usd is None else float(np.mean(one.cost_usd <= objective.budget_usd))
    return in_time, within


def beyond(built: BuiltScenario, outcomes: Sequence[PolicyOutcome]) -> str:
    """Return a warning if the job can take longer than any machine was observed; otherwise an empty text."""
    lifetimes = built.scenario.lifetimes
    longest_s = max(one.row.finish_s.p90 for one in outcomes)
    if not isinstance(lifetimes, LifetimeQuantiles) or min(longest_s, lifetimes.ages_s[-1]) <= lifetimes.known_until_s:
        return ""
    return (
        f"no machine was observed beyond {duration_text(lifetimes.known_until_s)}, but this job can take "
        f"{duration_text(longest_s)} (P90): beyond that age the result rests on the {lifetimes.name} law, not on data"
    )


def absurd(built: BuiltScenario, outcomes: Sequence[PolicyOutcome]) -> Iterator[str]:
    """Yield a warning for each policy whose runs take many times the work, with the cause."""
    work_s = built.scenario.steps * built.scenario.step_s.mean_s
    for one in outcomes:
        times = one.row.finish_s.mean / work_s
        if times > SLOWDOWN_MAX:
            takes = f"takes {times:.0f} times the {duration_text(work_s)} of work"
            if one.row.prepare_s > max(one.row.redo_s, one.row.save_s):
                share = share_text(one.row.prepare_s / one.row.finish_s.mean)
                yield (
                    f"machines are lost before they are ready (preparing takes {share} of the time): a run with policy "
                    f"{shown(one.row.policy)} {takes}"
                )
                continue
            reason = "commits no save" if one.row.save_s < SELDOM * one.row.redo_s else "loses most of its saved work"
            yield f"policy {shown(one.row.policy)} is unsuitable here: it {reason} and {takes}"


# ---------------------------------------------------------------------------------------------------------------- tables


def render(head: str, built: BuiltScenario, outcomes: Sequence[PolicyOutcome], objective: Objective) -> RenderableType:
    """Return everything: the job, cost and finish time of each policy, lost time, the inputs, and last the verdict."""
    parts: list[RenderableType] = [Text(head), ""]
    parts += [_costs(outcomes, objective), "", _finishes(outcomes, objective), "", _times(outcomes), ""]
    parts += [Text(message) for message in comparisons(outcomes)]
    parts += ["", inputs_table(built)]
    notes = [*built.notes, beyond(built, outcomes), *absurd(built, outcomes)]
    parts += [Text(f"{note[0].upper()}{note[1:]}.") for note in notes if note]
    parts += ["", Text(verdict(built, outcomes, objective), "bold")]
    return Stack(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("policy", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _spreads(
    title: str, outcomes: Sequence[PolicyOutcome], of: Callable[[PolicySummary], Spread], unit: float
) -> tuple[Table, list[list[str]]]:
    """Return a table and its rows; all numbers have the decimals of the smallest row."""
    table = _table(title, "mean", "+-", "P10", "P50", "P90", "P99")
    spreads = [of(one.row) for one in outcomes]
    decimals = _decimals(min(spread.p90 for spread in spreads) / unit)
    rows = []
    for one, spread in zip(outcomes, spreads, strict=True):
        values = (spread.p10, spread.p50, spread.p90, spread.p99)
        error = f"{spread.stderr / unit:.2g}" if one.row.trials > 1 else "-"  # one trial has no standard error
        mean = f"{spread.mean / unit:.{decimals}f}"
        rows.append([shown(one.row.policy), mean, error, *(f"{value / unit:.{decimals}f}" for value in values)])
    return table, rows


def _decimals(largest: float) -> int:
    """Return the number of decimals that gives a number four digits."""
    return 2 if largest <= 0.0 else min(max(3 - math.floor(math.log10(largest)), 0), _DECIMALS_MAX)


def shown(policy: str) -> str:
    """Return a policy's name, cut at the front if it is too long for the table."""
    return policy if len(policy) <= _NAME_MAX else f"\u2026{policy[1 - _NAME_MAX :]}"


def _costs(outcomes: Sequence[PolicyOutcome], objective: Objective) -> Table:
    small = min(one.row.cost_usd.p90 for one in outcomes) < 10.0 * _CENT
    unit, name = (_CENT, "US cents") if small else (1.0, "USD")
    table, rows = _spreads(f"cost [{name}]", outcomes, lambda row: row.cost_usd, unit)
    return _with_odds(table, rows, "in budget", [odds_met(one, objective)[1] for one in outcomes])


def _finishes(outcomes: Sequence[PolicyOutcome], objective: Objective) -> Table:
    unit_s, unit = unit_of(min(one.row.finish_s.p50 for one in outcomes))
    table, rows = _spreads(f"finish [{unit}]", outcomes, lambda row: row.finish_s, unit_s)
    return _with_odds(table, rows, "in time", [odds_met(one, objective)[0] for one in outcomes])


def _with_odds(table: Table, rows: list[list[str]], name: str, odds: Sequence[float | None]) -> Table:
    known = any(share is not None for share in odds)
    if known:
        table.add_column(name, justify="right", no_wrap=True)
    for row, share in zip(rows, odds, strict=True):
        table.add_row(*row, *([share_text(share)] if known and share is not None else []))
    return table


def _times(outcomes: Sequence[PolicyOutcome]) -> Table:
    losses = [(one.row.redo_s, one.row.save_s, one.row.allocate_s, one.row.prepare_s) for one in outcomes]
    unit_s, unit = unit_of(min(max(row) for row in losses))
    decimals = _decimals(min(max(row) for row in losses) / unit_s)
    names = ("redo", "save", "allocate", "prepare")
    table = _table(f"mean time lost [{unit}], and preemptions", *names, "preemptions")
    for one, row in zip(outcomes, losses, strict=True):
        cells = [f"{value / unit_s:.{decimals}f}" for value in row]
        table.add_row(shown(one.row.policy), *cells, f"{one.row.preemptions:.3g}")
    return table


def unit_of(length_s: float) -> tuple[float, str]:
    """Return the unit that suits a duration: its length [s] and its name."""
    for unit_s, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if length_s >= 2.0 * unit_s:
            return unit_s, unit
    return 1.0, "s"


def _time(value_s: float) -> str:
    return duration_text(value_s) if value_s >= _SHORT_S else f"{value_s:.1g} s"


def _usd(amount: float) -> str:
    return f"{amount:.2g} USD" if amount < 100.0 else f"{amount:.0f} USD"


def comparisons(outcomes: Sequence[PolicyOutcome]) -> Iterator[str]:
    """Yield one sentence each on the best policy by cost and by finish time, with the error of the difference."""
    if len(outcomes) < 2:
        return
    rows = {one.row.policy: one.row for one in outcomes}
    cost, finish = by_cost(outcomes), by_finish(outcomes)
    yield _comparison("cost", cost, rows[cost.policy].cost_usd.mean, _usd)
    yield _comparison("finish", finish, rows[finish.policy].finish_s.mean, _time)


def _comparison(what: str, found: Best, mean: float, text: Callable[[float], str]) -> str:
    first, second = shown(found.policy), shown(found.following or "")
    if found.same:
        return f"Best {what}: {first} and {second}, which do the same in every trial."
    apart = f"{text(found.difference)} +- {text(found.stderr)} on the same draws"
    if not found.sure:
        return f"Best {what}: {first} and {second} cannot be told apart ({apart}). Increase --trials to separate them."
    share = found.difference / (mean + found.difference)
    return f"Best {what}: {first}, {100.0 * share:.2g} % less than {second} ({apart})."


class _Quantity(Struct, frozen=True):
    """What the verdict compares policies by.

    Attributes:
        noun, better: for messages.
        amounts: of an outcome, one entry per trial.
        text: writes an amount with its unit.
    """

    noun: str
    better: str
    amounts: Callable[[PolicyOutcome], Floats]
    text: Callable[[float], str]

    def gain(self, of: PolicyOutcome, against: PolicyOutcome) -> str:
        """Return how much better an outcome is in the mean: `costs 3 % (0.4 USD) less than NAME`."""
        mean, other = float(self.amounts(of).mean()), float(self.amounts(against).mean())
        return f"{self.better.format(f'{100.0 * (1.0 - mean / other):.2g} % ({self.text(other - mean)})')} than"


_COST = _Quantity("cost", "costs {} less", lambda one: one.cost_usd, _usd)
_FINISH = _Quantity("finish time", "finishes {} earlier", lambda one: one.finish_s, _time)


def job_file_value(policy: str) -> str | None:
    """Return a policy as the value of `checkpoint.insure` in a job file; None for policies that it does not accept."""
    name, _, amount = policy.partition(":")
    if name == EVERY:
        return f"{amount.removesuffix('steps')} steps" if amount.endswith("steps") else amount
    return next((entry.word for entry in policy_registry.own(PolicyKind.SAVING) if entry.name == name), None)


def verdict(built: BuiltScenario, outcomes: Sequence[PolicyOutcome], objective: Objective) -> str:
    """Return one or two sentences: which policy to set in the job file, and what it saves.

    By cost, or by finish time if the job minimizes time or its machines are free.  Policies that a job file does not accept
    are not recommended.

    Args:
        built: of the job; its policy is the one to keep or to replace.
        outcomes: of the policies, with the same trials.
        objective: of the job.
    """
    by_time = objective.minimize is Minimize.TIME or not any(np.any(one.cost_usd) for one in outcomes)
    quantity, other = (_FINISH, _COST) if by_time else (_COST, _FINISH)
    usable = [one for one in outcomes if job_file_value(one.row.policy) is not None]
    if len(outcomes) == 1 or not usable:
        return "To compare policies for the job file, name several: --policy adaptive,optimal,every:100."
    chosen, sentence = _recommendation(built.scenario.policy, usable, quantity)
    if extra := _faster(chosen, usable, other) or _unusable(chosen, outcomes, quantity):
        return f"{sentence} {extra}"
    return sentence


def _recommendation(own: str, usable: Sequence[PolicyOutcome], quantity: _Quantity) -> tuple[PolicyOutcome, str]:
    """Return the policy to use, and the sentence that says so."""
    found = best(usable, quantity.amounts)
    rows = {one.row.policy: one for one in usable}
    first, tied, mine = rows[found.policy], undefeated(usable, quantity.amounts), rows.get(own)
    noise = f"the noise of {first.row.trials:,} trial{'' if first.row.trials == 1 else 's'}"
    if mine is not None and own not in tied:
        return first, f"{_set(found.policy)}: it {quantity.gain(first, mine)} the job's policy, {shown(own)}."
    if found.sure and found.following is not None:
        act = _keep(own) if found.policy == own else _set(found.policy)
        return (
            first,
            f"{act}: it {quantity.gain(first, rows[found.following])} {shown(found.following)}, the next best.",
        )
    kept = first if mine is None else mine
    act = _set(kept.row.policy) if mine is None else _keep(own)
    if len(tied) < len(usable) or len(usable) == 1:
        return kept, f"{act}: no other policy has a better {quantity.noun} beyond {noise}."
    if all(np.array_equal(quantity.amounts(one), quantity.amounts(first)) for one in usable):
        return kept, f"{act}: the {quantity.noun} is the same under all policies."
    return kept, f"{act}: the differences in {quantity.noun} are within {noise}."


def _keep(policy: str) -> str:
    return f"Keep {shown(policy)}, the job's policy"


def _set(policy: str) -> str:
    return f"Set `checkpoint: {{insure: {job_file_value(policy)}}}` in the job file"


def _faster(chosen: PolicyOutcome, usable: Sequence[PolicyOutcome], other: _Quantity) -> str:
    """Return a sentence if a policy is significantly better by the other quantity; otherwise an empty text."""
    if chosen.row.policy in undefeated(usable, other.amounts):
        return ""
    name = best(usable, other.amounts).policy
    first = next(one for one in usable if one.row.policy == name)
    return f"By {other.noun}, {shown(name)} is better: it {other.gain(first, chosen)} {shown(chosen.row.policy)}."


def _unusable(chosen: PolicyOutcome, outcomes: Sequence[PolicyOutcome], quantity: _Quantity) -> str:
    """Return a sentence if a policy that a job file does not accept is significantly better; otherwise an empty text."""
    if chosen.row.policy in undefeated(outcomes, quantity.amounts):
        return ""
    name = best(outcomes, quantity.amounts).policy
    first = next(one for one in outcomes if one.row.policy == name)
    return f"{shown(name)} {quantity.gain(first, chosen)} that, but a job file cannot set it."


def inputs_table(built: BuiltScenario) -> RenderableType:
    """Return the scenario's inputs and their sources, one line each."""
    table = Table(title=Text("inputs and their sources", "bold"), title_justify="left", box=None, pad_edge=False)
    table.show_header = False
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in built.inputs:
        table.add_row(one.name, input_text(one), one.source)
    return table


def input_text(one: Input) -> str:
    """Write a number or range with its unit."""
    if one.low is None or one.high is None:
        return "-"
    low, high = (_amount(value, one.unit) for value in (one.low, one.high))
    return low if low == high else f"{low} .. {high}"


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return _time(value)
    number = f"{value:.0f}" if unit == "steps" else f"{value:.3g}"
    return f"{number} {unit}".strip()


# ------------------------------------------------------------------------------------------------------------------ data


def as_json(
    built: BuiltScenario, outcomes: Sequence[PolicyOutcome], objective: Objective, *, seed: int
) -> dict[str, Any]:
    """Return the result as data; names end with their unit."""
    odds = [(one.row.policy, *odds_met(one, objective)) for one in outcomes]
    note = beyond(built, outcomes)
    return {
        "rows": [plain(one.row) for one in outcomes],
        "best": {"cost_usd": _best_json(by_cost(outcomes)), "finish_s": _best_json(by_finish(outcomes))},
        "odds": [{"policy": policy, "in_time": in_time, "in_budget": within} for policy, in_time, within in odds],
        "inputs": [plain(one) for one in built.inputs],
        "verdict": verdict(built, outcomes, objective),
        "notes": [*built.notes, *([note] if note else []), *absurd(built, outcomes)],
        "seed": seed,
    }


def _best_json(found: Best) -> dict[str, Any]:
    return {**plain(found), "stderr": found.stderr if math.isfinite(found.stderr) else None}
