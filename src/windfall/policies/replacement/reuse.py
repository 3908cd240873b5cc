"""Reuse or retire: run the next job on the current machine, or release it and buy a fresh one.

A job of length T that is not saved restarts after each loss.  S is survival by age, I its integral, s the machine's age,
g the expected gap until a fresh machine of age P trains, and time counts from the job's start:

    fresh:  E_0 = (I(P + T) - I(P) + (S(P) - S(P + T)) g) / S(P + T),          from now on: g + E_0
    reuse:  E_s = (I(s + T) - I(s) + (S(s) - S(s + T)) (g + E_0)) / S(s)

The machine is kept if E_s <= g + E_0: survival is conditional on the age it has reached.  A job that *is* saved is
compared by the expectations of its schedules (`compare`).

Source: SciSpot (HPDC'20 text, job scheduling policy), whose rule is E[T_s] = T + integral_s^(s+T) t f(t) dt against the
same at s = 0: it weighs a loss by the machine's age instead of the time since the job's start, and does not condition on
survival.  The functions `published_*` keep it as the reference for the papers' figures.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.models.exact.makespan import MakespanWorld
from windfall.structs import Struct

Array = NDArray[np.float64]
POINTS = 512
"""Grid size for finding transition points, before bisection."""
HALVINGS = 40


class ReuseDecision(Struct, frozen=True):
    """Whether to keep a machine for a job.

    Attributes:
        reuse: whether to keep it.
        reuse_s, fresh_s: expected time until the job is done, on this machine and on a fresh one [s].
        reuse_fails, fresh_fails: the probability that the machine does not last for the job.
    """

    reuse: bool
    reuse_s: float
    fresh_s: float
    reuse_fails: float
    fresh_fails: float


def failure_probability(world: MakespanWorld, job_s: float, age_s: float) -> float:
    """Return the probability that a machine of this age is lost before the job ends: 1 - S(s + T) / S(s).

    Args:
        world: lifetimes.
        job_s: T [s].
        age_s: s [s].
    """
    survival, _ = world.lifetimes.at(np.array([age_s, age_s + job_s]))
    return float(1.0 - survival[1] / survival[0]) if survival[0] > 0.0 else 1.0


def decide(world: MakespanWorld, job_s: float, age_s: float) -> ReuseDecision:
    """Return whether to run a job without saves on the current machine.

    Args:
        world: lifetimes, and the time of a restart; its saves do not matter.
        job_s: T [s], > 0.
        age_s: s, the machine's age [s].

    Example:
        A 6 h job on SciSpot's bathtub: reused at age 6 h (hardly any loss), not at age 20 h.
    """
    if not (job_s > 0.0 and age_s >= 0.0):
        raise Misuse(
            f"a job of {job_s:g} s on a machine of age {age_s:g} s: give a positive length and an age of 0 or more"
        )
    reuse_s, fresh_s = _expected_times(world, np.array([job_s]), np.array([age_s]))
    return compare(world, job_s, age_s, reuse_s=float(reuse_s[0]), fresh_s=float(fresh_s[0]))


def compare(world: MakespanWorld, job_s: float, age_s: float, *, reuse_s: float, fresh_s: float) -> ReuseDecision:
    """Return whether to keep the machine, given the expected time either way.

    Args:
        world: lifetimes.
        job_s: T [s].
        age_s: s [s].
        reuse_s: on this machine [s]: `optimal_schedule.optimal(world, job_s, age_s=age_s).expected.expected_s` if it is saved.
        fresh_s: on a machine that is ordered now [s]: `.expected.from_nothing_s` of the same.
    """
    return ReuseDecision(
        reuse_s <= fresh_s,
        reuse_s,
        fresh_s,
        failure_probability(world, job_s, age_s),
        failure_probability(world, job_s, world.prepare_s),
    )


def longest_reused_s(world: MakespanWorld, age_s: float, most_s: float) -> float:
    """Return the transition point: the longest job for which a machine of this age is kept [s]; 0 if for none.

    Args:
        world: lifetimes, and the time of a restart.
        age_s: of the machine [s].
        most_s: the longest job considered [s].
    """
    jobs_s = most_s * np.arange(1, POINTS + 1) / POINTS

    def kept(job_s: Array) -> Array:
        reuse_s, fresh_s = _expected_times(world, job_s, np.full(len(job_s), age_s))
        return np.asarray(reuse_s <= fresh_s)

    where = np.flatnonzero(kept(jobs_s))
    if len(where) == 0:
        return 0.0
    last = int(where[-1])
    if last == POINTS - 1:
        return most_s
    return _bisect(lambda job_s: bool(kept(np.array([job_s]))[0]), float(jobs_s[last]), float(jobs_s[last + 1]))


def reused_ages_s(world: MakespanWorld, job_s: float, oldest_s: float) -> tuple[tuple[float, float], ...]:
    """Return the ages (from, to) at which a machine is kept for a job [s].

    Args:
        world: lifetimes, and the time of a restart.
        job_s: the job's length [s].
        oldest_s: the oldest machine considered [s].
    """
    ages_s = oldest_s * np.arange(POINTS + 1) / POINTS

    def kept(age_s: float) -> bool:
        reuse_s, fresh_s = _expected_times(world, np.array([job_s]), np.array([age_s]))
        return bool(reuse_s[0] <= fresh_s[0])

    flags = [kept(float(age_s)) for age_s in ages_s]
    spans, start = [], 0.0 if flags[0] else None
    for place in range(1, POINTS + 1):
        if flags[place] == flags[place - 1]:
            continue
        at_s = float(ages_s[place - 1]), float(ages_s[place])
        if flags[place]:
            start = _bisect(lambda age_s: not kept(age_s), *at_s)
        else:
            spans.append((start or 0.0, _bisect(kept, *at_s)))
            start = None
    return (*spans, (start, oldest_s)) if start is not None else tuple(spans)


def _expected_times(world: MakespanWorld, job_s: Array, age_s: Array) -> tuple[Array, Array]:
    """Expected time on the current machine and on one ordered now [s]; infinite if no machine lasts for the job."""
    prepare_s, gap_s = world.prepare_s, world.gap_s
    ready, ready_s = world.lifetimes.at(np.array([prepare_s]))
    lasts, lasts_s = world.lifetimes.at(prepare_s + job_s)
    here, here_s = world.lifetimes.at(age_s)
    there, there_s = world.lifetimes.at(age_s + job_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        again_s = gap_s + (lasts_s - ready_s[0] + (ready[0] - lasts) * gap_s) / lasts
        reuse_s = (there_s - here_s + np.where(here > there, (here - there) * again_s, 0.0)) / here
    return np.where(here > 0.0, reuse_s, np.inf), again_s


def _bisect(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """The boundary between a point where `holds` is true and one where it is false."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


