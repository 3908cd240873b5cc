"""Checkpoints of a plain PyTorch script, whole enough that a resumed run equals an uninterrupted one bit for bit.

    checkpoint = Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    batches = checkpoint.loader(train_set, batch_size=32, shuffle=True)
    start = checkpoint.resume()
    for epoch in range(start.epoch, epochs):
        for batch in batches:
            ...
            checkpoint.step()

Saved with the objects' states are the random generators (Python, numpy, torch, CUDA) and the position in the data: which
epoch, and how many of its batches the loop has received.  Batches that workers have only prefetched do not count.
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
"""How many of its own files a `Checkpoint` leaves on the local disk: the newest, and the one still being uploaded."""


class Stateful(Protocol):
    """Anything with a state: modules, optimizers, schedulers, scalers, loaders, the user's own objects."""

    def state_dict(self) -> Any:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Take the state."""
        ...


class Position(NamedTuple):
    """Where training begins: `step` steps are complete, `epoch` is the one to begin or to go on with."""

    epoch: int
    step: int


class Checkpoint:
    """Saves and restores the state of a training loop.

    With several ranks the first one's file has the objects' states, every other rank's only what is its own: its random
    generators and its position in the data.  With `sharded` each rank saves its own objects as well.

    Args:
        folder: where the files are made; inside the session's folder if not given, else in `checkpoints`.
        sharded: whether the objects' states differ between ranks.
        objects: by name, everything with `state_dict` and `load_state_dict`; None is left out.
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
        """Return a loader whose position is part of the checkpoint.

        Args:
            source: a `DataLoader`, or a dataset to make one of with `options`.
            seed: of the shuffling.
            options: `DataLoader`'s own.

        Raises:
            ValueError: an iterable dataset, which has no positions.
        """
        loader = Loader(source, seed=seed, **options)
        self._loaders[f"loader-{len(self._loaders)}"] = loader
        return loader

    def resume(self) -> Position:
        """Take the state of the restored checkpoint, if there is one; return where training begins.

        Raises:
            ValueError: the checkpoint is of another kind, of other objects, or of another number of ranks.
        """
        path = windfall.last()
        rank, world_size = _rank_and_world_size()
        if world_size > 1 and windfall.context().rank != rank:
            raise ValueError(
                f"torch.distributed says that this is rank {rank}, the environment says {windfall.context().rank}: "
                "start the script with torchrun, or set RANK and LOCAL_WORLD_SIZE before the first call of windfall"
            )
        if path is None:
            return Position(self._epoch(), 0)
        own = _read(path)
        if own["world_size"] != world_size or own["rank"] != rank:
            raise ValueError(
                f"{path} is the part of rank {own['rank']} of {own['world_size']}, this is rank {rank} of {world_size}: "
                f"start the script with {own['world_size']} ranks"
            )
        shared = own if own["objects"] is not None else _read(os.environ[environment.CHECKPOINT])
        _load_all(self._objects, shared["objects"], path)
        _load_all(self._loaders, own["loaders"], path)
        set_random_state(own["random"])
        return Position(self._epoch(), own["step"])

    def step(self, step: int | None = None) -> bool:
        """End a step and save if that is asked for; return whether it was.

        Args:
            step: how many steps are complete since the run began; counted by one if not given.
        """
        asked = windfall.step(step)
        if asked:
            self.save()
        return asked

    def save(self) -> None:
        """Save now and hand the file over.

        A file that cannot be written is a warning, not an error: training goes on, and the hand-over of a file that is
        not there keeps this checkpoint from being committed.
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
            warnings.warn(f"the checkpoint {path} could not be written: {error}", RuntimeWarning, stacklevel=2)
        windfall.backup(path)
        self._files.append(path)
        for old in self._files[:-KEPT_FILES]:
            _remove(old)
        del self._files[:-KEPT_FILES]

    def _epoch(self) -> int:
        return max((loader.epoch for loader in self._loaders.values() if isinstance(loader, Loader)), default=0)


class Loader:
    """A data loader that can stop after any batch and go on there: each sample once per epoch over any number of resumes.

    The order of an epoch depends on the seed and the epoch alone.  Beginning to iterate begins the next epoch, except
    for the first time and after `load_state_dict`, where it goes on at the position.  With workers each batch is made
    under a seed of its own, so that random augmentation does not depend on which worker made it, nor on resumes.
    Workers do not die of a SIGTERM that is sent to every process of the machine: the last save needs their batches.

    Attributes:
        epoch: the epoch under way, or the first to come.
        position: how many of its batches have been received.
    """

    def __init__(self, source: Any, *, seed: int = 0, **options: Any) -> None:
        loader = source if isinstance(source, DataLoader) else DataLoader(source, **options)
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                f"{type(loader.dataset).__name__} is an iterable dataset, which has no positions to go on from: "
                "give the checkpoint an object of your own with state_dict and load_state_dict"
            )
        self.epoch = 0
        self.position = 0
        self._seed = seed
        self._source = loader
        self._order = _Order()
        self._generator = torch.Generator()
        self._inner = self._rebuilt(loader)
        self._begun = False

    def __len__(self) -> int:
        return len(_sampler_of(self._source))

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            self.epoch += 1
            self.position = 0
        self._begun = True
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
        """Go on at a position.

        Raises:
            ValueError: the epoch was under way and has another number of batches now.
        """
        if state["batches"] != len(self) and 0 < state["position"] < state["batches"]:
            raise ValueError(
                f"the checkpoint was made within an epoch of {state['batches']} batches, the loader now has {len(self)}: "
                "restore the data and the batch size, or start a new run"
            )
        self.epoch, self.position, self._seed = state["epoch"], state["position"], state["seed"]
        self._begun = False

    def _rebuilt(self, loader: Any) -> Any:
        """Return the user's loader with an order of ours: everything else stays as it was asked for."""
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
        """Return a seed for batch `number` of this epoch, different for every seed, epoch and number in any real run."""
        digest = hashlib.blake2b(f"{self._seed}/{self.epoch}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def _drawn(self) -> list[Any]:
        """Let the user's own sampler draw this epoch's order under this epoch's seed."""
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
    """A `worker_init_fn` after which SIGTERM no longer ends the worker, unless its own parent sent it."""

    def __init__(self, then: Callable[[int], None] | None = None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """Shield this worker, then do what the user's own function does."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey_the_parent_alone, daemon=True).start()
        if self._then is not None:
            self._then(worker)


def shield_workers(loader: Any) -> None:
    """Let the workers of a `DataLoader` that somebody else iterates outlive a SIGTERM to every process.

    Each worker shields itself once it runs; a signal in the instant before still ends it, as it does not with `Loader`.
    """
    for one in (loader, getattr(loader, "base_dataloader", None)):  # accelerate's loaders hold the one that iterates
        if isinstance(one, DataLoader) and one.num_workers and not isinstance(one.worker_init_fn, ShieldedWorker):
            one.worker_init_fn = ShieldedWorker(one.worker_init_fn)


def random_state(*, cuda: bool = True) -> dict[str, Any]:
    """Return the states of the random generators: Python's, numpy's if it is loaded, torch's, CUDA's if it is in use."""
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)  # plain numbers: Lightning loads nothing else
    if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the random generators back into a state of `random_state`."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


class _Order:
    """The batches of an epoch that are still to come, as a sampler."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries)


class _SeededData:
    """The user's dataset in a worker; an index comes with the seed under which to make it."""

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
    """Seed Python's, numpy's and torch's generators; not CUDA's, which `torch.manual_seed` would."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


def _sampler_of(loader: Any) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


@contextmanager
def _sigterm_waits(needed: bool) -> Iterator[None]:
    """Hold SIGTERM back while workers start: they inherit the mask, and the signal reaches this process afterwards."""
    if not needed:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey_the_parent_alone() -> None:
    """End the worker when its parent terminates it, so that a blocked signal does not hang the script's exit."""
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
        raise ValueError(f"{path} holds {sorted(states)}, the script gives {sorted(objects)}: give the same names")
    for name, thing in objects.items():
        thing.load_state_dict(states[name])


def _read(path: str) -> dict[str, Any]:
    # The states of the user's own objects may be of any class; the file is one that this run wrote, and verified.
    state = torch.load(path, map_location="cpu", weights_only=False)
    if not isinstance(state, dict) or state.get("windfall") != FORMAT_VERSION:
        raise ValueError(
            f"{path} was not made by this version of windfall.sdk.torch.Checkpoint: load it as it was saved"
        )
    return state


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
