"""Saves of running items: finds the newest whole files, stores them, and puts them into the folder of the next try.

A file is whole if no process of its item has it open for writing; one that is only appended to is whole at each moment.
A save exists once its document does, which is created after its files, so that a runner that is killed between them
leaves nothing that is used.  A save from which a try fails before it has saved anything new is not used again: then the
save before it is, which is why two are kept.

Everything that needs the store is done in a thread of its own, because files may be large.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windfall.agent import item_files
from windfall.agent.item_schedule import ItemSchedule
from windfall.bags import ItemEnd, ItemLease, ItemSave, RestartRule, SavedItemFile
from windfall.errors import StoreError
from windfall.linux import open_files, processes
from windfall.ports import Clock, ObjectStore
from windfall.structs import Struct
from windfall.terms import Instant, Seconds
from windfall.wire import hand_over, restart_layout

LOOK_S = Seconds(0.25)
"""The time between two looks at the files of items [s]."""
EARLY_SHARE = 0.75
"""Files that come after this share of the interval are stored: the program may save at an interval of its own."""
KEPT = 2
"""How many saves of an item are kept."""
RESTORES = 5
"""How often a save is looked for in a store that does not answer, a second apart; then the item starts from nothing."""
_NEW = ".restoring"


class _FileVersion(Struct, frozen=True):
    """What identifies a version of a file; the order is that of age."""

    modified_ns: int
    path: str
    inode: int
    size_bytes: int


class _Files(Struct, frozen=True):
    """Files that make a save: those that do not change, and those to which a process appends, whose length may grow."""

    fixed: tuple[_FileVersion, ...]
    growing: tuple[_FileVersion, ...] = ()


class _Watched:
    """A running item."""

    def __init__(self, lease: ItemLease, folder: Path, pid: int, since: Instant) -> None:
        self.lease, self.folder, self.pid, self.since = lease, folder, pid, since
        self.stored_at = since
        self.known: set[_FileVersion] = set()
        self.handed = 0
        self.before_s = 0.0
        self.places = 0


class SavePorts(Struct, frozen=True):
    """What saves depend on.

    Attributes:
        log: takes a message for the machine's output.
        restored: takes an item whose folder is ready, and the files that were put there, the newest last.
    """

    clock: Clock
    store: ObjectStore
    log: Callable[[str], None]
    restored: Callable[[ItemLease, Sequence[str]], None]


class ItemSaves:
    """The saves of a machine's items; its methods return at once."""

    def __init__(self, rule: RestartRule, schedule: ItemSchedule, ports: SavePorts) -> None:
        self._rule, self._schedule, self._ports = rule, schedule, ports
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._watched: dict[ItemLease, _Watched] = {}
        self._from: dict[ItemLease, str] = {}
        self._before_s: dict[ItemLease, float] = {}
        self._saved: set[ItemLease] = set()
        self._urgent = False
        self._thread = threading.Thread(target=self._work, name="saves", daemon=True)
        self._thread.start()

    def restore(self, lease: ItemLease, folder: Path) -> None:
        """Put an item's newest save into its folder; `SavePorts.restored` is called in any case."""
        self._jobs.put(lambda: self._restore(lease, folder))

    def started(self, lease: ItemLease, folder: Path, pid: int, restored: Sequence[str]) -> float:
        """Watch an item's files, those that were restored are not new; return how much of its work these are [s]."""
        one = _Watched(lease, folder, pid, self._ports.clock.now())
        one.before_s = self._before_s.pop(lease, 0.0)
        with contextlib.suppress(OSError):
            one.known = {_version(folder, path) for path in restored}
        self._watched[lease] = one
        return one.before_s

    def ended(self, lease: ItemLease, end: ItemEnd) -> None:
        """Watch it no longer; its folder may go."""
        self._watched.pop(lease, None)
        if end in (ItemEnd.FAILED, ItemEnd.TIMED_OUT):
            self._jobs.put(lambda: self._distrust(lease))

    def counted(self, lease: ItemLease) -> None:
        """Delete the saves of an item that is done, once that is in the bag's log."""
        if lease.number > 1 or lease in self._saved:
            self._jobs.put(lambda: self._forget(lease))

    def announce(self, *, ends: bool) -> None:
        """Store each new save at once while the machine's end is announced, and make items save."""
        if ends and not self._urgent and self._rule.signal:
            for one in tuple(self._watched.values()):
                send_signal(one.pid, self._rule.signal)
        self._urgent = ends

    def close(self) -> None:
        """End the thread once it has done what it was given."""
        self._jobs.put(None)
        self._thread.join()

    # ------------------------------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=LOOK_S)
            except queue.Empty:
                job = self._look
            if job is None:
                return
            try:
                job()
            except StoreError as error:
                self._ports.log(f"cannot store what items are restarted from, trying again: {error}")

    def _look(self) -> None:
        for one in tuple(self._watched.values()):
            with contextlib.suppress(OSError):  # the item has ended, and its folder is gone
                self._look_at(one)

    def _look_at(self, one: _Watched) -> None:
        handed, paths = hand_over.read_handed(one.folder)
        if handed > one.handed:
            self._hand_over(one, handed, paths)
        elif self._rule.files and self._is_due(one):
            files = self._whole(one)
            if any(version not in one.known for version in files.fixed or files.growing):
                self._store(one, files)

    def _hand_over(self, one: _Watched, number: int, paths: Sequence[str]) -> None:
        """Store what the item's script has handed over, and answer it."""
        try:
            stored = self._store(one, _Files(tuple(_version(one.folder, path) for path in paths)))
            problem = "" if stored else "a file changed while it was stored"
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
        one.handed = number
        hand_over.write_answer(one.folder, number, problem)

    def _is_due(self, one: _Watched) -> bool:
        now = self._ports.clock.now()
        if self._urgent:
            return True
        every_s = self._schedule.plan(now - one.since).every_s
        return every_s > 0.0 and now >= one.stored_at + EARLY_SHARE * every_s

    def _whole(self, one: _Watched) -> _Files:
        """Return the newest whole file of each pattern; nothing where one has none, or the item ends."""
        matching = [
            [_version(one.folder, str(path)) for path in item_files.collected([pattern], one.folder)]
            for pattern in self._rule.files
        ]
        if not all(matching):
            return _Files(())
        written = open_files.written_files((one.pid, *processes.descendants(one.pid)))
        if processes.started_at(one.pid) is None:
            return _Files(())  # a file that it had not finished looks whole now
        fixed, growing = set[_FileVersion](), set[_FileVersion]()
        for versions in matching:
            appended = {version: written.get(os.path.realpath(one.folder / version.path)) for version in versions}
            whole = [version for version in versions if appended[version] is not False]
            if not whole:
                return _Files(())
            newest = max(whole, key=_age)
            (growing if appended[newest] else fixed).add(newest)
        return _Files(tuple(sorted(fixed, key=_age)), tuple(sorted(growing, key=_age)))

    def _store(self, one: _Watched, found: _Files) -> bool:
        """Store a save; return False, without its document, if a file changes meanwhile."""
        started, versions = self._ports.clock.now(), (*found.growing, *found.fixed)
        one.places += 1
        files = []
        for number, version in enumerate(versions):
            key = restart_layout.save_file_key(one.lease, one.places, number)
            try:
                digest = self._ports.store.put_range(key, str(one.folder / version.path), 0, version.size_bytes)
            except EOFError:
                return False
            files.append(SavedItemFile(version.path, key, version.size_bytes, digest))
        if any(_version(one.folder, version.path) != version for version in found.fixed):
            return False
        if one.lease not in self._watched:
            return False  # it has ended: what it left may be half of a file
        work_s = Seconds(one.before_s + started - one.since)
        save = ItemSave(one.lease, one.places, tuple(files), work_s)
        self._ports.store.create(restart_layout.save_key(one.lease, one.places), restart_layout.save_to_bytes(save))
        now = self._ports.clock.now()
        self._schedule.stored(now - started)
        self._saved.add(one.lease)
        one.known, one.stored_at = set(versions), now
        self._delete_old(one.lease)
        return True

    def _delete_old(self, lease: ItemLease) -> None:
        """Delete all but the newest saves up to this lease; those of a later one are not this runner's."""
        last = restart_layout.save_key(lease, 10**8 - 1)
        keys = [key for key in self._ports.store.list(restart_layout.saves_prefix(lease.item)) if key <= last]
        for key in keys[:-KEPT]:
            self._delete(key)

    def _delete(self, key: str) -> None:
        """Delete a save: its document first."""
        data = self._ports.store.get(key)
        self._ports.store.delete(key)
        if data is not None:
            with contextlib.suppress(ValueError):
                for file in restart_layout.save_from_bytes(data).files:
                    self._ports.store.delete(file.key)

    def _distrust(self, lease: ItemLease) -> None:
        key = self._from.pop(lease, None)
        if key is not None and lease not in self._saved:
            self._delete(key)

    def _forget(self, lease: ItemLease) -> None:
        self._saved.discard(lease)
        self._from.pop(lease, None)
        for prefix in (restart_layout.saves_prefix(lease.item), restart_layout.item_prefix(lease.item)):
            for key in self._ports.store.list(prefix):
                self._ports.store.delete(key)

    # ---------------------------------------------------------------------------------------------------------- restoring

    def _restore(self, lease: ItemLease, folder: Path) -> None:
        files: Sequence[str] = ()
        for attempt in range(RESTORES):
            try:
                files = self._newest(lease, folder)
                break
            except (StoreError, OSError) as error:
                self._ports.log(f"item {lease.item}: cannot fetch its save: {error}")
                if attempt + 1 < RESTORES:
                    self._ports.clock.sleep(Seconds(1.0))
        self._ports.restored(lease, files)

    def _newest(self, lease: ItemLease, folder: Path) -> Sequence[str]:
        """Fetch the newest save that is complete, and return its files; none if there is none."""
        for key in reversed(self._ports.store.list(restart_layout.saves_prefix(lease.item))):
            data = self._ports.store.get(key)
            if data is None:
                continue
            try:
                save = restart_layout.save_from_bytes(data)
            except ValueError as error:
                self._ports.log(f"{key} is no save of an item ({error}): the one before it is used")
                continue
            if self._fetch(save, folder):
                self._from[lease], self._before_s[lease] = key, save.work_s
                return [file.path for file in save.files]
            self._ports.log(f"item {lease.item}: {key} is damaged: the save before it is used")
        return ()

    def _fetch(self, save: ItemSave, folder: Path) -> bool:
        arrived = [folder / f"{_NEW}-{number}" for number in range(len(save.files))]
        for path, file in zip(arrived, save.files, strict=True):
            with path.open("wb") as new:
                new.truncate(file.size_bytes)
            if self._ports.store.get_range(file.key, str(path), 0, file.size_bytes) != file.digest:
                for other in arrived:
                    other.unlink(missing_ok=True)
                return False
        for path, file in zip(arrived, save.files, strict=True):
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        return True


def _version(folder: Path, path: str) -> _FileVersion:
    found = os.stat(folder / path)
    return _FileVersion(found.st_mtime_ns, path, found.st_ino, found.st_size)


def _age(version: _FileVersion) -> tuple[int, str]:
    return version.modified_ns, version.path


def send_signal(pid: int, number: int) -> bool:
    """Send a signal to those processes of an item that have a handler for it: others would die of it, shells first.

    Returns:
        Whether there is one.
    """
    sent = False
    for each in _running((pid, *processes.descendants(pid))):
        if open_files.catches(each, number):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.Signals(number))
                sent = True
    return sent


def _running(pids: Sequence[int]) -> Iterator[int]:
    return (pid for pid in pids if processes.started_at(pid) is not None)
