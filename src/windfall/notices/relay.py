"""Hands the notices that a node agent receives to the `windfall exec` of the same machine, through a file.

The node agent alone watches the provider.  The file holds every notice since the machine started, so that an `exec` that
starts later knows them too; their deadlines are instants of the machine's monotonic clock, which both share.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence

from windfall import codec
from windfall.errors import WindfallError
from windfall.ports import Clock, NoticeSource
from windfall.terms import Notice, Seconds

POLL_S = Seconds(0.05)
"""Between two looks at the file, each one `stat` [s]."""
_VERSION = 1


class NoticeWriter:
    """The node agent's side; thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._notices: tuple[Notice, ...] = ()
        self._lock = threading.Lock()
        with contextlib.suppress(OSError):
            os.unlink(path)  # of an earlier node agent: its instants may belong to an earlier boot

    def write(self, notice: Notice) -> None:
        """Add a notice; if the disk is full the controller still hears of it."""
        with self._lock, contextlib.suppress(OSError):
            self._notices += (notice,)
            with open(f"{self._path}.new", "wb") as file:
                file.write(codec.encode_document(_VERSION, "notices", self._notices))
            os.replace(f"{self._path}.new", self._path)


class RelayedNotices:
    """The side of `windfall exec`.

    Attributes:
        name: of the thread that watches; each notice keeps the name of its own source.
    """

    name = "relay"

    def __init__(self, path: str, clock: Clock, sources: Sequence[NoticeSource]) -> None:
        """Prepare to watch.

        Args:
            path: the file that the node agent writes.
            clock: this machine's clocks.
            sources: the provider's own; not watched here, but an acknowledgement goes to them.
        """
        self._path, self._clock, self._sources = path, clock, sources
        self._mark: tuple[int, int] | None = None
        self._delivered = 0

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each notice once; see `ports.NoticeSource`."""
        while not stopped():
            for notice in self._new():
                deliver(notice)
            self._clock.sleep(POLL_S)

    def _new(self) -> tuple[Notice, ...]:
        try:
            found = os.stat(self._path)
            mark = (found.st_mtime_ns, found.st_ino)
            if mark == self._mark:
                return ()
            with open(self._path, "rb") as file:
                data = file.read()
            expected = tuple[Notice, ...]
            notices: tuple[Notice, ...] = codec.decode_document(
                data, "notices", expected, version=_VERSION, what=self._path
            )
        except (OSError, ValueError, WindfallError):
            return ()
        new = notices[self._delivered :]
        self._mark, self._delivered = mark, len(notices)
        return new

    def acknowledge(self, notice: Notice) -> None:
        """Pass the acknowledgement on to the provider."""
        for source in self._sources:
            source.acknowledge(notice)
