"""What a provider's listing says that is not known yet, and what is known that it no longer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windfall.market import Machine


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a listing and the driver's knowledge part.

    Attributes:
        seen: machines that are new, or listed otherwise than they are known; in the listing's order.
        missing: known machines that the listing lacks, those that are known to be gone among them (then the provider
            has forgotten them, and so may we); sorted.
    """

    seen: tuple[Machine, ...]
    missing: tuple[str, ...]


def compare(known: Mapping[str, Machine], listing: tuple[Machine, ...]) -> Difference:
    """Compare a whole listing of one provider with what is known of that provider.

    Args:
        known: `driver.known_machines`, those of this provider and job alone.
        listing: as the provider gave it, those of this job alone; a machine that is listed twice counts once, as it is
            listed last.
    """
    listed = {machine.machine_id: machine for machine in listing}
    seen = tuple(machine for machine_id, machine in listed.items() if known.get(machine_id) != machine)
    return Difference(seen, tuple(sorted(known.keys() - listed.keys())))
