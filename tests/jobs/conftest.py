"""An ordinary user's installation: a home with a long path, commands as they are typed; all of it ends with the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class User:
    """A home, and what is done in it."""

    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The installation's folder."""
        return self.home / ".local" / "state" / "windfall"

    def environment(self) -> dict[str, str]:
        """Return what a command finds: no environment is activated, nothing of this process's own settings."""
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "NUMBA_CACHE_DIR") if name in os.environ}
        return {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), **self.variables}

    def say(self, *words: str, cwd: Path, limit_s: float = 100.0) -> subprocess.CompletedProcess[str]:
        """Type a command of Windfall's."""
        argv = (sys.executable, "-m", "windfall.cli.main", *words)
        return subprocess.run(
            argv, cwd=cwd, env=self.environment(), capture_output=True, text=True, timeout=limit_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def close(self) -> None:
        """End whatever of this home still runs."""
        until = time.monotonic() + 20.0
        while (left := list(self._processes())) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _processes(self) -> Iterator[int]:
        mark = f"HOME={self.home}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes():
                        yield int(entry.name)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user whose home has a path of more than forty characters."""
    home = tmp_path / "a-home-with-quite-a-long-name-as-universities-give"
    home.mkdir()
    made = User(home)
    yield made
    made.close()
