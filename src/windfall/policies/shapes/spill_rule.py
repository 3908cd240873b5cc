"""When the backup puts its state into the run's store, so that not all is lost with it and the machines that train (ParcaePS).

Source: Parcae (NSDI 2024).
"""

from __future__ import annotations

from typing import Final

SPILL_EVERY_S: Final = 60.0
SPILL_SHARE: Final = 0.05
"""Of the backup's time that saving may take."""


def spill_is_due(since_s: float, took_s: float, every_s: float = SPILL_EVERY_S) -> bool:
    """Return whether the backup saves its state now.

    Args:
        since_s: since the last spill began, or the backup did [s].
        took_s: by the last spill; 0 before there was one [s].
        every_s: least time from one spill to the next [s].

    Example:
        After a spill that took 10 s the next one is due 200 s after it began.
    """
    return since_s >= max(every_s, took_s / SPILL_SHARE)
