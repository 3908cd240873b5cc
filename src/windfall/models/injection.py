"""The thesis' preemption injector: the lifetime of each machine of a slot, drawn from a seed alone.

The injector gets a machine and "a list of MTTP values" and takes the machine at intervals "sampled from an
exponential distribution ... parameterized by the given MTTP" (thesis, section 6.2.1).  The list is used as in its Table
6.1, one machine after the other: the lifetime of a slot's first machine is a draw with the first mean, that of its
replacement a draw with the second, and after the last mean the list starts over.
"""

from __future__ import annotations

import functools
import hashlib
import math

from windfall.jobs import Injection
from windfall.terms import Seconds

_BITS = 53
_STEPS_MIN, _STEPS_MAX = 500, 4000
"""How many time steps `mean_mttp_s` uses."""


def lifetime_s(injection: Injection, slot_index: int, n: int) -> Seconds:
    """Return the lifetime of the n-th machine of a slot: x = -MTTP ln(U), U uniform in (0, 1).

    U comes from SHA-256 of (seed, slot, n), so that a draw does not depend on other draws, on the order of calls or on
    the interpreter: a controller that restarts gets the same lifetimes.

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


@functools.lru_cache(maxsize=64)  # offers are compared at each loss, with the same arguments
def mean_mttp_s(injection: Injection, horizon_s: float) -> Seconds:
    """Return the mean time between a slot's preemptions over its first `horizon_s`: horizon / E[preemptions].

    The slot is at one place of the list; from place i it moves to the next at the rate 1 / MTTP_i.  The probabilities of
    the places are integrated in steps of at most a twentieth of the shortest mean (Euler), for at most two hundred
    shortest means, after which the start no longer matters.

    Args:
        injection: its means [s].
        horizon_s: how long the slot is observed [s], > 0.

    Returns:
        [s]; tends to the first mean for short horizons and to the mean of the list for long ones.

    Example:
        90 s and 300 s: 90.6 s over the first second, 195 s in the long run.
    """
    mttps_s = injection.mttp_s
    if len(set(mttps_s)) == 1:
        return mttps_s[0]
    step_s = min(horizon_s / _STEPS_MIN, min(mttps_s) / 20.0)
    steps = min(round(horizon_s / step_s), _STEPS_MAX)
    leaving = [step_s / mean_s for mean_s in mttps_s]
    share = [1.0, *(0.0 for _ in mttps_s[1:])]
    preemptions = 0.0
    for _ in range(steps):
        moving = [here * leave for here, leave in zip(share, leaving, strict=True)]
        preemptions += sum(moving)
        share = [here - gone + moving[place - 1] for place, (here, gone) in enumerate(zip(share, moving, strict=True))]
    return Seconds(steps * step_s / preemptions)
