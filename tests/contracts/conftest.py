"""Servers that all contract tests of a session share; each test uses a place of its own in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.contracts.providers import CONTRACT_WORLDS, SLOW, WORLDS, World
from tests.contracts.servers import azure_server, no_azurite, s3_server
from tests.contracts.trading import Markets, release_all


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that leads to a real S3-protocol server with the bucket `lab`."""
    with s3_server(tmp_path_factory.mktemp("s3")) as environment:
        yield environment


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that leads to an Azurite with the container `lab`."""
    if reason := no_azurite():
        pytest.skip(reason)
    with azure_server(tmp_path_factory.mktemp("azure")) as environment:
        yield environment


@pytest.fixture(scope="session", params=sorted(WORLDS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Markets]:
    """Open a market of an implementation."""
    with ExitStack() as stack:
        yield Markets(request.param, lambda: tmp_path_factory.mktemp("market"), stack)


@pytest.fixture
def world(opened: Markets) -> World:
    """A market with room for everybody."""
    return opened()


@pytest.fixture
def owner(request: pytest.FixtureRequest, opened: Markets) -> Iterator[str]:
    """An installation that is this test's alone; what it leaves behind is given back."""
    yield from _owner(request, opened)


def _slow_ones_marked() -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in sorted(CONTRACT_WORLDS)]


@pytest.fixture(scope="session", params=_slow_ones_marked())
def contracted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Markets]:
    """Open a market of any implementation, however it keeps its promises."""
    with ExitStack() as stack:
        yield Markets(request.param, lambda: tmp_path_factory.mktemp("market"), stack)


@pytest.fixture
def buyer(request: pytest.FixtureRequest, contracted: Markets) -> Iterator[str]:
    """As `owner`, in such a market."""
    yield from _owner(request, contracted)


def _owner(request: pytest.FixtureRequest, opened: Markets) -> Iterator[str]:
    name = re.sub(r"\W+", "-", request.node.name)
    yield name
    for world in opened.worlds.values():
        for one in (name, f"{name}-other"):
            release_all(world, one)
