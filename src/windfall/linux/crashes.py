"""How a process was ended by a signal such as SIGSEGV: its own last words, in a file that outlives it."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path


def keep_crash(path: str) -> None:
    """Have Python write what it is doing when such a signal ends this process."""
    # Open as long as the process lives.
    crashes_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    faulthandler.enable(crashes_fd, all_threads=False)


def crash_text(path: str) -> str:
    """Return in words how a program crashed its process, from what `keep_crash` left; empty if it did not.

    An abort counts as none: Ray's own processes abort when their node is lost.
    """
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    first = lines[0].removeprefix("Fatal Python error: ") if lines else ""
    if first in ("", "Aborted"):
        return ""
    frame = next((line.strip() for line in lines if line.startswith("  File ")), "")
    return f"the program crashed its process: {first}" + (f", at {frame[0].lower()}{frame[1:]}" if frame else "")
