"""The agent's end of the socket to its supervisor."""

from __future__ import annotations

import subprocess
import sys

ORPHAN = """
import socket, time
from windfall.agent.supervisor_client import SupervisorClient
ours, theirs = socket.socketpair()
theirs.sendall(b'{"attempt": 0, "running": false, "status": null}\\n')
supervision = SupervisorClient(ours)
supervision.log("nobody reads this any more")
theirs.close()
supervision.listen(print, print)
time.sleep(20)
"""


def test_an_agent_whose_supervisor_was_killed_ends_without_a_word() -> None:
    """Also where the supervisor had not read all: it is no crash, and nobody starts another agent."""
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
