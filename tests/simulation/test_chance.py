"""Draws by address: each independent of the others, whichever coordinate changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit
from scipy import stats

from windfall.simulation import random_draws

DRAWS, FAMILY = 200_000, 0.001


@njit
def _uniforms(seed, along):
    """Draws whose trial, machine or kind is next to the last one's: `along` 0, 1, 2."""
    out = np.empty(DRAWS)
    for n in range(DRAWS):
        trial, what, which = (n, 4, 0) if along == 0 else (7, 4, n) if along == 1 else (n // 4, 4 + n % 4, 3)
        out[n] = random_draws.uniform(random_draws.key(seed, trial), what, which)
    return out


@njit
def _exponentials(seed):
    out = np.empty(DRAWS)
    for n in range(DRAWS):
        out[n] = random_draws.exponential(random_draws.key(seed, n // 50), random_draws.LIFE, n % 50)
    return out


@pytest.mark.parametrize("along", [0, 1, 2])
def test_uniform_draws_are_uniform_and_neighbours_independent(along):
    """Along trials, machines and kinds of draws: 100 even cells, and 20 by 20 even cells of a draw and the next."""
    drawn = _uniforms(np.uint64(3), along)
    cells = np.bincount((drawn * 100).astype(int), minlength=100)
    pairs = np.bincount((drawn[:-1] * 20).astype(int) * 20 + (drawn[1:] * 20).astype(int), minlength=400)
    assert stats.chisquare(cells).pvalue > FAMILY
    assert stats.chisquare(pairs).pvalue > FAMILY


def test_exponential_draws_are_exponential_to_the_tail():
    """By Kolmogorov and Smirnov, and in the number of draws beyond 9, where the ziggurat's layers are over."""
    drawn = _exponentials(np.uint64(4))
    assert stats.kstest(drawn, "expon").pvalue > FAMILY
    assert stats.binomtest(int((drawn > 9.0).sum()), DRAWS, math.exp(-9.0)).pvalue > FAMILY
