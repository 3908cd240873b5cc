"""Kaplan-Meier: the survival of censored lifetimes, without a law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from windfall.models.lifetimes.lifetime_law import Curve, Floats, ages
from windfall.models.lifetimes.observations import Lifetimes


@dataclass(frozen=True, slots=True)
class KaplanMeier(Curve):
    """The product-limit estimate: S(t) = product over losses at ages t_i <= t of (1 - d_i / n_i).

    n_i machines were alive and observed just before t_i, d_i of them were lost there; a machine that was stopped at t_i
    still counts as observed.  The estimate has steps and no hazard, and is undefined beyond the oldest observation.

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
        """The age of the last loss [s] if all machines were lost by then, else infinite, because it is unknown."""
        return self.ages_s[-1] if self.ages_s and self.lost[-1] == self.at_risk[-1] else math.inf

    def parameters(self) -> dict[str, float]:
        """Return an empty dictionary: the estimate has steps, not parameters."""
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
        """Return log S(t); beyond the oldest observation it is constant, as `survival_answer` notes."""
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

    def _area(self, start_s: float, end_s: float) -> float:
        inner = [age for age in self.ages_s if start_s < age < end_s]
        edges = np.asarray([start_s, *inner, min(end_s, self.end_s)])
        alive = self.log_survival(edges[:-1]) - float(self.log_survival(start_s))
        return float(np.sum(np.diff(edges) * np.exp(alive)))


def kaplan_meier(lifetimes: Lifetimes) -> KaplanMeier:
    """Return the Kaplan-Meier estimate of lifetimes.

    Example:
        Lifetimes 1, 2 (stopped), 3, 3 and 5 s (stopped): S = 4/5 from 1 s, 4/5 x 1/3 from 3 s, unknown beyond 5 s.
    """
    found, lost = np.unique(lifetimes.duration_s[lifetimes.lost], return_counts=True)
    at_risk = len(lifetimes) - np.searchsorted(np.sort(lifetimes.duration_s), found, side="left")
    return KaplanMeier(
        tuple(found.tolist()),
        tuple(lost.tolist()),
        tuple(at_risk.tolist()),
        observed_s=lifetimes.oldest_s,
    )
