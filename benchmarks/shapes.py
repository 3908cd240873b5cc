"""Plans of shapes for machines that come and go: the fast programme beside all pairs, and survivors beside draws.

The costs are Windfall's own for a drawn model of N + 1 layers and every shape of up to N machines: 645 for 128 machines, 3,280
for 512.  Look-ahead is 12 intervals of 60 s, with machines lost and gained on the way.  Times are of the processor, so that
other programs count little.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Benchmark
from windfall.models.migrations import GroupTimes, LinkTimes, MigrationTimes, even_cut
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import Floats, Shape, ShapeSpeeds, all_shapes
from windfall.models.survivors import replicas_left
from windfall.policies.shapes.liveput import LiveputPlan, LiveputView, Programme, plan

AHEAD, INTERVAL_S, SEED = 12, 60.0, 18
SHARE_OF_PAIRS, SHARE_OF_INTERVAL, SHARE_OF_DRAWS = 0.2, 0.01, 0.01
DRAWS, ERRORS_MAX, TIMES, REPEATS = 100_000, 4.0, 20, 5
DRAWN_SHAPE, DRAWN_MACHINES, DRAWN_LOST = Shape(8, 15), 128, 8


class KeptMatrices(BoundedCosts):
    """The same costs with their matrices kept, so that all pairs are timed without making them."""

    def __init__(self, times: MigrationTimes, speeds: ShapeSpeeds) -> None:
        super().__init__(times, speeds)
        self.made: dict[tuple[int, int], Floats] = {}

    def matrix(self, machines: int, lost: int) -> Floats:
        key = (machines, lost)
        if key not in self.made:
            self.made[key] = super().matrix(machines, lost)
        return self.made[key]


@functools.cache
def model(machines: int) -> tuple[MigrationTimes, ShapeSpeeds]:
    """A drawn model with every shape of these machines."""
    rng = np.random.default_rng(SEED)
    stages = range(1, machines + 1)
    layers = machines + 1
    times = MigrationTimes(
        LinkTimes((1.0, 1e9), (1e-4, 1.1)),
        GroupTimes(0.035, (0.05, 0.01)),
        0.24,
        6.6,
        2.0,
        {count: 1.0 + 20.0 / count for count in stages},
        tuple(map(float, rng.uniform(1e6, 4e7, layers))),
        {count: even_cut(layers, count) for count in stages},
    )
    rates = {
        shape: shape.machines / (1.0 + 0.02 * shape.stages + 0.1 * shape.pipelines) * float(rng.uniform(0.9, 1.0))
        for shape in all_shapes(machines, stages)
    }
    return times, ShapeSpeeds(rates)


@functools.cache
def view(machines: int) -> LiveputView:
    """Machines that are lost a few at a time and return."""
    rng = np.random.default_rng(SEED + 1)
    counts = np.clip(machines - 4 + np.cumsum(rng.integers(-4, 5, AHEAD)), machines - 24, machines)
    return LiveputView(Shape(machines // 8, 8), machines, tuple(map(int, counts)), INTERVAL_S)


def timed(costs: BoundedCosts, machines: int, programme: Programme) -> tuple[float, LiveputPlan]:
    """The least processor time of some plans, as other programs on the machine can only add to it."""
    taken_s = []
    for _ in range(REPEATS):
        began = time.process_time()
        found = plan(view(machines), costs, programme)
        taken_s.append(time.process_time() - began)
    return min(taken_s), found


def shapes_pairs() -> Benchmark:
    """At 128 machines one maximum for each case takes at most a fifth of all pairs, and plans the same."""
    costs = KeptMatrices(*model(128))
    wanted = timed(costs, 128, Programme.ALL_PAIRS)[1]

    def ours() -> float:
        taken_s, found = timed(costs, 128, Programme.ONE_MAXIMUM)
        assert found == wanted, "both programmes plan the same"
        return taken_s

    return Benchmark(
        name="liveput, 128 machines vs all pairs",
        ours=ours,
        yardstick=lambda: timed(costs, 128, Programme.ALL_PAIRS)[0],
        target=SHARE_OF_PAIRS,
        at_most=True,
        unit="s",
        rounds=15,
    )


def shapes_replan() -> Benchmark:
    """At 512 machines a plan with survivors that were not counted before takes at most a hundredth of the interval."""
    plan(view(128), BoundedCosts(*model(128)), Programme.ONE_MAXIMUM)

    def ours() -> float:
        costs = BoundedCosts(*model(512))
        began = time.process_time()
        plan(view(512), costs, Programme.ONE_MAXIMUM)
        return time.process_time() - began

    return Benchmark(
        name="liveput, 512 machines vs 1/100 interval",
        ours=ours,
        yardstick=lambda: SHARE_OF_INTERVAL * INTERVAL_S,
        target=1.0,
        at_most=True,
        unit="s",
    )


def shapes_survivors() -> Benchmark:
    """Exact survivors take at most a hundredth of 100,000 draws, and lie within 4 standard errors of them."""
    rng = np.random.default_rng(SEED)
    replicas_left(DRAWN_SHAPE, DRAWN_MACHINES, DRAWN_LOST)

    def ours() -> float:
        began = time.process_time()
        for _ in range(TIMES):
            replicas_left(DRAWN_SHAPE, DRAWN_MACHINES, DRAWN_LOST)
        return (time.process_time() - began) / TIMES

    def drawn() -> float:
        groups, taken_s = [DRAWN_SHAPE.pipelines] * DRAWN_SHAPE.stages + [DRAWN_MACHINES - DRAWN_SHAPE.machines], []
        for _ in range(REPEATS):
            began = time.process_time()
            gone = rng.multivariate_hypergeometric(groups, DRAWN_LOST, DRAWS)
            least = DRAWN_SHAPE.pipelines - gone[:, :-1].max(axis=1)
            taken_s.append(time.process_time() - began)
        for kept, chance in enumerate(replicas_left(DRAWN_SHAPE, DRAWN_MACHINES, DRAWN_LOST)):
            error = math.sqrt(chance * (1.0 - chance) / DRAWS)
            assert abs((least >= kept).mean() - chance) <= ERRORS_MAX * error + 1e-12, (kept, chance)
        return min(taken_s)

    return Benchmark(
        name="survivors, exact vs 100,000 draws",
        ours=ours,
        yardstick=drawn,
        target=SHARE_OF_DRAWS,
        at_most=True,
        unit="s",
        rounds=15,
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks shapes` measures."""
    return [shapes_pairs, shapes_replan, shapes_survivors]
