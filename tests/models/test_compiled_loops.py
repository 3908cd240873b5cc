"""Compiled loops are never older than the files they are made of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORMULAS = """
from typing import NamedTuple
from numba import njit

class Given(NamedTuple):
    value: float

@njit
def rule(given):
    return 2.0 * given.value
"""
LOOP = """
import formulas
from windfall.models import compiled_loops

@compiled_loops.cached(formulas)
def loop(given):
    return formulas.rule(given)

print(loop(next(iter(vars(formulas)[name] for name in ("Given", "Asked") if name in vars(formulas)))(3.0)))
print(sum(loop.stats.cache_hits.values()))
"""


def ran(folder: Path) -> list[str]:
    """Return what the loop returns, and how often it was read from the cache."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "loop.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [("2.0 *", "5.0 *", "15.0"), ("Given", "Asked", "6.0")],
    ids=["another formula", "another class"],
)
def test_a_loop_is_compiled_again_only_when_a_file_that_it_uses_has_changed(
    tmp_path: Path, old: str, new: str, result: str
) -> None:
    """A third run reads nothing from the cache, and computes with what the files say now."""
    (tmp_path / "formulas.py").write_text(FORMULAS)
    (tmp_path / "loop.py").write_text(LOOP)
    assert [ran(tmp_path), ran(tmp_path)] == [["6.0", "0"], ["6.0", "1"]]
    (tmp_path / "formulas.py").write_text(FORMULAS.replace(old, new))
    assert ran(tmp_path) == [result, "0"]
