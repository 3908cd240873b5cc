"""The job's setup: a shell script that runs once on each machine before the job's command."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Mapping

from windfall.errors import WindfallError

KEPT_BYTES_MAX = 256 << 10
"""How much of the setup's output goes into the run: its end."""
_TAIL_LINES, _TAIL_CHARACTERS = 5, 600
_LINE_BYTES_MAX = 8192
_HIDDEN_CHARACTERS_MIN = 4
"""Shorter values occur by chance in any output; replacing them would make it unreadable."""


class SetupFailed(WindfallError):
    """The job's setup ended with an error on this machine."""


class Setup:
    """One run of the setup: `run` in one thread, `kill` from any."""

    def __init__(self, hidden: tuple[str, ...]) -> None:
        self._hidden = tuple(value for value in hidden if len(value) >= _HIDDEN_CHARACTERS_MIN)
        self._lines: deque[bytes] = deque()
        self._kept_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, script: str, cwd: str, env: Mapping[str, str]) -> None:
        """Run a script with a shell that ends at the first error; its lines are printed with `setup | ` before them.

        Args:
            script: path of the text.
            cwd: where it runs.
            env: its environment.

        Raises:
            SetupFailed: it ended with another code than 0; the sentence has its last lines.
        """
        shell = shutil.which("bash") or "/bin/sh"
        try:
            self._process = subprocess.Popen(
                [shell, "-e", script],
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise SetupFailed(f"the setup could not be started in {cwd}: {error.strerror}") from error
        with self._process as process:
            assert process.stdout is not None
            while line := process.stdout.readline(_LINE_BYTES_MAX):
                self._keep(line)
        if self._process.returncode != 0:
            raise SetupFailed(f"the setup ended with {self._process.returncode}: {self._tail()}")

    def _keep(self, line: bytes) -> None:
        for value in self._hidden:
            line = line.replace(value.encode(), b"***")
        line = b"setup | " + line.rstrip(b"\n") + b"\n"
        with contextlib.suppress(OSError):
            os.write(1, line)
        self._lines.append(line)
        self._kept_bytes += len(line)
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._lines.popleft())

    def output(self) -> bytes:
        """Return the end of what it printed."""
        return b"".join(self._lines)

    def _tail(self) -> str:
        last = [line.decode(errors="replace").removeprefix("setup | ").strip() for line in self._lines]
        text = " / ".join([line for line in last if line][-_TAIL_LINES:])
        return text[-_TAIL_CHARACTERS:] or "it printed nothing"

    def kill(self) -> None:
        """End it and its children, if it runs."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
