"""The object store in a folder: objects are files, complete or absent, and durable when a call returns.

A writer fills a file in its own staging folder (`.tmp/<name>/` under the root), syncs it, then gives it its final name:
`link` to create (it never replaces), `rename` to replace; then it syncs the folder.  The staging folder is locked for the
lifetime of the process, so that a later writer can detect and remove what a dead one left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from windfall.errors import StoreDenied, StoreFull, StoreMissing, StoreUnreachable, TransferCancelled
from windfall.storage.disk_operations import DiskOps, FileOps
from windfall.storage.failpoints import hit
from windfall.storage.shard_transfer import Buffers, pump, read_fully, rounded_up, write_fully
from windfall.terms import Bytes

T = TypeVar("T")

STAGING = ".tmp"
DIRECT_MIN_BYTES = 1 << 20
"""Below this length direct I/O is not worth its alignment [B]."""
_NO_FOLDER = (errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ)
"""Permanent errors: the path cannot be a store."""
TRIES_MAX = 5
"""How often a folder that another process removes is created again before an error is raised."""


class FileStore:
    """`ObjectStore` in the folder `root`.

    Args:
        root: an absolute path; created at the first write.
        ops: the file operations; those of this machine by default.
    """

    def __init__(self, root: str, ops: FileOps | None = None) -> None:
        self.url = f"file://{root}"
        self._root = root
        self._ops: FileOps = DiskOps() if ops is None else ops
        self._buffers = Buffers()
        self._lock = threading.Lock()
        self._durable_folders: set[str] = set()
        self._staging_folder: str | None = None
        self._staged = 0

    def create(self, key: str, data: bytes) -> bool:
        """Create a file; False if the key exists."""
        target = self._path(key)
        with self._translate_errors():
            staged = self._stage(lambda handle: self._ops.write(handle, memoryview(data), 0), direct=False)
            created = self._in_folder_of(target, lambda: self._ops.link(staged, target))
            self._ops.unlink(staged)
            # Also on False: an object created by another writer is durable before anyone acts on having seen it.
            self._ops.fsync_dir(os.path.dirname(target))
            return created

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a file."""
        with self._translate_errors():
            self._replace(key, lambda handle: self._ops.write(handle, memoryview(data), 0), direct=False)

    def get(self, key: str) -> bytes | None:
        """Return a file's content."""
        with self._translate_errors(), self._reading(key, direct=False) as handle:
            if handle is None:
                return None
            content = bytearray(self._ops.length(handle))
            got = self._ops.read(handle, memoryview(content), 0)
            return bytes(content[:got])

    def size(self, key: str) -> Bytes | None:
        """Return a file's length [B]."""
        with self._translate_errors():
            size_bytes = self._ops.size(self._path(key))
        return None if size_bytes is None else Bytes(size_bytes)

    def delete(self, key: str) -> None:
        """Remove a file and the folders that become empty."""
        path = self._path(key)
        with self._translate_errors():
            if self._ops.unlink(path):
                self._remove_empty_folders(os.path.dirname(path))

    def list(self, prefix: str) -> list[str]:
        """Return the keys that start with `prefix`, without staging folders."""
        folder = prefix.rpartition("/")[0]
        base = f"{folder}/" if folder else ""
        with self._translate_errors():
            names = self._ops.walk(os.path.join(self._root, folder))
        keys = (base + name for name in names)
        return sorted(key for key in keys if key.startswith(prefix) and not key.startswith(f"{STAGING}/"))

    def put_range(
        self, key: str, path: str, offset: int, size_bytes: int, cancelled: Callable[[], bool] | None = None
    ) -> str:
        """Store a range of a local file: read, hash and write in parallel, with direct I/O if it is long."""
        direct = size_bytes >= DIRECT_MIN_BYTES
        digest = ""
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

        def fill(into: memoryview, at: int) -> int:
            if cancelled is not None and cancelled():
                raise TransferCancelled(f"the upload of {path} was cancelled")
            return read_fully(source, into[: size_bytes - at], offset + at)

        def write(handle: int) -> None:
            nonlocal digest

            def drain(data: memoryview, at: int) -> None:
                self._ops.write(handle, _padded(data) if direct else data, at)

            digest, done = pump(size_bytes, fill, drain, self._buffers, lambda: hit("store.put_range:middle"))
            if done < size_bytes:
                raise EOFError(f"{path} is {size_bytes - done} bytes shorter than offset {offset} + {size_bytes} bytes")
            if direct:
                self._ops.truncate(handle, size_bytes)

        try:
            with self._translate_errors():
                self._replace(key, write, direct=direct)
        finally:
            os.close(source)
        return digest

    def get_range(self, key: str, path: str, offset: int, size_bytes: int) -> str | None:
        """Write a file's content into another at `offset`, hashed during the copy."""
        target = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with self._translate_errors(), self._reading(key, direct=size_bytes >= DIRECT_MIN_BYTES) as handle:
                if handle is None:
                    return None
                length = self._ops.length(handle)

                def fill(into: memoryview, at: int) -> int:
                    return self._ops.read(handle, into, at)

                def drain(data: memoryview, at: int) -> None:
                    if length == size_bytes:
                        write_fully(target, data, offset + at)

                digest, _ = pump(length, fill, drain, self._buffers, lambda: hit("store.get_range:middle"))
                return digest
        finally:
            os.close(target)

    # ------------------------------------------------------------------------------------------------------ writing

    def _replace(self, key: str, write: Callable[[int], None], *, direct: bool) -> None:
        target = self._path(key)
        staged = self._stage(write, direct=direct)
        self._in_folder_of(target, lambda: self._ops.rename(staged, target))
        self._ops.fsync_dir(os.path.dirname(target))

    def _stage(self, write: Callable[[int], None], *, direct: bool) -> str:
        """Fill a new file in the staging folder; return its path once its content is durable."""
        path, handle = self._open_staged(direct=direct)
        try:
            try:
                write(handle)
                self._ops.fsync(handle)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._ops.close(handle)
                raise
            self._ops.close(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                self._ops.unlink(path)
            raise
        return path

    def _open_staged(self, *, direct: bool) -> tuple[str, int]:
        for attempt in range(TRIES_MAX):
            staging = None
            try:
                with self._lock:
                    if self._staging_folder is None:
                        self._staging_folder = self._open_staging()
                    self._staged += 1
                    staging, path = self._staging_folder, f"{self._staging_folder}/{self._staged}"
                return path, self._ops.open_new(path, direct)
            except (FileNotFoundError, FileExistsError):
                # Another process removed the staging folder between its creation and its lock.
                if attempt == TRIES_MAX - 1:
                    raise
                with self._lock:
                    if self._staging_folder == staging:
                        self._staging_folder = None
        raise AssertionError("the loop returns or raises")

    def _open_staging(self) -> str:
        """Remove the staging folders of dead writers, then create and lock a new one; the lock ends with the process."""
        above = f"{self._root}/{STAGING}"
        self._make_folders(above)
        for name in sorted({name.split("/")[0] for name in self._ops.walk(above)}):
            self._clear_if_abandoned(f"{above}/{name}")
        number = 0
        while not self._ops.make_dir(f"{above}/{os.getpid()}-{number}"):
            number += 1
        staging = f"{above}/{os.getpid()}-{number}"
        with _without_locks():
            self._ops.lock(f"{staging}/lock")
        return staging

    def _clear_if_abandoned(self, staging: str) -> None:
        with _without_locks():
            try:
                lock = self._ops.lock(f"{staging}/lock")
            except FileNotFoundError:
                return
            if lock is None:
                return
            for name in self._ops.walk(staging):
                self._ops.unlink(f"{staging}/{name}")
            self._ops.remove_dir(staging)
            self._ops.close(lock)

    # ------------------------------------------------------------------------------------------------------ folders

    def _in_folder_of(self, target: str, name: Callable[[], T]) -> T:
        """Name a file in its folder, which is durable first; create it again if another process removes it."""
        folder = os.path.dirname(target)
        for _ in range(TRIES_MAX - 1):
            with contextlib.suppress(FileNotFoundError):
                self._make_durable(folder)
                return name()
            with self._lock:
                self._durable_folders.clear()
        self._make_durable(folder)
        return name()

    def _make_durable(self, folder: str) -> None:
        """Create a folder and make its name, and those of all folders above it up to the root, durable.

        Another process may have created a folder and not synced it yet, so each process syncs each folder once.
        """
        if folder in self._durable_folders:
            return
        self._make_folders(folder)
        above, outside = folder, os.path.dirname(self._root)
        while above not in {outside, os.path.dirname(above)}:
            above = os.path.dirname(above)
            # If the root existed before, the folder above it may be unreadable; then its names need no sync by this process.
            with contextlib.suppress(PermissionError) if above == outside else contextlib.nullcontext():
                self._ops.fsync_dir(above)
        with self._lock:
            self._durable_folders.add(folder)

    def _make_folders(self, folder: str) -> None:
        try:
            made = self._ops.make_dir(folder)
        except FileNotFoundError:
            self._make_folders(os.path.dirname(folder))
            made = self._ops.make_dir(folder)
        if made and not folder.startswith(f"{self._root}/"):
            self._ops.fsync_dir(os.path.dirname(folder))

    def _remove_empty_folders(self, folder: str) -> None:
        # Folders directly under the root are kept: only those whose names are never used again may be removed, or a
        # writer that relies on a folder it once synced could put an object into a new one that is not synced.
        while os.path.dirname(folder) != self._root and folder != self._root and self._ops.remove_dir(folder):
            folder = os.path.dirname(folder)

    # ------------------------------------------------------------------------------------------------------ reading

    @contextlib.contextmanager
    def _reading(self, key: str, *, direct: bool) -> Iterator[int | None]:
        handle = self._ops.open_old(self._path(key), direct)
        try:
            yield handle
        finally:
            if handle is not None:
                self._ops.close(handle)

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or parts[0] == STAGING:
            raise ValueError(
                f"invalid key {key!r}: it must be relative, without empty parts, '.' or '..', and not under {STAGING}/"
            )
        return f"{self._root}/{key}"

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert errors of the file system to store errors."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            where = self.url if error.filename is None else f"{self.url} (at {error.filename})"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(
                    f"{where} has no space left ({reason}): free some space or use another location"
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreDenied(f"{where} cannot be accessed ({reason}): give this user permission") from error
            kind = StoreMissing if error.errno in _NO_FOLDER else StoreUnreachable
            raise kind(f"{where} failed ({reason}): check the path and its file system") from error


def _padded(data: memoryview) -> memoryview:
    """Return the view's buffer from its start, extended to the next aligned length, as direct I/O requires whole blocks."""
    length = rounded_up(len(data))
    if length == len(data):
        return data
    whole = memoryview(data.obj)
    assert len(whole) >= length, "buffers are whole blocks"
    return whole[:length]


@contextlib.contextmanager
def _without_locks() -> Iterator[None]:
    """Ignore file systems without locks: no process removes a staging folder there."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
