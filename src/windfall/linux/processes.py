"""Process trees on Linux: death with the parent, subreapers, namespaces, and a walk of /proc to find and kill processes.

`prctl`, `unshare` and `mount` are called through libc, because Python 3.11 does not offer them; the numbers are those of
the Linux user-space headers (prctl.h, sched.h, mount.h).  Standard library only: the supervisor imports this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_REC_SLAVE = 0x4000 | 1 << 19
_MS_NOSUID_NODEV = 0x2 | 0x4
_MS_NOEXEC = 0x8
_POLL_S = 0.001


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent's thread dies, and die now if it is dead already.

    Args:
        parent_pid: the expected parent, as this process's PID namespace numbers it (0: it lives outside).
    """
    _check(_libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def become_subreaper(*, enabled: bool = True) -> None:
    """Inherit orphaned descendants instead of leaving them to init; `enabled=False` ends that."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0), "prctl(CHILD_SUBREAPER)")


def enter_pid_namespace() -> None:
    """Make the next child of this process PID 1 of a new PID namespace, as root or through a user namespace.

    Raises:
        OSError: the kernel or the administrator does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWPID | _CLONE_NEWNS | (0 if uid == 0 else _CLONE_NEWUSER)
    _check(_libc().unshare(flags), "unshare")
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _check(_libc().mount(b"none", b"/", None, _MS_REC_SLAVE, None), "mount(/)")


def mount_proc() -> None:
    """Mount a `/proc` that shows this PID namespace (called by its PID 1).

    Raises:
        OSError: the kernel or the administrator does not allow it.
    """
    _check(_libc().mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV | _MS_NOEXEC, None), "mount(/proc)")


def mount_shared_memory() -> None:
    """Mount a `/dev/shm` that ends with this namespace; where that is not allowed, keep the host's."""
    _libc().mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID_NODEV, b"mode=1777")


def started_at(pid: int) -> int | None:
    """Return when a process started [clock ticks since boot], which with the PID identifies it; None if it has ended.

    A zombie, whose parent has not yet asked for its status, has ended.
    """
    fields = _stat(pid)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command may hold spaces and brackets: fields are counted from the last bracket on.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """Return the processes whose parent is `pid`, zombies included, by a walk of /proc."""
    return _children().get(pid, [])


def descendants(of_pid: int, spare: frozenset[int] = frozenset()) -> list[int]:
    """Return every process below `of_pid`, zombies included, without those in `spare` and below them."""
    children = _children()
    found: list[int] = []
    frontier = [of_pid]
    while frontier:
        below = [pid for pid in children.get(frontier.pop(), []) if pid not in spare]
        found += below
        frontier += below
    return found


def _children() -> dict[int, list[int]]:
    """Return the children of each process."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if fields := _stat(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    return children


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def kill_descendants(of_pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Kill every descendant of a subreaper until none is left; those in `spare`, and their children, live on.

    A process that this user may not kill (a setuid program) lives on as well.
    """
    while victims := [pid for pid in descendants(of_pid, spare) if _kill(pid)]:
        for pid in victims:
            # Only this process's own children can be waited for; orphans become its children, or vanish.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        select.select([], [], [], _POLL_S)


def kill_orphans(variable: str, value: str, spare: frozenset[int]) -> None:
    """Kill what processes with this value of an environment variable have left behind, which this subreaper has inherited.

    Args:
        variable: of the environment in which they were started.
        value: of that variable.
        spare: children of this process that are none of them.
    """
    mark = f"{variable}={value}".encode()
    while True:
        inherited = [pid for pid in _own_children() if pid not in spare]
        victims = [pid for pid in inherited if mark in environment_of(pid) and _kill(pid)]
        for pid in [below for victim in victims for below in descendants(victim)]:
            _kill(pid)
        for pid in inherited:
            # Those that have ended by themselves were left to this process to wait for.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0 if pid in victims else os.WNOHANG)
        if not victims:
            return


def _own_children() -> list[int]:
    try:
        # Where the kernel lists them; those that are inherited are given to the first thread.
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return children_of(os.getpid())


def marked(variable: str, value: str) -> list[int]:
    """Return every running process, but this one, that was started with this value of an environment variable."""
    mark = f"{variable}={value}".encode()
    others = [pid for pid in _pids() if pid != os.getpid()]
    return [pid for pid in others if mark in environment_of(pid) and started_at(pid) is not None]


def kill_marked(variable: str, value: str) -> None:
    """Kill every process that `marked` finds, until none is left."""
    while sum(_kill(pid) for pid in marked(variable, value)):
        select.select([], [], [], _POLL_S)


def environment_of(pid: int) -> list[bytes]:
    """Return the environment with which a process was started; nothing if it has ended, or is another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _kill(pid: int) -> bool:
    """Kill a process; return False if this user may not."""
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True
