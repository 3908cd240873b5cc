"""What an elastic training has in its run's store beside its checkpoints: the log of layouts, and what is said there."""

from __future__ import annotations

from collections.abc import Iterator

from windfall.errors import LogDamaged, NewerFormat
from windfall.ports import ObjectStore
from windfall.shape_layout import ShapeLayout
from windfall.shape_measurements import ShapeMeasurements
from windfall.shape_status import ShapeFailure, ShapePoint, ShapeStatus
from windfall.wire import shape_records


class ShapeLog:
    """The log in a run's store; any call may raise a `StoreError`, and those that read a `NewerFormat` or `LogDamaged`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def newest_layout(self, since: ShapeLayout | None = None) -> ShapeLayout | None:
        """Return the newest layout, from one that is known on; None if there is none yet."""
        newest = since
        while True:
            layout = self._layout(1 if newest is None else newest.record + 1)
            if layout is None:
                return newest
            newest = layout

    def layouts(self) -> Iterator[ShapeLayout]:
        """Yield the layouts, oldest first; one that another coordinator takes over comes once."""
        layout, version = self._layout(1), 0
        while layout is not None:
            if layout.version > version:
                yield layout
            version, layout = layout.version, self._layout(layout.record + 1)

    def _layout(self, record: int) -> ShapeLayout | None:
        data = self._store.get(shape_records.layout_key(record))
        return None if data is None else shape_records.LAYOUT_FORM.from_bytes(data)

    def write_layout(self, layout: ShapeLayout) -> bool:
        """Append a layout; return whether it is there, and this one."""
        key, data = shape_records.layout_key(layout.record), shape_records.LAYOUT_FORM.to_bytes(layout)
        # If an answer is lost, the record is there already; another coordinator's differs in its number.
        return self._store.create(key, data) or self._store.get(key) == data

    def ask_to_stop(self, coordinator: int) -> None:
        """Ask a coordinator, and those before it, for a checkpoint after which training rests."""
        self._store.put(shape_records.STOP, shape_records.NUMBER_FORM.to_bytes(coordinator))

    def stop_asked(self) -> int:
        """Return the newest coordinator that is asked to stop; 0 if none is."""
        return self._number(shape_records.STOP)

    def write_stopped(self, coordinator: int) -> None:
        """Write that a coordinator has stopped."""
        self._store.put(shape_records.STOPPED, shape_records.NUMBER_FORM.to_bytes(coordinator))

    def stopped(self) -> int:
        """Return the newest coordinator that has stopped; 0 if none has."""
        return self._number(shape_records.STOPPED)

    def write_done(self, step: int) -> None:
        """Write that training is over, and the script has ended."""
        self._store.put(shape_records.DONE, shape_records.NUMBER_FORM.to_bytes(step))

    def is_done(self) -> bool:
        """Return whether training is over."""
        return self._store.get(shape_records.DONE) is not None

    def write_failure(self, failure: ShapeFailure) -> None:
        """Append a failure of the user's script."""
        number = self.failures() + 1
        while not self._store.create(shape_records.failure_key(number), shape_records.FAILURE_FORM.to_bytes(failure)):
            number += 1

    def failures(self, since: int = 0) -> int:
        """Return how many failures there have been, at least `since`."""
        while self._store.get(shape_records.failure_key(since + 1)) is not None:
            since += 1
        return since

    def failure(self, number: int) -> ShapeFailure | None:
        """Return a failure, from 1; None if there were fewer."""
        data = self._store.get(shape_records.failure_key(number))
        return None if data is None else shape_records.FAILURE_FORM.from_bytes(data)

    def write_status(self, status: ShapeStatus) -> None:
        """Write the status over the last one."""
        self._store.put(shape_records.STATUS_KEY, shape_records.STATUS_FORM.to_bytes(status))

    def status(self) -> ShapeStatus | None:
        """Return the newest status; None if there is none yet."""
        data = self._store.get(shape_records.STATUS_KEY)
        if data is None:
            return None
        try:
            return shape_records.STATUS_FORM.from_bytes(data)
        except ValueError as error:
            raise LogDamaged(f"{shape_records.STATUS_KEY} cannot be read: {error}") from None

    def trained_in(self, term: int) -> int:
        """Return the newest step of a term that a status has told of; 0 if none has, or it cannot be read."""
        try:
            status = self.status()
        except LogDamaged:
            # For people alone; no coordinator may fail by it.
            return 0
        return status.step if status is not None and status.term == term else 0

    def write_history(self, points: tuple[ShapePoint, ...]) -> None:
        """Write the history over the last one."""
        self._store.put(shape_records.HISTORY_KEY, shape_records.HISTORY_FORM.to_bytes(points))

    def history(self) -> tuple[ShapePoint, ...]:
        """Return how shape and machines have changed, oldest first."""
        data = self._store.get(shape_records.HISTORY_KEY)
        return () if data is None else shape_records.HISTORY_FORM.from_bytes(data)

    def write_measured(self, found: ShapeMeasurements) -> None:
        """Write what was measured over the last one."""
        self._store.put(shape_records.MEASURED_KEY, shape_records.MEASURED_FORM.to_bytes(found))

    def measured(self) -> ShapeMeasurements | None:
        """Return what training has measured of itself; None before it has, or if it cannot be read: then it measures again."""
        data = self._store.get(shape_records.MEASURED_KEY)
        try:
            return None if data is None else shape_records.MEASURED_FORM.from_bytes(data)
        except (ValueError, NewerFormat):
            return None

    def _number(self, key: str) -> int:
        data = self._store.get(key)
        return 0 if data is None else shape_records.NUMBER_FORM.from_bytes(data)
