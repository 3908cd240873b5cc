"""Bad job files and options: one sentence that begins with the place, exit code 2, and no secret in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input.job_files import CASES, RUN, BadFile
from windfall.errors import EXIT_MISUSE, InvalidFile, Misuse
from windfall.spec.job_file import parse_injection
from windfall.spec.job_loader import load


def test_there_are_enough_bad_files() -> None:
    """Every case has a name of its own, and there are at least 30."""
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(CASES) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_file_is_told_with_its_place(case: BadFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, line and column of the mistake, what is wrong and what to write instead, in one line without a secret."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(case.text)

    with pytest.raises(InvalidFile) as caught:
        load("job.yaml")

    message = str(caught.value)
    assert message.startswith(f"job.yaml:{case.at}: "), message
    assert [part for part in case.says if part not in message] == [], message
    assert "\n" not in message
    assert len(message) < 420
    assert "hunter2" not in message
    assert caught.value.exit_code == EXIT_MISUSE


def _not_utf8(path: Path) -> None:
    path.write_bytes(b"run: x\nname: caf\xe9\n")


def _unreadable(path: Path) -> None:
    path.symlink_to(path)


BAD_PLACES: tuple[tuple[str, Callable[[Path], object], tuple[str, ...]], ...] = (
    ("absent", lambda _: None, ("job.yaml does not exist", "did you mean jobs.yaml?")),
    ("a-folder", Path.mkdir, ("job.yaml is a folder",)),
    ("not-utf8", _not_utf8, ("job.yaml:2:10: byte 0xe9 is not UTF-8",)),
    ("endless", lambda path: path.write_text("#" * 300_000), ("larger than 256 KiB",)),
    ("unreadable", _unreadable, ("cannot read job.yaml",)),
)


@pytest.mark.parametrize(("name", "arrange", "says"), BAD_PLACES, ids=[place[0] for place in BAD_PLACES])
def test_what_is_no_readable_file_is_told(
    name: str,
    arrange: Callable[[Path], object],
    says: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stands at the path instead of a job file is named, and a near name suggested."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").touch()
    arrange(Path("job.yaml"))

    with pytest.raises(Misuse) as caught:
        load("job.yaml")

    assert [part for part in says if part not in str(caught.value)] == [], str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_somebody_else_is_told(tmp_path: Path) -> None:
    """A file without permission is named with the reason."""
    path = tmp_path / "job.yaml"
    path.write_text(RUN)
    path.chmod(0)

    with pytest.raises(Misuse, match=r"cannot read .*: Permission denied"):
        load(str(path))


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        (
            "resources.use_spt",
            "true",
            "--set resources.use_spt: resources.use_spt is an unknown key; did you mean use_spot?",
        ),
        ("wrk.steps", "4", "--set wrk.steps: wrk is an unknown key; did you mean work?"),
        ("objective.deadline", "3", "--set objective.deadline: objective.deadline must be a duration"),
        ("num_nodes", "[1", "--set num_nodes:1:3: "),
        ("name.first", "x", "--set name.first: name in job.yaml is not a map"),
        ("", "x", "a key is names separated by dots"),
        ("envs..X", "x", "a key is names separated by dots"),
    ],
)
def test_a_bad_override_is_told_by_its_option(
    key: str, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value from the command line that is wrong is told as such, not with a line of the file."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(f"{RUN}name: gpt\n")

    with pytest.raises(Misuse) as caught:
        load("job.yaml", overrides={key: text})

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown part ''"),
        ("90s", "unknown part '90s'"),
        ("seed=7", "mttp is missing"),
        ("mtp=90s", "did you mean mttp="),
        ("mttp=90", "is not a duration"),
        ("mttp=90s+", "is not a duration"),
        ("mttp=0s", "more than 0s"),
        ("mttp=90s,mttp=80s", "given twice"),
        ("mttp=90s,seed=-1", "seed must be a whole number"),
        ("mttp=90s,seed=x", "seed must be a whole number"),
        ("mttp=90s,notice=soon", "is not a duration"),
    ],
)
def test_a_bad_injection_is_told(text: str, says: str) -> None:
    """`--inject` says which part is wrong and what it may be."""
    with pytest.raises(Misuse, match=r"^--inject: ") as caught:
        parse_injection(text)

    assert says in str(caught.value)
