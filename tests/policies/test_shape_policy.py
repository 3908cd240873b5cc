"""The one policy of elastic training: what it decides, and the sentence that says why."""

from __future__ import annotations

import pytest

from tests.models.migration_examples import example, speeds
from windfall.errors import Misuse
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape
from windfall.policies.shapes.liveput import LiveputView, plan
from windfall.policies.shapes.shape_choices import adapted
from windfall.policies.shapes.shape_policy import ShapeSituation, decide, look_ahead_of

COSTS = BoundedCosts(example(every_stage=True), speeds(12))


@pytest.mark.parametrize("machines", range(13))
@pytest.mark.parametrize("shape", [IDLE, Shape(2, 3), Shape(6, 2)])
def test_the_shape_is_the_plans(machines: int, shape: Shape) -> None:
    """It is the first one of the plan for the machines of now that stay, and beside it stands what counts alone would give."""
    found = decide(ShapeSituation(shape, 12, machines), COSTS, look_ahead=6)

    wanted = plan(LiveputView(shape, 12, (machines,) * 6, 60.0), COSTS)
    assert (found.shape, found.samples) == (wanted.shapes[0], wanted.samples)
    assert found.shape.machines <= machines
    assert found.adapted_samples <= found.samples
    kept = speeds(12).best(machines) if shape == IDLE else adapted(speeds(12), shape, 12, machines)
    assert found.adapted == kept


def test_orders_in_flight_are_planned_with() -> None:
    """Two machines that are lost and two that come one interval later are in the counts, and the rest stays as it then is."""
    found = decide(ShapeSituation(Shape(3, 4), 12, 10, coming=(2, -1)), COSTS, look_ahead=5)

    assert found.counts == (10, 12, 11, 11, 11)


def test_a_loss_that_an_order_makes_good_is_not_met_as_one_that_lasts() -> None:
    """7 of 12 machines: for good they train in two stages; if 12 are back in a minute, in one pipeline until then."""
    lasting, passing = (
        decide(ShapeSituation(Shape(9, 1), 12, 7, coming=coming), COSTS, look_ahead=4).shape for coming in ((), (5,))
    )

    assert (lasting, passing) == (Shape(3, 2), Shape(1, 4))


def test_the_reason_says_what_is_gained() -> None:
    """Throughput, and the samples more than the shape that counts alone would give; with too few machines what is needed."""
    gains = decide(ShapeSituation(Shape(1, 5), 12, 12), COSTS, look_ahead=60)
    stays = decide(ShapeSituation(gains.shape, 12, 12), COSTS, look_ahead=60)

    assert gains.shape != gains.adapted
    assert gains.because.startswith(f"12 machines: {gains.shape} trains ")
    assert f" samples/s, {gains.adapted} " in gains.because
    assert gains.because.endswith(" samples more in the next 60 min")
    assert stays.because.endswith("and no other shape trains more in the next 60 min")
    assert decide(ShapeSituation(Shape(1, 5), 5, 0), COSTS, look_ahead=12).because == (
        "0 machines are too few: the smallest shape needs 1"
    )


def test_a_look_ahead_of_nothing_is_refused() -> None:
    """0 intervals: what to write instead."""
    with pytest.raises(Misuse, match="a look-ahead of 0 intervals: write 1 or more"):
        decide(ShapeSituation(IDLE, 0, 1), COSTS, look_ahead=0)


@pytest.mark.parametrize(
    ("changes", "minutes", "intervals"),
    [
        (0, 0, 96),  # nothing seen yet: 24 intervals in which nothing changed
        (0, 600, 192),  # calm
        (163, 683, 24),  # Parcae's trace: a change every 4 minutes
        (67, 1622, 96),  # 32 A100: every 24 minutes
        (500, 600, 12),
    ],
)
def test_a_plan_looks_as_far_as_counts_last(changes: int, minutes: int, intervals: int) -> None:
    """Six times the mean time between changes, from 12 intervals on doubled, 192 at most; the interval's length is the unit."""
    assert look_ahead_of(changes, 60.0 * minutes) == intervals
    assert look_ahead_of(changes, 10.0 * minutes, 10.0) == intervals


def test_the_shape_beside_it_grows_by_what_has_come() -> None:
    """2x3 of 8 machines leaves 2 idle; with 4 more, one pipeline of 3 is added, and the 2 stay idle."""
    found = decide(ShapeSituation(Shape(2, 3), 8, 12), COSTS, look_ahead=12)

    assert found.adapted == Shape(3, 3)
