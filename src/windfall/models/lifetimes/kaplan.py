"""Kaplan-Meier: what censored lives say by themselves, without a law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from windfall.models.lifetimes.law import Curve, Floats, ages
from windfall.models.lifetimes.lives import Lives


@dataclass(frozen=True, slots=True)
class KaplanMeier(Curve):
    """The product-limit estimate: S(t) = product over losses at ages t_i <= t of (1 - d_i / n_i).

    n_i machines were alive and watched just before t_i, d_i of them were lost there; a machine that was stopped at t_i still
    counts as watched.  It has steps and no hazard, and says nothing beyond the oldest observation.

    Attributes:
        ages_s: ages at which machines were lost [s], ascending.
        lost, at_risk: d_i and n_i.

    Source:
        Kaplan and Meier, J. Amer. Statist. Assoc. 53 (1958); the standard error is Greenwood's.
    """

    name: ClassVar[str] = "kaplan-meier"
    extrapolates: ClassVar[bool] = False
    ages_s: tuple[float, ...]
    lost: tuple[int, ...]
    at_risk: tuple[int, ...]

    @property
    def end_s(self) -> float:
        """The age of the last loss [s] if all machines were lost by then, else infinite: nobody knows."""
        return self.ages_s[-1] if self.ages_s and self.lost[-1] == self.at_risk[-1] else math.inf

    def parameters(self) -> dict[str, float]:
        """Return nothing: it has steps, not parameters."""
        return {}

    def steps(self) -> Floats:
        """Return S just after each of `ages_s`."""
        return np.exp(self._log_steps())

    def standard_error(self, age_s: ArrayLike) -> Floats:
        """Return Greenwood's standard error of S: S sqrt(sum of d / (n (n - d))) over losses up to that age."""
        lost, at_risk = np.asarray(self.lost, dtype=float), np.asarray(self.at_risk, dtype=float)
        left = at_risk - lost
        terms = np.where(left > 0, lost / (at_risk * np.where(left > 0, left, 1.0)), 0.0)
        sums = np.concatenate([[0.0], np.cumsum(terms)])
        passed = np.searchsorted(self.ages_s, ages(age_s), side="right")
        return np.asarray(self.survival(age_s) * np.sqrt(sums[passed]), dtype=np.float64)

    def log_survival(self, age_s: ArrayLike) -> Floats:
        """Return log S(t); beyond the oldest observation it stays where it is, as `ask` says."""
        known = np.concatenate([[0.0], self._log_steps()])
        return np.asarray(known[np.searchsorted(self.ages_s, ages(age_s), side="right")], dtype=np.float64)

    def _log_steps(self) -> Floats:
        lost, at_risk = np.asarray(self.lost, dtype=float), np.asarray(self.at_risk, dtype=float)
        with np.errstate(divide="ignore"):
            return np.cumsum(np.log1p(-lost / at_risk))

    def _age_at(self, hazard: Floats) -> Floats:
        found = np.searchsorted(-self._log_steps(), hazard, side="left")
        reached = np.append(np.asarray(self.ages_s), math.inf)[found]
        return np.where(hazard > 0, reached, 0.0)

    def _area(self, begin_s: float, end_s: float) -> float:
        inner = [age for age in self.ages_s if begin_s < age < end_s]
        edges = np.asarray([begin_s, *inner, min(end_s, self.end_s)])
        alive = self.log_survival(edges[:-1]) - float(self.log_survival(begin_s))
        return float(np.sum(np.diff(edges) * np.exp(alive)))


def kaplan_meier(lives: Lives) -> KaplanMeier:
    """Return the Kaplan-Meier estimate of lives.

    Example:
        Lives 1, 2 (stopped), 3, 3 and 5 s (stopped): S = 4/5 from 1 s, 4/5 x 1/3 from 3 s, unknown beyond 5 s.
    """
    found, lost = np.unique(lives.duration_s[lives.lost], return_counts=True)
    at_risk = len(lives) - np.searchsorted(np.sort(lives.duration_s), found, side="left")
    return KaplanMeier(
        tuple(found.tolist()),
        tuple(lost.tolist()),
        tuple(at_risk.tolist()),
        observed_s=lives.oldest_s,
    )
