"""Opens the object store of a URL, and tests that it supports conditional writes.

Detects from a folder's file system type whether other machines can reach it.

A limit on upload bytes per second over all threads of a process.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

from windfall.errors import Misuse, StoreUnsupported, TransferCancelled
from windfall.linux.clock import SystemClock
from windfall.ports import Clock, Create, Delete, Get, ObjectStore, Steps, T
from windfall.settings import patience_s
from windfall.storage import failpoints, store_operations
from windfall.storage.disk_operations import DiskOps, FileOps
from windfall.storage.failpoints import FailpointOps, FailpointStore
from windfall.storage.store_operations import RetryingStore, RetryPolicy
from windfall.structs import Struct
from windfall.terms import Bytes, Instant, Seconds
from windfall.wire import run_layout

SMALL_BYTES = 64 << 10
"""Writes up to this length bypass longer ones, so that no heartbeat waits behind a checkpoint [B]."""
SLICE_S = 0.02
"""How long a waiting transfer may take to notice its cancellation [s]."""


class Uplink:
    """A rate limit as a token bucket of size zero: idle time is not credited.

    Each transfer reserves an interval of time and returns no earlier than its end, so that the bytes returned by any
    moment never exceed rate x time.  Within its interval a transfer runs at full speed.

    Args:
        bytes_per_s: the rate [B/s].
        clock: measures the time.
    """

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        if not bytes_per_s > 0:
            raise Misuse(f"the uplink rate is {bytes_per_s} bytes/s: set a rate above 0, or no limit")
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._busy_until = clock.now()

    @contextlib.contextmanager
    def transfer(self, size_bytes: int, cancelled: Callable[[], bool] | None = None) -> Iterator[None]:
        """Reserve time for the block's transfer of `size_bytes`, in the order of calls; small transfers do not queue.

        Raises:
            TransferCancelled: `cancelled` returned True; the unused time is available to later transfers.
        """
        duration_s = size_bytes / self._bytes_per_s
        with self._lock:
            now = self._clock.now()
            start = max(now, self._busy_until)
            # A small transfer does not wait for those before it, but delays those behind it by its interval.
            self._busy_until = Instant(start + duration_s)
        if size_bytes <= SMALL_BYTES:
            start = now
        end = Instant(start + duration_s)
        try:
            self._wait_until(start, cancelled)
            yield
            self._wait_until(end, cancelled)
        except TransferCancelled:
            with self._lock:
                unused_s = end - max(start, min(self._clock.now(), end))
                self._busy_until = Instant(self._busy_until - unused_s)
            raise

    def _wait_until(self, moment: Instant, cancelled: Callable[[], bool] | None) -> None:
        while (rest_s := moment - self._clock.now()) > 0:
            if cancelled is None:
                self._clock.sleep(Seconds(rest_s))
                continue
            if cancelled():
                raise TransferCancelled("an upload was cancelled while it waited for the uplink")
            self._clock.sleep(Seconds(min(rest_s, SLICE_S)))


class ThrottledStore:
    """An `ObjectStore` whose uploads share an `Uplink`; other operations are not limited."""

    def __init__(self, inner: ObjectStore, uplink: Uplink) -> None:
        self._inner = inner
        self._uplink = uplink
        self.url = inner.url

    def create(self, key: str, data: bytes) -> bool:
        """Create at the uplink's rate."""
        with self._uplink.transfer(len(data)):
            return self._inner.create(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Put at the uplink's rate."""
        with self._uplink.transfer(len(data)):
            self._inner.put(key, data)

    def get(self, key: str) -> bytes | None:
        """Get without limit."""
        return self._inner.get(key)

    def size(self, key: str) -> Bytes | None:
        """Return a size without limit."""
        return self._inner.size(key)

    def delete(self, key: str) -> None:
        """Delete without limit."""
        self._inner.delete(key)

    def list(self, prefix: str) -> list[str]:
        """List without limit."""
        return self._inner.list(prefix)

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, cancelled: Callable[[], bool] | None = None
    ) -> str:
        """Store a range of a file at the uplink's rate."""
        with self._uplink.transfer(size_bytes, cancelled):
            return self._inner.put_range(key, path, offset, size_bytes, cancelled)

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Restore a range of a file without limit."""
        return self._inner.get_range(key, path, offset, size_bytes)


ALLOWED = "a folder, file:///FOLDER, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"

_PLAIN = "/ !$&'()*+,;=:@~"
"""Characters that are not escaped in a file URL, besides letters and digits."""
_BUCKET_URL = re.compile(r"[^\x00-\x1f\x7f%\\]*")
"""A bucket URL after its scheme, without characters that stores and tools interpret differently."""


def open_store(url: str, *, uplink_bytes_per_s: float | None = None, retry: RetryPolicy | None = None) -> ObjectStore:
    """Return the store at a URL or path; nothing is read or written yet.

    Args:
        url: `file://`, `s3://`, `gs://`, `az://`, or a path (relative ones from the current folder).
        uplink_bytes_per_s: limit on uploads of this process to this store [B/s]; None for no limit.
        retry: retry policy of each operation; None for callers that retry on their own.

    Raises:
        Misuse: an unknown scheme, a missing bucket, credentials in the URL, or a limit that is not positive.
    """
    store = _plain_store(url)
    if failpoints.active():
        store = FailpointStore(store)
    if uplink_bytes_per_s is not None:
        store = ThrottledStore(store, Uplink(uplink_bytes_per_s, SystemClock()))
    return store if retry is None else RetryingStore(store, retry)


class Reader(Struct, frozen=True):
    """A run opened for reading, or for a message to its lease holder."""

    store: ObjectStore
    clock: Clock

    def run(self, steps: Steps[T]) -> T:
        """Drive a storage step function."""
        return store_operations.run(steps, self.store, self.clock)


def open_reader(url: str) -> Reader:
    """Open a run's store; nothing is read yet, and requests that get no answer are retried for a while."""
    clock = SystemClock()
    return Reader(open_store(url, retry=RetryPolicy(clock, budget_s=patience_s(), log=_warn)), clock)


