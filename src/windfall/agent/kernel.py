"""The few kernel calls of Linux that Python 3.11 does not offer: parent-death signal, subreaper, namespaces.

Standard library only: the supervisor imports this.  Numbers are those of the Linux user-space headers.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_REC = 0x4000
_MS_SLAVE = 1 << 19
_MS_NOSUID_NODEV_NOEXEC = 0x2 | 0x4 | 0x8


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent thread dies, and die now if it is dead already.

    Args:
        parent_pid: who the parent should be, as this process's PID namespace names it (0: it lives outside).
    """
    _check(_libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def become_subreaper(*, wanted: bool = True) -> None:
    """Inherit orphaned descendants instead of letting init have them."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0), "prctl(CHILD_SUBREAPER)")


def enter_pid_namespace() -> None:
    """Give the next child of this process PID 1 of a namespace of its own, with root or through a user namespace.

    Raises:
        OSError: the kernel or the administrator does not allow it.
    """
    flags = _CLONE_NEWPID | _CLONE_NEWNS
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _check(_libc().unshare(flags), "unshare")
    else:
        _check(_libc().unshare(flags | _CLONE_NEWUSER), "unshare")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _check(_libc().mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount(/)")


def mount_proc() -> None:
    """Mount a `/proc` that shows this PID namespace (called by its PID 1).

    Raises:
        OSError: not allowed here.
    """
    _check(_libc().mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV_NOEXEC, None), "mount(/proc)")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def children_of(pid: int) -> list[int]:
    """Return the processes whose parent is `pid`, by a walk of /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent_of(int(name)) == pid]


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command may hold spaces and brackets: fields are counted from the last bracket on.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def started_at(pid: int) -> int | None:
    """Return when a process started (clock ticks since boot), None if there is none: with the PID it names a process.

    One that has ended is none, although its parent may not have asked for its status yet.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
