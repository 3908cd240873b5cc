"""What the client of a controller does when the controller is not there."""

from __future__ import annotations

import contextlib
import socket

import pytest

from windfall.cli.client import Client, ControllerAddress
from windfall.errors import ControllerError


def test_a_controller_that_does_not_start_is_looked_for_again() -> None:
    """Each call says so in a sentence, also after a first one that found none."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        gone = ControllerAddress(f"http://127.0.0.1:{free.getsockname()[1]}", "token", "start it")
    answers = iter([gone])

    def find() -> ControllerAddress:
        if (found := next(answers, None)) is None:
            raise ControllerError("the controller failed to start")
        return found

    with Client(find) as client:
        for _ in range(2):
            with pytest.raises(ControllerError, match="failed to start"):
                client.status()
