"""Where the public traces lie, beside the repository; a test that needs them is skipped where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not beside this checkout")


def found(pattern: str) -> list[Path]:
    """The files of that pattern, without those that are no traces."""
    return sorted(DATA.glob(pattern))
