"""What the pages tell a reader to type: it can be typed, and it does what the page says."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.strangers import pages
from tests.strangers.reader import Reader, a_reader, until_it_works
from windfall.cli.main import main


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


@pytest.fixture
def reader() -> Iterator[Reader]:
    """A reader in a folder that others may enter."""
    with a_reader() as made:
        yield made


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
