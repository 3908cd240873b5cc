"""The manifest of a recovery point as bytes."""

from __future__ import annotations

import json

import xxhash

from windfall import codec
from windfall.errors import NewerFormat, PointDamaged
from windfall.terms import RecoveryPoint

VERSION = 1
"""Of the manifest's format."""


def digest_of(data: bytes) -> str:
    """Return the digest of bytes as the log and the manifests write it: `xxh3-128:<hex>`."""
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


def to_bytes(point: RecoveryPoint) -> bytes:
    """Write a manifest as JSON, version first."""
    return json.dumps({"v": VERSION, "point": codec.encode(point)}, separators=(",", ":")).encode()


def from_bytes(data: bytes, key: str) -> RecoveryPoint:
    """Read a manifest back.

    Args:
        data: the object's content.
        key: where it was found, for the message.

    Raises:
        NewerFormat: a newer Windfall wrote it.
        PointDamaged: it is not a manifest.
    """
    try:
        parsed = json.loads(data)
        version = parsed["v"]
        if isinstance(version, int) and version > VERSION:
            raise NewerFormat(
                f"{key} has version {version}, this Windfall reads up to {VERSION}: upgrade Windfall here"
            )
        point = codec.decode(parsed["point"])
    except (ValueError, KeyError, TypeError) as error:
        raise PointDamaged(f"{key} is not a manifest ({error})") from error
    if not isinstance(point, RecoveryPoint):
        raise PointDamaged(f"{key} is not a manifest")
    return point
