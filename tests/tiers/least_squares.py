"""A program for tests: least squares by gradient steps, its data split by rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import Table


class LeastSquares:
    """`x` that makes `A x` nearest to `b`.

    Args:
        data: how many data partitions.
        rows: of the table, which are the unknowns.
        seconds: that each clock takes at least.
    """

    def __init__(self, data: int, rows: int = 12, seconds: float = 0.0) -> None:
        rng = np.random.default_rng(5)
        self.rows, self.seconds = rows, seconds
        self._a = rng.standard_normal((data, 30, rows))
        self.wanted = rng.standard_normal((rows, 1))

    def first(self, rows: Rows) -> Values:
        """Return zeros."""
        return np.zeros((len(rows), 1))

    def load(self, data: int) -> Any:
        """Return a data partition's equations."""
        return self._a[data], self._a[data] @ self.wanted

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Take a step down the gradient of one data partition."""
        a, b = loaded
        rows = np.arange(self.rows)
        x = table.pull(rows)
        if self.seconds:
            time.sleep(self.seconds)
        table.push(rows, -0.002 * a.T @ (a @ x - b))

    def alone(self, clocks: int) -> Values:
        """Return what one process computes, with the sums in the order of data partitions."""
        x = np.zeros((self.rows, 1))
        for _ in range(clocks):
            seen = x.copy()
            for a in self._a:
                x += -0.002 * a.T @ (a @ seen - a @ self.wanted)
        return x


class Noted(LeastSquares):
    """It notes on the disk each turn that it has computed, whichever process computes it.

    Args:
        folder: of the notes.
    """

    def __init__(self, data: int, folder: Path, seconds: float) -> None:
        super().__init__(data, seconds=seconds)
        self.folder = folder
        folder.mkdir()

    def load(self, data: int) -> Any:
        """Return a data partition's equations, with its number."""
        return data, super().load(data)

    def compute(self, loaded: Any, clock: int, table: Table) -> None:
        """Compute, and note it."""
        data, equations = loaded
        super().compute(equations, clock, table)
        (self.folder / f"{clock}-{data}").touch()

    def newest(self) -> int:
        """Return the newest clock of which some turn is computed; with bound 0, all pushes of the one before it are sealed."""
        return max((int(path.name.split("-")[0]) for path in self.folder.iterdir()), default=0)
