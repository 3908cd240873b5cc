"""The fleet policies that jobs can name.

A new one is an entry of `policy_registry.ENTRIES`, or an entry point of the group `windfall.fleet_policies` in another
package.  Its value is a `FleetPolicy`, or `FleetPolicyRules` where it has settings or does not fit every job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windfall.jobs import Job
from windfall.policies import policy_registry
from windfall.policies.acquisition.fleet_policy import FleetPolicy, FleetPolicyRules
from windfall.policies.policy_registry import PolicyKind


def policy(name: str) -> FleetPolicy:
    """Return a fleet policy.

    Raises:
        Misuse: there is none of this name.
    """
    found: FleetPolicy | FleetPolicyRules = policy_registry.load(PolicyKind.FLEET, name)
    return found.policy if isinstance(found, FleetPolicyRules) else found


def reads_step_times(name: str) -> bool:
    """Return whether a fleet policy decides by the times of steps.

    Raises:
        Misuse: there is none of this name.
    """
    found = policy_registry.load(PolicyKind.FLEET, name)
    return isinstance(found, FleetPolicyRules) and found.step_times


def weighs_ages(name: str) -> bool:
    """Return whether a fleet policy retires machines by what their next item is expected to take at their age.

    Raises:
        Misuse: there is none of this name.
    """
    found = policy_registry.load(PolicyKind.FLEET, name)
    return isinstance(found, FleetPolicyRules) and found.ages


def settings_problem(name: str, settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the settings of a fleet policy; None if they are valid.

    Raises:
        Misuse: there is none of this name.
    """
    found = policy_registry.load(PolicyKind.FLEET, name)
    if isinstance(found, FleetPolicyRules):
        return found.check(settings)
    return f"has no settings; write `fleet: {name}`" if settings else None


def job_problem(job: Job) -> str | None:
    """Return why a job cannot have its fleet policy, or what is wrong with its settings; None if all is well.

    Raises:
        Misuse: there is no such policy.
    """
    found = policy_registry.load(PolicyKind.FLEET, job.fleet)
    problem = settings_problem(job.fleet, job.fleet_settings)
    if problem is None and isinstance(found, FleetPolicyRules):
        return found.job_check(job)
    return problem
