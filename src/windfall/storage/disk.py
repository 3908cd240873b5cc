"""What our file writer asks of an operating system, as narrow as it can be: the seam for a simulated disk and failpoints.

The writer's promises rest on what POSIX and Linux promise for exactly these calls: data is on the medium after `fsync`
of the file, a name after `fsync_dir` of its folder, `link` never replaces a name, `rename` replaces it in one step.
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
        """Make one folder; False if the name exists."""
        ...

    def remove_dir(self, path: str) -> bool:
        """Remove a folder; False if it is not empty or not there."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...

    def lock(self, path: str) -> int | None:
        """Open or make a file and lock it for the life of the descriptor; None if another descriptor holds it."""
        ...

    def open_new(self, path: str, direct: bool) -> int:
        """Make a file for writing; `direct` asks for transfers past the page cache, and is a wish."""
        ...

    def open_old(self, path: str, direct: bool) -> int | None:
        """Open a regular file for reading; None if there is none."""
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
        """Give a file a second name; False, changing nothing, if the name exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a name, replacing the target in one step."""
        ...

    def unlink(self, path: str) -> bool:
        """Remove a file's name; False if there is none."""
        ...

    def size(self, path: str) -> int | None:
        """Return a regular file's length [B], None if there is none."""
        ...

    def walk(self, path: str) -> list[str]:
        """Return the relative names of all regular files below a folder, empty if there is no folder."""
        ...


class DiskOps:
    """`FileOps` on this machine's file systems."""

    def make_dir(self, path: str) -> bool:
        """Make one folder with the process's usual permissions."""
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
        """Make a folder's names durable; file systems that cannot do so for folders (EINVAL) need it for none."""
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
        """Make a file that must not exist, past the page cache where the file system can."""
        return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, direct)

    def open_old(self, path: str, direct: bool) -> int | None:
        """Open a regular file, past the page cache where the file system can."""
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
            count = _willingly(_read_some, handle, into[done:], offset + done)
            if count == 0:
                break
            done += count
        return done

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        """Write until all is written."""
        done = 0
        while done < len(data):
            done += _willingly(os.pwrite, handle, data[done:], offset + done)

    def truncate(self, handle: int, size_bytes: int) -> None:
        """Cut by ftruncate."""
        os.ftruncate(handle, size_bytes)

    def fsync(self, handle: int) -> None:
        """Sync content and length."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close, reporting what the file system reports."""
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
        """Descend without following links; what vanishes meanwhile is left out."""
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
            # tmpfs of older kernels and some network file systems refuse; with O_CREAT the file may be there by now.
            if error.errno != errno.EINVAL:
                raise
            if flags & os.O_CREAT and os.path.exists(path):
                os.unlink(path)
    return os.open(path, flags | os.O_CLOEXEC, 0o644)


def _read_some(handle: int, into: memoryview, offset: int) -> int:
    return os.preadv(handle, [into], offset)


def _willingly(transfer: Callable[[int, memoryview, int], int], handle: int, view: memoryview, offset: int) -> int:
    """Carry out a transfer; where it is refused for its alignment, go through the page cache from now on."""
    try:
        return transfer(handle, view, offset)
    except OSError as error:
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
            raise
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return transfer(handle, view, offset)
