"""A disk that keeps only what was synced: `FileOps` in memory with a power cut at any call, deterministic by its seed.

At the cut each file's unsynced content is torn sector by sector between the old, the new and zeros, at a length between
the old and the new one; each name changed since its folder was synced is, by the seed, as before or as after.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

SECTOR_BYTES = 512
_OPENING = frozenset({"lock", "open_new", "open_old"})


class PowerCut(BaseException):
    """The machine is gone; no `except OSError` may catch it."""


@dataclass(eq=False)
class File:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)


class SimulatedDisk:
    """`FileOps` under which the power fails at call number `cut_at`, before or after it is carried out."""

    def __init__(self, seed: int = 0, cut_at: int | None = None, *, after: bool = False) -> None:
        self.calls: list[str] = []
        self._random = random.Random(seed)
        self._cut_at = cut_at
        self._after = after
        self._dead = False
        self._top = Folder()
        self._handles: dict[int, File] = {}
        self._locked: dict[int, int] = {}
        self._numbers = itertools.count(3)
        self._lock = threading.RLock()

    def restart(self) -> None:
        """Lose what was not synced and switch the machine on again; no further cut comes."""
        self._lose(self._top)
        self._handles.clear()
        self._locked.clear()
        self._cut_at, self._dead = None, False

    @property
    def dead(self) -> bool:
        """Whether the power is off."""
        return self._dead

    def cut_in(self, calls: int) -> None:
        """Let the power fail so many calls from now."""
        self._cut_at = len(self.calls) + calls

    def content(self) -> dict[str, bytes]:
        """Every file by its path below the top."""
        return {name: bytes(file.content) for name, file in _files(self._top, "")}

    def peek(self, path: str) -> bytes | None:
        """Return a file's content without its being a call."""
        file = self._look(path)
        return bytes(file.content) if isinstance(file, File) else None

    def spoil(self, path: str, content: bytes | None) -> None:
        """Let the medium give other bytes than were written, or none."""
        folder, name = self._parent(path)
        if content is None:
            folder.names.pop(name)
            folder.synced.pop(name, None)
            return
        file = folder.names[name]
        assert isinstance(file, File)
        file.content[:] = file.synced = content

    # ---------------------------------------------------------------------------------------------------- FileOps

    def make_dir(self, path: str) -> bool:
        with self._call("make_dir"):
            folder, name = self._parent(path)
            return folder.names.setdefault(name, made := Folder()) is made

    def remove_dir(self, path: str) -> bool:
        with self._call("remove_dir"):
            folder, name = self._parent(path)
            found = folder.names.get(name)
            if not isinstance(found, Folder) or found.names:
                return False
            del folder.names[name]
            return True

    def fsync_dir(self, path: str) -> None:
        with self._call("fsync_dir"):
            folder = self._find(path)
            assert isinstance(folder, Folder), path
            folder.synced = dict(folder.names)

    def lock(self, path: str) -> int | None:
        with self._call("lock"):
            folder, name = self._parent(path)
            file = folder.names.setdefault(name, File())
            assert isinstance(file, File)
            if id(file) in self._locked.values():
                return None
            handle = self._opened(file)
            self._locked[handle] = id(file)
            return handle

    def open_new(self, path: str, direct: bool) -> int:
        with self._call("open_new"):
            folder, name = self._parent(path)
            if name in folder.names:
                raise FileExistsError(17, "File exists", path)
            folder.names[name] = file = File()
            return self._opened(file)

    def open_old(self, path: str, direct: bool) -> int | None:
        with self._call("open_old"):
            file = self._look(path)
            return self._opened(file) if isinstance(file, File) else None

    def length(self, handle: int) -> int:
        with self._call("length"):
            return len(self._handles[handle].content)

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        with self._call("read"):
            data = self._handles[handle].content[offset : offset + len(into)]
            into[: len(data)] = data
            return len(data)

    def write(self, handle: int, data: memoryview, offset: int) -> None:
        with self._call("write"):
            content = self._handles[handle].content
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data

    def truncate(self, handle: int, size_bytes: int) -> None:
        with self._call("truncate"):
            del self._handles[handle].content[size_bytes:]

    def fsync(self, handle: int) -> None:
        with self._call("fsync"):
            file = self._handles[handle]
            file.synced = bytes(file.content)

    def close(self, handle: int) -> None:
        with self._call("close"):
            del self._handles[handle]
            self._locked.pop(handle, None)

    def link(self, source: str, target: str) -> bool:
        with self._call("link"):
            folder, name = self._parent(target)
            if name in folder.names:
                return False
            folder.names[name] = self._find(source)
            return True

    def rename(self, source: str, target: str) -> None:
        with self._call("rename"):
            above, old = self._parent(source)
            folder, name = self._parent(target)
            folder.names[name] = self._find(source)
            del above.names[old]

    def unlink(self, path: str) -> bool:
        with self._call("unlink"):
            try:
                folder, name = self._parent(path)
            except FileNotFoundError:
                return False
            return folder.names.pop(name, None) is not None

    def size(self, path: str) -> int | None:
        with self._call("size"):
            file = self._look(path)
            return len(file.content) if isinstance(file, File) else None

    def walk(self, path: str) -> list[str]:
        with self._call("walk"):
            folder = self._look(path)
            return [name for name, _ in _files(folder, "")] if isinstance(folder, Folder) else []

    # ---------------------------------------------------------------------------------------------------- inside

    def _call(self, name: str) -> _Call:
        return _Call(self, name)

    def enter(self, name: str) -> None:
        self._lock.acquire()
        if self._dead or (len(self.calls) == self._cut_at and not self._after):
            self._dead = True
            self._lock.release()
            raise PowerCut(name)
        self.calls.append(name)

    def leave(self, name: str) -> None:
        if len(self.calls) - 1 == self._cut_at and self._after:
            self._dead = True
        self._lock.release()
        if self._dead:
            raise PowerCut(name)

    def let_go(self, handle: int) -> None:
        """Close a descriptor if it is still open; the process that had it is gone."""
        self._handles.pop(handle, None)
        self._locked.pop(handle, None)

    def _opened(self, file: File) -> int:
        handle = next(self._numbers)
        self._handles[handle] = file
        return handle

    def _look(self, path: str) -> File | Folder | None:
        try:
            return self._find(path)
        except FileNotFoundError:
            return None

    def _find(self, path: str) -> File | Folder:
        node: File | Folder = self._top
        for part in filter(None, path.split("/")):
            if not isinstance(node, Folder) or part not in node.names:
                raise FileNotFoundError(2, "No such file or directory", path)
            node = node.names[part]
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        folder = self._find(os.path.dirname(path))
        assert isinstance(folder, Folder), path
        return folder, os.path.basename(path)

    def _lose(self, node: File | Folder) -> None:
        if isinstance(node, File):
            self._tear(node)
            return
        for name in sorted(node.names.keys() | node.synced.keys()):
            before, now = node.synced.get(name), node.names.get(name)
            kept = before if before is not now and self._random.random() < 0.5 else now
            if kept is None:
                node.names.pop(name, None)
            else:
                node.names[name] = kept
                self._lose(kept)
        node.synced = dict(node.names)

    def _tear(self, file: File) -> None:
        new, old = bytes(file.content), file.synced
        if new != old:
            length = self._random.randint(min(len(new), len(old)), max(len(new), len(old)))
            sectors = []
            for at in range(0, length, SECTOR_BYTES):
                wanted = min(SECTOR_BYTES, length - at)
                sector = self._random.choice((new, old, b""))[at : at + wanted]
                sectors.append(sector + bytes(wanted - len(sector)))
            file.content[:] = b"".join(sectors)
        file.synced = bytes(file.content)


class Process:
    """`FileOps` of one process on a disk: it may die at a call, and its descriptors and locks end with it."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._open: list[int] = []
        self._left: int | None = None

    def die_in(self, calls: int) -> None:
        """Die instead of the call after so many more."""
        self._left = calls

    def end(self) -> None:
        """Let go of what the process had open."""
        for handle in self._open:
            self._disk.let_go(handle)
        self._left = 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        call = getattr(self._disk, name)

        def carry_out(*arguments: object) -> object:
            if self._left == 0:
                raise PowerCut(name)
            if self._left is not None:
                self._left -= 1
            result = call(*arguments)
            if name in _OPENING and result is not None:
                self._open.append(result)
            return result

        self.__dict__[name] = carry_out
        return carry_out


@dataclass
class _Call:
    disk: SimulatedDisk
    name: str

    def __enter__(self) -> None:
        self.disk.enter(self.name)

    def __exit__(self, *_: object) -> None:
        self.disk.leave(self.name)


def _files(folder: Folder, prefix: str) -> list[tuple[str, File]]:
    found: list[tuple[str, File]] = []
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            found += _files(node, f"{prefix}{name}/")
        else:
            found.append((prefix + name, node))
    return found
