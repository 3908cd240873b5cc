"""Processes that a test left behind: whatever has the test's folder in its command line or its environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import alive


def processes_of(folder: Path) -> dict[int, str]:
    """Return the processes of a folder, with their command lines; this one is none of them."""
    found, mark = {}, f"{folder}/".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if alive(int(entry.name)) and (mark in line or mark in (entry / "environ").read_bytes()):
                found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
    return found


def none_left(folder: Path, patience_s: float = 40.0) -> None:
    """Wait until no process of a folder is left; those that stay are killed, and named in the failure."""
    until = time.monotonic() + patience_s
    while (left := processes_of(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    with killed_at_the_end(folder):
        assert not left, f"the test left processes behind: {left}"


@contextlib.contextmanager
def killed_at_the_end(folder: Path) -> Iterator[None]:
    """Kill whatever a folder has left, however the block ends."""
    try:
        yield
    finally:
        while left := processes_of(folder):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
