"""When to buy the successor of a machine whose end is announced.

The thesis buys when the notice arrives ("tries to reallocate a new replacement VM in advance of actual preemption
scheduling", section 5.1).  So does Windfall, unless the notice is much longer than a replacement takes (such as an
hour's notice of maintenance): the successor would then wait at full price, so it is bought later, with time for
refusals.
"""

from __future__ import annotations

from windfall.events import ComparedValue
from windfall.structs import Struct
from windfall.terms import Instant, Seconds

ALLOCATION_S, BOOT_S = 60.0, 60.0
"""Expected allocation and boot time before any measurement, where the offer does not give one [s]."""
LEAD_FACTOR = 3.0
"""The order leaves this many times the expected time, because allocations are refused and delayed."""
LEAD_S_MIN = 300.0
"""With a notice up to this long the successor is ordered at once [s]."""


class ReplacementTime(Struct, frozen=True):
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
        return Seconds(max(LEAD_FACTOR * self.total_s, LEAD_S_MIN))


def expect(startup_s: Seconds | None, allocation_s: float | None, boot_s: float | None) -> ReplacementTime:
    """Return what a replacement is expected to take.

    Args:
        startup_s: the offer's own allocation time; None if it gives none.
        allocation_s: mean of this job's allocations so far; None before the first.
        boot_s: mean of this job's boots so far; None before the first.
    """
    default_s = ALLOCATION_S if startup_s is None else startup_s
    return ReplacementTime(
        Seconds(default_s if allocation_s is None else max(allocation_s, startup_s or 0.0)),
        Seconds(BOOT_S if boot_s is None else boot_s),
    )


def order_at(ends_at: Instant, expected: ReplacementTime) -> Instant:
    """Return when to order the successor: announced end - max(3 x (allocation + boot), 300 s)."""
    return Instant(ends_at - expected.lead_s)


def rationale(count: int, left_s: float, expected: ReplacementTime) -> tuple[ComparedValue, ...]:
    """Return the numbers compared.

    Args:
        count: how many machines have an announced end.
        left_s: until the first of these ends [s].
        expected: the replacement time.
    """
    return (
        ComparedValue("machines announced", count, ""),
        ComparedValue("notice left", left_s, "s"),
        ComparedValue("expected allocation", expected.allocation_s, "s"),
        ComparedValue("expected boot", expected.boot_s, "s"),
    )
