"""Whether other machines can reach a folder: told from the type of its file system."""

from __future__ import annotations

import os

SHARED_KINDS = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "wekafs", "panfs")
_MOUNTS = "/proc/self/mountinfo"


def file_system_of(folder: str) -> str:
    """Return the type of the file system that holds a folder, from the longest mount point above it."""
    real = os.path.realpath(folder)
    best = ("", "")
    with open(_MOUNTS) as mounts:
        for line in mounts:
            left, _, right = line.partition(" - ")
            point = left.split()[4].encode().decode("unicode_escape")
            if os.path.commonpath((real, point)) == point and len(point) >= len(best[0]):
                best = (point, right.split()[0])
    return best[1]


def is_shared(kind: str) -> bool:
    """Return whether a file system of this type can be mounted by several machines at once."""
    return kind.removeprefix("fuse.").startswith(SHARED_KINDS)
