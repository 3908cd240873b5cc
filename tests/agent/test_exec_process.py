"""`windfall exec` as a node agent starts it: what it refuses reaches the controller as a message and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.live import eventually, plain_environment
from windfall.agent.exec_process import ExecProcess, MachineContext
from windfall.core.node_agent_state import StartExec
from windfall.errors import EXIT_MISUSE
from windfall.wire.boot_data import BootData


@pytest.mark.parametrize(
    ("command", "environment", "provider", "message"),
    [
        (("no-such-command",), {}, "local", "no-such-command: no such command"),
        ((sys.executable, "-c", "pass"), {"WINDFALL_UPLINK": "fast"}, "local", "WINDFALL_UPLINK"),
        ((sys.executable, "-c", "pass"), {"WINDFALL_PATIENCE": "long"}, "local", "WINDFALL_PATIENCE"),
        ((sys.executable, "-c", "pass"), {}, "nowhere", "no notices are known of a provider 'nowhere'"),
    ],
)
def test_what_cannot_be_started_is_refused_with_its_reason(
    tmp_path: Path, command: tuple[str, ...], environment: dict[str, str], provider: str, message: str
) -> None:
    """No attempt is counted: the same machine would fail again, and so would the next."""
    folder = tmp_path / ".windfall"
    folder.mkdir()
    url = f"file://{tmp_path / 'run'}"
    machine = MachineContext(url, "m-1", str(folder), provider, None, plain_environment() | environment)
    process = ExecProcess(machine, lambda _: "windfall.agent.exec_start")
    process.start(BootData("job", command), (), StartExec())
    codes: list[int] = []
    eventually(lambda: codes.extend([code] if (code := process.poll()) is not None else []) or codes, "it ends")
    assert codes == [EXIT_MISUSE]
    assert message in process.last_message()
