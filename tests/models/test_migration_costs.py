"""The cost of a change of shape: rules, the exact mean over lost machines, and arrays for plans."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.models.migration_examples import DEPTHS, GROUPS, LINK, example, speeds, tried
from windfall.errors import Misuse
from windfall.models.migration_costs import CostSpread, migration_cost
from windfall.models.migrations import GroupTimes, LinkTimes, MigrationTimes, even_cut
from windfall.models.shape_costs import BoundedCosts, PublishedCosts
from windfall.models.shapes import IDLE, Shape, all_shapes
from windfall.models.survivors import replicas_left


def test_a_message_takes_the_time_of_the_table() -> None:
    """The smallest below, linear in between, proportional above."""
    assert LINK.seconds(0.0) == 0.01
    assert LINK.seconds(1e6) == 0.02
    assert LINK.seconds(5.005e8) == pytest.approx(0.51)
    assert LINK.seconds(2e9) == 2.0


def test_communication_groups_add_up() -> None:
    """3 pipelines of 2 stages: 12 groups, 6 machines, the step from 3 pipelines on, half as long again when adding."""
    assert GROUPS.seconds(Shape(3, 2), adding=True) == pytest.approx(0.03 + 12 * 0.5 + 6 * 0.02 + 2.0 * 1.5)
    assert GROUPS.seconds(Shape(2, 2), adding=False) == pytest.approx(0.03 + 9 * 0.1 + 4 * 0.01 + 1.0)


def test_layers_are_cut_as_published() -> None:
    """50 layers in 6 stages; one stage has all; the last has one less than the first."""
    assert even_cut(50, 6) == (0, 9, 17, 25, 33, 42, 50)
    assert even_cut(7, 1) == (0, 7)
    assert even_cut(5, 4) == (0, 2, 3, 4, 5)
    assert even_cut(5, 5) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("every_stage", [False, True])
@pytest.mark.parametrize(
    ("source", "machines", "lost"),
    [
        (Shape(2, 3), 7, 2),
        (Shape(3, 2), 8, 4),
        (Shape(1, 5), 5, 3),
        (Shape(2, 4), 8, 5),
        (Shape(4, 1), 6, 3),
        (Shape(2, 2), 4, 4),
    ],
)
def test_the_mean_is_that_of_all_sets_of_lost_machines(
    source: Shape, machines: int, lost: int, every_stage: bool
) -> None:
    """Mean, least and most equal those of trying each set, whether another depth is taken or not."""
    times = example(every_stage=every_stage)

    for target in all_shapes(8, DEPTHS):
        found = migration_cost(times, source, machines, lost, target)
        costs = tried(times, source, machines, lost, target)
        assert (found.mean_s, found.least_s, found.most_s) == pytest.approx(
            (np.mean(costs), min(costs), max(costs)), rel=1e-9
        ), target


def test_every_stage_costs_at_least_what_the_last_one_does() -> None:
    """The switch can only add what survivors lack, and adds something in several repartitions."""
    pairs = [
        (migration_cost(example(every_stage=False), Shape(2, 3), 7, 1, target).mean_s,
         migration_cost(example(every_stage=True), Shape(2, 3), 7, 1, target).mean_s)
        for target in all_shapes(6, DEPTHS)
    ]  # fmt: skip

    assert all(last <= every for last, every in pairs)
    assert sum(last < every for last, every in pairs) > 3


def test_training_begins_and_ends() -> None:
    """From no shape each is a start with machines added; to none is free; nothing changed is free."""
    times = example(every_stage=True)

    begun = migration_cost(times, IDLE, 0, 0, Shape(1, 3))
    assert begun.mean_s == pytest.approx(times.restart_s(Shape(1, 3), adding=True) + times.state_s(18e6))
    assert migration_cost(times, Shape(2, 3), 7, 2, IDLE) == CostSpread(0.0, 0.0, 0.0)
    assert migration_cost(times, Shape(2, 3), 7, 0, Shape(2, 3)) == CostSpread(0.0, 0.0, 0.0)


def test_what_cannot_be_is_refused() -> None:
    """More lost than there were, a shape larger than the machines, tables and cuts that do not fit: each by name."""
    times = example(every_stage=True)
    with pytest.raises(Misuse, match="3 of 2 machines lost"):
        migration_cost(times, IDLE, 2, 3, Shape(1, 1))
    with pytest.raises(Misuse, match="shape 2x3: it needs at most 5"):
        migration_cost(times, Shape(2, 3), 5, 1, Shape(1, 1))
    with pytest.raises(Misuse, match="9 stages: there are cuts and build times for 1, 2, 3, 4, 5"):
        migration_cost(times, Shape(2, 3), 7, 1, Shape(1, 9))
    with pytest.raises(Misuse, match="5 layers in 6 stages: write"):
        even_cut(5, 6)
    with pytest.raises(Misuse, match="2 sizes and 1 times"):
        LinkTimes((1.0, 2.0), (0.1,))
    with pytest.raises(Misuse, match="do not ascend"):
        LinkTimes((2.0, 1.0), (0.1, 0.2))
    with pytest.raises(Misuse, match=r"2 layers in 2 stages are cut at \[0, 2, 2\]"):
        MigrationTimes(LINK, GroupTimes(0.0), 0.0, 0.0, 0.0, {2: 1.0}, (1.0, 1.0), {2: (0, 2, 2)})


def test_the_published_matrix_is_the_mean_of_each_pair() -> None:
    """Row and matrix agree with the mean of each pair, and are infinite where an old shape does not fit."""
    times = example(every_stage=False)
    costs = PublishedCosts(times, speeds(8))
    matrix, shapes = costs.matrix(7, 2), costs.grid.shapes

    for (i, old), (j, new) in itertools.product(enumerate(shapes), enumerate(shapes)):
        if old.machines > 7 or new.machines > 5:
            continue
        assert matrix[i, j] == migration_cost(times, old, 7, 2, new).mean_s
    assert np.isinf(matrix[costs.grid.machines > 7]).all()
    place, spares = costs.grid.place(Shape(2, 2)), migration_cost(times, Shape(2, 2), 8, 2, Shape(2, 2)).mean_s
    assert costs.row(place, 8, 2)[place] == spares != matrix[place, place]
    assert (costs.row(costs.grid.place(Shape(2, 3)), 7, 2) == matrix[costs.grid.place(Shape(2, 3))]).all()


def test_a_pair_of_equal_depth_moves_state_unless_replicas_are_left() -> None:
    """5x1 to 3x1 with 4 of 9 lost: the cost of both outcomes, weighted by whether three replicas of the old shape are left."""
    times = example(every_stage=True)
    costs = BoundedCosts(times, speeds(9))
    enough = float(replicas_left(Shape(5, 1), 9, 4)[3])
    moved_s = times.restart_s(Shape(3, 1), adding=True) + times.state_s(18e6)

    found = costs.row(costs.grid.place(Shape(5, 1)), 9, 4)[costs.grid.place(Shape(3, 1))]

    assert 0.2 < enough < 0.8
    assert found == pytest.approx(enough * times.intra_s(Shape(3, 1)) + (1.0 - enough) * moved_s)


def test_bounded_costs_charge_at_least_the_published_mean_with_every_stage() -> None:
    """No pair costs less than the exact mean while a stage keeps a replica; unchanged shapes are free; rows agree."""
    times = example(every_stage=True)
    costs = BoundedCosts(times, speeds(9))
    shapes = costs.grid.shapes

    for machines, lost in ((9, 0), (9, 1), (8, 1)):
        matrix = costs.matrix(machines, lost)
        for (i, old), (j, new) in itertools.product(enumerate(shapes), enumerate(shapes)):
            if old.machines > machines or new.machines > machines - lost or old.pipelines <= lost:
                continue
            exact = migration_cost(times, old, machines, lost, new).mean_s
            assert matrix[i, j] >= exact - 1e-9, (old, new)
            assert (matrix[i, j] == 0.0) == (new == IDLE or (old == new and not lost))
        for i, old in enumerate(shapes):
            if old.machines <= machines:
                assert (costs.row(i, machines, lost) == matrix[i]).all()
