"""`make` brings its environment along: nobody has to activate one, nor to have anything else on the path."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.source import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
TARGETS = ("setup", "demo", "test", "check", "bench", "verify", "docs", "slurm")
OF_THE_SYSTEM = ("touch", "if", "python3", "/")


def make(home: Path, *words: str) -> str:
    """Run make in a shell that knows the system's programs alone."""
    bare = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(["make", *words], cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.trial("F6")
def test_what_a_target_starts_finds_the_programs_of_the_environment(tmp_path: Path) -> None:
    """`torchrun`, started by name by a script of a test, is that of `.venv`, whatever the caller's path is."""
    path = make(tmp_path, "--eval", "probe: ; @echo $$PATH", "probe").strip()
    assert path.split(":")[0] == str(ROOT / ".venv" / "bin")


@pytest.mark.trial("F6")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("area", ["house", "mutants", "strangers"])
def test_a_target_calls_nothing_by_name_that_the_environment_has(target: str, area: str, tmp_path: Path) -> None:
    """Each line of each target names the environment's own program, or one that every system has."""
    said = make(tmp_path, "-n", "--no-print-directory", target, f"AREA={area}").splitlines()
    lines = [line for line in said if not line.startswith("make: ")]
    first = [word for line in lines for word in [next(w for w in line.split() if "=" not in w)]]
    assert [word for word in first if not word.startswith((".venv/bin/", *OF_THE_SYSTEM))] == []
