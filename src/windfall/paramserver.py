"""A training script's side of a parameter server: `import windfall.paramserver as ps`.

    server = ps.connect(rows=1000, width=8, first=lambda rows: numpy.zeros((len(rows), 8)))
    for turn in server.turns():
        values = server.pull(rows)
        ...
        server.push(rows, changes)

and with torch, whose models need neither `pull` nor `push`:

    server = ps.wrap(model, optimizer)
    for turn in server.turns():
        loss = ...
        loss.backward()
        optimizer.step()

A turn is one clock of one data partition; the parameter server decides which ones come to this process, and in which order. A
turn may be computed twice: after a loss all go back to an earlier clock.  So what a turn does must depend on `turn.data`,
`turn.clock` and what is pulled alone, not on earlier turns of this process; then training is the same whatever was lost.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windfall.errors import Misuse
from windfall.wire import environment
from windfall.wire.script_channel import DTYPES, Message, MessageKind, ScriptChannel, chunks

PUSHES_AHEAD = 8
"""Pushes that the machine need not have taken yet when the next one is sent."""
Rows = NDArray[np.int64]
Values = NDArray[Any]
First = Callable[[Rows], ArrayLike]


class Turn(NamedTuple):
    """One clock of one data partition.

    Attributes:
        data: number of the data partition, from 0.
        clock: from 1.
        partitions: how many data partitions there are.
        seed: of the whole training.
    """

    data: int
    clock: int
    partitions: int
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        """A stream of chance of this turn's own: the same whenever, wherever and however often it is computed."""
        return np.random.default_rng((self.seed, self.data, self.clock))


class TurnHooks(Protocol):
    """What is done around each turn."""

    def begin(self, server: Server, turn: Turn) -> None:
        """Prepare a turn."""
        ...

    def end(self, server: Server, turn: Turn) -> None:
        """Complete a turn."""
        ...


class Opened(NamedTuple):
    """A channel to the machine, before the table is known.

    Attributes:
        channel: to the machine.
        partitions: how many data partitions there are.
        seed: of the whole training.
        group: process group of the script, which is the machine's to end.
    """

    channel: ScriptChannel
    partitions: int
    seed: int
    group: int


class TableForm(NamedTuple):
    """What a table is.

    Attributes:
        rows: how many it has.
        width: numbers in a row.
        dtype: float32 or float64.
    """

    rows: int
    width: int
    dtype: np.dtype[Any]


