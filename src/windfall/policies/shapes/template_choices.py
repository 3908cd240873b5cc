"""Pipelines of several depths side by side, so that every machine trains: Oobleck's templates.

There is one template, the fastest pipeline, for each number of machines from the least that holds the model.  Any number of
machines from there on is a sum of such numbers, so that none is idle; of the sums with one count of machines the fastest is
taken.  Pipelines share a batch by their speed, so that all end at once.  A profile has D equal pipelines of P stages: each of
them is taken to train as fast beside D - 1 pipelines of other depths,

    rate of depths P_1 ... P_D = (v(D, P_1) + ... + v(D, P_D)) / D

and where the profile lacks a shape (D, P_i), that sum cannot be had.

**What a change costs**, by counts: a restart, and the state of the largest stage of a pipeline that was not there before, as
its stages get it from machines that have it, all at once, as Parcae charges a stage that is short.  Lost spares cost nothing.

Source: Oobleck (SOSP 2023), its public program (commit 3b7a0c2f): planning uses all machines, and a pipeline that loses some
switches to the template of its new size.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

from windfall.models.migrations import MigrationTimes
from windfall.models.shapes import Shape, ShapeSpeeds
from windfall.structs import SameObject

Depths = tuple[int, ...]
"""Stages of each pipeline, the deepest first; empty: nothing is trained."""


def templates(speeds: ShapeSpeeds, machines: int) -> Depths:
    """Return the pipelines that use most machines; of these sums the fastest.

    Example:
        With templates for 2 to 4 machines, 7 machines are pipelines of 4 and 3, or of 3, 2 and 2, whichever is faster.
    """
    return _templates(SameObject(speeds), machines)


@lru_cache(maxsize=10_000)
def _templates(kept: SameObject[ShapeSpeeds], machines: int) -> Depths:
    speeds = kept.value
    best: tuple[int, float, Depths] = (0, 0.0, ())
    for pipelines in range(1, machines + 1):
        depths = [shape.stages for shape in speeds.samples_per_s if shape.pipelines == pipelines]
        if depths:
            best = max(best, _fastest(speeds, pipelines, sorted(depths), machines), key=lambda one: one[:2])
    return best[2]


def _fastest(speeds: ShapeSpeeds, pipelines: int, depths: list[int], machines: int) -> tuple[int, float, Depths]:
    """Return machines, rate and depths of the best sum of this many pipelines: by machines used, then by rate."""
    found: dict[int, tuple[float, Depths]] = {0: (0.0, ())}
    for _ in range(pipelines):
        grown: dict[int, tuple[float, Depths]] = {}
        for used, (rate, chosen) in found.items():
            for depth in depths:
                if used + depth <= machines:
                    with_it = tuple(sorted((*chosen, depth), reverse=True))
                    one = (rate + speeds.rate(Shape(pipelines, depth)) / pipelines, with_it)
                    grown[used + depth] = max(grown.get(used + depth, one), one)
        found = grown
    most = max(found, default=0)
    return (most, *found[most]) if most else (0, 0.0, ())


def rate_of(speeds: ShapeSpeeds, depths: Depths) -> float:
    """Return the throughput of pipelines side by side [samples/s]."""
    return math.fsum(speeds.rate(Shape(len(depths), depth)) for depth in depths) / len(depths) if depths else 0.0


def change_s(times: MigrationTimes, old: Depths, new: Depths, machines: int, lost: int) -> float:
    """Return what it costs on average to continue with other pipelines [s].

    Args:
        times: of the model.
        old: pipelines until now.
        new: from now on.
        machines: how many there were, spares among them.
        lost: how many of these vanish, any of them with equal probability.
    """
    if not new:
        return 0.0
    spares = machines - sum(old)
    untouched = math.comb(spares, lost) / math.comb(machines, lost) if old == new else 0.0
    added = Counter(new) - Counter(old)
    depths = set(added or new)
    largest_s = max(max(map(times.state_s, times.stage_parameters(depth))) for depth in depths)
    adding = sum(new) > sum(old) - lost
    restart_s = max(times.restart_s(Shape(len(new), depth), adding=adding) for depth in set(new))
    return (1.0 - untouched) * (restart_s + largest_s)
