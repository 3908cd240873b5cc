"""From measurements of a running training to the times that its shapes are planned with."""

from __future__ import annotations

import pytest

from windfall.models.elastic_profile import even_profile, training_of
from windfall.models.measured_profile import (
    ChangeKind,
    kind_of,
    link_of,
    measured_profile,
    notice_s,
    with_changes,
    with_measured_steps,
)
from windfall.models.pipeline_profile import step_s
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape
from windfall.shape_measurements import ChangeMeasurement, LayerMeasurement, ShapeMeasurements, StepMeasurement
from windfall.structs import replace

LAYER = LayerMeasurement(0.01, 0.02, 0.0, 1000, 5000, 1_000_000)
FOUND = ShapeMeasurements(16, 2, (LAYER,) * 6, 2, 1e9, 1e-3, 1e8)


def test_a_link_is_its_latency_and_its_rate() -> None:
    """Small messages show the latency, large ones the rate; one message that was held up changes neither."""
    assert link_of([(8, 0.001), (1_000_000, 0.011)]) == (0.001, pytest.approx(1e8))
    assert link_of([(8, 0.001), (8, 0.5), (8, 0.001), (10**6, 0.011), (10**6, 3.0), (10**6, 0.011)]) == (
        0.001,
        pytest.approx(1e8),
    )
    assert link_of([]) is None


def test_measured_steps_take_as_long_as_they_were_measured() -> None:
    """The shape that was trained by its own steps, the others with what it takes beside its passes."""
    found = replace(FOUND, steps=(StepMeasurement(2, 1, 1.2),))
    profile, bare = measured_profile(found), measured_profile(FOUND)
    assert profile is not None
    assert bare is not None

    beside_s = 1.2 - step_s(bare.pipeline, Shape(2, 1))
    assert beside_s > 0.0
    assert step_s(profile.pipeline, Shape(1, 2)) == pytest.approx(step_s(bare.pipeline, Shape(1, 2)) + beside_s)
    faster = replace(FOUND, steps=(StepMeasurement(2, 1, 1.2), StepMeasurement(1, 2, 0.4)))
    judged = measured_profile(faster)
    assert judged is not None
    rates = with_measured_steps(training_of(judged, 4), faster).speeds
    assert (rates.rate(Shape(2, 1)), rates.rate(Shape(1, 2))) == (pytest.approx(16 / 1.2), pytest.approx(16 / 0.4))


def test_a_layer_that_was_not_measured_leaves_no_profile() -> None:
    """Neither does a training that has measured nothing."""
    assert measured_profile(replace(FOUND, layers=(*FOUND.layers[:5], None))) is None
    assert measured_profile(replace(FOUND, layers=())) is None


def test_a_shape_that_was_trained_fits_into_memory() -> None:
    """The model of memory is a bound; what has run is a fact."""
    found = replace(FOUND, memory_bytes=50e6)
    profile = measured_profile(replace(found, steps=(StepMeasurement(1, 1, 1.0),)))
    assert profile is not None
    assert Shape(1, 1) in training_of(profile, 4).speeds.samples_per_s
    refusing = measured_profile(replace(found, steps=(StepMeasurement(1, 3, 1.0),)))
    assert refusing is not None
    assert Shape(1, 1) not in training_of(refusing, 4).speeds.samples_per_s


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (IDLE, Shape(2, 1), ChangeKind.START),
        (Shape(2, 1), Shape(2, 1), ChangeKind.KEPT),
        (Shape(3, 2), Shape(2, 2), ChangeKind.KEPT),
        (Shape(2, 2), Shape(3, 2), ChangeKind.ADDED),
        (Shape(2, 2), Shape(4, 1), ChangeKind.DEEPER),
    ],
)
def test_changes_are_of_four_kinds(before: Shape, after: Shape, kind: ChangeKind) -> None:
    """By depth, and by whether pipelines are added."""
    assert kind_of(before, after) is kind


def test_plans_charge_what_changes_took() -> None:
    """The median of each kind; of a kind that was never seen what the others leave."""
    profile = measured_profile(FOUND)
    assert profile is not None
    changes = [
        ChangeMeasurement(0, 0, 2, 1, 0.2),
        *(ChangeMeasurement(2, 1, 2, 1, seconds) for seconds in (0.3, 0.3, 5.0)),
        ChangeMeasurement(2, 1, 3, 1, 2.0),
        ChangeMeasurement(2, 1, 1, 2, 1.2),
    ]

    training = training_of(with_changes(profile, changes), 4)
    costs = BoundedCosts(training.times, training.speeds)
    place = costs.grid.place

    def cost_s(before: Shape, after: Shape) -> float:
        return float(costs.row(place(before), before.machines, 0)[place(after)])

    assert cost_s(Shape(3, 1), Shape(2, 1)) == pytest.approx(0.3)
    assert cost_s(Shape(2, 1), Shape(1, 2)) == pytest.approx(1.2)
    assert cost_s(Shape(2, 1), Shape(3, 1)) == pytest.approx(2.0)
    assert costs.ordered


def test_inside_a_notice_nine_of_ten_changes_must_fit() -> None:
    """Of ten the ninth, of fewer the longest; of a kind that was never seen what is planned, as uncertain as the others."""
    ten = [ChangeMeasurement(2, 1, 2, 1, float(seconds)) for seconds in range(10, 0, -1)]

    assert notice_s(Shape(2, 1), Shape(1, 1), ten, 1.0) == 9.0
    assert notice_s(Shape(2, 1), Shape(1, 1), ten[:3], 1.0) == 10.0
    assert notice_s(Shape(2, 1), Shape(1, 2), ten, 2.0) == pytest.approx(2.0 * 9.0 / 5.5)
    assert notice_s(Shape(2, 1), Shape(1, 2), [], 2.0) is None


def test_before_anything_was_measured_changes_are_free() -> None:
    """Nothing is made up; the first connections are the first measurement."""
    profile = even_profile(6, 16, 2, 1.0)

    assert with_changes(profile, []).groups_s == 0.0
    assert with_changes(profile, [ChangeMeasurement(0, 0, 2, 1, 0.2)]).groups_s == 0.2
