"""A machine of an elastic training: the user's script, the file that tells it where it is, and on one machine the coordinator.

Everything here may be killed at any moment.  A machine that is taken for lost ends, and is started again as a new one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

from windfall.errors import Misuse, WindfallError
from windfall.runtimes.shape_tcp import opened_store
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.shape_measurements import MEASURED, MachineMeasurement

NAMES_EVERY = 10
"""Turns of the coordinator from one look for machines that it does not know to the next."""
BOARD_WITHIN_S = 10.0
"""How long a key that the coordinator reads may take to be there [s]."""
LINE_BYTES_MAX = 1 << 16
"""What is kept of a line of stderr [bytes]."""
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
        Misuse: torch is not installed.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            self._store = opened_store(host, port, BOARD_WITHIN_S)
        except ImportError as error:
            raise Misuse(
                f"torch cannot be imported beside Windfall on the machine that leads: {error}; install Windfall's extra "
                "`elastic` there"
            ) from None
        except (OSError, RuntimeError) as error:
            raise BoardLost(f"the TCP store of the training cannot be opened at {host}:{port}: {error}") from None
        self._names: list[str] = []
        self._posts: list[str] = []
        self._turns = 0

    def reports(self) -> list[ShapeReport]:
        """Return the newest report of each machine; a machine that is new is found a few turns later."""
        if self._turns % NAMES_EVERY == 0:
            keys = sorted(self._store.list_keys())
            self._names = [key for key in keys if key.startswith("report/")]
            self._posts = [key for key in keys if key.startswith(MEASURED)]
        self._turns += 1
        if not self._names:
            return []
        return [msgspec.json.decode(data, type=ShapeReport) for data in self._store.multi_get(self._names)]

    def measurements(self) -> list[MachineMeasurement]:
        """Return the newest of what each machine has measured."""
        found = []
        for data in self._store.multi_get(self._posts) if self._posts else []:
            with suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(data, type=MachineMeasurement))
        return found

    def publish(self, layout: ShapeLayout) -> None:
        """Show a layout."""
        self._store.set("layout", msgspec.json.encode(layout))

    def dismiss(self, machines: Iterable[str]) -> None:
        """Tell machines to end."""
        for machine in machines:
            self._store.set(f"lost/{machine}", b"1")


class ShapeScript:
    """The user's script, in a process group of its own; its output is handed on.

    Args:
        argv: its command.
        folder: in which it runs.
        environ: its environment.
        printed: called with 1 or 2, for stdout or stderr, and what was written there; with nothing at its end.

    Attributes:
        last_line: the last line that is not empty and that it wrote to stderr, for the error should it fail.

    Raises:
        Misuse: it cannot be started.
    """

    def __init__(
        self, argv: Sequence[str], folder: str, environ: Mapping[str, str], printed: Callable[[int, bytes], None]
    ) -> None:
        self.last_line = ""
        self._printed = printed
        try:
            self._process = subprocess.Popen(
                argv, cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise Misuse(f"cannot start `{' '.join(argv)}`: {error}") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        streams = ((1, self._process.stdout), (2, self._process.stderr))
        self._readers = [threading.Thread(target=self._pass_on, args=one, daemon=True) for one in streams]
        for reader in self._readers:
            reader.start()

    def code(self) -> int | None:
        """Return its exit code, less than 0 for the signal that has killed it; None while it runs."""
        code = self._process.poll()
        if code is not None:
            for reader in self._readers:
                reader.join(END_WITHIN_S)
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

    def _pass_on(self, number: int, stream: IO[bytes]) -> None:
        part = b""
        with stream:
            while data := os.read(stream.fileno(), 1 << 16):
                self._printed(number, data)
                if number == 2:
                    *lines, part = (part + data)[-LINE_BYTES_MAX:].split(b"\n")
                    texts = [line.decode("utf-8", "replace").strip() for line in (*lines, part)]
                    self.last_line = next(filter(None, reversed(texts)), self.last_line)
        self._printed(number, b"")


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