class Server:
    """The parameter server, as a script sees it; created by `connect` and `wrap`.

    Attributes:
        rows, width, dtype: of the table.
        partitions: how many data partitions there are.
        seed: of the whole training.
    """

    def __init__(self, opened: Opened, table: TableForm, first: First, hooks: TurnHooks | None = None) -> None:
        rows, width, dtype = self.rows, self.width, self.dtype = table
        self.partitions, self.seed = opened.partitions, opened.seed
        self._channel, self._first, self._hooks = opened.channel, first, hooks
        self._channel.width, self._channel.dtype = width, dtype
        self._turn: Turn | None = None
        self._given_up = False
        self._loss: float | None = None
        self._not_taken = 0
        self._over = threading.Event()
        self._channel.send(MessageKind.TABLE, (rows, width, DTYPES.index(dtype)))
        watched = (self._channel.fileno(), opened.group, self._over)
        threading.Thread(target=_end_with_machine, args=watched, daemon=True).start()

    def turns(self) -> Iterator[Turn]:
        """Return the turns of this process, until training is over.

        A turn ends when the loop takes the next one, or at `clock()`.

        Raises:
            Misuse: a turn is under way already.
        """
        while not self._over.is_set():
            if self._turn is not None:
                raise Misuse(
                    f"{_name(self._turn)} is under way: take the next turn from the same loop, or call clock()"
                )
            turn = self._next()
            if turn is None:
                return
            yield turn
            if self._turn is turn:
                self.clock()

    def clock(self) -> None:
        """End the turn: what it pushed counts from now on.

        Raises:
            Misuse: no turn is under way.
        """
        turn = self._under_way()
        if self._hooks is not None:
            self._hooks.end(self, turn)
        self._turn = None
        given, bits = (0, 0) if self._loss is None else (1, int(np.float64(self._loss).view(np.int64)))
        self._channel.send(MessageKind.DONE, (given, bits, 0))

    def loss(self, value: float) -> None:
        """Give the mean training loss of what this turn computes on; the last one given counts.

        `windfall ps` shows the mean over the newest turns.  A number that is not finite counts as none.

        Raises:
            Misuse: no turn is under way.
        """
        self._under_way()
        self._loss = float(value)

    def pull(self, rows: ArrayLike) -> Values:
        """Return the values of rows, shape (rows, width); what this turn has pushed is not in them.

        The array is the caller's own: no later call changes it.

        Args:
            rows: numbers of rows, in any order.

        Raises:
            Misuse: no turn is under way, or a row is outside the table.
        """
        self._under_way()
        wanted, places = self._checked(rows)
        values = self._pull(wanted)
        return values if places is None else values[places]

    def push(self, rows: ArrayLike, changes: ArrayLike) -> None:
        """Add to rows once the turn ends.

        Args:
            rows: numbers of rows, in any order; the changes of a row that comes twice are added up.
            changes: shape (rows, width).

        Raises:
            Misuse: no turn is under way, a row is outside the table, or a change has another shape or is not finite.
        """
        self._under_way()
        wanted, places = self._checked(rows)
        given = np.asarray(changes)
        lines = len(wanted) if places is None else len(places)
        if given.shape != (lines, self.width):
            raise Misuse(
                f"the changes have shape {given.shape}: push shape {(lines, self.width)}, a line for each row and as wide "
                "as the table"
            )
        if places is not None:
            total = np.zeros((len(wanted), self.width), self.dtype)
            np.add.at(total, places, given)
            given = total
        self.push_written(wanted, lambda out: _copy_checked(wanted, given, out))

    def push_written(self, rows: Rows, write: Callable[[Values], None]) -> None:
        """Push changes that a function writes in place, without a copy of them.

        Args:
            rows: numbers of rows, ascending, each once.
            write: fills its argument, shape (rows, width), with finite numbers.
        """
        if self._given_up:
            return
        draft = self._channel.draft(len(rows), values=True)
        try:
            draft.rows[:] = rows
            write(draft.values)
        except BaseException:
            self._channel.discard(draft)
            raise
        self._channel.send(MessageKind.PUSH, draft=draft)
        self._not_taken += 1
        while self._not_taken > PUSHES_AHEAD:
            self._take()

    def is_given_up(self) -> bool:
        """Return whether this turn is known to count nowhere."""
        return self._given_up

    # ------------------------------------------------------------------------------------------------------------------- inside

    def _under_way(self) -> Turn:
        if self._turn is None:
            raise Misuse("no turn is under way: pull, push and clock belong into `for turn in server.turns():`")
        return self._turn

    def _next(self) -> Turn | None:
        """Wait for the next turn; None: training is over."""
        message = self._received()
        if message.kind is MessageKind.OVER:
            self._over.set()
            return None
        assert message.kind is MessageKind.TURN, message
        self._turn, self._given_up = Turn(*message.numbers[:2], self.partitions, self.seed), False
        self._loss = None
        if self._hooks is not None:
            self._hooks.begin(self, self._turn)
        return self._turn

    def _pull(self, rows: Rows) -> Values:
        if not self._given_up:
            draft = self._channel.draft(len(rows), values=False)
            draft.rows[:] = rows
            self._channel.send(MessageKind.PULL, draft=draft)
            message = self._received()
            if message.kind is MessageKind.VALUES:
                return message.values
            assert message.kind is MessageKind.GIVEN_UP, message
            self._given_up = True
        # The turn counts nowhere, but the script need not know it: the first values are some that it can compute with.
        return self._first_values(rows)

    def _received(self) -> Message:
        """Return the next message that is neither about pushes nor about first values, which any process that waits gives."""
        while True:
            message = self._take()
            if message.kind is MessageKind.TAKEN:
                continue
            if message.kind is not MessageKind.FIRST:
                return message
            values = self._first_values(message.rows)
            draft = self._channel.draft(len(message.rows), values=True)
            draft.values[:] = values
            self._channel.send(MessageKind.FIRST, draft=draft)

    def _take(self) -> Message:
        """Return the next message."""
        message = self._channel.receive()
        if message.kind is MessageKind.TAKEN:
            self._not_taken -= 1
        return message

    def _first_values(self, rows: Rows) -> Values:
        found = np.array(self._first(rows.copy()), self.dtype)
        if found.shape != (len(rows), self.width):
            raise Misuse(
                f"first(rows) returned shape {found.shape} for {len(rows)} rows: it must return {(len(rows), self.width)}"
            )
        _check_finite(rows, found, "the first value")
        return found

    def _checked(self, rows: ArrayLike) -> tuple[Rows, NDArray[np.intp] | None]:
        """Return rows in ascending order, each once, and for each given one its place among them; None: as they are."""
        given = np.asarray(rows)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
            raise Misuse(f"rows are {given.dtype} of shape {given.shape}: give a flat list of whole numbers")
        wanted = given.astype(np.int64, copy=False)
        places = None
        if np.any(wanted[1:] <= wanted[:-1]):
            wanted, places = np.unique(wanted, return_inverse=True)
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < self.rows:
            outside = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise Misuse(f"row {outside} is not in the table: its rows are 0 to {self.rows - 1}")
        return wanted, places


