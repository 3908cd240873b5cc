"""Spot instances under deadlines, over the public series of spot availability: Tables 3 to 5, and Windfall's own policy.

A job of 48 h with changeovers of 0.2 h runs from random moments of each series, on the same ticks and from the same starts
with every policy.  The series do not say when the authors' runs began, nor how long a point is beyond doubt, so both readings
of the latter are shown.  Windfall's policy learns from other zones only.

Source: Z. Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI 2024, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
from scipy import stats

from windfall.lab import deadlines_published as paper
from windfall.lab import deadlines_series as replayed
from windfall.lab.deadlines_published import Workload
from windfall.lab.deadlines_series import (
    GREEDY,
    OMNISCIENT,
    ON_DEMAND,
    OURS,
    PROMISING,
    UNIFORM,
    UNIFORM_IDLING,
    Floats,
    Played,
    SpotSeries,
)
from windfall.lab.published_rows import (
    FigureSeries,
    Options,
    PaperFigure,
    PaperPart,
    Progress,
    PublishedRow,
    RowVerdict,
    cannot,
    compared,
    unprinted,
)
from windfall.policies.deadlines import deadline_rules
from windfall.simulation.deadline_kernel import DeadlineRun
from windfall.structs import Struct, replace

H: Final = 3_600.0
PAPER: Final = "Can't Be Late"
NO_DATA: Final = "needs the series of skypilot-org/spot-traces: pass their folder as --data"
CLOSE_H: Final = 0.5
"""Hours match within this."""
TWO_WEEKS_S: Final = 14 * 86_400.0
JOB: Final = DeadlineRun(paper.COMPUTE_H * H, paper.WINDOW_H * H, paper.CHANGEOVER_H * H, paper.TICK_S)
WINDOWS_H: Final = (53.0 + 1.0 / 3.0, 60.0, 80.0)
"""Of the comparison: the job fills 90, 80 and 60 % of them."""
LONGER: Final = 1.5
EXTRA_S: Final = 1_800.0
"""Beyond the stated bounds: changeovers up to 1.5 times as long, half an hour more work."""


class Reading(Struct, frozen=True):
    """A reading of the eight series.

    Attributes:
        name: in the rows.
        step_s: length of a point [s].
        until_s: what of a series is used; None: all [s].
    """

    name: str
    step_s: float
    until_s: float | None


WHOLE: Final = Reading("600 s a point, all 27 days", 600.0, None)
READINGS: Final = (
    WHOLE,
    Reading("600 s a point, the first two weeks", 600.0, TWO_WEEKS_S),
    Reading("300 s a point", 300.0, None),
)
_WHY: Final = {
    WHOLE.name: "the paper's series are two weeks long, the public ones 27 days; spot is scarcer in their first two weeks",
    READINGS[1].name: "the printed hours add up to 48.1, the work is 48; and the authors' starts are not published",
    READINGS[2].name: "the files state 600 s a point; 300 s would make each run of spot half as long",
}


def _folder(options: Options) -> Path | None:
    """Return the folder of the series; None without one or without starts."""
    return None if options.folder is None or options.trials == 0 else Path(options.folder)


def _read_as(series: Sequence[SpotSeries], reading: Reading) -> tuple[SpotSeries, ...]:
    most = None if reading.until_s is None else int(reading.until_s / reading.step_s)
    return tuple(replace(one, step_s=reading.step_s, up=one.up[:most]) for one in series)


def _runs(series: Sequence[SpotSeries], run: DeadlineRun, policy: str, count: int, seed: int) -> tuple[Played, ...]:
    """Return what a policy does on each series; ours has learnt from those of other zones."""
    firsts = replayed.starts(series, run.window_s, run.tick_s, count, seed)
    return tuple(
        replayed.play(one, first, run, policy, ratio=paper.PRICE_RATIO, learnt=replayed.elsewhere(series, one.zone))
        for one, first in zip(series, firsts, strict=True)
    )


@cache
def _costs(folder: Path, window_h: float, policy: str, count: int, seed: int) -> tuple[Floats, ...]:
    """Return the cost of each run on each series of availability [% of on demand]."""
    run = replace(JOB, window_s=window_h * H)
    series, whole = replayed.everything(folder), paper.PRICE_RATIO * (run.compute_s + run.changeover_s) / H
    return tuple(100.0 * one.cost / whole for one in _runs(series, run, policy, count, seed))


# -------------------------------------------------------------------------------------------------------------- Table 3


def _table_3(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    folder, rows = _folder(options), []
    if folder is None:
        for policy, (on_demand_h, spot_h, _) in paper.TABLE_3_H.items():
            for quantity, published in (("on demand", on_demand_h), ("spot", spot_h)):
                rows.append(
                    cannot(f"{PAPER}, Table 3", policy, quantity, unit="h", published=published, reason=NO_DATA)
                )
        return tuple(rows)
    for reading in READINGS:
        series = _read_as(replayed.public(folder), reading)
        for policy in (ON_DEMAND, GREEDY, UNIFORM, UNIFORM_IDLING, OMNISCIENT):
            progress(f"Table 3, {reading.name}: {policy}")
            rows += _hours(reading, policy, _runs(series, JOB, policy, options.trials, options.seed), options)
    return tuple(rows)


def _hours(reading: Reading, policy: str, played: Sequence[Played], options: Options) -> list[PublishedRow]:
    on_demand_h, spot_h = (np.concatenate([getattr(one, name) for one in played]) for name in ("on_demand_h", "spot_h"))
    found = (("on demand", float(on_demand_h.mean())), ("spot", float(spot_h.mean())))
    source = f"{PAPER}, Table 3, {reading.name}"
    method = (
        f"{options.trials} starts on each of eight series, ticks of 120 s, hours of work; matches within {CLOSE_H} h"
    )
    if policy not in paper.TABLE_3_H:
        why = "the paper's text of rule 6: on-demand is also left for nothing; it prints no numbers of this reading"
        return [unprinted(source, policy, name, unit="h", ours=ours, reason=why, method=method) for name, ours in found]
    printed = paper.TABLE_3_H[policy]
    rows = []
    spread = ("standard deviation", float(on_demand_h.std()))
    for (quantity, ours), published in zip((*found, spread), printed, strict=True):
        row = compared(
            source,
            policy,
            quantity,
            unit="h",
            published=published,
            ours=ours,
            tolerance_pct=100.0 * CLOSE_H / published if published else 0.0,
            method=method,
            reason=_WHY[reading.name],
        )
        kind = {"on demand": FigureSeries.ON_DEMAND, "spot": FigureSeries.SPOT}.get(quantity)
        rows.append(row if kind is None else row.placed(PaperFigure.DEADLINES_HOURS, kind, f"{policy}|{reading.name}"))
    return rows


# ------------------------------------------------------------------------------------------------------------- promises


def _promises(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return how many deadlines are missed over all series of availability, and how late a job is beyond the bounds."""
    folder, rows = _folder(options), []
    source = f"{PAPER}, section 4: no deadline is missed"
    for policy in PROMISING:
        if folder is None:
            rows.append(cannot(source, policy, "deadlines missed", unit="", published=0.0, reason=NO_DATA))
            continue
        series = replayed.everything(folder)
        for words, within in (("as stated", True), ("shorter, by chance", True), ("beyond their bound", False)):
            progress(f"{policy}: changeovers {words}")
            longest_s = JOB.changeover_s * (1.0 if within else LONGER)
            lengths_s = np.random.default_rng(options.seed).uniform(0.0, longest_s, 997)
            run = JOB if words == "as stated" else replace(JOB, changeovers_s=tuple(lengths_s.tolist()))
            run = run if within else replace(run, extra_s=EXTRA_S)
            played = _runs(series, run, policy, options.trials, options.seed)
            late_s = np.concatenate([one.late_s for one in played])
            rows.append(_kept(source, policy, words, late_s) if within else _lateness(policy, late_s))
    return tuple(rows)


