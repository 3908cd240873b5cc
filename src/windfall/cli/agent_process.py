"""The agent's process: `python -m windfall.cli.agent_process SESSION FD`, started by the supervisor alone."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback

from windfall.agent import exec_request, session_folder
from windfall.wiring import run_agent

_EXIT_CRASHED = 70


def main() -> None:
    """Run the agent; the supervisor handles the signals of the machine's processes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    folder, descriptor = sys.argv[1:3]
    # A thread that dies of an unexpected error would leave the others waiting for it: the process dies instead, and the
    # supervisor starts another one that continues from the journal.
    threading.excepthook = lambda failure: _crash(folder, failure.exc_value)
    try:
        run_agent(exec_request.load_session(folder), socket.socket(fileno=int(descriptor)))
    except Exception as error:
        _crash(folder, error)


def _crash(folder: str, error: BaseException | None) -> None:
    # Whatever else fails here (a full disk, a closed stderr): the process must end, or it is not replaced.
    try:
        path = os.path.join(folder, session_folder.CRASHES)
        last = traceback.format_exception_only(error)[-1].strip() if error is not None else "unknown"
        print(f"windfall: the agent crashed; restarting it: {last} (details in {path})", file=sys.stderr, flush=True)
        with open(path, "a") as file:
            file.writelines(traceback.format_exception(error))
    finally:
        os._exit(_EXIT_CRASHED)


if __name__ == "__main__":
    main()
