"""Output of the event engine: journals with the rows of the live system, and the saves."""

from __future__ import annotations

from array import array

from windfall.events import Command, Decision, Fact, Row
from windfall.simulation.outcomes import SimulatedSave
from windfall.simulation.virtual_time import WALL_START
from windfall.terms import Instant, SaveKind, Term, WallTime

_KINDS = tuple(SaveKind)


class JournalRows:
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
        """Append a row; the sequence restarts with each term.

        Args:
            term: of the run, or of the controller.
            now: the reducer's time.
            time_s: virtual time [s].
            batch: the facts, and the decisions and commands they led to.
        """
        self._sequence = self._sequence + 1 if term == self._term else 1
        self._term = term
        self.rows.append(Row(term, self._sequence, now, WallTime(WALL_START + time_s), *batch))


class SaveRecords:
    """The saves of a trial in order, in columns: a long simulation makes many, and keeps nothing else."""

    def __init__(self) -> None:
        self._machine = array("q")
        self._step = array("q")
        self._kind = bytearray()
        self._committed = bytearray()

    def made(self, machine: int, step: int, kind: SaveKind) -> int:
        """Note a save on the machines' disks; return its index."""
        self._machine.append(machine)
        self._step.append(step)
        self._kind.append(_KINDS.index(kind))
        self._committed.append(False)
        return len(self._step) - 1

    def committed(self, place: int) -> None:
        """Mark a save as stored."""
        self._committed[place] = True

    def all(self) -> tuple[SimulatedSave, ...]:
        """Return all saves."""
        columns = zip(self._machine, self._step, self._kind, self._committed, strict=True)
        return tuple(
            [SimulatedSave(machine, step, _KINDS[kind], bool(stored)) for machine, step, kind, stored in columns]
        )
