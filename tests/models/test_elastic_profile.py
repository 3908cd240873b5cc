"""From a profile block to shapes, throughput and costs, and every block that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from windfall.errors import Infeasible, Misuse
from windfall.models.elastic_profile import block_of, even_profile, profile_of, training_of
from windfall.models.pipeline_profile import step_s
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape
from windfall.policies.shapes.shape_policy import ShapeSituation, decide
from windfall.structs import replace


def block(**changes: Any) -> dict[str, Any]:
    """Eight layers of 1e6 parameters that hold 1 MB for a micro-batch; 16 micro-batches; 1 GB/s."""
    layer = {"count": 8, "forward_s": 0.01, "backward_s": 0.02, "parameters": "1e6", "held_bytes": 1e6}
    whole = {"batch": 64, "micro_batch": 4, "memory_bytes": 64e6, "link": {"bytes_per_s": "1e9"}, "layers": [layer]}
    return {**whole, "start_s": 0.5, "build_s": 1.0, "rendezvous_s": 2.0, "groups_s": 0.25, **changes}


def test_a_block_is_a_training() -> None:
    """Throughput is the schedule's, a start costs the times that were written and the state, and memory refuses shapes."""
    profile = profile_of(block())
    found = training_of(profile, 12)

    assert found.speeds.rate(Shape(2, 4)) == pytest.approx(64 / step_s(profile.pipeline, Shape(2, 4)))
    assert found.times.restart_s(Shape(2, 4), adding=True) == 0.5 + 1.0 + 2.0 + 0.25
    assert found.times.state_s(1e6) == pytest.approx(0.012)
    reasons = {one.shape: one.reason for one in found.refused}
    # One stage: 8e6 parameters of 4 numbers of 4 bytes, and the activations of one micro-batch.
    assert reasons[Shape(1, 1)] == "its fullest stage needs 0.136 GB of memory, and a machine has 0.064 GB"
    assert reasons[Shape(1, 9)] == "9 stages need at least 9 layers, and there are 8"
    assert {Shape(1, 4), Shape(1, 8)} <= set(found.speeds.samples_per_s)
    assert set(found.speeds.samples_per_s).isdisjoint(reasons)
    assert len(found.speeds.samples_per_s) + len(reasons) == 35  # every D x P of at most 12 machines


def test_pipelines_without_a_micro_batch_are_refused() -> None:
    """16 micro-batches fill 16 pipelines, and not 17."""
    found = training_of(profile_of(block(memory_bytes=1e12)), 17)

    assert Shape(16, 1) in found.speeds.samples_per_s
    assert {one.shape: one.reason for one in found.refused}[Shape(17, 1)] == (
        "a step has 16 micro-batches, so that 1 of 17 pipelines have none"
    )


def test_shapes_can_be_named() -> None:
    """Only these are judged; one that needs more machines than there can be is refused by name."""
    profile = profile_of(block(memory_bytes=1e12))

    assert set(training_of(profile, 8, (Shape(2, 2), Shape(4, 2))).speeds.samples_per_s) == {Shape(2, 2), Shape(4, 2)}
    with pytest.raises(Misuse, match="shape 4x4 needs 16 machines, of at most 8"):
        training_of(profile, 8, (Shape(4, 4),))


def test_a_model_that_fits_no_shape_says_what_the_nearest_lacks() -> None:
    """2 machines: the first has 5 of 8 layers of 16 MB, and 2 micro-batches of 5 MB; the message has the least memory."""
    with pytest.raises(
        Infeasible,
        match=r"none of 3 shapes of up to 2 machines can be trained; the nearest, 1x2: its fullest stage needs 0\.09 GB",
    ):
        training_of(profile_of(block()), 2)


