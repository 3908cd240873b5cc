"""What an elastic training was for, as a file: parameters and buffers of its newest checkpoint, no states of optimizers.

The file is in the format of safetensors: 8 bytes with the length of a JSON header, the header, then the values of all tensors
without gaps.  Names are those of the `state_dict` of an `nn.Sequential` of the layers; of a wrapped script, of its model.
Nothing here needs torch, so that any machine can fetch a model.

Source: https://github.com/huggingface/safetensors, format.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from windfall.errors import LogDamaged, Misuse
from windfall.ports import ObjectStore
from windfall.runtimes.shape_store import load_layer, newest_checkpoint, stored_step, terms_of
from windfall.structs import Struct
from windfall.wire.shape_files import StoredStep

FILE = "model.safetensors"
TRIES = 3
"""How often a checkpoint is looked for: while it is read, two newer ones may take its place."""
KINDS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
        "int64": ("I64", 8), "int32": ("I32", 4), "int16": ("I16", 2), "int8": ("I8", 1), "uint8": ("U8", 1),
        "uint16": ("U16", 2), "uint32": ("U32", 4), "uint64": ("U64", 8), "bool": ("BOOL", 1), "complex64": ("C64", 8),
        "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1),
    }
)  # fmt: skip
"""Name in safetensors, and bytes of a number, by torch's name."""
_WORD = 8
_KEPT = ("parameter", "buffer")


class ShapeProduct(Struct, frozen=True):
    """A file with a trained model.

    Attributes:
        step: after which the values are those of the model.
        tensors: how many there are.
        size_bytes: of the file.
    """

    step: int
    tensors: int
    size_bytes: int


class PackedTensor(NamedTuple):
    """A tensor of a layer's packed state.

    Attributes:
        name: of the tensor: `parameter/weight`.
        kind: of its numbers, as torch calls it.
        shape: of the tensor.
        data: its values.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    data: memoryview


def newest_stored(objects: ObjectStore) -> StoredStep | None:
    """Return the newest whole checkpoint; None if there is none.

    Raises:
        StoreError: the store cannot be reached.
    """
    step = newest_checkpoint(objects)
    return stored_step(objects, step) if step else None


def prefix_of(terms: Mapping[str, object], layer: int) -> str:
    """Return what stands before the names of a layer's tensors: a wrapped model is one layer, and its names are the model's."""
    return f"{layer}." if "micro_batch" in terms else ""


def terms_of_stored(objects: ObjectStore, stored: StoredStep) -> Mapping[str, object]:
    """Return the terms of the training that wrote a checkpoint.

    Raises:
        LogDamaged: they are not there, or damaged.
        StoreError: the store cannot be reached.
    """
    data = terms_of(objects, stored)
    try:
        terms = json.loads(data or b"")
        if int(terms["layers"]) > 0:
            return dict(terms)
    except (ValueError, KeyError, TypeError):
        pass
    raise LogDamaged(f"the checkpoint of step {stored.step} does not say how many layers it has")


def write_product(objects: ObjectStore, folder: Path) -> ShapeProduct | None:
    """Write the newest checkpoint's model into a folder, as a whole, over no other file; None if there is no checkpoint.

    Raises:
        Misuse: there is a file of that name, or a tensor that such a file cannot have.
        LogDamaged: the checkpoint is not whole.
        StoreError: the store cannot be reached.
    """
    if os.path.lexists(folder / FILE):
        raise Misuse(f"{folder / FILE} already exists: choose another folder")
    for last in (False,) * (TRIES - 1) + (True,):
        stored = newest_stored(objects)
        if stored is None:
            return None
        try:
            return _written(objects, stored, folder)
        except LogDamaged:
            if last or newest_stored(objects) == stored:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _written(objects: ObjectStore, stored: StoredStep, folder: Path) -> ShapeProduct:
    terms = terms_of_stored(objects, stored)
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(stored.step)}}
    place = 0
    draft = folder / f".windfall-get-{os.getpid()}"
    try:
        # One layer at a time: a model need not fit into this machine's memory.
        with tempfile.TemporaryFile(dir=folder) as values, open(draft, "wb") as out:
            for layer in range(int(str(terms["layers"]))):
                for tensor in packed_tensors(load_layer(objects, stored, layer)):
                    sort, _, name = tensor.name.partition("/")
                    if sort not in _KEPT:
                        continue
                    if tensor.kind not in KINDS:
                        raise Misuse(
                            f"layer {layer} has {name} of type {tensor.kind}, which a safetensors file cannot have: load the "
                            "run by its URL, with windfall.elastic.load"
                        )
                    end = place + len(tensor.data)
                    header[f"{prefix_of(terms, layer)}{name}"] = {
                        "dtype": KINDS[tensor.kind][0], "shape": list(tensor.shape), "data_offsets": [place, end],
                    }  # fmt: skip
                    values.write(tensor.data)
                    place = end
            head = json.dumps(header, separators=(",", ":")).encode()
            head += b" " * (-len(head) % _WORD)
            out.write(len(head).to_bytes(_WORD, "little") + head)
            values.seek(0)
            shutil.copyfileobj(values, out)
        os.rename(draft, folder / FILE)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
    return ShapeProduct(stored.step, len(header) - 1, os.path.getsize(folder / FILE))


def packed_tensors(data: bytes) -> Iterator[PackedTensor]:
    """Yield the tensors of a layer's state, as `shape_states.packed` wrote it.

    Raises:
        LogDamaged: it is damaged.
    """
    view = memoryview(data)
    try:
        place = _WORD + int.from_bytes(view[:_WORD], "little")
        for name, (kind, shape) in json.loads(bytes(view[_WORD:place]))["tensors"].items():
            # A type that is not known here is one of those that are left out, or refused.
            size = math.prod(shape) * KINDS.get(kind, ("", 1))[1]
            if place + size > len(view):
                raise ValueError("too short")
            yield PackedTensor(name, kind, tuple(shape), view[place : place + size])
            place += size + -size % _WORD
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"a layer of the checkpoint is damaged: {error}") from None
