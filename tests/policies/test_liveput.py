"""The plan that trains most: against every sequence of shapes, and the fast programme against the plain one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.models.migration_examples import example, speeds
from windfall.errors import Misuse
from windfall.models.migrations import GroupTimes, LinkTimes, MigrationTimes, even_cut
from windfall.models.shape_costs import BoundedCosts, PublishedCosts, ShapeCosts
from windfall.models.shapes import IDLE, Floats, Shape, ShapeGrid, ShapeSpeeds, all_shapes, grid_of
from windfall.policies.shapes.liveput import LiveputPlan, LiveputView, Programme, best_on_average, plan


class DrawnCosts:
    """Costs of a small grid, drawn; another matrix for each number of lost machines."""

    def __init__(self, seed: int) -> None:
        """Draw rates and costs."""
        rng = np.random.default_rng(seed)
        self.grid: ShapeGrid = grid_of(ShapeSpeeds({s: float(rng.uniform(1.0, 9.0)) for s in all_shapes(4, (1, 2, 3))}))
        self.drawn = rng.uniform(0.0, 50.0, (5, *(len(self.grid.shapes),) * 2))

    def matrix(self, machines: int, lost: int) -> Floats:
        """Return the drawn matrix."""
        return np.asarray(self.drawn[lost])

    def row(self, place: int, machines: int, lost: int) -> Floats:
        """Return a row of it."""
        return self.matrix(machines, lost)[place]

    def again_s(self) -> Floats:
        """Return 7 s for each."""
        return np.full(len(self.grid.shapes), 7.0)


def best_of_all(view: LiveputView, costs: ShapeCosts) -> float:
    """The most samples of any sequence of shapes that fit."""
    grid, most = costs.grid, -np.inf
    fitting = [np.flatnonzero(grid.machines <= count) for count in view.counts]
    for places in itertools.product(*fitting):
        place, machines, samples = grid.place(view.shape), view.machines, 0.0
        for number, (new, count) in enumerate(zip(places, view.counts, strict=True)):
            cost = costs.row(place, machines, max(machines - count, 0))[new]
            if number == 0 and view.unpaid_s:
                cost = cost + costs.again_s()[new] if cost > 0.0 else view.unpaid_s
            samples += grid.samples_per_s[new] * (view.interval_s - cost)
            place, machines = new, count
        most = max(most, float(samples))
    return most


@pytest.mark.parametrize("seed", range(12))
def test_no_sequence_of_shapes_trains_more(seed: int) -> None:
    """Expected samples equal the best of all sequences, of drawn costs and counts, with and without an unfinished change."""
    rng = np.random.default_rng(100 + seed)
    costs = DrawnCosts(seed)
    view = LiveputView(Shape(1, 2), 4, tuple(map(int, rng.integers(0, 5, 4))), 60.0, float(rng.choice([0.0, 30.0])))

    found = plan(view, costs)

    assert found.samples == pytest.approx(best_of_all(view, costs))
    assert all(shape.machines <= count for shape, count in zip(found.shapes, view.counts, strict=True))


@pytest.mark.parametrize("every_stage", [False, True])
def test_published_costs_are_planned_with_as_they_are(every_stage: bool) -> None:
    """The plan is the best of all sequences with the exact mean costs, machines lost on the way."""
    costs = PublishedCosts(example(every_stage=every_stage), speeds(6))
    view = LiveputView(Shape(2, 3), 7, (5, 6, 3), 60.0)

    assert plan(view, costs).samples == pytest.approx(best_of_all(view, costs))


def drawn_bounded(seed: int) -> BoundedCosts:
    """Costs and throughputs of 24 machines, drawn, with short intervals in mind: some changes are worth it, others are not."""
    rng = np.random.default_rng(seed)
    stages = range(1, 13)
    times = MigrationTimes(
        LinkTimes((1.0, 1e9), (1e-4, float(rng.uniform(0.2, 3.0)))),
        GroupTimes(0.03, (float(rng.uniform(0.0, 0.5)), 0.01), (0.1, 0.05)),
        *map(float, rng.uniform(0.0, 5.0, 3)),
        {count: float(rng.uniform(0.0, 4.0)) for count in stages},
        tuple(map(float, rng.uniform(1e6, 6e7, 13))),
        {count: even_cut(13, count) for count in stages},
    )
    return BoundedCosts(
        times, ShapeSpeeds({s: s.machines ** float(rng.uniform(0.6, 1.0)) for s in all_shapes(24, stages)})
    )


def views(seed: int) -> list[LiveputView]:
    """Paths of twelve counts from 24 machines: drawn, falling, rising, flat, and through none."""
    rng = np.random.default_rng(seed)
    paths = [rng.integers(0, 25, 12), 24 - np.arange(12), 12 + np.arange(12), np.full(12, 20), rng.integers(20, 25, 12)]
    return [LiveputView(shape, 24, tuple(map(int, path)), 60.0) for path in paths for shape in (Shape(3, 4), IDLE)]


@pytest.mark.parametrize("seed", range(8))
def test_one_maximum_for_each_case_is_all_pairs_to_the_last_bit(seed: int) -> None:
    """Samples and every shape of the plan are equal, not nearly equal."""
    costs = drawn_bounded(seed)

    for view in views(seed):
        assert plan(view, costs, Programme.ONE_MAXIMUM) == plan(view, costs, Programme.ALL_PAIRS)


def test_drawn_plans_change_depth_and_pipelines() -> None:
    """The comparison above is of plans that do something: shapes of several depths, and several counts of pipelines."""
    shapes = {shape for seed in range(8) for view in views(seed) for shape in plan(view, drawn_bounded(seed)).shapes}

    assert len({shape.stages for shape in shapes}) > 4
    assert len({shape.pipelines for shape in shapes}) > 4


def test_a_shape_stays_where_a_change_gains_nothing() -> None:
    """Of equally good shapes the present one is kept, wherever it is in the order."""
    costs = DrawnCosts(0)
    costs.drawn[:] = 0.0
    costs.grid = grid_of(ShapeSpeeds(dict.fromkeys(all_shapes(4, (1, 2, 3)), 5.0)))

    for shape in costs.grid.shapes[1:]:
        assert plan(LiveputView(shape, 4, (4, 4), 60.0), costs) == LiveputPlan((shape, shape), 600.0)


def test_a_loss_to_come_is_planned_for() -> None:
    """With losses ahead and dear changes of depth, the plan takes the shape that needs no change later."""
    costs = DrawnCosts(0)
    grid = costs.grid
    costs.drawn[:] = 50.0
    costs.drawn[:, np.arange(len(grid.shapes)), np.arange(len(grid.shapes))] = 0.0
    rates = dict.fromkeys(all_shapes(4, (1, 2, 3)), 1.0)
    costs.grid = grid_of(ShapeSpeeds({**rates, Shape(4, 1): 10.0, Shape(1, 3): 9.0}))
    start = LiveputView(Shape(1, 1), 4, (4, 3, 3), 60.0)

    assert plan(start, costs).shapes[0] == Shape(1, 3)
    assert plan(LiveputView(Shape(1, 1), 4, (4,), 60.0), costs).shapes == (Shape(4, 1),)


def test_too_few_machines_for_any_shape_wait() -> None:
    """With no machine nothing is trained, and training begins again when there are some."""
    costs = BoundedCosts(example(every_stage=True), speeds(6))

    found = plan(LiveputView(Shape(2, 2), 6, (0, 0, 6, 6, 6), 60.0), costs, Programme.ONE_MAXIMUM)

    assert found.shapes[:2] == (IDLE, IDLE)
    assert IDLE not in found.shapes[2:]


def test_what_cannot_be_is_refused() -> None:
    """One maximum with costs that depend on both shapes, no interval, a shape that was larger than the machines."""
    view = LiveputView(Shape(2, 3), 7, (6, 6), 60.0)
    with pytest.raises(Misuse, match="these costs are not of that kind; use all pairs"):
        plan(view, PublishedCosts(example(every_stage=True), speeds(6)), Programme.ONE_MAXIMUM)
    with pytest.raises(Misuse, match="0 intervals of 60 s"):
        LiveputView(Shape(2, 3), 7, (), 60.0)
    with pytest.raises(Misuse, match="shape 2x3 with 5 machines: it uses 6"):
        LiveputView(Shape(2, 3), 5, (5,), 60.0)
    with pytest.raises(Misuse, match="shape 1x9 is not among the"):
        plan(LiveputView(Shape(1, 9), 9, (9,), 60.0), BoundedCosts(example(every_stage=True), speeds(6)))


def test_the_shape_of_two_forecasts_is_the_best_of_their_mean() -> None:
    """By trying each shape for now under each forecast; often it is the choice of neither."""
    neither = 0
    for seed in range(60):
        costs = DrawnCosts(seed)
        rng = np.random.default_rng(seed)
        both = [LiveputView(Shape(1, 2), 4, (4, *map(int, rng.integers(0, 5, 3))), 60.0) for _ in range(2)]

        found = best_on_average(both, costs)

        worth = {
            shape: sum(_worth(view, shape, costs) for view in both)
            for shape in costs.grid.shapes
            if shape.machines <= 4
        }
        assert worth[found] == pytest.approx(max(worth.values()))
        neither += found not in {plan(view, costs).shapes[0] for view in both}
    assert neither > 0


def _worth(view: LiveputView, shape: Shape, costs: DrawnCosts) -> float:
    """What a shape for now and the best ones after it train."""
    cost_s = float(costs.row(costs.grid.place(view.shape), 4, 0)[costs.grid.place(shape)])
    now = float(costs.grid.samples_per_s[costs.grid.place(shape)]) * (60.0 - cost_s)
    counts = view.counts
    if len(counts) == 1:
        return now
    return now + best_of_all(LiveputView(shape, max(4, shape.machines), counts[1:], 60.0), costs)


def test_forecasts_of_two_moments_have_no_mean() -> None:
    """What there is now is known, and the same in all."""
    costs = DrawnCosts(0)
    views = [LiveputView(Shape(1, 1), 2, counts, 60.0) for counts in ((2, 1), (3, 1))]

    for some in (views, []):
        with pytest.raises(Misuse, match="write at least one, all of the same moment"):
            best_on_average(some, costs)
