"""Every program of ours that waits can be ended by one signal, whatever it waits for."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import eventually, plain_environment

PATIENCE_S = 20.0
"""Less than the grace of 30 s that a machine on notice has."""


def _nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "program",
    ["windfall.cli.node_agent_process", "windfall.cli.controller_process", "windfall.providers.local.market_daemon"],
    ids=["machine", "controller", "market"],
)
def test_a_program_that_waits_ends_at_one_signal(program: str, number: signal.Signals, tmp_path: Path) -> None:
    """A machine whose controller and store say nothing, a controller without jobs, a market without machines."""
    ours = {
        "WINDFALL_RUN_URL": f"file://{tmp_path / 'run'}",
        "WINDFALL_MACHINE_ID": "m-1",
        "WINDFALL_PROVIDER": "local",
        "WINDFALL_CONTROLLER": _nobody(),
        "WINDFALL_CREDENTIAL": "x",
        "HOME": str(tmp_path),
    }
    words = [] if program == "windfall.cli.node_agent_process" else [str(tmp_path / "state")]

    with (tmp_path / "said").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", program, *words], cwd=tmp_path, env=plain_environment() | ours,
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        if words:
            eventually(lambda: any((tmp_path / "state").glob("*.json")), "it is up")
        else:
            eventually(lambda: _catches(process.pid, number), "it listens to signals")
        process.send_signal(number)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def _catches(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (number - 1) & 1) and (Path(f"/proc/{pid}/cwd") / ".windfall").exists()
