"""Where published numbers lie: beside the repository, never in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2].parent / "shared" / "reference"


def published(name: str) -> Any:
    """A file of reference numbers; the test is skipped where it is not at hand."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"the published numbers of {name} are not at hand")
    return json.loads(path.read_text("utf-8"))
