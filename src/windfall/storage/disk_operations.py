"""The minimal file operations of the file store; tests replace them by a simulated disk and failpoints.

The store's guarantees depend on those of POSIX and Linux for exactly these calls: data is on the medium after `fsync` of
the file, a name after `fsync_dir` of its folder, `link` never replaces a name, `rename` replaces it atomically.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol


class FileOps(Protocol):
    """File operations by absolute path and descriptor; they raise `OSError` as the operating system does."""

    def make_dir(self, path: str) -> bool:
        """Create one folder; return False if the name exists."""
        ...

    def remove_dir(self, path: str) -> bool:
        """Remove a folder; return False if it is not empty or does not exist."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...

    def lock(self, path: str) -> int | None:
        """Open or create a file and lock it while the descriptor is open; None if another descriptor has the lock."""
        ...

    def open_new(self, path: str, direct: bool) -> int:
        """Create a file for writing; `direct` requests direct I/O, if supported."""
        ...

    def open_old(self, path: str, direct: bool) -> int | None:
        """Open a regular file for reading; None if it does not exist."""
        ...

    def length(self, handle: int) -> int:
        """Return an open file's length [B]."""
        ...

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset`, short only at the file's end; return the number of bytes."""
        ...

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""
        ...

    def truncate(self, handle: int, size_bytes: int) -> None:
        """Cut an open file to a length."""
        ...

    def fsync(self, handle: int) -> None:
        """Make an open file's content durable."""
        ...

    def close(self, handle: int) -> None:
        """Close a descriptor; network file systems report failed writes here."""
        ...

    def link(self, source: str, target: str) -> bool:
        """Create a second name of a file; return False, changing nothing, if the name exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target atomically."""
        ...

    def unlink(self, path: str) -> bool:
        """Remove a file's name; return False if it does not exist."""
        ...

    def size(self, path: str) -> int | None:
        """Return a regular file's length [B], None if it does not exist."""
        ...

    def walk(self, path: str) -> list[str]:
        """Return the relative names of all regular files below a folder, empty if it does not exist."""
        ...


class DiskOps:
    """`FileOps` on this machine's file systems."""

    def make_dir(self, path: str) -> bool:
        """Create one folder with the default permissions."""
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True

    def remove_dir(self, path: str) -> bool:
        """Remove an empty folder."""
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY):
                return False
            raise
        return True

    def fsync_dir(self, path: str) -> None:
        """Sync a folder; file systems that do not support it (EINVAL) do not need it."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(handle)

    def lock(self, path: str) -> int | None:
        """Take flock(2) on a file without waiting."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            os.close(handle)
            raise
        return handle

    def open_new(self, path: str, direct: bool) -> int:
        """Create a file that must not exist, with direct I/O if the file system supports it."""
        return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, direct)

    def open_old(self, path: str, direct: bool) -> int | None:
        """Open a regular file, with direct I/O if the file system supports it."""
        try:
            handle = _open(path, os.O_RDONLY, direct)
        except (FileNotFoundError, IsADirectoryError):
            return None
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        return None

    def length(self, handle: int) -> int:
        """Return the length by fstat."""
        return os.fstat(handle).st_size

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        """Read until `into` is full or the file ends."""
        done = 0
        while done < len(into):
            count = _with_fallback(_read_some, handle, into[done:], offset + done)
            if count == 0:
                break
            done += count
        return done

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        """Write until all is written."""
        done = 0
        while done < len(data):
            done += _with_fallback(os.pwrite, handle, data[done:], offset + done)

    def truncate(self, handle: int, size_bytes: int) -> None:
        """Cut by ftruncate."""
        os.ftruncate(handle, size_bytes)

    def fsync(self, handle: int) -> None:
        """Sync content and length."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close, raising errors of the file system."""
        os.close(handle)

    def link(self, source: str, target: str) -> bool:
        """Link without replacing."""
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        return True

    def rename(self, source: str, target: str) -> None:
        """Rename with replacing."""
        os.rename(source, target)

    def unlink(self, path: str) -> bool:
        """Remove a name."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int | None:
        """Return the length by stat."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def walk(self, path: str) -> list[str]:
        """Descend without following links; skip what vanishes in the meantime."""
        return list(_files_below(path, ""))


def _files_below(path: str, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield f"{prefix}{entry.name}"


def _open(path: str, flags: int, direct: bool) -> int:
    if direct:
        try:
            return os.open(path, flags | os.O_CLOEXEC | os.O_DIRECT, 0o644)
        except OSError as error:
            # tmpfs of older kernels and some network file systems reject it; with O_CREAT the file may exist by now.
            if error.errno != errno.EINVAL:
                raise
            if flags & os.O_CREAT and os.path.exists(path):
                os.unlink(path)
    return os.open(path, flags | os.O_CLOEXEC, 0o644)


def _read_some(handle: int, into: memoryview, offset: int) -> int:
    return os.preadv(handle, [into], offset)


def _with_fallback(transfer: Callable[[int, memoryview, int], int], handle: int, view: memoryview, offset: int) -> int:
    """Transfer bytes; if direct I/O fails because of the alignment, use the page cache from now on."""
    try:
        return transfer(handle, view, offset)
    except OSError as error:
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
            raise
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return transfer(handle, view, offset)
