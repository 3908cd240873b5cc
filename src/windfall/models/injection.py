"""The thesis' preemption injector: how long each machine of a slot lives, drawn from a seed and nothing else.

The injector is given a machine and "a list of MTTP values" and takes the machine at intervals "sampled from an
exponential distribution ... parameterized by the given MTTP" (thesis, section 6.2.1).  The list is read as its Table
6.1 uses it, one machine after the other: the first machine of a slot lives for a draw with the first mean, its
replacement for one with the second, and after the last mean the list begins again.
"""

from __future__ import annotations

import functools
import hashlib
import math

from windfall.jobs import Injection
from windfall.terms import Seconds

_BITS = 53
_STEPS_MIN, _STEPS_MAX = 500, 4000
"""How many steps in time `mean_mttp_s` takes."""


def life_s(injection: Injection, slot_index: int, n: int) -> Seconds:
    """Return how long the n-th machine of a slot lives: x = -MTTP ln(U), U uniform in (0, 1).

    U comes from SHA-256 of (seed, slot, n), so that a draw depends on no other draw, on no order of calls and on no
    interpreter: a controller that restarts gets the same lives again.

    Args:
        injection: means [s] and seed.
        slot_index: which of the job's slots.
        n: which machine of that slot, from 1.

    Returns:
        From the machine's start until it is preempted (until its notice, if there is one) [s], > 0.

    Source:
        Thesis, equation 6.1: f(x) = exp(-x / MTTP) / MTTP; inverse transform of its survival function.
    """
    assert n >= 1, "machines of a slot are counted from 1"
    words = f"windfall injection {injection.seed} {slot_index} {n}".encode()
    bits = int.from_bytes(hashlib.sha256(words).digest()[:8], "big") >> (64 - _BITS)
    uniform = (bits + 0.5) / (1 << _BITS)
    mean_s = injection.mttp_s[(n - 1) % len(injection.mttp_s)]
    return Seconds(-mean_s * math.log(uniform))


@functools.lru_cache(maxsize=64)  # offers are compared with each loss, and each asks the same
def mean_mttp_s(injection: Injection, horizon_s: float) -> Seconds:
    """Return the mean time between a slot's preemptions over its first `horizon_s`: horizon / E[preemptions].

    The slot is at one place of the list; at place i it moves on at the rate 1 / MTTP_i.  The shares of the places are
    followed in steps of at most a twentieth of the shortest mean (Euler), for at most two hundred shortest means, after
    which the slot has forgotten where it began.

    Args:
        injection: its means [s].
        horizon_s: how long the slot is watched [s], > 0.

    Returns:
        [s]; tends to the first mean for short horizons and to the mean of the list for long ones.

    Example:
        90 s and 300 s: 90.6 s over the first second, 195 s in the long run.
    """
    means = injection.mttp_s
    if len(set(means)) == 1:
        return means[0]
    step_s = min(horizon_s / _STEPS_MIN, min(means) / 20.0)
    steps = min(round(horizon_s / step_s), _STEPS_MAX)
    leaving = [step_s / mean_s for mean_s in means]
    share = [1.0, *(0.0 for _ in means[1:])]
    preemptions = 0.0
    for _ in range(steps):
        moving = [here * leave for here, leave in zip(share, leaving, strict=True)]
        preemptions += sum(moving)
        share = [here - gone + moving[place - 1] for place, (here, gone) in enumerate(zip(share, moving, strict=True))]
    return Seconds(steps * step_s / preemptions)
