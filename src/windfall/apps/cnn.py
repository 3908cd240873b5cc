"""Classes of pictures by a small convolutional network, in torch, on a parameter server.

The table is that of `windfall.paramserver.wrap`: parameters, then each data partition's momentum.
The network normalises each picture by itself (GroupNorm), so no result depends on which pictures share a batch.

**The batch of a machine.**  With a number every turn has that batch.  With `auto` it is the largest that the memory of the
machine which computes the turn allows (equation 10, measured there), at most a data partition.  A turn is an iteration of
spotDNN's model whatever its batch: its change is the rate times the *mean* gradient of the batch, and a clock moves the
parameters by the mean over data partitions.  A larger batch counts by its smaller noise, which gamma2 b_w of equation 3 stands
for.  Changes are not weighted by batch: data partitions are of one size but for a picture, so the mean of their means is the
gradient over all pictures, and weights would favour the pictures that the largest machines happen to have.

Source: spotDNN (IWQoS 2023), section III, equations 3, 4 and 10.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from windfall.apps.app_settings import AppSettings
from windfall.apps.cnn_memory import MemoryLine, measured_line
from windfall.apps.data_files import write_origin
from windfall.apps.pictures import Pictures, generated, letters, read_pictures
from windfall.errors import Misuse
from windfall.models.asp import largest_batch
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import PracticeTable, ProgramMachine, Table, TierApplication
from windfall.sdk.wrapped_model import WrappedModel
from windfall.structs import Struct

WIDTH = 1024
"""Numbers in a row of the table."""
EVALUATED_AT_ONCE = 512
GB_PER_GIB = 2**30 / 1e9
UNKNOWN = ProgramMachine()


class PicturePart(Struct, frozen=True, eq=False):
    """The pictures of a data partition: `pictures`, their `classes`, and its number, `data`."""

    pictures: Any
    classes: Any
    data: int


class CnnStep(Struct, frozen=True):
    """How the network learns.

    Attributes:
        channels: of the first convolution; the second has twice as many.
        batch: pictures in a turn; None: the most that memory allows.
        rate, momentum, decay: of the descent.
        seed: of first weights and batches.
    """

    channels: int = 8
    batch: int | None = 64
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 0.0
    seed: int = 0


class PictureClasses:
    """`TierApplication`.

    Args:
        seen: all pictures, dealt out to data partitions by chance.
        data: how many data partitions there are.
        step: how it learns.
        machine: that computes; its memory is used without a batch.
        memory: samples by memory; None: it is measured when it is first needed.

    Raises:
        Misuse: there are fewer pictures than data partitions, or they are too small.
    """

    def __init__(
        self,
        seen: Pictures,
        data: int,
        step: CnnStep,
        machine: ProgramMachine = UNKNOWN,
        memory: MemoryLine | None = None,
    ) -> None:
        if len(seen.classes) < data:
            raise Misuse(f"{len(seen.classes)} pictures are too few for {data} data partitions: each needs one")
        if min(seen.pictures.shape[2:]) < 4:
            raise Misuse(
                f"pictures of {seen.pictures.shape[3]} x {seen.pictures.shape[2]} are too small: 4 x 4 is the least"
            )
        self._seen, self._data, self._step, self._machine, self._memory = seen, data, step, machine, memory
        self._measuring = threading.Lock()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(step.seed)
            model = network(seen.pictures.shape[1:], step.channels, len(seen.class_names))
        optimizer = torch.optim.SGD(model.parameters(), lr=step.rate, momentum=step.momentum, weight_decay=step.decay)
        self._first = (model, optimizer, WrappedModel(model, optimizer, (), WIDTH, data))
        self.rows = self._first[2].rows
        # Turns of several data partitions compute at once, each thread with a network of its own.
        self._threads = threading.local()

    def first(self, rows: Rows) -> Values:
        """Return the seeded first weights, and no momentum."""
        return self._first[2].first(rows)

    def load(self, data: int) -> PicturePart:
        """Return the pictures of a data partition."""
        part = np.random.default_rng(self._step.seed).permutation(len(self._seen.classes))[data :: self._data]
        return PicturePart(
            torch.from_numpy(self._seen.pictures[part]), torch.from_numpy(self._seen.classes[part]), data
        )

    def compute(self, loaded: PicturePart, clock: int, table: Table) -> float:
        """Take a step down the gradient over a batch, and return its loss."""
        # Of this thread: sums over several threads differ in their last bits from machine to machine.
        torch.set_num_threads(1)
        model, optimizer, wrapped = self._own()
        rows = wrapped.rows_of(loaded.data)
        wrapped.take_rows(table.pull(rows))
        loss = self.slope(model, loaded, clock)
        optimizer.step()
        wrapped.check_finite(loaded.data, clock)
        changes = np.empty((len(rows) - 1, WIDTH), wrapped.dtype)
        wrapped.write_changes(changes)
        table.push(rows[1:], changes)
        return loss

    def warm_up(self) -> None:
        """Measure memory if the batch follows it, and let torch make what it makes in a first step."""
        one = slice(0, 1)
        part = PicturePart(torch.from_numpy(self._seen.pictures[one]), torch.from_numpy(self._seen.classes[one]), 0)
        self.compute(part, 1, PracticeTable(self))

    def slope(self, model: Any, loaded: PicturePart, clock: int) -> float:
        """Leave the gradient of a turn's batch in a model that has none, and return the loss of the batch."""
        pictures = len(loaded.classes)
        chance = np.random.default_rng((self._step.seed, loaded.data, clock))
        batch = torch.from_numpy(chance.permutation(pictures)[: self.batch(pictures)])
        loss = nn.functional.cross_entropy(model(loaded.pictures[batch]), loaded.classes[batch])
        loss.backward()
        return float(loss.detach())

    def samples(self) -> int:
        """Return the pictures of a turn on this machine; raises as `batch`."""
        return self.batch(len(self._seen.classes) // self._data)

    def batch(self, pictures: int) -> int:
        """Return the batch of a turn on this machine, of a data partition that has a number of pictures.

        Raises:
            Misuse: memory is too small for one picture.
        """
        if self._step.batch is not None:
            return min(self._step.batch, pictures)
        with self._measuring:
            if self._memory is None:
                shape = self._seen.pictures.shape[1:]
                self._memory = measured_line(shape, self._step.channels, len(self._seen.class_names))
        memory_gb = self._machine.memory_gib * GB_PER_GIB
        return min(largest_batch(memory_gb, self._memory.alpha2, self._memory.beta2), pictures)

    def evaluate(self, values: Values) -> float:
        """Return the mean cross entropy over all pictures."""
        return self.loss(self._model_of(values))

    def loss(self, model: Any) -> float:
        """Return the mean cross entropy of a network over all pictures."""
        pictures, classes = torch.from_numpy(self._seen.pictures), torch.from_numpy(self._seen.classes)
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(classes), EVALUATED_AT_ONCE):
                some = slice(start, start + EVALUATED_AT_ONCE)
                total += float(nn.functional.cross_entropy(model(pictures[some]), classes[some], reduction="sum"))
        return total / len(classes)

    def write(self, values: Values, folder: Path) -> None:
        """Write `model.pt`, which `torch.load` reads: `state`, of `network(*form)`, that `form`, and `classes`, their names."""
        form = (tuple(self._seen.pictures.shape[1:]), self._step.channels, len(self._seen.class_names))
        state = self._model_of(values).state_dict()
        torch.save({"state": state, "form": form, "classes": list(self._seen.class_names)}, folder / "model.pt")
        write_origin(self._seen.origin, folder)

    def _own(self) -> tuple[Any, Any, WrappedModel]:
        if not hasattr(self._threads, "own"):
            self._threads.own = copy.deepcopy(self._first)
        own: tuple[Any, Any, WrappedModel] = self._threads.own
        return own

    def made(self) -> tuple[Any, Any]:
        """Return a network with the first weights, and its optimizer."""
        model, optimizer, _ = copy.deepcopy(self._first)
        return model, optimizer

    def _model_of(self, values: Values) -> Any:
        model, _, wrapped = copy.deepcopy(self._first)
        wrapped.take_table(np.asarray(values), 0)
        return model


