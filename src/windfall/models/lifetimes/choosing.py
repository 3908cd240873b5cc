"""Which law to use: the one that best predicts lives it was not fitted to.

**Held-out likelihood.**  Launch batches are dealt to five folds; each law is fitted to four and predicts the fifth.  The sum
of log-likelihoods of all lives, each predicted by a fit that never saw its batch, is the score.  A law of many parameters
gains nothing by following noise.  Batches stay whole, because machines that were launched together share their fate.

**Paired bootstrap.**  The difference of two laws' scores is a sum over batches; batches are drawn again with replacement,
and the middle 95 % of the sums are its interval.

**The rule.**  The best score is taken, unless a law with fewer parameters is not surely worse (the interval of the
difference includes 0); then the one of these with the fewest.

Groups have a rule of their own: `grouping`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windfall.models.lifetimes import fitting, goodness
from windfall.models.lifetimes.fitting import Bounds
from windfall.models.lifetimes.kaplan import KaplanMeier, kaplan_meier
from windfall.models.lifetimes.law import Floats, Law
from windfall.models.lifetimes.lives import FOLDS, Lives, folds, uniforms
from windfall.models.lifetimes.piecewise import fit_piecewise

LOSSES_MIN = 10
"""With fewer losses, or losses in fewer than 5 batches, laws cannot be compared: the exponential is used."""
BOOTSTRAPS = 2000
LEVEL = 0.025
"""Share of the bootstrap's sums on each side of its interval."""
_FAR_FROM_KAPLAN = 0.1
_CHANCE = 1.358
"""Over the root of the number of lives: how far chance alone takes observed survival off the true law's, 19 times in 20
(Kolmogorov's limit; batches count as one life)."""

