"""The log and the checkpoints of a parameter server in tiers, in the run's store."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from windfall.errors import LogDamaged, StoreError
from windfall.runtimes.parameter_partition import Values
from windfall.runtimes.tier_log import TierLog
from windfall.runtimes.tier_pace import TierPace, through_outages
from windfall.terms import WallTime
from windfall.tier_layout import ServerLayout, StoredClock
from windfall.tier_status import TierStatus
from windfall.wire import tier_files


class ObjectTierStore(TierLog):
    """`TierStore` on a run's store; any call may raise a `StoreError`."""

    def delete_checkpoints_before(self, stored: StoredClock) -> None:
        """Delete the checkpoints that are older than one that a layout has named."""
        for key in self._store.list(tier_files.CHECKPOINTS):
            found = tier_files.stored_clock_of(key)
            if found is not None and found < stored:
                self._store.delete(key)

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
        checkpoint: the newest.
    """

    def __init__(
        self, store: ObjectTierStore, pace: TierPace, now: Callable[[], WallTime], checkpoint: StoredClock
    ) -> None:
        self._store, self._pace, self.now, self._checkpoint = store, pace, now, checkpoint

    async def write(self, layout: ServerLayout) -> bool:
        """Append a layout, once the store can be reached."""
        # What was written though its answer was lost is found again, so the same layout is written until it is known.
        written = await through_outages(lambda: asyncio.to_thread(self._store.write_layout, layout), self._pace)
        if written and layout.checkpoint != self._checkpoint:
            # The two newest remain: a machine may still be reading the last one.
            with suppress(StoreError):
                await asyncio.to_thread(self._store.delete_checkpoints_before, self._checkpoint)
            self._checkpoint = layout.checkpoint
        return written

    async def newest(self, since: ServerLayout) -> ServerLayout | None:
        """Return the newest layout."""
        return await asyncio.to_thread(self._store.newest_layout, since)

    async def write_status(self, status: TierStatus) -> None:
        """Write the status."""
        await asyncio.to_thread(self._store.write_status, status)
