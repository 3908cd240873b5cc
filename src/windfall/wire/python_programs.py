"""Starts Windfall's own Python programs so that they never import modules from the working folder.

The working folder contains the user's code: a `queue.py` in it must not replace the standard module.  Python searches it
first for `python -m` (unless `-P` is original, which, unlike `PYTHONSAFEPATH`, child processes do not inherit), and wherever
`PYTHONPATH` has an empty or relative entry.  The user's script still gets both unchanged.

Uses only the standard library, and no other module of Windfall.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

SCRIPT_PYTHONPATH = "WINDFALL_SCRIPT_PYTHONPATH"
"""Carries the user's original `PYTHONPATH` to the script."""
_PYTHONPATH = "PYTHONPATH"


def program(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a module of Windfall as a program."""
    return (sys.executable, "-P", "-m", module, *arguments)


def interpreter() -> str:
    """Return the path of the Python that runs Windfall's programs, for users' commands that start one themselves."""
    return sys.executable


def snippet(code: str) -> tuple[str, ...]:
    """Return the command line that runs a piece of Windfall's code."""
    return (sys.executable, "-P", "-c", code)


def program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a Windfall program that later starts a user's: `PYTHONPATH` has only absolute paths."""
    result = dict(environ)
    original = result.get(_PYTHONPATH)
    if original is None or SCRIPT_PYTHONPATH in result:
        return result
    absolute = os.pathsep.join(entry for entry in original.split(os.pathsep) if os.path.isabs(entry))
    if absolute != original:
        result[SCRIPT_PYTHONPATH] = original
        result[_PYTHONPATH] = absolute
    return result


def user_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a user's program, with the original `PYTHONPATH`."""
    result = dict(environ)
    original = result.pop(SCRIPT_PYTHONPATH, None)
    return result if original is None else result | {_PYTHONPATH: original}
