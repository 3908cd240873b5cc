"""Whether a process of this computer lives."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not.

    A process whose parent is dead is reaped by process 1, which may take as long as it likes.  As long as a thread is left that
    ends, its files are open.
    """
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    threads = int(numbers[16])
    return threads > 1 or state not in (b"Z", b"X")
