"""The API on a real server of the loopback, with users and a fake behind it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn

from tests.control.fake import KEY, FakeService
from windfall.control import auth
from windfall.control.api import build
from windfall.control.http_server import Presence, listen
from windfall.linux.clock import SystemClock
from windfall.storage.database import UserEntry

TOKENS = {"ada": "wu.token-of-ada", "eve": "wu.token-of-eve", "root": "wu.token-of-root"}


@dataclass
class Api:
    """A running API."""

    url: str
    service: FakeService
    presence: Presence
    users: list[UserEntry]
    trouble: Exception | None = None

    def known(self) -> tuple[UserEntry, ...]:
        if self.trouble is not None:
            raise self.trouble
        return tuple(self.users)

    def client(self, token: str | None) -> httpx.Client:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30)


@contextlib.contextmanager
def serving(service: FakeService) -> Iterator[Api]:
    """The API in a thread of this process, on a free port."""
    users = [UserEntry(name, auth.hash_of(token), name == "root") for name, token in TOKENS.items()]
    presence = Presence(SystemClock())
    running = Api("", service, presence, users)
    app = build(service, key=KEY, caller=auth.Authenticator(KEY, running.known).caller, presence=presence)
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            running.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield running
        finally:
            if service.hold is not None:
                service.hold.set()
            server.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive()


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(FakeService()) as running:
        yield running


@pytest.fixture
def ada(api: Api) -> Iterator[httpx.Client]:
    with api.client(TOKENS["ada"]) as client:
        yield client


@pytest.fixture
def eve(api: Api) -> Iterator[httpx.Client]:
    with api.client(TOKENS["eve"]) as client:
        yield client


@pytest.fixture
def root(api: Api) -> Iterator[httpx.Client]:
    with api.client(TOKENS["root"]) as client:
        yield client


@pytest.fixture
def nobody(api: Api) -> Iterator[httpx.Client]:
    with api.client(None) as client:
        yield client


def until(done: object, limit_s: float = 30.0) -> None:
    """Wait on a condition."""
    deadline = time.monotonic() + limit_s
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def log_of(state: Path) -> str:
    path = state / "controller.log"
    return path.read_text() if path.exists() else ""
