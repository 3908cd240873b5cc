"""What the event engine leaves behind for readers: journals with the rows of the live world, and the log of holdings."""

from __future__ import annotations

from windfall.events import Command, Decision, Fact, Row
from windfall.simulation.clock import WALL_START
from windfall.terms import Epoch, Instant, WallTime


class Rows:
    """One journal in memory: rows as `codec.row_to_line` takes them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._epoch: Epoch | None = None
        self._sequence = 0

    def write(
        self,
        epoch: Epoch,
        now: Instant,
        time_s: float,
        batch: tuple[tuple[Fact, ...], tuple[Decision, ...], tuple[Command, ...]],
    ) -> None:
        """Append a row; the sequence begins anew with each epoch.

        Args:
            epoch: of the run, or of the controller.
            now: what the reducer was given.
            time_s: virtual time [s].
            batch: the facts, and what they led to.
        """
        self._sequence = self._sequence + 1 if epoch == self._epoch else 1
        self._epoch = epoch
        self.rows.append(Row(epoch, self._sequence, now, WallTime(WALL_START + time_s), *batch))
