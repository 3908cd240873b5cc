"""One process of a user's script on a machine of a parameter server, and what is said to it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windfall.errors import Misuse, WindfallError
from windfall.runtimes.parameter_partition import Rows, RowValues, Values
from windfall.runtimes.tier_program import Table, TurnGivenUp
from windfall.structs import Struct
from windfall.wire import environment
from windfall.wire.script_channel import DTYPES, ChannelEnded, Message, MessageKind, ScriptChannel, chunks

KILLED = (signal.SIGKILL, signal.SIGTERM)
"""Signals that a shell reports as 128 more, when they have ended the program that it waits for."""
EXIT_WITHIN_S = 5.0
"""How long a script that has closed its channel may take to exit."""


class ScriptFailed(WindfallError):
    """A user's script ended before training was over."""


class ScriptGone(Exception):
    """A script's process has ended; `status` is its exit status, or less than 0: the signal that has killed it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_SHELL_WORDS = 4
"""Of the command line for a job file's `run`: sh, -c, how it finds the better shell, the command."""


class ScriptCommand(Struct, frozen=True):
    """How a script is started.

    Attributes:
        argv: its command line.
        cwd: folder in which it runs.
        environ: its environment.
        data: how many data partitions there are.
        seed: of the whole training.
    """

    argv: Sequence[str]
    cwd: str
    environ: Mapping[str, str]
    data: int
    seed: int

    @property
    def shown(self) -> str:
        """The command as its user wrote it: of a job file's `run`, without the shell that runs it."""
        shell, flag, *words = self.argv if len(self.argv) == _SHELL_WORDS else ("", "")
        return words[-1] if (shell, flag) == ("sh", "-c") else " ".join(self.argv)


class ScriptTable(Struct, frozen=True):
    """What a script says of its table.

    Attributes:
        rows: of the table.
        width: numbers in a row.
        dtype: float32 or float64.
    """

    rows: int
    width: int
    dtype: str


class ScriptTurn(Struct, frozen=True, eq=False):
    """What a script has computed in a turn.

    Attributes:
        pushed: its pushes, in order.
        loss: that it gave; None: none.
    """

    pushed: list[RowValues]
    loss: float | None