def network(picture: tuple[int, ...], channels: int, classes: int) -> Any:
    """Return the network, with random weights.

    Args:
        picture: channels, height and width of a picture, each side at least 4.
        channels: of the first convolution, a multiple of 4.
        classes: how many.
    """
    inside = 2 * channels * (picture[1] // 4) * (picture[2] // 4)
    return nn.Sequential(
        *(nn.Conv2d(picture[0], channels, 3, padding=1), nn.GroupNorm(4, channels), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.GroupNorm(4, 2 * channels), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(inside, classes)),
    )


def program(settings: Mapping[str, object], data: int, machine: ProgramMachine = UNKNOWN) -> TierApplication:
    """Return the program that an application's settings describe.

    Settings:
        source (generated): `generated` or `letters`, those of matplotlib's fonts; or `file`, of numpy (`read_pictures`).
        pictures (2000), side (12), classes (5): of generated pictures, by `seed`.
        digest: that letters must have.
        channels (8): of the first convolution, a multiple of 4.
        batch (64): pictures in a turn, or `auto`: what the memory of each machine allows.
        alpha2, beta2: with `auto`: pictures per GB, and at none; measured on each machine where they are not given.
        rate (0.1), momentum (0.9), decay (0.0): of the descent.
        seed (0): of chance.

    Args:
        settings: by name.
        data: how many data partitions there are.
        machine: that computes.

    Raises:
        Misuse: a setting is wrong, or data cannot be read.
    """
    given = AppSettings(settings)
    channels, batch = given.whole("channels", 8, least=4, most=1024), given.whole_or("batch", 64, "auto")
    if channels % 4:
        raise Misuse(f"settings.channels must be a multiple of 4, such as 8, not {channels}")
    rate, momentum = given.number("rate", 0.1, most=1000.0), given.number("momentum", 0.9, most=1.0)
    step = CnnStep(
        channels, batch, rate, momentum, given.number("decay", 0.0, most=10.0), given.whole("seed", 0, least=0)
    )
    memory = None if batch is not None else _memory_line(given, machine)
    return PictureClasses(_pictures(given, step.seed), data, step, machine, memory)


def _memory_line(given: AppSettings, machine: ProgramMachine) -> MemoryLine | None:
    """Return what the settings say of samples by memory; None: it must be measured.

    Raises:
        Misuse: the batch cannot, or must not, depend on the machine.
    """
    if machine.staleness == 0:
        raise Misuse(
            "settings.batch: auto lets the result depend on which machine computes what, and staleness 0 says that it does "
            "not; write a number, or another staleness"
        )
    if machine.memory_gib <= 0.0:
        raise Misuse(
            "settings.batch: the provider does not say how much memory this machine has; write a number, not auto"
        )
    if not (given.has("alpha2") or given.has("beta2")):
        return None
    alpha2 = given.number("alpha2", 1000.0, least=1e-9)
    return MemoryLine(alpha2, given.number("beta2", 0.0, least=-1e12))


def _pictures(given: AppSettings, seed: int) -> Pictures:
    """Read the settings of the data, the last ones, and return it."""
    source = given.source("pictures.npz", ("generated", "letters"))
    if isinstance(source, Path):
        given.end()
        return read_pictures(source)
    if source == "letters":
        digest = given.text("digest", "0f3a...")
        given.end()
        return letters(digest)
    pictures, side = given.whole("pictures", 2000), given.whole("side", 12, least=4, most=1024)
    classes = given.whole("classes", 5, least=2, most=1000)
    given.end()
    return generated(pictures, side, classes, seed=seed)
