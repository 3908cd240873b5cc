"""Select the law that best predicts lifetimes it was not fitted to.

**Held-out likelihood.**  Launch batches are dealt to five folds; each law is fitted to four and predicts the fifth.  The
score is the sum of log-likelihoods of all lifetimes, each predicted by a fit without its batch.  A law of many parameters
gains nothing by following noise.  Batches stay whole, because machines that were launched together share their fate.

**Paired bootstrap.**  The difference of two laws' scores is a sum over batches; batches are resampled with replacement,
and the middle 95 % of the sums are its interval.

**The rule.**  The best score wins, unless a law with fewer parameters is not significantly worse (the interval of the
difference includes 0); then the one of these with the fewest wins.

Groups have their own rule: see `groups`.

Goodness of fit: the papers' measures on preempted machines, and a distance to Kaplan-Meier that respects censoring.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windfall.models.lifetimes import maximum_likelihood
from windfall.models.lifetimes.families import fit_piecewise
from windfall.models.lifetimes.lifetime_law import Curve, Floats, Law
from windfall.models.lifetimes.maximum_likelihood import Bounds
from windfall.models.lifetimes.observations import FOLDS, KaplanMeier, Lifetimes, folds, kaplan_meier, uniforms
from windfall.units import count_text


def r_squared(cdf: Callable[[Floats], Floats], sample_s: Floats) -> float:
    """Return 1 - (residual / total sum of squares) of a distribution against the empirical one of uncensored lifetimes.

    The empirical one gives the i-th of n sorted lifetimes, from 0, the ordinate i / (n - 1), as SciSpot does.
    """
    ordered = np.sort(sample_s)
    ordinate = np.arange(len(ordered)) / (len(ordered) - 1)
    missed = float(np.sum((cdf(ordered) - ordinate) ** 2))
    return 1.0 - missed / float(np.sum((ordinate - ordinate.mean()) ** 2))


def ks_to_sample(cdf: Callable[[Floats], Floats], sample_s: Floats) -> float:
    """Return the largest distance to the empirical distribution of uncensored lifetimes, at its steps.

    The ordinates are i / (n - 1), as in `r_squared`.
    """
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


LOSSES_MIN = 10
"""With fewer losses, or losses in fewer than 5 batches, laws cannot be compared: the exponential is used."""
BOOTSTRAPS = 2000
LEVEL = 0.025
"""Share of the bootstrap's sums outside its interval, on each side."""
_FAR_FROM_KAPLAN = 0.1
_CHANCE = 1.358
"""Divided by the root of the number of lifetimes: the distance between observed survival and the true law that chance
alone stays below 19 times in 20 (Kolmogorov's limit; a batch counts as one lifetime)."""

