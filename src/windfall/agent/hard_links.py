"""Hard links to handed-over files, so that the script (or its framework's pruning) may delete them during the upload."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial


def link_handover(path: str, folder: str, name: str) -> str:
    """Hard-link a file, or a folder's files, into a folder of its own; return the path there.

    Linking a folder again under the same name adds what is new, because several ranks may write into one folder.  A
    symbolic link stays one; if its target is inside the folder, it points to the target's link.  Where hard links are not
    possible (another file system, one without links), return the path itself: the upload then reads it in place.

    Args:
        path: the handed-over file or folder.
        folder: the session's folder for links.
        name: of this hand-over; unique, except for ranks that share a folder.
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
                _replace(os.path.join(there, name), partial(os.symlink, _link_target(source, root)))
            else:
                _link(source, os.path.join(there, name))


def _link_target(link: str, root: str) -> str:
    """Return a link's target in a form that is valid in a copy: relative inside the folder `root`, else absolute."""
    real = os.path.realpath(link)
    if os.path.commonpath((root, real)) != root:
        return real
    return os.path.relpath(real, os.path.realpath(os.path.dirname(link)))


def _link(source: str, target: str) -> None:
    if not (os.path.lexists(target) and os.path.samestat(os.lstat(source), os.lstat(target))):
        _replace(target, partial(os.link, source))


def _replace(target: str, make: Callable[[str], None]) -> None:
    """Replace a name atomically; a draft that a dead agent left is removed."""
    draft = f"{target}.windfall-draft"
    if os.path.lexists(draft):
        os.unlink(draft)
    make(draft)
    os.replace(draft, target)


def remove_links(folder: str, path: str) -> None:
    """Remove the links of one hand-over; a path that was read in place is not touched."""
    place = os.path.dirname(path)
    if os.path.dirname(place) == os.path.abspath(folder):
        shutil.rmtree(place, ignore_errors=True)
