"""Which machines a parameter server's placement counts with: those that come or leave together are taken together.

Machines of one order do not join in one instant.  A placement for each of them would move parts and data partitions several
times, to machines that are to give them away again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.tier_layout import TierMachine

WAIT_MAX = 4
"""Times `settle_s` after which changes count that others have followed again and again."""


class BulkWatch:
    """What a coordinator has seen of machines that come and leave.

    Args:
        settle_s: for so long no machine may come, or begin to leave, before any of those that did counts [s].
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._seen: dict[str, bool] = {}
        self._counted: dict[str, TierMachine] = {}
        self._first_s: float | None = None
        self._newest_s = -math.inf

    def counted(self, machines: Sequence[TierMachine], now_s: float) -> Sequence[TierMachine]:
        """Return the machines that a placement counts with, as they were when they began to count.

        Where a machine is lost, all count at once: what it had must go somewhere.

        Args:
            machines: all that are there.
            now_s: instant [s], of a monotonic clock.
        """
        seen = {machine.name: machine.leaving for machine in machines}
        if seen != self._seen:
            self._first_s = now_s if self._first_s is None else self._first_s
            self._newest_s = now_s
        at_once = not self._counted or bool(self._counted.keys() - seen.keys())
        self._seen = seen
        if at_once or self.settles_in_s(now_s) == 0.0:
            self._first_s, self._counted = None, {machine.name: machine for machine in machines}
        return tuple(self._counted.values())

    def settles_in_s(self, now_s: float) -> float:
        """Return after how long those that came or left count, if no others do [s]; infinity: all there are count."""
        if self._first_s is None:
            return math.inf
        settled_s = min(self._newest_s + self._settle_s, self._first_s + WAIT_MAX * self._settle_s)
        return max(0.0, settled_s - now_s)