Fitter = Callable[[Lifetimes, Bounds], Law]
FAMILIES: tuple[tuple[str, Fitter], ...] = (
    ("exponential", maximum_likelihood.fit_exponential),
    ("weibull", maximum_likelihood.fit_weibull),
    ("gompertz-makeham", maximum_likelihood.fit_gompertz_makeham),
    ("blended", maximum_likelihood.fit_blended),
    ("bathtub", maximum_likelihood.fit_bathtub),
    ("piecewise", lambda lifetimes, _: fit_piecewise(lifetimes)),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A difference of two held-out log-likelihoods, with the bootstrap's interval.

    Attributes:
        better, worse: names of the laws.
        gain: the log-likelihood of all lifetimes under `better` less that under `worse` [nats].
        low, high: its interval [nats].
    """

    better: str
    worse: str
    gain: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


@dataclass(frozen=True, eq=False, slots=True)
class ModelCandidate:
    """A law that was fitted and compared.

    Attributes:
        law: fitted to all lifetimes.
        log_likelihood: of all lifetimes under it, in seconds [nats].
        held_out: each lifetime's log-likelihood under the fit without its batch [nats].
        ks: largest distance to Kaplan-Meier.
        fold_laws: the five fits.
    """

    law: Law
    log_likelihood: float
    held_out: Floats
    ks: float
    fold_laws: tuple[Law, ...]

    @property
    def name(self) -> str:
        """The law's name."""
        return self.law.name

    @property
    def parameters(self) -> int:
        """How many numbers were fitted."""
        return len(self.law.parameters())

    @property
    def score(self) -> float:
        """The held-out log-likelihood of all lifetimes [nats]; NaN if laws could not be compared."""
        return float(np.sum(self.held_out))

    @property
    def aic(self) -> float:
        """Akaike's criterion: 2 parameters - 2 log-likelihood."""
        return 2.0 * self.parameters - 2.0 * self.log_likelihood


@dataclass(frozen=True, eq=False, slots=True)
class Fit:
    """The selected lifetime law for machines of a kind, with the comparison of all laws.

    Attributes:
        lifetimes: the data.
        kaplan: their Kaplan-Meier estimate.
        candidates: every law, the best score first.
        law: the chosen one.
        comparisons: the chosen one against each other law.
        reason: why it was chosen.
        doubts: why it should not be trusted, so that planning falls back to the default rule; empty if it can be trusted.
        seed: of the bootstrap.
    """

    lifetimes: Lifetimes
    kaplan: KaplanMeier
    candidates: tuple[ModelCandidate, ...]
    law: Law
    comparisons: tuple[Comparison, ...]
    reason: str
    doubts: tuple[str, ...]
    seed: int

    @property
    def chosen(self) -> ModelCandidate:
        """The candidate with the chosen law."""
        return next(candidate for candidate in self.candidates if candidate.law is self.law)

    @property
    def trusted(self) -> bool:
        """Whether there is no reason to doubt it."""
        return not self.doubts


def fit_lifetimes(
    lifetimes: Lifetimes,
    *,
    bounds: Bounds | None = None,
    seed: int = 0,
    families: tuple[tuple[str, Fitter], ...] = FAMILIES,
) -> Fit:
    """Fit every law to lifetimes, compare them on held-out batches, and choose one.

    Bounded laws get the oldest age of all lifetimes, including the held-out ones: otherwise a single machine that outlived
    the others would be impossible under them and decide the comparison.  This favours them.

    Args:
        lifetimes: from `lifetimes_of`.
        bounds: what is known of the provider's limit.
        seed: of the bootstrap.
        families: the laws to compare.

    Raises:
        Misuse: no lifetime ended in a loss.
    """
    bounds = Bounds() if bounds is None else bounds
    bounds = dataclasses.replace(bounds, end_s=lifetimes.oldest_s if bounds.end_s is None else bounds.end_s)
    kaplan = kaplan_meier(lifetimes)
    lossy = len(np.unique(lifetimes.batch[lifetimes.lost]))
    if lifetimes.losses < LOSSES_MIN or lossy < FOLDS:
        only = _candidate(lifetimes, maximum_likelihood.fit_exponential, bounds, kaplan, None)
        losses = count_text(lifetimes.losses, "loss", "losses")
        data = f"{losses} in {count_text(lossy, 'launch batch', 'launch batches')}"
        be = "is" if lifetimes.losses == 1 else "are"
        doubt = f"{data} {be} too few to compare laws: at least {LOSSES_MIN} in {FOLDS} are needed"
        return Fit(
            lifetimes,
            kaplan,
            (only,),
            only.law,
            (),
            "the simplest law, because there is too little data",
            (doubt,),
            seed,
        )
    fold = folds(lifetimes)
    found = [_candidate(lifetimes, fit, bounds, kaplan, fold) for _, fit in families]
    ranked = tuple(sorted(found, key=lambda candidate: -candidate.score))
    chosen, reason = _choose(ranked, lifetimes, seed)
    others = tuple(
        compare(chosen, candidate, lifetimes.batch, seed=seed) for candidate in ranked if candidate is not chosen
    )
    return Fit(lifetimes, kaplan, ranked, chosen.law, others, reason, _doubts(chosen, lifetimes.batches), seed)


def _candidate(
    lifetimes: Lifetimes, fit: Fitter, bounds: Bounds, kaplan: KaplanMeier, fold: NDArray[np.int64] | None
) -> ModelCandidate:
    law = fit(lifetimes, bounds)
    held_out = np.full(len(lifetimes), math.nan)
    fold_laws: list[Law] = []
    outs = [] if fold is None else [fold == index for index in range(int(fold.max()) + 1)]
    for out in outs:
        fold_laws.append(fit(lifetimes.where(~out), bounds))
        held_out[out] = maximum_likelihood.log_likelihoods(fold_laws[-1], lifetimes.where(out))
    total = float(np.sum(maximum_likelihood.log_likelihoods(law, lifetimes)))
    return ModelCandidate(law, total, held_out, ks_to_kaplan(law, kaplan), tuple(fold_laws))


def _choose(ranked: tuple[ModelCandidate, ...], lifetimes: Lifetimes, seed: int) -> tuple[ModelCandidate, str]:
    best = ranked[0]
    simpler = [
        candidate
        for candidate in ranked[1:]
        if _size(candidate) < _size(best) and not compare(best, candidate, lifetimes.batch, seed=seed).sure
    ]
    if not simpler:
        return best, "the highest held-out likelihood"
    chosen = min(simpler, key=_size)
    return chosen, (
        f"with {_numbers(chosen.parameters)} it predicts held-out lifetimes as well as the {best.name} law "
        f"with {_numbers(best.parameters)}, as far as {lifetimes.batches} launch batches can tell"
    )


def _size(candidate: ModelCandidate) -> tuple[int, int]:
    """How complex a law is: its parameters, then its place in `FAMILIES` (one segment is the exponential law)."""
    return candidate.parameters, [name for name, _ in FAMILIES].index(candidate.name)


def _numbers(count: int) -> str:
    return f"{count} number{'s' * (count != 1)}"


def _doubts(chosen: ModelCandidate, batches: int) -> tuple[str, ...]:
    if chosen.ks <= max(_FAR_FROM_KAPLAN, _CHANCE / math.sqrt(batches)):
        return ()
    return (
        f"the {chosen.name} law, the best of those tried, differs from the observed survival by up to {chosen.ks:.2f}",
    )


def compare(
    better: ModelCandidate, worse: ModelCandidate, batch: NDArray[np.int64], *, seed: int, level: float = LEVEL
) -> Comparison:
    """Compare two candidates' held-out likelihoods by a paired bootstrap over batches."""
    gains = better.held_out - worse.held_out
    return bootstrap(gains, batch, better=better.name, worse=worse.name, seed=seed, level=level)


def bootstrap(
    gains: Floats, batch: NDArray[np.int64], *, better: str, worse: str, seed: int, level: float = LEVEL
) -> Comparison:
    """Return the sum of all gains, with its interval from resampling batches with replacement."""
    index = np.unique(batch, return_inverse=True)[1]
    by_batch = np.bincount(index, weights=gains)
    count = len(by_batch)
    drawn = (uniforms(seed, BOOTSTRAPS * count) * count).astype(np.int64).reshape(BOOTSTRAPS, count)
    sums = np.sum(by_batch[drawn], axis=1)
    # Infinite sums cannot be interpolated.
    low, high = np.quantile(sums, [level, 1 - level], method="linear" if np.all(np.isfinite(sums)) else "inverted_cdf")
    return Comparison(better, worse, float(np.sum(gains)), float(low), float(high))
