"""Forecasts of a job's cost and finish from what was known at its start, beside what then happened on the real prices.

The job buys the cheapest type per core with bids a little above its price, and saves checkpoints.  It is started every
two hours over the whole history, and so has many past outcomes.  A forecast uses those that had ended at its start, at most
`WINDOW` of them:

- cost: past costs relative to the lowest price per core at their starts, times that price now;
- finish: past finishes.

The level of each quantile follows its own misses: after each outcome that becomes known it moves by `GAIN` x (miss - (1 - P)),
where a miss is 1 or 0 (I. Gibbs, E. Candes, "Adaptive conformal inference under distribution shift", NeurIPS 2021).

Climatology, beside which it is read, is the plain quantile of all outcomes known at the start.

The one held-out run (2015-06-01 to 07-29, 678 starts in each of two zones, 168 independent blocks) gave, over both zones:

| quantile | coverage | climatology's | pinball | climatology's |
|---|---|---|---|---|
| cost P50 | 0.493 | 0.232 | 0.2032 USD | 0.2388 USD |
| cost P90 | 0.911 | 0.718 | 0.1364 USD | 0.1752 USD |
| finish P50 | 0.516 | 0.419 | 0.1865 h | 0.1836 h |
| finish P90 | 0.897 | 0.841 | 0.1321 h | 0.1427 h |

The median finish is no better than climatology's.  This judges forecasts by replay with levels that follow their misses,
not the odds that `windfall plan` simulates from hazards: those are scored run by run, in the track record.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from tests.calibration import choices as chosen
from windfall.jobs import Job, Resources, Use
from windfall.market import BillingBasis, BillingRule
from windfall.models import forecast_scores as scores
from windfall.policies.acquisition import standard_bids
from windfall.policies.acquisition.bidbrain import Application, efficiency
from windfall.policies.acquisition.standard_bids import StandardBids
from windfall.simulation.elastic_work import ElasticWork, Survival
from windfall.simulation.fleet_loop import FleetLoop
from windfall.simulation.simulated_provider import SimulatedMarket
from windfall.simulation.value_series import ValueSeries
from windfall.terms import Reliability, Seconds

Series = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
HORIZON_S = chosen.HORIZON * chosen.HOURS * 3600.0
LEVELS = (0.5, 0.9)
_JOB = Job("calibration", "calibration", "lab", "memory:///c", ("true",), (Resources(),), use=Use.AUTO)
_APP = Application(0.0, 0.0, 2e-4)
_SURVIVAL = Survival(1.17, 900.0, 300.0)


@dataclass(frozen=True)
class Run:
    """A job: its start [Unix seconds], the lowest price per core then [USD/h], what it cost and when it finished.

    A run that did not finish has an infinite cost and finish, known after the horizon.
    """

    start_s: float
    price: float
    usd: float
    finish_s: float

    @property
    def known_s(self) -> float:
        """When its outcome is known [Unix seconds]."""
        return self.start_s + min(self.finish_s, HORIZON_S)


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of one quantity at one level, in the order of their starts."""

    zone: str
    what: str
    level: float
    starts_s: list[float]
    outcomes: list[float]
    quantiles: list[float]
    climatology: list[float]


def read(folder: Path, until_s: float) -> Series:
    """Return the prices before a moment: no later one is kept."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    with gzip.open(folder / chosen.FILE, "rt", encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            at = datetime.fromisoformat(row["timestamp_utc"]).timestamp()
            key = row["availability_zone"], row["instance_type"]
            if at < until_s and key[0] in chosen.ZONES and key[1] in chosen.KINDS:
                found.setdefault(key, {})[at] = float(row["price_usd_per_hour"])
    return {
        key: (np.array(sorted(prices)), np.array([prices[at] for at in sorted(prices)]))
        for key, prices in found.items()
    }


def play(series: Series, zone: str, start_s: float) -> Run:
    """Play the job from a start."""
    pools, lowest = [], math.inf
    for name, (cores, on_demand) in chosen.KINDS.items():
        if (zone, name) not in series:
            continue
        times_s, usd = series[zone, name]
        first = max(int(times_s.searchsorted(start_s, "right")) - 1, 0)
        last = max(int(times_s.searchsorted(start_s + HORIZON_S)), first + 1)
        prices = ValueSeries(np.maximum(times_s[first:last] - start_s, 0.0), usd[first:last])
        lowest = min(lowest, float(usd[first]) / cores)
        pools.append(
            SimulatedMarket(
                name,
                zone,
                Reliability.TRANSIENT,
                prices,
                on_demand,
                Seconds(0.0),
                allocate_s=(0.0, 0.0),
                bid=True,
                refund=True,
                cpus=float(cores),
                billing=BillingRule(BillingBasis.STARTED_HOUR),
            )
        )
    work = ElasticWork(chosen.CORES * float(efficiency(chosen.CORES, _APP)) * chosen.HOURS * 3600.0, _APP, _SURVIVAL)
    policy = standard_bids.policy(StandardBids(chosen.CORES, "worker", above_usd_per_hour=chosen.ABOVE_USD_PER_HOUR))
    loop = FleetLoop(_JOB, policy, (), tuple(pools), work=work, decide_every_s=math.inf, looks_when_asked=True)
    outcome = loop.play(HORIZON_S)
    if outcome.finish_s is None:
        return Run(start_s, lowest, math.inf, math.inf)
    return Run(start_s, lowest, outcome.usd, outcome.finish_s)


def runs(series: Series, zone: str, until_s: float) -> list[Run]:
    """Return the job's runs whose horizon ends before a moment, from the beginning of the history."""
    return [
        play(series, zone, start_s)
        for start_s in np.arange(chosen.HISTORY_S[0], until_s - HORIZON_S, chosen.EVERY_S).tolist()
    ]


