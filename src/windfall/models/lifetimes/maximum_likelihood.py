"""Fit a law to censored lifetimes by maximum likelihood.

The likelihood of a law for n lifetimes is

    log L = sum over losses of log f(t_i) + sum over censored lifetimes of log S(t_i)

A machine that its user stopped shows that it lasted at least this long.  Leaving it out, as SciSpot did, makes short
lifetimes look frequent: on its data a machine of 32 cores then lasts 6.7 h on average, and 13.7 h if the stopped ones
count.

Each fit searches from several fixed starting points by Nelder and Mead's simplex in the logarithms of the parameters and
takes the best; it is deterministic.  (With at most five parameters this is as fast as following gradients, copes with the
flat valleys of laws that have a parameter too many, and starts no threads of a linear algebra library.)
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
from windfall.models.lifetimes.families import Bathtub, Blended, Exponential, GompertzMakeham, Weibull, fit_piecewise
from windfall.models.lifetimes.lifetime_law import Floats, Law
from windfall.models.lifetimes.observations import Lifetimes

_WHOLE_HOUR_S = 3600.0
_LATE_S = 300.0
"""A limit of whole hours is recognised if losses start at most this long after it [s]."""
_RISE = 2.0
"""The smallest factor by which the hazard rises at a limit."""
_WORST = 1e12
_PATIENCE = {"xatol": 1e-5, "fatol": 1e-7, "maxfev": 4000}

Vector = tuple[float, ...]
_L = TypeVar("_L", bound=Law)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of the machines in advance, besides their lifetimes.

    Attributes:
        limit_s: the provider's age limit, after which it reclaims [s] (24 h for Google's preemptible machines); None: find
            it in the data, if there is one.
        end_s: the age that no machine outlives [s], for laws that need one; None: the oldest observed age.
    """

    limit_s: float | None = None
    end_s: float | None = None


def log_likelihoods(law: Law, lifetimes: Lifetimes) -> Floats:
    """Return each lifetime's log-likelihood: log f (per second) of a loss, log S of a censored one."""
    lost = lifetimes.lost
    found = np.empty(len(lifetimes))
    found[lost] = law.log_density(lifetimes.duration_s[lost])
    found[~lost] = law.log_survival(lifetimes.duration_s[~lost])
    return found


def fit_exponential(lifetimes: Lifetimes, bounds: Bounds = Bounds()) -> Exponential:
    """Fit losses / total lifetime: the maximum in closed form.

    Raises:
        Misuse: no lifetime ended in a loss.
    """
    del bounds
    _need_losses(lifetimes)
    return Exponential(lifetimes.losses / float(np.sum(lifetimes.duration_s)), observed_s=lifetimes.oldest_s)


def fit_weibull(lifetimes: Lifetimes, bounds: Bounds = Bounds()) -> Weibull:
    """Fit scale and shape.

    Raises:
        Misuse: no lifetime ended in a loss.
    """
    del bounds
    mean_s, oldest_s = _mean_s(lifetimes), lifetimes.oldest_s

    def build(vector: Vector) -> Weibull:
        return Weibull(mean_s * math.exp(vector[0]), math.exp(vector[1]), observed_s=oldest_s)

    starts = ((0.0, math.log(0.5)), (0.0, 0.0), (0.5, math.log(3.0)))
    return _search(build, lifetimes, starts, ((-12.0, 25.0), (math.log(0.05), math.log(200.0))))


def fit_gompertz_makeham(lifetimes: Lifetimes, bounds: Bounds = Bounds()) -> GompertzMakeham:
    """Fit the floor, the ageing and its growth; the search uses the hazard at the oldest age, which is well determined.

    Raises:
        Misuse: no lifetime ended in a loss.
    """
    del bounds
    mean_s, oldest_s = _mean_s(lifetimes), lifetimes.oldest_s

    def build(vector: Vector) -> GompertzMakeham:
        growth_s = oldest_s * math.exp(-vector[2])
        ageing = math.exp(vector[1] - oldest_s / growth_s) / mean_s
        return GompertzMakeham(math.exp(vector[0]) / mean_s, ageing, growth_s, observed_s=oldest_s)

    starts = ((-3.0, 1.0, 0.0), (-0.5, 1.0, math.log(10.0)), (-0.5, 1.0, math.log(80.0)))
    return _search(build, lifetimes, starts, ((-14.0, 3.0), (-14.0, 12.0), (-4.0, math.log(600.0))))