def _kept(source: str, policy: str, words: str, late_s: Floats) -> PublishedRow:
    return compared(
        source,
        policy,
        f"deadlines missed, changeovers {words}",
        unit="",
        published=0.0,
        ours=float(np.count_nonzero(late_s > 0.0)),
        tolerance_pct=0.0,
        method=f"{len(late_s)} runs on all series of availability",
        reason="a promise is broken",
    )


def _lateness(policy: str, late_s: Floats) -> PublishedRow:
    bound_s = deadline_rules.lateness_bound_s(EXTRA_S, JOB.changeover_s, LONGER * JOB.changeover_s)
    latest_s = float(late_s.max())
    return PublishedRow(
        f"{PAPER}, section 4.4: late by delta + 2 (d_max - d) at most",
        policy,
        "latest",
        "s",
        bound_s,
        latest_s,
        100.0 * (latest_s / bound_s - 1.0),
        RowVerdict.MATCH if latest_s <= bound_s else RowVerdict.DIFFERS,
        "" if latest_s <= bound_s else "the bound is broken",
        f"{len(late_s)} runs with changeovers up to {LONGER:g} d and {EXTRA_S:g} s more work; matches at or below the bound",
    )


# ----------------------------------------------------------------------------------------------------------------- gain


class Paired(Struct, frozen=True):
    """A mean of paired differences, with its interval by zone.

    Attributes:
        mean, low, high: of the zones' means, and its 95 % interval by Student's t.
        zones: how many.
    """

    mean: float
    low: float
    high: float
    zones: int

    @property
    def words(self) -> str:
        """The interval as text."""
        zero = "contains 0: not shown to differ" if self.low <= 0.0 <= self.high else "does not contain 0"
        return f"95 % by {self.zones} zones: {self.low:.2f} to {self.high:.2f}, which {zero}"


