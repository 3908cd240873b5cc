"""How much memory groups of processes use, by /proc: of many groups in one pass, once a second."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

_PROC = Path("/proc")


def used_bytes(firsts: Collection[int], above_bytes: float) -> Mapping[int, int]:
    """Return what each group uses that uses more than an amount [B].

    A group is a first process, all below it, and all of its session, also those whose parent has ended.  What processes share,
    for example after a fork, counts once, in proportional parts (`Pss` of proc_pid_smaps_rollup(5)); where the kernel does not
    say, resident memory counts.

    Args:
        firsts: the PID of each group's first process.
        above_bytes: groups with less are left out [B].
    """
    parents: dict[int, tuple[int, int]] = {}
    resident: dict[int, int] = {}
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    for name in filter(str.isdigit, os.listdir(_PROC)):
        try:
            fields = (_PROC / name / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # The fields of proc_pid_stat(5) from the third on: state, parent, group, session; the resident pages are number 24.
        parents[int(name)] = int(fields[1]), int(fields[3])
        resident[int(name)] = int(fields[21]) * page_bytes
    groups: dict[int, list[int]] = {first: [] for first in firsts}
    for pid in parents:
        first = _first_of(pid, parents, groups)
        if first is not None:
            groups[first].append(pid)
    found = {}
    for first, pids in groups.items():
        # Reading proportional parts takes long, and they are never more than what is resident.
        if sum(resident[pid] for pid in pids) > above_bytes:
            used = sum(_proportional(_PROC / str(pid), resident[pid]) for pid in pids)
            if used > above_bytes:
                found[first] = used
    return found


def _first_of(pid: int, parents: Mapping[int, tuple[int, int]], firsts: Collection[int]) -> int | None:
    """Return the first process of the group that a process is in; None if it is in none."""
    _, session = parents[pid]
    while pid in parents:
        if pid in firsts:
            return pid
        pid = parents[pid][0]
    return session if session in firsts else None


def _proportional(folder: Path, resident_bytes: int) -> int:
    try:
        text = (folder / "smaps_rollup").read_text()
        return int(text.partition("\nPss:")[2].split()[0]) << 10
    except (OSError, IndexError, ValueError):
        return resident_bytes
