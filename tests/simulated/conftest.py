"""An installation that ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.rig import Rig
from tests.simulated import living


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A market and a controller as the table's jobs need them."""
    made = living.installation(tmp_path / "rig")
    yield made
    made.close()