Fitter = Callable[[Lives, Bounds], Law]
FAMILIES: tuple[tuple[str, Fitter], ...] = (
    ("exponential", fitting.fit_exponential),
    ("weibull", fitting.fit_weibull),
    ("gompertz-makeham", fitting.fit_gompertz_makeham),
    ("blended", fitting.fit_blended),
    ("bathtub", fitting.fit_bathtub),
    ("piecewise", lambda lives, _: fit_piecewise(lives)),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A difference of two held-out log-likelihoods, with the bootstrap's interval.

    Attributes:
        better, worse: names of the laws.
        gain: how much more likely all lives are under `better` [nats].
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
class Candidate:
    """A law that was fitted and compared.

    Attributes:
        law: fitted to all lives.
        log_likelihood: of all lives under it, lives in seconds [nats].
        held_out: each life's log-likelihood under the fit that did not see its batch [nats].
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
        """The held-out log-likelihood of all lives [nats]; nan if laws could not be compared."""
        return float(np.sum(self.held_out))

    @property
    def aic(self) -> float:
        """Akaike's criterion: 2 parameters - 2 log-likelihood."""
        return 2.0 * self.parameters - 2.0 * self.log_likelihood


@dataclass(frozen=True, eq=False, slots=True)
class Fit:
    """What lives say about how machines of their kind are lost.

    Attributes:
        lives: what it rests on.
        kaplan: the lives without a law.
        candidates: every law, the best score first.
        law: the chosen one.
        comparisons: the chosen one against each other law.
        reason: why it was chosen.
        doubts: why it should not be trusted; empty if there is no reason.  Who plans by it falls back to the default rule then.
        seed: of the bootstrap.
    """

    lives: Lives
    kaplan: KaplanMeier
    candidates: tuple[Candidate, ...]
    law: Law
    comparisons: tuple[Comparison, ...]
    reason: str
    doubts: tuple[str, ...]
    seed: int

    @property
    def chosen(self) -> Candidate:
        """The chosen law as it was compared."""
        return next(candidate for candidate in self.candidates if candidate.law is self.law)

    @property
    def trusted(self) -> bool:
        """Whether there is no reason to doubt it."""
        return not self.doubts


def fit_lives(
    lives: Lives,
    *,
    bounds: Bounds | None = None,
    seed: int = 0,
    families: tuple[tuple[str, Fitter], ...] = FAMILIES,
) -> Fit:
    """Fit every law to lives, compare them on held-out batches, and choose one.

    Bounded laws are told the oldest age of all lives, of the held-out ones too: otherwise one machine that outlived the others
    would be impossible under them and settle the comparison.  This favours them.

    Args:
        lives: from `lives_of`.
        bounds: what is known of the provider's limit.
        seed: of the bootstrap.
        families: which laws to compare.

    Raises:
        Misuse: no life ended in a loss.
    """
    bounds = Bounds() if bounds is None else bounds
    bounds = dataclasses.replace(bounds, end_s=lives.oldest_s if bounds.end_s is None else bounds.end_s)
    kaplan = kaplan_meier(lives)
    lossy = len(np.unique(lives.batch[lives.lost]))
    if lives.losses < LOSSES_MIN or lossy < FOLDS:
        only = _candidate(lives, fitting.fit_exponential, bounds, kaplan, None)
        doubt = f"{lives.losses} losses in {lossy} launch batches are too few to compare laws: it takes {LOSSES_MIN} in {FOLDS}"
        return Fit(lives, kaplan, (only,), only.law, (), "the simplest law, for want of data", (doubt,), seed)
    fold = folds(lives)
    found = [_candidate(lives, fit, bounds, kaplan, fold) for _, fit in families]
    ranked = tuple(sorted(found, key=lambda candidate: -candidate.score))
    chosen, reason = _choose(ranked, lives, seed)
    others = tuple(
        compare(chosen, candidate, lives.batch, seed=seed) for candidate in ranked if candidate is not chosen
    )
    return Fit(lives, kaplan, ranked, chosen.law, others, reason, _doubts(chosen, lives.batches), seed)


def _candidate(
    lives: Lives, fit: Fitter, bounds: Bounds, kaplan: KaplanMeier, fold: NDArray[np.int64] | None
) -> Candidate:
    law = fit(lives, bounds)
    held_out = np.full(len(lives), math.nan)
    fold_laws: list[Law] = []
    outs = [] if fold is None else [fold == index for index in range(int(fold.max()) + 1)]
    for out in outs:
        fold_laws.append(fit(lives.where(~out), bounds))
        held_out[out] = fitting.log_likelihoods(fold_laws[-1], lives.where(out))
    total = float(np.sum(fitting.log_likelihoods(law, lives)))
    return Candidate(law, total, held_out, goodness.ks_to_kaplan(law, kaplan), tuple(fold_laws))


def _choose(ranked: tuple[Candidate, ...], lives: Lives, seed: int) -> tuple[Candidate, str]:
    best = ranked[0]
    simpler = [
        candidate
        for candidate in ranked[1:]
        if _size(candidate) < _size(best) and not compare(best, candidate, lives.batch, seed=seed).sure
    ]
    if not simpler:
        return best, "the highest held-out likelihood"
    chosen = min(simpler, key=_size)
    return chosen, (
        f"with {_numbers(chosen.parameters)} it predicts held-out lives as well as the {best.name} law "
        f"with {_numbers(best.parameters)}, as far as {lives.batches} launch batches can tell"
    )


def _size(candidate: Candidate) -> tuple[int, int]:
    """How complicated a law is: its parameters, then its place in `FAMILIES` (one stretch of constant hazard has a name)."""
    return candidate.parameters, [name for name, _ in FAMILIES].index(candidate.name)


def _numbers(count: int) -> str:
    return f"{count} number{'s' * (count != 1)}"


def _doubts(chosen: Candidate, batches: int) -> tuple[str, ...]:
    if chosen.ks <= max(_FAR_FROM_KAPLAN, _CHANCE / math.sqrt(batches)):
        return ()
    return (
        f"the {chosen.name} law, the best of those tried, is off from the observed survival by up to {chosen.ks:.2f}",
    )


def compare(
    better: Candidate, worse: Candidate, batch: NDArray[np.int64], *, seed: int, level: float = LEVEL
) -> Comparison:
    """Compare two candidates' held-out likelihoods by a paired bootstrap over batches."""
    gains = better.held_out - worse.held_out
    return bootstrap(gains, batch, better=better.name, worse=worse.name, seed=seed, level=level)


def bootstrap(
    gains: Floats, batch: NDArray[np.int64], *, better: str, worse: str, seed: int, level: float = LEVEL
) -> Comparison:
    """Return the sum of each life's gain, with its interval when batches are drawn again with replacement."""
    index = np.unique(batch, return_inverse=True)[1]
    by_batch = np.bincount(index, weights=gains)
    count = len(by_batch)
    drawn = (uniforms(seed, BOOTSTRAPS * count) * count).astype(np.int64).reshape(BOOTSTRAPS, count)
    sums = np.sum(by_batch[drawn], axis=1)
    # Between two sums that are infinite there is nothing to interpolate.
    low, high = np.quantile(sums, [level, 1 - level], method="linear" if np.all(np.isfinite(sums)) else "inverted_cdf")
    return Comparison(better, worse, float(np.sum(gains)), float(low), float(high))
