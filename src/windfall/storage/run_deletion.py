"""Deletes a run: every object that belongs to it, in an order that a crash may cut anywhere.

A note of the deletion is written first and deleted last.  Where it stands without a marker, the deletion continues without
another look at whether the run has ended: it had, and no machine can have taken it since.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from windfall.ports import Steps
from windfall.storage.store_operations import delete_all, get, get_all, keys_under, pause, put
from windfall.terms import Seconds
from windfall.wire.bag_layout import RUNNERS, SUBMITTED
from windfall.wire.run_layout import CONTROLLER, DELETING, FILES, FOLDERS, MACHINES
from windfall.wire.shape_records import STATUS_KEY as SHAPES_STATUS_KEY
from windfall.wire.tier_files import STATUS_KEY

LISTEN_S = Seconds(30.0)
"""A controller writes its heartbeat, and a machine its report, several times in this time [s]."""


def belongs(key: str) -> bool:
    """Return whether an object under a run's URL belongs to the run."""
    return key in FILES or key.startswith(FOLDERS)


def begun_deletion() -> Steps[str | None]:
    """Return the name of the run whose deletion has begun here; None if none has."""
    data = yield from get(DELETING)
    if data is None:
        return None
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return str(found["name"]) if isinstance(found, dict) and "name" in found else None


def begin_deletion(name: str) -> Steps[None]:
    """Note that a run is being deleted.

    Args:
        name: of the run, for the one who finishes this.
    """
    yield from put(DELETING, json.dumps({"version": 1, "name": name}).encode())


def is_silent(duration_s: Seconds) -> Steps[bool]:
    """Return whether nothing of a job changes for a while: neither its controller's heartbeat, nor a machine's report.

    Args:
        duration_s: for how long this looks [s].
    """
    before = yield from _signs_of_life()
    yield from pause(duration_s)
    return before == (yield from _signs_of_life())


def _signs_of_life() -> Steps[dict[str, bytes | None]]:
    keys = [CONTROLLER, STATUS_KEY, SHAPES_STATUS_KEY]
    for folder in (MACHINES, RUNNERS):
        keys += yield from keys_under(folder)
    return dict(zip(keys, (yield from get_all(keys)), strict=True))


def forget_bag(run: str) -> Steps[int]:
    """Delete what stands beside the runs of a bag, so that no later bag looks for its items; return how many objects.

    Args:
        run: its folder's name.
    """
    keys = [key for key in (yield from keys_under(SUBMITTED)) if key.endswith(f"/{run}")]
    yield from delete_all(keys)
    return len(keys)


def delete_objects(keys: Sequence[str]) -> Steps[None]:
    """Delete a run's objects.

    The job comes first, so that its controller sees a deleted run; then the marker, so that no machine resumes a half-deleted
    one; the log last but for the note.
    """
    for file in FILES:
        yield from delete_all([key for key in keys if key == file])
    for folder in FOLDERS:
        yield from delete_all([key for key in keys if key.startswith(folder)])
    yield from delete_all([DELETING])
