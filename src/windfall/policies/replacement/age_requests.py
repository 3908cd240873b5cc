"""Whether a machine that has finished an item of a bag gets the next one: what is asked of the lifetimes of its kind.

This module needs only the standard library; `item_ages` answers.
"""

from __future__ import annotations

from windfall.fleet import AgeWeighed
from windfall.structs import Struct
from windfall.terms import Seconds

ITEM_S_MIN = 60.0
"""No age is weighed for items shorter than this [s]: what a loss costs them is less than a start takes."""
AGAIN_S = 300.0
"""The least time between two looks at a machine [s]; a quarter of an item where that is more."""
CHANGE = 0.25
"""An item's time that differs by this share is another one."""


class AgeRequest(Struct, frozen=True):
    """A machine that runs items, and what decides whether it is kept.

    Attributes:
        machine_id: the machine, with the provider, type and zone of its kind.
        age_s: of the machine [s].
        item_s: mean time of an item there [s].
        allocate_s, prepare_s: from an order to a machine's start, and from there to its first item [s].
        mttp_s: its mean time to preemption, if it is known [s].
        injected: the injector takes the machine, memoryless with that mean.
    """

    machine_id: str
    provider: str
    machine_type: str
    zone: str
    age_s: Seconds
    item_s: Seconds
    allocate_s: Seconds
    prepare_s: Seconds
    mttp_s: Seconds | None = None
    injected: bool = False


def is_due(age_s: float, item_s: float, before: AgeWeighed | None) -> bool:
    """Return whether a machine is weighed now.

    Args:
        age_s: of the machine [s].
        item_s: mean time of an item there [s].
        before: the last answer; None before the first.
    """
    if item_s < ITEM_S_MIN:
        return False
    if before is None or abs(item_s - before.item_s) > CHANGE * before.item_s:
        return True
    return age_s >= before.age_s + max(item_s / 4.0, AGAIN_S)
