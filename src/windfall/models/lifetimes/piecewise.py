"""A hazard that is constant between ages, with the ages chosen by the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from windfall.errors import Misuse
from windfall.models.lifetimes.law import Floats, Law, ages
from windfall.models.lifetimes.lives import Lives

CANDIDATES_MAX = 240
"""At how many ages, spread over the losses, a change of the hazard is looked for."""
LOSSES_MIN = 5
"""How many losses a stretch of constant hazard must hold."""


@dataclass(frozen=True, slots=True)
class Piecewise(Law):
    """Constant hazards between ages; the last one holds for ever.

    Attributes:
        breaks_s: the age at which each stretch begins [s], ascending, the first 0.
        rates_per_s: the hazard in each [1/s], >= 0.
    """

    name: ClassVar[str] = "piecewise"
    breaks_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        assert self.breaks_s[0] == 0
        assert len(self.breaks_s) == len(self.rates_per_s)
        assert all(low < high for low, high in zip(self.breaks_s, self.breaks_s[1:], strict=False))
        assert min(self.rates_per_s) >= 0

    @property
    def kinks_s(self) -> tuple[float, ...]:
        """Where the hazard changes."""
        return self.breaks_s[1:]

    def parameters(self) -> dict[str, float]:
        """Return the breaks and rates, numbered."""
        rates = {f"rate_{index}_per_s": rate for index, rate in enumerate(self.rates_per_s)}
        return rates | {f"break_{index}_s": age for index, age in enumerate(self.breaks_s) if index}

    def _sums(self) -> Floats:
        """Cumulative hazard at each break."""
        spent = np.diff(self.breaks_s) * np.asarray(self.rates_per_s[:-1])
        return np.concatenate([[0.0], np.cumsum(spent)])

    def _stretch(self, age: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
        return np.searchsorted(self.breaks_s, age, side="right") - 1

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t) = -(sum of rate x time spent in each stretch)."""
        age = ages(age_s)
        stretch = self._stretch(age)
        since = age - np.asarray(self.breaks_s)[stretch]
        rates = np.asarray(self.rates_per_s)[stretch]
        return -(self._sums()[stretch] + np.where(rates > 0, rates * since, 0.0))

    def log_hazard(self, age_s: ArrayLike) -> Floats:
        """Return log h(t); a break belongs to the stretch that it begins."""
        with np.errstate(divide="ignore"):
            logs = np.log(np.asarray(self.rates_per_s))
        return np.asarray(logs[self._stretch(ages(age_s))], dtype=np.float64)

    def _age_at(self, hazard: Floats) -> Floats:
        sums = self._sums()
        stretch = np.maximum(np.searchsorted(sums, hazard, side="left") - 1, 0)
        rates = np.asarray(self.rates_per_s)[stretch]
        moving = rates > 0
        more = (hazard - sums[stretch]) / np.where(moving, rates, 1.0)
        here = np.asarray(self.breaks_s)[stretch]
        return np.where(moving, here + more, np.where(hazard > sums[stretch], math.inf, here))


def fit_piecewise(lives: Lives) -> Piecewise:
    """Fit a piecewise constant hazard to censored lives, with as many stretches as the data bear.

    A stretch with d losses in E seconds of life has the rate d / E and the log-likelihood d log(d / E) - d.  Breaks are
    placed at ages of losses so that the sum over all stretches, less 3/2 log(losses) for each break, is largest; an optimal
    partition by dynamic programme, not a greedy one.  The price of a break is that of the modified BIC.

    Raises:
        Misuse: no life ended in a loss.

    Source:
        Zhang and Siegmund, "A modified Bayes information criterion ...", Biometrics 63 (2007), leading term.
    """
    if not lives.losses:
        raise Misuse("lifetimes: no life ended in a preemption, so that no hazard can be fitted")
    losses = np.sort(lives.duration_s[lives.lost])
    coarse = _candidates(losses)
    breaks = _near(losses, coarse, _best(lives, losses, coarse).breaks_s)
    return _best(lives, losses, breaks)


def _candidates(losses: Floats) -> Floats:
    """Ages at which the hazard may change: 0 and, at most, so many ages of losses before the last."""
    return np.concatenate([[0.0], _spread(np.unique(losses[losses < losses[-1]]), CANDIDATES_MAX)])


def _near(losses: Floats, coarse: Floats, breaks: tuple[float, ...]) -> Floats:
    """Ages of losses between the candidates on both sides of each break: the second, finer look."""
    found = [coarse[:1]]
    every = np.unique(losses[losses < losses[-1]])
    for at in np.searchsorted(coarse, breaks[1:]):
        low, high = coarse[at - 1], coarse[min(at + 1, len(coarse) - 1)]
        found += [coarse[at : at + 1], _spread(every[(every >= low) & (every <= high)], CANDIDATES_MAX // 8)]
    return np.unique(np.concatenate(found))


def _spread(found: Floats, count: int) -> Floats:
    """At most so many of sorted numbers, evenly by rank."""
    return found if len(found) <= count else found[np.linspace(0, len(found) - 1, count).round().astype(int)]


def _best(lives: Lives, losses: Floats, breaks: Floats) -> Piecewise:
    """The best partition with breaks among these."""
    durations = np.sort(lives.duration_s)
    before = np.concatenate([[0.0], np.cumsum(durations)])
    passed = np.searchsorted(durations, breaks, side="right")
    exposure = np.append(before[passed] + (len(durations) - passed) * breaks, before[-1])
    counted = np.append(np.searchsorted(losses, breaks, side="left"), len(losses))
    chosen = _partition(exposure, counted, price=1.5 * math.log(max(len(losses), 2)))
    lost = np.diff(np.append(counted[chosen], counted[-1]))
    lived = np.diff(np.append(exposure[chosen], exposure[-1]))
    return Piecewise(tuple(breaks[chosen].tolist()), tuple((lost / lived).tolist()), observed_s=lives.oldest_s)


def _partition(exposure: Floats, counted: np.ndarray[tuple[int, ...], np.dtype[np.intp]], price: float) -> list[int]:
    """Indices of the candidates that begin a stretch in the best partition."""
    best = np.full(len(exposure), -math.inf)
    best[0] = 0.0
    came_from = np.zeros(len(exposure), dtype=int)
    enough = min(LOSSES_MIN, int(counted[-1]))
    for end in range(1, len(exposure)):
        lost = counted[end] - counted[:end]
        lived = exposure[end] - exposure[:end]
        fits = (lost >= enough) & (lived > 0)
        rate = np.where(fits, lost, 1) / np.where(fits, lived, 1.0)
        score = np.where(fits, best[:end] + lost * np.log(rate) - lost - price, -math.inf)
        came_from[end] = int(np.argmax(score))
        best[end] = score[came_from[end]]
    chosen = []
    at = len(exposure) - 1
    while at:
        at = int(came_from[at])
        chosen.append(at)
    return chosen[::-1]
