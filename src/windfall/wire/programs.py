"""How a program of ours is started: nothing of the folder that it stands in is ever imported by it.

That folder is a user's, with code for scripts: a `queue.py` in it is theirs to import and never ours.  Python puts it
first on the path of `python -m` (not with `-P`, which, unlike `PYTHONSAFEPATH`, no child inherits), and wherever
`PYTHONPATH` has an empty or a relative entry.  The script itself finds both as if we were not there.

Standard library only; imports nothing of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

SCRIPT_PYTHONPATH = "WINDFALL_SCRIPT_PYTHONPATH"
"""The user's own `PYTHONPATH` on its way to the script, where a program of ours has another."""
_PYTHONPATH = "PYTHONPATH"


def program(module: str, *words: str) -> tuple[str, ...]:
    """Return the command line of one of our modules that is run as a program."""
    return (sys.executable, "-P", "-m", module, *words)


def snippet(code: str) -> tuple[str, ...]:
    """Return the command line of a few lines of ours."""
    return (sys.executable, "-P", "-c", code)


def our_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program of ours that later starts a user's: `PYTHONPATH` has whole paths alone."""
    ours = dict(environ)
    given = ours.get(_PYTHONPATH)
    if given is None or SCRIPT_PYTHONPATH in ours:
        return ours
    whole = os.pathsep.join(entry for entry in given.split(os.pathsep) if os.path.isabs(entry))
    if whole != given:
        ours[SCRIPT_PYTHONPATH] = given
        ours[_PYTHONPATH] = whole
    return ours


def users_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of what a user has us run: their own `PYTHONPATH` again."""
    theirs = dict(environ)
    given = theirs.pop(SCRIPT_PYTHONPATH, None)
    return theirs if given is None else theirs | {_PYTHONPATH: given}
