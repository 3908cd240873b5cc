"""Failpoints: named places where a test or a drill can kill this process, like the loss of its machine.

`WINDFALL_FAILPOINT=store.create:after:3` sends SIGKILL to the process when it passes `store.create:after` the third
time; `WINDFALL_FAILPOINT_TRACE=FILE` appends the name of each failpoint that is passed, so that a test can find all names.
Both are read at the first failpoint of a process, and never again.

Names are `<port>.<operation>:before|middle|after`; the operations of the file writer are `file.*`, those of an object
store `store.*`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from windfall.errors import Misuse
from windfall.ports import ObjectStore
from windfall.storage.disk_operations import FileOps
from windfall.terms import Bytes
from windfall.wire import environment


def hit(name: str) -> None:
    """Pass a failpoint; does nothing (about 0.1 us) unless the environment enables it."""
    armed = _armed()
    if armed is not None:
        armed.hit(name)


def active() -> bool:
    """Return whether failpoints are enabled in this process; if not, no wrappers are needed."""
    return _armed() is not None


@contextlib.contextmanager
def around(operation: str) -> Iterator[None]:
    """Pass `<operation>:before`, execute the block, pass `<operation>:after` unless the block raised."""
    hit(f"{operation}:before")
    yield
    hit(f"{operation}:after")


@dataclass(slots=True)
class _ArmedFailpoint:
    """The configuration from the environment, and how often the failpoint may still be passed."""

    kill_at: str | None
    passes_left: int
    trace_path: str | None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hit(self, name: str) -> None:
        if self.trace_path is not None:
            _append(self.trace_path, f"{name}\n".encode())
        if name != self.kill_at:
            return
        with self.lock:
            self.passes_left -= 1
            dies = self.passes_left == 0
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def _armed() -> _ArmedFailpoint | None:
    kill_at = os.environ.get(environment.FAILPOINT)
    trace_path = os.environ.get(environment.FAILPOINT_TRACE)
    if not kill_at and not trace_path:
        return None
    name, count = _parse(kill_at) if kill_at else (None, 0)
    return _ArmedFailpoint(kill_at=name, passes_left=count, trace_path=trace_path)


def _parse(text: str) -> tuple[str, int]:
    """Split `name` or `name:n`; a name may itself end in `:before`, `:middle` or `:after`."""
    name, colon, last = text.rpartition(":")
    if not colon or not last.isdecimal():
        return text, 1
    if int(last) < 1:
        raise Misuse(f"{environment.FAILPOINT}={text}: passes are counted from 1; write {name}:1 for the first one")
    return name, int(last)


def _append(path: str, line: bytes) -> None:
    # One write to a file opened for appending, so that lines of several processes do not mix.
    trace = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(trace, line)
    finally:
        os.close(trace)


class FailpointStore:
    """An `ObjectStore` with a failpoint before and after every call (`:middle` failpoints are in the inner store)."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.url = inner.url

    def create(self, key: str, data: bytes) -> bool:
        """Create through the inner store."""
        with around("store.create"):
            return self._inner.create(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Put through the inner store."""
        with around("store.put"):
            self._inner.put(key, data)

    def get(self, key: str) -> bytes | None:
        """Get through the inner store."""
        with around("store.get"):
            return self._inner.get(key)

    def size(self, key: str) -> Bytes | None:
        """Get a length from the inner store."""
        with around("store.size"):
            return self._inner.size(key)

    def delete(self, key: str) -> None:
        """Delete through the inner store."""
        with around("store.delete"):
            self._inner.delete(key)

    def list(self, prefix: str) -> list[str]:
        """List through the inner store."""
        with around("store.list"):
            return self._inner.list(prefix)

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, cancelled: Callable[[], bool] | None = None
    ) -> str:
        """Store a range of a file through the inner store."""
        with around("store.put_range"):
            return self._inner.put_range(key, path, offset, size_bytes, cancelled)

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Restore a range of a file through the inner store."""
        with around("store.get_range"):
            return self._inner.get_range(key, path, offset, size_bytes)


class FailpointOps:
    """`FileOps` with a failpoint before and after every operation."""

    def __init__(self, inner: FileOps) -> None:
        self._inner = inner

    def make_dir(self, path: str) -> bool:
        """Pass `file.make_dir`."""
        with around("file.make_dir"):
            return self._inner.make_dir(path)

    def remove_dir(self, path: str) -> bool:
        """Pass `file.remove_dir`."""
        with around("file.remove_dir"):
            return self._inner.remove_dir(path)

    def fsync_dir(self, path: str) -> None:
        """Pass `file.fsync_dir`."""
        with around("file.fsync_dir"):
            self._inner.fsync_dir(path)

    def lock(self, path: str) -> int | None:
        """Pass `file.lock`."""
        with around("file.lock"):
            return self._inner.lock(path)

    def open_new(self, path: str, direct: bool) -> int:
        """Pass `file.open_new`."""
        with around("file.open_new"):
            return self._inner.open_new(path, direct)

    def open_old(self, path: str, direct: bool) -> int | None:
        """Pass `file.open_old`."""
        with around("file.open_old"):
            return self._inner.open_old(path, direct)

    def length(self, handle: int) -> int:
        """Pass `file.length`."""
        with around("file.length"):
            return self._inner.length(handle)

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        """Pass `file.read`."""
        with around("file.read"):
            return self._inner.read(handle, into, offset)

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        """Pass `file.write`."""
        with around("file.write"):
            self._inner.write(handle, data, offset)

    def truncate(self, handle: int, size_bytes: int) -> None:
        """Pass `file.truncate`."""
        with around("file.truncate"):
            self._inner.truncate(handle, size_bytes)

    def fsync(self, handle: int) -> None:
        """Pass `file.fsync`."""
        with around("file.fsync"):
            self._inner.fsync(handle)

    def close(self, handle: int) -> None:
        """Pass `file.close`."""
        with around("file.close"):
            self._inner.close(handle)

    def link(self, source: str, target: str) -> bool:
        """Pass `file.link`."""
        with around("file.link"):
            return self._inner.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Pass `file.rename`."""
        with around("file.rename"):
            self._inner.rename(source, target)

    def unlink(self, path: str) -> bool:
        """Pass `file.unlink`."""
        with around("file.unlink"):
            return self._inner.unlink(path)

    def size(self, path: str) -> int | None:
        """Pass `file.size`."""
        with around("file.size"):
            return self._inner.size(path)

    def walk(self, path: str) -> list[str]:
        """Pass `file.walk`."""
        with around("file.walk"):
            return self._inner.walk(path)
