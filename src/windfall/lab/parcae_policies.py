"""What policies train on Parcae's trace: those of its simulator beside their published totals, and other systems' rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from windfall.lab import parcae_published as paper
from windfall.lab import parcae_replay as replay
from windfall.lab.parcae_tables import ParcaeModel, kept_model
from windfall.lab.published_rows import Options, PaperFigure, Progress, PublishedRow, cannot, compared, unprinted
from windfall.models.shape_costs import ChargedCosts, PublishedCosts
from windfall.models.shapes import ShapeSpeeds
from windfall.policies.shapes.redundant_choices import RedundantCosts, redundant_speeds
from windfall.policies.shapes.shape_choices import fixed_depth
from windfall.simulation import shape_replay
from windfall.simulation.shape_replay import Replayed

ROUNDING_PCT, MEAN_PCT, PLAN_PCT, DRAWN_PCT = 0.0001, 0.1, 0.1, 1.0
"""Totals without any draw match to rounding; those with mean costs, whose draws the published totals keep, within 0.1 %."""
CHARGED: Final = "mean costs over all sets of lost machines, the last stage charged as published"
OOBLECK, BAMBOO = "templates, as Oobleck", "redundant stages, as Bamboo"
DEPTH, VARUNA = "whole pipelines", "whole pipelines, restart from a checkpoint, as Varuna"
_HOW: Final = {
    paper.IDEAL: ("fastest shape, changes are free", ROUNDING_PCT, "matches to rounding"),
    paper.CHECKPOINTS: ("fastest shape, restart from a checkpoint", ROUNDING_PCT, "matches to rounding"),
    paper.MIGRATING: ("fastest shape, migration", MEAN_PCT, "matches within 0.1 %"),
    paper.TRUTH: ("liveput, the truth is known", PLAN_PCT, "matches within 0.1 %"),
    paper.PERSISTING: ("liveput, now and last value", PLAN_PCT, "matches within 0.1 %"),
    paper.FORECASTING: (
        "liveput, now and ARIMA", DRAWN_PCT, "matches within 1 %: losses are drawn without seed in the published one",
    ),
}  # fmt: skip
_WHY: Final = {
    OOBLECK: "every machine trains, also where the profile is slower with more, and most changes of the count are a restart",
    BAMBOO: "its own tables are of other batches; here redundancy takes half again as many stages, and forward passes twice",
    DEPTH: "machines that make no whole pipeline are idle; its depth was chosen afterwards",
    VARUNA: "the same, and every change of the count is a restart; no step is computed again, as a notice lets it save",
}


@cache
def published_costs(folder: Path, name: str) -> PublishedCosts:
    """Return the costs of a model as the published simulator charges them, kept."""
    model = kept_model(folder, name)
    return PublishedCosts(model.times, model.speeds)


def fastest(model: ParcaeModel) -> shape_replay.Choice:
    """Return the policy that takes the fastest shape of the machines of now."""
    return lambda seen: model.speeds.best(seen.now)


@cache
def played(folder: Path, name: str, policy: str, interval: tuple[int, int] | None = None) -> Replayed:
    """Return what a policy does on the trace of a model, or on some intervals of it, where training begins."""
    model, costs = kept_model(folder, name), published_costs(folder, name)
    counts = model.counts if interval is None else model.counts[slice(*interval)]
    if policy == paper.IDEAL:
        return shape_replay.play_free(counts, model.speeds)
    if policy == paper.CHECKPOINTS:
        return shape_replay.play_checkpoints(counts, model.speeds, model.times)
    arima = replay.GuardedForecasts(min(shape.machines for shape in model.speeds.samples_per_s))
    choices: dict[str, shape_replay.Choice] = {
        paper.MIGRATING: fastest(model),
        paper.TRUTH: replay.planned(costs, lambda seen: counts[seen.number + 1 : seen.number + paper.AHEAD]),
        paper.PERSISTING: replay.planned(costs, replay.staying),
        paper.FORECASTING: replay.planned(costs, arima),
        paper.BOTH: replay.planned_on_average(costs, (replay.staying, arima)),
    }
    return shape_replay.play(counts, costs, choices[policy])


@cache
def baselines(folder: Path, name: str) -> dict[str, tuple[str, Replayed | None]]:
    """Return what other systems' rules train on the profile and trace of a model, with a note; None: they have no shape."""
    model, costs = kept_model(folder, name), published_costs(folder, name)
    found: dict[str, tuple[str, Replayed | None]] = {
        OOBLECK: ("", shape_replay.play_templates(model.counts, model.speeds, model.times)),
    }
    redundant = redundant_speeds(model.speeds, model.micro_batches)
    if redundant is None:
        most = max(shape.stages for shape in model.speeds.samples_per_s)
        found[BAMBOO] = (f"no shape: no more than {most} stages were profiled", None)
    else:
        found[BAMBOO] = _best_depth(redundant, _whole(model, redundant, RedundantCosts(model.times, redundant)))
    found[DEPTH] = _best_depth(model.speeds, _whole(model, model.speeds, costs))
    found[VARUNA] = _best_depth(
        model.speeds,
        lambda depth: shape_replay.play_checkpoints(
            model.counts, model.speeds, model.times, lambda machines: fixed_depth(model.speeds, depth, machines)
        ),
    )
    return found