# -------------------------------------------------------------------------------------------------- as published


def published_reuse(partial_mean: Callable[[float], float], job: float, age: float) -> bool:
    """Return the published rule: reuse iff G(s + T) - G(s) <= G(T) - G(0), G an antiderivative of t f(t).

    Args:
        partial_mean: G, in any unit of time.
        job: T, in the same unit.
        age: s.

    Source:
        SciSpot, HPDC'20 text: E[T_s] = T + integral of t f(t) from s to s + T.
    """
    return partial_mean(age + job) - partial_mean(age) <= partial_mean(job) - partial_mean(0.0)


def published_failure(cdf: Callable[[float], float], job: float, age: float, end: float) -> float:
    """Return the published probability of losing a job: F(s + T) - F(s), not conditional; 1 if it ends after every machine.

    Args:
        cdf: F.
        job: T.
        age: s.
        end: the age at which F reaches 1 (24.3 h in the paper).

    Source:
        SciSpot, HPDC'20 text and the authors' notebook for the figure of failure probabilities.
    """
    return 1.0 if age + job > end else cdf(age + job) - cdf(age)


def published_failure_by_policy(cdf: Callable[[float], float], job: float, age: float, end: float) -> float:
    """Return the published probability of losing a job under the policy: the smaller of this machine's and a fresh one's.

    The figure of failure probabilities compares these, not E[T_s] as the text's rule does; under that rule
    (`published_reuse`) the 6 h job would not be kept at ages 16 and 17 h, where the figure keeps it.

    Args:
        cdf: F.
        job: T.
        age: s.
        end: the age at which F reaches 1.

    Source:
        SciSpot, the authors' notes on their scheduling simulation.
    """
    return min(published_failure(cdf, job, age, end), published_failure(cdf, job, 0.0, end))


def published_longest(partial_mean: Callable[[float], float], age: float, most: float) -> float:
    """Return the published transition point: the longest job for which the published rule keeps the machine; or 0.

    Args:
        partial_mean: G.
        age: s.
        most: the longest job considered.
    """
    jobs = [most * place / POINTS for place in range(1, POINTS + 1)]
    kept = [job for job in jobs if published_reuse(partial_mean, job, age)]
    if not kept or kept[-1] == most:
        return kept[-1] if kept else 0.0
    return _bisect(lambda job: published_reuse(partial_mean, job, age), kept[-1], kept[-1] + most / POINTS)
