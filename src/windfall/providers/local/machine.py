"""A machine's init: everything the machine runs is below it and dies with it; it outlives the market that started it.

    python -m windfall.providers.local.machine FOLDER

Two ways to hold a process tree together, tried in this order:

* a PID namespace with `/proc` and shared memory of its own: its PID 1 dies with the init, and the kernel kills the rest;
* a subreaper: the init inherits orphans and kills by a walk of /proc; what is left if the init itself is killed is
  found by its environment and killed by the market.

The init shows the machine's notices as AWS does, on loopback, ends the machine when its process ends, at an announced
deadline, or on release, and writes down when that was.  SIGTERM to the init is to this machine what a shutdown is to a
computer: it is announced, and half a minute later, or at a second SIGTERM, the machine has ended.  Times are the wall
clock at the beginning plus monotonic time, so that nobody is billed for a clock that was set.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from windfall.market import Ended
from windfall.providers.local import process, records
from windfall.providers.local.clocks import SystemClock
from windfall.terms import Instant, Seconds, WallTime
from windfall.wire.metadata import MetadataServer, serve

if TYPE_CHECKING:
    # A machine is up in half the time without the words of driver and worker.
    from windfall.ports import Clock

TICK_S = 0.05
"""How often the init looks for wishes and deadlines [s]."""
BEAT_S = 0.2
"""How often it writes down that it lives [s]."""
DUTY_S = 0.04
"""The period in which a slow machine runs and stands [s]."""
SHUTDOWN_S = Seconds(30.0)
"""How long the machine's process has from a SIGTERM to the init on [s]."""
SUBREAPER = "subreaper"
READY = b"ready"
IMAGE = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME")
"""What a machine takes over from its host: where software is, never anybody's credentials."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The processes of a machine.

    Attributes:
        below: the init's own child, whose end says that the tree has gone (namespace) or its process has ended.
        first: PID 1 of the namespace, or the machine's process; as the host numbers them.
        status_fd: where the process's exit status appears; closed without one if the tree was killed.
        go_fd: takes the environment, upon which the process starts.
    """

    namespace: bool
    below: int
    first: int
    status_fd: int
    go_fd: int

    def go(self, env: dict[str, str]) -> None:
        """Let the machine's process start."""
        with contextlib.suppress(BrokenPipeError), open(self.go_fd, "w", encoding="utf-8") as pipe:
            json.dump(env, pipe)

    def kill(self) -> None:
        """Kill everything; return when nothing is left."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        if self.namespace:
            # The holder has waited for PID 1, and the kernel lets that end only after everything else in there.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.below, 0)
        else:
            process.kill_descendants(os.getpid())


@dataclass(frozen=True, slots=True)
class Plan:
    """What the machine runs: argv, its folder, where its output goes."""

    argv: tuple[str, ...]
    disk: str
    output_fd: int


def start_tree(plan: Plan, isolation: str) -> Tree:
    """Start what will become the machine's process; it waits for `Tree.go`.  To be called before any thread exists."""
    go, go_w = os.pipe()
    status, status_w = os.pipe()
    tree = None if isolation == SUBREAPER else _in_namespace(plan, (go, go_w), (status, status_w))
    if tree is None:
        process.become_subreaper()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            process.die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            os.close(go_w)
            os.close(status)
            _become(plan, go)
        tree = Tree(False, child, child, status, go_w)
    os.close(go)
    if tree.namespace:
        os.close(status_w)
    else:
        _report_end(tree.below, status_w)
    return tree


def _report_end(child: int, status_w: int) -> None:
    def wait() -> None:
        _, status = os.waitpid(child, 0)
        os.write(status_w, b"%d\n" % status)
        os.close(status_w)

    threading.Thread(target=wait, daemon=True, name="child").start()


