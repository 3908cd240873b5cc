"""What was learnt of the machine types that a bag has tried: how long an item takes on each, and what one has cost there."""

from __future__ import annotations

from collections.abc import Iterable

from windfall.market import Machine
from windfall.report.bag_log import BagLog
from windfall.structs import Struct
from windfall.terms import Usd, WallTime


class TriedType(Struct, frozen=True):
    """A machine type.

    Attributes:
        name: with its provider where a bag had several.
        machines: how many there were.
        items: how many items they have done.
        run_s: how long those ran, together [s].
        usd: what the machines have cost, by their time and price, with all the time in which they did no item [USD].
    """

    name: str
    machines: int
    items: int
    run_s: float
    usd: Usd


def tried_types(log: BagLog, machines: Iterable[Machine], now: WallTime) -> tuple[TriedType, ...]:
    """Return the types of a bag's machines, the one with most items first.

    Args:
        log: of the bag.
        machines: each as it was listed last.
        now: until when running machines have cost something.
    """
    billed = [one for one in machines if one.started is not None]
    several = len({one.provider for one in billed}) > 1
    found: dict[str, TriedType] = {}
    for one in billed:
        name = f"{one.machine_type} of {one.provider}" if several else one.machine_type
        before = found.get(name, TriedType(name, 0, 0, 0.0, Usd(0.0)))
        lasted_s = max((one.ended or now) - (one.started or now), 0.0)
        found[name] = TriedType(
            name,
            before.machines + 1,
            before.items + log.by_machine.get(one.machine_id, 0),
            before.run_s + log.run_s_by_machine.get(one.machine_id, 0.0),
            Usd(before.usd + lasted_s / 3600.0 * one.price_usd_per_hour),
        )
    return tuple(sorted(found.values(), key=lambda one: (-one.items, one.name)))
