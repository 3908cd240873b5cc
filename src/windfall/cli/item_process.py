"""What a machine of a bag runs: `python -m windfall.cli.item_process REQUEST`, which the node agent starts.

This process only waits and passes signals on; the runner is below it, with all items, so that they end with it, however it
ends: in a PID namespace where the machine allows one, else under a subreaper (`linux.guard`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from windfall.agent.exec_request import ExecRequest, load
from windfall.errors import WindfallError
from windfall.linux import guard, processes
from windfall.wire import environment
from windfall.wire.python_programs import program
from windfall.wiring_items import run_items

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Run as the process that waits, or with a descriptor, from which signals are read, as the runner."""
    try:
        request = load(sys.argv[1])
        if len(sys.argv) > 2:
            return run_items(request, int(sys.argv[2]), program("windfall.cli.reduce_process", sys.argv[1]))
        processes.die_with_parent(os.getppid())
        return _wait(request, sys.argv[1])
    except WindfallError as error:
        sys.stderr.write(f"windfall: {error}\n")
        return error.exit_code


def _wait(request: ExecRequest, path: str) -> int:
    processes.become_subreaper()
    allocation = os.environ.get(environment.ALLOCATION, "")
    signals_r, signals_w = os.pipe()
    status, status_w = os.pipe()
    for number in SIGNALS:
        signal.signal(number, lambda received, _: os.write(signals_w, bytes([received])) and None)
    pid = os.fork()
    if pid == 0:
        for fd in (signals_w, status):
            os.close(fd)
        os.set_inheritable(signals_r, True)
        argv = program("windfall.cli.item_process", path, str(signals_r))
        # Ranks that Slurm's daemon starts on this machine are in no namespace of this process, and must be seen.
        isolation = "subreaper" if allocation else request.isolation
        launch = guard.ScriptLaunch(argv, request.cwd, dict(os.environ), 1, 2, status_w, isolation)
        guard.run(launch, os.getppid())
    for fd in (signals_r, status_w):
        os.close(fd)
    text = b""
    while data := os.read(status, 4096):
        text += data
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    processes.kill_descendants(os.getpid())
    if allocation:
        processes.kill_marked(environment.ITEM_ALLOCATION, allocation)
    return int(text) if text.strip().isdigit() else 128 + signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main())
