"""The agent's process: `python -m windfall.cli.agent SESSION FD`, started by the supervisor alone."""

from __future__ import annotations

import signal
import socket
import sys

from windfall.agent import session
from windfall.wiring import run_agent


def main() -> None:
    """Run the agent; signals meant for the machine's processes are the supervisor's business."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    folder, descriptor = sys.argv[1:3]
    run_agent(session.load(folder), socket.socket(fileno=int(descriptor)))


if __name__ == "__main__":
    main()
