"""A script that was written for data parallelism, on machines that come and go: the script computes, this shares.

The script's own loop computes the gradient of its part of a batch and calls `optimizer.step()`.  Hooks of the optimizer do the
rest: before the step the gradients become the mean over the whole batch, and all machines vote; if one is lost there, the
gradients are removed, so that the step changes nothing, and the loop gets a part of the same batch again.

Running statistics are those of the first machine, as in torch's DistributedDataParallel.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from windfall.errors import Misuse, WindfallError
from windfall.ports import ObjectStore
from windfall.runtimes.shape_backup import serve_states
from windfall.runtimes.shape_layers import digest_of
from windfall.runtimes.shape_links import LinkBroken, Links
from windfall.runtimes.shape_member import ShapeMember
from windfall.runtimes.shape_posts import MeasuredLayers, is_due, post
from windfall.runtimes.shape_samples import MicroBatch, SampleOrder, SampleReader, shares
from windfall.runtimes.shape_stage import sum_dtype, trained_parameters
from windfall.runtimes.shape_states import HeldStates, Layer, captured, packed
from windfall.runtimes.shape_terms import FIRST_VALUES, MemberTerms
from windfall.runtimes.shape_times import KEPT
from windfall.runtimes.shape_watch import ShapeWatch
from windfall.shape_measurements import LayerMeasurement


class WrappedTraining:
    """The parts of batches that this machine computes; created by `windfall.elastic.wrap`.

    Args:
        module: what is trained.
        optimizer: that steps.
        loader: a torch DataLoader of a data set with a length; its batch is that of all machines together.
        stateful: what else has a state that belongs to the training: schedules.
        steps: with which training ends.
        seed: of the samples' order.
        save_every: steps between checkpoints.
        watch: of the coordinator; None: this machine trains alone.
        objects: the run's store.

    Attributes:
        step: that the loop computes, from 1.
        epoch: of that step, from 0.

    Raises:
        Misuse: the data set, the optimizer or the model do not allow it.
    """

    def __init__(
        self,
        module: Any,
        optimizer: Any,
        loader: Any,
        stateful: tuple[Any, ...],
        *,
        steps: int,
        seed: int,
        save_every: int,
        watch: ShapeWatch | None,
        objects: ObjectStore | None,
    ) -> None:
        _check(module, optimizer, loader, steps)
        self._layer = Layer(module, optimizer, (), stateful)
        self._parameters = trained_parameters(self._layer)
        self._steps, self._watch = steps, watch
        device = self._parameters[0].device
        shuffle = not isinstance(loader.sampler, torch.utils.data.SequentialSampler)
        self._order = SampleOrder(len(loader.dataset), loader.batch_size, 1, seed, shuffle=shuffle)
        self._reader = SampleReader(loader.dataset, self._order, seed, loader.collate_fn, device, pairs=False)
        held = HeldStates([self._layer])
        first = held.first_values(0)
        assert first is not None
        same = {
            "torch": torch.__version__,
            "layers": 1,
            "batch": loader.batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "samples of the data set": len(loader.dataset),
            "steps": steps,
            FIRST_VALUES: digest_of([first]),
        }
        self._member = ShapeMember(held, watch, MemberTerms(same, steps, save_every, False, device), objects)
        kinds = (torch.nn.modules.batchnorm._NormBase,)  # the base of all that keep running statistics
        self._statistics = [one for part in module.modules() if isinstance(part, kinds) for one in part.buffers()]
        self._weight, self._began_s = 0.0, 0.0
        self._batch, self._samples = int(loader.batch_size), 0
        self._compute_s: deque[float] = deque(maxlen=KEPT)
        self._update_s: deque[float] = deque(maxlen=KEPT)
        self._shared_s = self._ended_s = 0.0
        self._under_way, self._leaves, self._is_over = False, False, False
        self._broken: LinkBroken | None = None
        self.step, self.epoch = 0, 0
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        if watch is not None:
            watch.update(layers=1, steps=steps, micro_batches=loader.batch_size)
            watch.start()

    def __iter__(self) -> Iterator[Any]:
        """Yield this machine's part of each batch, until training is over; nothing after that.

        So the loop may stay inside one over epochs.

        Raises:
            Misuse: the loop took no step, or a gradient is not finite.
        """
        if self._is_over:
            return
        member = self._member
        try:
            while (layout := member.next_layout()) is not None:
                try:
                    member.make(layout)
                    if member.links is not None:
                        yield from self._train()
                    elif member.serves is not None:
                        serve_states(member.serves, layout, member.held, step=member.step, applied=member.served)
                except LinkBroken as broken:
                    member.give_up(broken)
            member.load_last()
            self._is_over = True
        except Exception as error:
            member.fail(str(error) if isinstance(error, WindfallError) else f"{type(error).__name__}: {error}")
            raise
        finally:
            member.close()

    def _train(self) -> Iterator[Any]:
        member = self._member
        layout, place = member.layout, member.stage
        assert layout is not None
        assert place is not None
        self._leaves, trained = False, 0
        self._ended_s = time.perf_counter()
        member.save_own()
        while member.step < self._steps and not self._leaves:
            self.step, self.epoch = member.step + 1, self._order.epoch(member.step + 1)
            self._reader.check()
            parts = self._order.micro_batches(self.step)
            mine = shares(len(parts), layout.pipelines)[place.pipeline]
            samples = tuple(sample for number in mine for sample in parts[number].samples)
            self._weight, self._samples, self._began_s = len(samples) / len(parts), len(samples), time.perf_counter()
            # Here, and not before the update: the script's forward pass changes running statistics.
            member.held.begin_update([0])
            self._under_way, self._broken = True, None
            if samples:
                yield self._reader.batch(self.step, MicroBatch(0, samples, self._weight))
            else:
                # A last batch of fewer samples than machines: it still votes.
                self._layer.optimizer.zero_grad()
                self._layer.optimizer.step()
            if self._under_way:
                raise Misuse(
                    "the loop took no optimizer.step(): call it once for each batch, so that all machines stay together"
                )
            if self._broken is not None:
                member.held.undo_update([0])
                raise self._broken
            if member.backup is not None:
                member.backup.send(self.step, packed(member.held.state(0)))
            member.save_own()
            trained += 1
            if is_due(trained):
                self._post()

    def _post(self) -> None:
        """Post what this machine has measured: of the script's passes their sum alone is known, and not what they hold."""
        if self._watch is None or not self._compute_s:
            return
        sample_s, update_s = statistics.median(self._compute_s), statistics.median(self._update_s)
        layer = LayerMeasurement(sample_s, 0.0, update_s, 0, 0, sum(one.numel() for one in self._parameters))
        measured = MeasuredLayers(self._batch, 1, 1, 0, (layer,))
        post(self._watch, self._member, measured, [captured(self._layer, 0)], self._parameters[0].device)

    # ------------------------------------------------------------------------------------------------------------- the hooks

    def _before_step(self, *_: Any) -> None:
        """Make the gradients those of the whole batch, and vote."""
        if not self._under_way:
            return
        # The first step builds things.
        if self._samples and self.step > 1:
            self._compute_s.append((time.perf_counter() - self._began_s) / self._samples)
        try:
            self._share()
        except LinkBroken as broken:
            self._broken = broken
            for one in self._parameters:
                # An optimizer changes nothing that has no gradient.
                one.grad = None
        self._shared_s = time.perf_counter()

    def _share(self) -> None:
        links = self._member.links
        assert links is not None
        dtype = sum_dtype([self._layer])
        rows = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters]
        total = torch.cat([row.detach().reshape(-1).to(dtype) for row in rows]).mul_(self._weight)
        links.sum_all(total)
        vote = self._member.vote({}, 0, {0: float(total.double().square().sum())})
        if vote.bad:
            raise Misuse(
                f"step {self.step} is refused: the gradient is not finite; lower the learning rate or clip the gradients"
            )
        self._leaves = vote.leaves is not None
        self._spread_statistics(links)
        place = 0
        for one in self._parameters:
            one.grad = total[place : place + one.numel()].view_as(one).to(one.dtype)
            place += one.numel()

    def _spread_statistics(self, links: Links) -> None:
        """Take over the first machine's running statistics."""
        if not self._statistics or len(links.machines) == 1:
            return
        place = self._member.stage
        assert place is not None
        values = torch.cat([one.detach().reshape(-1).double() for one in self._statistics])
        if place.pipeline != 0:
            values.zero_()
        links.sum_all(values)
        first = 0
        for one in self._statistics:
            one.copy_(values[first : first + one.numel()].view_as(one))
            first += one.numel()

    def _after_step(self, *_: Any) -> None:
        """Say that the step counts."""
        if not self._under_way:
            return
        self._under_way = False
        if self._broken is None:
            now_s = time.perf_counter()
            if self.step > 1:
                self._update_s.append(now_s - self._shared_s)
            self._member.held.end_update([0])
            # What the loop does between two steps is a part of them.
            self._member.finished(now_s - self._ended_s)
            self._ended_s = now_s


def _check(module: Any, optimizer: Any, loader: Any, steps: int) -> None:
    if steps < 1:
        raise Misuse(f"steps is {steps}: write how many to train, at least 1")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise Misuse(f"optimizer is {type(optimizer).__name__}: give the torch optimizer of the model's parameters")
    dataset, size = getattr(loader, "dataset", None), getattr(loader, "batch_size", None)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not size:
        raise Misuse(
            "loader is not a DataLoader with a batch_size over a data set with a length: which samples a machine gets is "
            "decided from their numbers, so give DataLoader(dataset, batch_size=...)"
        )
    sampler = getattr(loader, "sampler", None)
    plain = isinstance(sampler, torch.utils.data.SequentialSampler) or (
        isinstance(sampler, torch.utils.data.RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)
    )
    if not plain:
        raise Misuse(
            f"loader has a {type(sampler).__name__}: wrap gives each machine its part of each batch, and trains each "
            "sample once an epoch; give DataLoader(dataset, batch_size=..., shuffle=True), without a sampler"
        )
    known = {id(one) for one in module.parameters()}
    if not known or any(id(one) not in known for group in optimizer.param_groups for one in group["params"]):
        raise Misuse("the optimizer has a parameter that is not in the model: wrap the module that has all of them")
