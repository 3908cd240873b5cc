"""Sums, orders and shares of an elastic training, without processes."""

from __future__ import annotations

import random

import pytest
import torch

from windfall.errors import Misuse
from windfall.runtimes.shape_samples import SampleOrder, shares
from windfall.runtimes.shape_schedule import one_forward_one_backward
from windfall.runtimes.shape_sums import PairwiseSum, nodes_of


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 64])
def test_a_sum_is_the_same_to_the_last_bit_for_any_number_of_pipelines(count: int) -> None:
    """However micro-batches are divided, and in whatever order replicas merge, the sum's bits are the same."""
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, 7, generator=generator) * 10 ** torch.randn(count, 1, generator=generator)
    found = set()
    for pipelines in range(1, 9):
        parts = []
        for share in shares(count, pipelines):
            part = PairwiseSum(count)
            for number in share:
                part.add(number, values[number].clone())
            assert sorted(part.nodes) == nodes_of(share, count)
            parts.append(part)
        random.Random(pipelines).shuffle(parts)
        total = PairwiseSum(count)
        for part in parts:
            for node, value in part.nodes.items():
                total.put(node, value)
        found.add(total.root().numpy().tobytes())

    assert len(found) == 1
    assert torch.allclose(
        torch.frombuffer(bytearray(found.pop()), dtype=torch.float32), values.sum(0), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("samples", "batch"), [(56, 16), (64, 16), (5, 8), (17, 4)])
def test_each_sample_comes_once_an_epoch(samples: int, batch: int) -> None:
    """The steps of an epoch have each sample once, in another order than the next epoch's; weights of a step add up to 1."""
    order = SampleOrder(samples, batch, 2, seed=3)
    epochs = []
    for epoch in range(2):
        steps = range(1 + epoch * order.steps_per_epoch, 1 + (epoch + 1) * order.steps_per_epoch)
        parts = [part for step in steps for part in order.micro_batches(step)]
        epochs.append([sample for part in parts for sample in part.samples])
        assert sum(part.weight for part in parts) == pytest.approx(len(steps))

    assert [sorted(epoch) for epoch in epochs] == [list(range(samples))] * 2
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_a_stage_keeps_few_micro_batches(stages: int, count: int) -> None:
    """Each micro-batch goes forward once, then backward once, in order; a stage keeps no more than those behind it need."""
    for stage in range(stages):
        order = one_forward_one_backward(stage, stages, count)
        assert [one.place for one in order if one.forward] == list(range(count))
        assert [one.place for one in order if not one.forward] == list(range(count))
        kept = most = 0
        for one in order:
            kept += 1 if one.forward else -1
            most = max(most, kept)
        assert most == min(count, stages - stage)


def test_a_batch_of_no_whole_micro_batches_is_refused() -> None:
    """The message has both numbers and says what to write."""
    with pytest.raises(
        Misuse, match="a batch of 10 in micro-batches of 4: write a batch that is a multiple of micro_batch"
    ):
        SampleOrder(100, 10, 4, seed=0)
