"""Which machine type runs a job for the least money: measured times, prices and lifetimes in one number (SciSpot).

A job wants a number of cores: n machines of a type have them.  Time T on that gang is measured by running the first jobs, one
on each type; nothing is profiled beforehand.  The expected cost of a job is

    E[C] = n c E[T]                                                     c: price of a machine

**As published** (equations 3 to 6): E[T] = T + P T / 2, with P = 1 - (1 - p)^n and p = T / MTTF.  p is no probability: for a
job that is longer than the mean lifetime it exceeds 1, and P then has no meaning.  It is bounded at 1 here.  The sum is
of first order: it has at most one loss, after half of the job.

**Exact**, for a job that saves nothing and starts again on fresh machines after each loss, g later: machines of one gang are
lost independently, so the gang survives with S^n, and with its integral I

    E[T] = (I(T) + (1 - S(T)^n) g) / S(T)^n          on fresh machines
    E[T] = (I(a + T) - I(a) + (S(a)^n - S(a + T)^n) (g + E_fresh)) / S(a)^n      on machines of age a

Without a fit of lifetimes, S(t) = exp(-t / MTTP).

Source: SciSpot (draft 2019), section 4.3, equations 3 to 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from windfall.errors import Misuse
from windfall.models import expected_runtime
from windfall.models.exact.makespan import SurvivalTable
from windfall.structs import Struct

HOUR_S = 3600.0


class MachineChoice(Struct, frozen=True, eq=False):
    """A machine type that could run a job.

    Attributes:
        machine_type: its name.
        cores: of a machine.
        usd_per_hour: price of a machine.
        mttp_s: mean time to preemption of a machine [s]; infinite for machines that cannot be preempted.
        runtime_s: T, the job's time on the gang without a loss, as measured [s]; None: not yet.
        lifetimes: of machines, where a fit exists; None: memoryless with `mttp_s`.
    """

    machine_type: str
    cores: float
    usd_per_hour: float
    mttp_s: float
    runtime_s: float | None = None
    lifetimes: SurvivalTable | None = None


class ScoredChoice(Struct, frozen=True, eq=False):
    """What a job is expected to need on a type.

    Attributes:
        choice: the type.
        machines: n, how many have the cores.
        fails: probability that a machine of the gang is lost before the job's end [1]; None if T is not measured.
        expected_s: E[T] [s]; infinite if no machine lasts that long; None if T is not measured.
        usd: E[C] [USD]; as `expected_s`.
        reason: in words.
    """

    choice: MachineChoice
    machines: int
    fails: float | None
    expected_s: float | None
    usd: float | None
    reason: str


def machines_for(cores: float, choice: MachineChoice) -> int:
    """Return how many machines of a type have the cores: n."""
    return math.ceil(cores / choice.cores - 1e-9)


def published_failure(runtime_s: float, mttp_s: float, machines: int = 1) -> float:
    """Return P of equations 4 to 6: the probability of a loss, with p = T / MTTF bounded at 1.

    Args:
        runtime_s: T [s].
        mttp_s: MTTF of a machine [s].
        machines: n.
    """
    share = min(runtime_s / mttp_s, 1.0)
    return float(1.0 - (1.0 - share) ** machines)


def published_expected_s(runtime_s: float, mttp_s: float, machines: int = 1) -> float:
    """Return E[T] of equation 3 [s]; arguments as `published_failure`."""
    return runtime_s * (1.0 + published_failure(runtime_s, mttp_s, machines) / 2.0)


def expected(choice: MachineChoice, machines: int, restart_s: float = 0.0, age_s: float = 0.0) -> tuple[float, float]:
    """Return the probability of a loss [1] and E[T], exactly [s].

    Args:
        choice: a type whose time is measured.
        machines: n.
        restart_s: g, from a loss to a start on fresh machines [s].
        age_s: a, of the machines on which the job starts [s].

    Raises:
        Misuse: the time is not measured, or the lifetimes end before the job on machines of that age.
    """
    if choice.runtime_s is None:
        raise Misuse(f"the job's time on {choice.machine_type} is not measured: run one job there first")
    gang = _gang(choice, machines)
    if gang is None:
        return _memoryless(choice.runtime_s, choice.mttp_s / machines, restart_s)
    survival, integral_s = gang.at(np.array([0.0, choice.runtime_s, age_s, age_s + choice.runtime_s]))
    if survival[1] <= 0.0 or survival[2] <= 0.0:
        return 1.0, math.inf
    fresh_s = float((integral_s[1] + (1.0 - survival[1]) * restart_s) / survival[1])
    lost = survival[2] - survival[3]
    first_s = (integral_s[3] - integral_s[2] + lost * (restart_s + fresh_s)) / survival[2]
    return float(lost / survival[2]), float(first_s)


def _gang(choice: MachineChoice, machines: int) -> SurvivalTable | None:
    """Return the lifetimes of a gang, which ends with the first of its machines."""
    one = choice.lifetimes
    return None if one is None else SurvivalTable.of(one.cell_s, one.survival**machines)


def _memoryless(runtime_s: float, mean_s: float, restart_s: float) -> tuple[float, float]:
    if math.isinf(mean_s):
        return 0.0, runtime_s
    return -math.expm1(-runtime_s / mean_s), expected_runtime.unsaved_s(runtime_s, mean_s, restart_s)


def score(
    choices: Sequence[MachineChoice], cores: float, restart_s: float = 0.0, age_s: float = 0.0
) -> tuple[ScoredChoice, ...]:
    """Return the types in the order in which the next jobs are best run on them.

    Types without a measured time come first, the cheapest gang first: each gets one job.  The others follow by expected
    cost, then by expected time.

    Args:
        choices: the types.
        cores: that the job wants.
        restart_s: as `expected`.
        age_s: as `expected`.

    Raises:
        Misuse: there is no type, or a number makes no sense.
    """
    if not choices:
        raise Misuse("there is no machine type to choose from: allow one in resources")
    for one in choices:
        _check(one, cores)
    found = [_scored(one, cores, restart_s, age_s) for one in choices]
    return tuple(sorted(found, key=_order))


def _check(choice: MachineChoice, cores: float) -> None:
    sound = choice.cores > 0.0 and choice.mttp_s > 0.0 and choice.usd_per_hour >= 0.0
    if not (sound and cores > 0.0 and (choice.runtime_s is None or choice.runtime_s > 0.0)):
        raise Misuse(
            f"{choice.machine_type}: {choice.cores:g} of {cores:g} cores at {choice.usd_per_hour:g} USD/h, preempted "
            f"after {choice.mttp_s:g} s: cores and times are above 0, a price is 0 or more"
        )


def _scored(choice: MachineChoice, cores: float, restart_s: float, age_s: float) -> ScoredChoice:
    machines = machines_for(cores, choice)
    if choice.runtime_s is None:
        return ScoredChoice(choice, machines, None, None, None, "not measured: one job runs here")
    fails, expected_s = expected(choice, machines, restart_s, age_s)
    usd = machines * choice.usd_per_hour * expected_s / HOUR_S if choice.usd_per_hour else 0.0
    by = "memoryless losses" if choice.lifetimes is None else "fitted lifetimes"
    slower = expected_s / choice.runtime_s - 1.0
    reason = f"{100.0 * fails:.0f} % of jobs lose a machine, {100.0 * slower:.0f} % longer for it ({by})"
    return ScoredChoice(choice, machines, fails, expected_s, usd, reason)


def _order(one: ScoredChoice) -> tuple[float, float, float, str]:
    if one.usd is None or one.expected_s is None:
        return 0.0, one.machines * one.choice.usd_per_hour, 0.0, one.choice.machine_type
    return 1.0, one.usd, one.expected_s, one.choice.machine_type
