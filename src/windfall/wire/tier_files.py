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
from typing import Final

from windfall import tier_status
from windfall.codec import Document
from windfall.tier_layout import VERSION, ServerLayout, StoredClock, TierFailure, TierProduct
from windfall.tier_status import TierPoint, TierStatus

STATUS_KEY, HISTORY_KEY, CHECKPOINTS = "tiers/status", "tiers/history", "tiers/checkpoints/"
_PART_KEY = re.compile(rf"{CHECKPOINTS}(\d+)-(\d+)/\d+")
STOP, STOPPED, PRODUCT = "tiers/stop", "tiers/stopped", "tiers/product/done"

HISTORY_FORM: Final = Document[tuple[TierPoint, ...]](
    "history", tuple[TierPoint, ...], tier_status.VERSION, "a parameter server's history"
)
COORDINATOR_FORM: Final = Document[int]("coordinator", int, VERSION, "a request to stop training")
FAILURE_FORM: Final = Document[TierFailure](
    "failure", TierFailure, VERSION, "a failure of a parameter server's program"
)
PRODUCT_FORM: Final = Document[TierProduct]("product", TierProduct, VERSION, "a parameter server's product")
LAYOUT_FORM: Final = Document[ServerLayout]("layout", ServerLayout, VERSION, "a parameter server's log")
STATUS_FORM: Final = Document[TierStatus]("status", TierStatus, tier_status.VERSION, "a parameter server's status")


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


def product_file_key(name: str) -> str:
    """Return the key of a file of the product."""
    return f"tiers/product/files/{name}"


def failure_key(number: int) -> str:
    """Return the key of a failure, from 1."""
    return f"tiers/failures/{number:08d}"
