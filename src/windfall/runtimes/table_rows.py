"""How the rows of a table are dealt to the parts of a parameter server, and how what is read and pushed is split and joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import Rows, RowValues, Values
from windfall.structs import Struct


class TableRows(Struct, frozen=True):
    """A table whose row r is row r // parts of part r % parts, so that rows that are in demand are spread over all parts.

    Attributes:
        rows: of the table.
        parts: of the state.
    """

    rows: int
    parts: int

    def of_part(self, part: int) -> Rows:
        """Return which rows of the table a part has, in its order."""
        return np.arange(part, self.rows, self.parts)

    def split(self, rows: Rows) -> list[Rows]:
        """Return rows of the table as rows of each part.

        Args:
            rows: ascending, each once.

        Raises:
            Misuse: a row is outside the table, or they do not ascend.
        """
        if np.any(np.diff(rows) <= 0):
            raise Misuse("rows do not ascend, or come twice: sort them, and add up the changes of a row")
        if len(rows) and not 0 <= rows[0] <= rows[-1] < self.rows:
            outside = rows[0] if rows[0] < 0 else rows[-1]
            raise Misuse(f"row {outside} is not in the table: its rows are 0 to {self.rows - 1}")
        if len(rows) == self.rows:
            return [np.arange(len(self.of_part(part))) for part in range(self.parts)]
        return [rows[rows % self.parts == part] // self.parts for part in range(self.parts)]

    def joined(self, rows: Rows, found: Sequence[Values]) -> Values:
        """Return the values of rows of the table from those of each part, in the order of `split(rows)`."""
        joined = np.empty((len(rows), found[0].shape[1]), found[0].dtype)
        for part, values in enumerate(found):
            joined[self._places(rows, part)] = values
        return joined

    def split_changes(self, changes: RowValues) -> list[RowValues]:
        """Return changes of rows of the table as changes of each part."""
        return [RowValues(rows, self._copied(changes, part)) for part, rows in enumerate(self.split(changes.rows))]

    def _copied(self, changes: RowValues, part: int) -> Values:
        """Return a copy of the changes of a part: the array that was pushed may be used again."""
        values: Values = changes.values[self._places(changes.rows, part)]
        return values.copy() if len(changes.rows) == self.rows else values

    def _places(self, rows: Rows, part: int) -> NDArray[np.bool_] | slice:
        """Return where among rows those of a part are; a slice if they are all, which is quicker."""
        return slice(part, None, self.parts) if len(rows) == self.rows else rows % self.parts == part


def joined_parts(parts: Sequence[Values]) -> Values:
    """Return a whole table from the values of its parts, in their order."""
    table = TableRows(sum(len(part) for part in parts), len(parts))
    return table.joined(np.arange(table.rows), parts)
