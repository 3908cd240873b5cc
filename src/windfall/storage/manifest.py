"""The manifest of a checkpoint as bytes."""

from __future__ import annotations

import xxhash

from windfall import codec
from windfall.errors import CheckpointDamaged
from windfall.storage import checked
from windfall.terms import Checkpoint

VERSION = 2
"""Of the manifest's format."""


def digest_of(data: bytes) -> str:
    """Return the digest of bytes as the log and the manifests write it: `xxh3-128:<hex>`."""
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


def to_bytes(point: Checkpoint) -> bytes:
    """Write a manifest as JSON, version first."""
    return codec.sealed(VERSION, "checkpoint", point)


def from_bytes(data: bytes, key: str) -> Checkpoint:
    """Read a manifest back.

    Args:
        data: the object's content.
        key: where it was found, for the message.

    Raises:
        NewerFormat, OlderFormat: another Windfall wrote it.
        CheckpointDamaged: it is not a manifest.
    """
    try:
        point: Checkpoint = codec.opened(data, "checkpoint", Checkpoint, version=VERSION, what=key)
    except ValueError as error:
        raise CheckpointDamaged(f"{key} is not a manifest ({error})") from error
    wrong = checked.wrong_with_checkpoint(point)
    if wrong is not None:
        raise CheckpointDamaged(f"{key} is no manifest of ours: {wrong}")
    return point
