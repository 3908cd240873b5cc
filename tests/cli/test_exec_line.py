"""The quick way through the command line of `windfall exec`: the same as the parser's, or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windfall.agent.exec_request import ExecRequest
from windfall.cli import exec as exec_verb
from windfall.cli import exec_line
from windfall.cli.main import main
from windfall.errors import EXIT_MISUSE
from windfall.structs import replace


def parsed(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> ExecRequest:
    """What the parser makes of a line."""
    found: list[ExecRequest] = []
    monkeypatch.setattr(exec_verb, "become_supervisor", found.append)
    monkeypatch.setattr(exec_line, "quick_request", lambda _: None)
    assert main(["exec", *words]) == 0
    return found[0]


@pytest.mark.parametrize(
    "words",
    [
        ["/runs/one", "--", "true"],
        ["file:///runs/one"],
        ["--keep", "3", "--wait", "/runs/one", "--", "true", "--keep", "4"],
        ["/runs/one", "--lease=10s", "--policy", "every 10m", "--bundle", "--", "sh", "-c", "exit 3"],
        ["--max-failures", "7", "--retry-codes", "75,137", "--grace", "20s", "--mttp", "3h", "/runs/one", "--", "true"],
        ["--state", "here", "--provider", "local", "--metadata-url", "http://127.0.0.1:9", "/runs/one", "--", "true"],
        ["--isolation", "subreaper", "--uplink", "20MB/s", "--patience", "1m", "--new-code", "/runs/one", "--", "true"],
        ["--generation", "2", "--node-rank", "1", "--peers", "a:1,b:2", "/runs/one", "--", "true"],
    ],
)
def test_the_quick_way_and_the_parser_make_the_same_request(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Every option of `exec` stands in one of these lines."""
    quick = exec_line.quick_request(words)
    assert quick is not None
    assert quick == parsed(monkeypatch, words)


def test_both_ways_have_the_same_defaults() -> None:
    """They stand in two signatures: the parser wants types for its help."""
    assert exec_verb.exec_.__kwdefaults__ == exec_line.request_of.__kwdefaults__


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["/runs/one", "--help"],
        [],
        ["/runs/one", "/runs/two", "--", "true"],
        ["--keep", "/runs/one", "--", "true"],
        ["--keep", "0", "/runs/one", "--", "true"],
        ["--keep"],
        ["--keep", "1", "--keep", "2", "/runs/one", "--", "true"],
        ["--kept", "1", "/runs/one", "--", "true"],
        ["--node_rank", "0", "/runs/one", "--", "true"],
        ["-w", "/runs/one", "--", "true"],
        ["--wait=yes", "/runs/one", "--", "true"],
        ["--lease=", "/runs/one", "--", "true"],
        ["/runs/one", "--", "no-such-command"],
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(words: list[str]) -> None:
    """Help, and a message for each mistake, have one home."""
    assert exec_line.quick_request(words) is None


def test_a_session_that_cannot_be_created_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The quick way ends like the parser's: one message, exit code 2."""
    (tmp_path / "state").write_text("a file")
    line = ["exec", "--state", str(tmp_path / "state"), str(tmp_path / "run"), "--", "true"]
    assert main(line) == EXIT_MISUSE
    printed = capfd.readouterr().err
    assert printed.startswith("windfall: cannot create ")
    assert printed.count("\n") == 1


def test_a_request_travels_whole(tmp_path: Path) -> None:
    """What is written is what is read: nothing is spelled out field by field on the way."""
    from windfall.agent import exec_request

    line = ["--keep", "3", "--retry-codes", "75", "--mttp", "1h", "/runs/one", "--", "true"]
    request = exec_line.quick_request(line)
    assert request is not None
    whole = replace(request, session=str(tmp_path), machine="m-1", status="s", notices="n", peers=("a:1", "b:2"))
    exec_request.save(whole, whole.path("exec.json"))
    assert exec_request.load_session(str(tmp_path)) == whole
    assert (tmp_path / "exec.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_whose_name_is_not_utf8_travels_in_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File names on Linux are bytes."""
    from windfall.agent import exec_request

    folder = os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    request = exec_line.quick_request(["/runs/one", "--", "true"])
    assert request is not None
    whole = replace(request, session=str(tmp_path))
    exec_request.save(whole, whole.path("exec.json"))
    assert exec_request.load_session(str(tmp_path)).cwd == folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/runs/one", "--", "echo", "a\udcff"], "is not valid UTF-8"),
        (["/runs/one", "--keep", "9" * 20, "--", "true"], "--keep: must be at least 1 and at most 1,000,000"),
        (["/runs/one", "--keep", "9" * 5000, "--", "true"], "--keep: must be a whole number"),
        (["/runs/one", "--polcy", "never", "--", "true"], "unknown option --polcy; did you mean --policy?"),
    ],
)
def test_a_line_that_no_run_can_keep_is_refused(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One message, exit code 2, nothing started."""
    assert main(["exec", *words]) == EXIT_MISUSE
    assert message in capfd.readouterr().err


def test_a_folder_that_is_gone_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A relative URL needs the current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    assert main(["exec", "runs/one", "--", "true"]) == EXIT_MISUSE
    assert "the current folder no longer exists" in capfd.readouterr().err


def test_help_that_cannot_be_written_is_one_line() -> None:
    """A full disk is no traceback."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "windfall.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "windfall: cannot write the output: No space left on device\n")
