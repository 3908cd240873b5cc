"""Whether a process of this computer lives."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not.

    A process whose parent is dead is reaped by process 1, which may take as long as it likes.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")
