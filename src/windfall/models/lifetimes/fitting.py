"""Fitting a law to censored lives by maximum likelihood, and, as a named variant, as the papers did.

The likelihood of a law for n lives is

    log L = sum over losses of log f(t_i) + sum over censored lives of log S(t_i)

A machine that its user stopped says that it lived so long, no more and no less.  To leave it out, as SciSpot did, makes
short lives look frequent: on its data a machine of 32 cores lives 6.7 h on average then, and 13.7 h if the stopped ones
count.

Each fit searches from several fixed starting points by Nelder and Mead's simplex in the logarithms of the parameters and
takes the best: nothing in it is random.  (With at most five parameters this is as fast as following gradients, does not mind
the flat valleys of laws that have a parameter too many, and wakes no threads of a linear algebra library.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import optimize

from windfall.errors import Misuse
from windfall.models.lifetimes.blended import Blended
from windfall.models.lifetimes.families import Bathtub, Exponential, GompertzMakeham, Weibull
from windfall.models.lifetimes.law import Floats, Law
from windfall.models.lifetimes.lives import Lives
from windfall.models.lifetimes.piecewise import fit_piecewise

_WHOLE_HOUR_S = 3600.0
_LATE_S = 300.0
"""A limit of whole hours is recognised if losses set in at most so long after it [s]."""
_RISE = 2.0
"""How many times larger the hazard must become at a limit."""
_WORST = 1e12
_PATIENCE = {"xatol": 1e-5, "fatol": 1e-7, "maxfev": 4000}

Vector = tuple[float, ...]
_L = TypeVar("_L", bound=Law)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of the machines beforehand, beside their lives.

    Attributes:
        limit_s: the provider's limit of age, after which it reclaims [s] (24 h of Google's preemptible machines); None: find it
            in the data, if there is one.
        end_s: the age that no machine outlives [s], for laws that need one; None: the oldest observed age.
    """

    limit_s: float | None = None
    end_s: float | None = None


def log_likelihoods(law: Law, lives: Lives) -> Floats:
    """Return each life's log-likelihood: log f (per second) of a loss, log S of a censored life."""
    lost = lives.lost
    found = np.empty(len(lives))
    found[lost] = law.log_density(lives.duration_s[lost])
    found[~lost] = law.log_survival(lives.duration_s[~lost])
    return found


def fit_exponential(lives: Lives, bounds: Bounds = Bounds()) -> Exponential:
    """Fit losses / life: the maximum in closed form.

    Raises:
        Misuse: no life ended in a loss.
    """
    del bounds
    _need_losses(lives)
    return Exponential(lives.losses / float(np.sum(lives.duration_s)), observed_s=lives.oldest_s)


def fit_weibull(lives: Lives, bounds: Bounds = Bounds()) -> Weibull:
    """Fit scale and shape.

    Raises:
        Misuse: no life ended in a loss.
    """
    del bounds
    mean_s, oldest_s = _mean_s(lives), lives.oldest_s

    def build(vector: Vector) -> Weibull:
        return Weibull(mean_s * math.exp(vector[0]), math.exp(vector[1]), observed_s=oldest_s)

    starts = ((0.0, math.log(0.5)), (0.0, 0.0), (0.5, math.log(3.0)))
    return _search(build, lives, starts, ((-12.0, 25.0), (math.log(0.05), math.log(200.0))))


def fit_gompertz_makeham(lives: Lives, bounds: Bounds = Bounds()) -> GompertzMakeham:
    """Fit the floor, the ageing and its growth; the search sees the hazard at the oldest age, which is well determined.

    Raises:
        Misuse: no life ended in a loss.
    """
    del bounds
    mean_s, oldest_s = _mean_s(lives), lives.oldest_s

    def build(vector: Vector) -> GompertzMakeham:
        growth_s = oldest_s * math.exp(-vector[2])
        ageing = math.exp(vector[1] - oldest_s / growth_s) / mean_s
        return GompertzMakeham(math.exp(vector[0]) / mean_s, ageing, growth_s, observed_s=oldest_s)

    starts = ((-3.0, 1.0, 0.0), (-0.5, 1.0, math.log(10.0)), (-0.5, 1.0, math.log(80.0)))
    return _search(build, lives, starts, ((-14.0, 3.0), (-14.0, 12.0), (-4.0, math.log(600.0))))


