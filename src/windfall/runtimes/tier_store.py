"""The log and the checkpoints of a parameter server in tiers, in the run's store."""

from __future__ import annotations

import io

import numpy as np

from windfall.errors import LogDamaged
from windfall.runtimes.parameter_partition import Values
from windfall.runtimes.tier_log import TierLog
from windfall.tier_layout import StoredClock
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
