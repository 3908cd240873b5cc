"""Throughput of shapes from a profile of layers: the 1F1B schedule and its memory."""

from __future__ import annotations

import pytest

from windfall.errors import Misuse
from windfall.models.migrations import LinkTimes
from windfall.models.pipeline_profile import LayerProfile, PipelineProfile, needed_bytes, step_s
from windfall.models.shapes import Shape

INSTANT = LinkTimes((1.0,), (0.0,))
SLOW = LinkTimes((1.0, 1e9), (0.0, 1.0))


def layer(forward: float = 1.0, backward: float = 2.0, *, sent: float = 0.0, held: float = 0.0) -> LayerProfile:
    return LayerProfile(forward, backward, sent, held, 1e6)


def job(*layers: LayerProfile, batch: int = 8, link: LinkTimes = INSTANT, memory: float = 1e12) -> PipelineProfile:
    return PipelineProfile(layers, batch, 1, link, memory)


def test_equal_stages_take_the_closed_form() -> None:
    """P equal stages and m micro-batches take (m + P - 1) passes of both kinds; one stage takes m."""
    # Five layers in four stages: the first stage has two, of half the time each.
    profile = job(layer(0.5, 1.0), layer(0.5, 1.0), layer(), layer(), layer())

    assert step_s(profile, Shape(1, 4)) == pytest.approx((8 + 3) * 3.0)
    assert step_s(profile, Shape(1, 1)) == pytest.approx(8 * 12.0)
    assert step_s(profile, Shape(2, 4)) == pytest.approx((4 + 3) * 3.0)


def test_the_slowest_stage_sets_the_pace() -> None:
    """With many micro-batches a step takes their number times the slowest stage, and the others' passes once."""
    profile = job(layer(), layer(), layer(2.0, 4.0), batch=100)

    # Stages of 2 layers (2 s, 4 s) and one (2 s, 4 s).
    assert step_s(profile, Shape(1, 2)) == pytest.approx(101 * 6.0)


def test_sending_is_waited_for_once_on_the_way_in_and_once_on_the_way_out() -> None:
    """One micro-batch passes each link forward and backward: 2 links x 2 x 1 s more."""
    quiet = job(*[layer()] * 4, batch=1)
    busy = job(*[layer(sent=1e9)] * 4, batch=1, link=SLOW)

    assert step_s(busy, Shape(1, 3)) == pytest.approx(step_s(quiet, Shape(1, 3)) + 4.0)


def test_replicas_add_up_their_gradients() -> None:
    """Two pipelines send half of 2 x the bytes of the largest stage: 4 MB at 1 GB/s."""
    alone = step_s(job(layer(), batch=4, link=SLOW), Shape(1, 1))

    assert step_s(job(layer(), batch=8, link=SLOW), Shape(2, 1)) == pytest.approx(alone + 0.004)


def test_the_first_stage_holds_most_activations() -> None:
    """Stage 0 of 2 holds two micro-batches, whatever their number: two layers x 2 x 100 bytes, and four numbers each."""
    profile = job(*[layer(held=100.0)] * 3, batch=50)

    assert needed_bytes(profile, Shape(1, 2)) == 2 * 1e6 * 4 * 4 + 2 * 2 * 100.0
    assert needed_bytes(profile, Shape(50, 2)) == 2 * 1e6 * 4 * 4 + 2 * 1 * 100.0


def test_the_last_stage_holds_one_micro_batch() -> None:
    """Where only the last of three stages holds anything, one micro-batch of it counts, and not three."""
    profile = job(*[layer()] * 3, layer(held=1e9), batch=50)

    assert needed_bytes(profile, Shape(1, 3)) == 1e6 * 4 * 4 + 1e9


def test_a_profile_that_cannot_be_is_refused() -> None:
    """No layers, a batch that micro-batches do not divide, a negative time: each by name."""
    with pytest.raises(Misuse, match="without layers"):
        job()
    with pytest.raises(Misuse, match="a batch of 7 in micro-batches of 2"):
        PipelineProfile((layer(),), 7, 2, INSTANT, 1e9)
    with pytest.raises(Misuse, match="forward_s of layer 1 is -1"):
        job(layer(), layer(forward=-1.0))
