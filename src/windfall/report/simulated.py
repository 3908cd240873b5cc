"""What the simulated world says of a job: tables for a terminal of 80 columns, and data.

Policies are compared on the same draws: trial for trial the same machines live as long, start as late and prepare as long,
so that the difference of two policies has a standard error of its own, mostly far below that of either.  The best one is
surely better than the next if the difference exceeds its standard error so often that, with all others compared, chance does
it in 5 % of cases (Bonferroni).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from windfall.jobs import Objective
from windfall.policies.buying import HOPELESS_FACTOR
from windfall.simulation.from_job import Input, Posed
from windfall.simulation.outcomes import Simulated, Spread, Trials
from windfall.simulation.scenario import Quantiles
from windfall.units import duration_text, share_text

Floats = NDArray[np.float64]
LEVEL = 0.05
"""How often chance alone may name a best policy that is none."""
SELDOM = 1e-3
"""Less time than this share of what is made again is spent on saves: there are hardly any."""
_SHORT_S = 0.0005
_NAME_MAX = 20
_DECIMALS_MAX = 4
_CENT = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one policy.

    Attributes:
        row: its summary.
        finish_s, cost_usd: an entry a trial.
    """

    row: Simulated
    finish_s: Floats
    cost_usd: Floats


@dataclass(frozen=True, slots=True)
class Best:
    """Which policy has the least of a quantity in the mean, and how far the next one is.

    Attributes:
        policy: the best one.
        following: the next one; None if there is no other.
        difference: mean of (next - best) over trials.
        stderr: its standard error.
        sure: whether that is more than chance.
        same: whether both did the same in every trial.
    """

    policy: str
    following: str | None
    difference: float
    stderr: float
    sure: bool
    same: bool


def answer(row: Simulated, trials: Trials, price_usd_per_hour: float) -> Answer:
    """Keep of a policy's trials what is compared and drawn; every machine costs the same price [USD per hour]."""
    return Answer(row, trials.finish_s, trials.billed_s * (price_usd_per_hour / 3600.0))


def best(answers: Sequence[Answer], of: Callable[[Answer], Floats]) -> Best:
    """Return the policy with the smallest mean, compared trial by trial with the next; all have the same trials."""
    ranked = sorted(answers, key=lambda one: float(of(one).mean()))
    first = ranked[0]
    if len(ranked) == 1:
        return Best(first.row.policy, None, 0.0, 0.0, sure=False, same=False)
    apart = of(ranked[1]) - of(first)
    stderr = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf
    difference, same = float(apart.mean()), not np.any(apart)
    often = statistics.NormalDist().inv_cdf(1.0 - LEVEL / 2.0 / (len(ranked) - 1))
    return Best(first.row.policy, ranked[1].row.policy, difference, stderr, difference > often * stderr, same)


def by_cost(answers: Sequence[Answer]) -> Best:
    """Return the cheapest policy."""
    return best(answers, lambda one: one.cost_usd)


def by_finish(answers: Sequence[Answer]) -> Best:
    """Return the quickest policy."""
    return best(answers, lambda one: one.finish_s)


def undefeated(answers: Sequence[Answer], of: Callable[[Answer], Floats]) -> set[str]:
    """Return the best policy and those that chance may have put behind it, each judged as `best` judges the next."""
    first = best(answers, of).policy
    names = {first}
    one = next(each for each in answers if each.row.policy == first)
    for other in answers:
        # As many copies as there are policies: the same bar for each of them.
        found = best([one, *(other for _ in range(len(answers) - 1))], of)
        if other is not one and not found.sure:
            names.add(other.row.policy)
    return names


def odds_met(one: Answer, objective: Objective) -> tuple[float | None, float | None]:
    """Return in which share of trials deadline and budget are kept; None where none was set."""
    in_time = None if objective.deadline_s is None else float(np.mean(one.finish_s <= objective.deadline_s))
    within = None if objective.budget_usd is None else float(np.mean(one.cost_usd <= objective.budget_usd))
    return in_time, within


