"""The market's meter: calculates the lines of a bill from its own records of start, end and price.

It shares no code with the buyer's accounting, so that comparing the two is a real check.
"""

from __future__ import annotations

import math

from windfall.market import Charge, MachineEndCause
from windfall.providers.local.market_config import Billing
from windfall.structs import Struct
from windfall.terms import Usd, WallTime

DIGITS = 9
"""Decimal digits of a dollar to which a line is rounded; cents would add up to dollars over many short machines."""


class MachineUsage(Struct, frozen=True):
    """A machine's start, end and price as the market recorded them."""

    machine_id: str
    price_usd_per_hour: float
    started: WallTime
    ended: WallTime
    cause: MachineEndCause


def lines(usage: MachineUsage, billing: Billing, *, settled: bool) -> tuple[Charge, ...]:
    """Return a machine's lines on the bill: one for its time, and a negative one for a refund if there is one.

    The refund is the amount billed for the hour in which the machine was preempted.

    Args:
        usage: the machine's record.
        billing: the rule at the time of purchase.
        settled: whether the bill is final.
    """
    lasted_s = usage.ended - usage.started
    hours = max(1, math.ceil(lasted_s / billing.hour))
    billed_s = hours * billing.hour if billing.by == "hour" else lasted_s
    time_line = _line(usage, "time", billed_s, usage.started, settled=settled)
    if not (billing.refund and usage.cause is MachineEndCause.PREEMPTED):
        return (time_line,)
    whole_s = (hours - 1) * billing.hour
    free_since = WallTime(usage.started + whole_s)
    return time_line, _line(usage, "refund", whole_s - billed_s, free_since, settled=settled)


def _line(usage: MachineUsage, what: str, billed_s: float, since: WallTime, *, settled: bool) -> Charge:
    return Charge(
        charge_id=f"{usage.machine_id}-{what}",
        machine_id=usage.machine_id,
        amount_usd=Usd(round(usage.price_usd_per_hour * billed_s / 3600.0, DIGITS)),
        started=since,
        ended=usage.ended,
        settled=settled,
    )
