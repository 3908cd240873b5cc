"""Where a run stands on this machine, in one small file: from the agent to whoever started `windfall exec`."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import replace

from windfall import codec
from windfall.core.keeping_facts import Standing
from windfall.ports import Clock
from windfall.terms import Instant, Outcome, SaveCosts, Seconds, Step, Term

WRITE_S = Seconds(0.5)
"""The least time between two writes [s]: steps may be shorter."""


class StandingFile:
    """Writes the file when something has changed, the release of the run at once; safe between threads.

    A disk that refuses must not end a training run: the file then is older than it could be.
    """

    def __init__(self, path: str | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._written: Standing | None = None
        self._written_at = Instant(float("-inf"))

    def show(self, standing: Standing) -> None:
        """Take the newest standing; it is written now, or by a later call if the last write is too fresh."""
        if not self.due:
            return
        with self._lock:
            released = None if self._written is None else self._written.released
            standing = replace(standing, released=released)
            if standing != self._written:
                self._write(standing)

    @property
    def due(self) -> bool:
        """Whether a standing would be written now: until then it need not be made up."""
        return self._path is not None and self._clock.now() >= self._written_at + WRITE_S

    def release(self, outcome: Outcome, last: Standing | None = None) -> None:
        """Say that the run was let go, as what, and where it stood then, if that is newer than what was written."""
        with self._lock:
            last = self._written if last is None else last
            if self._path is not None and last is not None:
                self._write(replace(last, released=outcome, training=False))

    def _write(self, standing: Standing) -> None:
        said = {
            "v": 1,
            "term": standing.term,
            "step": standing.step,
            "saved_step": standing.saved_step,
            "attempt": standing.attempt,
            "training": standing.training,
            "released": None if standing.released is None else standing.released.value,
            "step_s": standing.step_s,
            "costs": codec.encode(standing.costs),
            "mute": standing.mute,
        }
        with contextlib.suppress(OSError):
            with open(f"{self._path}.new", "w") as file:
                json.dump(said, file)
            os.replace(f"{self._path}.new", f"{self._path}")
        self._written, self._written_at = standing, self._clock.now()


def read(path: str) -> Standing | None:
    """Return what the file says; None if there is none that can be read."""
    try:
        with open(path) as file:
            said = json.load(file)
        released = None if said["released"] is None else Outcome(said["released"])
        return Standing(
            Term(said["term"]),
            Step(said["step"]),
            Step(said["saved_step"]),
            said["attempt"],
            bool(said["training"]),
            released,
            said.get("step_s"),
            codec.decode(said.get("costs"), SaveCosts | None),
            bool(said["mute"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
