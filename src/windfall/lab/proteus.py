"""Proteus' cost analysis, replayed over prices of 2016 that are public: Figures 1, 8, 9 and 10, and what the text claims.

The figures of the other half of the paper, 11 to 14 and 16, are in `agileml`.

The claims are judged by their sign and by the order of the arms.  Sizes are printed beside the paper's, neither passed nor
failed: the paper's prices of c4 are not published, and m3, m4, r3 and g2 moved otherwise.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, section 6.3.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from windfall.errors import Misuse
from windfall.lab import agileml
from windfall.lab import proteus_arms as arms
from windfall.lab import proteus_choices as choices
from windfall.lab import proteus_published as paper
from windfall.lab import proteus_reasons as reasons
from windfall.lab import proteus_runs as played
from windfall.lab import proteus_worlds as worlds
from windfall.lab.proteus_runs import ArmRuns, Floats, Mean, Replay
from windfall.lab.proteus_worlds import C4, Span
from windfall.lab.published_rows import (
    FigureSeries,
    Options,
    PaperFigure,
    PaperPart,
    Progress,
    PublishedRow,
    RowVerdict,
    cannot,
    unprinted,
)

SHORT_H, LONG_H = 2.0, 20.0
SECTION: Final = "Proteus, section 6.3"
NO_DATA: Final = "needs the spot prices of 2016: pass their folder as --data"
BARS: Final = "the paper draws bars only"
OTHERS: Final = (
    "the paper's c4 prices are not public; the prices of these machines stay below on demand longer, so Standard is "
    "evicted less"
)
SENSITIVITY_STARTS: Final = 100
"""Sensitivity plays at most this many starts in a zone."""


# ---------------------------------------------------------------------------------------------------------- what is played


@cache
def _runs(replay: Replay, hours: float, progress: Progress) -> tuple[ArmRuns, ...]:
    return played.play(replay, hours, choices.CHOICES, progress)


def _replay(options: Options) -> Replay | None:
    """Return what is played; None without prices or without trials."""
    if options.folder is None or options.trials == 0:
        return None
    return Replay(Path(options.folder), Span.TEST if options.held_out else Span.TRAIN, options.trials, options.seed)


def _method(replay: Replay, hours: float) -> str:
    months = "months held out" if replay.span is Span.TEST else "last third of the months to learn from"
    return (
        f"{replay.starts} jobs of {hours:g} h a zone from random moments of the {months}; 95 % by blocks of "
        f"{max(1.0, 2.0 * hours / 24.0):.2g} days"
    )


def _of(runs: Sequence[ArmRuns], arm: str, world: str | None = None, zone: str | None = None) -> list[ArmRuns]:
    return [one for one in runs if one.arm == arm and world in {None, one.world} and zone in {None, one.zone}]


def _cost(runs: ArmRuns) -> Floats:
    return runs.cost_usd


def _run(runs: ArmRuns) -> Floats:
    return runs.run_s


def _free(runs: ArmRuns) -> Floats:
    return runs.free_core_h


def _all(runs: ArmRuns) -> Floats:
    return runs.on_demand_core_h + runs.paid_core_h + runs.free_core_h


def _share(part: Callable[[ArmRuns], Floats], runs: Sequence[ArmRuns]) -> float:
    """Return a kind of core-hours as a share of all [%]."""
    whole = sum(float(np.nansum(_all(one))) for one in runs)
    return 100.0 * sum(float(np.nansum(part(one))) for one in runs) / whole if whole else math.nan


# ------------------------------------------------------------------------------------------------------ Figures 1, 8 to 10


def _bars(figure: PaperFigure, hours: float) -> Callable[[Options, Progress], tuple[PublishedRow, ...]]:
    """Return the part of Figure 8 or 9: cost and run time of every arm in every zone."""

    def rows(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
        name = "Figure 8" if figure is PaperFigure.PROTEUS_8 else "Figure 9"
        replay = _replay(options)
        if replay is None:
            return _missing(options, f"Proteus, {name}")
        runs = _runs(replay, hours, progress)
        base_usd = arms.MACHINES * C4.on_demand_usd_per_hour * hours
        found = []
        for one in runs:
            item = f"{one.world} {one.zone[-2:]}, {one.arm}"
            cost = _scaled(played.mean([one], _cost), 100.0 / base_usd)
            run = _scaled(played.mean([one], _run), 100.0 / (hours * arms.HOUR_S))
            source = f"Proteus, {name}, {one.world}"
            for value, quantity, axis in ((cost, "cost", FigureSeries.COST), (run, "run time", FigureSeries.RUN_TIME)):
                row = unprinted(
                    source,
                    item,
                    f"{quantity}{_interval(value)}{_unfinished(one)}",
                    unit="% of on demand",
                    ours=value.value,
                    reason=BARS,
                    method=_method(replay, hours),
                )
                found.append(row.placed(figure, axis, f"{one.world} {one.zone[-2:]}|{one.arm}"))
        return tuple(found)

    return rows


def _figure_10(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    replay = _replay(options)
    if replay is None:
        return _missing(options, "Proteus, Figure 10")
    runs = _runs(replay, SHORT_H, progress)
    found = []
    kinds: tuple[tuple[str, FigureSeries, Callable[[ArmRuns], Floats]], ...] = (
        ("on demand", FigureSeries.ON_DEMAND, lambda one: one.on_demand_core_h),
        ("spot, paid", FigureSeries.PAID, lambda one: one.paid_core_h),
        ("spot, free", FigureSeries.FREE, _free),
    )
    for world in worlds.WORLDS:
        for arm in (arms.STANDARD_AGILEML, arms.BIDBRAIN_CHECKPOINT, arms.PROTEUS, arms.OMNISCIENT):
            for name, series, part in kinds:
                ours = _share(part, _of(runs, arm, world))
                item = f"{world}, {arm}"
                method = _method(replay, SHORT_H)
                if arm == arms.PROTEUS and series is FigureSeries.FREE:
                    row = _beside("Figure 10", item, name, (paper.FREE_PCT, paper.FREE_PCT), ours=ours, method=method)
                else:
                    row = unprinted(
                        "Proteus, Figure 10", item, name, unit="% of core-hours", ours=ours, reason=BARS, method=method
                    )
                found.append(row.placed(PaperFigure.PROTEUS_10, series, item))
    return tuple(found)


def _figure_1(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return Proteus' cost and run time beside those of its one application on 128 machines."""
    replay = _replay(options)
    source = "Proteus, Figure 1"
    if replay is None:
        return (
            cannot(source, "MLR", "cost", unit="% of on demand", published=paper.FIGURE_1_COST_PCT, reason=NO_DATA),
            cannot(source, "MLR", "run time", unit="% of on demand", published=paper.FIGURE_1_RUN_PCT, reason=NO_DATA),
        )
    runs, found = _runs(replay, SHORT_H, progress), []
    for world in worlds.WORLDS:
        proteus, base = (_of(runs, arm, world) for arm in (arms.PROTEUS, arms.ON_DEMAND))
        for name, measure, printed, series in (
            ("cost", _cost, paper.FIGURE_1_COST_PCT, FigureSeries.COST),
            ("run time", _run, paper.FIGURE_1_RUN_PCT, FigureSeries.RUN_TIME),
        ):
            value = _scaled(played.mean(proteus, measure, base), 100.0)
            row = _judged(
                "Figure 1", f"{world}, proteus", name, (printed, printed), value, holds=value.value < 100.0,
                method=_method(replay, SHORT_H), unit="% of on demand",
            )  # fmt: skip
            found.append(row.placed(PaperFigure.PROTEUS_1, series, world))
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------------ claims


