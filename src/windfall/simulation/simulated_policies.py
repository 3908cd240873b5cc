"""Saving policies for a simulation: built-in ones by name, the optimal schedule, and a user's own function.

A user's policy is one scalar Python function, which is compiled for the kernels:

    def interval_s(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):
        return (2.0 * stall_s * mttp_s) ** 0.5

It is called once per machine, at the start of its training, and returns the seconds of work between two saves: infinity for
no saves.  `age_s` is the machine's age, `durable_s` the time from the start of a save to its commit, `restart_s` the time
from a loss to training again; the costs are those of the trial, the rest are the worker's estimates.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from windfall.errors import Misuse
from windfall.models.exact.makespan import MakespanWorld, SurvivalTable, tabulate
from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies import policy_registry
from windfall.policies.checkpointing import optimal_schedule
from windfall.policies.checkpointing.decision import every, parse_policy, saving_policy
from windfall.policies.policy_registry import KernelCode, PolicyKind
from windfall.simulation import kernel_world as kernel
from windfall.simulation.scenario import LifetimeQuantiles, MemorylessLifetimes, Scenario
from windfall.structs import Struct

ARGUMENTS: Final = ("age_s", "work_left_s", "stall_s", "durable_s", "mttp_s", "restart_s")
Interval = Callable[[float, float, float, float, float, float], float]
UNITS_MOST: Final = 1200
"""The optimal schedule saves after whole units of work; this is the most units of a run.  A unit is whole steps."""
_CELLS: Final = 4000


class UserPolicy(Struct, frozen=True):
    """A user's policy.

    Attributes:
        name: for people.
        interval_s: the function of the module's docstring.
    """

    name: str
    interval_s: Interval


class OptimalSaves(Struct, frozen=True):
    """The saves of the optimal schedule, from any number of units of work left.

    Attributes:
        unit: steps in a unit.
        saves: for each number of units left at a machine's start, the numbers of done units at which it saves.
    """

    unit: int
    saves: tuple[tuple[int, ...], ...]

    def steps(self, steps_left: int) -> tuple[int, ...]:
        """Return the steps after which a machine saves that starts with `steps_left`."""
        return tuple(done * self.unit for done in self.saves[-(-steps_left // self.unit)])


def load(text: str) -> UserPolicy:
    """Load the policy `FILE.py:FUNCTION`.

    Raises:
        Misuse: there is no such file or function, the file does not run, or the function has other arguments.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not name.isidentifier() or path.suffix != ".py":
        raise Misuse(f"{text!r} is not a policy: write FILE.py:FUNCTION, for example my_policy.py:interval_s")
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"cannot read the policy file {file}: {getattr(error, 'strerror', None) or error}") from error
    space: dict[str, Any] = {"__name__": "windfall_policy", "__file__": str(path)}
    try:
        exec(compile(source, str(path), "exec"), space)  # noqa: S102 - a file that its user named to be run
    except Exception as error:
        raise Misuse(f"the policy file {file} does not run: {type(error).__name__}: {error}") from error
    function = space.get(name)
    if not inspect.isfunction(function):
        raise Misuse(f"{file} has no function {name!r}: define `def {name}({', '.join(ARGUMENTS)})` in it")
    if len(inspect.signature(function).parameters) != len(ARGUMENTS):
        raise Misuse(f"{name} in {file} has the wrong arguments for a policy: use ({', '.join(ARGUMENTS)})")
    return UserPolicy(text, function)


def checked_interval_s(policy: UserPolicy, interval_s: float) -> float:
    """Return a policy's interval.

    Raises:
        Misuse: it is not an interval.
    """
    if not interval_s > 0.0:
        raise Misuse(
            f"policy {policy.name} gave an interval of {interval_s:g} s: return seconds above 0, or infinity to never save"
        )
    return interval_s


def named_rule(scenario: Scenario) -> UserPolicy | None:
    """Return a scenario's policy as a function, if it is one rule that the kernels have no code for; None otherwise."""
    name = parse_policy(scenario.policy)
    return _as_function(name) if kernel_code(name) is KernelCode.INJECTED else None


def kernel_code(name: str) -> KernelCode:
    """Return the kernels' code of a saving policy.

    Raises:
        Misuse: it has none.
    """
    entry = policy_registry.find(PolicyKind.SAVING, name.partition(":")[0])
    if entry.kernel is None:
        others = ", ".join(other.name for other in policy_registry.simulated())
        raise Misuse(f"the saving policy {entry.name} cannot be simulated: it has no kernel; choose from {others}")
    return entry.kernel


