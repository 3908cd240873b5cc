"""The log of layouts, the status and the checkpoints of a parameter server in tiers, in the run's store."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import numpy as np

from windfall.errors import LogDamaged
from windfall.ports import ObjectStore
from windfall.runtimes.parameter_partition import Values
from windfall.runtimes.tier_pace import TierPace, through_outages
from windfall.terms import WallTime
from windfall.tier_layout import ServerLayout, StoredClock
from windfall.tier_status import TierStatus
from windfall.wire import tier_files


class ObjectTierStore:
    """`TierStore` on a run's store; any call may raise a `StoreError`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def newest_layout(self, since: ServerLayout | None = None) -> ServerLayout | None:
        """Return the newest layout; None if there is none yet.

        Args:
            since: one that is known, from which to look on.

        Raises:
            NewerFormat, LogDamaged: the log cannot be read.
        """
        newest = since
        while True:
            version = 1 if newest is None else newest.version + 1
            data = self._store.get(tier_files.layout_key(version))
            if data is None:
                return newest
            newest = tier_files.layout_from_bytes(data)

    def write_layout(self, layout: ServerLayout) -> bool:
        """Append a layout; return whether it is there, and this one."""
        key, data = tier_files.layout_key(layout.version), tier_files.layout_to_bytes(layout)
        # If an answer is lost, the record is there already, with the nonce of the one that wrote it.
        return self._store.create(key, data) or self._store.get(key) == data

    def write_status(self, status: TierStatus) -> None:
        """Write the status over the last one."""
        self._store.put(tier_files.STATUS_KEY, tier_files.status_to_bytes(status))

    def status(self) -> TierStatus | None:
        """Return the newest status; None if there is none yet.

        Raises:
            NewerFormat, LogDamaged: it cannot be read.
        """
        data = self._store.get(tier_files.STATUS_KEY)
        if data is None:
            return None
        try:
            return tier_files.status_from_bytes(data)
        except ValueError as error:
            raise LogDamaged(f"{tier_files.STATUS_KEY} cannot be read: {error}") from None

    def load(self, part: int, stored: StoredClock) -> Values:
        """Return a part of a checkpoint.

        Raises:
            LogDamaged: it is not there, or cannot be read.
        """
        key = tier_files.checkpoint_part_key(part, stored)
        data = self._store.get(key)
        if data is None:
            raise LogDamaged(f"the log names a checkpoint at clock {stored.clock}, and {key} is not there")
        try:
            values: Values = np.load(io.BytesIO(data), allow_pickle=False)
        except ValueError as error:
            raise LogDamaged(f"{key} cannot be read: {error}") from None
        return values

    def save(self, part: int, stored: StoredClock, values: Values) -> None:
        """Write a part of a checkpoint."""
        file = io.BytesIO()
        np.save(file, values, allow_pickle=False)
        self._store.put(tier_files.checkpoint_part_key(part, stored), file.getvalue())


class StoredLog:
    """`CoordinatorLog` in a run's store.

    Args:
        store: of the run.
        pace: of calls that fail.
        now: returns the time.
    """

    def __init__(self, store: ObjectTierStore, pace: TierPace, now: Callable[[], WallTime]) -> None:
        self._store, self._pace, self.now = store, pace, now

    async def write(self, layout: ServerLayout) -> bool:
        """Append a layout, once the store can be reached."""
        # What was written though its answer was lost is found again, so the same layout is written until it is known.
        return await through_outages(lambda: asyncio.to_thread(self._store.write_layout, layout), self._pace)

    async def newest(self, since: ServerLayout) -> ServerLayout | None:
        """Return the newest layout."""
        return await asyncio.to_thread(self._store.newest_layout, since)

    async def write_status(self, status: TierStatus) -> None:
        """Write the status."""
        await asyncio.to_thread(self._store.write_status, status)