def by_zone(values: Sequence[float], zones: Sequence[str]) -> Paired:
    """Return the mean over zones, each zone a block: its series share their machines and their days.

    Args:
        values: the mean of each series.
        zones: of each series; at least two are different.
    """
    blocks = [
        np.mean([value for value, zone in zip(values, zones, strict=True) if zone == name]) for name in set(zones)
    ]
    mean = float(np.mean(blocks))
    reach = float(stats.t.ppf(0.975, len(blocks) - 1) * np.std(blocks, ddof=1) / math.sqrt(len(blocks)))
    return Paired(mean, mean - reach, mean + reach, len(blocks))


def _gain(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return what Windfall's policy costs less than Uniform Progress, and how much of the gap to the optimum that is."""
    folder = _folder(options)
    if folder is None:
        return (cannot(f"{PAPER}, section 5", OURS, "cost", unit="%", published=0.0, reason=NO_DATA),)
    rows: list[PublishedRow] = []
    for window_h in WINDOWS_H:
        rows += _gain_at(folder, window_h, options, progress)
    return tuple(rows)


def _gain_at(folder: Path, window_h: float, options: Options, progress: Progress) -> list[PublishedRow]:
    series, means = replayed.everything(folder), {}
    for policy in (GREEDY, UNIFORM, OURS, OMNISCIENT):
        progress(f"{paper.COMPUTE_H:g} h of {window_h:.3g} h, all series: {policy}")
        means[policy] = [float(one.mean()) for one in _costs(folder, window_h, policy, options.trials, options.seed)]
    zones = [one.zone for one in series]
    source = f"{PAPER}, beside Windfall's own policy: {paper.COMPUTE_H:g} h of work in {window_h:.3g} h"
    method = (
        f"{options.trials} starts on each of {len(series)} series of availability, on-demand price {paper.PRICE_RATIO:g} "
        "times spot; zones count alike; windfall has learnt from other zones only"
    )
    row = partial(unprinted, source, method=method)
    rows = []
    for policy, values in means.items():
        found = by_zone(values, zones)
        why = "the paper has no numbers over these series"
        rows.append(row(policy, "cost", unit="% of on demand", ours=found.mean, reason=why))
    for policy in (UNIFORM, GREEDY):
        saved = by_zone(np.subtract(means[OURS], means[policy]).tolist(), zones)
        item = f"windfall less {policy}"
        rows.append(row(item, "paired difference", unit="% of on demand", ours=saved.mean, reason=saved.words))
    gap = by_zone(np.subtract(means[UNIFORM], means[OMNISCIENT]).tolist(), zones)
    closed = by_zone(np.subtract(means[UNIFORM], means[OURS]).tolist(), zones)
    share = 100.0 * closed.mean / gap.mean
    why = f"of {gap.mean:.2f} points between uniform progress and the omniscient, {closed.mean:.2f}"
    rows.append(row("windfall", "share of the gap closed", unit="%", ours=share, reason=why))
    return rows


def _series(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return what each policy costs on each series, for the job of Table 3."""
    folder, source, rows = _folder(options), f"{PAPER}, each series of availability", []
    for policy in (GREEDY, UNIFORM, OURS, OMNISCIENT):
        if folder is None:
            rows.append(cannot(source, policy, "cost", unit="% of on demand", published=0.0, reason=NO_DATA))
            continue
        progress(f"each series: {policy}")
        costs = _costs(folder, paper.WINDOW_H, policy, options.trials, options.seed)
        for one, cost in zip(replayed.everything(folder), costs, strict=True):
            row = unprinted(
                source,
                f"{policy}, {_short(one)}",
                "cost",
                unit="% of on demand",
                ours=float(cost.mean()),
                reason="the paper has no numbers over single series",
                method=f"{options.trials} starts, 48 h of work in 60 h, on-demand price {paper.PRICE_RATIO:g} times spot",
            )
            rows.append(row.placed(PaperFigure.DEADLINES_COST, FigureSeries.COST, f"{_short(one)}|{policy}"))
    return tuple(rows)


def _short(series: SpotSeries) -> str:
    """Return the zone and machines of a series, and its year where that is needed to tell two apart."""
    _, nodes, date, file = series.name.split("/")
    return f"{file.removesuffix('.json')} {date.removeprefix('aws-')[-4:]}{'' if nodes == '1-node' else ' x16'}"


# -------------------------------------------------------------------------------------------------------------- Table 5


def _table_5(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    folder = _folder(options)
    rows: list[PublishedRow] = []
    for work in paper.WORKLOADS:
        progress(f"Table 5: {work.name}")
        rows += _workload(work, folder, options)
    return tuple(rows)


def _workload(work: Workload, folder: Path | None, options: Options) -> list[PublishedRow]:
    source, pay = f"{PAPER}, Table 5", work.on_demand_usd_per_hour
    ours = pay * (work.compute_h + work.changeover_h)
    rows = [
        compared(
            source,
            f"{work.name}, on demand",
            "cost",
            unit="USD",
            published=work.on_demand_usd,
            ours=ours,
            tolerance_pct=2.0,
            method="(compute + changeover) x price on demand, which Table 4's spot price and discount give; within 2 %",
            reason=(
                f"{work.compute_h + work.changeover_h:g} h at {pay:.2f} USD/h make {ours:.1f} USD; the printed cost is "
                f"{work.on_demand_usd / pay:.1f} h at that price"
            ),
        )
    ]
    for window_h, printed, words in zip(work.windows_h, work.uniform_usd, ("tight", "loose"), strict=True):
        published, item = 100.0 * printed / work.on_demand_usd, f"{work.name}, {words}, {UNIFORM}"
        if folder is None:
            rows.append(cannot(source, item, "cost", unit="% of on demand", published=published, reason=NO_DATA))
            continue
        rows += _replay(work, window_h, (item, published), folder, options)
    return rows


def _replay(
    work: Workload, window_h: float, row: tuple[str, float], folder: Path, options: Options
) -> list[PublishedRow]:
    """Return a workload on the public series of its zone, by both policies."""
    (item, published), series = row, replayed.one(folder, work.series)
    run = DeadlineRun(work.compute_h * H, window_h * H, work.changeover_h * H, paper.TICK_S)
    (first,) = replayed.starts((series,), run.window_s, run.tick_s, options.trials, options.seed)
    ratio = 1.0 / (1.0 - work.discount_pct / 100.0)
    learnt = replayed.elsewhere(replayed.everything(folder), series.zone)
    whole = ratio * (work.compute_h + work.changeover_h)
    found = {
        policy: 100.0 * float(replayed.play(series, first, run, policy, ratio=ratio, learnt=learnt).cost.mean()) / whole
        for policy in (UNIFORM, OURS, OMNISCIENT)
    }
    source, unit, up = f"{PAPER}, Table 5", "% of on demand", 100.0 * float(series.up.mean())
    method = f"{options.trials} starts on {series.name}; matches within 10 %"
    why = f"the paper's are single runs on live machines at unpublished times; here spot is up {up:.0f} % of the time"
    return [
        compared(source, item, "cost", unit=unit, published=published, ours=found[UNIFORM], tolerance_pct=10.0,
                 method=method, reason=why),
        *(
            unprinted(source, item.replace(UNIFORM, policy), "cost", unit=unit, ours=found[policy], method=method,
                      reason="the paper did not run it")
            for policy in (OURS, OMNISCIENT)
        ),
    ]  # fmt: skip


PARTS: Final[Mapping[str, PaperPart]] = {
    "table-3": PaperPart(_table_3, simulated=True),
    "promises": PaperPart(_promises, simulated=True),
    "gain": PaperPart(_gain, simulated=True),
    "series": PaperPart(_series, simulated=True, by_name_only=True),
    "table-5": PaperPart(_table_5, simulated=True),
}
"""The parts that can be replicated, by their names on the command line."""
