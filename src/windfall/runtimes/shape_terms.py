"""What all machines of an elastic training must agree on, and what a checkpoint's training must have had in common with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windfall.errors import LogDamaged, Misuse
from windfall.policies.shapes.spill_rule import SPILL_EVERY_S
from windfall.ports import ObjectStore
from windfall.runtimes.shape_store import stored_step, terms_of
from windfall.structs import Struct
from windfall.wire.shape_files import StoredStep

FIRST_VALUES = "first values of the layers"
CHECKPOINT = "the training that wrote the checkpoint"


class MemberTerms(Struct, frozen=True):
    """What all machines of a training agree on, and how it is trained.

    Attributes:
        same: by name; all machines and all checkpoints must have the same.
        steps: with which training ends.
        save_every: steps between checkpoints; 0: at the end, and whenever the backup spills its state.
        deterministic: sums do not depend on the shape.
        device: of all tensors.
        spill_every_s: least time from one spill to the next [s].
    """

    same: Mapping[str, Any]
    steps: int
    save_every: int
    deterministic: bool
    device: Any
    spill_every_s: float = SPILL_EVERY_S


def check_same(mine: Mapping[str, Any], others: Mapping[str, Any], who: str) -> None:
    """Check what must be the same everywhere.

    Raises:
        Misuse: something differs.
    """
    for name, value in mine.items():
        other = others.get(name)
        if other != value:
            raise Misuse(
                f"{name} is {value} on this machine, and {other} on {who}: run the same script with the same packages and data "
                "everywhere"
                + (", and call torch.manual_seed before you build the layers" if name == FIRST_VALUES else "")
            )


def checked_checkpoint(objects: ObjectStore, step: int, same: Mapping[str, Any]) -> StoredStep:
    """Return the checkpoint of a step, of this training.

    Args:
        objects: the run's store.
        step: after which it is the state.
        same: what must be the same everywhere, as on this machine.

    Raises:
        LogDamaged: it is not there.
        Misuse: a training with other terms wrote it.
    """
    stored = stored_step(objects, step)
    terms = terms_of(objects, stored) if stored is not None else None
    if stored is None or terms is None:
        raise LogDamaged(f"the run's store has no whole checkpoint of step {step}")
    # A checkpoint may be trained to another end, and with other packages.
    mine = {name: value for name, value in same.items() if name not in ("steps", "torch")}
    check_same(mine, json.loads(terms), CHECKPOINT)
    return stored
