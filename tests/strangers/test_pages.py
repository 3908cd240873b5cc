"""What the pages tell a reader to type: it can be typed, and it does what the page says."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.strangers import pages
from tests.strangers.support import BIN, PATIENCE_S, wait_until
from windfall.cli.main import main

NOBODY = 65534


@functools.cache
def help_of(verb: str) -> str:
    """What `windfall VERB --help` prints, its code put before it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([*verb.split(), "--help"])
    return f"{code}\n{out.getvalue()}"


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_every_option_that_a_page_shows_exists(page: Path) -> None:
    """A verb of a page is one of ours, and each option stands in the help of its verb."""
    unknown = []
    for words in pages.windfall_calls(page):
        verb = " ".join(words[: {"lab": 3 if "traces" in words else 2}.get(words[0], 1)])
        if verb.startswith(("-", "JOB", "VERB")):
            continue
        text = help_of(verb)
        unknown += [] if text.startswith("0\n") else [verb]
        options = [word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)]
        unknown += [f"{verb} {option}" for option in options if not re.search(rf"{re.escape(option)}\b", text)]
    assert unknown == []


NOT_HERE = {
    "make setup": "this environment is set up",
    ". .venv/bin/activate": "the path leads to it",
}
"""Lines of the tutorial that are not typed, with the reason."""


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
        self.rights = _of_nobody()
        if self.rights:
            for path in (root, self.home, self.folder):
                os.chown(path, NOBODY, NOBODY)
            root.chmod(0o755)

    def start(self, line: str) -> subprocess.Popen[str]:
        """Type a line in a terminal of its own."""
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return subprocess.Popen(
            [*self.rights, "sh", "-c", f"exec {line}"], cwd=self.folder, env={"PATH": path, "HOME": str(self.home)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def types(self, line: str, code: int = 0) -> str:
        """Type a line and wait for its end."""
        process = self.start(line)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, f"{line}: {process.returncode}\n{out}"
        return out

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


@pytest.fixture
def reader() -> Iterator[Reader]:
    """A reader in a folder that others may enter."""
    root = Path(tempfile.mkdtemp(prefix="w-"))
    made = Reader(root)
    yield made
    made.finish()
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    """Line for line, with a second terminal where it asks for one: the resumed run ends with the plain run's numbers."""
    page = pages.ROOT / "docs" / "tutorial.md"
    text = page.read_text("utf-8")
    for name, language in (("train.py", "python"), ("job.yaml", "yaml")):
        block = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
        assert block is not None
        (reader.folder / name).write_text(block[1])
    typed: list[str] = []
    plain = ""
    for line in pages.commands(page):
        print(f"$ {line}", flush=True)
        if line == "python train.py":
            plain = reader.types(line).splitlines()[-1]
        elif line.startswith("windfall exec") and line in typed:
            assert plain in reader.types(line)
        elif line.startswith(("windfall exec", "windfall run")):
            reader.terminal = reader.start(line.replace("windfall run", "windfall run -y", 1))
        elif line.startswith(("windfall ps", "windfall inject line")):
            until_it_works(reader, line)
        elif line.startswith("windfall inject runs/"):
            until_it_works(reader, line)
            assert reader.ends() in (75, 128 + signal.SIGKILL, -signal.SIGKILL)
        elif line == "windfall logs -f line":
            os.kill(reader.open.pid, signal.SIGINT)
            assert reader.ends() == 0
            assert plain in reader.types(line)
        elif line not in NOT_HERE:
            reader.types(line)
        typed.append(line)


def until_it_works(reader: Reader, line: str) -> None:
    """Type a line of the second terminal until the first one has got so far that it works."""

    def works() -> bool:
        assert reader.open.poll() is None, reader.open.communicate()[0]
        process = reader.start(line)
        process.communicate(timeout=PATIENCE_S)
        return process.returncode == 0

    wait_until(works, lambda: line)
