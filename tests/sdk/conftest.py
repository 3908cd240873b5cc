from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_agent import FakeAgent
from windfall.sdk.attachment import LOCAL_WORLD_VARIABLES, RANK_VARIABLES
from windfall.sdk.session import Session


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    return FakeAgent(tmp_path / "session")


@pytest.fixture
def environ(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a fresh start, also in this process's own environment."""
    for name in (*RANK_VARIABLES, *LOCAL_WORLD_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    variables = agent.environment()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return dict(os.environ)


@pytest.fixture
def session(environ: dict[str, str]) -> Iterator[Session]:
    """A session in this process; the SIGTERM handler it installs goes with it."""
    before = signal.getsignal(signal.SIGTERM)
    yield Session(environ)
    signal.signal(signal.SIGTERM, before)
