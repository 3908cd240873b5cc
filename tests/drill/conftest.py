"""Drills of small scripts: each runs the real command on a real script, in processes that find torch imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from windfall.cli.main import main

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Drill = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server that forks processes in which torch is imported; the path of its socket."""
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("warm") / "socket"
    command = [sys.executable, "-W", "ignore", "-m", "tests.drill.warm", str(path)]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    yield path
    server.communicate(timeout=30)


@pytest.fixture
def drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drill:
    """Drill a command in a folder that holds a script; the drill as JSON, with its exit code."""

    def run(text: str, command: list[str], *options: str) -> dict[str, Any]:
        folder = tmp_path / "code"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(text)
        monkeypatch.chdir(folder)
        code = main(["drill", "--json", "--state", str(tmp_path / "state"), *options, "--", *command])
        out, err = capsys.readouterr()
        assert sorted(path.name for path in folder.iterdir()) == ["train.py"], "the user's folder is as it was"
        return {"code": code, "error": err, **(json.loads(out) if out else {})}

    return run


@pytest.fixture
def drill_warm(drill: Drill, warm: Path) -> Drill:
    """Drill a script that imports torch."""

    def run(text: str, *options: str, ranks: int = 1) -> dict[str, Any]:
        return drill(text, [sys.executable, "-S", str(HERE / "warm.py"), str(warm), str(ranks), "train.py"], *options)

    return run


def script(name: str, *changes: tuple[str, str]) -> str:
    """Return a script, with pieces of it replaced."""
    text = (HERE / "scripts" / f"{name}.py").read_text()
    for old, new in changes:
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    return text
