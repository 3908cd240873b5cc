"""Runs a machine's program below a process that only waits and passes signals on, so that all that it starts ends with it.

However the program ends: in a PID namespace where the machine allows one, else under a subreaper (`linux.guard`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence

from windfall.linux import guard, processes

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_contained(argv: Callable[[int], Sequence[str]], cwd: str, isolation: str) -> int:
    """Run a program until it and all below it have ended; return its exit code, 137 if it was killed.

    Args:
        argv: returns its command, from the descriptor where it reads the number of each signal, a byte each.
        cwd: where it runs.
        isolation: as `guard.ScriptLaunch` has it.
    """
    processes.die_with_parent(os.getppid())
    processes.become_subreaper()
    signals_r, signals_w = os.pipe()
    status, status_w = os.pipe()
    for number in SIGNALS:
        signal.signal(number, lambda received, _: os.write(signals_w, bytes([received])) and None)
    pid = os.fork()
    if pid == 0:
        for fd in (signals_w, status):
            os.close(fd)
        os.set_inheritable(signals_r, True)
        launch = guard.ScriptLaunch(tuple(argv(signals_r)), cwd, dict(os.environ), 1, 2, status_w, isolation)
        guard.run(launch, os.getppid())
    for fd in (signals_r, status_w):
        os.close(fd)
    text = b""
    while data := os.read(status, 4096):
        text += data
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    processes.kill_descendants(os.getpid())
    return int(text) if text.strip().isdigit() else 128 + signal.SIGKILL