def _warn(message: str) -> None:
    sys.stderr.write(f"windfall: {message}\n")


def folder_url(folder: str) -> str:
    """Return the URL of a folder, with special characters in its name escaped."""
    return f"file://{quote(os.fsencode(os.path.abspath(folder)), safe=_PLAIN)}"


def folder_of(url: str) -> str | None:
    """Return the folder of a URL; None if it is in a bucket."""
    scheme, _, path = _place(url)
    return path if scheme == "file" else None


def check_url(url: str) -> None:
    """Check a URL before it is stored anywhere.

    Raises:
        Misuse: see `open_store`.
    """
    _place(url)


def prove_conditions(nonce: str) -> Steps[None]:
    """Create a probe object twice, with different content: the second creation must fail and change nothing.

    After a lost reply the first `Create` may report that the key exists; the content shows who created it.

    Args:
        nonce: unique to this test.

    Raises:
        StoreUnsupported: the store accepted the second creation, or lost the first.
    """
    key = run_layout.probe_key(nonce)
    first, second = f"first {nonce}".encode(), f"second {nonce}".encode()
    yield Create(key, first)
    again = yield Create(key, second)
    kept = yield Get(key)
    yield Delete(key)
    if again or kept != first:
        raise StoreUnsupported(
            "the store overwrites an object on a conditional write, so two machines could hold one run: "
            "use a store that supports conditional writes (If-None-Match)"
        )


def _plain_store(url: str) -> ObjectStore:
    scheme, bucket, path = _place(url)
    if scheme == "file":
        return _file_store(path)
    # Imported here: the client must not be loaded before a process forks, nor if only files are used.
    from windfall.storage.bucket_store import RemoteStore, Scheme  # noqa: PLC0415

    return RemoteStore(cast("Scheme", scheme), bucket, path)


def _place(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket (empty for files) and path of a URL or path."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        path = _path_of(url) if separator else url
        if not path:
            raise Misuse(f"the store's URL is empty: write {ALLOWED}")
        if "\0" in path:
            raise Misuse(f"invalid path {path!r}: it contains a zero byte")
        path = os.path.abspath(path)
        if not path.strip("/"):
            raise Misuse("/ cannot hold a run: name a folder")
        return "file", "", path
    if scheme not in ("s3", "gs", "az"):
        raise Misuse(f"{scheme}:// is not a supported store: write {ALLOWED}")
    if not _BUCKET_URL.fullmatch(rest):
        odd = next(letter for letter in rest if not _BUCKET_URL.fullmatch(letter))
        raise Misuse(
            f"{url!r} contains {odd!r}, which stores and their tools interpret differently: use a URL without it"
        )
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Misuse(
            f"the URL {scheme}://{parts.hostname or ''}{parts.path} has a user, query or fragment: "
            "remove it; credentials are read from the environment"
        )
    if not parts.netloc:
        raise Misuse(f"{scheme}://{rest} has no bucket: write {ALLOWED}")
    return scheme, parts.netloc, parts.path.strip("/")


def _file_store(path: str) -> ObjectStore:
    ops: FileOps = FailpointOps(DiskOps()) if failpoints.active() else DiskOps()
    from windfall.storage.file_store import FileStore  # noqa: PLC0415 - a command that only checks a URL opens none

    return FileStore(path, ops)


def _path_of(url: str) -> str:
    """Return the path of a file URL: %XX is a byte, everything else is literal."""
    host, slash, path = url.removeprefix("file://").partition("/")
    if host not in ("", "localhost") or not slash:
        raise Misuse(f"{url} has a host name instead of a folder: write file:///FOLDER with three slashes")
    return os.fsdecode(unquote_to_bytes(os.fsencode(f"/{path}")))


SHARED_KINDS = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "wekafs", "panfs")
_MOUNTS = "/proc/self/mountinfo"


def file_system_of(folder: str) -> str:
    """Return the file system type of a folder, from the longest mount point above it; empty where nothing tells it."""
    real = os.path.realpath(folder)
    best = ("", "")
    if not os.path.exists(_MOUNTS):
        return ""
    with open(_MOUNTS) as mounts:
        for line in mounts:
            left, _, right = line.partition(" - ")
            mount_point = left.split()[4].encode().decode("unicode_escape")
            if os.path.commonpath((real, mount_point)) == mount_point and len(mount_point) >= len(best[0]):
                best = (mount_point, right.split()[0])
    return best[1]


def is_shared(kind: str) -> bool:
    """Return whether a file system of this type can be mounted by several machines at once."""
    return kind.removeprefix("fuse.").startswith(SHARED_KINDS)
