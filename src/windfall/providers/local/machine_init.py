"""A machine's init: the parent of everything the machine runs, which dies with it; it outlives the market's daemon.

    python -m windfall.providers.local.machine_init FOLDER

It keeps its processes together as `linux.process_tree` does; if the init itself is killed and they are in no namespace,
the market finds the remaining ones by their environment and kills them.

The init serves the machine's notices as AWS does, on loopback.  It ends the machine when its process ends, at an
announced deadline, or on release, and records when that was.  SIGTERM to the init acts like a computer's shutdown: it is
announced, and the machine ends half a minute later or at a second SIGTERM.  Times are the wall clock at the start plus
monotonic time, so that setting the clock changes no bill.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.linux import processes
from windfall.linux.clock import SystemClock
from windfall.linux.process_tree import MachinePlan, ProcessTree, start_tree
from windfall.market import MachineEndCause
from windfall.providers.local import machine_folder
from windfall.terms import Instant, Seconds, WallTime
from windfall.wire.metadata_server import MetadataServer, serve

if TYPE_CHECKING:
    # A machine starts in half the time without the driver's and the worker's types.
    from windfall.ports import Clock

TICK_S = 0.05
"""How often the init checks for requests and deadlines [s]."""
BEAT_S = 0.2
"""How often it records that it runs [s]."""
DUTY_S = 0.04
"""The period in which a slow machine runs and pauses [s]."""
SHUTDOWN_S = Seconds(30.0)
"""How long the machine's process may run after a SIGTERM to the init [s]."""
INHERITED_ENV = (
    "PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "USER",
    "LOGNAME",
)
"""The variables a machine inherits from its host: where software is, never credentials."""


