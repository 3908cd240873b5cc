"""Which shapes a model can have, and which of them a coordinator trains in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windfall.core.shape_decisions import ShapeMoment
from windfall.core.shape_planner import ShapePlanner
from windfall.errors import Infeasible, Misuse
from windfall.models.elastic_profile import even_profile, profile_of
from windfall.models.shapes import IDLE, Shape

LAYERS, MICRO_BATCHES = 6, 8


def moment(ready: int, shape: Shape = IDLE, cut: tuple[int, ...] = (), whole: int = 0) -> ShapeMoment:
    """So many machines that can train, after a shape."""
    return ShapeMoment(shape, ready, LAYERS, MICRO_BATCHES, whole, cut)


def test_all_machines_train_side_by_side_while_nothing_is_known_of_layers() -> None:
    """Equal layers, sent in no time: pipelines of one stage lose nothing to bubbles."""
    planner = ShapePlanner(8, (), None, 0.0)

    assert planner.choose(moment(4)).shape == Shape(4, 1)
    assert planner.choose(moment(3, Shape(4, 1))).shape == Shape(3, 1)


def test_machines_beyond_the_largest_number_are_spares() -> None:
    """A fleet may have more for a moment."""
    assert ShapePlanner(2, (), None, 0.0).choose(moment(5)).shape == Shape(2, 1)


def test_fewer_machines_than_any_shape_needs_wait() -> None:
    """And the reason says how many it needs."""
    choice = ShapePlanner(4, (Shape(1, 3),), None, 0.0).choose(moment(2))

    assert choice.shape == IDLE
    assert choice.because == "2 machines are too few: the smallest shape needs 3"


def test_nothing_is_trained_once_it_is_to_rest() -> None:
    """Whatever machines there are."""
    planner = ShapePlanner(4, (), None, 0.0)
    planner.resting = True

    assert planner.choose(moment(3)).shape == IDLE


def test_shapes_that_no_model_can_have_are_refused() -> None:
    """Seven stages of six layers cannot be cut: the sentence says why."""
    with pytest.raises(Infeasible, match=r"1x7: 7 stages need at least 7 layers, and there are 6"):
        ShapePlanner(8, (Shape(1, 7),), None, 0.0).choose(moment(7))


def test_a_profile_says_which_shapes_fit() -> None:
    """A model that no machine can hold alone is cut into stages."""
    block = {
        "batch": 8, "micro_batch": 1, "memory_bytes": 1e6,
        "layers": [{"count": LAYERS, "forward_s": 0.01, "backward_s": 0.02, "parameters": 3e4}],
    }  # fmt: skip
    planner = ShapePlanner(4, (), None, 0.0, profile=profile_of(block))

    assert planner.choose(moment(3)).shape == Shape(1, 3)
    assert planner.choose(moment(4, Shape(1, 3))).shape == Shape(1, 4)
    assert planner.choose(moment(1, Shape(1, 4))).because == "1 machines are too few: the smallest shape needs 3"


def test_a_profile_of_another_model_is_refused() -> None:
    """Its numbers would be of other layers."""
    profile = even_profile(LAYERS + 1, MICRO_BATCHES, 1, 1.0)

    with pytest.raises(
        Misuse, match="the profile has 7 layers and 8 micro-batches, and the script's model has 6 layers"
    ):
        ShapePlanner(4, (), None, 0.0, profile=profile).choose(moment(3))


def heavy_end(last_s: float) -> ShapePlanner:
    """A planner for two stages of layers that take as long as one another, but for the last one."""
    row = {"forward_s": 0.01, "backward_s": 0.02, "parameters": 2e4}
    last = {**row, "forward_s": last_s / 3.0, "backward_s": 2.0 * last_s / 3.0}
    block = {"batch": 8, "micro_batch": 1, "layers": [{"count": LAYERS - 1, **row}, last]}
    return ShapePlanner(2, (Shape(1, 2),), None, 0.0, profile=profile_of(block))


def test_stages_take_equally_long_and_have_not_equally_many_layers() -> None:
    """The last layer takes as long as the five before it."""
    assert heavy_end(0.15).choose(moment(2)).cut == (0, 5, 6)


def test_it_says_what_each_layer_weighs_when_it_moves() -> None:
    """Parameters and two states of the optimiser, four bytes each; a layer without parameters weighs next to nothing."""
    row = {"forward_s": 1, "backward_s": 2}
    block = {"batch": 8, "micro_batch": 1, "layers": [{"count": 5, **row, "parameters": 7}, {**row, "parameters": 0}]}

    assert ShapePlanner(2, (), None, 0.0, profile=profile_of(block)).choose(moment(2)).weights == (84,) * 5 + (1,)


def test_a_shape_that_stays_is_cut_anew_for_more_than_noise() -> None:
    """The reason says where its stages begin and began, and what a step gains."""
    choice = heavy_end(0.15).choose(moment(2, Shape(1, 2), (0, 3, 6), 1))

    assert choice.cut == (0, 5, 6)
    assert "its stages begin at layers 0, 5 for 0, 3, a step is 24% shorter" in choice.because


def test_a_cut_that_is_as_good_but_for_noise_stays() -> None:
    """A layer that seems to take 4 % longer than the others moves nothing."""
    assert heavy_end(0.0312).choose(moment(2, Shape(1, 2), (0, 2, 6), 1)).cut == (0, 3, 6)
    assert heavy_end(0.0312).choose(moment(2, Shape(1, 2), (0, 3, 6), 1)).cut == (0, 3, 6)


def test_nothing_is_cut_anew_while_a_machine_of_the_shape_is_to_leave() -> None:
    """Its notice leaves time for its own place alone."""
    assert heavy_end(0.15).choose(moment(2, Shape(1, 2), (0, 3, 6), 0)).cut == (0, 3, 6)


FIRST_LOSS = """
import gc
from numba.core.dispatcher import Dispatcher
from tests.elastic.test_shape_planner import heavy_end, moment
from windfall.core.shape_planner import ShapePlanner, compile_plans
from windfall.models.shapes import Shape

def compiled():
    return sum(len(one.signatures) for one in gc.get_objects() if isinstance(one, Dispatcher))

compile_plans()
before = compiled()
for planner in (heavy_end(0.15), ShapePlanner(8, (), None, 0.0)):
    shape = planner.choose(moment(8)).shape
    planner.choose(moment(7, shape, (0, 3, 6) if shape.stages == 2 else (0, 6)))
print(before, compiled())
"""


def test_the_first_loss_finds_plans_compiled() -> None:
    """In a process of its own, which has planned nothing yet: to compile takes seconds, in which all machines would wait."""
    done = subprocess.run([sys.executable, "-c", FIRST_LOSS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())

    assert before == after > 0
