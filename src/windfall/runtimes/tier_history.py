"""Looks at a parameter server beside its training, and writes how the loss falls, on which machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from windfall.errors import LogDamaged, StoreError
from windfall.ports import Clock
from windfall.runtimes.parameter_partition import Values
from windfall.runtimes.table_rows import joined_parts
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.terms import Instant
from windfall.tier_layout import ServerLayout, StoredClock
from windfall.tier_status import TierPoint

LOOK_S = 1.0
"""Between two looks [s]."""
REST = 9.0
"""After a table was evaluated none is for this many times as long: training has the machine nine tenths of the time."""


class TierHistory:
    """The history of one training.

    Args:
        store: of the run.
        evaluate: returns the loss of a whole table; None if the program does not say.
        clock: time.
        rest: waits for some seconds, or until training has ended.
    """

    def __init__(
        self,
        store: ObjectTierStore,
        evaluate: Callable[[Values], float | None],
        clock: Clock,
        rest: Callable[[float], object],
    ) -> None:
        self._store, self._evaluate, self._clock, self._rest = store, evaluate, clock, rest
        self._layout: ServerLayout | None = None
        self._points: tuple[TierPoint, ...] | None = None
        self._evaluated = StoredClock()

    def watch(self, ended: Callable[[], bool]) -> None:
        """Look until training has ended, and once more; what cannot be read now is looked at later."""
        due = self._clock.now()
        while True:
            began, last = self._clock.now(), ended()
            # A checkpoint may be deleted while it is read: the next one is there then.
            with contextlib.suppress(StoreError, LogDamaged):
                if self.look(evaluate=last or began >= due):
                    due = Instant(self._clock.now() + REST * (self._clock.now() - began))
            if last:
                return
            self._rest(LOOK_S)

    def look(self, *, evaluate: bool = True) -> bool:
        """Write a point for the newest checkpoint, unless it is known, or for machines that have come or gone.

        Args:
            evaluate: whether a checkpoint may be evaluated now.

        Returns:
            Whether one was.
        """
        self._layout = self._store.newest_layout(self._layout)
        if self._points is None:
            self._points = self._store.history()
        status = self._store.status()
        if self._layout is None or status is None:
            return False
        reliable = sum(machine.reliable for machine in status.machines)
        counts = (status.stage, reliable, len(status.machines) - reliable)
        stored = self._layout.checkpoint
        if evaluate and stored.clock and stored != self._evaluated:
            values = joined_parts([self._store.load(part, stored) for part in range(len(self._layout.parts))])
            point = TierPoint(self._clock.wall_time(), stored.clock, self._evaluate(values), *counts)
            # After a return to a checkpoint the clocks behind it are trained again.
            self._write(point, [one for one in self._points if not one.evaluated or one.clock < point.clock])
            self._evaluated = stored
            return True
        if self._points and counts != self._points[-1].machines:
            self._write(TierPoint(self._clock.wall_time(), status.clock, None, *counts, evaluated=False), self._points)
        return False

    def _write(self, point: TierPoint, before: Sequence[TierPoint]) -> None:
        self._points = (*before, point)
        self._store.write_history(self._points)
