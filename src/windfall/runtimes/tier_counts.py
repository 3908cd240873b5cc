"""What a machine of a parameter server in tiers counts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from windfall.structs import Struct, replace
from windfall.tier_status import TierCounters


class TierCounts:
    """Counters that run.

    Attributes:
        now: as they are.
    """

    def __init__(self) -> None:
        self.now = TierCounters()

    def add(self, **more: float) -> None:
        """Add to counters, by their names."""
        self.now = replace(self.now, **{name: getattr(self.now, name) + value for name, value in more.items()})

    def read(self, staleness: int) -> None:
        """Count a read that missed a number of clocks."""
        self.add(reads=1, staleness_sum=staleness)
        self.now = replace(self.now, staleness_max=max(self.now.staleness_max, staleness))

    def message(self, pulled: int, pushed: int, *, here: bool) -> None:
        """Count the bytes of an answer and of its question, within the machine (`here`) or with another one."""
        if here:
            self.add(pulled_here_bytes=pulled, pushed_here_bytes=pushed)
        else:
            self.add(pulled_bytes=pulled, pushed_bytes=pushed)


def payload_bytes(message: object) -> int:
    """Return the bytes of all arrays in a question or an answer."""
    if isinstance(message, np.ndarray):
        return message.nbytes
    if isinstance(message, Mapping):
        return sum(payload_bytes(value) for value in message.values())
    if isinstance(message, Struct):
        return sum(payload_bytes(getattr(message, name)) for name in message.__struct_fields__)
    return 0
