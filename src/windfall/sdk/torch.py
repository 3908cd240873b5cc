"""Checkpoints for plain PyTorch scripts: a resumed run equals an uninterrupted one bit for bit.

    checkpoint = Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    batches = checkpoint.loader(train_set, batch_size=32, shuffle=True)
    start = checkpoint.resume()
    for epoch in range(start.epoch, epochs):
        for batch in batches:
            ...
            checkpoint.step()

A checkpoint holds the objects' states, the random generators (Python, numpy, torch, CUDA) and the position in the data:
the epoch, and how many of its batches the loop has received.  Batches that workers have only prefetched do not count.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

import windfall
from windfall.wire import environment

FORMAT_VERSION = 1
KEPT_FILES = 2
"""Files that a `Checkpoint` leaves on the local disk: the newest, and the one still being uploaded."""


class Stateful(Protocol):
    """Anything with a state: modules, optimizers, schedulers, scalers, loaders, objects of your own."""

    def state_dict(self) -> Any:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Restore the state."""
        ...


class Position(NamedTuple):
    """Where training starts or resumes: in epoch `epoch`, with `step` steps complete."""

    epoch: int
    step: int


class Checkpoint:
    """Save and restore the state of a training loop.

    With several ranks, rank 0 saves the objects' states, and every other rank saves only its random generators and its
    position in the data.  With `sharded`, each rank saves its own objects too.

    Outside a Windfall run `resume` restores nothing and `step` never saves; `save` still writes the file.

    Args:
        folder: where checkpoint files are written; default: `checkpoints` inside the session's folder, or inside the
            current folder outside a run.
        sharded: whether the objects' states differ between ranks.
        objects: by name, anything with `state_dict` and `load_state_dict`; None is left out.
    """

    def __init__(self, *, folder: str | None = None, sharded: bool = False, **objects: Stateful | None) -> None:
        self._objects = {name: thing for name, thing in objects.items() if thing is not None}
        self._loaders: dict[str, Stateful] = {}
        for name in ("loader", "sampler"):
            if name in self._objects:
                self._loaders[name] = self._objects.pop(name)
        self._folder = folder or os.path.join(os.environ.get(environment.SESSION) or os.curdir, "checkpoints")
        self._sharded = sharded
        self._files: list[str] = []
        self._made = 0

    def loader(self, source: Any, *, seed: int = 0, **options: Any) -> Loader:
        """Return a data loader whose position is part of the checkpoint.

        Args:
            source: a `DataLoader`, or a dataset to build one from with `options`.
            seed: of the shuffling.
            options: passed to `DataLoader`.

        Raises:
            ValueError: the dataset is iterable, so it has no positions to resume from.
        """
        loader = Loader(source, seed=seed, **options)
        self._loaders[f"loader-{len(self._loaders)}"] = loader
        return loader

    def resume(self) -> Position:
        """Restore the state from the run's checkpoint, if there is one; return where training resumes.

        Call it once, before the training loop.  Without a checkpoint it returns the first epoch and step 0.

        Returns:
            A `Position(epoch, step)`.

        Raises:
            ValueError: the checkpoint was not written by this class, or has other objects or another number of ranks.
        """
        path = windfall.last()
        rank, world_size = _rank_and_world_size()
        if world_size > 1 and windfall.context().rank != rank:
            raise ValueError(
                f"torch.distributed has this process as rank {rank}, the environment as rank "
                f"{windfall.context().rank}: start the script with torchrun, or set RANK and LOCAL_WORLD_SIZE before the "
                "first call of windfall"
            )
        if path is None:
            return Position(self._epoch(), 0)
        own = _read(path)
        if own["world_size"] != world_size or own["rank"] != rank:
            raise ValueError(
                f"{path} is the shard of rank {own['rank']} of {own['world_size']}, but this is rank {rank} of "
                f"{world_size}: start the script with {own['world_size']} ranks"
            )
        shared = own if own["objects"] is not None else _read(os.environ[environment.CHECKPOINT])
        _load_all(self._objects, shared["objects"], path)
        _load_all(self._loaders, own["loaders"], path)
        set_random_state(own["random"])
        return Position(self._epoch(), own["step"])

    def step(self, step: int | None = None) -> bool:
        """End a training step; save a checkpoint if Windfall requests one.

        Call it once after every step.

        Args:
            step: number of complete steps since the start of the run; default: one more than before.

        Returns:
            Whether a checkpoint was saved.
        """
        requested = windfall.step(step)
        if requested:
            self.save()
        return requested

    def save(self) -> None:
        """Save a checkpoint now and hand it to Windfall for upload.

        A file that cannot be written is a warning, not an error: training continues, and this checkpoint is not
        committed.
        """
        rank, world_size = _rank_and_world_size()
        step = windfall.context().step
        state = {
            "windfall": FORMAT_VERSION,
            "step": step,
            "rank": rank,
            "world_size": world_size,
            "objects": _states(self._objects) if rank == 0 or self._sharded else None,
            "loaders": _states(self._loaders),
            "random": random_state(),
        }
        self._made += 1
        path = os.path.join(self._folder, f"step-{step:09d}-rank-{rank}-{os.getpid()}-{self._made}.pt")
        draft = f"{path}.draft"
        try:
            os.makedirs(self._folder, exist_ok=True)
            torch.save(state, draft)
            os.replace(draft, path)
        except (OSError, RuntimeError) as error:
            _remove(draft)
            warnings.warn(
                f"cannot write the checkpoint {path}: {error}; training continues without it",
                RuntimeWarning,
                stacklevel=2,
            )
        windfall.backup(path)
        self._files.append(path)
        for old in self._files[:-KEPT_FILES]:
            _remove(old)
        del self._files[:-KEPT_FILES]

    def _epoch(self) -> int:
        return max((loader.epoch for loader in self._loaders.values() if isinstance(loader, Loader)), default=0)


