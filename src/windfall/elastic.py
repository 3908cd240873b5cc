"""Training that changes its shape while machines come and go: `import windfall.elastic as elastic`.

    model = elastic.Model(layers, loss, optimizer, batch=256, micro_batch=4)
    for step, loss in model.train(dataset, steps=20_000):
        ...

The lines are the same on one machine and on thirty.  A job with `runtime: elastic` runs the script on each of its machines;
they share the batch (data parallelism) and the layers (stages of a pipeline) as the job's coordinator says, from step to step.
Started by hand, the script trains alone, with the same result.  A script that was written for DistributedDataParallel changes
three lines: see `wrap`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from windfall.errors import Misuse
from windfall.wire import environment


class Model:
    """A model that is trained in stages.

    Args:
        layers: an `nn.Sequential` or a list of modules; it can be cut between any two.
        loss: called with (output, target) of a micro-batch; returns their mean.
        optimizer: called with a list of parameters; returns a torch optimizer.  Each layer gets one of its own.
        batch: samples of a step, of all machines together.
        micro_batch: samples that go through the layers at once; the batch is a multiple of it.
        seed: of the samples' order and of chance in layers and data.
        deterministic: the result does not depend on the machines, to the last bit; None: what the job file says, else no.
        shuffle: take the samples in another order each epoch.
        schedule: called with a step; returns by what learning rates are multiplied.
        clip_norm: largest norm of the gradient of all layers; None: no limit.
        save_every: steps between checkpoints; 0: at the end, and every minute what the backup has.
        device: on which it is trained.
        collate: makes a batch of a list of samples; None: as torch's DataLoader does.

    Raises:
        Misuse: the layers cannot be cut, or the batch is not a multiple of `micro_batch`.
    """

    def __init__(
        self,
        layers: Any,
        loss: Callable[[Any, Any], Any],
        optimizer: Callable[[list[Any]], Any],
        *,
        batch: int,
        micro_batch: int,
        seed: int = 0,
        deterministic: bool | None = None,
        shuffle: bool = True,
        schedule: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        save_every: int = 0,
        device: Any = "cpu",
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        _shorten_errors()
        from torch.utils.data import default_collate  # noqa: PLC0415 - who does not train needs no torch

        from windfall.runtimes.shape_engine import ShapeEngine, TrainSettings  # noqa: PLC0415 - the same

        self._watch = _watch()
        of_job = dict(self._watch.place.settings) if self._watch is not None else {}
        exact = deterministic if deterministic is not None else bool(of_job.get("deterministic", False))
        settings = TrainSettings(
            batch, micro_batch, int(of_job.get("seed", seed)), exact, shuffle, schedule, clip_norm,
            int(of_job.get("save_every", save_every)), device, collate or default_collate,
        )  # fmt: skip
        self._engine = ShapeEngine(layers, loss, optimizer, settings)

    def train(self, dataset: Any, steps: int) -> Iterator[tuple[int, float]]:
        """Train, and yield (step, loss) of each step in which this machine takes part.

        After a loss of machines a step may come twice.  On a machine that only waits for others to be lost nothing comes.

        Args:
            dataset: has `len()`, and `dataset[i]` returns (input, target).
            steps: with which training ends.

        Raises:
            Misuse: the script's data, layers or numbers do not allow it.
        """
        return self._engine.train(dataset, steps, self._watch, _objects_of(self._watch))


def wrap(
    model: Any, optimizer: Any, loader: Any, *stateful: Any, steps: int, seed: int = 0, save_every: int = 0
) -> Iterable[Any]:
    """Return the batches of a data-parallel script, of which each machine gets a part: one pipeline stage, P = 1.

        training = elastic.wrap(model, optimizer, loader, schedule, steps=20_000)
        for inputs, targets in training:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
            schedule.step()

    `optimizer.step()` uses the mean gradient of the whole batch.  If a machine is lost there, the step changes nothing and the
    loop gets a part of the same batch again.  The loop counts no epochs: `training.step` and `training.epoch` do.

    Args:
        model: a module, or one in DistributedDataParallel, which is taken out of it.
        optimizer: of its parameters; it must be stepped once for each batch.
        loader: a DataLoader over a data set with a length; `batch_size` is that of all machines together.
        stateful: what else has a state (`state_dict`, `load_state_dict`): schedules.
        steps: with which training ends.
        seed: of the samples' order and of chance in data.
        save_every: steps between checkpoints; 0: at the end, and every minute what the backup has.

    Raises:
        Misuse: the data set, the optimizer or the model do not allow it.
    """
    _shorten_errors()
    from windfall.runtimes.shape_wrap import WrappedTraining  # noqa: PLC0415 - who does not train needs no torch

    watch = _watch()
    of_job = dict(watch.place.settings) if watch is not None else {}
    module = model.module if type(model).__name__ == "DistributedDataParallel" else model
    return WrappedTraining(
        module, optimizer, loader, stateful, steps=steps, seed=int(of_job.get("seed", seed)),
        save_every=int(of_job.get("save_every", save_every)), watch=watch, objects=_objects_of(watch),
    )  # fmt: skip


def load(place: str | os.PathLike[str], model: Any) -> int:
    """Give a model what an elastic training has found, and return the step after which it is that.

        layers = torch.nn.Sequential(...)                    # as in the script that was trained
        step = elastic.load("out", layers)                   # after `windfall get JOB out`
        step = elastic.load("s3://lab/letters-3f9a2c", layers)

    The optimizer's states are not loaded: to train on, resume the job.

    Args:
        place: a folder or file that `windfall get` wrote, or the URL of a run, of which the newest checkpoint is read.
        model: the layers that were given to `Model`, or the model that was given to `wrap`; its values are replaced.

    Raises:
        Misuse: there is no checkpoint, or it is of another model.
        StoreError: the store cannot be reached.
    """
    from windfall.runtimes import shape_loading, shape_product  # noqa: PLC0415 - who does not train needs no torch

    path = Path(place)
    path = path / shape_product.FILE if path.is_dir() else path
    if path.is_file():
        step, tensors = shape_loading.read_file(path)
    else:
        step, tensors = shape_loading.read_run(_opened(os.fspath(place)), str(place))
    shape_loading.install_tensors(model, tensors, str(place))
    return step


def _shorten_errors() -> None:
    """Let a mistake in the script end it with its place and a sentence, and not with the inside of Windfall."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_error


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, Misuse):
        sys.__excepthook__(kind, error, trace)
        return
    own = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(os.path.dirname(__file__))]
    at = f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}: " if own else ""
    sys.stderr.write(f"{at}{error}\n")


def _watch() -> Any:
    from windfall.runtimes.shape_watch import ShapeWatch  # noqa: PLC0415 - who does not train needs no torch

    path = os.environ.get(environment.ELASTIC)
    return ShapeWatch(path) if path else None


def _objects_of(watch: Any) -> Any:
    if watch is None or not watch.place.url:
        return None
    return _opened(watch.place.url)


def _opened(url: str) -> Any:
    # A script that trains alone needs no store.
    from windfall.linux.clock import SystemClock  # noqa: PLC0415
    from windfall.settings import patience_s  # noqa: PLC0415
    from windfall.storage.object_stores import open_store  # noqa: PLC0415
    from windfall.storage.store_operations import RetryPolicy  # noqa: PLC0415

    return open_store(url, retry=RetryPolicy(SystemClock(), budget_s=patience_s()))
