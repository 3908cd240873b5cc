"""A trained model back in torch: from the file that `windfall get` writes, or from the run of an elastic training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from windfall.errors import LogDamaged, Misuse
from windfall.ports import ObjectStore
from windfall.runtimes.shape_product import KINDS, newest_stored, prefix_of, terms_of_stored
from windfall.runtimes.shape_states import unpacked
from windfall.runtimes.shape_store import load_layer

_WORD = 8
_NAMED = 3
"""Names that a message lists."""


def read_file(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the step of a file, and its tensors by name.

    Raises:
        Misuse: it cannot be read, or is no such file.
    """
    kinds = {name: getattr(torch, kind) for kind, (name, _) in KINDS.items() if hasattr(torch, kind)}
    try:
        data = bytearray(path.read_bytes())
        begin = _WORD + int.from_bytes(data[:_WORD], "little")
        header = json.loads(data[_WORD:begin])
        step, found = int(header.pop("__metadata__")["step"]), {}
        for name, one in header.items():
            dtype = kinds[one["dtype"]]
            first, end = one["data_offsets"]
            own = data[begin + first : begin + end]
            found[name] = (torch.frombuffer(own, dtype=dtype) if own else torch.empty(0, dtype=dtype)).reshape(
                one["shape"]
            )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise Misuse(f"{path} cannot be read as a trained model: {error}; `windfall get` writes one") from None
    return step, found


def read_run(objects: ObjectStore, place: str) -> tuple[int, dict[str, Any]]:
    """Return the step of a run's newest checkpoint, and the model's tensors by name.

    Raises:
        Misuse: there is none.
        LogDamaged: it is damaged.
        StoreError: the store cannot be reached.
    """
    stored = newest_stored(objects)
    if stored is None:
        raise Misuse(
            f"{place} has no checkpoint of an elastic training: give the URL of its run, or what `windfall get` wrote"
        )
    terms, found = terms_of_stored(objects, stored), {}
    for number in range(int(str(terms["layers"]))):
        data = torch.frombuffer(bytearray(load_layer(objects, stored, number)), dtype=torch.uint8)
        try:
            state = unpacked(data)
        except ValueError as error:
            raise LogDamaged(f"layer {number} of the checkpoint of step {stored.step} is damaged: {error}") from None
        for name, value in state.tensors.items():
            kind, _, own = name.partition("/")
            if kind in ("parameter", "buffer"):
                found[f"{prefix_of(terms, number)}{own}"] = value
    return stored.step, found


def install_tensors(model: Any, tensors: Mapping[str, Any], place: str) -> None:
    """Give a model the values of all of its parameters and buffers; nothing is changed unless all fit.

    Args:
        model: a module, or a list of layers.
        tensors: by name.
        place: where they are from, for messages.

    Raises:
        Misuse: the model has other tensors.
    """
    own = dict(_named(model))
    for lacks, names, others in (("the model", tensors, own), (place, own, tensors)):
        missing = sorted(set(names) - set(others))
        if missing:
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise Misuse(
                f"{lacks} has no {', '.join(missing[:_NAMED])}{more}: build the same layers as in the script that was trained"
            )
    for name, value in own.items():
        if value.shape != tensors[name].shape:
            raise Misuse(
                f"{name} of the model is {tuple(value.shape)}, and {tuple(tensors[name].shape)} in {place}: build the same "
                "layers as in the script that was trained"
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])


def _named(model: Any) -> Iterator[tuple[str, Any]]:
    listed = isinstance(model, (list, tuple))
    for number, module in enumerate(model if listed else [model]):
        if not isinstance(module, torch.nn.Module):
            raise Misuse(f"the model is {type(module).__name__}: give an nn.Module, or the list of layers")
        prefix = f"{number}." if listed else ""
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            yield f"{prefix}{name}", value
