"""How the rows of a table are dealt to the parts of a parameter server, and how what is read and pushed is split and joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
        return [rows[rows % self.parts == part] // self.parts for part in range(self.parts)]

    def joined(self, rows: Rows, found: Sequence[Values]) -> Values:
        """Return the values of rows of the table from those of each part, in the order of `split(rows)`."""
        joined = np.empty((len(rows), found[0].shape[1]), found[0].dtype)
        for part, values in enumerate(found):
            joined[rows % self.parts == part] = values
        return joined

    def split_changes(self, changes: RowValues) -> list[RowValues]:
        """Return changes of rows of the table as changes of each part."""
        return [
            RowValues(rows, changes.values[changes.rows % self.parts == part])
            for part, rows in enumerate(self.split(changes.rows))
        ]


def joined_parts(parts: Sequence[Values]) -> Values:
    """Return a whole table from the values of its parts, in their order."""
    table = TableRows(sum(len(part) for part in parts), len(parts))
    return table.joined(np.arange(table.rows), parts)
