"""Keys of all objects of a parameter server in tiers, relative to the URL of its run, and their documents.

tiers/log/00000001 ...                 the create-only sequence of layouts
tiers/status                           what training is doing; each takes the place of the last
tiers/checkpoints/<term>-<clock>/<part>  a part of a checkpoint: values, as a NumPy array file; it counts if a layout names it
"""

from __future__ import annotations

from windfall import codec, tier_status
from windfall.tier_layout import VERSION, ServerLayout, StoredClock
from windfall.tier_status import TierStatus

STATUS_KEY = "tiers/status"


def layout_key(version: int) -> str:
    """Return the key of a layout."""
    return f"tiers/log/{version:08d}"


def checkpoint_part_key(part: int, stored: StoredClock) -> str:
    """Return the key of a part of a checkpoint."""
    return f"tiers/checkpoints/{stored.term}-{stored.clock}/{part:04d}"


def layout_to_bytes(layout: ServerLayout) -> bytes:
    """Write a layout."""
    return codec.encode_document(VERSION, "layout", layout)


def layout_from_bytes(data: bytes) -> ServerLayout:
    """Read a layout; raises as `codec.decode_document`."""
    layout: ServerLayout = codec.decode_document(
        data, "layout", ServerLayout, version=VERSION, what="a parameter server's log"
    )
    return layout


def status_to_bytes(status: TierStatus) -> bytes:
    """Write a status."""
    return codec.encode_document(tier_status.VERSION, "status", status)


def status_from_bytes(data: bytes) -> TierStatus:
    """Read a status; raises as `codec.decode_document`."""
    status: TierStatus = codec.decode_document(
        data, "status", TierStatus, version=tier_status.VERSION, what="a parameter server's status"
    )
    return status
