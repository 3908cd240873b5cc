"""The fleet policies that jobs can name.

A new one is one entry of `POLICIES`, or an entry point of the group `windfall.fleet_policies` in another package.
"""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.metadata import entry_points

from windfall.errors import Misuse
from windfall.jobs import DEFAULT_FLEET
from windfall.policies.acquisition.fleet_policy import FleetPolicy
from windfall.structs import Struct

GROUP = "windfall.fleet_policies"


class FleetPolicyEntry(Struct, frozen=True):
    """A fleet policy: its name in a job file, module and function, and one sentence for users."""

    name: str
    place: str
    help: str


POLICIES = (
    FleetPolicyEntry(
        DEFAULT_FLEET,
        "policies.acquisition.fleet_policy:fixed",
        "the machines that the runtime needs, of the offers that rank best, each replaced when it ends",
    ),
)


@functools.cache
def policy(name: str) -> FleetPolicy:
    """Return a fleet policy.

    Raises:
        Misuse: there is none of this name.
    """
    for entry in POLICIES:
        if entry.name == name:
            module, _, function = entry.place.partition(":")
            found: FleetPolicy = getattr(import_module(f"windfall.{module}"), function)
            return found
    for point in entry_points(group=GROUP):
        if point.name == name:
            loaded: FleetPolicy = point.load()
            return loaded
    raise Misuse(f"the fleet policy {name} is not installed; this installation has {', '.join(names())}")


def names() -> tuple[str, ...]:
    """Return the names of all fleet policies that are installed."""
    return (*(entry.name for entry in POLICIES), *sorted(point.name for point in entry_points(group=GROUP)))
