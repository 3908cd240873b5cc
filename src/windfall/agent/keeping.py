"""Hard links to what was handed over, so that the script (or its framework's own pruning) may delete it meanwhile."""

from __future__ import annotations

import os
import shutil


def keep(path: str, folder: str, step: int, number: int) -> str:
    """Link a file or a folder's files into a folder of its own; return where they are now.

    Where links cannot be made (another file system, one without links) the path itself is returned: the upload then
    reads it in place.

    Args:
        path: what was handed over.
        folder: the session's folder for kept parts.
        step: of the hand-over; decides when the links go.
        number: unique to this hand-over.
    """
    place = os.path.join(folder, f"{step}-{number}")
    target = os.path.join(place, os.path.basename(os.path.abspath(path)))
    try:
        os.makedirs(place)
        if os.path.isdir(path):
            shutil.copytree(path, target, symlinks=True, copy_function=os.link)
        else:
            os.link(os.path.realpath(path), target)
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        return path
    return target


def let_go(folder: str, step: int) -> None:
    """Remove the links of all hand-overs up to a step, because a point of that step is committed."""
    if not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        if int(name.partition("-")[0]) <= step:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
