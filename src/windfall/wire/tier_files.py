"""Keys of all objects of a parameter server in tiers, relative to the URL of its run, and their documents.

tiers/log/00000001 ...                 the create-only sequence of layouts
tiers/status                           what training is doing; each takes the place of the last
tiers/history                          training at each checkpoint that was looked at; each takes the place of the last
tiers/checkpoints/<term>-<clock>/<part>  a part of a checkpoint: values, as a NumPy array file; it counts if a layout names it
tiers/stop                             the newest coordinator that is asked to stop; overwritten
tiers/stopped                          the newest one that has; overwritten
tiers/failures/00000001 ...            a failure of the user's program, each
tiers/product/files/<name>             what training was for
tiers/product/done                     their names, written once all are there
"""

from __future__ import annotations

import re

from windfall import codec, tier_status
from windfall.tier_layout import VERSION, ServerLayout, StoredClock, TierFailure, TierProduct
from windfall.tier_status import TierPoint, TierStatus

STATUS_KEY, HISTORY_KEY, CHECKPOINTS = "tiers/status", "tiers/history", "tiers/checkpoints/"
_PART_KEY = re.compile(rf"{CHECKPOINTS}(\d+)-(\d+)/\d+")
STOP, STOPPED, PRODUCT = "tiers/stop", "tiers/stopped", "tiers/product/done"


def layout_key(version: int) -> str:
    """Return the key of a layout."""
    return f"tiers/log/{version:08d}"


def checkpoint_part_key(part: int, stored: StoredClock) -> str:
    """Return the key of a part of a checkpoint."""
    return f"{CHECKPOINTS}{stored.term}-{stored.clock}/{part:04d}"


def stored_clock_of(key: str) -> StoredClock | None:
    """Return of which checkpoint a key is a part; None for another key."""
    found = _PART_KEY.fullmatch(key)
    return None if found is None else StoredClock(int(found[1]), int(found[2]))


def history_to_bytes(points: tuple[TierPoint, ...]) -> bytes:
    """Write training at its checkpoints."""
    return codec.encode_document(tier_status.VERSION, "history", points)


def history_from_bytes(data: bytes) -> tuple[TierPoint, ...]:
    """Read training at its checkpoints; raises as `codec.decode_document`."""
    points: tuple[TierPoint, ...] = codec.decode_document(
        data, "history", tuple[TierPoint, ...], version=tier_status.VERSION, what="a parameter server's history"
    )
    return points


def product_file_key(name: str) -> str:
    """Return the key of a file of the product."""
    return f"tiers/product/files/{name}"


def coordinator_to_bytes(number: int) -> bytes:
    """Write the number of a coordinator."""
    return codec.encode_document(VERSION, "coordinator", number)


def coordinator_from_bytes(data: bytes) -> int:
    """Read the number of a coordinator; raises as `codec.decode_document`."""
    number: int = codec.decode_document(data, "coordinator", int, version=VERSION, what="a request to stop training")
    return number


def failure_key(number: int) -> str:
    """Return the key of a failure, from 1."""
    return f"tiers/failures/{number:08d}"


def failure_to_bytes(failure: TierFailure) -> bytes:
    """Write a failure."""
    return codec.encode_document(VERSION, "failure", failure)


def failure_from_bytes(data: bytes) -> TierFailure:
    """Read a failure; raises as `codec.decode_document`."""
    failure: TierFailure = codec.decode_document(
        data, "failure", TierFailure, version=VERSION, what="a failure of a parameter server's program"
    )
    return failure


def product_to_bytes(product: TierProduct) -> bytes:
    """Write a product."""
    return codec.encode_document(VERSION, "product", product)


def product_from_bytes(data: bytes) -> TierProduct:
    """Read a product; raises as `codec.decode_document`."""
    product: TierProduct = codec.decode_document(
        data, "product", TierProduct, version=VERSION, what="a parameter server's product"
    )
    return product


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