def _claims(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    replay = _replay(options)
    if replay is None:
        return _missing(options, SECTION)
    return tuple(
        row
        for hours in (SHORT_H, LONG_H)
        for world in worlds.WORLDS
        for row in _claims_of(_runs(replay, hours, progress), world, hours, _method(replay, hours))
    )


def _measured(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return the claims with the application's constants as stated, and as measured; nothing is chosen again for these."""
    replay = _replay(options)
    if replay is None:
        return _missing(options, SECTION)
    found = list(_claims(options, progress))
    for hours in (SHORT_H, LONG_H):
        runs = played.play(replay, hours, choices.MEASURED_CHOICES, progress)
        for world in worlds.WORLDS:
            method = f"sigma, lambda and phi as measured; {_method(replay, hours)}"
            rows = _claims_of(runs, world, hours, method, choices.MEASURED_CHOICES)
            found += [dataclasses.replace(row, item=f"{row.item}, measured") for row in rows]
    return tuple(found)


def _claims_of(
    runs: Sequence[ArmRuns], world: str, hours: float, method: str, chosen: Mapping[str, arms.Choices] = choices.CHOICES
) -> list[PublishedRow]:
    """Return the claims of a world, over its zones, as it was played with these constants."""
    by = {arm: _of(runs, arm, world) for arm in arms.ARMS}
    item = f"{world}, {hours:g} h"

    def cost(arm: str, over: str) -> Mean:
        return played.mean(by[arm], _cost, by[over])

    def run(arm: str, over: str) -> Mean:
        return played.mean(by[arm], _run, by[over])

    def below(ratio: Mean) -> Mean:
        return Mean(100.0 * (1.0 - ratio.value), 100.0 * (1.0 - ratio.high), 100.0 * (1.0 - ratio.low), ratio.blocks)

    def claim(
        quantity: str, printed: paper.Range, value: Mean, *, holds: bool, unit: str = "%", reason: str = OTHERS
    ) -> PublishedRow:
        row = _judged("section 6.3", item, quantity, printed, value, holds=holds, method=method, unit=unit)
        return row if holds else dataclasses.replace(row, reason=reason)

    proteus, checkpoint, agileml = arms.PROTEUS, arms.STANDARD_CHECKPOINT, arms.STANDARD_AGILEML
    bidbrain, above, base = arms.BIDBRAIN_CHECKPOINT, arms.JUST_ABOVE, arms.ON_DEMAND
    cheaper, faster = below(cost(proteus, checkpoint)), below(run(proteus, checkpoint))
    tiers, tiers_bidbrain = below(cost(agileml, checkpoint)), below(cost(proteus, bidbrain))
    buys = below(cost(bidbrain, checkpoint))
    halves = [_half(cheaper, one) for one in (tiers, buys)]
    rows = [claim(f"cost of {arm}", paper.COST_PCT[arm], _scaled(cost(arm, base), 100.0), holds=cost(arm, base).value < 1.0,
                  unit="% of on demand") for arm in (proteus, agileml, checkpoint)]  # fmt: skip
    stand_in = {kind.machine_type: kind for kind in worlds.CURRENT_IN_2016}[worlds.WORLDS[world].stand_in]
    dearer = (C4.on_demand_usd_per_hour / C4.cores) / (stand_in.on_demand_usd_per_hour / stand_in.cores)
    rows += [
        _beside("section 6.3", item, f"cost of {arm}, baseline {stand_in.machine_type}", paper.COST_PCT[arm],
                ours=100.0 * dearer * cost(arm, base).value, method=method)
        for arm in (proteus, agileml, checkpoint)
    ]  # fmt: skip
    order = [cost(arm, base).value for arm in (proteus, agileml, checkpoint, base)]
    rows += [
        claim("proteus below standard+checkpoint", paper.BELOW_CHECKPOINT_PCT, cheaper, holds=cheaper.value > 0.0),
        claim("its run time below", paper.FASTER_THAN_CHECKPOINT_PCT, faster, holds=faster.value > 0.0),
        claim("AgileML below checkpoints, standard bids", paper.AGILEML_PCT, tiers, holds=tiers.value > 0.0),
        claim("the same, BidBrain buys", paper.AGILEML_PCT, tiers_bidbrain, holds=tiers_bidbrain.value > 0.0),
        claim("AgileML alone, of the savings", (0.0, paper.HALF_PCT), halves[0], holds=halves[0].value <= paper.HALF_PCT),
        claim("BidBrain alone, of the savings", (0.0, paper.HALF_PCT), halves[1], holds=halves[1].value <= paper.HALF_PCT),
        claim("run time of just-above, times standard's", paper.JUST_ABOVE_RUN, run(above, agileml),
              holds=run(above, agileml).value > 1.0, unit=""),
        unprinted(SECTION, item, "evictions of just-above in an hour", unit="", ours=reasons.evictions_per_hour(by[above]),
                  reason=reasons.of_run_time(by[above], chosen[above].eviction_s), method=method),
        claim("cost of just-above, times proteus'", (1.0, 1.0), cost(above, proteus), holds=cost(above, proteus).value > 1.0,
              unit="", reason=reasons.of_cost(by[above], by[proteus])),
        _order(item, order, method),
        unprinted(SECTION, item, f"greedy below standard+agileml{_interval(below(cost(arms.GREEDY, agileml)))}", unit="%",
                  ours=below(cost(arms.GREEDY, agileml)).value, reason="not in the paper", method=method),
        unprinted(SECTION, item, f"omniscient below proteus{_interval(below(cost(arms.OMNISCIENT, proteus)))}", unit="%",
                  ours=below(cost(arms.OMNISCIENT, proteus)).value, reason="not in the paper", method=method),
    ]  # fmt: skip
    return rows


def _half(whole: Mean, part: Mean) -> Mean:
    """Return which share of the whole savings one half alone has [%]; no interval, the two are of the same jobs."""
    share = 100.0 * part.value / whole.value if whole.value > 0.0 else math.nan
    return Mean(share, math.nan, math.nan, whole.blocks)


def _order(item: str, costs: Sequence[float], method: str) -> PublishedRow:
    pairs = sum(low < high for low, high in itertools.pairwise(costs))
    return PublishedRow(
        SECTION,
        item,
        "pairs in the order proteus < standard+agileml < standard+checkpoint < on-demand",
        "of 3",
        3.0,
        float(pairs),
        None,
        RowVerdict.MATCH if pairs == 3 else RowVerdict.DIFFERS,
        "" if pairs == 3 else OTHERS,
        method,
    )


# ------------------------------------------------------------------------------------------------- the worlds themselves


def _worlds(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return how often each type is the cheapest per core: where it is always the same, no arm can gain by choosing."""
    replay = _replay(options)
    if replay is None:
        return _missing(options, "Proteus, worlds")
    found = []
    for name, dates in worlds.WORLDS.items():
        progress(f"Proteus, the {name} world")
        world = worlds.read(replay.folder, name, replay.span)
        for zone in dates.zones:
            shares = worlds.cheapest_share(world, zone, played.played_s(world))
            steady = max(shares.values()) == 1.0
            for machine_type, share in shares.items():
                found.append(
                    unprinted(
                        f"Proteus, the {name} world",
                        f"{zone[-2:]}, {machine_type}",
                        "time as the cheapest per core",
                        unit="%",
                        ours=100.0 * share,
                        reason="the cheapest offer never changes here" if steady else "other prices than the paper's",
                        method="spot price per core, every 5 minutes",
                    )
                )
    return tuple(found)


def _sensitivity(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return what each constant that the paper does not print changes, on months that judge nothing."""
    replay = _replay(options)
    if replay is None:
        return _missing(options, "Proteus, sensitivity")
    if options.held_out:
        raise Misuse("--held-out is no sweep: leave --item sensitivity out, or play it on the months to learn from")
    replay = Replay(replay.folder, replay.span, min(replay.starts, SENSITIVITY_STARTS), replay.seed)
    found = []
    played_arms = (arms.PROTEUS, arms.STANDARD_CHECKPOINT, arms.JUST_ABOVE)
    for name, values in choices.UNPRINTED.items():
        for value in values:
            chosen = {arm: choices.varied(choices.CHOICES[arm], name, value) for arm in played_arms}
            runs = played.play(replay, SHORT_H, chosen, progress)
            for world in worlds.WORLDS:
                proteus, checkpoint, above = (_of(runs, arm, world) for arm in played_arms)
                for quantity, over, one in (
                    ("proteus' cost", "standard+checkpoint", played.mean(proteus, _cost, checkpoint)),
                    ("proteus' run time", "standard+checkpoint", played.mean(proteus, _run, checkpoint)),
                    ("just-above's cost", "proteus", played.mean(above, _cost, proteus)),
                    ("just-above's run time", "proteus", played.mean(above, _run, proteus)),
                ):
                    found.append(
                        unprinted(
                            "Proteus, sensitivity",
                            f"{name} = {value}, {world}",
                            f"{quantity}{_interval(_scaled(one, 100.0))}",
                            unit=f"% of {over}",
                            ours=100.0 * one.value,
                            reason="the paper does not print the constant",
                            method=_method(replay, SHORT_H),
                        )
                    )
    return tuple(found)


# -------------------------------------------------------------------------------------------------------------------- rows


def _judged(
    section: str, item: str, quantity: str, printed: paper.Range, value: Mean, *, holds: bool, method: str, unit: str
) -> PublishedRow:
    """Return the row of a claim: it matches if its sign does; the sizes stand beside each other."""
    low, high = printed
    size = f", printed {low:g} to {high:g}" if low != high else ""
    middle = (low + high) / 2.0
    difference = 100.0 * (value.value / middle - 1.0) if middle and math.isfinite(value.value) else None
    return PublishedRow(
        f"Proteus, {section}",
        item,
        f"{quantity}{_interval(value)}{size}",
        unit,
        middle,
        value.value if math.isfinite(value.value) else None,
        difference,
        RowVerdict.MATCH if holds else RowVerdict.DIFFERS,
        "" if holds else OTHERS,
        f"judged by sign; {method}",
    )


def _beside(section: str, item: str, quantity: str, printed: paper.Range, *, ours: float, method: str) -> PublishedRow:
    """Return the row of a size that is neither passed nor failed."""
    low, high = printed
    size = f", printed {low:g} to {high:g}" if low != high else ""
    row = unprinted(f"Proteus, {section}", item, f"{quantity}{size}", unit="%", ours=ours, reason=OTHERS, method=method)
    middle = (low + high) / 2.0
    return PublishedRow(
        row.source, row.item, row.quantity, row.unit, middle, ours, 100.0 * (ours / middle - 1.0), row.verdict, row.reason,
        row.method,
    )  # fmt: skip


def _missing(options: Options, source: str) -> tuple[PublishedRow, ...]:
    del options
    printed = paper.COST_PCT["proteus"]
    return (cannot(source, "proteus", "cost", unit="% of on demand", published=sum(printed) / 2.0, reason=NO_DATA),)


def _scaled(value: Mean, by: float) -> Mean:
    return Mean(value.value * by, value.low * by, value.high * by, value.blocks)


def _interval(value: Mean) -> str:
    if not math.isfinite(value.low):
        return ""
    return f", 95 %: {value.low:.3g} to {value.high:.3g}, {value.blocks} blocks"


def _unfinished(runs: ArmRuns) -> str:
    return f", {runs.unfinished} not finished" if runs.unfinished else ""


PARTS: Mapping[str, PaperPart] = {
    "worlds": PaperPart(_worlds),
    "figure-1": PaperPart(_figure_1, simulated=True),
    "figure-8": PaperPart(_bars(PaperFigure.PROTEUS_8, SHORT_H), simulated=True),
    "figure-9": PaperPart(_bars(PaperFigure.PROTEUS_9, LONG_H), simulated=True),
    "figure-10": PaperPart(_figure_10, simulated=True),
    "claims": PaperPart(_claims, simulated=True),
    **agileml.PARTS,
    "measured": PaperPart(_measured, simulated=True, by_name_only=True),
    "sensitivity": PaperPart(_sensitivity, simulated=True, by_name_only=True),
}
