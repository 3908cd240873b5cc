"""Turns that read and push a whole table, in the step functions of a machine that serves it and backs it up.

A clock is a turn of each of two data partitions, the sum of both, and the change sent to the backups; nothing is sent anywhere.
The yardstick is two bare copies of the same bytes and an add, a turn: what a table in shared memory would take that could
neither go back nor survive.  The bounds are two thirds of what it came to first.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from benchmarks.harness import Benchmark
from windfall.runtimes.parameter_partition import BackupPartition, ParameterPartition, PushAnswer, PushId, RowValues
from windfall.runtimes.table_rows import TableRows

TABLE_BYTES = 100_000_000
PARTS, DATA = 3, 2


def benchmarks() -> list[Callable[[], Benchmark]]:
    """The pairs of this module."""
    return [table_turns_vs_copies_wide, table_turns_vs_copies_narrow]


class Machine:
    """A machine that serves all parts, backs them up, and computes on all data partitions."""

    def __init__(self, width: int) -> None:
        self._rows = np.arange(TABLE_BYTES // (4 * width))
        self._changes = np.ones((len(self._rows), width), np.float32)
        self._table = TableRows(len(self._rows), PARTS)
        first = [np.zeros((len(self._table.of_part(part)), width), np.float32) for part in range(PARTS)]
        self._parts = [ParameterPartition(values, [0] * DATA, fresh_reads=False) for values in first]
        self._backups = [BackupPartition(values) for values in first]
        self._clock = 0

    def speed(self) -> float:
        """Return the speed of turns [bytes of the table / s]."""
        self._clock += 1
        start = perf_counter()
        for data in range(DATA):
            self._turn(PushId(data, self._clock, 0, 0))
        for part, backup in zip(self._parts, self._backups, strict=True):
            backup.take(part.changes(self._clock - 1, self._clock))
            part.forget(self._clock)
            backup.go_to(self._clock)
        elapsed = perf_counter() - start
        assert self._backups[-1].copy()[-1, -1] == self._clock * DATA
        return DATA * self._changes.nbytes / elapsed

    def _turn(self, push: PushId) -> None:
        split = self._table.split(self._rows)
        self._table.joined(self._rows, [part.read(rows) for part, rows in zip(self._parts, split, strict=True)])
        pushed = self._table.split_changes(RowValues(self._rows, self._changes))
        for part, changes in zip(self._parts, pushed, strict=True):
            assert part.push(push, changes) is part.seal(push) is PushAnswer.KEPT


class Copies:
    """Two copies and an add for each turn."""

    def __init__(self, width: int) -> None:
        shape = TABLE_BYTES // (4 * width), width
        self._table, self._changes = np.zeros(shape, np.float32), np.ones(shape, np.float32)
        self._pulled, self._pushed = np.ones(shape, np.float32), np.ones(shape, np.float32)

    def speed(self) -> float:
        """Return the speed of turns [bytes of the table / s]."""
        start = perf_counter()
        for _ in range(DATA):
            np.copyto(self._pulled, self._table)
            np.copyto(self._pushed, self._changes)
            self._table += self._pushed
        return DATA * self._table.nbytes / (perf_counter() - start)


def table_turns_vs_copies_wide() -> Benchmark:
    """Rows of 1,024 numbers, as of a torch model."""
    return _pair("turns of a table, wide rows, vs copies", 1024, 0.2)


def table_turns_vs_copies_narrow() -> Benchmark:
    """Rows of 16 numbers, as of factors of a matrix."""
    return _pair("turns of a table, narrow rows, vs copies", 16, 0.12)


def _pair(name: str, width: int, target: float) -> Benchmark:
    return Benchmark(name, Machine(width).speed, Copies(width).speed, target, at_most=False, unit="B/s", rounds=7)