class MachineInit:
    """One machine from its start to its end."""

    def __init__(self, folder: Path, clock: Clock, terminated: Sequence[int] = ()) -> None:
        """Create the init; nothing is started yet.

        Args:
            folder: the machine's.
            clock: its time.
            terminated: the SIGTERMs received so far; a signal handler appends to it.
        """
        self._folder = folder
        self._clock = clock
        self._terminated = terminated
        self._began_wall = clock.wall_time()
        self._began_at = clock.now()
        self._deadline: Instant | None = None
        self._request: dict[str, Any] = {}
        self._request_stamp: tuple[int, int] | None = None
        self._life: dict[str, Any] = {}

    def wall_time(self) -> WallTime:
        """Return the machine's own time [s since 1970]."""
        return WallTime(self._began_wall + self._elapsed_s())

    def _elapsed_s(self) -> Seconds:
        return Seconds(self._clock.now() - self._began_at)

    def run(self, boot: dict[str, Any]) -> None:
        """Run the machine to its end; do nothing if the market withdrew it, or if it was started before."""
        output_fd = os.open(self._folder / machine_folder.OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        plan = MachinePlan(tuple(boot["argv"]), str(self._folder / "disk"), output_fd)
        tree = start_tree(plan, boot["isolation"])
        self._began_wall, self._began_at = self._clock.wall_time(), self._clock.now()
        if not machine_folder.decide_start(self._folder, {"started": self._began_wall}):
            tree.kill()
            return
        with serve((), "aws", now=self.wall_time) as metadata:
            self._life = {
                "pid": os.getpid(),
                "started_at": processes.started_at(os.getpid()),
                "namespace": tree.namespace,
                "first_pid": tree.first,
                "first_started_at": processes.started_at(tree.first),
                "metadata_url": metadata.url,
                "preemption_at": None,
            }
            machine_folder.write(self._folder, "life.json", self._life)
            os.unlink(self._folder / "boot.json")
            tmp = machine_folder.make_tmp(self._folder)
            tree.go(self._environment(boot, metadata.url, tmp))
            if boot["speed"] < 1:
                _slow_down(tree, boot["speed"], self._clock)
            cause = self._wait_for_end(tree, metadata)
            tree.kill()
            machine_folder.wipe_tmp(self._folder, tmp)
            if self._folder.exists():
                machine_folder.write(self._folder, "end.json", {"ended": self.wall_time(), "cause": cause.value})

    def _environment(self, boot: dict[str, Any], metadata_url: str, tmp: str) -> dict[str, str]:
        disk = self._folder / "disk"
        image = {name: os.environ[name] for name in INHERITED_ENV if name in os.environ}
        ours = {
            "HOME": str(disk / "home"),
            "XDG_STATE_HOME": str(disk / "state"),
            "TMPDIR": tmp,
            machine_folder.MACHINE_ID: self._folder.name,
            "WINDFALL_METADATA_URL": metadata_url,
            "WINDFALL_PROVIDER": "local",
        }
        return {**image, **boot["env"], **ours}

    def _wait_for_end(self, tree: ProcessTree, metadata: MetadataServer) -> MachineEndCause:
        """Wait for the machine's end; return its cause."""
        beat_fd, beat_next_s = machine_folder.open_beat(self._folder), 0.0
        while True:
            if select.select([tree.status_fd], [], [], TICK_S)[0]:
                return _cause_of(os.read(tree.status_fd, 64))
            if self._elapsed_s() >= beat_next_s:
                machine_folder.beat(beat_fd, self._elapsed_s())
                beat_next_s = self._elapsed_s() + BEAT_S
            if self._read_request():
                self._announce(metadata, self._request["preempt"])
            if len(self._terminated) > 1:
                return MachineEndCause.PREEMPTED
            if self._terminated:
                self._announce(metadata, SHUTDOWN_S)
            if self._request.get("release") or not self._folder.exists():
                return MachineEndCause.RELEASED
            if self._deadline is not None and self._clock.now() >= self._deadline:
                return MachineEndCause.PREEMPTED

    def _read_request(self) -> bool:
        try:
            stat = os.stat(self._folder / "request.json")
        except FileNotFoundError:
            return False
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp == self._request_stamp:
            return False
        self._request_stamp = stamp
        self._request = machine_folder.read(self._folder, "request.json") or {}
        return "preempt" in self._request

    def _announce(self, metadata: MetadataServer, notice_s: float | None) -> None:
        deadline = Instant(self._clock.now() + (notice_s or 0.0))
        if self._deadline is not None and self._deadline <= deadline:
            return
        self._deadline = deadline
        self._life["preemption_at"] = self.wall_time() + (notice_s or 0.0)
        machine_folder.write(self._folder, "life.json", self._life)
        if notice_s:
            metadata.announce(notice_s)


def _cause_of(status: bytes) -> MachineEndCause:
    """Return the cause from the status pipe: a command that could not start, or a killed tree, is a failed machine."""
    if not status.strip():
        return MachineEndCause.FAILED
    return MachineEndCause.FAILED if os.waitstatus_to_exitcode(int(status)) == 127 else MachineEndCause.STOPPED


def _slow_down(tree: ProcessTree, speed: float, clock: Clock) -> None:
    """Run the tree only a share of the time, by SIGSTOP and SIGCONT, which need no permission for control groups."""

    def send(number: int) -> None:
        for pid in [*processes.descendants(tree.first), *(() if tree.namespace else (tree.first,))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cycle() -> None:
        while True:
            send(signal.SIGSTOP)
            clock.sleep(Seconds(DUTY_S * (1 - speed)))
            send(signal.SIGCONT)
            clock.sleep(Seconds(DUTY_S * speed))

    threading.Thread(target=cycle, daemon=True, name="speed").start()


def main() -> int:
    """Run as `python -m windfall.providers.local.machine_init FOLDER`."""
    folder = Path(sys.argv[1])
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    lock = machine_folder.acquire_lock(folder)
    boot = None if lock is None else machine_folder.read(folder, "boot.json")
    if boot is not None:
        MachineInit(folder, SystemClock(), terminated).run(boot)
    # Threads of the metadata service may be in the middle of an answer, which no process is left to receive.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
