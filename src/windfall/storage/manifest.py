"""The manifest of a checkpoint as bytes."""

from __future__ import annotations

import json

import xxhash

from windfall import codec
from windfall.errors import CheckpointDamaged, NewerFormat
from windfall.terms import Checkpoint

VERSION = 2
"""Of the manifest's format."""


def digest_of(data: bytes) -> str:
    """Return the digest of bytes as the log and the manifests write it: `xxh3-128:<hex>`."""
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


def to_bytes(point: Checkpoint) -> bytes:
    """Write a manifest as JSON, version first."""
    return json.dumps({"v": VERSION, "checkpoint": codec.encode(point)}, separators=(",", ":")).encode()


def from_bytes(data: bytes, key: str) -> Checkpoint:
    """Read a manifest back.

    Args:
        data: the object's content.
        key: where it was found, for the message.

    Raises:
        NewerFormat: a newer Windfall wrote it.
        CheckpointDamaged: it is not a manifest.
    """
    try:
        parsed = json.loads(data)
        version = parsed["v"]
        if isinstance(version, int) and version > VERSION:
            raise NewerFormat(
                f"{key} has version {version}, this Windfall reads up to {VERSION}: upgrade Windfall here"
            )
        point = codec.decode(parsed["checkpoint"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(f"{key} is not a manifest ({error})") from error
    if not isinstance(point, Checkpoint):
        raise CheckpointDamaged(f"{key} is not a manifest")
    return point
