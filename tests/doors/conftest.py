"""How many inputs a door gets: `count` is a hundred in `make test`, ten thousand in `make verify AREA=doors`."""

from __future__ import annotations

import pytest

from tests.doors.support import FEW, MANY


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `count` comes twice: with few inputs, and, slow, with many."""
    if "count" in metafunc.fixturenames:
        many = pytest.param(MANY, marks=(pytest.mark.slow, pytest.mark.timeout(1800)), id="many")
        metafunc.parametrize("count", [pytest.param(FEW, id="few"), many])