def test_the_policy_decides_with_it() -> None:
    """What a block gives is what the one policy plans with: from nothing it takes the fastest shape that fits."""
    found = training_of(profile_of(block()), 12)

    decision = decide(ShapeSituation(IDLE, 0, 12), BoundedCosts(found.times, found.speeds), look_ahead=96)

    assert decision.shape == found.speeds.best(12)


def test_before_anything_is_measured_layers_are_equal() -> None:
    """One machine takes the step's time, P stages of m micro-batches (m + P - 1) / m of its P-th part."""
    profile = even_profile(9, 64, 4, step_s=16.0)

    assert step_s(profile.pipeline, Shape(1, 1)) == pytest.approx(16.0)
    assert step_s(profile.pipeline, Shape(4, 1)) == pytest.approx(4.0)
    assert training_of(profile, 4).speeds.best(4) == Shape(4, 1)


def test_a_profile_is_written_as_the_block_that_it_is_read_from() -> None:
    """Every number, to four digits; what is not known is left out."""
    whole = profile_of(block(beside_s=0.004, link={"latency_s": 1e-4, "bytes_per_s": 1.1e9}, states=1))
    bare = profile_of({"batch": 8, "micro_batch": 2, "layers": [{"forward_s": 1, "backward_s": 2, "parameters": 3}]})

    again = profile_of(block_of(whole))
    assert again.pipeline.link.times_s == pytest.approx(whole.pipeline.link.times_s)
    assert replace(again, pipeline=replace(again.pipeline, link=whole.pipeline.link)) == whole
    assert profile_of(block_of(bare)) == bare
    assert block_of(bare).keys() == {"batch", "micro_batch", "states", "layers"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "profile: write keys and values: batch, micro_batch, memory_bytes"),
        (block(layer=[]), r"profile: unknown key 'layer'; did you mean layers\?"),
        ({"batch": 4, "micro_batch": 1}, "profile: layers is missing"),
        (block(layers=[]), "profile: layers: write a list of at least one layer"),
        (block(layers=[{"forward_s": 1.0, "parameters": 1.0}]), "profile: layer 1 of 1: backward_s is missing"),
        (
            block(layers=[{"forward_s": -1.0, "backward_s": 1, "parameters": 1}]),
            "layer 1 of 1: forward_s is -1.0: write a",
        ),
        (block(layers=[{"forward_s": 0, "backward_s": 0, "parameters": 1}]), "layer 1 of 1: both passes take 0 s"),
        (
            block(layers=[{"forward_s": 1, "backward_s": 1, "parameters": 1, "count": 0}]),
            "count is 0: write a whole number",
        ),
        (block(layers=[{"forward_s": 1, "backward_s": 1, "parameters": 1, "count": 1e9}]), "write at most 10000"),
        (block(batch=63), "a batch of 63 in micro-batches of 4"),
        (block(batch=0), "profile: batch is 0: write a whole number, 1 or more"),
        (block(batch=True), "profile: batch is True: write a number"),
        (block(micro_batch="four"), "profile: micro_batch is 'four': write a number, 0 or more"),
        (block(memory_bytes=0), "profile: memory_bytes is 0: write the memory of a machine"),
        (block(memory_bytes=float("nan")), "profile: memory_bytes is nan: write a number"),
        (block(start_s=float("inf")), "profile: start_s is inf: write a number"),
        (block(link={"bytes_per_s": 0}), "profile: link: bytes_per_s is 0: write the rate"),
        (block(link={"rate": 1}), "profile: link: unknown key 'rate'; write latency_s, bytes_per_s"),
        (block(link=3), "profile: link: write keys and values"),
    ],
)
def test_a_block_that_cannot_be_is_refused_by_place(bad: Any, message: str) -> None:
    """What is wrong, where, and what to write instead."""
    with pytest.raises(Misuse, match=message):
        profile_of(bad)


def test_no_machine_is_refused() -> None:
    """A plan for 0 machines has no shape."""
    with pytest.raises(Misuse, match="0 machines: write at least 1"):
        training_of(profile_of(block()), 0)
