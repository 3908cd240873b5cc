"""Recipes in the words of before for what the tests of stores found; they fail there by an assertion, and pass here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.mark.trial("A8")
def test_storm_308_keeps_its_promises() -> None:
    """`python -m tests.storms.whole --seed 308` ends without a broken promise."""
    line = [sys.executable, "-m", "tests.storms.whole", "--seed", "308"]
    done = subprocess.run(line, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
