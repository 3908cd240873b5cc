"""What trains on a parameter server: a program computes one clock of one data partition at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from windfall.runtimes.parameter_partition import Rows, RowValues, Values, union
from windfall.structs import Struct


class TurnGivenUp(Exception):
    """The data partition or the whole state went elsewhere, or back; what the turn computed counts nowhere."""


class Table(Protocol):
    """What a program does with the shared parameters in a turn."""

    def pull(self, rows: Rows) -> Values:
        """Return the values of rows, which ascend; what this turn has pushed is not in them.

        Raises:
            TurnGivenUp: let it pass.
            Misuse: a row is outside the table.
        """
        ...

    def push(self, rows: Rows, changes: Values) -> None:
        """Add to rows, which ascend, once the turn ends.

        Raises:
            Misuse: a row is outside the table.
        """
        ...


class ProgramMachine(Struct, frozen=True):
    """What a program may know of the machine that it computes on.

    Attributes:
        memory_gib: for each turn of those that compute at once [GiB]; 0 where it is not known.
        staleness: of the training; None: no bound.
    """

    memory_gib: float = 0.0
    staleness: int | None = None


class TierProgram(Protocol):
    """A program; calls of `compute` come from several threads at once, for different data partitions."""

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        ...

    def first(self, rows: Rows) -> Values:
        """Return the first values of rows, shape (rows, width)."""
        ...

    def load(self, data: int) -> Any:
        """Return the data of a data partition."""
        ...

    def compute(self, loaded: Any, clock: int, table: Table) -> float | None:
        """Compute one clock, from 1, of a data partition.

        Returns:
            The mean training loss of what this turn used, in the unit of `evaluate`; None, or a number that is not finite:
            the program does not say.
        """
        ...


class TierApplication(TierProgram, Protocol):
    """A program of an application (`apps`), which a module's `program(settings, partitions)` returns.

    It may also have `warm_up()`, without arguments: what only the first turn of a process would need, such as compiling.
    A machine calls it before it joins, so that no other waits for it.  It may have `samples()`, also
    without arguments, which returns how many a turn trains on; a profile counts 1 for one that has none.
    """

    def evaluate(self, values: Values) -> float:
        """Return the loss of a whole table over all training data; lower is better."""
        ...

    def write(self, values: Values, folder: Path) -> None:
        """Write what training is for, from a whole table, as files into a folder that exists."""
        ...


class PracticeTable:
    """`Table` of a turn that counts nowhere: all rows have their first values.

    Args:
        program: whose table it is.
    """

    def __init__(self, program: TierProgram) -> None:
        self._program = program

    def pull(self, rows: Rows) -> Values:
        """Return first values."""
        return self._program.first(rows)

    def push(self, rows: Rows, changes: Values) -> None:
        """Take changes, and forget them."""


class PushedRows:
    """The changes of one turn, gathered until it ends.

    Args:
        width: of a row.
    """

    def __init__(self) -> None:
        self._pushed: list[RowValues] = []

    def add(self, rows: Rows, changes: Values) -> None:
        """Take in changes."""
        self._pushed.append(RowValues(rows, changes))

    def sum(self, width: int, dtype: np.dtype[Any]) -> RowValues:
        """Return all changes, added up row by row."""
        if len(self._pushed) == 1:
            return self._pushed[0]
        if not self._pushed:
            return RowValues(np.empty(0, np.int64), np.empty((0, width), dtype))
        rows = union([one.rows for one in self._pushed])
        total = np.zeros((len(rows), width), dtype)
        for one in self._pushed:
            total[np.searchsorted(rows, one.rows)] += one.values
        return RowValues(rows, total)