@functools.cache
def _as_function(name: str) -> UserPolicy:
    scalar = saving_policy(name).interval_s
    if scalar is None:
        raise Misuse(f"the saving policy {name} cannot be simulated: it is no scalar rule, which its kernel code says")
    rule = kernel.part(scalar)

    def interval_s(
        _age_s: float, _work_left_s: float, stall_s: float, _durable_s: float, mttp_s: float, _restart_s: float
    ) -> float:
        return float(rule(stall_s, mttp_s))

    return UserPolicy(name, interval_s)


def kernel_plan(scenario: Scenario, policy: UserPolicy | None) -> kernel.KernelPlan:
    """Return a policy as numbers, for the kernels.

    Args:
        scenario: with the name of a built-in policy.
        policy: a user's own, in place of the scenario's.
    """
    if policy is not None:
        return kernel.KernelPlan(kernel.INJECTED)
    name = parse_policy(scenario.policy)
    code = kernel_code(name)
    if code is KernelCode.EVERY_S:
        steps, interval_s = every(name)
        if steps is not None:
            return kernel.KernelPlan(kernel.EVERY_STEPS, every=float(steps))
        return kernel.KernelPlan(kernel.EVERY_S, every=interval_s)
    if code is not KernelCode.OPTIMAL:
        return kernel.KernelPlan(int(code))
    found = scheduled(scenario)
    flat = tuple(float(done) for saves in found.saves for done in saves)
    offsets = (0, *itertools.accumulate(len(saves) for saves in found.saves))
    return kernel.KernelPlan(kernel.OPTIMAL, unit=found.unit, flat=flat, offsets=offsets)


@functools.lru_cache(maxsize=8)
def scheduled(scenario: Scenario) -> OptimalSaves:
    """Return the optimal schedule of a scenario: at the means of its ranges, with its lifetimes.

    Recorded lifetimes and traces count as memoryless, with the estimated mean: a schedule must not know the future.

    Raises:
        Misuse: the job is too long to plan.
        Infeasible: no machine lives long enough for any progress.
    """
    unit = max(math.ceil(scenario.steps / UNITS_MOST), 1)
    unit_s = unit * scenario.step_s.mean_s
    units = -(-scenario.steps // unit)
    stall_s, prepare_s = scenario.stall_s.mean_s, scenario.prepare_s.mean_s
    oldest_s = prepare_s + 2.0 * units * (unit_s + stall_s)
    world = MakespanWorld(
        lifetimes=_survival(scenario, oldest_s),
        stall_s=stall_s,
        durable_s=stall_s + scenario.upload_s.mean_s,
        allocate_s=scenario.allocate_s.mean_s,
        prepare_s=prepare_s,
        covered_share=_covered_share(scenario),
    )
    found = optimal_schedule.optimal(world, units * unit_s, age_s=prepare_s, unit_s=unit_s).schedule
    saves = [tuple(int(done) for done in np.cumsum(found.fresh(left))[:-1]) for left in range(units + 1)]
    return OptimalSaves(unit, tuple(saves))


def _covered_share(scenario: Scenario) -> float:
    """Return the expected share of losses that an emergency save covers, by the stated notice."""
    needs_s = scenario.step_s.mean_s + scenario.stall_s.mean_s + scenario.upload_s.mean_s
    estimates = scenario.estimates
    losses = PreemptionHistory(
        scenario.provider, share_given=estimates.unannounced_share, notice_given_s=estimates.notice_s
    )
    return losses.prior_covered(needs_s) / losses.prior_losses


def _survival(scenario: Scenario, oldest_s: float) -> SurvivalTable:
    """Return the survival of all k machines together, all of the same age."""
    lifetimes, machines = scenario.lifetimes, scenario.machines
    if isinstance(lifetimes, LifetimeQuantiles):
        ages = np.array(lifetimes.ages_s)
        odds = np.linspace(1.0, 0.0, len(ages))
        finite = np.isfinite(ages)
        at_s = np.linspace(0.0, oldest_s, _CELLS + 1)
        survival = np.interp(at_s, ages[finite], odds[finite], left=1.0)
        survival[0] = 1.0
        return SurvivalTable.of(oldest_s / _CELLS, survival**machines)
    rate = 1.0 / scenario.estimates.mttp_s
    if isinstance(lifetimes, MemorylessLifetimes):
        rate = machines * sum(1.0 / each for each in lifetimes.means_s) / len(lifetimes.means_s)
    return tabulate(lambda age_s: -age_s * rate, until_s=oldest_s, cell_s=oldest_s / _CELLS)
