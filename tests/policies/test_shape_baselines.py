"""Other systems' rules for shapes: pipelines of several depths, and stages that take over from each other."""

from __future__ import annotations

import itertools

import pytest

from tests.models.migration_examples import example, speeds
from windfall.models.shapes import IDLE, Shape, ShapeSpeeds, all_shapes
from windfall.models.survivors import neighbours_left
from windfall.policies.shapes.redundant_choices import RedundantCosts, redundant_speeds, slower
from windfall.policies.shapes.template_choices import change_s, rate_of, templates

SPEEDS = ShapeSpeeds({shape: float(10 * shape.pipelines + shape.stages) for shape in all_shapes(12, (2, 3, 4))})
TIMES = example(every_stage=True)


def sums(machines: int, pipelines: int, least: int = 2) -> list[tuple[int, ...]]:
    """Every way to share machines among pipelines of 2 to 4 stages."""
    if pipelines == 0:
        return [()] if machines == 0 else []
    return [(one, *rest) for one in range(least, 5) for rest in sums(machines - one, pipelines - 1, one)]


# ------------------------------------------------------------------------------------------------------------- templates


@pytest.mark.parametrize("machines", range(2, 13))
def test_templates_use_every_machine_as_fast_as_any_sum(machines: int) -> None:
    """No sum of depths that uses all machines is faster than the one that is taken."""
    known = set(SPEEDS.samples_per_s)
    found = templates(SPEEDS, machines)
    every = [
        depths
        for count in range(1, machines + 1)
        for depths in sums(machines, count)
        if all(Shape(count, depth) in known for depth in depths)
    ]

    assert sum(found) == machines
    assert rate_of(SPEEDS, found) == pytest.approx(max(rate_of(SPEEDS, depths) for depths in every))


def test_what_no_sum_uses_is_idle() -> None:
    """With templates of 4 and 6 alone, 7 machines are one pipeline of 6, 10 are 6 and 4, and 3 are none."""
    sparse = ShapeSpeeds(dict.fromkeys(all_shapes(12, (4, 6)), 1.0))

    assert [templates(sparse, machines) for machines in (7, 10, 3)] == [(6,), (6, 4), ()]
    assert rate_of(sparse, ()) == 0.0


def test_a_pipeline_of_another_depth_is_a_restart_and_its_largest_stage() -> None:
    """3 and 4 stages lose one machine and are 3 and 3: the restart of the slowest, and the state of a third of the model."""
    restart_s = TIMES.restart_s(Shape(2, 3), adding=False)
    largest_s = max(map(TIMES.state_s, TIMES.stage_parameters(3)))

    assert change_s(TIMES, (4, 3), (3, 3), 7, 1) == pytest.approx(restart_s + largest_s)
    assert change_s(TIMES, (3, 3), (4, 3), 6, 0) == pytest.approx(
        max(TIMES.restart_s(Shape(2, depth), adding=True) for depth in (3, 4))
        + max(map(TIMES.state_s, TIMES.stage_parameters(4)))
    )


def test_spares_that_are_lost_cost_nothing() -> None:
    """One of 2 spares of 8 machines is lost with probability 1/4; nothing lost and nothing changed is free, as is idling."""
    whole = change_s(TIMES, (3, 3), (3, 3), 6, 1)

    assert whole > 0.0
    assert change_s(TIMES, (3, 3), (3, 3), 8, 1) == pytest.approx(0.75 * whole)
    assert change_s(TIMES, (3, 3), (3, 3), 8, 0) == 0.0
    assert change_s(TIMES, (3, 3), (), 6, 5) == 0.0


# ------------------------------------------------------------------------------------------------------------ redundancy


@pytest.mark.parametrize("shape", [Shape(1, 1), Shape(1, 2), Shape(2, 2), Shape(1, 5), Shape(2, 3), Shape(2, 4)])
@pytest.mark.parametrize("spares", [0, 2])
def test_neighbours_are_counted_as_by_trying(shape: Shape, spares: int) -> None:
    """For every number of lost machines the probability is the share of all sets without two neighbours on the ring."""
    machines = shape.machines + spares

    def covered(gone: tuple[int, ...]) -> bool:
        ring = {(one // shape.stages, one % shape.stages) for one in gone if one < shape.machines}
        return not any((pipeline, (stage + 1) % shape.stages) in ring for pipeline, stage in ring)

    for lost in range(machines + 1):
        tried = [covered(gone) for gone in itertools.combinations(range(machines), lost)]
        assert neighbours_left(shape, machines, lost) == pytest.approx(sum(tried) / len(tried)), lost


def test_redundancy_takes_half_again_as_many_stages_and_a_longer_step() -> None:
    """Of depths 2 to 4 only 3 and 4 have room; 64 micro-batches in 13 stages take 1.12 times as long, 12 in 5 no longer."""
    found = redundant_speeds(SPEEDS, 24)

    assert found is not None
    assert {shape.stages for shape in found.samples_per_s} == {3, 4}
    assert found.rate(Shape(1, 4)) == pytest.approx(14.0 / (1.0 + (8.0 - 3.0) / 27.0))
    assert slower(Shape(2, 13), 128) == pytest.approx(1.0 + (64.0 / 3.0 - 12.0) / 76.0)
    assert slower(Shape(1, 5), 12) == 1.0
    assert redundant_speeds(ShapeSpeeds({Shape(1, 12): 1.0, Shape(1, 16): 1.0}), 64) is None


def test_a_loss_without_its_neighbour_moves_no_state() -> None:
    """One lost machine costs groups and start; two of 2x4 a restart where they are neighbours; a third pipeline a restart."""
    costs = RedundantCosts(TIMES, speeds(12))
    place, intra_s = costs.grid.place, TIMES.intra_s(Shape(1, 4))
    longest_s = TIMES.restart_s(Shape(1, 4), adding=False) + max(map(TIMES.state_s, TIMES.stage_parameters(4)))
    apart = neighbours_left(Shape(2, 4), 8, 2)

    assert costs.row(place(Shape(2, 4)), 8, 1)[place(Shape(1, 4))] == pytest.approx(intra_s)
    assert costs.row(place(Shape(2, 4)), 8, 2)[place(Shape(1, 4))] == pytest.approx(
        apart * intra_s + (1.0 - apart) * longest_s
    )
    assert costs.row(place(Shape(2, 4)), 8, 0)[place(Shape(3, 4))] > TIMES.rendezvous_s
    assert costs.matrix(8, 1)[place(Shape(2, 4)), place(IDLE)] == 0.0
    assert costs.matrix(8, 0)[place(Shape(2, 4)), place(Shape(2, 4))] == 0.0
