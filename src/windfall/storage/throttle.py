"""A limit on upload bytes per second over all threads of a process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from windfall.errors import Abandoned, Misuse
from windfall.ports import Clock, ObjectStore
from windfall.terms import Bytes, Instant, Seconds

SMALL_BYTES = 64 << 10
"""Writes up to this length go ahead of longer ones, so that no heartbeat waits behind a checkpoint [B]."""


SLICE_S = 0.02
"""How long a transfer that waits for the line may go on after nobody wants it any more [s]."""


class Uplink:
    """A line of a given rate as a token bucket without savings: idle time is not credited.

    Every transfer is given a stretch of the line's time and returns no earlier than that stretch ends, so that what has
    returned by any moment never exceeds rate x time.  Inside its stretch a transfer goes as fast as it can.

    Args:
        bytes_per_s: the line's rate [B/s].
        clock: whose time the line keeps.
    """

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        if not bytes_per_s > 0:
            raise Misuse(
                f"An uplink of {bytes_per_s} bytes/s carries nothing: give a rate above 0, or none for no limit"
            )
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._busy_until = clock.now()

    @contextlib.contextmanager
    def carrying(self, size_bytes: int, unwanted: Callable[[], bool] | None = None) -> Iterator[None]:
        """Hold the line for the block's transfer of `size_bytes`, in the order of calls; small transfers do not queue.

        Raises:
            Abandoned: `unwanted` said so; what was left of the line's time is free for those that come next.
        """
        duration_s = size_bytes / self._bytes_per_s
        with self._lock:
            now = self._clock.now()
            begin = max(now, self._busy_until)
            # A small transfer's stretch is paid by those behind it, though it does not wait for those before it.
            self._busy_until = Instant(begin + duration_s)
        if size_bytes <= SMALL_BYTES:
            begin = now
        end = Instant(begin + duration_s)
        try:
            self._wait_until(begin, unwanted)
            yield
            self._wait_until(end, unwanted)
        except Abandoned:
            with self._lock:
                unused_s = end - max(begin, min(self._clock.now(), end))
                self._busy_until = Instant(self._busy_until - unused_s)
            raise

    def _wait_until(self, moment: Instant, unwanted: Callable[[], bool] | None) -> None:
        while (rest_s := moment - self._clock.now()) > 0:
            if unwanted is None:
                self._clock.sleep(Seconds(rest_s))
                continue
            if unwanted():
                raise Abandoned("an upload was stopped on the line: nobody wants it any more")
            self._clock.sleep(Seconds(min(rest_s, SLICE_S)))


class ThrottledStore:
    """An `ObjectStore` whose uploads share an `Uplink`; downloads and questions pass freely."""

    def __init__(self, inner: ObjectStore, uplink: Uplink) -> None:
        self._inner = inner
        self._uplink = uplink
        self.url = inner.url

    def create(self, key: str, data: bytes) -> bool:
        """Create at the line's rate."""
        with self._uplink.carrying(len(data)):
            return self._inner.create(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Put at the line's rate."""
        with self._uplink.carrying(len(data)):
            self._inner.put(key, data)

    def get(self, key: str) -> bytes | None:
        """Get without limit."""
        return self._inner.get(key)

    def size(self, key: str) -> Bytes | None:
        """Ask without limit."""
        return self._inner.size(key)

    def delete(self, key: str) -> None:
        """Delete without limit."""
        self._inner.delete(key)

    def list(self, prefix: str) -> list[str]:
        """List without limit."""
        return self._inner.list(prefix)

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, unwanted: Callable[[], bool] | None = None
    ) -> str:
        """Store a stretch of a file at the line's rate."""
        with self._uplink.carrying(size_bytes, unwanted):
            return self._inner.put_range(key, path, offset, size_bytes, unwanted)

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Restore a stretch of a file without limit."""
        return self._inner.get_range(key, path, offset, size_bytes)
