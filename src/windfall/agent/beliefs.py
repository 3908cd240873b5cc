"""What the controller believes, in one small file: from a machine's keeper to the agent that runs beside it.

The way back is `agent.standing`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from windfall import codec
from windfall.errors import WindfallError
from windfall.events import BeliefsChanged, Fact, SaveTableGiven
from windfall.ports import Clock
from windfall.terms import Instant, Seconds

LOOK_S = Seconds(0.5)
"""The least time between two looks at the file [s]."""
_VERSION = 1
_NEVER = Instant(float("-inf"))
_KNOWN = (BeliefsChanged, SaveTableGiven)


def write(path: str, facts: Sequence[Fact]) -> None:
    """Replace the file; a disk that refuses must not end a training run, which then goes on with what it knew."""
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w") as file:
            file.write(codec.sealed(_VERSION, "facts", tuple(facts)).decode())
        os.replace(f"{path}.new", path)


class BeliefsFile:
    """Reads the file; only what is new is told."""

    def __init__(self, path: str | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._looked_at = _NEVER
        self._mark: tuple[int, int] | None = None
        self._told: dict[type[Fact], Fact] = {}

    def remember(self, facts: Sequence[Fact]) -> None:
        """Take note of facts that the reducer knows already, from this session's journal."""
        self._told.update((type(fact), fact) for fact in facts if isinstance(fact, _KNOWN))

    def news(self) -> list[Fact]:
        """Return the facts that have changed since the last look; a look costs one question to the disk."""
        now = self._clock.now()
        if self._path is None or now < self._looked_at + LOOK_S:
            return []
        self._looked_at = now
        try:
            found = os.stat(self._path)
            mark = (found.st_mtime_ns, found.st_ino)
            if mark == self._mark:
                return []
            with open(self._path) as file:
                said = file.read()
            facts = codec.opened(said, "facts", tuple[Fact, ...], version=_VERSION, what="what the controller believes")
        except (OSError, ValueError, WindfallError):
            return []
        self._mark = mark
        new = [fact for fact in facts if isinstance(fact, _KNOWN) and self._told.get(type(fact)) != fact]
        self.remember(new)
        return list(new)
