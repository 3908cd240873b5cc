"""Looks at the checkpoints of a parameter server beside its training, and writes how the loss falls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from windfall.errors import LogDamaged, StoreError
from windfall.ports import Clock
from windfall.runtimes.parameter_partition import Values
from windfall.runtimes.table_rows import joined_parts
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.tier_layout import ServerLayout
from windfall.tier_status import TierPoint

LOOK_S = 1.0
"""Between two looks, at least [s]."""
REST = 9.0
"""After each look it rests this many times as long as the look took: training has the machine nine tenths of the time."""


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

    def watch(self, ended: Callable[[], bool]) -> None:
        """Look until training has ended, and once more; what cannot be read now is looked at later."""
        while True:
            began, last = self._clock.now(), ended()
            # A checkpoint may be deleted while it is read: the next one is there then.
            with contextlib.suppress(StoreError, LogDamaged):
                self.look()
            if last:
                return
            self._rest(max(LOOK_S, REST * (self._clock.now() - began)))

    def look(self) -> None:
        """Look at the newest checkpoint, unless it is known."""
        self._layout = self._store.newest_layout(self._layout)
        if self._points is None:
            self._points = self._store.history()
        status = self._store.status()
        if self._layout is None or status is None:
            return
        stored = self._layout.checkpoint
        if not stored.clock or (self._points and self._points[-1].clock == stored.clock):
            return
        values = joined_parts([self._store.load(part, stored) for part in range(len(self._layout.parts))])
        reliable = sum(machine.reliable for machine in status.machines)
        counts = (status.stage, reliable, len(status.machines) - reliable)
        point = TierPoint(self._clock.wall_time(), stored.clock, self._evaluate(values), *counts)
        # After a return to a checkpoint the clocks behind it are trained again.
        self._points = (*(one for one in self._points if one.clock < point.clock), point)
        self._store.write_history(self._points)
