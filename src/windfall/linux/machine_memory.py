"""How much memory a process of this machine may use."""

from __future__ import annotations

import os
from pathlib import Path

_GIB = 1 << 30
_GROUPS = Path("/sys/fs/cgroup")


def usable_gib(group: Path | None = None, root: Path = _GROUPS) -> float:
    """Return the machine's memory, or the least limit of this process's cgroup and those above it [GiB].

    Args:
        group: folder of the process's cgroup (version 2); None for that of this process.
        root: where cgroups are mounted.
    """
    found = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = _own_group(root) if group is None else group
    for folder in (group, *group.parents):
        try:
            text = (folder / "memory.max").read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found = min(found, float(text))
    return found / _GIB


def _own_group(root: Path) -> Path:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return root
    return next((root / line[3:].lstrip("/") for line in lines if line.startswith("0::")), root)
