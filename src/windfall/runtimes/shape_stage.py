"""What a machine computes in a step: its layers, forward and backward, for the micro-batches of its pipeline.

Layers are cut apart everywhere, also where one machine has both sides: each gets a tensor without history and gives back its
gradient.  So a layer computes the same whatever the shape.  Chance in a layer is seeded by step, micro-batch and layer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from windfall.errors import Misuse
from windfall.runtimes.shape_layers import Activation, differentiable
from windfall.runtimes.shape_links import Links
from windfall.runtimes.shape_samples import MicroBatch, SampleReader, shares, stream
from windfall.runtimes.shape_schedule import one_forward_one_backward
from windfall.runtimes.shape_states import Layer
from windfall.runtimes.shape_sums import PairwiseSum, nodes_of
from windfall.runtimes.shape_times import LayerTimes
from windfall.shape_layout import ShapeLayout, StagePlace
from windfall.structs import Struct

FORWARD, BACKWARD, REDUCE, SPREAD = 1, 2, 3, 4
"""Tags of messages."""


class StageTerms(Struct, frozen=True):
    """What a stage computes with.

    Attributes:
        layers: all of the model.
        loss: of (output, target), the mean over a micro-batch.
        reader: of samples.
        seed: of the training.
        deterministic: sums do not depend on the shape.
        device: of all tensors.
    """

    layers: Sequence[Layer]
    loss: Callable[[Any, Any], Any]
    reader: SampleReader
    seed: int
    deterministic: bool
    device: Any


class StepSums(NamedTuple):
    """What a machine has found in a step.

    Attributes:
        losses: of the micro-batches of which it computed the loss.
        gradient: of all of its layers, mean over the step's samples; the same on all replicas of the stage.
    """

    losses: dict[int, float]
    gradient: Any


class _Passed(NamedTuple):
    """What is kept of a micro-batch between forward and backward: for each layer its input and its output."""

    leaves: list[tuple[Any, ...]]
    outputs: list[Activation]
    loss: Any
    loss_leaves: tuple[Any, ...]


class TrainedStage:
    """A machine's stage in a layout.

    Args:
        terms: what it computes with.
        layout: that is trained.
        place: of this machine in it.
        links: of all machines that train.
        replicas: of this stage's machines; None: sums go over `links`, one to another.
    """

    def __init__(
        self, terms: StageTerms, layout: ShapeLayout, place: StagePlace, links: Links, replicas: Links | None
    ) -> None:
        self._terms, self._place, self._links, self._replicas = terms, place, links, replicas
        self.numbers = layout.layers(place.machine)
        self.layers = {number: terms.layers[number] for number in self.numbers}
        self._pipelines, self._stages = layout.pipelines, layout.stages
        at = {(one.pipeline, one.stage): one.machine for one in layout.places}
        self._before = at.get((place.pipeline, place.stage - 1))
        self._after = at.get((place.pipeline, place.stage + 1))
        self._same = [at[pipeline, place.stage] for pipeline in range(layout.pipelines)]
        self.parameters = {number: trained_parameters(layer) for number, layer in self.layers.items()}
        self._all = [one for listed in self.parameters.values() for one in listed]
        self.slices: dict[int, slice] = {}
        end = 0
        for number, listed in self.parameters.items():
            first, end = end, end + sum(one.numel() for one in listed)
            self.slices[number] = slice(first, end)
        self._dtype, self._size = sum_dtype(terms.layers), end
        self.times = LayerTimes([layer.module for layer in self.layers.values()], terms.device)

    def compute(self, step: int, parts: Sequence[MicroBatch]) -> StepSums:
        """Compute a step's gradients.

        Raises:
            LinkBroken: a peer is lost.
        """
        self.times.next_step()
        mine = shares(len(parts), self._pipelines)[self._place.pipeline]
        passed: dict[int, _Passed] = {}
        losses: dict[int, float] = {}
        total = PairwiseSum(len(parts)) if self._terms.deterministic else None
        running: Any = None
        for forward, place in one_forward_one_backward(self._place.stage, self._stages, len(mine)):
            part = parts[mine[place]]
            self._links.check()
            if forward:
                passed[part.number] = self._forward(step, part)
                continue
            done = passed.pop(part.number)
            if done.loss is not None:
                losses[part.number] = float(done.loss.detach())
            gradient = self._backward(part, done)
            if total is not None:
                total.add(part.number, gradient)
            else:
                running = gradient if running is None else running.add_(gradient)
        self._links.sent()
        if total is not None:
            return StepSums(losses, self._reduced(total, len(parts)))
        if running is None:
            running = self._zeros()
        if self._replicas is not None:
            self._replicas.sum_all(running)
        return StepSums(losses, running)

    # --------------------------------------------------------------------------------------------------- one micro-batch

    def _forward(self, step: int, part: MicroBatch) -> _Passed:
        leaves: list[tuple[Any, ...]] = []
        outputs: list[Activation] = []
        given, targets = self._input(step, part, leaves)
        for place, (number, layer) in enumerate(self.layers.items()):
            if outputs:
                leaves.append(outputs[-1].leaves())
                given = outputs[-1].given(leaves[-1])
            torch.manual_seed(stream(self._terms.seed, step, part.number, number))
            with self.times.timed(place, 0, time.perf_counter), self.times.holding(place):
                outputs.append(Activation(layer.module(given), number))
            self.times.output(place, outputs[-1].tensors)
        self.times.passed()
        if self._after is not None:
            self._links.send_formed([one.detach() for one in outputs[-1].tensors], self._after, FORWARD, part.number)
            return _Passed(leaves, outputs, None, ())
        if targets is None:
            _, targets = self._terms.reader.read(step, part)
        last = outputs[-1].leaves()
        torch.manual_seed(stream(self._terms.seed, step, part.number, "loss"))
        loss = self._terms.loss(outputs[-1].given(last), targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise Misuse(
                f"loss(output, target) returned {_form(loss)}: it must return one number, the mean over the micro-batch"
            )
        return _Passed(leaves, outputs, loss, last)

    def _input(self, step: int, part: MicroBatch, leaves: list[tuple[Any, ...]]) -> tuple[Any, Any]:
        """Return what the first layer of this stage gets, and the targets if they were read."""
        if self._before is None:
            inputs, targets = self._terms.reader.read(step, part)
            leaves.append(())
            return inputs, targets
        received = self._links.receive_formed(self._before, FORWARD)
        found = Activation(received[0] if len(received) == 1 else tuple(received), self.numbers[0] - 1)
        leaves.append(found.leaves())
        return found.given(leaves[-1]), None

    def _backward(self, part: MicroBatch, done: _Passed) -> Any:
        for one in self._all:
            one.grad = None
        if self._after is None:
            if done.loss.requires_grad:
                done.loss.backward(torch.full_like(done.loss, part.weight))
            gradients = [one.grad for one in done.loss_leaves]
        else:
            gradients = [
                self._links.receive(torch.empty_like(one.detach()), self._after, BACKWARD)
                if differentiable(one)
                else None
                for one in done.outputs[-1].tensors
            ]
            # Its activations can be freed: they have arrived.
            self._links.sent(part.number)
        for place in reversed(range(len(self.numbers))):
            with self.times.timed(place, 1, time.perf_counter):
                _back(done.outputs[place].tensors, gradients)
            gradients = [one.grad for one in done.leaves[place]]
        if self._before is not None:
            for leaf, gradient in zip(done.leaves[0], gradients, strict=True):
                if differentiable(leaf):
                    value = torch.zeros_like(leaf) if gradient is None else gradient
                    self._links.send(value.detach().contiguous(), self._before, BACKWARD)
        return self._flat()

    def _flat(self) -> Any:
        """Return the gradients of all parameters in a row; of those that the loss does not depend on, zeros."""
        if not self._all:
            return self._zeros()
        rows = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._all]
        return torch.cat([row.detach().reshape(-1).to(self._dtype) for row in rows])

    def _zeros(self) -> Any:
        return torch.zeros(self._size, dtype=self._dtype, device=self._terms.device)

    # ---------------------------------------------------------------------------------------------------------- all replicas

    def _reduced(self, total: PairwiseSum, count: int) -> Any:
        """Return the sum over all pipelines: merged two by two towards the first one, and spread from there."""
        mine, pipelines = self._place.pipeline, self._pipelines
        each = shares(count, pipelines)
        spans = [1 << power for power in range((pipelines - 1).bit_length())]
        for span in spans:
            if mine % (2 * span) == span:
                for _, value in sorted(total.nodes.items(), key=lambda item: item[0]):
                    self._links.send(value, self._same[mine - span], REDUCE)
                break
            if mine % (2 * span) == 0 and mine + span < pipelines:
                end = min(mine + 2 * span, pipelines)
                for node in nodes_of(range(each[mine + span].start, each[end - 1].stop), count):
                    total.put(node, self._links.receive(self._zeros(), self._same[mine + span], REDUCE))
        root = total.root() if mine == 0 else self._zeros()
        self._links.sent()
        for span in reversed(spans):
            if mine % (2 * span) == span:
                self._links.receive(root, self._same[mine - span], SPREAD)
            elif mine % (2 * span) == 0 and mine + span < pipelines:
                self._links.send(root, self._same[mine + span], SPREAD)
        self._links.sent()
        return root

    # -------------------------------------------------------------------------------------------------------------- update

    def square_sums(self, gradient: Any) -> dict[int, float]:
        """Return the sum of squares of each layer's gradient; it is not finite if one of its numbers is not."""
        return {number: float(gradient[part].double().square().sum()) for number, part in self.slices.items()}


