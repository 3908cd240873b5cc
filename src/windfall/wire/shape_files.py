"""Keys of all objects of an elastic training, relative to the URL of its run.

shapes/checkpoints/00000012-0003/layer-0004  the state of a layer after step 12, saved in term 3
shapes/checkpoints/00000012-0003/whole       JSON of the training's terms, written once all layers are there
"""

from __future__ import annotations

import re
from typing import NamedTuple

CHECKPOINTS = "shapes/checkpoints/"
_KEY = re.compile(rf"{CHECKPOINTS}(\d+)-(\d+)/(layer-\d+|whole)")


class StoredStep(NamedTuple):
    """A checkpoint.

    Attributes:
        step: after which it is the state.
        term: in which it was saved: what two terms have saved of one step is never mixed.
    """

    step: int
    term: int


def checkpoint_prefix(stored: StoredStep) -> str:
    """Return how the keys of a checkpoint begin."""
    return f"{CHECKPOINTS}{stored.step:08d}-{stored.term:04d}/"


def layer_key(stored: StoredStep, layer: int) -> str:
    """Return the key of a layer's state."""
    return f"{checkpoint_prefix(stored)}layer-{layer:04d}"


def whole_key(stored: StoredStep) -> str:
    """Return the key that says that a checkpoint is whole."""
    return f"{checkpoint_prefix(stored)}whole"


def stored_step_of(key: str) -> StoredStep | None:
    """Return the checkpoint to which a key belongs; None for another key."""
    found = _KEY.fullmatch(key)
    return None if found is None else StoredStep(int(found[1]), int(found[2]))


def says_whole(key: str) -> bool:
    """Return whether a checkpoint's key says that it is whole."""
    return key.endswith("/whole")