class Loader:
    """A data loader that can resume after any batch: each sample comes once per epoch, over any number of resumes.

    The order of an epoch depends only on the seed and the epoch.  Each `iter()` starts the next epoch, except the first
    one and the one after `load_state_dict`, which resumes at the stored position.  With workers, each batch has its own
    seed, so random augmentation depends neither on the worker that made the batch nor on resumes.  Workers survive a
    SIGTERM that is sent to every process of the machine: the last save needs their batches.

    Attributes:
        epoch: the current epoch, or the first one before iteration starts.
        position: how many of its batches have been received.
    """

    def __init__(self, source: Any, *, seed: int = 0, **options: Any) -> None:
        loader = source if isinstance(source, DataLoader) else DataLoader(source, **options)
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                f"{type(loader.dataset).__name__} is an iterable dataset, which has no position to resume from: pass "
                "the checkpoint an object of your own with state_dict and load_state_dict"
            )
        self.epoch = 0
        self.position = 0
        self._seed = seed
        self._source = loader
        self._order = _Order()
        self._generator = torch.Generator()
        self._inner = self._rebuilt(loader)
        self._started = False

    def __len__(self) -> int:
        return len(_sampler_of(self._source))

    def __iter__(self) -> Iterator[Any]:
        if self._started:
            self.epoch += 1
            self.position = 0
        self._started = True
        batches = self._drawn()
        seeds = range(len(batches)) if self._inner.num_workers else None
        numbered = [(self._mixed(number), batches[number]) for number in seeds] if seeds is not None else batches
        self._order.entries = numbered[self.position :]
        if not self._order.entries:
            return
        self._generator.manual_seed(self._mixed(0))
        with _sigterm_waits(self._inner.num_workers > 0):
            iterator = iter(self._inner)
        for batch in iterator:
            self.position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the position in the data."""
        return {"epoch": self.epoch, "position": self.position, "batches": len(self), "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a stored position.

        Raises:
            ValueError: the position lies within an epoch that now has another number of batches.
        """
        if state["batches"] != len(self) and 0 < state["position"] < state["batches"]:
            raise ValueError(
                f"the checkpoint lies within an epoch of {state['batches']} batches, but the loader now has {len(self)}: "
                "restore the data and the batch size, or start a new run"
            )
        self.epoch, self.position, self._seed = state["epoch"], state["position"], state["seed"]
        self._started = False

    def _rebuilt(self, loader: Any) -> Any:
        """Return the user's loader with its order replaced; every other option stays as it was."""
        by_batch = loader.batch_sampler is not None
        order = {"batch_sampler": self._order} if by_batch else {"sampler": self._order, "batch_size": None}
        return DataLoader(
            _SeededData(loader.dataset) if loader.num_workers else loader.dataset,
            **order,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=ShieldedWorker(loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context,
            generator=self._generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def _mixed(self, number: int) -> int:
        """Return the seed of batch `number` of this epoch; it differs for each seed, epoch and number in practice."""
        digest = hashlib.blake2b(f"{self._seed}/{self.epoch}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def _drawn(self) -> list[Any]:
        """Return this epoch's order, drawn by the user's own sampler with this epoch's seed."""
        sampler = _sampler_of(self._source)
        seed = self._mixed(-1)
        parts: list[Any] = [sampler, getattr(sampler, "sampler", None)]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(self.epoch)
            if isinstance(getattr(part, "generator", None), torch.Generator):
                part.generator.manual_seed(seed)
        before = random_state(cuda=False)
        try:
            _seed_all(seed)
            return list(sampler)
        finally:
            set_random_state(before)


class ShieldedWorker:
    """A `worker_init_fn` that shields the worker from SIGTERM, unless its own parent sends it."""

    def __init__(self, then: Callable[[int], None] | None = None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """Shield this worker, then call the user's own `worker_init_fn`."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_when_parent_terminates, daemon=True).start()
        if self._then is not None:
            self._then(worker)


def shield_workers(loader: Any) -> None:
    """Shield the workers of a `DataLoader` that a framework iterates from a SIGTERM to every process.

    Each worker shields itself once it runs; a signal just before that still ends it, unlike with `Loader`.
    """
    for one in (loader, getattr(loader, "base_dataloader", None)):  # accelerate wraps the loader that iterates
        if isinstance(one, DataLoader) and one.num_workers and not isinstance(one.worker_init_fn, ShieldedWorker):
            one.worker_init_fn = ShieldedWorker(one.worker_init_fn)


def random_state(*, cuda: bool = True) -> dict[str, Any]:
    """Return the states of the random generators: Python, numpy if loaded, torch, CUDA if in use."""
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)  # plain numbers: Lightning refuses to load anything else
    if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the random generators to a state returned by `random_state`."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


class _Order:
    """The remaining batches of an epoch, as a sampler."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries)


class _SeededData:
    """The user's dataset in a worker; each index comes with the seed to use for it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, entry: tuple[int, Any]) -> Any:
        seed, index = entry
        _seed_all(seed)
        return self.dataset[index]

    def __getitems__(self, entry: tuple[int, list[Any]]) -> list[Any]:
        seed, indices = entry
        _seed_all(seed)
        many = getattr(self.dataset, "__getitems__", None)
        return many(indices) if many else [self.dataset[index] for index in indices]


def _seed_all(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, but not CUDA's, which `torch.manual_seed` would seed too."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


def _sampler_of(loader: Any) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


@contextmanager
def _sigterm_waits(needed: bool) -> Iterator[None]:
    """Block SIGTERM while workers start: they inherit the mask, and this process gets the signal afterwards."""
    if not needed:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_when_parent_terminates() -> None:
    """End the worker when its parent terminates it; otherwise the blocked signal would hang the script's exit."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        continue
    os._exit(0)


def _rank_and_world_size() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _states(objects: Mapping[str, Stateful]) -> dict[str, Any]:
    return {name: thing.state_dict() for name, thing in objects.items()}


def _load_all(objects: Mapping[str, Stateful], states: Mapping[str, Any], path: str) -> None:
    if set(objects) != set(states):
        raise ValueError(
            f"{path} holds {sorted(states)}, but the script passes {sorted(objects)}: pass the same names to Checkpoint"
        )
    for name, thing in objects.items():
        thing.load_state_dict(states[name])


def _read(path: str) -> dict[str, Any]:
    # The states of user objects may be of any class; the file was written by this run, and its digest verified.
    state = torch.load(path, map_location="cpu", weights_only=False)
    if not isinstance(state, dict) or state.get("windfall") != FORMAT_VERSION:
        raise ValueError(
            f"{path} was not written by this version of windfall.sdk.torch.Checkpoint: load it with the code that saved it"
        )
    return state


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
