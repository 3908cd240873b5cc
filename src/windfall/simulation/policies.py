"""Saving policies for a simulation: the built-in ones by name, the optimal schedule, and a user's own function.

A user's policy is one scalar function of Python, which is compiled for the kernels:

    def interval_s(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):
        return (2.0 * stall_s * mttp_s) ** 0.5

It is asked once for each machine, when its training begins, for the seconds of work between two saves: infinity for
none.  `age_s` is the machine's age, `durable_s` the time from the begin of a save to its commit, `restart_s` the time
from a loss to training again; the costs are those of the trial, the rest is what the worker believes.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from windfall.errors import Misuse
from windfall.models.exact.makespan import World
from windfall.models.exact.survival import SurvivalTable, tabulate
from windfall.models.losses import Losses
from windfall.policies.saving import schedule
from windfall.policies.saving.decide import parse_policy
from windfall.simulation import kernel_world as kernel
from windfall.simulation.scenario import Memoryless, Quantiles, Scenario

ARGUMENTS: Final = ("age_s", "work_left_s", "stall_s", "durable_s", "mttp_s", "restart_s")
Interval = Callable[[float, float, float, float, float, float], float]
UNITS_MOST: Final = 1200
"""The optimal schedule saves after whole units of work, at most so many in a run; a unit is whole steps."""
_CELLS: Final = 4000
_BUILT_IN: Final = MappingProxyType(
    {
        "never": kernel.NEVER,
        "adaptive": kernel.ADAPTIVE,
        "young-daly": kernel.YOUNG,
        "thesis": kernel.THESIS,
        "optimal": kernel.OPTIMAL,
    }
)


@dataclass(frozen=True, slots=True)
class Injected:
    """A user's policy.

    Attributes:
        name: for people.
        interval_s: the function of the module's docstring.
    """

    name: str
    interval_s: Interval


@dataclass(frozen=True, slots=True)
class Scheduled:
    """When to save by the optimal schedule, from any number of units of work left.

    Attributes:
        unit: steps in a unit.
        saves: for each number of units left, the units done at which a machine that begins with them saves.
    """

    unit: int
    saves: tuple[tuple[int, ...], ...]

    def steps(self, steps_left: int) -> tuple[int, ...]:
        """Return after how many steps a machine saves that begins with so many steps left."""
        return tuple(done * self.unit for done in self.saves[-(-steps_left // self.unit)])


def load(text: str) -> Injected:
    """Return the policy that `FILE.py:FUNCTION` names.

    Raises:
        Misuse: there is no such file or function, it does not run, or it does not take what a policy is asked.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not name.isidentifier() or path.suffix != ".py":
        raise Misuse(f"{text!r} names no policy: write FILE.py:FUNCTION, for example my_policy.py:interval_s")
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"the policy's file {file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    space: dict[str, Any] = {"__name__": "windfall_policy", "__file__": str(path)}
    try:
        exec(compile(source, str(path), "exec"), space)  # noqa: S102 - a file that its user named to be run
    except Exception as error:
        raise Misuse(f"the policy's file {file} does not run: {type(error).__name__}: {error}") from error
    function = space.get(name)
    if not inspect.isfunction(function):
        raise Misuse(f"{file} has no function {name!r}: define `def {name}({', '.join(ARGUMENTS)})` there")
    if len(inspect.signature(function).parameters) != len(ARGUMENTS):
        raise Misuse(f"{name} in {file} takes other arguments than a policy: use ({', '.join(ARGUMENTS)})")
    return Injected(text, function)


def checked_interval_s(policy: Injected, interval_s: float) -> float:
    """Return what a policy answered.

    Raises:
        Misuse: it is no interval.
    """
    if not interval_s > 0.0:
        raise Misuse(
            f"policy {policy.name} gave an interval of {interval_s:g} s: return seconds above 0, infinity to never save"
        )
    return interval_s


def plan_of(scenario: Scenario, policy: Injected | None) -> kernel.Plan:
    """Return a policy in numbers, for the kernels.

    Args:
        scenario: with the name of a built-in policy.
        policy: a user's own instead.
    """
    if policy is not None:
        return kernel.Plan(kernel.INJECTED)
    name = parse_policy(scenario.policy)
    if name.startswith("every:"):
        amount = name.removeprefix("every:")
        if amount.endswith("steps"):
            return kernel.Plan(kernel.EVERY_STEPS, every=float(amount.removesuffix("steps")))
        return kernel.Plan(kernel.EVERY_S, every=float(amount.removesuffix("s")))
    if name != "optimal":
        return kernel.Plan(_BUILT_IN[name])
    found = scheduled(scenario)
    flat = tuple(float(done) for saves in found.saves for done in saves)
    offsets = (0, *itertools.accumulate(len(saves) for saves in found.saves))
    return kernel.Plan(kernel.OPTIMAL, unit=found.unit, flat=flat, offsets=offsets)


@functools.lru_cache(maxsize=8)
def scheduled(scenario: Scenario) -> Scheduled:
    """Return the optimal schedule of a scenario: at the means of its ranges, the lives as they are.

    Recorded lives and traces count as memoryless, by what is believed: a schedule must not know what will happen.

    Raises:
        Misuse: the job is too long to be planned.
        Infeasible: no machine lives long enough for any progress.
    """
    unit = max(math.ceil(scenario.steps / UNITS_MOST), 1)
    unit_s = unit * scenario.step_s.mean_s
    units = -(-scenario.steps // unit)
    stall_s, prepare_s = scenario.stall_s.mean_s, scenario.prepare_s.mean_s
    oldest_s = prepare_s + 2.0 * units * (unit_s + stall_s)
    world = World(
        lives=_lives(scenario, oldest_s),
        stall_s=stall_s,
        durable_s=stall_s + scenario.upload_s.mean_s,
        allocate_s=scenario.allocate_s.mean_s,
        prepare_s=prepare_s,
        covered_share=_covered_share(scenario),
    )
    found = schedule.optimal(world, units * unit_s, age_s=prepare_s, unit_s=unit_s).schedule
    saves = [tuple(int(done) for done in np.cumsum(found.fresh(left))[:-1]) for left in range(units + 1)]
    return Scheduled(unit, tuple(saves))


def _covered_share(scenario: Scenario) -> float:
    """The share of losses that an emergency save is expected to cover, by what the machines are told."""
    needs_s = scenario.step_s.mean_s + scenario.stall_s.mean_s + scenario.upload_s.mean_s
    believed = scenario.believed
    said = Losses(scenario.provider, share_given=believed.unannounced_share, notice_given_s=believed.notice_s)
    return said.said_covered(needs_s) / said.said_losses


def _lives(scenario: Scenario, oldest_s: float) -> SurvivalTable:
    """Survival of all machines together: each of k of the same age."""
    lives, machines = scenario.lives, scenario.machines
    if isinstance(lives, Quantiles):
        ages = np.array(lives.ages_s)
        odds = np.linspace(1.0, 0.0, len(ages))
        finite = np.isfinite(ages)
        at_s = np.linspace(0.0, oldest_s, _CELLS + 1)
        survival = np.interp(at_s, ages[finite], odds[finite], left=1.0)
        survival[0] = 1.0
        return SurvivalTable.of(oldest_s / _CELLS, survival**machines)
    rate = 1.0 / scenario.believed.mttp_s
    if isinstance(lives, Memoryless):
        rate = machines * sum(1.0 / each for each in lives.means_s) / len(lives.means_s)
    return tabulate(lambda age_s: -age_s * rate, until_s=oldest_s, cell_s=oldest_s / _CELLS)
