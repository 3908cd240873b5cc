"""The market's meter: from its own records of start, end and price to the lines of a bill.

It shares no code with the account of whoever buys here, which is what makes the comparison of the two worth something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windfall.market import Charge, Ended
from windfall.providers.local.config import Billing
from windfall.terms import Usd, WallTime

DIGITS = 9
"""Digits of a dollar to which a line is rounded; cents would add up to dollars over many short lives."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A machine's life as the market recorded it."""

    machine_id: str
    price_usd_per_hour: float
    began: WallTime
    ended: WallTime
    cause: Ended


def lines(stay: Stay, billing: Billing, *, settled: bool) -> tuple[Charge, ...]:
    """Return what a machine's life costs: one line for its time, and a negative one for a refund if there is one.

    The refund is of the hour that ran when the machine was taken back: what was billed for it comes back.

    Args:
        stay: the life.
        billing: the rule that held at the purchase.
        settled: whether the bill is closed.
    """
    lasted_s = stay.ended - stay.began
    hours = max(1, math.ceil(lasted_s / billing.hour))
    billed_s = hours * billing.hour if billing.by == "hour" else lasted_s
    usage = _line(stay, "time", billed_s, stay.began, settled=settled)
    if not (billing.refund and stay.cause is Ended.PREEMPTED):
        return (usage,)
    whole_s = (hours - 1) * billing.hour
    free_since = WallTime(stay.began + whole_s)
    return usage, _line(stay, "refund", whole_s - billed_s, free_since, settled=settled)


def _line(stay: Stay, what: str, billed_s: float, since: WallTime, *, settled: bool) -> Charge:
    return Charge(
        charge_id=f"{stay.machine_id}-{what}",
        machine_id=stay.machine_id,
        amount_usd=Usd(round(stay.price_usd_per_hour * billed_s / 3600.0, DIGITS)),
        began=since,
        ended=stay.ended,
        settled=settled,
    )
