"""The agent's end of the socket to its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence

from windfall.events import Fact, RunStopRequested, ScriptExited
from windfall.terms import Instant


class SupervisorClient:
    """Sends commands to the supervisor and delivers its messages as facts.

    Args:
        channel: the socket.
        managed: whether a node agent started this `windfall exec`: no user is at its terminal.
    """

    def __init__(self, channel: socket.socket, *, managed: bool = False) -> None:
        self.managed = managed
        self._channel = channel
        self._reader = channel.makefile("rb")
        self._lock = threading.Lock()
        hello = json.loads(self._reader.readline())
        self.attempt: int = hello["attempt"]
        """The current or last attempt; 0 before the first."""
        self.running: bool = hello["running"]
        self.status: int | None = hello["status"]
        """The exit status of that attempt; None while it runs."""

    def listen(self, deliver: Callable[[Fact], None], terminated: Callable[[Instant], None]) -> None:
        """Start the thread that turns messages into facts.

        Args:
            deliver: takes `ScriptExited` and `RunStopRequested`.
            terminated: called for SIGTERM and the signals Slurm may send as a warning: the machine is being preempted.
        """
        threading.Thread(target=self._listen, args=(deliver, terminated), name="supervision", daemon=True).start()

    def _listen(self, deliver: Callable[[Fact], None], terminated: Callable[[Instant], None]) -> None:
        # Reset: the supervisor was killed before it read everything.
        with contextlib.suppress(ConnectionResetError):
            self._receive(deliver, terminated)
        # Without a supervisor there is nothing to do; the kernel kills this process anyway.
        os._exit(1)

    def _receive(self, deliver: Callable[[Fact], None], terminated: Callable[[Instant], None]) -> None:
        interrupts = 0
        for line in self._reader:
            message = json.loads(line)
            if message["type"] == "exited":
                if message["refused"]:
                    self.log(message["refused"])
                deliver(ScriptExited(message["status"]))
            elif message["number"] == signal.SIGINT:
                interrupts += 1
                if interrupts == 1:
                    self.log(
                        "stopping after a save"
                        + ("" if self.managed else "; press Ctrl-C again to stop without saving")
                    )
                deliver(RunStopRequested(interrupts > 1, "Ctrl-C"))
            else:
                terminated(Instant(message["at_ns"] / 1e9))

    def start(self, attempt: int, argv: Sequence[str], cwd: str, env: dict[str, str]) -> None:
        """Start the script."""
        self.attempt = attempt
        self._send({"type": "start", "attempt": attempt, "argv": list(argv), "cwd": cwd, "env": env})

    def kill(self) -> None:
        """Kill the script and every descendant; a `ScriptExited` follows."""
        self._send({"type": "kill"})

    def log(self, message: str) -> None:
        """Show the user a message."""
        self._send({"type": "log", "text": message})

    def vanish(self, in_s: float) -> None:
        """Simulate a preemption: kill everything after `in_s` seconds, without a further message [s]."""
        self._send({"type": "vanish", "in_s": in_s})

    def exit(self, code: int) -> None:
        """End `windfall exec` with an exit code."""
        self._send({"type": "exit", "code": code})

    def _send(self, message: dict[str, object]) -> None:
        with self._lock:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
