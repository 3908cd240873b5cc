"""Which samples a step trains, in which micro-batches, and who trains which of them: the same in every shape.

An epoch is a permutation of the data set, drawn by the training's seed and the epoch's number.  A step takes the next `batch`
samples of it; the last step of an epoch takes what is left, so that each sample is trained exactly once an epoch.  A step's
micro-batches are numbered from 0, and pipelines train ranges of them.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Any, NamedTuple

import numpy as np
import torch

from windfall.errors import Misuse


class MicroBatch(NamedTuple):
    """A part of a step.

    Attributes:
        number: in the step, from 0.
        samples: their numbers in the data set.
        weight: its share of the step's samples.
    """

    number: int
    samples: tuple[int, ...]
    weight: float


def stream(*words: object) -> int:
    """Return a seed of 63 bits that depends on all of the words."""
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "little") >> 1


def shares(micro_batches: int, pipelines: int) -> tuple[range, ...]:
    """Return the micro-batches of each pipeline: adjacent ones; where they do not divide evenly, the first get one more."""
    each, more = divmod(micro_batches, pipelines)
    ends = [0]
    for pipeline in range(pipelines):
        ends.append(ends[-1] + each + (pipeline < more))
    return tuple(itertools.starmap(range, itertools.pairwise(ends)))


class SampleOrder:
    """The samples of every step.

    Args:
        samples: how many the data set has.
        batch: samples of a step.
        micro_batch: samples of a micro-batch.
        seed: of the training.
        shuffle: permute them; otherwise each epoch is in the order of the data set.

    Raises:
        Misuse: a batch is not made of whole micro-batches, or there are no samples.
    """

    def __init__(self, samples: int, batch: int, micro_batch: int, seed: int, *, shuffle: bool = True) -> None:
        check_batch(batch, micro_batch)
        if samples < 1:
            raise Misuse("the data set has no samples: give one whose len() is at least 1")
        self.samples, self._batch, self._micro_batch = samples, batch, micro_batch
        self._seed, self._shuffle = seed, shuffle
        self._epoch = -1
        self._order: list[int] = []

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has."""
        return -(-self.samples // self._batch)

    def micro_batches(self, step: int) -> tuple[MicroBatch, ...]:
        """Return a step's micro-batches."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self._drawn(epoch), epoch
        ids = self._order[place * self._batch : (place + 1) * self._batch]
        size = self._micro_batch
        parts = [tuple(ids[first : first + size]) for first in range(0, len(ids), size)]
        return tuple(MicroBatch(number, part, len(part) / len(ids)) for number, part in enumerate(parts))

    def _drawn(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(self.samples))
        generator = torch.Generator().manual_seed(stream(self._seed, "epoch", epoch))
        order: list[int] = torch.randperm(self.samples, generator=generator).tolist()
        return order

    def epoch(self, step: int) -> int:
        """Return a step's epoch, from 0."""
        return (step - 1) // self.steps_per_epoch


def check_batch(batch: int, micro_batch: int) -> None:
    """Check the sizes of batches.

    Raises:
        Misuse: a batch is not made of whole micro-batches.
    """
    if batch < 1 or micro_batch < 1 or batch % micro_batch:
        raise Misuse(
            f"a batch of {batch} in micro-batches of {micro_batch}: write a batch that is a multiple of micro_batch, both at "
            "least 1"
        )


class SampleReader:
    """Reads the micro-batches of a data set; chance in it is seeded for each sample and epoch.

    Args:
        dataset: has `len()` and `dataset[number]`, which returns (input, target).
        order: of its samples.
        seed: of the training.
        collate: makes a batch of a list of samples.
        device: to which its tensors go.
        pairs: samples must be (input, target).
    """

    def __init__(
        self, dataset: Any, order: SampleOrder, seed: int, collate: Any, device: Any, *, pairs: bool = True
    ) -> None:
        self._dataset, self._order, self._seed = dataset, order, seed
        self._collate, self._device, self._pairs = collate, device, pairs

    def check(self) -> None:
        """Check that the data set has as many samples as at first.

        Raises:
            Misuse: it has not.
        """
        if len(self._dataset) != self._order.samples:
            raise Misuse(
                f"the data set had {self._order.samples} samples and now has {len(self._dataset)}: its length must stay the "
                "same, so that each sample is trained exactly once an epoch"
            )

    def read(self, step: int, part: MicroBatch) -> tuple[Any, Any]:
        """Return the inputs and the targets of a micro-batch; raises as `batch`."""
        inputs, targets = self.batch(step, part)
        return inputs, targets

    def batch(self, step: int, part: MicroBatch) -> Any:
        """Return a micro-batch.

        Raises:
            Misuse: a sample is not a pair.
        """
        epoch, found = self._order.epoch(step), []
        for sample in part.samples:
            seed = stream(self._seed, "sample", epoch, sample)
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % (1 << 32))
            found.append(self._dataset[sample])
        if self._pairs and (not isinstance(found[0], (tuple, list)) or len(found[0]) != 2):
            raise Misuse(
                f"sample {part.samples[0]} of the data set is {type(found[0]).__name__}: dataset[i] must return (input, target)"
            )
        return moved_to(self._collate(found), self._device)


def moved_to(value: Any, device: Any) -> Any:
    """Return a value whose tensors are on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(moved_to(one, device) for one in value)
    if isinstance(value, dict):
        return {key: moved_to(one, device) for key, one in value.items()}
    return value
