"""What a machine of the local market asks of the Linux kernel: death with the parent, namespaces, a walk of /proc.

Numbers are those of the Linux user-space headers (prctl.h, sched.h, mount.h).
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


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent's thread dies.  Whether it is dead already is for the caller to find out."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PDEATHSIG)")


def become_subreaper() -> None:
    """Inherit orphaned descendants instead of letting init have them."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(CHILD_SUBREAPER)")


def enter_pid_namespace() -> None:
    """Give the next child of this process PID 1 of a namespace of its own, with root or through a user namespace.

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


def mount_own() -> None:
    """Mount a `/proc` of this PID namespace, and shared memory that goes with it (called by its PID 1).

    Raises:
        OSError: no `/proc` is allowed here; without shared memory of its own a machine gets on.
    """
    _check(_libc().mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV | _MS_NOEXEC, None), "mount(/proc)")
    _libc().mount(b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID_NODEV, b"mode=1777")


def started_at(pid: int) -> int | None:
    """Return when a process started (clock ticks since boot), None if there is none, or only its status is left."""
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


def descendants(of_pid: int) -> list[int]:
    """Return every living process below `of_pid`, by a walk of /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    frontier = [of_pid]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def kill_descendants(of_pid: int) -> None:
    """Kill everything below a subreaper until nothing is left."""
    while victims := descendants(of_pid):
        _kill(victims)
        for pid in victims:
            # Only our own children can be waited for; the others come to us, or vanish, when their parents have gone.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        select.select([], [], [], 0.001)


def marked(variable: str, value: str) -> list[int]:
    """Return every living process that was started with this value of an environment variable."""
    mark = f"{variable}={value}".encode()
    return [pid for pid in _pids() if mark in _environment(pid) and started_at(pid) is not None]


def kill_marked(variable: str, value: str) -> None:
    """Kill every process that carries an environment variable of this value until none is left."""
    while victims := marked(variable, value):
        _kill(victims)
        select.select([], [], [], 0.001)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
