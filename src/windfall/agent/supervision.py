"""The agent's end of the socket to its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence

from windfall.events import Fact, ScriptExited, StopAsked
from windfall.terms import Instant


class Supervision:
    """Orders to the supervisor, and what it reports, as facts.

    Args:
        channel: the socket.
        kept: nobody sits at the supervisor's keyboard: a controller's keeper started it.
    """

    def __init__(self, channel: socket.socket, *, kept: bool = False) -> None:
        self.kept = kept
        self._channel = channel
        self._reader = channel.makefile("rb")
        self._lock = threading.Lock()
        hello = json.loads(self._reader.readline())
        self.attempt: int = hello["attempt"]
        """The attempt that runs or ran last; 0 before the first."""
        self.running: bool = hello["running"]
        self.status: int | None = hello["status"]
        """The exit status of that attempt, if it has ended."""

    def listen(self, deliver: Callable[[Fact], None], terminated: Callable[[Instant], None]) -> None:
        """Start the thread that turns messages into facts.

        Args:
            deliver: takes `ScriptExited` and `StopAsked`.
            terminated: called for SIGTERM and the signals Slurm may send as a warning: the machine will be taken.
        """
        threading.Thread(target=self._listen, args=(deliver, terminated), name="supervision", daemon=True).start()

    def _listen(self, deliver: Callable[[Fact], None], terminated: Callable[[Instant], None]) -> None:
        # Reset: it was killed with something of ours unread.
        with contextlib.suppress(ConnectionResetError):
            self._hear(deliver, terminated)
        # The supervisor is gone, and with it this process's reason to live (the kernel kills us anyway).
        os._exit(1)

    def _hear(self, deliver: Callable[[Fact], None], terminated: Callable[[Instant], None]) -> None:
        interrupts = 0
        for line in self._reader:
            message = json.loads(line)
            if message["it"] == "exited":
                if message["refused"]:
                    self.say(message["refused"])
                deliver(ScriptExited(message["status"]))
            elif message["number"] == signal.SIGINT:
                interrupts += 1
                if interrupts == 1:
                    self.say(
                        "stopping: the script is asked to save first"
                        + ("" if self.kept else " (Ctrl-C again stops without)")
                    )
                deliver(StopAsked(interrupts > 1, "Ctrl-C"))
            else:
                terminated(Instant(message["at_ns"] / 1e9))

    def start(self, attempt: int, argv: Sequence[str], cwd: str, env: dict[str, str]) -> None:
        """Start the script."""
        self.attempt = attempt
        self._send({"do": "start", "attempt": attempt, "argv": list(argv), "cwd": cwd, "env": env})

    def kill(self) -> None:
        """Kill the script and every descendant; a `ScriptExited` follows."""
        self._send({"do": "kill"})

    def say(self, sentence: str) -> None:
        """Show the user a sentence."""
        self._send({"do": "say", "text": sentence})

    def vanish(self, in_s: float) -> None:
        """Let this machine be taken: everything is killed without a further word."""
        self._send({"do": "vanish", "in_s": in_s})

    def exit(self, code: int) -> None:
        """End `windfall exec`."""
        self._send({"do": "exit", "code": code})

    def _send(self, message: dict[str, object]) -> None:
        with self._lock:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