def _in_namespace(plan: Plan, go: tuple[int, int], status: tuple[int, int]) -> Tree | None:
    ready, report = os.pipe()
    parent = os.getpid()
    holder = os.fork()
    if holder == 0:
        process.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        for fd in (ready, go[1], status[0]):
            os.close(fd)
        _hold_namespace(plan, report, go[0], status[1])
    os.close(report)
    with open(ready, "rb") as pipe:
        answer = pipe.read()
    if READY not in answer:
        os.waitpid(holder, 0)
        return None
    return Tree(True, holder, int(answer.replace(READY, b"")), status[0], go[1])


def _hold_namespace(plan: Plan, report: int, go: int, status_w: int) -> NoReturn:
    """Make PID 1 and wait for it.

    PID 1 cannot tell by its parent's PID (always 0) whether the holder died before the death signal was asked for: the
    lifeline, whose other end only the holder keeps, tells.
    """
    lifeline, holders_end = os.pipe()
    try:
        process.enter_pid_namespace()
        first = os.fork()
    except OSError:
        os._exit(1)
    if first == 0:
        try:
            process.die_with_parent()
            os.close(holders_end)
            if select.select([lifeline], [], [], 0)[0]:
                os._exit(1)
            process.mount_own()
        except OSError:
            os._exit(1)
        os.write(report, READY)
        os.close(report)
        _be_first(plan, go, status_w)
    os.write(report, b"%d" % first)
    for fd in (report, go, status_w):
        os.close(fd)
    os.waitpid(first, 0)
    os._exit(0)


def _be_first(plan: Plan, go: int, status_w: int) -> NoReturn:
    """PID 1's only work: start the process, reap whatever ends, and end when the process has."""
    child = os.fork()
    if child == 0:
        process.die_with_parent()
        _become(plan, go)
    os.close(go)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            os.write(status_w, b"%d\n" % status)
            os._exit(0)


def _become(plan: Plan, go: int) -> NoReturn:
    """Wait for the environment, then be the machine's process; 127 if there is no such command."""
    with open(go, encoding="utf-8") as pipe:
        text = pipe.read()
    if not text:
        os._exit(1)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    os.dup2(plan.output_fd, 1)
    os.dup2(plan.output_fd, 2)
    os.chdir(plan.disk)
    try:
        os.execvpe(plan.argv[0], list(plan.argv), json.loads(text))
    except OSError as error:
        os.write(2, f"windfall: {plan.argv[0]} could not be started: {error.strerror}\n".encode())
    os._exit(127)


