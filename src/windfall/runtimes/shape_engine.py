"""The loop of an elastic training in a script's process: it trains what the newest layout says, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from windfall.errors import Misuse, WindfallError
from windfall.ports import ObjectStore
from windfall.runtimes.shape_backup import serve
from windfall.runtimes.shape_layers import BufferCheck, digest_of, layers_of
from windfall.runtimes.shape_links import LinkBroken
from windfall.runtimes.shape_member import ShapeMember
from windfall.runtimes.shape_posts import MeasuredLayers, is_due, post
from windfall.runtimes.shape_samples import MicroBatch, SampleOrder, SampleReader, check_batch
from windfall.runtimes.shape_stage import StageTerms, TrainedStage, Update, apply_gradient, clip_factor
from windfall.runtimes.shape_states import HeldStates, Layer, captured
from windfall.runtimes.shape_terms import FIRST_VALUES, MemberTerms
from windfall.runtimes.shape_watch import ShapeWatch
from windfall.shape_measurements import LayerMeasurement
from windfall.structs import Struct


class TrainSettings(Struct, frozen=True):
    """How a model is trained.

    Attributes:
        batch: samples of a step, of all machines together.
        micro_batch: samples that go through the layers at once.
        seed: of samples and of chance in layers.
        deterministic: the result does not depend on the shape, to the last bit.
        shuffle: samples, each epoch in another order.
        schedule: by step, of what learning rates are multiplied by.
        clip_norm: largest norm of the gradient of all layers.
        save_every: steps between checkpoints; 0: at the end, and every minute what the backup has.
        device: on which it is trained.
        collate: makes a batch of a list of samples.
    """

    batch: int
    micro_batch: int
    seed: int
    deterministic: bool
    shuffle: bool
    schedule: Callable[[int], float] | None
    clip_norm: float | None
    save_every: int
    device: Any
    collate: Callable[[list[Any]], Any]


class ShapeEngine:
    """Trains a model whose layers are cut into stages.

    Args:
        modules: its layers.
        loss: of (output, target).
        optimizer: makes an optimizer of the parameters of a layer.
        settings: how it is trained.

    Raises:
        Misuse: the layers cannot be cut, or the batch not divided.
    """

    def __init__(
        self,
        modules: Any,
        loss: Callable[[Any, Any], Any],
        optimizer: Callable[[list[Any]], Any],
        settings: TrainSettings,
    ) -> None:
        check_batch(settings.batch, settings.micro_batch)
        self.layers: list[Layer] = layers_of(modules, optimizer)
        self._loss, self.settings = loss, settings

    def train(
        self, dataset: Any, steps: int, watch: ShapeWatch | None, objects: ObjectStore | None
    ) -> Iterator[tuple[int, float]]:
        """Train, and yield the number of each step and its loss, on machines that train.

        After a loss a step may come twice.

        Raises:
            Misuse: the script's data, layers or numbers do not allow it.
        """
        if steps < 1:
            raise Misuse(f"steps is {steps}: write how many to train, at least 1")
        run = _Run(self, dataset, steps, watch, objects)
        try:
            yield from run.steps()
        except Exception as error:
            run.member.fail(str(error) if isinstance(error, WindfallError) else f"{type(error).__name__}: {error}")
            raise
        finally:
            run.member.close()

    def same(self, samples: int, steps: int, held: HeldStates) -> dict[str, Any]:
        """Return what must be the same on all machines."""
        first = [held.first_values(number) for number in range(len(self.layers))]
        return {
            "torch": torch.__version__,
            "layers": len(self.layers),
            "batch": self.settings.batch,
            "micro_batch": self.settings.micro_batch,
            "seed": self.settings.seed,
            "shuffle": self.settings.shuffle,
            "deterministic": self.settings.deterministic,
            "samples of the data set": samples,
            "steps": steps,
            FIRST_VALUES: digest_of([one for one in first if one is not None]),
        }


class _Run:
    """One call of `train`."""

    def __init__(
        self, engine: ShapeEngine, dataset: Any, steps: int, watch: ShapeWatch | None, objects: ObjectStore | None
    ) -> None:
        settings = self._settings = engine.settings
        self._engine, self._steps, self._watch = engine, steps, watch
        self._order = SampleOrder(
            len(dataset), settings.batch, settings.micro_batch, settings.seed, shuffle=settings.shuffle
        )
        self._reader = SampleReader(dataset, self._order, settings.seed, settings.collate, settings.device)
        held = HeldStates(engine.layers)
        same = engine.same(len(dataset), steps, held)
        terms = MemberTerms(same, steps, settings.save_every, settings.deterministic, settings.device)
        self.member = ShapeMember(held, watch, terms, objects)
        self._stage_terms = StageTerms(
            engine.layers, engine._loss, self._reader, settings.seed, settings.deterministic, settings.device
        )
        if watch is not None:
            watch.update(layers=len(engine.layers), steps=steps, micro_batches=settings.batch // settings.micro_batch)
            watch.start()

    def steps(self) -> Iterator[tuple[int, float]]:
        """Yield steps until training is over."""
        member = self.member
        while (layout := member.next_layout()) is not None:
            try:
                member.make(layout)
                if member.links is not None:
                    yield from self._train()
                elif member.serves is not None:
                    serve(
                        member.serves,
                        layout,
                        member.held,
                        step=member.step,
                        applied=member.served,
                        schedule=self._settings.schedule,
                    )
            except LinkBroken as broken:
                member.give_up(broken)
        member.load_last()

    def _train(self) -> Iterator[tuple[int, float]]:
        """Train in a layout until it is left."""
        member, settings = self.member, self._settings
        assert member.links is not None
        assert member.layout is not None
        assert member.stage is not None
        stage = TrainedStage(self._stage_terms, member.layout, member.stage, member.links, member.replicas)
        checked = BufferCheck(stage.layers)
        member.save_own()
        trained = 0
        while member.step < self._steps:
            began_s = time.perf_counter()
            step = member.step + 1
            self._reader.check()
            parts = self._order.micro_batches(step)
            sums = stage.compute(step, parts)
            checked.check()
            with stage.times.updating(time.perf_counter):
                squares = stage.square_sums(sums.gradient)
            vote = member.vote(sums.losses, len(parts), squares)
            if vote.bad:
                raise Misuse(
                    f"step {step} is refused: {vote.bad} is not finite; lower the learning rate, clip the gradients "
                    "(clip_norm) or look at that step's samples"
                )
            factor = clip_factor([one for one in vote.squares if one >= 0.0], settings.clip_norm)
            if member.backup is not None:
                if factor != 1.0:
                    sums.gradient.mul_(factor)
                    factor = 1.0
                member.backup.send(step, sums.gradient)
            with stage.times.updating(time.perf_counter):
                member.held.begin_update(stage.numbers)
                apply_gradient(stage.layers, sums.gradient, Update(step, factor, settings.schedule))
                member.held.end_update(stage.numbers)
            member.finished(time.perf_counter() - began_s)
            member.save_own()
            trained += 1
            if is_due(trained):
                self._post(stage)
            yield step, _mean(vote.losses, parts)
            if vote.leaves is not None:
                return

    def _post(self, stage: TrainedStage) -> None:
        """Post what this machine has measured."""
        if self._watch is None:
            return
        settings, times = self._settings, stage.times
        parameters = [part.stop - part.start for part in stage.slices.values()]
        each_s = times.update_s / max(sum(parameters), 1)
        numbers = zip(
            times.medians(0), times.medians(1), [each_s * count for count in parameters], times.output_bytes,
            times.held_bytes, parameters, strict=True,
        )  # fmt: skip
        layers = tuple(LayerMeasurement(*row) for row in numbers)
        measured = MeasuredLayers(
            settings.batch, settings.micro_batch, len(self._engine.layers), stage.numbers.start, layers
        )
        states = [captured(layer, 0) for layer in stage.layers.values()]
        post(self._watch, self.member, measured, states, settings.device)


def _mean(losses: list[float], parts: tuple[MicroBatch, ...]) -> float:
    total = 0.0
    for part in parts:
        total += part.weight * losses[part.number]
    return total
