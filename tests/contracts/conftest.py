"""Servers that all contract tests of a session share; each test uses a place of its own in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.servers import azure_server, no_azurite, s3_server


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
