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
"""Between two reads of the file, of some microseconds each [s]."""
_VERSION = 1
_SIZE_BYTES = 16_384
"""Size of the file before it has more notices than fit, some hundred [B]."""


class NoticeWriter:
    """The node agent's side; thread-safe.

    The file gets its size before the first notice, and is written in place: a disk that is full by then loses none.
    """

    def __init__(self, path: str) -> None:
        self._notices: tuple[Notice, ...] = ()
        self._lock = threading.Lock()
        self._file: int | None = None
        with contextlib.suppress(OSError):
            os.unlink(path)  # of an earlier node agent: its instants may belong to an earlier boot
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.write(self._file, b" " * _SIZE_BYTES)

    def write(self, notice: Notice) -> None:
        """Add a notice; without a file the controller still hears of it."""
        with self._lock, contextlib.suppress(OSError):
            self._notices += (notice,)
            if self._file is not None:
                document = codec.encode_document(_VERSION, "notices", self._notices)
                os.pwrite(self._file, document.ljust(_SIZE_BYTES), 0)


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
        self._seen = b""
        self._delivered: tuple[Notice, ...] = ()

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each notice once; see `ports.NoticeSource`."""
        while not stopped():
            for notice in self._new():
                deliver(notice)
            self._clock.sleep(POLL_S)

    def _new(self) -> tuple[Notice, ...]:
        try:
            with open(self._path, "rb") as file:
                data = file.read().rstrip()
            if data == self._seen or not data:
                return ()
            notices: tuple[Notice, ...] = codec.decode_document(
                data, "notices", tuple[Notice, ...], version=_VERSION, what=self._path
            )
        except (OSError, ValueError, WindfallError):
            return ()  # nothing yet, or it is being written
        known = len(self._delivered)
        new = notices[known:] if notices[:known] == self._delivered else notices
        self._seen, self._delivered = data, notices
        # Of an event that is announced and withdrawn already, only the newest state counts.
        return tuple({(notice.source, notice.notice_id): notice for notice in new}.values())

    def acknowledge(self, notice: Notice) -> None:
        """Pass the acknowledgement on to the provider."""
        for source in self._sources:
            source.acknowledge(notice)
