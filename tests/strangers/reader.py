"""Somebody without rights, with a long home and a folder with spaces, who types what a page says."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.strangers.support import BIN, PATIENCE_S, wait_until
from tests.support.left import killed_at_the_end

NOBODY = 65534


def _of_nobody() -> list[str]:
    """What gives root's rights up; nothing where one has none, or where this environment is root's alone."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return []
    rights = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    line = [*rights, "sh", "-c", f"exec '{sys.executable}' -c 'import windfall.errors'"]
    tried = subprocess.run(line, capture_output=True, check=False)
    return rights if tried.returncode == 0 else []


class Reader:
    """Somebody without rights, with a long home and a folder with spaces, who types what a page says."""

    def __init__(self, root: Path) -> None:
        self.home = root / "a-user-whose-home-has-forty-characters"
        self.folder = self.home / "first steps"
        self.folder.mkdir(parents=True)
        self.terminal: subprocess.Popen[str] | None = None
        self.exported: dict[str, str] = {}
        self.rights = _of_nobody()
        for path in (root, self.home, self.folder):
            self.own(path)
        root.chmod(0o755)

    def own(self, path: Path) -> None:
        """Give a file, or a folder with all in it, to the reader."""
        if self.rights:
            for one in (path, *path.rglob("*")):
                os.chown(one, NOBODY, NOBODY)

    def start(self, line: str, folder: Path | None = None) -> subprocess.Popen[str]:
        """Type a line in a terminal of its own."""
        return subprocess.Popen(
            [*self.rights, "sh", "-c", line if "|" in line else f"exec {line}"], cwd=folder or self.folder,
            env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {"PATH": path, "HOME": str(self.home)} | self.exported

    def exports(self, line: str) -> None:
        """Type `export NAME=VALUE ...`: every later line has it."""
        done = subprocess.run(
            ["sh", "-c", f"{line}; env -0"], cwd=self.folder, env=self._environment(), capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        named = {word.partition("=")[0] for word in line.split()[1:]}
        found = dict(pair.partition("=")[::2] for pair in done.stdout.split("\0"))
        self.exported |= {name: found[name] for name in named & found.keys()}

    def types(self, line: str, code: int = 0, patience_s: float = PATIENCE_S) -> str:
        """Type a line and wait for its end."""
        process = self.start(line)
        out, _ = process.communicate(timeout=patience_s)
        assert process.returncode == code, f"{line}: {process.returncode}\n{out}"
        return out

    def tries(self, line: str) -> int:
        """Type a line that may not work yet; return what it ends with."""
        process = self.start(line)
        process.communicate(timeout=PATIENCE_S)
        return process.returncode

    @property
    def open(self) -> subprocess.Popen[str]:
        """The terminal in which a line stays."""
        assert self.terminal is not None
        return self.terminal

    def ends(self) -> int:
        """Wait for the end of the line that stays."""
        self.open.communicate(timeout=PATIENCE_S)
        return self.open.returncode

    def finish(self) -> None:
        """Leave nothing behind."""
        if self.terminal is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.terminal.pid, signal.SIGKILL)
            self.terminal.wait()


@contextlib.contextmanager
def a_reader() -> Iterator[Reader]:
    """A reader in a folder that others may enter."""
    root = Path(tempfile.mkdtemp(prefix="w-"))
    with killed_at_the_end(root):
        made = Reader(root)
        yield made
        made.finish()
    shutil.rmtree(root, ignore_errors=True)


def until_it_works(reader: Reader, line: str) -> None:
    """Type a line of the second terminal until the first one has got so far that it works."""

    def works() -> bool:
        assert reader.open.poll() is None, reader.open.communicate()[0]
        return reader.tries(line) == 0

    wait_until(works, lambda: line)