def connect(*, rows: int, width: int, first: First, dtype: Any = np.float32) -> Server:
    """Say what the table is, and return the parameter server.

    Every process of the training says the same; call it once, before the loop.

    Args:
        rows: of the table.
        width: numbers in a row.
        first: returns the first values of rows, shape (rows, width), from their numbers alone: chance in it must have a seed.
        dtype: float32 or float64.

    Raises:
        Misuse: the script was not started by a parameter server, or the table is none.
    """
    kind = np.dtype(dtype)
    if rows < 1 or width < 1:
        raise Misuse(f"a table of {rows} rows of width {width}: both must be at least 1")
    if kind not in DTYPES:
        raise Misuse(f"a table of {kind}: give dtype float32 or float64")
    return Server(opened(), TableForm(rows, width, kind), first)


def wrap(model: Any, optimizer: Any, *stateful: Any, width: int = 1024) -> Server:
    """Train a torch model on the parameter server, and return the server.

    Each turn begins with the parameters that the server has, without gradients, and ends with a push of how they have changed,
    divided by the number of data partitions: a clock moves them by the mean of what these found.  The optimizer's state,
    BatchNorm's statistics and schedules belong to the data partition, and are part of the table too.  Generators of random
    numbers are seeded for each turn.  `windfall.sdk.wrapped_model` says why.

    Args:
        model: a `torch.nn.Module`, with the same weights in each process: seed torch before it is built.
        optimizer: a `torch.optim.Optimizer` of its parameters.
        stateful: what else has a state (`state_dict`, `load_state_dict`) that belongs to a data partition: schedules, scalers.
        width: numbers in a row of the table.

    Raises:
        Misuse: the script was not started by a parameter server, or the model or optimizer cannot be wrapped.
    """
    from windfall.sdk.wrapped_model import wrapped  # noqa: PLC0415 - who uses numpy alone needs no torch

    return wrapped(model, optimizer, stateful, width)


def load(path: str | os.PathLike[str], model: Any, optimizer: Any, *stateful: Any, data: int = 0) -> None:
    """Make a torch model what training has found: from `table.npy`, which `windfall get JOB FOLDER` brings.

    Args:
        path: of the table.
        model: built as in the script that was trained; its values are replaced.
        optimizer: likewise.
        stateful: what else `wrap` was given.
        data: the data partition whose BatchNorm statistics, optimizer's state and schedules are taken.

    Raises:
        Misuse: the file is not a table of such a model.
    """
    from windfall.sdk.wrapped_model import loaded  # noqa: PLC0415 - who uses numpy alone needs no torch

    try:
        table = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Misuse(f"{os.fspath(path)} cannot be read as a table: {error}") from None
    if getattr(table, "ndim", 0) != 2:
        raise Misuse(f"{os.fspath(path)} is not a table: it has no rows of numbers")
    loaded(table, model, optimizer, stateful, data)


def opened() -> Opened:
    """Open the channel to the machine, once.

    Raises:
        Misuse: the script was not started by a parameter server, or has opened it already.
    """
    number = os.environ.pop(environment.PARAMETER_SERVER, None)
    if number is None:
        raise Misuse(
            "no parameter server has started this process, or it has connected before: run the script in a job with "
            "`runtime: paramserver`, and call connect or wrap once"
        )
    connection = socket.socket(fileno=int(number))
    # Programs that the script starts must not keep the channel open.
    connection.set_inheritable(False)
    channel = ScriptChannel(connection)
    message = channel.receive()
    assert message.kind is MessageKind.WELCOME, message
    return Opened(channel, *message.numbers)


def _end_with_machine(file: int, group: int, over: threading.Event) -> None:
    """Wait until the machine's process is gone, and end this one with all of its group, unless training is over."""
    waiting = select.poll()
    waiting.register(file, 0)
    waiting.poll()
    if not over.is_set() and os.getpgrp() == group:
        os.killpg(group, signal.SIGKILL)


def _copy_checked(rows: Rows, given: Values, out: Values) -> None:
    with np.errstate(all="ignore"):
        for part in chunks(len(rows), out.shape[1] * out.itemsize):
            out[part] = given[part]
            # It is still in the cache.
            _check_finite(rows[part], out[part], "the change")


def _check_finite(rows: Rows, values: Values, what: str) -> None:
    """Check values that are contiguous.

    Raises:
        Misuse: one is not finite.
    """
    flat = values.reshape(-1)
    with np.errstate(all="ignore"):
        # One pass at the speed of memory; only what it cannot clear, because squares overflow, is looked at one by one.
        if np.isfinite(flat @ flat):
            return
    bad = ~np.isfinite(values).all(axis=1)
    if np.any(bad):
        raise Misuse(
            f"{what} of row {rows[bad][0]} is not finite: push finite numbers (if training diverges, lower the step size or "
            "clip the gradients)"
        )


def _name(turn: Turn) -> str:
    return f"clock {turn.clock} of data partition {turn.data}"
