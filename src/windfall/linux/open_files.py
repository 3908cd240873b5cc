"""Which files processes have open for writing, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator


def written_files(pids: Iterable[int]) -> dict[str, bool]:
    """Return the files that processes have open for writing, and whether all of them only append to it.

    A file that is written through a mapping whose descriptor was closed is not among them.
    """
    found: dict[str, bool] = {}
    for pid in pids:
        for path, flags in _descriptors(pid):
            if flags & os.O_ACCMODE != os.O_RDONLY:
                found[path] = found.get(path, True) and bool(flags & os.O_APPEND)
    return found


def _descriptors(pid: int) -> Iterator[tuple[str, int]]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")
            with open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
        except OSError:
            continue
        if path.startswith("/"):
            yield path, int(fields.get("flags", "0"), 8)


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)
