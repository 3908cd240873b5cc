"""Observes a run through its store (`ports.RunWatch`), for a controller that never holds the run."""

from __future__ import annotations

import json
from collections.abc import Callable

from windfall.ports import Clock, ObjectStore
from windfall.storage import run_log, store_operations
from windfall.storage.store_operations import create
from windfall.terms import Record, RunState
from windfall.wire.run_layout import gone_key, inbox_key


class StoreWatch:
    """`ports.RunWatch`; calls come from one thread."""

    def __init__(self, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_nonce = new_nonce
        self._head: Record | None = None

    def observe(self) -> RunState | None:
        """Return the current state of the run's log, with two reads if little has changed."""
        head = store_operations.run(run_log.read_head(self._head.number if self._head else 0), self._store, self._clock)
        self._head = head or self._head
        return None if self._head is None else self._head.state

    def declare_gone(self, machine_id: str) -> None:
        """Record that a machine no longer exists; applies only to the term that it holds now."""
        state = self.observe()
        if state is not None and state.holder is not None and state.holder.host == machine_id:
            store_operations.run(create(gone_key(state.term), machine_id.encode()), self._store, self._clock)

    def stop(self, *, now: bool, reason: str) -> None:
        """Send a stop request to the machine that holds the run now, not to a later one."""
        state = self.observe()
        if state is None or state.holder is None:
            return
        message = {"type": "stop", "now": now, "reason": reason, "term": state.term}
        data = json.dumps(message).encode()
        store_operations.run(create(inbox_key(self._new_nonce()), data), self._store, self._clock)
