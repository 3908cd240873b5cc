"""A run seen from outside: `ports.RunWatch` over its store, for a controller that never holds the run."""

from __future__ import annotations

import json
from collections.abc import Callable

from windfall.ports import Clock, ObjectStore
from windfall.storage import executor, log
from windfall.storage.operations import create
from windfall.terms import Record, RunState
from windfall.wire.layout import gone_key, inbox_key


class StoreWatch:
    """`ports.RunWatch`; calls come from one thread."""

    def __init__(self, store: ObjectStore, clock: Clock, new_nonce: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_nonce = new_nonce
        self._head: Record | None = None

    def observe(self) -> RunState | None:
        """Return what the run's log says now; two reads where nothing or little has changed."""
        head = executor.run(log.read_head(self._head.number if self._head else 0), self._store, self._clock)
        self._head = head or self._head
        return None if self._head is None else self._head.state

    def declare_gone(self, machine_id: str) -> None:
        """Say that a machine no longer exists; its word counts only for the term that it holds now."""
        state = self.observe()
        if state is not None and state.holder is not None and state.holder.host == machine_id:
            executor.run(create(gone_key(state.term), machine_id.encode()), self._store, self._clock)

    def stop(self, *, now: bool, reason: str) -> None:
        """Write to the machine that holds the run now, and to no later one."""
        state = self.observe()
        if state is None or state.holder is None:
            return
        message = {"do": "stop", "now": now, "reason": reason, "term": state.term}
        data = json.dumps(message).encode()
        executor.run(create(inbox_key(self._new_nonce()), data), self._store, self._clock)
