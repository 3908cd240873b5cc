"""`windfall doctor` names the sockets that an installation's processes have open to other machines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_doctor import looked

LISTENER = """
import socket, sys
one = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def listener(state: Path, host: str, **variables: str) -> Iterator[int]:
    """A process of a machine of an installation that listens on an address, below one that does not."""
    script = state / "listener.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(LISTENER)
    environment = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(state / "market" / "disk"), **variables}
    with subprocess.Popen(
        [sys.executable, str(script), host], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.real
def test_a_socket_that_other_machines_reach_is_named_with_its_port(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Program, address, port, and that no token guards it; of Ray's in its token mode, that one does."""
    state = tmp_path / "state"
    words = ("--provider", "local", "--state", str(state))
    with listener(state, "0.0.0.0") as open_port, listener(state, "::", RAY_AUTH_MODE="token") as rays_port:
        code, checks = looked(capsys, *words)
    found = checks["listening"]
    assert (code, found["verdict"]) == (0, "warn")
    assert f"listener.py at 0.0.0.0, port {open_port}, WITHOUT a token" in found["says"]
    assert f"listener.py at ::, port {rays_port}, with a token" in found["says"]
    assert found["numbers"] == {"sockets": 2.0, "without_token": 1.0}

    _, checks = looked(capsys, *words)
    assert checks["listening"]["verdict"] == "ok"


@pytest.mark.real
@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1"])
def test_a_socket_of_this_machine_alone_is_none_of_them(
    host: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Any address of loopback."""
    state = tmp_path / "state"
    with listener(state, host):
        _, checks = looked(capsys, "--provider", "local", "--state", str(state))
    assert (checks["listening"]["verdict"], checks["listening"]["do"]) == ("ok", None)


@pytest.mark.real
def test_a_socket_of_another_installation_is_none_of_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Another folder of state, even one whose name begins alike."""
    with listener(tmp_path / "state-of-another", "0.0.0.0"):
        _, checks = looked(capsys, "--provider", "local", "--state", str(tmp_path / "state"))
    assert checks["listening"]["verdict"] == "ok"
