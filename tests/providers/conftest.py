"""A market for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.support import Bench, bench


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Bench]:
    """A local market with room for everybody."""
    with bench(tmp_path / "market") as made:
        yield made
