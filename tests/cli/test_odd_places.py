"""A place whose name has a letter that URLs read otherwise is that very place, or is refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import FAST, WINDFALL, plain_environment

pytestmark = pytest.mark.real
ODD = ("run#2", "run?2", "r%41n", "my run", "tab\there", "new\nline", "ünï", "a&b=c;d", "50%")


def say(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [*WINDFALL, *words]
    return subprocess.run(
        line, cwd=cwd, capture_output=True, text=True, env=plain_environment(), timeout=60, check=False
    )


def exec_(cwd: Path, place: str, mark: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"print('I am', {mark!r})"]
    return say("exec", *FAST, "--state", str(cwd / "state"), place, "--", *command, cwd=cwd)


@pytest.mark.trial("G4")
@pytest.mark.parametrize("name", [*ODD[:3], pytest.param("all", marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_folder_with_an_odd_name_is_itself(tmp_path: Path, name: str) -> None:
    """A run in `run#2` begins although one in `run` is done, lies in that folder, and is found there by the verbs."""
    for odd in ODD if name == "all" else (name,):
        plain = odd.replace("%41", "A").partition("#")[0].partition("?")[0]
        assert exec_(tmp_path, str(tmp_path / plain), "plain").returncode == 0
        done = exec_(tmp_path, str(tmp_path / odd), "odd")
        assert done.returncode == 0, done.stderr
        assert plain == odd or "I am odd" in done.stdout
        assert (tmp_path / odd / "windfall.json").exists()
        told = say("ps", "--json", f"./{odd}", cwd=tmp_path)
        assert json.loads(told.stdout)["state"]["outcome"] == "done", told


@pytest.mark.trial("G4")
@pytest.mark.parametrize("odd", ["a\tb", "a\nb", "r%41n", "a#b", "a?b", "a\\b"])
def test_a_bucket_place_that_reads_in_two_ways_is_refused(tmp_path: Path, odd: str) -> None:
    """In a bucket such a name is refused in one sentence, and nothing is started."""
    said = exec_(tmp_path, f"s3://lab/{odd}", "odd")
    assert said.returncode == 2, said.stderr
    assert said.stderr.count("\n") == 1
    assert "I am" not in said.stdout
