"""Fits as in the papers: least squares on the distribution of the preempted machines alone.

For comparison with published numbers.  Machines that their users stopped are left out, which biases every result towards
short lifetimes; `maximum_likelihood` does not do that.  The empirical distribution gives the i-th of n sorted lifetimes
(from 0) the ordinate i / (n - 1).

Source:
    SciSpot, draft 2019, section 3, and the authors' notebooks; bounds of the blended form as in these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from windfall.errors import Misuse
from windfall.models.lifetimes.families import BlendedAsPrinted, Exponential, GompertzMakeham, Weibull
from windfall.models.lifetimes.lifetime_law import Floats
from windfall.models.lifetimes.model_selection import ks_to_sample, r_squared
from windfall.models.lifetimes.observations import Lifetimes

HOUR_S = 3600.0
LOSSES_MIN = 5

Printed = BlendedAsPrinted | Exponential | Weibull | GompertzMakeham


@dataclass(frozen=True, slots=True)
class PublishedFit:
    """A fit to the preempted machines alone.

    Attributes:
        curve: the fitted curve.
        losses: how many preempted machines there were.
        r2: share of the empirical distribution's variance that it explains.
        ks: largest distance between the two distributions (Kolmogorov-Smirnov).
    """

    curve: Printed
    losses: int
    r2: float
    ks: float


@dataclass(frozen=True, slots=True)
class _Form:
    build: Callable[[Floats], Printed]
    starts: tuple[tuple[float, ...], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def _blended(x: Floats) -> BlendedAsPrinted:
    return BlendedAsPrinted(float(x[0]), float(x[1]) * HOUR_S, float(x[2]) * HOUR_S, float(x[3]) * HOUR_S)


def _gompertz(x: Floats) -> GompertzMakeham:
    """From log(lambda), log of the ageing hazard at 24 h, log(beta); rates per hour."""
    growth_h = math.exp(-float(x[2]))
    ageing = math.exp(float(x[1]) - 24.0 / growth_h)
    return GompertzMakeham(math.exp(float(x[0])) / HOUR_S, ageing / HOUR_S, growth_h * HOUR_S)


_FORMS = (
    (
        "blended",
        _Form(
            _blended,
            ((0.4, 24.0, 1.0, 0.8), (0.3, 24.0, 2.0, 0.3), (0.6, 28.0, 0.6, 4.0), (0.6, 25.0, 8.0, 0.5)),
            (0.1, 10.0, 0.1, 0.1),
            (1.0, 100.0, 10.0, 5.0),
        ),
    ),
    ("exponential", _Form(lambda x: Exponential(math.exp(float(x[0])) / HOUR_S), ((-3.0,), (-1.0,)), (-9.0,), (5.0,))),
    (
        "weibull",
        _Form(
            lambda x: Weibull(math.exp(float(x[0])) * HOUR_S, math.exp(float(x[1]))),
            ((2.5, -0.7), (2.5, 0.0), (3.2, 3.5)),
            (-4.0, -3.0),
            (9.0, 5.0),
        ),
    ),
    (
        "gompertz-makeham",
        _Form(
            _gompertz,
            ((-3.0, 0.0, 1.2), (-3.0, 0.0, 0.0), (-2.0, -3.0, -1.0), (-3.0, 2.0, 2.0)),
            (-12.0, -12.0, -5.0),
            (3.0, 8.0, 3.2),
        ),
    ),
)
FORMS = tuple(name for name, _ in _FORMS)


def fit_as_published(lifetimes: Lifetimes, form: str) -> PublishedFit:
    """Fit one of `FORMS` by least squares to the distribution of the preempted machines, as the papers do.

    Args:
        lifetimes: the observed ones; censored ones are left out.
        form: `blended` (as printed), `exponential`, `weibull` or `gompertz-makeham`.

    Raises:
        Misuse: there is no such form, or fewer than 5 machines were preempted.
    """
    if form not in FORMS:
        raise Misuse(f"there is no published form {form!r}: use one of {', '.join(FORMS)}")
    sample = np.sort(lifetimes.duration_s[lifetimes.lost])
    if len(sample) < LOSSES_MIN:
        raise Misuse(
            f"lifetimes: only {len(sample)} machines were preempted; a fit of their distribution needs {LOSSES_MIN}"
        )
    shape = dict(_FORMS)[form]
    ordinate = np.arange(len(sample)) / (len(sample) - 1)

    def residuals(vector: Floats) -> Floats:
        return shape.build(vector).cdf(sample) - ordinate

    found = [optimize.least_squares(residuals, x, bounds=(shape.low, shape.high), x_scale="jac") for x in shape.starts]
    curve = shape.build(min(found, key=lambda result: float(result.cost)).x)
    return PublishedFit(curve, len(sample), r_squared(curve.cdf, sample), ks_to_sample(curve.cdf, sample))
