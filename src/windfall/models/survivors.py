"""What is left of a shape when machines vanish: exact distributions, in place of draws.

`lost` of all machines vanish, any of them with equal probability; a shape of D pipelines and P stages uses D P of them, the
others are spares.  The number of ways in which no stage loses more than m of its D replicas is a coefficient,

    [x^lost] (sum_{i <= m} C(D, i) x^i)^P (1 + x)^(N - D P),   over C(N, lost)

and that in which exactly j pipelines lose nothing is C(D, j) [x^lost] ((1 + x)^P - 1)^(D - j) (1 + x)^(N - D P).

No two neighbours of a pipeline are lost, where the first stage follows the last, in a number of ways that is the coefficient of

    [x^lost] (sum_j P / (P - j) C(P - j, j) x^j)^D (1 + x)^(N - D P)

Example (Parcae's): 2 of 6 machines vanish; of 2 pipelines with 3 stages one is left whole with probability 0.4, of 3 pipelines
with 2 stages two with 0.2 and one with 0.8.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import njit

from windfall.errors import Misuse
from windfall.models.shapes import IDLE, Floats, Integers, Shape

MACHINES_MAX: Final = 1_000
"""Binomial coefficients of more machines do not fit a floating-point number."""


def replicas_left(shape: Shape, machines: int, lost: int) -> Floats:
    """Return the probabilities that every stage keeps at least d replicas, by d from 0 to D [1]."""
    _check(shape, machines, lost)
    allowed = _within(np.array([shape.pipelines]), np.array([shape.stages]), machines, lost)[0]
    found = np.ones(shape.pipelines + 1)
    for kept in range(shape.pipelines + 1):
        losses = shape.pipelines - kept
        found[kept] = allowed[losses] if losses <= lost else 1.0
    return found


def pipelines_left(shape: Shape, machines: int, lost: int) -> Floats:
    """Return the probabilities that exactly j pipelines lose nothing, by j from 0 to D [1]."""
    _check(shape, machines, lost)
    return np.asarray(_untouched(shape.pipelines, shape.stages, machines, lost))


def neighbours_left(shape: Shape, machines: int, lost: int) -> float:
    """Return the probability that no two neighbours of a pipeline are lost; the first stage follows the last [1].

    Example:
        Of one pipeline of 4 stages 2 are lost: 2 of 6 pairs are no neighbours. Of one of 2 stages both always are.
    """
    _check(shape, machines, lost)
    stages, size = shape.stages, lost + 1
    if shape == IDLE:
        return 1.0
    apart = [math.comb(stages - j, j) * stages // (stages - j) if 2 * j <= stages else 0 for j in range(size)]
    if stages == 1:  # its own neighbour
        apart = [1, *(0,) * lost]
    ways = [math.comb(machines - shape.machines, j) for j in range(size)]
    for _ in range(shape.pipelines):
        ways = [sum(apart[i] * ways[j - i] for i in range(j + 1)) for j in range(size)]
    return ways[lost] / math.comb(machines, lost)


def within_losses(pipelines: Integers, stages: Integers, machines: int, lost: int) -> Floats:
    """Return the probabilities that no stage loses more than m replicas, by shape and m from 0 to `lost` [1].

    A shape without machines, or with more than there are, has probability 1.
    """
    _check(Shape(0, 0), machines, lost)
    return np.asarray(_within(pipelines, stages, machines, lost))


def _check(shape: Shape, machines: int, lost: int) -> None:
    if machines > MACHINES_MAX:
        raise Misuse(f"{machines} machines: survivors are computed for at most {MACHINES_MAX}")
    if not 0 <= lost <= machines or shape.machines > machines:
        raise Misuse(
            f"{lost} of {machines} machines vanish and shape {shape} used {shape.machines}: write no more than there are"
        )


@njit(cache=True, nogil=True)
def _binomials(n: int, size: int) -> Any:
    found = np.zeros(size)
    term = 1.0
    for i in range(min(n, size - 1) + 1):
        found[i] = term
        term *= (n - i) / (i + 1.0)
    return found


@njit(cache=True, nogil=True)
def _multiplied(left: Any, right: Any, most: int) -> Any:
    """Return the product without its powers above the size of `left`; `right` has none above `most`."""
    size = len(left)
    found = np.zeros(size)
    for i in range(min(most, size - 1) + 1):
        if right[i] != 0.0:
            for j in range(size - i):
                found[i + j] += right[i] * left[j]
    return found


@njit(cache=True, nogil=True)
def _within(pipelines: Any, stages: Any, machines: int, lost: int) -> Any:
    size = lost + 1
    found = np.ones((len(pipelines), size))
    total = _binomials(machines, size)[lost]
    deepest = np.zeros(pipelines.max() + 1, np.int64)
    for i in range(len(pipelines)):
        if 0 < pipelines[i] * stages[i] <= machines:
            deepest[pipelines[i]] = max(deepest[pipelines[i]], stages[i])
    for replicas in range(1, len(deepest)):
        if deepest[replicas] == 0:
            continue
        ways = _binomials(replicas, size)
        for m in range(min(replicas, size)):
            powers = np.zeros((deepest[replicas] + 1, size))
            powers[0, 0] = 1.0
            for depth in range(deepest[replicas]):
                powers[depth + 1] = _multiplied(powers[depth], ways, m)
            for i in range(len(pipelines)):
                if pipelines[i] == replicas and 0 < replicas * stages[i] <= machines:
                    spare = _binomials(machines - replicas * stages[i], size)
                    chance = 0.0
                    for x in range(size):
                        chance += powers[stages[i], x] * spare[lost - x]
                    found[i, m] = min(chance / total, 1.0)
    return found


@njit(cache=True, nogil=True)
def _untouched(pipelines: int, stages: int, machines: int, lost: int) -> Any:
    size = lost + 1
    found = np.zeros(pipelines + 1)
    total = _binomials(machines, size)[lost]
    hit = _binomials(stages, size)
    hit[0] = 0.0
    ways = _binomials(machines - pipelines * stages, size)
    chosen = _binomials(pipelines, pipelines + 1)
    for touched in range(pipelines + 1):
        found[pipelines - touched] = chosen[touched] * ways[lost] / total
        ways = _multiplied(ways, hit, size - 1)
    return found