def _whole(model: ParcaeModel, speeds: ShapeSpeeds, costs: ChargedCosts) -> Callable[[int], Replayed]:
    """Return what whole pipelines of a depth train."""

    def run(depth: int) -> Replayed:
        return shape_replay.play(model.counts, costs, lambda seen: fixed_depth(speeds, depth, seen.now))

    return run


def _best_depth(speeds: ShapeSpeeds, run: Callable[[int], Replayed]) -> tuple[str, Replayed]:
    """Return the depth that trains most."""
    found = {depth: run(depth) for depth in sorted({shape.stages for shape in speeds.samples_per_s})}
    best = max(found, key=lambda depth: found[depth].per_s)
    return f"{best} stages", found[best]


def policies(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return the totals of every policy on the whole trace, by model."""
    folder, rows = None if options.folder is None else Path(options.folder), []
    for name, totals in paper.SAMPLES.items():
        place = f"{paper.PAPER}, simulator, whole trace, {name}"
        for policy, published in totals.items():
            item, tolerance, words = _HOW[policy]
            if folder is None:
                rows.append(cannot(place, item, "samples", unit="", published=published, reason=paper.NO_DATA))
                continue
            progress(f"{name}: {item}")
            found = played(folder, name, policy)
            rows.append(
                compared(place, item, "samples", unit="", published=published, ours=sum(found.samples),
                         tolerance_pct=tolerance, method=f"look-ahead 12; {CHARGED}; {words}",
                         reason="the published total was charged with 30 to 100 draws of the lost machines")
                .placed(PaperFigure.PARCAE_SAMPLES, x=f"{name}|{policy}")
            )  # fmt: skip
        if folder is not None:
            progress(f"{name}: both forecasts, baselines")
            rows += [_both(folder, name, place), *_baseline_rows(folder, name, place)]
    return tuple(rows)


def _both(folder: Path, name: str, place: str) -> PublishedRow:
    """Return what the average over both forecasts trains beside the best published policy that knows no truth."""
    known = {key: paper.SAMPLES[name][key] for key in (paper.MIGRATING, paper.PERSISTING, paper.FORECASTING)
             if key in paper.SAMPLES[name]}  # fmt: skip
    best = max(known, key=lambda key: known[key])
    ours = sum(played(folder, name, paper.BOTH).samples)
    return unprinted(
        place, "liveput, now and both forecasts", "samples", unit="", ours=ours,
        reason=f"{ours / known[best]:.3%} of the best of the published ones without the truth, {_HOW[best][0]}",
        method=f"look-ahead 12; {CHARGED}; best on average over last value and ARIMA, each as likely",
    )  # fmt: skip


def _baseline_rows(folder: Path, name: str, place: str) -> list[PublishedRow]:
    ideal, rows = sum(played(folder, name, paper.IDEAL).samples), []
    for item, (note, found) in baselines(folder, name).items():
        lost = "" if found is None else f"; {_losses(found, ideal)}"
        rows.append(
            unprinted(place, f"{item}{', ' if note else ''}{note}", "samples", unit="",
                      ours=0.0 if found is None else sum(found.samples), reason=f"{_WHY[item]}{lost}",
                      method="on the same profile, trace and times of changes; the best depth of all")
        )  # fmt: skip
    if name == paper.DRAWN:
        shapes = played(folder, name, paper.PERSISTING).shapes
        changed = sum(one != other for one, other in itertools.pairwise(shapes))
        rows.append(
            unprinted(place, _HOW[paper.PERSISTING][0], "changes of shape", unit="", ours=float(changed),
                      reason="not in the paper; the picture shows them", method=f"look-ahead 12; {CHARGED}")
            .placed(PaperFigure.PARCAE_SHAPES)
        )  # fmt: skip
    return rows


def _losses(found: Replayed, ideal: float) -> str:
    """Return what shapes and changes add to the fastest even shapes without cost."""
    shapes = 100.0 * (found.without_changes / ideal - 1.0)
    changes = 100.0 * (sum(found.samples) - found.without_changes) / ideal
    return f"against the fastest even shapes with free changes: shapes {shapes:+.1f} %, changes {changes:+.1f} %"