def fit_blended(lifetimes: Lifetimes, bounds: Bounds = Bounds()) -> Blended:
    """Fit SciSpot's blended exponential, normalised to end at `bounds.end_s` or at the oldest observed age.

    Raises:
        Misuse: no lifetime ended in a loss, or one is longer than `bounds.end_s`.
    """
    mean_s, oldest_s = _mean_s(lifetimes), lifetimes.oldest_s
    end_s = oldest_s if bounds.end_s is None else bounds.end_s
    if end_s < oldest_s:
        raise Misuse(f"lifetimes: a machine lasted {oldest_s:.0f} s, longer than the given end of {end_s:.0f} s")

    def build(vector: Vector) -> Blended:
        share = 1 / (1 + math.exp(-vector[0]))
        tau1_s, tau2_s = mean_s * math.exp(vector[1]), end_s * math.exp(vector[2])
        return Blended.mixed(share, tau1_s, tau2_s, end_s=end_s, observed_s=oldest_s)

    starts = itertools.product((-0.5,), (-2.0, 0.0), (-4.0, -1.5))
    return _search(build, lifetimes, starts, ((-12.0, 12.0), (-9.0, 5.0), (-7.0, 3.0)))


def fit_bathtub(lifetimes: Lifetimes, bounds: Bounds = Bounds()) -> Bathtub:
    """Fit infancy, floor and reclaim.

    If the limit is not given, the candidates are the ages at which the piecewise hazard at least doubles; a whole hour at
    most 5 minutes before such an age replaces it, because providers' limits are whole hours and enforced late.  The
    likelihood decides, and no limit is one of the choices.  A limit costs three parameters, so that it must gain 1.5
    log(losses).

    Raises:
        Misuse: no lifetime ended in a loss.
    """
    _need_losses(lifetimes)
    if bounds.limit_s is not None:
        return _fit_bathtub_at(lifetimes, bounds.limit_s)
    price = 1.5 * math.log(max(lifetimes.losses, 2))
    tried = [_fit_bathtub_at(lifetimes, limit_s) for limit_s in (math.inf, *_limits(lifetimes))]
    return max(tried, key=lambda law: _total(law, lifetimes) - price * (law.limit_s < math.inf))


def _limits(lifetimes: Lifetimes) -> list[float]:
    law = fit_piecewise(lifetimes)
    risen = [
        age
        for age, before, after in zip(law.breakpoints_s, law.rates_per_s, law.rates_per_s[1:], strict=False)
        if after >= _RISE * before
    ]
    return sorted({_whole_hour(age) for age in risen})


def _whole_hour(age_s: float) -> float:
    hour_s = age_s // _WHOLE_HOUR_S * _WHOLE_HOUR_S
    return hour_s if hour_s > 0 and age_s - hour_s <= _LATE_S else age_s


def _fit_bathtub_at(lifetimes: Lifetimes, limit_s: float) -> Bathtub:
    mean_s, oldest_s = _mean_s(lifetimes), lifetimes.oldest_s
    past = lifetimes.duration_s[lifetimes.lost & (lifetimes.duration_s > limit_s)] - limit_s

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
    return _search(build, lifetimes, starts, ranges)


def _search(
    build: Callable[[Vector], _L], lifetimes: Lifetimes, starts: Iterable[Vector], ranges: Sequence[tuple[float, float]]
) -> _L:
    """Return the law with the highest likelihood found from the starting points."""
    lost_s, censored_s = lifetimes.duration_s[lifetimes.lost], lifetimes.duration_s[~lifetimes.lost]

    def loss(vector: Floats) -> float:
        law = build(tuple(vector.tolist()))
        with np.errstate(invalid="ignore"):
            total = float(np.sum(law.log_density(lost_s)) + np.sum(law.log_survival(censored_s)))
        return -total if math.isfinite(total) else _WORST

    found = [optimize.minimize(loss, start, method="Nelder-Mead", bounds=ranges, options=_PATIENCE) for start in starts]
    best = min(found, key=lambda result: float(result.fun))
    return build(tuple(best.x.tolist()))


def _total(law: Law, lifetimes: Lifetimes) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.sum(log_likelihoods(law, lifetimes)))


def _need_losses(lifetimes: Lifetimes) -> None:
    if not lifetimes.losses:
        raise Misuse("lifetimes: none ended in a preemption, so no law can be fitted; wait for the first loss")


def _mean_s(lifetimes: Lifetimes) -> float:
    """Mean time to preemption of the exponential fit [s]: the scale of all searches."""
    _need_losses(lifetimes)
    return float(np.sum(lifetimes.duration_s)) / lifetimes.losses
