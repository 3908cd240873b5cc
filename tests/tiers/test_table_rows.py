"""How rows are dealt to parts: split and joined, they are what they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import RowValues, union
from windfall.runtimes.table_rows import TableRows


@given(some.integers(1, 9), some.integers(1, 40), some.data())
def test_rows_that_are_split_and_joined_are_what_they_were(parts: int, rows: int, data: some.DataObject) -> None:
    """Whatever rows are asked for, of any number of parts."""
    table = TableRows(rows, parts)
    values = np.arange(rows * 2.0).reshape(rows, 2)
    asked = np.array(sorted(data.draw(some.sets(some.integers(0, rows - 1)))), np.int64)
    of_parts = [values[table.of_part(part)] for part in range(parts)]

    split = table.split(asked)

    assert np.array_equal(table.joined(asked, [of_parts[part][one] for part, one in enumerate(split)]), values[asked])
    changes = table.split_changes(RowValues(asked, values[asked]))
    assert np.array_equal(table.joined(asked, [one.values for one in changes]), values[asked])


@given(some.lists(some.sets(some.integers(0, 12)), max_size=4))
def test_rows_of_several_pushes_are_in_their_union_once(pushes: list[set[int]]) -> None:
    """In ascending order, also of pushes that are empty, whole, or within one another."""
    assert union([np.array(sorted(rows), np.int64) for rows in pushes]).tolist() == sorted(set().union(*pushes))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6], [1, 4]])
@pytest.mark.parametrize("parts", [1, 3])
def test_an_array_that_was_pushed_may_be_used_again(rows: list[int], parts: int) -> None:
    """What the parts are sent is a copy, of a whole table too."""
    pushed = np.ones((len(rows), 2))

    changes = TableRows(7, parts).split_changes(RowValues(np.array(rows), pushed))
    pushed[:] = 5.0

    assert all((one.values == 1.0).all() for one in changes)


@pytest.mark.parametrize(
    ("rows", "words"),
    [([-1, 3], "row -1 is not in the table"), ([3, 7], "row 7 is not in the table: its rows are 0 to 6"),
     ([3, 2], "rows do not ascend"), ([2, 2], "or come twice: sort them, and add up")],
)  # fmt: skip
def test_rows_that_are_outside_or_in_disorder_are_refused(rows: list[int], words: str) -> None:
    """One sentence says what is wrong."""
    with pytest.raises(Misuse, match=words):
        TableRows(7, 2).split(np.array(rows))
