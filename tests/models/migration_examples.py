"""A small model with layers of different sizes, and its migrations by trying every set of lost machines."""

from __future__ import annotations

import itertools

from windfall.models.migrations import GroupTimes, LinkTimes, MigrationTimes, even_cut
from windfall.models.shapes import Shape, ShapeSpeeds, all_shapes

LINK = LinkTimes((1.0, 1e6, 1e9), (0.01, 0.02, 1.0))
GROUPS = GroupTimes(0.03, (0.5, 0.1), (0.02, 0.01), ((1, 1.0), (3, 2.0)), 1.5)
DEPTHS = range(1, 6)


def example(*, every_stage: bool) -> MigrationTimes:
    """Six layers, in up to five stages."""
    parameters = (4e6, 1e6, 2e6, 2e6, 1e6, 8e6)
    cuts = {stages: even_cut(6, stages) for stages in DEPTHS}
    builds = {stages: 3.0 / stages for stages in DEPTHS}
    return MigrationTimes(LINK, GROUPS, 0.2, 6.0, 1.0, builds, parameters, cuts, 2, every_stage)


def speeds(machines: int) -> ShapeSpeeds:
    """All shapes; deep ones are slower for their size, and 2 x 3 is an outlier."""
    rates = {
        shape: 10.0 * shape.machines / (1.0 + 0.1 * shape.stages + 0.2 * shape.pipelines)
        for shape in all_shapes(machines, DEPTHS)
    }
    return ShapeSpeeds({**rates, Shape(2, 3): 3.0} if Shape(2, 3) in rates else rates)


def tried(times: MigrationTimes, source: Shape, machines: int, lost: int, target: Shape) -> list[float]:
    """Return the cost of each set of lost machines: machine q P + s is stage s of pipeline q, the rest are spares."""
    return [_one(times, source, set(gone), target) for gone in itertools.combinations(range(machines), lost)]


def _one(times: MigrationTimes, source: Shape, gone: set[int], target: Shape) -> float:
    alive = [machine for machine in range(source.machines) if machine not in gone]
    restart = times.restart_s(target, adding=target.machines > source.machines - len(gone))
    if source.stages != target.stages:
        return _moved(times, source, alive, target) + restart
    if not gone and source == target:
        return 0.0
    survivors = [sum(machine % source.stages == stage for machine in alive) for stage in range(source.stages)]
    if min(survivors) >= target.pipelines:
        return times.intra_s(target)
    longest = serial = 0.0
    for stage, (left, held) in enumerate(zip(survivors, times.stage_parameters(source.stages), strict=True)):
        wanted = max(target.pipelines - left, 0)
        if wanted == 0:
            continue
        longest = max(longest, times.state_s(held))
        if wanted == target.pipelines or (stage == source.stages - 1 and wanted == target.pipelines - 1):
            serial += times.state_s(held)
    return max(longest, serial) + restart


def _moved(times: MigrationTimes, source: Shape, alive: list[int], target: Shape) -> float:
    left, lacked, last = list(alive), 0.0, 0.0
    missing = times.lacking(source.stages, target.stages) if source.stages else None
    for stage, whole in enumerate(times.stage_parameters(target.stages)):
        if left and missing is not None:
            least = min(left, key=lambda machine: (missing[stage, machine % source.stages], machine))
            left.remove(least)
            last = float(missing[stage, least % source.stages])
            lacked += last
        else:
            lacked += whole
    broadcast = max(times.state_s(held) for held in times.stage_parameters(target.stages))
    return times.state_s(lacked if times.every_stage else last) + (broadcast if target.pipelines > 1 else 0.0)
