"""What the event engine leaves behind for readers: journals with the rows of the live world, and the saves."""

from __future__ import annotations

from array import array

from windfall.events import Command, Decision, Fact, Row
from windfall.simulation.clock import WALL_START
from windfall.simulation.outcomes import Saved
from windfall.terms import Instant, SaveKind, Term, WallTime

_KINDS = tuple(SaveKind)


class Rows:
    """One journal in memory: rows as `codec.row_to_line` takes them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._term: Term | None = None
        self._sequence = 0

    def write(
        self,
        term: Term,
        now: Instant,
        time_s: float,
        batch: tuple[tuple[Fact, ...], tuple[Decision, ...], tuple[Command, ...]],
    ) -> None:
        """Append a row; the sequence begins anew with each term.

        Args:
            term: of the run, or of the controller.
            now: what the reducer was given.
            time_s: virtual time [s].
            batch: the facts, and what they led to.
        """
        self._sequence = self._sequence + 1 if term == self._term else 1
        self._term = term
        self.rows.append(Row(term, self._sequence, now, WallTime(WALL_START + time_s), *batch))


class Saves:
    """The saves of a trial in the order made, in columns: a long simulation makes many, and keeps nothing else."""

    def __init__(self) -> None:
        self._machine = array("q")
        self._step = array("q")
        self._kind = bytearray()
        self._committed = bytearray()

    def made(self, machine: int, step: int, kind: SaveKind) -> int:
        """Note a save that lies on the machines' disks; return its place."""
        self._machine.append(machine)
        self._step.append(step)
        self._kind.append(_KINDS.index(kind))
        self._committed.append(False)
        return len(self._step) - 1

    def committed(self, place: int) -> None:
        """Note that a save is in the store."""
        self._committed[place] = True

    def all(self) -> tuple[Saved, ...]:
        """Return all of them."""
        columns = zip(self._machine, self._step, self._kind, self._committed, strict=True)
        return tuple([Saved(machine, step, _KINDS[kind], bool(stored)) for machine, step, kind, stored in columns])
