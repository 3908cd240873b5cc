"""When to buy the successor of a machine whose end is announced.

The thesis buys when the notice arrives ("tries to reallocate a new replacement VM in advance of actual preemption
scheduling", section 5.1).  So do we wherever the notice is not much longer than a replacement takes; where it is (an
hour's notice of maintenance), the successor would only wait and cost, so it is bought later, with room for refusals.
"""

from __future__ import annotations

from dataclasses import dataclass

from windfall.events import Because
from windfall.terms import Instant, Seconds

ALLOCATION_S, BOOT_S = 60.0, 60.0
"""Expected before anything was measured and where the offer does not say [s]."""
ROOM = 3.0
"""So many times the expected time is kept, because allocations are refused and delayed."""
ROOM_S_MIN = 300.0
"""A notice up to this length is never waited on [s]."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a replacement takes: from the order to the machine's start, and from there to being ready [s]."""

    allocation_s: Seconds
    boot_s: Seconds

    @property
    def total_s(self) -> Seconds:
        """From the order to being ready [s]."""
        return Seconds(self.allocation_s + self.boot_s)

    @property
    def lead_s(self) -> Seconds:
        """How long before an announced end the successor is ordered [s]: max(3 x total, 300 s)."""
        return Seconds(max(ROOM * self.total_s, ROOM_S_MIN))


def expect(startup_s: Seconds | None, allocation_s: float | None, boot_s: float | None) -> Expected:
    """Return what a replacement is expected to take.

    Args:
        startup_s: the offer's own word for allocation; None if it says nothing.
        allocation_s: mean of this job's allocations so far; None before the first.
        boot_s: mean of this job's boots so far; None before the first.
    """
    said = ALLOCATION_S if startup_s is None else startup_s
    return Expected(
        Seconds(said if allocation_s is None else max(allocation_s, startup_s or 0.0)),
        Seconds(BOOT_S if boot_s is None else boot_s),
    )


def order_at(ends_at: Instant, expected: Expected) -> Instant:
    """Return from when on the successor shall be bought: announced end - max(3 x (allocation + boot), 300 s)."""
    return Instant(ends_at - expected.lead_s)


def because(count: int, left_s: float, expected: Expected) -> tuple[Because, ...]:
    """Return the numbers compared.

    Args:
        count: of machines whose end is announced.
        left_s: until the first of these ends [s].
        expected: of their replacements.
    """
    return (
        Because("machines announced", count, ""),
        Because("notice left", left_s, "s"),
        Because("expected allocation", expected.allocation_s, "s"),
        Because("expected boot", expected.boot_s, "s"),
    )
