"""How well a law fits: the papers' measures on preempted machines, and distances to Kaplan-Meier that know censoring."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from windfall.models.lifetimes.kaplan import KaplanMeier
from windfall.models.lifetimes.law import Curve, Floats


def r_squared(cdf: Callable[[Floats], Floats], sample_s: Floats) -> float:
    """Return 1 - (residual / total sum of squares) of a distribution against the empirical one of uncensored lives.

    The empirical one gives the i-th of n sorted lives, from 0, the ordinate i / (n - 1), as SciSpot does.
    """
    ordered = np.sort(sample_s)
    ordinate = np.arange(len(ordered)) / (len(ordered) - 1)
    missed = float(np.sum((cdf(ordered) - ordinate) ** 2))
    return 1.0 - missed / float(np.sum((ordinate - ordinate.mean()) ** 2))


def ks_to_sample(cdf: Callable[[Floats], Floats], sample_s: Floats) -> float:
    """Return the largest distance to the empirical distribution of uncensored lives, at its steps (ordinates i / (n - 1))."""
    ordered = np.sort(sample_s)
    ordinate = np.arange(len(ordered)) / (len(ordered) - 1)
    return float(np.max(np.abs(cdf(ordered) - ordinate)))


def ks_to_kaplan(curve: Curve, kaplan: KaplanMeier) -> float:
    """Return the largest distance between a survival function and Kaplan-Meier's, before and after each of its steps."""
    at = np.asarray(kaplan.ages_s)
    after = kaplan.steps()
    before = np.concatenate([[1.0], after[:-1]])
    alive = curve.survival(at)
    return float(max(np.max(np.abs(alive - after)), np.max(np.abs(alive - before))))


def r_squared_to_kaplan(curve: Curve, kaplan: KaplanMeier) -> float:
    """Return the share of Kaplan-Meier's variance that a law explains, each step weighted by the probability it carries."""
    after = kaplan.steps()
    before = np.concatenate([[1.0], after[:-1]])
    middle, weight = 0.5 * (after + before), before - after
    missed = float(np.sum(weight * (curve.survival(np.asarray(kaplan.ages_s)) - middle) ** 2))
    mean = float(np.sum(weight * middle) / np.sum(weight))
    return 1.0 - missed / float(np.sum(weight * (middle - mean) ** 2))
