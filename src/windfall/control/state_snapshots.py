"""Snapshots of a job loop's state: with one, a restart reads a month's journal from its last rows instead of its first.

A snapshot is a cache of what the rows before it led to, never the truth.  It says which row it follows, with that row's
digest, which version of rows and which types it was made of, and ends up unused if any of it differs: then an older one
serves, or all rows are replayed.

How often: a row of a job with 100 machines takes about 0.3 ms to replay, so `ROWS` of them take a third of a second; of a job
with 2,000 machines it takes 4 ms, so there `REPLAY_S` decides.  A snapshot of 100 machines has 0.3 MB, is encoded in 2 ms and
read in 4 ms; one of 2,000 machines has 5 MB, 30 ms and 50 ms.  `make bench BENCH=restart` prints what this comes to.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from windfall import codec, stored_forms
from windfall.core import driver
from windfall.core.fleet_state import FleetState
from windfall.errors import WindfallError
from windfall.events import Command, Fact, Row, SetTimer, TimerFired
from windfall.fleet import ChargesObserved
from windfall.ports import Journal, Snapshots
from windfall.structs import Struct, replace
from windfall.terms import Instant, Seconds

if TYPE_CHECKING:
    from windfall.control.job_loop import InBackground

ROWS = 1000
"""Rows after which a snapshot is made."""
REPLAY_S = Seconds(0.5)
"""A snapshot is made sooner if the reducer has taken this long since the last one [s]."""
REDUCER = 3
"""To be raised if the driver's reducer treats the same state or rows differently: older snapshots are then ignored."""
_DIGEST_BYTES = 16
_NO_SEQUENCE = 0


class JournalUnreadable(WindfallError):
    """A job's journal cannot be read: retrying is useless, so the job is set aside."""


class LoopState(Struct, frozen=True):
    """What a job loop keeps between two turns, and what its rows alone determine.

    Attributes:
        state: the driver's.
        cursors: of the providers' bills, by provider.
        timers: when each timer that was set and has not fired is due, by name.
    """

    state: FleetState = FleetState()
    cursors: Mapping[str, str] = {}
    timers: Mapping[str, Instant] = {}

    def after(self, state: FleetState, facts: tuple[Fact, ...], commands: tuple[Command, ...]) -> LoopState:
        """Return what is kept after a row with these facts and commands, which led to `state`."""
        cursors, timers = dict(self.cursors), dict(self.timers)
        for fact in facts:
            if isinstance(fact, TimerFired):
                timers.pop(fact.name, None)
            elif isinstance(fact, ChargesObserved) and fact.provider:
                cursors[fact.provider] = fact.cursor
        timers.update((command.name, command.at) for command in commands if isinstance(command, SetTimer))
        return LoopState(state, cursors, timers)


class _Snapshot(Struct, frozen=True):
    """A snapshot as it is stored, after its digest.

    Attributes:
        form: of rows and types, see `_form`.
        row: digest of the row that it follows.
        kept: the encoded `LoopState`.
    """

    form: str
    row: bytes
    kept: bytes


# ----------------------------------------------------------------------------------------------------------- to bytes


def to_bytes(kept: LoopState, line: str) -> bytes:
    """Write a snapshot.

    Args:
        kept: what the rows so far led to.
        line: the newest of them.
    """
    body = codec.pack(_Snapshot(_form(), _digest(line.encode()), codec.pack(kept)))
    return _digest(body) + body


def from_bytes(data: bytes, line: str | None) -> LoopState:
    """Read a snapshot.

    Args:
        data: as `to_bytes` wrote it.
        line: the row that it should follow, as the journal has it; None if it has none.

    Raises:
        ValueError: it is damaged, other code wrote it, or it is not of this journal.
    """
    body = data[_DIGEST_BYTES:]
    if _digest(body) != data[:_DIGEST_BYTES]:
        raise ValueError("it is damaged")
    snapshot: _Snapshot = codec.unpack(body, _Snapshot)
    if snapshot.form != _form():
        raise ValueError("another version of Windfall wrote it")
    if line is None or snapshot.row != _digest(line.encode()):
        raise ValueError("the journal has another row there")
    kept: LoopState = codec.unpack(snapshot.kept, LoopState)
    return kept


