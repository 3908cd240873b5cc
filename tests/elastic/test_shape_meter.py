"""What a coordinator makes of its machines' measurements, and the shapes that it chooses by them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.elastic.test_shape_planner import moment
from windfall.core.shape_decisions import first_layout
from windfall.core.shape_meter import ShapeMeter
from windfall.core.shape_planner import ADOPT_EVERY_S, ShapePlanner
from windfall.models.elastic_profile import profile_of
from windfall.models.shapes import Shape
from windfall.shape_layout import STORE, ShapeLayout, ShapeReport, StagePlace, StateMove
from windfall.shape_measurements import LayerMeasurement, MachineMeasurement
from windfall.structs import replace

LAYERS = 6
ALL = range(LAYERS)
FAST, SLOW = 1e9, 1e7
"""Links [bytes/s]."""
SIDE_BY_SIDE, STAGES = Shape(2, 1), Shape(1, 2)


def post(
    machine: str,
    shape: Shape = SIDE_BY_SIDE,
    layers: range = ALL,
    *,
    pass_s: Sequence[float] = (0.03,) * LAYERS,
    parameters: int = 10_000,
    rate: float = FAST,
    step_s: float = 0.0,
) -> MachineMeasurement:
    """What a machine posts of its layers: forward a third of the time."""
    own = tuple(LayerMeasurement(pass_s[one] / 3, pass_s[one] * 2 / 3, 0.001, 1000, 2000, parameters) for one in layers)
    transfers = ((8, 1e-4), (1 << 18, 1e-4 + (1 << 18) / rate))
    return MachineMeasurement(
        machine, 3, *shape, 16, 2, LAYERS, layers.start, own, 2 * parameters * len(layers), step_s, 1e9, transfers
    )


def layout(version: int, pipelines: int, stages: int, *machines: str, step: int | None = None) -> ShapeLayout:
    """A layout of machines in order."""
    cut = tuple(LAYERS * stage // stages for stage in range(stages + 1)) if stages else ()
    places = tuple(StagePlace(number // stages, number % stages, one) for number, one in enumerate(machines))
    return replace(
        first_layout(0), record=version, version=version, pipelines=pipelines, stages=stages, cut=cut, places=places, step=step
    )  # fmt: skip


def made(version: int, **moved_s: float) -> dict[str, ShapeReport]:
    """Reports of machines that have made a layout."""
    return {
        name: ShapeReport(name, False, 1.0, False, 1, 1, "here", LAYERS, 1, version, False, (), 5, moved_s=seconds)
        for name, seconds in moved_s.items()
    }


def test_of_each_layer_the_median_of_all_posts_counts() -> None:
    """One machine of three that was busy changes nothing."""
    meter = ShapeMeter(first_layout(0))
    meter.take([post("a"), post("b"), post("c", pass_s=(0.3,) * LAYERS)])

    assert meter.found is not None
    assert {round(one.forward_s + one.backward_s, 9) for one in meter.found.layers if one is not None} == {0.03}
    assert (meter.found.states, meter.found.memory_bytes, meter.found.batch) == (2, 1e9, 16)
    assert round(meter.found.bytes_per_s / FAST, 6) == 1.0


def test_a_post_that_is_known_counts_once() -> None:
    """The board shows the newest post of a machine until there is another one."""
    meter = ShapeMeter(first_layout(0))
    for _ in range(20):
        meter.take([post("a", pass_s=(0.3,) * LAYERS)])
    meter.take([post("b"), post("c")])

    assert meter.found is not None
    assert meter.found.layers[0] is not None
    assert round(meter.found.layers[0].forward_s, 9) == 0.01


def test_until_each_layer_was_measured_nothing_is_concluded() -> None:
    """Stages post their own layers; the rest of the model is unknown."""
    meter, planner = ShapeMeter(first_layout(0)), ShapePlanner(8, (), None, 0.0)
    meter.take([post("a", STAGES, range(3), parameters=10**7, rate=SLOW)])
    planner.measured = meter.found
    choice = planner.choose(moment(2))
    assert choice.shape == SIDE_BY_SIDE
    assert choice.because == "2 machines: 2x1; the layers are not measured yet, and taken to be equal"

    meter.take([post("b", STAGES, range(3, 6), parameters=10**7, rate=SLOW)])
    planner.measured = meter.found
    assert planner.choose(moment(2, SIDE_BY_SIDE)).shape == STAGES


def test_measurements_of_another_model_are_dropped() -> None:
    """A script that was changed has other layers, or another batch."""
    meter = ShapeMeter(first_layout(0))
    meter.take([post("a", step_s=1.0)])
    meter = ShapeMeter(first_layout(0), meter.found)
    assert meter.found is not None
    assert meter.found.steps
    meter.take([replace(post("a"), batch=32)])

    assert (meter.found.batch, meter.found.steps) == (32, ())
    planner = ShapePlanner(8, (), None, 0.0)
    planner.measured = meter.found
    assert "not measured" in planner.choose(moment(2)).because


def test_the_profile_of_the_job_counts_for_what_it_says() -> None:
    """Its layers; the link that it does not say is measured."""
    layer = {"count": LAYERS, "forward_s": 0.01, "backward_s": 0.02, "parameters": 1e7}
    block = {"batch": 16, "micro_batch": 2, "layers": [layer]}
    meter = ShapeMeter(first_layout(0))
    meter.take([post("a", parameters=10, rate=SLOW), post("b", parameters=10, rate=SLOW)])
    without = ShapePlanner(2, (), None, 0.0, profile=profile_of(block))
    measured = ShapePlanner(2, (), None, 0.0, profile=profile_of(block))
    said = ShapePlanner(2, (), None, 0.0, profile=profile_of({**block, "link": {"bytes_per_s": 1e12}}))
    measured.measured = said.measured = meter.found

    assert without.choose(moment(2)).shape == said.choose(moment(2)).shape == SIDE_BY_SIDE
    assert measured.choose(moment(2)).shape == STAGES


def test_noise_does_not_make_shapes_oscillate() -> None:
    """Two shapes train equally fast, and each time of a layer or a step is off by up to a third: one change at most."""
    chance = random.Random(3)
    meter, planner = ShapeMeter(first_layout(0)), ShapePlanner(2, (), None, 0.0)
    shape, changes = SIDE_BY_SIDE, 0
    for turn in range(400):
        planner.now_s = turn * ADOPT_EVERY_S
        cut = [range(LAYERS)] * 2 if shape.stages == 1 else [range(3), range(3, 6)]
        off = [chance.uniform(0.75, 1.33) for _ in range(LAYERS)]
        step_s = 0.75 * chance.uniform(0.75, 1.33)
        meter.take(
            post(name, shape, layers, pass_s=[0.03 * one for one in off], step_s=step_s)
            for name, layers in zip("ab", cut, strict=True)
        )
        planner.measured = meter.found
        chosen = planner.choose(moment(2, shape)).shape
        changes += chosen != shape
        shape = chosen

    assert changes <= 1


def test_a_shape_that_is_slower_than_it_seemed_is_left_for_good() -> None:
    """The profile promises more of 1x2; its own steps say otherwise, and it is not tried again."""
    meter, planner = ShapeMeter(first_layout(0)), ShapePlanner(2, (), None, 0.0)
    shape, seen = SIDE_BY_SIDE, []
    for turn in range(200):
        planner.now_s = turn * ADOPT_EVERY_S
        cut = [range(LAYERS)] * 2 if shape.stages == 1 else [range(3), range(3, 6)]
        step_s = 12.0 if shape == SIDE_BY_SIDE else 20.0
        meter.take(
            post(name, shape, layers, pass_s=(0.03 + turn * 1e-9,) * LAYERS, parameters=10**6, rate=SLOW, step_s=step_s)
            for name, layers in zip("ab", cut, strict=True)
        )
        planner.measured = meter.found
        shape = planner.choose(moment(2, shape)).shape
        seen.append(shape)

    assert STAGES in seen[:3]
    assert set(seen[10:]) == {SIDE_BY_SIDE}


def test_a_change_takes_as_long_as_the_slowest_of_those_that_trained_before() -> None:
    """Who joins has waited for the others, and the last to come has not."""
    meter = ShapeMeter(layout(1, 0, 0))
    meter.take_layout(layout(2, 2, 1, "a", "b", step=0))
    meter.take_reports(made(2, a=9.0))
    assert meter.found is None
    meter.take_reports(made(2, a=9.0, b=0.3))
    meter.take_layout(layout(3, 3, 1, "a", "b", "c"))
    meter.take_reports(made(3, a=0.5, b=0.7, c=6.0))
    meter.take_reports(made(3, a=0.5, b=0.7, c=6.0))

    assert meter.found is not None
    assert [(one.pipelines_before, one.pipelines, one.seconds) for one in meter.found.changes] == [
        (0, 2, 0.3),
        (2, 3, 0.7),
    ]


def test_a_change_that_was_given_up_is_not_measured() -> None:
    """Nor one whose state came from a checkpoint: that takes as long as the store."""
    meter = ShapeMeter(layout(1, 2, 1, "a", "b"))
    meter.take_layout(layout(2, 1, 2, "a", "b"))
    meter.take_layout(replace(layout(3, 1, 2, "a", "b"), stop=True))
    meter.take_reports(made(3, a=0.5, b=0.7))
    from_store = replace(layout(4, 1, 2, "a", "b", step=8), moves=(StateMove(0, 3, STORE, "a"),))
    meter.take_layout(from_store)
    meter.take_reports(made(4, a=0.5, b=0.7))

    assert meter.found is None


def test_layers_that_are_cut_differently_are_no_change_that_keeps_the_shape() -> None:
    """All stages send layers then, and a change in which one machine takes another's place would seem to take as long."""
    meter = ShapeMeter(layout(1, 1, 2, "a", "b"))
    recut = layout(2, 1, 2, "a", "b")
    meter.take_layout(replace(recut, cut=(0, recut.cut[1] + 1, recut.cut[2])))
    meter.take_reports(made(2, a=4.0, b=4.0))
    assert meter.found is None

    meter.take_layout(replace(layout(3, 1, 2, "a", "c"), cut=(0, recut.cut[1] + 1, recut.cut[2])))
    meter.take_reports(made(3, a=0.2, c=0.2))
    assert meter.found is not None
    assert [one.seconds for one in meter.found.changes] == [0.2]
