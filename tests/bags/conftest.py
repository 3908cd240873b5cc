"""Installations of their own for each test; whatever lives in them ends with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.rig import Rig


@pytest.fixture
def new_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes installations."""
    made: list[Rig] = []

    def new(**more: Any) -> Rig:
        made.append(Rig(tmp_path / f"rig-{len(made)}", **more))
        return made[-1]

    yield new
    for rig in made:
        rig.close()
