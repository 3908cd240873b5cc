"""The guard: the process between supervisor and script that takes every descendant with it when it goes.

Two ways, tried in this order:

* a PID namespace: the guard forks its PID 1, which starts the script and reaps; when the script has ended, or when the
  guard or the supervisor dies, PID 1 ends and the kernel kills everything in the namespace, whatever session it is in;
* a subreaper: the guard inherits orphans, watches script and supervisor by pidfd, and at the end kills its descendants
  by a walk of /proc until none is left.

The script's exit status is written to the status pipe as one line.  Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from dataclasses import dataclass

from windfall.agent import kernel


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start and how.

    Attributes:
        status_fd: where the status line goes (`<status>`, or `! <sentence>` if the command could not be started).
        isolation: `auto`, `namespace` or `subreaper`.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    stdout_fd: int
    stderr_fd: int
    status_fd: int
    isolation: str = "auto"


def run(launch: Launch, supervisor_pid: int) -> None:
    """Be the guard, in a freshly forked child of the supervisor.  Never returns."""
    os.setsid()
    _default_signals(ignore_termination=True)
    if launch.isolation != "subreaper" and _run_in_namespace(launch, supervisor_pid):
        os._exit(0)
    if launch.isolation == "namespace":
        os.write(launch.status_fd, b"! a PID namespace was asked for, and this machine does not allow one\n")
        os._exit(0)
    _run_as_subreaper(launch, supervisor_pid)
    os._exit(0)


def _run_in_namespace(launch: Launch, supervisor_pid: int) -> bool:
    ready, report = os.pipe()
    lifeline, holders_end = os.pipe()
    trial = os.fork()
    if trial == 0:
        _namespace_holder(launch, report, lifeline, holders_end)
    for fd in (report, lifeline, holders_end):
        os.close(fd)
    answer = os.read(ready, 1)
    os.close(ready)
    if answer != b"y":
        os.waitpid(trial, 0)
        return False
    kernel.die_with_parent(supervisor_pid)
    os.waitpid(trial, 0)
    return True


def _namespace_holder(launch: Launch, report: int, lifeline: int, holders_end: int) -> None:
    """Enter the namespaces and wait for PID 1; dies with the guard, and PID 1 with it.

    PID 1 cannot tell by its parent's PID (always 0) whether the holder died before the death signal was asked for: the
    lifeline, whose other end only the holder keeps, tells.
    """
    try:
        kernel.die_with_parent(os.getppid())
        kernel.enter_pid_namespace()
        init = os.fork()
    except OSError:
        os.write(report, b"n")
        os._exit(1)
    if init == 0:
        try:
            kernel.die_with_parent(0)
            os.close(holders_end)
            if select.select([lifeline], [], [], 0)[0]:
                os._exit(1)
            kernel.mount_proc()
        except OSError:
            os.write(report, b"n")
            os._exit(1)
        os.write(report, b"y")
        os.close(report)
        _reap(launch, _start(launch))
    os.close(report)
    os.waitpid(init, 0)
    os._exit(0)


def _reap(launch: Launch, script: int) -> None:
    """PID 1's only work: reap whatever ends, and end when the script has."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == script:
            os.write(launch.status_fd, b"%d\n" % exit_status(status))
            os._exit(0)


def _run_as_subreaper(launch: Launch, supervisor_pid: int) -> None:
    kernel.become_subreaper()
    supervisor = os.pidfd_open(supervisor_pid)
    if os.getppid() != supervisor_pid:
        os._exit(1)
    script = _start(launch)
    script_fd = os.pidfd_open(script)
    readable, _, _ = select.select([supervisor, script_fd], [], [])
    if script_fd in readable:
        _, status = os.waitpid(script, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(launch.status_fd, b"%d\n" % exit_status(status))
    kill_descendants(os.getpid())


def kill_descendants(of_pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Kill every descendant of a subreaper until none is left; those in `spare`, and their children, live on."""
    while victims := _descendants(of_pid, spare):
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in victims:
            # Only our own children can be waited for; the others come to us, or vanish, when their parents have gone.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        select.select([], [], [], 0.001)


def _descendants(of_pid: int, spare: frozenset[int]) -> list[int]:
    found: list[int] = []
    frontier = [of_pid]
    while frontier:
        for child in kernel.children_of(frontier.pop()):
            if child not in spare:
                found.append(child)
                frontier.append(child)
    return found


def _start(launch: Launch) -> int:
    """Fork and execute the script; return its PID.  A command that cannot be executed ends with 127 or 126, as in a shell."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        kernel.die_with_parent(os.getppid())
        os.setsid()
        _default_signals(ignore_termination=False)
        if os.isatty(0):
            # The script is in a session of its own and could not read this terminal anyway.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(launch.stdout_fd, 1)
        os.dup2(launch.stderr_fd, 2)
        os.chdir(launch.cwd)
        os.execvpe(launch.argv[0], list(launch.argv), launch.env)
    except OSError as error:
        name = launch.argv[0]
        # A folder on PATH that this user may not read makes "no such command" look like "not allowed".
        on_path = "/" in name or shutil.which(name, path=launch.env.get("PATH")) is not None
        if isinstance(error, FileNotFoundError) or not on_path:
            os.write(2, f"windfall: {name}: no such command (looked on PATH, from {launch.cwd})\n".encode())
            os._exit(127)
        os.write(2, f"windfall: {name} could not be started: {error.strerror}\n".encode())
        os._exit(126)
    return 0


def _default_signals(*, ignore_termination: bool) -> None:
    """Undo the supervisor's handlers; the guard itself ignores what the whole machine's processes may be sent."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN if ignore_termination else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def exit_status(wait_status: int) -> int:
    """Turn what waitpid says into what a shell shows: the code, or 128 + the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code
