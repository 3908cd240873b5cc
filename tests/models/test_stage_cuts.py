"""Where layers are cut into stages: no cut has a faster slowest stage, and none is chosen that does not fit."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from windfall.models.migrations import LinkTimes, even_cut
from windfall.models.pipeline_profile import LayerProfile, PipelineProfile, cut_of, cut_step_s, needed_bytes, step_s
from windfall.models.shapes import Shape
from windfall.models.stage_cuts import CutLayers, balanced_cuts


def test_the_slowest_stage_is_the_fastest_of_all_cuts() -> None:
    """By trying every cut of sixty random models of up to nine layers, with memory that is short for half of them."""
    chance = np.random.default_rng(1)
    missing = 0
    for number in range(60):
        count = int(chance.integers(1, 10))
        layers = CutLayers(*(chance.exponential(1.0, count).tolist() for _ in range(3)))
        memory = math.inf if number % 2 else float(chance.uniform(1.0, 6.0))
        found = balanced_cuts(layers, count, 3, memory)
        for stages in range(1, count + 1):
            least_s = min(
                _slowest_s(layers, (0, *inner, count), 3, memory)
                for inner in itertools.combinations(range(1, count), stages - 1)
            )
            missing += stages not in found
            assert math.isinf(least_s) == (stages not in found), (number, stages)
            if stages in found:
                assert _slowest_s(layers, found[stages], 3, memory) == pytest.approx(least_s), (number, stages)
    assert missing > 10, "some fit nowhere"


def _slowest_s(layers: CutLayers, cut: tuple[int, ...], micro_batches: int, memory: float) -> float:
    """The slowest stage of a cut; infinite if one does not fit."""
    slowest_s = 0.0
    for stage, (low, high) in enumerate(itertools.pairwise(cut)):
        held = min(len(cut) - 1 - stage, micro_batches) * sum(layers.held_bytes[low:high])
        if sum(layers.state_bytes[low:high]) + held > memory:
            return math.inf
        slowest_s = max(slowest_s, sum(layers.work_s[low:high]))
    return slowest_s


def profile(*pass_s: float, parameters: float = 1.0, memory: float = math.inf) -> PipelineProfile:
    """Layers with these passes, sent in no time."""
    layers = tuple(LayerProfile(one / 3.0, 2.0 * one / 3.0, 0.0, 0.0, parameters) for one in pass_s)
    return PipelineProfile(layers, 8, 1, LinkTimes((1.0,), (0.0,)), memory)


def test_a_model_with_one_heavy_layer_is_not_cut_by_count() -> None:
    """The heavy layer has a stage of its own, and a step takes 0.7 of what it takes with layers shared out by number."""
    heavy = profile(5.0, 1.0, 1.0, 1.0, 1.0, 1.0)

    assert cut_of(heavy, 2) == (0, 1, 6)
    assert step_s(heavy, Shape(1, 2)) < 0.71 * cut_step_s(heavy, Shape(1, 2), even_cut(6, 2))


def test_equal_layers_keep_the_published_cut_where_none_is_faster() -> None:
    """Fifty layers in two stages are 25 and 25, and not 26 and 24; in five stages 10 each; published cuts serve the others."""
    layers = profile(*[1.0] * 50)

    assert cut_of(layers, 2) == (0, 25, 50)
    assert cut_of(layers, 5) == (0, 10, 20, 30, 40, 50)
    others = (1, 3, 4, *range(6, 13))
    assert all(cut_of(layers, stages) == even_cut(50, stages) for stages in others)


def test_a_cut_that_fits_is_found_where_the_even_one_does_not() -> None:
    """Six layers in three stages of two need more than a machine has, unless the fullest layers are kept apart."""
    layers = [LayerProfile(0.1, 0.2, 0.0, 0.0, parameters) for parameters in (6.0, 1.0, 1.0, 1.0, 1.0, 6.0)]
    job = PipelineProfile(tuple(layers), 8, 1, LinkTimes((1.0,), (0.0,)), memory_bytes=6.0 * 16.0)

    assert cut_of(job, 3) == (0, 1, 5, 6)
    assert needed_bytes(job, Shape(1, 3)) == 6.0 * 16.0


def test_a_large_model_is_cut_evenly() -> None:
    """Of more than 512 layers none is heavy enough to be worth the search."""
    assert cut_of(profile(*[1.0] * 512, 100.0), 3) == even_cut(513, 3)
