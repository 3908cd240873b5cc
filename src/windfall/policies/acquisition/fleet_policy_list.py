"""The fleet policies that jobs can name.

A new one is an entry of `policy_registry.ENTRIES`, or an entry point of the group `windfall.fleet_policies` in another
package.
"""

from __future__ import annotations

from windfall.policies import policy_registry
from windfall.policies.acquisition.fleet_policy import FleetPolicy
from windfall.policies.policy_registry import PolicyKind


def policy(name: str) -> FleetPolicy:
    """Return a fleet policy.

    Raises:
        Misuse: there is none of this name.
    """
    found: FleetPolicy = policy_registry.load(PolicyKind.FLEET, name)
    return found
