"""Installations of their own for each test; whatever lives in them ends with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.source import ROOT
from tests.live.rig import Rig
from tests.storage.databases import Postgres, no_postgres, postgres_server

ENTRY_POINTS = """[windfall.runtimes]
tickets = tests.support.tickets:RULES
[windfall.fleet_policies]
queue = tests.support.tickets:queue
"""


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


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A database server that the test may kill."""
    if reason := no_postgres():
        pytest.skip(reason)
    with postgres_server() as running:
        yield running


@pytest.fixture
def tickets_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the runtime and its policy is installed, for every process."""
    package = tmp_path / "plugin" / "tickets-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tickets\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{package.parent}")
