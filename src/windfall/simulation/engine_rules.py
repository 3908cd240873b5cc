"""A policy as the event engine hands it to a worker: a name, or a name and a schedule."""

from __future__ import annotations

import math

from windfall.policies.saving.decide import parse_policy
from windfall.simulation.engine_holding import Rule
from windfall.simulation.policies import Injected, checked_interval_s, scheduled
from windfall.simulation.sampling import Draws
from windfall.simulation.scenario import Scenario
from windfall.terms import SaveTable


def rule_of(scenario: Scenario, draws: Draws, policy: Injected | None) -> Rule:
    """Return what each machine of a job is told of its policy.

    Args:
        scenario: with the name of a built-in policy.
        draws: of the trial: its costs are what a user's function is asked with.
        policy: a user's own instead.

    Raises:
        Misuse: there is no such policy, or the job is too long for the optimal schedule.
        Infeasible: no machine lives long enough for any progress of the optimal schedule.
    """
    if policy is not None:
        return _injected(scenario, draws, policy)
    name = parse_policy(scenario.policy)
    if name == "optimal":
        return _optimal(scenario, draws)
    told = name, None
    return lambda *_: told


def _injected(scenario: Scenario, draws: Draws, policy: Injected) -> Rule:
    """Ask a user's function once for each machine; its answer is what `every:<s>s` means."""
    believed = scenario.believed

    def rule(age_s: float, steps_left: int) -> tuple[str, SaveTable | None]:
        durable_s = draws.stall_s + draws.upload_s
        asked = policy.interval_s(
            age_s, steps_left * draws.step_s, draws.stall_s, durable_s, believed.mttp_s, believed.restart_s
        )
        interval_s = checked_interval_s(policy, asked)
        return ("never" if interval_s == math.inf else f"every:{interval_s:.12g}s"), None

    return rule


def _optimal(scenario: Scenario, draws: Draws) -> Rule:
    found = scheduled(scenario)

    def rule(age_s: float, steps_left: int) -> tuple[str, SaveTable | None]:
        del age_s
        saves_at_s = tuple([step * draws.step_s for step in found.steps(steps_left)])
        return "optimal", SaveTable(saves_at_s, math.inf, math.inf, "the optimal schedule of the simulated lives")

    return rule
