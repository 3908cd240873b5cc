"""A machine's connection to the coordinator: it sees the newest layout, and says what it is doing, through a TCP store.

The store is at the leading machine, and another one follows when that is lost; the file that names this machine then names the
new one.  Nothing that trains waits for it: a thread reads layouts and writes reports, and tries again while it cannot.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windfall.errors import Misuse
from windfall.runtimes.shape_tcp import ANSWER_WITHIN_S, connected
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.structs import Struct, replace

LOOK_EVERY_S = 0.02
"""How often layouts are read [s]."""
REPORT_EVERY_S = 0.05
"""How often a report is written; what is more than another step is reported at once [s]."""
LAYOUT = "layout"
TERMS = "terms"


class ElasticPlace(Struct, frozen=True):
    """What a machine is told when its script starts: the file that the environment names.

    Attributes:
        store: host and port of the TCP store.
        machine: name of this one.
        address: at which its peers reach it.
        reliable: it cannot be preempted; it keeps state, and trains nothing.
        started_s: instant at which it joined [s].
        leaving: its end is announced.
        url: of the run's store; empty: none.
        settings: of the job.
        memory_bytes: of the machine; 0 if not known.
        ends_s: when it ends, by the monotonic clock of the machine; None if that is not announced [s].
    """

    store: str
    machine: str
    address: str = "127.0.0.1"
    reliable: bool = False
    started_s: float = 0.0
    leaving: bool = False
    url: str = ""
    settings: Mapping[str, Any] = {}
    memory_bytes: float = 0.0
    ends_s: float | None = None


def version_of(layout: ShapeLayout | None) -> int:
    """Return a layout's version; 0 for none."""
    return 0 if layout is None else layout.version


def read_place(path: str) -> ElasticPlace:
    """Read the file.

    Raises:
        Misuse: it is not there, or damaged.
    """
    try:
        place: ElasticPlace = msgspec.json.decode(Path(path).read_bytes(), type=ElasticPlace)
    except (OSError, msgspec.MsgspecError) as error:
        raise Misuse(f"{path} does not say which machine of an elastic training this is: {error}") from None
    return place


