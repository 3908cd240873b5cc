"""The turns of one machine of a parameter server, in the order in which they ended, for a profile."""

from __future__ import annotations

from windfall.structs import Struct
from windfall.tier_status import TierCounters


class TurnRecord(Struct, frozen=True):
    """A turn, and what its machine had done by its end.

    Attributes:
        data: its data partition.
        ended_s: when its last part was sealed, on the host's monotonic clock [s].
        computed_s: for which the machine's turns had computed until then [s].
        moved_bytes: that the machine had pulled from and pushed to others until then.
        loss: of the turn's batch; None: unknown.
    """

    data: int
    ended_s: float
    computed_s: float
    moved_bytes: int
    loss: float | None


class TurnLog:
    """Turns since the machine began."""

    def __init__(self) -> None:
        self._turns: list[TurnRecord] = []

    def add(self, data: int, ended_s: float, counters: TierCounters, loss: float | None) -> None:
        """Note a turn that has just ended."""
        moved = counters.pulled_bytes + counters.pushed_bytes
        self._turns.append(TurnRecord(data, ended_s, counters.computed_s, moved, loss))

    def turns(self) -> tuple[TurnRecord, ...]:
        """Return all of them."""
        return tuple(self._turns)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._turns)