def forecasts(
    zone: str, played: Sequence[Run], what: str, level: float, span_s: tuple[float, float], *, gain: float = chosen.GAIN
) -> Forecasts:
    """Return the forecasts for the starts within a span, each from outcomes that were known at its start."""
    outcome: Callable[[Run], float] = (lambda run: run.usd) if what == "cost" else (lambda run: run.finish_s)
    scale: Callable[[Run], float] = (lambda run: run.price) if what == "cost" else (lambda run: 1.0)
    adapted = level
    stated: dict[float, float] = {}
    found = Forecasts(zone, what, level, [], [], [], [])
    waiting = sorted(played, key=lambda run: run.known_s)
    known: list[Run] = []
    for run in played:
        while waiting and waiting[0].known_s <= run.start_s:
            ended = waiting.pop(0)
            known.append(ended)
            if ended.start_s in stated:
                missed = outcome(ended) > stated[ended.start_s]
                adapted = min(max(adapted + gain * (missed - (1.0 - level)), 0.0), 1.0)
        if len(known) < chosen.WINDOW // 2:
            continue
        recent = [outcome(one) / scale(one) for one in known[-chosen.WINDOW :]]
        stated[run.start_s] = scores.quantile(recent, adapted) * scale(run)
        if span_s[0] <= run.start_s < span_s[1]:
            found.starts_s.append(run.start_s)
            found.outcomes.append(outcome(run))
            found.quantiles.append(stated[run.start_s])
            found.climatology.append(scores.quantile([outcome(one) for one in known], level))
    return found


def blocks(of: Sequence[Forecasts], played: Sequence[Run]) -> int:
    """Return how many of the starts are independent: zones at one time count as one block."""
    starts = {start for one in of for start in one.starts_s}
    return scores.independent_blocks((run.start_s, run.known_s) for run in played if run.start_s in starts)


def report(
    folder: Path, span_s: tuple[float, float], *, gain: float = chosen.GAIN
) -> tuple[list[str], list[Forecasts]]:
    """Play a span and return it as lines, with the forecasts behind them."""
    series = read(folder, span_s[1])
    played = {zone: runs(series, zone, span_s[1]) for zone in chosen.ZONES}
    rows, kept = [], []
    for what in ("cost", "finish"):
        for level in LEVELS:
            both = [forecasts(zone, played[zone], what, level, span_s, gain=gain) for zone in chosen.ZONES]
            kept += both
            count = blocks(both, [run for zone in chosen.ZONES for run in played[zone]])
            for name, group in (*((one.zone, [one]) for one in both), ("both", both)):
                rows.append(_row(name, what, level, group, count))
    return rows, kept


def joined(group: Sequence[Forecasts]) -> tuple[list[float], list[float], list[float]]:
    """Return outcomes, quantiles and climatology of several zones, one after the other."""
    return (
        [value for one in group for value in one.outcomes],
        [value for one in group for value in one.quantiles],
        [value for one in group for value in one.climatology],
    )


def _row(name: str, what: str, level: float, group: Sequence[Forecasts], count: int) -> str:
    outcomes, quantiles, climate = joined(group)
    inside = scores.coverage(outcomes, quantiles, independent=count)
    base = scores.coverage(outcomes, climate, independent=count)
    ended = [place for place, value in enumerate(outcomes) if math.isfinite(value)]
    losses = [
        scores.pinball_mean([outcomes[n] for n in ended], [values[n] for n in ended], level)
        for values in (quantiles, climate)
    ]
    unit = 1.0 if what == "cost" else 3600.0
    return (
        f"{name:<10} {what:<6} P{100 * level:.0f}: coverage {inside.share:.3f} ({inside.low:.2f} to {inside.high:.2f}, "
        f"{count} blocks of {len(outcomes)}), climatology {base.share:.3f}; pinball {losses[0] / unit:.4g}, "
        f"climatology {losses[1] / unit:.4g}; {len(outcomes) - len(ended)} never ended"
    )
