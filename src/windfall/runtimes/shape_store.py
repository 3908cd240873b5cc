"""Checkpoints of an elastic training in the run's store: each layer by itself, since no machine need hold all of them."""

from __future__ import annotations

from collections.abc import Mapping

from windfall.errors import LogDamaged
from windfall.ports import ObjectStore
from windfall.wire import shape_files
from windfall.wire.shape_files import StoredStep

KEPT = 2
"""Checkpoints that are kept: a machine may still be reading the one before the newest."""


def newest_checkpoint(objects: ObjectStore) -> int:
    """Return the step of the newest whole checkpoint; 0 if there is none.

    Raises:
        StoreError: the store cannot be reached.
    """
    return max((stored.step for stored in _whole(objects.list(shape_files.CHECKPOINTS))), default=0)


def stored_step(objects: ObjectStore, step: int) -> StoredStep | None:
    """Return the whole checkpoint of a step, of the newest term; None if there is none.

    Raises:
        StoreError: the store cannot be reached.
    """
    whole = _whole(objects.list(shape_files.CHECKPOINTS))
    return max((stored for stored in whole if stored.step == step), default=None)


def save_layers(
    objects: ObjectStore, stored: StoredStep, states: Mapping[int, bytes], layers: int, terms: bytes
) -> bool:
    """Put layers of a checkpoint into the store; the machine that puts the last one marks it as whole.

    Args:
        objects: the run's store.
        stored: the checkpoint.
        states: by layer.
        layers: how many the model has.
        terms: of the training.

    Returns:
        Whether the checkpoint is whole.

    Raises:
        StoreError: the store cannot be reached.
    """
    for number, state in states.items():
        objects.put(shape_files.layer_key(stored, number), state)
    there = set(objects.list(shape_files.checkpoint_prefix(stored)))
    if not all(shape_files.layer_key(stored, number) in there for number in range(layers)):
        return False
    objects.create(shape_files.whole_key(stored), terms)
    _delete_old(objects)
    return True


def load_layer(objects: ObjectStore, stored: StoredStep, layer: int) -> bytes:
    """Return a layer's state.

    Raises:
        LogDamaged: it is not there.
        StoreError: the store cannot be reached.
    """
    data = objects.get(shape_files.layer_key(stored, layer))
    if data is None:
        raise LogDamaged(f"the checkpoint of step {stored.step} has no {shape_files.layer_key(stored, layer)}")
    return data


def terms_of(objects: ObjectStore, stored: StoredStep) -> bytes | None:
    """Return the terms of the training that wrote a whole checkpoint."""
    return objects.get(shape_files.whole_key(stored))


def _whole(keys: list[str]) -> list[StoredStep]:
    found = (shape_files.stored_step_of(key) for key in keys if shape_files.says_whole(key))
    return sorted(stored for stored in found if stored is not None)


def _delete_old(objects: ObjectStore) -> None:
    keys = objects.list(shape_files.CHECKPOINTS)
    whole = _whole(keys)
    if len(whole) <= KEPT:
        return
    oldest = whole[-KEPT]
    # The mark first: what is half deleted is not whole.
    for key in sorted(keys, key=lambda key: not shape_files.says_whole(key)):
        stored = shape_files.stored_step_of(key)
        if stored is not None and stored < oldest:
            objects.delete(key)
