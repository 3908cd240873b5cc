"""The guard: the process between supervisor and script whose end ends every descendant of the script.

It isolates the script in one of two ways, tried in this order:

* a PID namespace: the guard forks its PID 1, which starts the script and reaps; when the script ends, or the guard or
  the supervisor dies, PID 1 ends and the kernel kills everything in the namespace, whatever its session;
* a subreaper: the guard inherits orphans, watches script and supervisor by pidfd, and at the end kills its descendants
  by a walk of /proc until none is left.

The guard writes the script's exit status to the status pipe as one line.  Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from typing import NamedTuple

from windfall.linux import processes


class ScriptLaunch(NamedTuple):
    """What to start and how.

    Attributes:
        status_fd: where the status line goes (`<status>`, or `! <sentence>` if the isolation is not available).
        isolation: `auto`, `namespace` or `subreaper`.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    stdout_fd: int
    stderr_fd: int
    status_fd: int
    isolation: str = "auto"


def run(launch: ScriptLaunch, supervisor_pid: int) -> None:
    """Run as the guard, in a freshly forked child of the supervisor.  Never returns."""
    os.setsid()
    _default_signals(ignore_termination=True)
    if launch.isolation != "subreaper" and _run_in_namespace(launch, supervisor_pid):
        os._exit(0)
    if launch.isolation == "namespace":
        os.write(launch.status_fd, b"! --isolation namespace: this machine does not allow PID namespaces\n")
        os._exit(0)
    _run_as_subreaper(launch, supervisor_pid)
    os._exit(0)


def _run_in_namespace(launch: ScriptLaunch, supervisor_pid: int) -> bool:
    ready, report = os.pipe()
    lifeline, holder_end = os.pipe()
    holder = os.fork()
    if holder == 0:
        _hold_namespace(launch, report, lifeline, holder_end)
    for fd in (report, lifeline, holder_end):
        os.close(fd)
    answer = os.read(ready, 1)
    os.close(ready)
    if answer != b"y":
        os.waitpid(holder, 0)
        return False
    processes.die_with_parent(supervisor_pid)
    os.waitpid(holder, 0)
    return True


def _hold_namespace(launch: ScriptLaunch, report: int, lifeline: int, holder_end: int) -> None:
    """Enter the namespaces, fork PID 1 and wait for it; the holder dies with the guard, and PID 1 with the holder.

    PID 1 sees 0 as its parent's PID, alive or dead, so it cannot notice that the holder died before the death signal
    was set.  The lifeline shows it: only the holder has its other end open.
    """
    try:
        processes.die_with_parent(os.getppid())
        processes.enter_pid_namespace()
        init = os.fork()
    except OSError:
        os.write(report, b"n")
        os._exit(1)
    if init == 0:
        try:
            processes.die_with_parent(0)
            os.close(holder_end)
            if select.select([lifeline], [], [], 0)[0]:
                os._exit(1)
            processes.mount_proc()
        except OSError:
            os.write(report, b"n")
            os._exit(1)
        os.write(report, b"y")
        os.close(report)
        _reap(launch, _start(launch))
    os.close(report)
    os.waitpid(init, 0)
    os._exit(0)


def _reap(launch: ScriptLaunch, script: int) -> None:
    """Be PID 1: reap every child that ends, and end when the script has."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == script:
            os.write(launch.status_fd, b"%d\n" % _exit_status(status))
            os._exit(0)


def _run_as_subreaper(launch: ScriptLaunch, supervisor_pid: int) -> None:
    processes.become_subreaper()
    supervisor = os.pidfd_open(supervisor_pid)
    if os.getppid() != supervisor_pid:
        os._exit(1)
    script = _start(launch)
    script_fd = os.pidfd_open(script)
    readable, _, _ = select.select([supervisor, script_fd], [], [])
    if script_fd in readable:
        _, status = os.waitpid(script, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(launch.status_fd, b"%d\n" % _exit_status(status))
    processes.kill_descendants(os.getpid())


def _start(launch: ScriptLaunch) -> int:
    """Fork and execute the script; return its PID.  A command that cannot run ends with 127 or 126, as in a shell."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        processes.die_with_parent(os.getppid())
        os.setsid()
        _default_signals(ignore_termination=False)
        if os.isatty(0):
            # The script has its own session, so it could not read this terminal anyway.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(launch.stdout_fd, 1)
        os.dup2(launch.stderr_fd, 2)
        os.chdir(launch.cwd)
        os.execvpe(launch.argv[0], list(launch.argv), launch.env)
    except OSError as error:
        name = launch.argv[0]
        # An unreadable folder on PATH turns "no such command" into "permission denied".
        on_path = "/" in name or shutil.which(name, path=launch.env.get("PATH")) is not None
        if isinstance(error, FileNotFoundError) or not on_path:
            os.write(2, f"windfall: {name}: no such command (searched PATH, from {launch.cwd})\n".encode())
            os._exit(127)
        os.write(2, f"windfall: cannot start {name}: {error.strerror}\n".encode())
        os._exit(126)
    return 0


def _default_signals(*, ignore_termination: bool) -> None:
    """Undo the supervisor's signal handlers; the guard ignores the signals that may reach every process of the machine."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN if ignore_termination else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _exit_status(wait_status: int) -> int:
    """Return a waitpid status as a shell shows it: the exit code, or 128 + the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code