def fit_blended(lives: Lives, bounds: Bounds = Bounds()) -> Blended:
    """Fit SciSpot's blended exponential, normalised to end at `bounds.end_s` or with the oldest observed life.

    Raises:
        Misuse: no life ended in a loss, or a life is longer than `bounds.end_s`.
    """
    mean_s, oldest_s = _mean_s(lives), lives.oldest_s
    end_s = oldest_s if bounds.end_s is None else bounds.end_s
    if end_s < oldest_s:
        raise Misuse(f"lifetimes: a machine lived {oldest_s:.0f} s, longer than the given end of {end_s:.0f} s")

    def build(vector: Vector) -> Blended:
        share = 1 / (1 + math.exp(-vector[0]))
        tau1_s, tau2_s = mean_s * math.exp(vector[1]), end_s * math.exp(vector[2])
        return Blended.mixed(share, tau1_s, tau2_s, end_s=end_s, observed_s=oldest_s)

    starts = itertools.product((-0.5,), (-2.0, 0.0), (-4.0, -1.5))
    return _search(build, lives, starts, ((-12.0, 12.0), (-9.0, 5.0), (-7.0, 3.0)))


def fit_bathtub(lives: Lives, bounds: Bounds = Bounds()) -> Bathtub:
    """Fit infancy, floor and reclaim.

    If the limit is not given it is looked for where the piecewise hazard at least doubles; a whole hour at most 5 minutes
    before such an age is taken for it, because providers' limits are whole hours and enforced late.  The likelihood
    decides, and no limit at all is one of the choices.  A limit costs three parameters, so that it must gain 1.5 log(losses).

    Raises:
        Misuse: no life ended in a loss.
    """
    _need_losses(lives)
    if bounds.limit_s is not None:
        return _fit_bathtub_at(lives, bounds.limit_s)
    price = 1.5 * math.log(max(lives.losses, 2))
    tried = [_fit_bathtub_at(lives, limit_s) for limit_s in (math.inf, *_limits(lives))]
    return max(tried, key=lambda law: _total(law, lives) - price * (law.limit_s < math.inf))


def _limits(lives: Lives) -> list[float]:
    law = fit_piecewise(lives)
    risen = [
        age
        for age, before, after in zip(law.kinks_s, law.rates_per_s, law.rates_per_s[1:], strict=False)
        if after >= _RISE * before
    ]
    return sorted({_whole_hour(age) for age in risen})


def _whole_hour(age_s: float) -> float:
    hour_s = age_s // _WHOLE_HOUR_S * _WHOLE_HOUR_S
    return hour_s if hour_s > 0 and age_s - hour_s <= _LATE_S else age_s


def _fit_bathtub_at(lives: Lives, limit_s: float) -> Bathtub:
    mean_s, oldest_s = _mean_s(lives), lives.oldest_s
    past = lives.duration_s[lives.lost & (lives.duration_s > limit_s)] - limit_s

    def build(vector: Vector) -> Bathtub:
        early, early_s, base = math.exp(vector[0]) / mean_s, mean_s * math.exp(vector[1]), math.exp(vector[2]) / mean_s
        if not len(past):
            return Bathtub(early, early_s, base, limit_s=limit_s, observed_s=oldest_s)
        reclaim_s, shape = late_s * math.exp(vector[3]), math.exp(vector[4])
        return Bathtub(early, early_s, base, limit_s, reclaim_s, shape, observed_s=oldest_s)

    ranges: tuple[tuple[float, float], ...] = ((-14.0, 12.0), (-12.0, 4.0), (-14.0, 6.0))
    starts: Iterable[Vector] = [(1.0, -2.0, -1.0), (0.0, -3.5, -0.5)]
    if len(past):
        late_s = float(np.mean(past))
        ranges = (*ranges, (-6.0, 8.0), (0.0, 3.0))
        starts = [(*start, 0.0, 0.1) for start in starts]
    return _search(build, lives, starts, ranges)


def _search(
    build: Callable[[Vector], _L], lives: Lives, starts: Iterable[Vector], ranges: Sequence[tuple[float, float]]
) -> _L:
    """Return the law of the highest likelihood that is found from the starting points."""
    lost_s, censored_s = lives.duration_s[lives.lost], lives.duration_s[~lives.lost]

    def loss(vector: Floats) -> float:
        law = build(tuple(vector.tolist()))
        with np.errstate(invalid="ignore"):
            total = float(np.sum(law.log_density(lost_s)) + np.sum(law.log_survival(censored_s)))
        return -total if math.isfinite(total) else _WORST

    found = [optimize.minimize(loss, start, method="Nelder-Mead", bounds=ranges, options=_PATIENCE) for start in starts]
    best = min(found, key=lambda result: float(result.fun))
    return build(tuple(best.x.tolist()))


def _total(law: Law, lives: Lives) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.sum(log_likelihoods(law, lives)))


def _need_losses(lives: Lives) -> None:
    if not lives.losses:
        raise Misuse("lifetimes: no life ended in a preemption, so that no law can be fitted; wait for the first loss")


def _mean_s(lives: Lives) -> float:
    """Mean time to preemption of the exponential fit [s]: the scale of all searches."""
    _need_losses(lives)
    return float(np.sum(lives.duration_s)) / lives.losses
