"""The estimates file, in which the node agent passes the controller's estimates to the agent beside it.

`agent.status_files` goes the other way.

The status file, in which the agent reports the run's status to the node agent that started `windfall exec`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

from windfall import codec
from windfall.core.node_agent_state import RunStatus
from windfall.errors import WindfallError
from windfall.events import AssignmentChanged, EstimatesChanged, Fact, ScheduleAssigned
from windfall.ports import Clock
from windfall.structs import replace
from windfall.terms import Instant, Outcome, SaveCosts, Seconds, Step, Term

WRITE_S = Seconds(0.5)
"""The least time between two writes [s], because steps may be shorter."""


class StatusFile:
    """Writes the file when the status has changed, and at once when the run is released; thread-safe.

    A disk error must not end the run; the file is then out of date.
    """

    def __init__(self, path: str | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._written: RunStatus | None = None
        self._written_at = Instant(float("-inf"))

    def show(self, status: RunStatus) -> None:
        """Write a status if it has changed and a write is due; otherwise a later call writes."""
        if not self.due:
            return
        with self._lock:
            released = None if self._written is None else self._written.released
            status = replace(status, released=released)
            if status != self._written:
                self._write(status)

    @property
    def due(self) -> bool:
        """Whether `show` would write now; if not, the caller need not compute the status."""
        return self._path is not None and self._clock.now() >= self._written_at + WRITE_S

    def release(self, outcome: Outcome, last: RunStatus | None = None) -> None:
        """Write that the run was released, with its outcome and its last status (default: the last one written)."""
        with self._lock:
            last = self._written if last is None else last
            if self._path is not None and last is not None:
                self._write(replace(last, released=outcome, training=False))

    def _write(self, status: RunStatus) -> None:
        fields = {
            "version": 1,
            "term": status.term,
            "step": status.step,
            "saved_step": status.saved_step,
            "attempt": status.attempt,
            "training": status.training,
            "released": None if status.released is None else status.released.value,
            "step_s": status.step_s,
            "costs": codec.encode(status.costs),
            "sdk_inactive": status.sdk_inactive,
            "body": status.body,
        }
        with contextlib.suppress(OSError):
            with open(f"{self._path}.new", "w") as file:
                json.dump(fields, file)
            os.replace(f"{self._path}.new", f"{self._path}")
        self._written, self._written_at = status, self._clock.now()


def read(path: str) -> RunStatus | None:
    """Return the status in the file; None if there is no valid file."""
    try:
        with open(path) as file:
            fields = json.load(file)
        released = None if fields["released"] is None else Outcome(fields["released"])
        return RunStatus(
            Term(fields["term"]),
            Step(fields["step"]),
            Step(fields["saved_step"]),
            fields["attempt"],
            bool(fields["training"]),
            released,
            fields.get("step_s"),
            codec.decode(fields.get("costs"), SaveCosts | None),
            bool(fields["sdk_inactive"]),
            codec.decode(fields.get("body", {}), dict[str, Any]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


POLL_S = Seconds(0.5)
"""The least time between two polls of the file [s]."""
_VERSION = 1
_NEVER = Instant(float("-inf"))
_KNOWN = (AssignmentChanged, EstimatesChanged, ScheduleAssigned)


def write(path: str, facts: Sequence[Fact]) -> None:
    """Replace the file; after a disk error the run continues with the old estimates."""
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w") as file:
            file.write(codec.encode_document(_VERSION, "facts", tuple(facts)).decode())
        os.replace(f"{path}.new", path)


class EstimatesFile:
    """Reads the file and returns only what has changed."""

    def __init__(self, path: str | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._polled_at = _NEVER
        self._mark: tuple[int, int] | None = None
        self._delivered: dict[type[Fact], Fact] = {}

    def remember(self, facts: Sequence[Fact]) -> None:
        """Note facts of this session's journal, which the reducer already has."""
        self._delivered.update((type(fact), fact) for fact in facts if isinstance(fact, _KNOWN))

    def changes(self) -> list[Fact]:
        """Return the facts that have changed since the last poll; a poll of an unchanged file costs one `stat`."""
        now = self._clock.now()
        if self._path is None or now < self._polled_at + POLL_S:
            return []
        self._polled_at = now
        try:
            found = os.stat(self._path)
            mark = (found.st_mtime_ns, found.st_ino)
            if mark == self._mark:
                return []
            with open(self._path) as file:
                text = file.read()
            facts = codec.decode_document(text, "facts", tuple[Fact, ...], version=_VERSION, what="the estimates file")
        except (OSError, ValueError, WindfallError):
            return []
        self._mark = mark
        new = [fact for fact in facts if isinstance(fact, _KNOWN) and self._delivered.get(type(fact)) != fact]
        self.remember(new)
        return list(new)