class Init:
    """The life of one machine."""

    def __init__(self, folder: Path, clock: Clock, terminated: Sequence[int] = ()) -> None:
        """Nothing is started yet.

        Args:
            folder: the machine's.
            clock: its time.
            terminated: each SIGTERM that came, as it grows.
        """
        self._folder = folder
        self._clock = clock
        self._terminated = terminated
        self._began_wall = clock.wall()
        self._began_at = clock.now()
        self._deadline: Instant | None = None
        self._wish: dict[str, Any] = {}
        self._wish_stamp: tuple[int, int] | None = None
        self._life: dict[str, Any] = {}

    def wall(self) -> WallTime:
        """Return the machine's own time [s since 1970]."""
        return WallTime(self._began_wall + self._elapsed_s())

    def _elapsed_s(self) -> Seconds:
        return Seconds(self._clock.now() - self._began_at)

    def run(self, boot: dict[str, Any]) -> None:
        """Begin, live and end; nothing happens if the market withdrew the machine, or it began before."""
        output_fd = os.open(self._folder / records.OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        plan = Plan(tuple(boot["argv"]), str(self._folder / "disk"), output_fd)
        tree = start_tree(plan, boot["isolation"])
        self._began_wall, self._began_at = self._clock.wall(), self._clock.now()
        if not records.begin(self._folder, {"began": self._began_wall}):
            tree.kill()
            return
        with serve((), "aws", now=self.wall) as metadata:
            self._life = {
                "pid": os.getpid(),
                "started_at": process.started_at(os.getpid()),
                "namespace": tree.namespace,
                "first_pid": tree.first,
                "first_started_at": process.started_at(tree.first),
                "metadata_url": metadata.url,
                "taken_at": None,
            }
            records.write(self._folder, "life.json", self._life)
            os.unlink(self._folder / "boot.json")
            tmp = records.make_tmp(self._folder)
            tree.go(self._environment(boot, metadata.url, tmp))
            if boot["speed"] < 1:
                _slow_down(tree, boot["speed"], self._clock)
            cause = self._live(tree, metadata)
            tree.kill()
            records.wipe_tmp(self._folder, tmp)
            if self._folder.exists():
                records.write(self._folder, "end.json", {"ended": self.wall(), "cause": cause.value})

    def _environment(self, boot: dict[str, Any], metadata_url: str, tmp: str) -> dict[str, str]:
        disk = self._folder / "disk"
        image = {name: os.environ[name] for name in IMAGE if name in os.environ}
        ours = {
            "HOME": str(disk / "home"),
            "XDG_STATE_HOME": str(disk / "state"),
            "TMPDIR": tmp,
            records.MACHINE_ID: self._folder.name,
            "WINDFALL_METADATA_URL": metadata_url,
            "WINDFALL_PROVIDER": "local",
        }
        return {**image, **boot["env"], **ours}

    def _live(self, tree: Tree, metadata: MetadataServer) -> Ended:
        """Wait for the machine's end; return why."""
        beat_fd, beat_next_s = records.open_beat(self._folder), 0.0
        while True:
            if select.select([tree.status_fd], [], [], TICK_S)[0]:
                return _cause_of(os.read(tree.status_fd, 64))
            if self._elapsed_s() >= beat_next_s:
                records.beat(beat_fd, self._elapsed_s())
                beat_next_s = self._elapsed_s() + BEAT_S
            if self._hears_a_wish():
                self._announce(metadata, self._wish["preempt"])
            if len(self._terminated) > 1:
                return Ended.PREEMPTED
            if self._terminated:
                self._announce(metadata, SHUTDOWN_S)
            if self._wish.get("release") or not self._folder.exists():
                return Ended.RELEASED
            if self._deadline is not None and self._clock.now() >= self._deadline:
                return Ended.PREEMPTED

    def _hears_a_wish(self) -> bool:
        try:
            stat = os.stat(self._folder / "wish.json")
        except FileNotFoundError:
            return False
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp == self._wish_stamp:
            return False
        self._wish_stamp = stamp
        self._wish = records.read(self._folder, "wish.json") or {}
        return "preempt" in self._wish

    def _announce(self, metadata: MetadataServer, notice_s: float | None) -> None:
        deadline = Instant(self._clock.now() + (notice_s or 0.0))
        if self._deadline is not None and self._deadline <= deadline:
            return
        self._deadline = deadline
        self._life["taken_at"] = self.wall() + (notice_s or 0.0)
        records.write(self._folder, "life.json", self._life)
        if notice_s:
            metadata.announce(notice_s)


def _cause_of(status: bytes) -> Ended:
    """What the status pipe says: a command that could not be started, or a tree that was killed, is a broken machine."""
    if not status.strip():
        return Ended.FAILED
    return Ended.FAILED if os.waitstatus_to_exitcode(int(status)) == 127 else Ended.STOPPED


def _slow_down(tree: Tree, speed: float, clock: Clock) -> None:
    """Let the tree run only a share of the time, by SIGSTOP and SIGCONT: no right to a control group is needed."""

    def send(number: int) -> None:
        for pid in [*process.descendants(tree.first), *(() if tree.namespace else (tree.first,))]:
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
    """Run as `python -m windfall.providers.local.machine FOLDER`."""
    folder = Path(sys.argv[1])
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    lock = records.hold(folder)
    boot = None if lock is None else records.read(folder, "boot.json")
    if boot is not None:
        Init(folder, SystemClock(), terminated).run(boot)
    # Threads of the metadata service may be in the middle of an answer: nobody is left to hear it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