class Update(NamedTuple):
    """How gradients are applied.

    Attributes:
        step: that is completed by it.
        factor: by which gradients are scaled.
        schedule: by step, of what the learning rates that the optimizers began with are multiplied by; None: they stay.
    """

    step: int
    factor: float
    schedule: Callable[[int], float] | None


def trained_parameters(layer: Layer) -> list[Any]:
    """Return a layer's parameters that have gradients."""
    return [one for one in layer.module.parameters() if one.requires_grad]


def sum_dtype(layers: Sequence[Layer]) -> Any:
    """Return in what precision a model's gradients are summed: the same in all layers, however they are cut."""
    double = (torch.float64, torch.complex128)
    return (
        torch.float64
        if any(one.dtype in double for layer in layers for one in trained_parameters(layer))
        else torch.float32
    )


def apply_gradient(layers: dict[int, Layer], gradient: Any, update: Update) -> None:
    """Let the optimizers of layers update their parameters.

    Args:
        layers: by number, ascending.
        gradient: of all of their parameters in a row; it is used up.
        update: how.
    """
    if update.factor != 1.0:
        gradient.mul_(update.factor)
    place = 0
    for layer in layers.values():
        parameters = trained_parameters(layer)
        for one in parameters:
            one.grad = gradient[place : place + one.numel()].view_as(one).to(one.dtype)
            place += one.numel()
        if layer.optimizer is not None:
            if update.schedule is not None:
                for group, rate in zip(layer.optimizer.param_groups, layer.rates, strict=True):
                    group["lr"] = rate * update.schedule(update.step)
            layer.optimizer.step()
        for one in parameters:
            one.grad = None


def clip_factor(squares: Sequence[float], clip_norm: float | None) -> float:
    """Return by what gradients are scaled so that their norm over all layers is at most `clip_norm`."""
    if clip_norm is None:
        return 1.0
    # In the order of the layers, on all machines.
    norm = math.sqrt(sum(squares))
    return min(1.0, clip_norm / (norm + 1e-6))


def _back(outputs: Sequence[Any], gradients: Sequence[Any]) -> None:
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def _form(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
