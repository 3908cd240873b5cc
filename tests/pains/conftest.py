"""A new run for each pain; every machine is gone when its test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live import Run, new_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run in a folder store."""
    made = new_run(tmp_path)
    yield made
    for machine in made.machines:
        machine.process.kill()
        machine.process.wait()