def beyond(posed: Posed, answers: Sequence[Answer]) -> str:
    """Say that the job takes longer than any machine was observed, and some live longer; empty if it is not so."""
    lives = posed.scenario.lives
    longest_s = max(one.row.finish_s.p90 for one in answers)
    if not isinstance(lives, Quantiles) or min(longest_s, lives.ages_s[-1]) <= lives.known_until_s:
        return ""
    return (
        f"no machine was observed beyond {duration_text(lives.known_until_s)}, and this job takes up to "
        f"{duration_text(longest_s)} (P90): of older machines this is what the {lives.name} law says, not the data"
    )


def absurd(posed: Posed, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield which policies do not serve: their runs take many times the work."""
    work_s = posed.scenario.steps * posed.scenario.step_s.mean_s
    for one in answers:
        times = one.row.finish_s.mean / work_s
        if times > HOPELESS_FACTOR:
            saves = "makes no save that lasts" if one.row.save_s < SELDOM * one.row.redo_s else "saves in vain"
            yield (
                f"policy {shown(one.row.policy)} does not serve here: it {saves}, and takes {times:.0f} times the "
                f"{duration_text(work_s)} of work"
            )


# ---------------------------------------------------------------------------------------------------------------- tables


def whole(head: str, posed: Posed, answers: Sequence[Answer], objective: Objective) -> RenderableType:
    """Return everything: the job, cost and finish of each policy, where the time goes, the best, what it rests on."""
    parts: list[RenderableType] = [Text(head), ""]
    parts += [_costs(answers, objective), "", _finishes(answers, objective), "", _times(answers), ""]
    parts += [Text(sentence) for sentence in verdicts(answers)]
    parts += ["", rests_on(posed)]
    notes = [*posed.notes, beyond(posed, answers), *absurd(posed, answers)]
    parts += [Text(f"{note[0].upper()}{note[1:]}.") for note in notes if note]
    return Stack(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("policy", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _spreads(
    title: str, answers: Sequence[Answer], of: Callable[[Simulated], Spread], unit: float
) -> tuple[Table, list[list[str]]]:
    """Return a table and its rows; all numbers have the decimals of the smallest row: a bad policy blurs no good one."""
    table = _table(title, "mean", "+-", "P10", "P50", "P90", "P99")
    spreads = [of(one.row) for one in answers]
    decimals = _decimals(min(spread.p90 for spread in spreads) / unit)
    rows = []
    for one, spread in zip(answers, spreads, strict=True):
        values = (spread.p10, spread.p50, spread.p90, spread.p99)
        error = f"{spread.stderr / unit:.2g}" if one.row.trials > 1 else "-"  # of one trial nobody knows it
        mean = f"{spread.mean / unit:.{decimals}f}"
        rows.append([shown(one.row.policy), mean, error, *(f"{value / unit:.{decimals}f}" for value in values)])
    return table, rows


def _decimals(largest: float) -> int:
    """Return how many decimals give a number four digits."""
    return 2 if largest <= 0.0 else min(max(3 - math.floor(math.log10(largest)), 0), _DECIMALS_MAX)


def shown(policy: str) -> str:
    """Return a policy's name as far as there is room for it: of a file its end."""
    return policy if len(policy) <= _NAME_MAX else f"\u2026{policy[1 - _NAME_MAX :]}"


def _costs(answers: Sequence[Answer], objective: Objective) -> Table:
    small = min(one.row.cost_usd.p90 for one in answers) < 10.0 * _CENT
    unit, name = (_CENT, "cent") if small else (1.0, "USD")
    table, rows = _spreads(f"cost [{name}]", answers, lambda row: row.cost_usd, unit)
    return _with_odds(table, rows, "in budget", [odds_met(one, objective)[1] for one in answers])


def _finishes(answers: Sequence[Answer], objective: Objective) -> Table:
    unit_s, unit = unit_of(min(one.row.finish_s.p50 for one in answers))
    table, rows = _spreads(f"finish [{unit}]", answers, lambda row: row.finish_s, unit_s)
    return _with_odds(table, rows, "in time", [odds_met(one, objective)[0] for one in answers])


def _with_odds(table: Table, rows: list[list[str]], name: str, odds: Sequence[float | None]) -> Table:
    told = any(share is not None for share in odds)
    if told:
        table.add_column(name, justify="right", no_wrap=True)
    for row, share in zip(rows, odds, strict=True):
        table.add_row(*row, *([share_text(share)] if told and share is not None else []))
    return table


def _times(answers: Sequence[Answer]) -> Table:
    losses = [(one.row.redo_s, one.row.save_s, one.row.allocate_s, one.row.prepare_s) for one in answers]
    unit_s, unit = unit_of(min(max(row) for row in losses))
    decimals = _decimals(min(max(row) for row in losses) / unit_s)
    names = ("redo", "save", "allocate", "prepare")
    table = _table(f"lost in the mean [{unit}], and machines that were taken", *names, "preemptions")
    for one, row in zip(answers, losses, strict=True):
        cells = [f"{value / unit_s:.{decimals}f}" for value in row]
        table.add_row(shown(one.row.policy), *cells, f"{one.row.preemptions:.3g}")
    return table


def unit_of(length_s: float) -> tuple[float, str]:
    """Return the unit in which a length of time is a handy number: its length [s] and its name."""
    for unit_s, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if length_s >= 2.0 * unit_s:
            return unit_s, unit
    return 1.0, "s"


def _time(value_s: float) -> str:
    return duration_text(value_s) if value_s >= _SHORT_S else f"{value_s:.1g} s"


def _usd(amount: float) -> str:
    return f"{amount:.2g} USD" if amount < 100.0 else f"{amount:.0f} USD"


def verdicts(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield which policy is best by cost and by finish, in a sentence each."""
    if len(answers) < 2:
        return
    means = {one.row.policy: one.row for one in answers}
    cost, finish = by_cost(answers), by_finish(answers)
    yield _verdict("cost", cost, means[cost.policy].cost_usd.mean, _usd)
    yield _verdict("finish", finish, means[finish.policy].finish_s.mean, _time)


def _verdict(what: str, found: Best, mean: float, text: Callable[[float], str]) -> str:
    first, second = shown(found.policy), shown(found.following or "")
    if found.same:
        return f"By {what} {first} and {second} are best: they do the same in every trial."
    apart = f"{text(found.difference)} +- {text(found.stderr)} on the same draws"
    if not found.sure:
        return f"By {what} {first} and {second} cannot be told apart: {apart}. More --trials tell."
    share = found.difference / (mean + found.difference)
    return f"By {what} {first} is best: {100.0 * share:.2g} % less than {second} ({apart})."


def rests_on(posed: Posed) -> RenderableType:
    """Return what the scenario rests on, a line a number."""
    table = Table(title=Text("what this rests on", "bold"), title_justify="left", box=None, pad_edge=False)
    table.show_header = False
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in posed.inputs:
        table.add_row(one.name, input_text(one), one.source)
    return table


def input_text(one: Input) -> str:
    """Write a number or a range with its unit."""
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


def as_json(posed: Posed, answers: Sequence[Answer], objective: Objective, *, seed: int) -> dict[str, Any]:
    """Return the answer as data; names end with their unit."""
    odds = [(one.row.policy, *odds_met(one, objective)) for one in answers]
    note = beyond(posed, answers)
    return {
        "rows": [dataclasses.asdict(one.row) for one in answers],
        "best": {"cost_usd": _best_json(by_cost(answers)), "finish_s": _best_json(by_finish(answers))},
        "odds": [{"policy": policy, "in_time": in_time, "in_budget": within} for policy, in_time, within in odds],
        "inputs": [dataclasses.asdict(one) for one in posed.inputs],
        "notes": [*posed.notes, *([note] if note else []), *absurd(posed, answers)],
        "seed": seed,
    }


def _best_json(found: Best) -> dict[str, Any]:
    told = dataclasses.asdict(found)
    return told | {"stderr": found.stderr if math.isfinite(found.stderr) else None}
