"""A process and everything below it, kept together so that it can be ended as one: a machine's whole life on a host.

Two ways, tried in this order:

* a PID namespace with its own `/proc` and shared memory: its PID 1 dies with the parent, and the kernel kills the rest;
* a subreaper: the parent inherits orphans and kills by a walk of /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
from typing import NoReturn

from windfall.linux import processes
from windfall.structs import Struct

SUBREAPER = "subreaper"
READY = b"ready"


class ProcessTree(Struct, frozen=True):
    """The processes of a machine.

    Attributes:
        below: the init's own child, which ends when the tree is gone (namespace) or its process has ended.
        first: PID 1 of the namespace, or the machine's process; host PIDs.
        status_fd: yields the process's exit status; closed without one if the tree was killed.
        go_fd: the process starts once the environment is written here.
    """

    namespace: bool
    below: int
    first: int
    status_fd: int
    go_fd: int

    def go(self, env: dict[str, str]) -> None:
        """Start the machine's process."""
        with contextlib.suppress(BrokenPipeError), open(self.go_fd, "w", encoding="utf-8") as pipe:
            json.dump(env, pipe)

    def kill(self) -> None:
        """Kill everything; return when nothing is left."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        if self.namespace:
            # The parent waits for PID 1, which the kernel ends only after everything else in the namespace.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.below, 0)
        else:
            processes.kill_descendants(os.getpid())


class MachinePlan(Struct, frozen=True):
    """What the machine runs: command, folder and output file."""

    argv: tuple[str, ...]
    disk: str
    output_fd: int


def start_tree(plan: MachinePlan, isolation: str) -> ProcessTree:
    """Fork what becomes the machine's process; it waits for `ProcessTree.go`.  Call before any thread exists."""
    go, go_w = os.pipe()
    status, status_w = os.pipe()
    tree = None if isolation == SUBREAPER else _in_namespace(plan, (go, go_w), (status, status_w))
    if tree is None:
        processes.become_subreaper()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            processes.die_with_parent(parent)
            os.close(go_w)
            os.close(status)
            _exec_process(plan, go)
        tree = ProcessTree(False, child, child, status, go_w)
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


def _in_namespace(plan: MachinePlan, go: tuple[int, int], status: tuple[int, int]) -> ProcessTree | None:
    ready, report = os.pipe()
    parent = os.getpid()
    holder = os.fork()
    if holder == 0:
        processes.die_with_parent(parent)
        for fd in (ready, go[1], status[0]):
            os.close(fd)
        _hold_namespace(plan, report, go[0], status[1])
    os.close(report)
    with open(ready, "rb") as pipe:
        answer = pipe.read()
    if READY not in answer:
        os.waitpid(holder, 0)
        return None
    return ProcessTree(True, holder, int(answer.replace(READY, b"")), status[0], go[1])


def _hold_namespace(plan: MachinePlan, report: int, go: int, status_w: int) -> NoReturn:
    """Fork PID 1 and wait for it.

    PID 1 cannot see by its parent's PID (always 0) whether its parent died before it asked for the death signal.  The
    lifeline shows it: only the parent holds its other end.
    """
    lifeline, holders_end = os.pipe()
    try:
        processes.enter_pid_namespace()
        first = os.fork()
    except OSError:
        os._exit(1)
    if first == 0:
        try:
            processes.die_with_parent(0)
            os.close(holders_end)
            if select.select([lifeline], [], [], 0)[0]:
                os._exit(1)
            processes.mount_proc()
            processes.mount_shared_memory()
        except OSError:
            os._exit(1)
        os.write(report, READY)
        os.close(report)
        _run_pid_1(plan, go, status_w)
    os.write(report, b"%d" % first)
    for fd in (report, go, status_w):
        os.close(fd)
    os.waitpid(first, 0)
    os._exit(0)


def _run_pid_1(plan: MachinePlan, go: int, status_w: int) -> NoReturn:
    """Run as PID 1: start the process, reap children, and end when the process has ended."""
    child = os.fork()
    if child == 0:
        processes.die_with_parent(1)
        _exec_process(plan, go)
    os.close(go)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            os.write(status_w, b"%d\n" % status)
            os._exit(0)


def _exec_process(plan: MachinePlan, go: int) -> NoReturn:
    """Wait for the environment, then execute the machine's command; exit with 127 if it cannot be executed."""
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
