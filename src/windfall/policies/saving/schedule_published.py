"""The checkpoint program of SciSpot's authors as they run it, kept as a reference: do not plan with it.

What it computes, with F the (unnormalised) distribution function of lifetimes, s the machine's age at the job's start,
delta = R = 1 min, W minutes of work left and d minutes since the start *or the last loss*:

    E(W, d) = max(W, min_i [ p (i + delta + E(W - i, d + i + delta)) + (1 - p) ((i + delta) / 2 + R + E(W, R)) ])
    p = max(0, 1 - (F(s + d + i + delta) - F(s + d)))

and at d = R, where the retry would be the state itself, (1 - p) / p ((i + delta) / 2 + R) takes the place of its last
term.  Differences from the exact programme (`schedule`): p is not conditional on being alive; the loss is half a
segment; after a loss the machine is of age s + R instead of 0; the retry at d = R is dropped; results are floored at W.
The schedule it prints is, at each d, the longest interval of *all* states that the recursion met there.

Source: the behaviour of the public program of "Modeling The Temporally Constrained Preemptions of Transient Cloud VMs"
(HPDC'20); the paper's own text has M(J, t) with lost = integral x f(x) dx and P_f misprinted as F(i + delta).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.errors import Misuse

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Published:
    """What the authors' program prints.

    Attributes:
        expected_min: its "expected makespan" [min].
        saves_at_min: its schedule: time since the start at which each segment begins [min], 0 first.
    """

    expected_min: float
    saves_at_min: tuple[int, ...]


def published_schedule(cdf: Callable[[Array], Array], job_min: int, age_min: int = 0) -> Published:
    """Return what the authors' program computes, in minutes, save and restart 1 min each.

    Args:
        cdf: F, not clipped, at ages in minutes.
        job_min: the job's length [min], >= 1.
        age_min: s, the machine's age at its start [min].

    Example:
        4 h at age 0 with A .4137, tau1 .9 h, tau2 .76 h, b 24 h: 249.642 min.
    """
    if job_min < 1 or age_min < 0:
        raise Misuse(f"a job of {job_min} min on a machine of {age_min} min: give at least 1 and 0")
    ages = np.arange(age_min, age_min + 2 * job_min + 4, dtype=np.float64)
    expected, intervals, met = _recursion(job_min, np.ascontiguousarray(cdf(ages), dtype=np.float64))
    longest = np.where(met, intervals, 0).max(axis=0)
    saves = [0]
    while (following := saves[-1] + int(longest[saves[-1]])) <= job_min:
        saves.append(following)
        if longest[following] == 0:
            break
    return Published(float(expected[job_min, 0]), tuple(saves))


@njit(cache=True)
def _met(job, width):  # type: ignore[no-untyped-def]  # compiled
    """The states (minutes left, minutes since the start or the last loss) that the recursion meets."""
    met = np.zeros((job + 1, width), np.bool_)
    met[job, 0] = True
    for work in range(job, 0, -1):
        met[work, 1] = True
        for done in range(width):
            if met[work, done]:
                for i in range(1, work):
                    met[work - i, done + i + 1] = True
    return met


@njit(cache=True)
def _recursion(job, cdf):  # type: ignore[no-untyped-def]  # compiled
    """E, the chosen intervals, and the states met; the state after a loss, d = 1, comes first of its row."""
    width = 2 * job + 3
    met = _met(job, width)
    expected, intervals = np.zeros((job + 1, width)), np.zeros((job + 1, width), np.int64)
    for work in range(1, job + 1):
        for turn in range(width):
            done = 1 if turn == 0 else 0 if turn == 1 else turn
            best, chosen = np.inf, 0
            for i in range(1, work + 1 if met[work, done] else 1):
                lived = max(0.0, 1.0 - (cdf[done + i + 1] - cdf[done]))
                lost = (i + 1) / 2.0 + 1.0
                if done == 1:
                    failed = (1.0 - lived) / (lived if lived > 0.0 else 1.0) * lost
                else:
                    failed = (1.0 - lived) * (lost + expected[work, 1])
                value = max(lived * (i + 1.0 + expected[work - i, min(done + i + 1, width - 1)]) + failed, float(work))
                if value < best:
                    best, chosen = value, i
            expected[work, done], intervals[work, done] = best, chosen
    return expected, intervals, met
