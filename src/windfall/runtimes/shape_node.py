"""A machine of an elastic training: the user's script, the file that tells it where it is, and on one machine the coordinator.

Everything here may be killed at any moment.  A machine that is taken for lost ends, and is started again as a new one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from windfall.errors import Misuse, WindfallError
from windfall.shape_layout import ShapeLayout, ShapeReport

NAMES_EVERY = 10
"""Turns of the coordinator from one look for machines that it does not know to the next."""
END_WITHIN_S = 5.0
"""How long a script may take to end once it is asked to."""


class BoardLost(WindfallError):
    """The TCP store does not answer, or cannot be opened."""


class TcpBoard:
    """`ShapeBoard` in torch's TCP store, which this process holds.

    Args:
        host, port: where machines reach it.

    Raises:
        BoardLost: it cannot be opened.
    """

    def __init__(self, host: str, port: int) -> None:
        # torch takes seconds to import, and only a machine that leads needs it here.
        from torch.distributed import TCPStore  # noqa: PLC0415

        try:
            # torch itself listens on all addresses, and asks for no token.
            listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            self._store: Any = TCPStore(
                host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10.0),
                master_listen_fd=listener.detach(),
            )  # fmt: skip
        except (OSError, RuntimeError) as error:
            raise BoardLost(f"the TCP store of the training cannot be opened at {host}:{port}: {error}") from None
        self._names: list[str] = []
        self._turns = 0

    def reports(self) -> list[ShapeReport]:
        """Return the newest report of each machine; a machine that is new is found a few turns later."""
        if self._turns % NAMES_EVERY == 0:
            self._names = sorted(key for key in self._store.list_keys() if key.startswith("report/"))
        self._turns += 1
        if not self._names:
            return []
        return [msgspec.json.decode(data, type=ShapeReport) for data in self._store.multi_get(self._names)]

    def publish(self, layout: ShapeLayout) -> None:
        """Show a layout."""
        self._store.set("layout", msgspec.json.encode(layout))

    def dismiss(self, machines: Iterable[str]) -> None:
        """Tell machines to end."""
        for machine in machines:
            self._store.set(f"lost/{machine}", b"1")


class ShapeScript:
    """The user's script, in a process group of its own; its output is the machine's.

    Args:
        argv: its command.
        folder: in which it runs.
        environ: its environment.

    Attributes:
        last_line: the last line that it wrote to stderr, for the error should it fail.

    Raises:
        Misuse: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], folder: str, environ: Mapping[str, str]) -> None:
        self.last_line = ""
        try:
            self._process = subprocess.Popen(
                argv, cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
            )
        except OSError as error:
            raise Misuse(f"cannot start `{' '.join(argv)}`: {error}") from None
        self._reader = threading.Thread(target=self._pass_on_stderr, daemon=True)
        self._reader.start()

    def code(self) -> int | None:
        """Return its exit code, less than 0 for the signal that has killed it; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(END_WITHIN_S)
        return code

    def end(self) -> None:
        """End it, and all that it has started."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_WITHIN_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _pass_on_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            os.write(2, line)
            text = line.decode("utf-8", "replace").strip()
            self.last_line = text or self.last_line


class PlaceFile:
    """The file that tells the script which machine it is on; it is written whole, and only when it changes.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._written: Mapping[str, Any] | None = None

    def write(self, content: Mapping[str, Any]) -> None:
        """Write what the script should know."""
        if content == self._written:
            return
        with open(f"{self.path}.new", "wb") as file:
            file.write(msgspec.json.encode(content))
        os.replace(f"{self.path}.new", self.path)
        self._written = dict(content)


def started(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that does not outlive the process."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
