"""What a parameter server has in its run's store beside its checkpoints: the log of layouts, and what machines say there."""

from __future__ import annotations

from collections.abc import Mapping

from windfall.errors import LogDamaged
from windfall.ports import ObjectStore
from windfall.tier_layout import ServerLayout, TierFailure, TierProduct
from windfall.tier_status import TierPoint, TierStatus
from windfall.wire import tier_files


class TierLog:
    """The log in a run's store; any call may raise a `StoreError`."""

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
            newest = tier_files.LAYOUT_FORM.from_bytes(data)

    def write_layout(self, layout: ServerLayout) -> bool:
        """Append a layout; return whether it is there, and this one."""
        key, data = tier_files.layout_key(layout.version), tier_files.LAYOUT_FORM.to_bytes(layout)
        # If an answer is lost, the record is there already, with the nonce of the one that wrote it.
        return self._store.create(key, data) or self._store.get(key) == data

    def ask_to_stop(self, coordinator: int) -> None:
        """Ask a coordinator, and those before it, for a checkpoint after which training rests."""
        self._store.put(tier_files.STOP, tier_files.COORDINATOR_FORM.to_bytes(coordinator))

    def stop_asked(self) -> int:
        """Return the newest coordinator that is asked to stop; 0 if none is."""
        data = self._store.get(tier_files.STOP)
        return 0 if data is None else tier_files.COORDINATOR_FORM.from_bytes(data)

    def write_stopped(self, coordinator: int) -> None:
        """Write that a coordinator has stopped."""
        self._store.put(tier_files.STOPPED, tier_files.COORDINATOR_FORM.to_bytes(coordinator))

    def stopped(self) -> int:
        """Return the newest coordinator that has stopped; 0 if none has."""
        data = self._store.get(tier_files.STOPPED)
        return 0 if data is None else tier_files.COORDINATOR_FORM.from_bytes(data)

    def write_history(self, points: tuple[TierPoint, ...]) -> None:
        """Write training at its checkpoints over what was written before."""
        self._store.put(tier_files.HISTORY_KEY, tier_files.HISTORY_FORM.to_bytes(points))

    def history(self) -> tuple[TierPoint, ...]:
        """Return training at its checkpoints, as far as they were looked at, oldest first."""
        data = self._store.get(tier_files.HISTORY_KEY)
        return () if data is None else tier_files.HISTORY_FORM.from_bytes(data)

    def write_failure(self, failure: TierFailure) -> None:
        """Append a failure of the user's program."""
        number = self.failures() + 1
        while not self._store.create(tier_files.failure_key(number), tier_files.FAILURE_FORM.to_bytes(failure)):
            number += 1

    def failures(self, since: int = 0) -> int:
        """Return how many failures there have been, at least `since`."""
        while self._store.get(tier_files.failure_key(since + 1)) is not None:
            since += 1
        return since

    def failure(self, number: int) -> TierFailure | None:
        """Return a failure, from 1; None if there were fewer."""
        data = self._store.get(tier_files.failure_key(number))
        return None if data is None else tier_files.FAILURE_FORM.from_bytes(data)

    def write_product(self, files: Mapping[str, bytes], loss: float | None) -> None:
        """Write what training was for; it counts once this has returned."""
        for name, data in files.items():
            self._store.put(tier_files.product_file_key(name), data)
        product = TierProduct({name: len(data) for name, data in files.items()}, loss)
        self._store.put(tier_files.PRODUCT, tier_files.PRODUCT_FORM.to_bytes(product))

    def product(self) -> TierProduct | None:
        """Return what training was for; None if it is not there yet."""
        data = self._store.get(tier_files.PRODUCT)
        return None if data is None else tier_files.PRODUCT_FORM.from_bytes(data)

    def product_file(self, name: str) -> bytes:
        """Return a file of the product.

        Raises:
            LogDamaged: it is not there.
        """
        key = tier_files.product_file_key(name)
        data = self._store.get(key)
        if data is None:
            raise LogDamaged(f"{tier_files.PRODUCT} names {name}, and {key} is not there")
        return data

    def write_status(self, status: TierStatus) -> None:
        """Write the status over the last one."""
        self._store.put(tier_files.STATUS_KEY, tier_files.STATUS_FORM.to_bytes(status))

    def status(self) -> TierStatus | None:
        """Return the newest status; None if there is none yet.

        Raises:
            NewerFormat, LogDamaged: it cannot be read.
        """
        data = self._store.get(tier_files.STATUS_KEY)
        if data is None:
            return None
        try:
            return tier_files.STATUS_FORM.from_bytes(data)
        except ValueError as error:
            raise LogDamaged(f"{tier_files.STATUS_KEY} cannot be read: {error}") from None