def _stamp(path: str) -> tuple[int, int]:
    """Return what differs once a file has been replaced, even by one that is hardly younger."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ino


class ShapeWatch:
    """Sees layouts and writes reports, in a thread.

    Args:
        path: of the file that names this machine.

    Attributes:
        place: what the file says.
        report: what is reported next; replace it as a whole, by `update`.
        taken_for_lost: the coordinator has given this machine up, and others do its work.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # Before it is read: what is written meanwhile is seen at the next look.
        self._stamp = _stamp(path)
        self.place = read_place(path)
        place = self.place
        self.report = ShapeReport(
            place.machine, place.reliable, place.started_s, place.leaving, 0, 0, place.address, 0, 0, 0,
            stopped=False, held=(), trained=0,
        )  # fmt: skip
        self.taken_for_lost = False
        self._written: ShapeReport | None = None
        self._written_at_s = 0.0
        self._changed = threading.Condition()
        self._newest: ShapeLayout | None = None
        self._guard: Callable[[ShapeLayout | None], None] | None = None
        self._guarded = 0
        self._posts: list[tuple[str, bytes]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to look; the first full garbage collection is made before.

        With torch imported it takes a fifth of a second and more, and would come in one of the first steps, which all machines
        share.  The next one comes once Python keeps a quarter more.
        """
        if gc.isenabled():
            gc.collect()
        self._thread.start()

    def close(self) -> None:
        """Write the last report, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(2 * ANSWER_WITHIN_S)

    # ------------------------------------------------------------------------------------------------------------ what it says

    def update(self, **changes: Any) -> None:
        """Report something else from now on."""
        with self._changed:
            self.report = replace(self.report, **changes)
            if not changes.keys() <= {"trained", "step_s", "held"}:
                self._changed.notify_all()

    def post(self, key: str, value: bytes) -> None:
        """Set a key of the store, soon."""
        with self._changed:
            self._posts = [one for one in self._posts if one[0] != key] + [(key, value)]
            self._changed.notify_all()

    def agree(self, key: str, value: bytes) -> bytes:
        """Set a key of the store unless it has a value, and return what it has.

        Raises:
            OSError, RuntimeError: the store does not answer.
        """
        found: bytes = self.store().compare_set(key, "", value.decode())
        return found

    def store(self) -> Any:
        """Return a connection of the caller's own.

        Raises:
            OSError, RuntimeError: it does not answer.
        """
        return connected(self.place.store)

    # ----------------------------------------------------------------------------------------------------------- what it sees

    @property
    def newest(self) -> ShapeLayout | None:
        """The newest layout."""
        return self._newest

    def next_layout(self, wanted: Callable[[ShapeLayout], bool], within_s: float | None = None) -> ShapeLayout | None:
        """Wait for a layout, and return it; None if there is none in time."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.taken_for_lost or (self._newest is not None and wanted(self._newest)), within_s
            )
            return self._newest if self._newest is not None and wanted(self._newest) else None

    def guard(self, layout: ShapeLayout | None, alarm: Callable[[ShapeLayout | None], None]) -> None:
        """Call a function when a newer layout is seen, or with None when a peer has met a broken connection in this one.

        It is called by the thread, at most once for each; with a layout that is seen already at once.
        """
        with self._changed:
            self._guarded, self._guard = version_of(layout), alarm
            newest = self._newest
        if newest is not None and version_of(newest) > version_of(layout):
            alarm(newest)

    def unguard(self) -> None:
        """Call it no more."""
        with self._changed:
            self._guard = None

    # ----------------------------------------------------------------------------------------------------------------- inside

    def _run(self) -> None:
        store: Any = None
        while True:
            # What was said before it was closed is written before it ends.
            last = self._closed
            try:
                if store is None:
                    store, self._written = connected(self.place.store), None
                self._look(store)
                self._write(store)
            except (OSError, RuntimeError):
                # The leading machine is lost, or busy: the file will say where the next one is.
                store = None
            if last:
                return
            with self._changed:
                if not self._closed:
                    self._changed.wait(LOOK_EVERY_S)
            self._look_at_file()

    def _look_at_file(self) -> None:
        with contextlib.suppress(OSError, Misuse):
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self.place, self._stamp = read_place(self._path), stamp
                self.update(leaving=self.place.leaving)

    def _look(self, store: Any) -> None:
        if store.check([f"lost/{self.place.machine}"]):
            with self._changed:
                self.taken_for_lost = True
                self._changed.notify_all()
            if self._guard is not None:
                self._guard(None)
        if not store.check([LAYOUT]):
            return
        layout = msgspec.json.decode(store.get(LAYOUT), type=ShapeLayout)
        guard, old = self._guard, self._newest
        if old is None or layout.record > old.record:
            with self._changed:
                self._newest = layout
                self.report = replace(self.report, coordinator=layout.coordinator)
                self._changed.notify_all()
            if guard is not None and layout.version > self._guarded:
                if ends(layout):
                    # Before its connections break: who sees that looks here why.
                    store.set(broken_key(self._guarded), b"1")
                guard(layout)
        elif guard is not None and store.check([broken_key(self._guarded)]):
            self.unguard()
            guard(None)

    def _write(self, store: Any) -> None:
        with self._changed:
            posts, self._posts = self._posts, []
            report, now_s = self.report, time.monotonic()
        for key, value in posts:
            store.set(key, value)
        old, waited_s = self._written, now_s - self._written_at_s
        if old is not None and not self._closed and waited_s < REPORT_EVERY_S and not _differs(old, report):
            return
        with self._changed:
            ends_s = self.place.ends_s
            report = self.report = replace(
                self.report, number=self.report.number + 1, ends_in_s=None if ends_s is None else ends_s - now_s
            )
        store.set(f"report/{report.machine}", msgspec.json.encode(report))
        self._written, self._written_at_s = report, now_s


def broken_key(version: int) -> str:
    """Return the key that says that a layout's machines have given it up."""
    return f"broken/{version}"


def gave_up_key(version: int, machine: str) -> str:
    """Return the key that says that a machine lives and has given a layout up."""
    return f"gave up/{version}/{machine}"


def lost_of(store: Any, version: int, machine: str, peers: Sequence[str]) -> tuple[str, ...]:
    """Return the machines that are lost, of those to which a connection broke in a layout; say that this one lives.

    It says so before its own connections break: who sees that, and asks in the same way, does not take it for lost.
    """
    if store is None:
        return ()
    try:
        store.set(gave_up_key(version, machine), b"1")
        return tuple(one for one in peers if not store.check([gave_up_key(version, one)]))
    except RuntimeError:
        # With the store its machine is lost; the coordinator that follows takes none for lost that reports to it.
        return tuple(peers)


def ready_key(version: int, machine: str) -> str:
    """Return the key that says that a machine is ready for a layout."""
    return f"ready/{version}/{machine}"


def ends(newer: ShapeLayout) -> bool:
    """Return whether a layout ends the one before at once."""
    return newer.stop or newer.over or newer.step is not None


def _differs(old: ShapeReport, new: ShapeReport) -> bool:
    """Return whether more has changed than what changes with every step."""
    same = replace(
        new, number=old.number, held=old.held if not new.stopped else new.held, trained=old.trained, step_s=old.step_s,
        ends_in_s=old.ends_in_s,
    )  # fmt: skip
    return same != old