@functools.cache
def _form() -> str:
    """Return what a state depends on: the version of rows and reducer, and every field of every type in it."""
    return f"{stored_forms.ROW.version} {REDUCER} {codec.shape(LoopState)}"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


# ----------------------------------------------------------------------------------------------------------- a restart


class RestoredLoop(Struct, frozen=True):
    """A job loop's state after its journal.

    Attributes:
        last: the newest row; None for a new job.
        replayed: the number of rows that were replayed.
    """

    kept: LoopState
    last: Row | None
    replayed: int


def restore(journal: Journal, snapshots: Snapshots | None, log: Callable[[str], None]) -> RestoredLoop:
    """Return the state after all rows, from the newest snapshot that can be used.

    Raises:
        JournalUnreadable: a row cannot be read, or does not fit the rows before it.
    """
    for sequence, data in () if snapshots is None else snapshots.newest():
        rows = journal.rows(sequence - 1)
        line = next(rows, None)
        try:
            kept = from_bytes(data, line)
            assert line is not None, "the snapshot follows this row"
            return _replay(rows, RestoredLoop(kept, _row(line, sequence), 0), sequence)
        except (ValueError, JournalUnreadable) as error:
            log(f"the snapshot of row {sequence} is not used: {error}")
    return _replay(journal.rows(), RestoredLoop(LoopState(), None, 0), _NO_SEQUENCE)


def _replay(lines: Iterator[str], since: RestoredLoop, sequence: int) -> RestoredLoop:
    """Replay the rows after row `sequence`."""
    kept, last = since.kept, since.last
    number = sequence
    for number, line in enumerate(lines, sequence + 1):
        last = _row(line, number)
        try:
            state, _, _ = driver.react(kept.state, last.at, last.facts)
        except Exception as error:
            # A row that fits no state fails at each start, just as one that cannot be parsed.
            raise JournalUnreadable(
                f"row {number} of its journal does not fit the rows before it ({type(error).__name__})"
            ) from error
        kept = kept.after(state, last.facts, last.commands)
    return replace(since, kept=kept, last=last, replayed=number - sequence)


def _row(line: str, number: int) -> Row:
    try:
        return codec.row_from_line(line)
    except (WindfallError, ValueError) as error:
        raise JournalUnreadable(f"row {number} of its journal cannot be read ({error})") from error


# ------------------------------------------------------------------------------------------------------------- writing


class SnapshotWriter:
    """Writes a job loop's snapshots in the background: a turn never waits for one."""

    def __init__(
        self,
        snapshots: Snapshots | None,
        in_background: InBackground,
        log: Callable[[str], None],
        *,
        replayed: int,
        every: int = ROWS,
    ) -> None:
        self._snapshots = snapshots
        self._in_background = in_background
        self._log = log
        self._rows, self._every = replayed, every
        self._decided_s = 0.0
        self._busy = threading.Event()
        self._trouble = ""

    def row_written(self, row: Row, line: str, kept: LoopState, decided_s: Seconds) -> None:
        """Count a row, and begin a snapshot if one is due.

        Args:
            row: the newest.
            line: the same, as the journal has it.
            kept: what all rows led to.
            decided_s: how long the reducer took [s].
        """
        self._rows, self._decided_s = self._rows + 1, self._decided_s + decided_s
        if self._snapshots is None or self._busy.is_set() or (self._rows < self._every and self._decided_s < REPLAY_S):
            return
        self._rows, self._decided_s = 0, 0.0
        self._busy.set()
        snapshots = self._snapshots
        try:
            self._in_background(lambda: self._write(snapshots, row.sequence, kept, line))
        except RuntimeError as error:
            self._busy.clear()
            self._failed(error)

    def _write(self, snapshots: Snapshots, sequence: int, kept: LoopState, line: str) -> None:
        try:
            snapshots.write(sequence, to_bytes(kept, line))
        except Exception as error:
            # Without a snapshot the next restart only takes longer, so nothing may end because of it.
            self._failed(error)
        finally:
            self._busy.clear()

    def _failed(self, error: Exception) -> None:
        message = f"no snapshot was written, so a restart will take longer: {error}"
        if message != self._trouble:
            self._trouble = message
            self._log(message)