class ScriptProcess:
    """A process of a script, in a process group of its own.

    Its output is that of the machine; of what it writes to stderr the last line is kept for the error, should it fail.

    Args:
        command: how it is started.

    Attributes:
        in_turn: it has a turn that is not over.
        busy: a thread waits for what it sends; only that one may speak with it.
        dead: it has ended.
        last_line: the last line that it wrote to stderr.

    Raises:
        Misuse: it cannot be started.
    """

    def __init__(self, command: ScriptCommand) -> None:
        self.in_turn, self.busy, self.dead = False, False, False
        self.last_line = ""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            env = {**command.environ, environment.PARAMETER_SERVER: str(theirs.fileno())}
            try:
                self._process = subprocess.Popen(
                    command.argv,
                    cwd=command.cwd,
                    env=env,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    process_group=0,
                )
            except OSError as error:
                ours.close()
                raise Misuse(f"cannot start `{command.shown}`: {error}") from None
        self.pid = self._process.pid
        self._exiting, self._files_open = threading.Lock(), True
        self._ended = os.pidfd_open(self.pid)
        self._channel = ScriptChannel(ours)
        self._waiting = select.poll()
        self._waiting.register(self._channel.fileno(), select.POLLIN)
        self._waiting.register(self._ended, select.POLLIN)
        self._reader = threading.Thread(target=self._pass_on_stderr, daemon=True)
        self._reader.start()
        self._send(MessageKind.WELCOME, (command.data, command.seed, self.pid))

    # ------------------------------------------------------------------------------------------------------- what is said to it

    def connected(self, within_s: float) -> ScriptTable:
        """Wait until the script has said what its table is.

        Raises:
            ScriptGone: it has ended.
            TimeoutError: it has not said so in time.
        """
        message = self._received(within_s)
        assert message.kind is MessageKind.TABLE, message
        rows, width, dtype = message.numbers
        self._channel.width, self._channel.dtype = width, DTYPES[dtype]
        return ScriptTable(rows, width, str(DTYPES[dtype]))

    def first(self, rows: Rows) -> Values:
        """Return the first values of rows, which the script must be waiting to give.

        Raises:
            ScriptGone: it has ended.
        """
        draft = self._channel.draft(len(rows), values=False)
        draft.rows[:] = rows
        self._send(MessageKind.FIRST, draft=draft)
        message = self._received()
        assert message.kind is MessageKind.FIRST, message
        values: Values = message.values
        return values

    def turn(self, data: int, clock: int, table: Table) -> ScriptTurn:
        """Let the script compute a turn, and return what it pushed, and its loss.

        A turn that is given up is computed to its end, so that the script need not know about it.

        Raises:
            ScriptGone: it has ended.
            TurnGivenUp: the turn counts nowhere.
        """
        pushed: list[RowValues] = []
        given_up: TurnGivenUp | None = None
        self._announce(MessageKind.TURN, data, clock)
        while True:
            message = self._received()
            if message.kind is MessageKind.PUSH:
                pushed.append(RowValues(message.rows, message.values))
                self._announce(MessageKind.TAKEN)
            elif message.kind is MessageKind.PULL:
                try:
                    values = table.pull(message.rows)
                except TurnGivenUp as error:
                    given_up = error
                    self._announce(MessageKind.GIVEN_UP)
                else:
                    self._give(message.rows, values)
            else:
                assert message.kind is MessageKind.DONE, message
                if given_up is not None:
                    raise given_up
                given, bits, _ = message.numbers
                return ScriptTurn(pushed, float(np.int64(bits).view(np.float64)) if given else None)

    def over(self) -> None:
        """Say that training is over."""
        with contextlib.suppress(ScriptGone):
            self._announce(MessageKind.OVER)

    def end(self, within_s: float) -> int:
        """Wait until the process has exited, kill what is left of its group, and return its exit status.

        Args:
            within_s: how long it may take to exit by itself.
        """
        with self._exiting:
            if not self.dead:
                # The group's number stands for no other group as long as its first process has not been waited for.
                if not _readable(self._ended, within_s):
                    os.kill(self.pid, signal.SIGKILL)
                    _readable(self._ended, None)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
                self._reader.join(EXIT_WITHIN_S)
                self.dead = True
            return self._process.returncode

    def close(self) -> None:
        """Close the files of a process that has ended; called by whom it belongs to, since they may wait for it."""
        if self._files_open:
            self._files_open = False
            self._channel.close()
            os.close(self._ended)

    # ------------------------------------------------------------------------------------------------------------------- inside

    def _give(self, rows: Rows, values: Values) -> None:
        draft = self._channel.draft(len(rows), values=True)
        for part in chunks(len(rows), values.shape[1] * values.itemsize):
            draft.values[part] = values[part]
        self._send(MessageKind.VALUES, draft=draft)

    def _announce(self, kind: MessageKind, first: int = 0, second: int = 0) -> None:
        self._send(kind, (first, second, 0))

    def _send(self, kind: MessageKind, numbers: tuple[int, int, int] = (0, 0, 0), draft: Any = None) -> None:
        try:
            self._channel.send(kind, numbers, draft)
        except ChannelEnded:
            raise self._gone() from None

    def _received(self, within_s: float | None = None) -> Message:
        """Return its next message.

        Raises:
            ScriptGone: it has ended; what it started may still hold the channel.
            TimeoutError: there is none in time.
        """
        ready = self._waiting.poll(None if within_s is None else within_s * 1000)
        if not ready:
            raise TimeoutError
        if all(file != self._channel.fileno() for file, _ in ready):
            raise self._gone()
        try:
            return self._channel.receive()
        except ChannelEnded:
            raise self._gone() from None

    def _gone(self) -> ScriptGone:
        status = self.end(EXIT_WITHIN_S)
        self.close()
        return ScriptGone(128 - status if status - 128 in KILLED else status)

    def _pass_on_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                os.write(2, line)
                self.last_line = line.decode("utf-8", "replace").strip() or self.last_line


def _readable(file: int, within_s: float | None) -> bool:
    """Wait until a file can be read, and return whether it can."""
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(None if within_s is None else within_s * 1000))
