"""What a drill records of a value: enough to decide later whether, and by how much, two values differ.

A scalar is recorded as it is.  An array is recorded as a digest of its bytes, its norm and a few of its values, so a
state of gigabytes becomes kilobytes.  torch and numpy are used if the script has loaded them; the drill imports neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Record = dict[str, Any]
"""Keys: `v` a scalar; or `d` the digest and, for arrays, `t` the type, `s` the shape, `n` the norm, `x` some values;
`g` whether an optimizer trains it."""

SAMPLES = 8
"""How many values of an array are recorded."""
DEPTH_MAX = 6


def bytes_digest(*parts: Any) -> str:
    """Return a short digest of bytes and of other values' representations."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part if isinstance(part, (bytes, bytearray, memoryview)) else repr(part).encode())
    return digest.hexdigest()


def scalar(value: Any) -> Record:
    """Return the record of a number or None; infinities and NaN become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"v": str(value)}
    return {"v": value}


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Return whether a value is a numpy array of numbers."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf"


def tensor(value: Any) -> Record:
    """Return the record of a torch tensor; for a distributed tensor, of its local part."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        there = value.detach()
        there = there.to_local() if hasattr(there, "to_local") else there
        there = there.to("cpu").contiguous()
        if there.dim() == 0 and not there.is_complex():
            return scalar(there.item()) | {"g": bool(value.requires_grad)}
        flat = there.view(-1)
        raw = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
        kind = str(there.dtype).removeprefix("torch.")
        norm = float(flat.double().norm()) if flat.numel() and not there.is_complex() else 0.0
        stride = max(1, flat.numel() // SAMPLES)
        some = [] if there.is_complex() else flat[::stride][:SAMPLES].double().tolist()
    return {
        "d": bytes_digest(raw, kind),
        "t": kind,
        "s": list(there.shape),
        "n": _finite(norm),
        "x": [_finite(one) for one in some],
        "g": bool(value.requires_grad),
    }


def array(value: Any) -> Record:
    """Return the record of a numpy array."""
    numpy = sys.modules["numpy"]
    flat = numpy.ascontiguousarray(value).reshape(-1)
    stride = max(1, flat.size // SAMPLES)
    return {
        "d": bytes_digest(memoryview(flat.view(numpy.uint8)) if flat.size else b"", str(flat.dtype)),
        "t": str(value.dtype),
        "s": list(value.shape),
        "n": _finite(float(numpy.linalg.norm(flat.astype("float64")))),
        "x": [_finite(float(one)) for one in flat[::stride][:SAMPLES]],
    }


def numbers(values: Sequence[float]) -> Record:
    """Return the record of a list of numbers."""
    stride = max(1, len(values) // SAMPLES)
    return {
        "d": bytes_digest(list(values)),
        "t": "list",
        "s": [len(values)],
        "n": _finite(math.sqrt(math.fsum(float(one) ** 2 for one in values))),
        "x": [_finite(float(one)) for one in list(values)[::stride][:SAMPLES]],
    }


def content(path: str) -> str:
    """Return a digest of a file, or of all files of a folder."""
    names = [path]
    if os.path.isdir(path):
        names = sorted(os.path.join(place, name) for place, _, files in os.walk(path) for name in files)
    parts: list[object] = []
    for name in names:
        with contextlib.suppress(OSError), open(name, "rb") as file:
            parts += [os.path.relpath(name, path), file.read()]
    return bytes_digest(*parts)


def anything(value: Any) -> str:
    """Return a digest of a batch: tensors, arrays, numbers and text in lists and dicts; other objects by their type."""
    return bytes_digest(*_parts(value, 0))


def is_computed(value: Any, depth: int = 0) -> bool:
    """Return whether any tensor in lists and dicts was computed from parameters, so that it is not input data."""
    if is_tensor(value):
        return bool(value.requires_grad)
    if depth < DEPTH_MAX and isinstance(value, Mapping):
        return any(is_computed(one, depth + 1) for one in value.values())
    return depth < DEPTH_MAX and isinstance(value, (list, tuple)) and any(is_computed(one, depth + 1) for one in value)


def _parts(value: Any, depth: int) -> list[Any]:
    if is_tensor(value):
        record = tensor(value)
        return [record.get("d", record.get("v"))]
    if is_array(value):
        return [array(value)["d"]]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return [value]
    if depth < DEPTH_MAX and isinstance(value, Mapping):
        return [part for name, one in value.items() for part in (str(name), *_parts(one, depth + 1))]
    if depth < DEPTH_MAX and isinstance(value, (list, tuple)):
        return [part for one in value for part in _parts(one, depth + 1)]
    return [type(value).__name__]


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
