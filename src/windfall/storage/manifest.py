"""The manifest of a checkpoint as bytes."""

from __future__ import annotations

import xxhash

from windfall import codec, stored_forms
from windfall.errors import CheckpointDamaged
from windfall.storage import store_checks
from windfall.terms import Checkpoint

VERSION = stored_forms.MANIFEST.version
"""Version of the manifest's format."""


def digest_of(data: bytes) -> str:
    """Return the digest of bytes in the form used by log and manifests: `xxh3-128:<hex>`."""
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Write a manifest as JSON, version first."""
    return codec.encode_document(VERSION, "checkpoint", checkpoint)


def from_bytes(data: bytes, key: str) -> Checkpoint:
    """Read a manifest back.

    Args:
        data: the object's content.
        key: its key, for the error message.

    Raises:
        NewerFormat, OlderFormat: it was written by another version of Windfall.
        CheckpointDamaged: it is not a manifest.
    """
    try:
        form = stored_forms.MANIFEST
        checkpoint: Checkpoint = codec.decode_stored(data, "checkpoint", Checkpoint, form=form, what=key)
    except ValueError as error:
        raise CheckpointDamaged(f"{key} is not a manifest ({error})") from error
    wrong = store_checks.wrong_with_checkpoint(checkpoint)
    if wrong is not None:
        raise CheckpointDamaged(f"{key} is not a valid manifest: {wrong}")
    return checkpoint
