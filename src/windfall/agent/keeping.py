"""Hard links to what was handed over, so that the script (or its framework's own pruning) may delete it meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial


def keep(path: str, folder: str, name: str) -> str:
    """Link a file or a folder's files into a folder of its own; return where they are now.

    Kept again under the same name, a folder keeps what it had and gains what has come, as several ranks write into one.
    A symbolic link stays one, and leads to what is kept if it led to something in the folder, however it is written.
    Where links cannot be made (another file system, one without links) the path itself is returned: the upload then
    reads it in place.

    Args:
        path: what was handed over.
        folder: the session's folder for kept parts.
        name: of this hand-over; unique, but for ranks that share a folder.
    """
    place = os.path.join(folder, name)
    target = os.path.join(place, os.path.basename(os.path.abspath(path)))
    try:
        os.makedirs(place, exist_ok=True)
        if os.path.isdir(path):
            _link_folder(path, target)
        else:
            _link(os.path.realpath(path), target)
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        return path
    return target


def _link_folder(path: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    root = os.path.realpath(path)
    for above, folders, files in os.walk(path):
        there = os.path.join(target, os.path.relpath(above, path))
        for name in folders:
            source = os.path.join(above, name)
            if os.path.islink(source):
                files.append(name)
            else:
                os.makedirs(os.path.join(there, name), exist_ok=True)
        for name in files:
            source = os.path.join(above, name)
            if os.path.islink(source):
                _replace(os.path.join(there, name), partial(os.symlink, _leading(source, root)))
            else:
                _link(source, os.path.join(there, name))


def _leading(link: str, root: str) -> str:
    """Return where a link leads, in words that hold for a copy too: within the folder `root` relative, else absolute."""
    real = os.path.realpath(link)
    if os.path.commonpath((root, real)) != root:
        return real
    return os.path.relpath(real, os.path.realpath(os.path.dirname(link)))


def _link(source: str, target: str) -> None:
    if not (os.path.lexists(target) and os.path.samestat(os.lstat(source), os.lstat(target))):
        _replace(target, partial(os.link, source))


def _replace(target: str, make: Callable[[str], None]) -> None:
    """Put something under a name at once; what an agent that died there left is replaced."""
    draft = f"{target}.windfall-draft"
    if os.path.lexists(draft):
        os.unlink(draft)
    make(draft)
    os.replace(draft, target)


def let_go(folder: str, path: str) -> None:
    """Remove the links of one hand-over: nobody reads them any more.  What was read in place is left alone."""
    place = os.path.dirname(path)
    if os.path.dirname(place) == os.path.abspath(folder):
        shutil.rmtree(place, ignore_errors=True)
